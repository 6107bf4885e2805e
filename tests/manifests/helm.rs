//! What Helm makes of the chart: the plain manifests, and that odd values render or are refused in words. Needs `helm`, on
//! the PATH or where the cluster's programs are; without it these tests are skipped, or
//! fail where the cluster is required.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

use super::{assert_generated_as, root, yaml};

/// The oldest Kubernetes that is supported; `helm template` without a cluster would guess one.
const KUBERNETES: &str = "1.33.0";

fn helm() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cache = std::env::var_os("POINTSMAN_CACHE").map_or(home.join(".cache/pointsman"), PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain([cache.join("cluster/bin")])
        .map(|folder| folder.join("helm"))
        .find(|program| program.is_file());
    if found.is_none() {
        let required = std::env::var_os("POINTSMAN_CLUSTER_REQUIRED").is_some();
        assert!(!required, "helm is not there: tests/setup/cluster.sh builds it");
        eprintln!("skipped, because helm is not there (tests/setup/cluster.sh builds it)");
    }
    found
}

/// Output of `helm template`, or its error.
fn template(helm: &PathBuf, values: &str, more: &[&str]) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("values.yaml");
    std::fs::write(&file, values).expect("a temporary file");
    let output = Command::new(helm)
        .args(["template", "pointsman", "charts/pointsman", "--namespace", "pointsman", "--kube-version", KUBERNETES])
        .arg("--values")
        .arg(&file)
        .args(more)
        .current_dir(root())
        .output()
        .expect("helm runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("helm prints Unicode");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// The operator's Deployment with `values`.
fn deployment(helm: &PathBuf, values: &str) -> Value {
    let text = template(helm, values, &["--show-only", "templates/deployment.yaml"]);
    yaml(&text.unwrap_or_else(|error| panic!("{values}\n{error}"))).remove(0)
}

#[test]
fn drift_of_the_plain_manifests() {
    let Some(helm) = helm() else { return };
    for (path, scope) in [("manifests/cluster.yaml", "cluster"), ("manifests/namespaced.yaml", "namespace")] {
        let values = format!("rbac: {{scope: {scope}}}\ncrds: {{keep: false}}");
        let made = template(&helm, &values, &["--no-hooks"]).expect("the chart renders");
        let by_helm = ["# Source: ", "app.kubernetes.io/managed-by: ", "helm.sh/chart: "];
        let lines = made.lines().filter(|line| !by_helm.iter().any(|mark| line.trim_start().starts_with(mark)));
        let head = format!(
            "# The operator for {}, without Helm: kubectl apply --server-side -f {path}\n\
             apiVersion: v1\nkind: Namespace\nmetadata:\n  name: pointsman\n",
            if scope == "cluster" { "all namespaces" } else { "its own namespace alone" },
        );
        let text = head + &lines.flat_map(|line| [line.trim_end(), "\n"]).collect::<String>();
        assert_generated_as(path, &text, yaml);
    }
}

#[test]
fn odd_values_render_as_they_stand() {
    let Some(helm) = helm() else { return };
    let made = deployment(
        &helm,
        r#"
extraEnv:
  - {name: INTEGER, value: 300}
  - {name: LARGE, value: 268435456}
  - {name: SECONDS, value: 31536000}
  - {name: FRACTION, value: 1.5}
  - {name: FLAG, value: true}
  - {name: YES_LIKE, value: "on"}
  - {name: OCTAL_LIKE, value: "0755"}
  - {name: EMPTY, value: ""}
  - {name: COLON, value: "a: b # c"}
nodeSelector: {zone: 1}
podAnnotations: {revision: 20260101, enabled: true}
podLabels: {app.kubernetes.io/name: not-taken, team: 7}
image: {tag: "1.10"}
"#,
    );
    let pod = &made["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    let env = |name: &str| {
        let all = container["env"].as_array().expect("an environment");
        all.iter().find(|e| e["name"] == name).unwrap_or_else(|| panic!("{name}"))["value"].clone()
    };
    for (name, value) in [
        ("INTEGER", "300"),
        ("LARGE", "268435456"),
        ("SECONDS", "31536000"),
        ("FRACTION", "1.5"),
        ("FLAG", "true"),
        ("YES_LIKE", "on"),
        ("OCTAL_LIKE", "0755"),
        ("EMPTY", ""),
        ("COLON", "a: b # c"),
    ] {
        assert_eq!(env(name), value, "{name}");
    }
    assert_eq!(pod["spec"]["nodeSelector"]["zone"], "1");
    assert_eq!(pod["metadata"]["annotations"]["revision"], "20260101");
    assert_eq!(pod["metadata"]["annotations"]["enabled"], "true");
    assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/name"], "pointsman");
    assert_eq!(pod["metadata"]["labels"]["team"], "7");
    assert_eq!(container["image"], "pointsman/pointsman:1.10");
}

#[test]
fn nulls_take_defaults_away_and_leave_nothing_dangling() {
    let Some(helm) = helm() else { return };
    let values = "{resources: null, nodeSelector: null, tolerations: null, affinity: null, extraEnv: null, \
                  image: {tag: null}, serviceAccount: {create: false, name: null}}";
    let text = template(&helm, values, &["--set", "crds.install=false"]).expect("it renders");
    assert!(!text.contains("<nil>") && !text.contains("null"), "{text}");
    let made = deployment(&helm, values);
    let pod = &made["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "default");
    assert!(pod["containers"][0].get("resources").is_none());
    assert!(!yaml(&text).iter().any(|object| object["kind"] == "ServiceAccount"));
}

#[test]
fn long_names_stay_valid() {
    let Some(helm) = helm() else { return };
    let long = "a-very-long-release-name-that-goes-on-and-on-until-it-is-sixty-three";
    let text = template(&helm, &format!("fullnameOverride: {long}\npodDisruptionBudget: {{enabled: true}}"), &[]);
    for object in yaml(&text.expect("it renders")) {
        let name = object["metadata"]["name"].as_str().expect("a name");
        // Names of roles and definitions may be longer: nothing is labelled with them.
        let limit = match object["kind"].as_str() {
            Some("SelectorSet") => 52,
            Some("Role" | "RoleBinding" | "CustomResourceDefinition") => 253,
            _ => 63,
        };
        assert!(name.len() <= limit, "{name}");
        for (key, value) in object["metadata"]["labels"].as_object().into_iter().flatten() {
            assert!(value.as_str().is_some_and(|value| value.len() <= 63), "{key}: {value}");
        }
    }
}

#[test]
fn what_cannot_be_meant_is_refused_in_words() {
    let Some(helm) = helm() else { return };
    for (values, said) in [
        ("image: {tag: 1.10}", &["image.tag", "string"][..]),
        ("replicas: two", &["replicas", "integer"]),
        ("replicas: null", &["replicas", "missing"]),
        ("rbac: {scope: everything}", &["rbac.scope", "cluster"]),
        ("imagePullSecret: x", &["imagePullSecret"]),
        ("image: {registry: x}", &["registry"]),
        ("extraEnv: [{name: BIG, value: 12345678901234567}]", &["extraEnv.0.value"]),
        ("extraEnv: {A: b}", &["extraEnv", "array"]),
        ("test: {url: 'http://fleet:8092'}", &["test.model"]),
        ("port: 70000", &["port", "65,535"]),
    ] {
        let error = template(&helm, values, &[]).expect_err(values).replace('/', ".");
        assert!(said.iter().all(|word| error.contains(word)), "{values}: {error}");
    }
}

#[test]
fn lint_finds_nothing() {
    let Some(helm) = helm() else { return };
    let output = Command::new(helm)
        .args(["lint", "--strict", "--kube-version", KUBERNETES, "charts/pointsman"])
        .current_dir(root())
        .output()
        .expect("helm runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn containers_have_no_privilege() {
    let Some(helm) = helm() else { return };
    let text = template(&helm, "{}", &[]).expect("it renders");
    let mut seen = 0;
    for object in yaml(&text) {
        let pod = match object["kind"].as_str() {
            Some("Deployment") => &object["spec"]["template"]["spec"],
            Some("Pod") => &object["spec"],
            _ => continue,
        };
        seen += 1;
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        for container in pod["containers"].as_array().expect("containers") {
            let security = &container["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true);
            assert_eq!(security["allowPrivilegeEscalation"], false);
            assert_eq!(security["capabilities"]["drop"][0], "ALL");
        }
    }
    assert_eq!(seen, 3);
}
