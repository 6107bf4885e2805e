//! `crds/` and the chart's copies, from the types.

use pointsman::kubernetes::api;

use super::{assert_generated_as, yaml};

/// A client-side `kubectl apply` keeps the whole object in an annotation, which has this limit.
const APPLY_LIMIT: usize = 262_144;

#[test]
fn drift_of_the_definitions() {
    for crd in api::crds() {
        let text = api::crd_yaml(&crd);
        assert_generated_as(&format!("crds/{}.yaml", crd.spec.names.plural), &text, yaml);
    }
}

#[test]
fn drift_of_the_charts_copies() {
    for crd in api::crds() {
        let path = format!("charts/pointsman/templates/crds/{}.yaml", crd.spec.names.plural);
        let text = api::crd_yaml(&crd);
        assert!(!text.contains("{{"), "{path}: Helm would take the braces for its own");
        let (head, tail) = text.split_once("metadata:\n").expect("a CRD has metadata");
        let keep = "{{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}";
        let labels = "labels:\n    {{- include \"pointsman.labels\" . | nindent 4 }}";
        let copy = format!(
            "{{{{- if .Values.crds.install }}}}\n{head}metadata:\n  {keep}\n  {labels}\n{tail}{{{{- end }}}}\n"
        );
        assert_generated_as(&path, &copy, str::to_owned);
    }
}

#[test]
fn definitions_are_small_enough_for_a_plain_apply() {
    for crd in api::crds() {
        let size = serde_json::to_vec(&crd).expect("a CRD is plain data").len();
        assert!(size < APPLY_LIMIT / 2, "{}: {size} bytes", crd.spec.names.plural);
    }
}

#[test]
fn every_field_is_described() {
    fn look(path: &str, schema: &serde_json::Value, missing: &mut Vec<String>) {
        if let Some(fields) = schema["properties"].as_object() {
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                if field["description"].as_str().is_none_or(str::is_empty) {
                    missing.push(path.clone());
                }
                look(&path, field, missing);
            }
        }
        if schema["items"].is_object() {
            look(&format!("{path}[]"), &schema["items"], missing);
        }
    }
    let mut missing = Vec::new();
    for crd in api::crds() {
        let crd = serde_json::to_value(&crd).expect("a CRD is plain data");
        look("", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &mut missing);
    }
    missing.retain(|path| path != ".status");
    assert!(missing.is_empty(), "{missing:#?}");
}
