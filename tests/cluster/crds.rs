//! The definitions at the apiserver: what they refuse, and with which words; that an upgrade keeps objects; that what the
//! repository shows is what an apiserver takes.

use std::{collections::BTreeMap, fs, path::PathBuf};

use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::harness::{Cluster, Namespace, trial, wait_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("crds::bad_objects_are_refused_in_words", bad_objects_are_refused_in_words),
        trial("crds::every_bound_is_kept", every_bound_is_kept),
        trial("crds::a_mode_cannot_be_changed", a_mode_cannot_be_changed),
        trial("crds::examples_and_manifests_are_valid", examples_and_manifests_are_valid),
        trial("crds::an_upgrade_keeps_objects", an_upgrade_keeps_objects),
    ]
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The YAML files of a folder, by name.
fn files(folder: &str) -> BTreeMap<String, String> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let paths = entries.map(|entry| entry.unwrap().path());
    let files: BTreeMap<_, _> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()))
        .collect();
    assert!(!files.is_empty(), "{folder} is empty");
    files
}

/// Applies definitions, whoever applied them before.
fn apply(cluster: &Cluster, text: &str) -> Result<String, String> {
    let words = ["apply", "--server-side", "--force-conflicts", "--field-manager=trial-crds", "-f", "-"];
    cluster.try_kubectl(&words, Some(text))
}

/// Applies the definitions of this build and waits until objects of theirs can be written.
fn install(cluster: &Cluster) {
    for (file, text) in files("crds") {
        apply(cluster, &text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    established(cluster, "pointsman.dev");
}

fn established(cluster: &Cluster, group: &str) {
    for plural in ["selectorsets", "modelpools"] {
        let name = format!("crd/{plural}.{group}");
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &name]);
    }
}

fn dry_run(ns: &Namespace, text: &str) -> Result<String, String> {
    let words = ["apply", "--dry-run=server", "--validate=strict", "-n", ns.name(), "-f", "-"];
    ns.cluster().try_kubectl(&words, Some(text))
}

fn bad_objects_are_refused_in_words(ns: &Namespace) {
    install(ns.cluster());
    let bad = files("tests/fixtures/kubernetes/bad");
    assert!(bad.len() > 30);
    let mut wrong = Vec::new();
    for (file, text) in bad {
        let said =
            text.lines().next().and_then(|line| line.strip_prefix("# refused: ")).unwrap_or_else(|| panic!("{file}"));
        match dry_run(ns, &text) {
            Err(words) if words.contains(said) => {}
            other => wrong.push(format!("{file}: expected {said:?}, got {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A value beyond a bound, and what the apiserver says about it.
type Beyond = (Value, String);

/// Values beyond each bound that a schema has by itself.
fn beyond(schema: &Value) -> Vec<Beyond> {
    let mut all = Vec::new();
    let step = |bound: &Value, by: i64| match bound.as_i64() {
        Some(whole) => json!(whole + by),
        None => json!(bound.as_f64().unwrap_or_default() + by as f64),
    };
    if let Some(least) = schema.get("minimum") {
        all.push((step(least, -1), "should be greater than or equal to".to_owned()));
    }
    if let Some(most) = schema.get("maximum") {
        all.push((step(most, 1), "should be less than or equal to".to_owned()));
    }
    if let Some(least) = schema["minLength"].as_u64() {
        all.push((json!("x".repeat(least as usize - 1)), "should be at least".to_owned()));
    }
    if let Some(most) = schema["maxLength"].as_u64() {
        all.push((json!("x".repeat(most as usize + 1)), "Too long".to_owned()));
    }
    if schema.get("enum").is_some() {
        all.push((json!("nonsense"), "Unsupported value".to_owned()));
    }
    all
}

/// Every bound below a schema: the field's path, and an object that holds nothing but a value beyond it.
fn bounds(schema: &Value, path: &str, found: &mut Vec<(String, Beyond)>) {
    found.extend(beyond(schema).into_iter().map(|beyond| (path.to_owned(), beyond)));
    let inner = |(inside, name, key): (&Value, String, &str)| {
        let mut below = Vec::new();
        bounds(inside, &name, &mut below);
        let wrap = |value: Value| if key.is_empty() { json!([value]) } else { json!({ key: value }) };
        below.into_iter().map(|(path, (value, said))| (path, (wrap(value), said))).collect::<Vec<_>>()
    };
    for (field, inside) in schema["properties"].as_object().into_iter().flatten() {
        let name = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
        found.extend(inner((inside, name, field)));
    }
    if let Some(items) = schema.get("items") {
        found.extend(inner((items, format!("{path}[0]"), "")));
    }
}

fn every_bound_is_kept(ns: &Namespace) {
    let cluster = ns.cluster();
    install(cluster);
    let mut tried = 0;
    for (plural, kind) in [("selectorsets", "SelectorSet"), ("modelpools", "ModelPool")] {
        let definition = cluster.json(&["get", "crd", &format!("{plural}.pointsman.dev")]);
        let mut found = Vec::new();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        bounds(schema, "spec", &mut found);
        for (path, (spec, said)) in found {
            let object = json!({
                "apiVersion": "pointsman.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": "beyond"},
                "spec": spec,
            });
            let resource = ApiResource {
                group: "pointsman.dev".into(),
                version: "v1alpha1".into(),
                api_version: "pointsman.dev/v1alpha1".into(),
                kind: kind.into(),
                plural: plural.into(),
            };
            let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), ns.name(), &resource);
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let parameters = PostParams { dry_run: true, ..PostParams::default() };
            match cluster.api(api.create(&parameters, &object)) {
                Err(words) => {
                    let named = words.contains(&path);
                    assert!(named && words.contains(&said), "{kind} {path}: {said:?} is expected, not {words}");
                }
                Ok(_) => panic!("{kind} {path}: accepted: {}", object.data),
            }
            tried += 1;
        }
    }
    println!("{tried} bounds");
    assert!(tried >= 60, "{tried} bounds were found");
}

fn a_mode_cannot_be_changed(ns: &Namespace) {
    install(ns.cluster());
    let set = |spec: Value| {
        json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "SelectorSet", "metadata": {"name": "kept"}, "spec": spec})
            .to_string()
    };
    // No replicas: an operator that looks after the cluster has nothing to run.
    ns.apply(&set(json!({"replicas": 0})));
    let external = json!({"replicas": 0, "mode": "External", "podSelector": {"matchLabels": {"app": "x"}}});
    let refused = ns.try_apply(&set(external)).expect_err("the mode was changed");
    assert!(refused.contains("mode cannot be changed: make another SelectorSet"), "{refused}");
    ns.apply(&set(json!({"replicas": 0, "shutdownDelaySeconds": 1})));
}

fn examples_and_manifests_are_valid(ns: &Namespace) {
    install(ns.cluster());
    for (file, text) in files("examples/kubernetes") {
        dry_run(ns, &text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    for (file, text) in files("manifests") {
        // Its namespace does not exist, and a dry run makes none.
        let text = text.replace("namespace: pointsman", &format!("namespace: {}", ns.name()));
        let without_namespace = text.split_once("\n---\n").expect("several documents").1;
        dry_run(ns, without_namespace).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}

/// Definitions in a group of the trial's own, so that the upgrade of others' is nobody's business here.
struct Definitions<'a> {
    cluster: &'a Cluster,
    group: String,
}

impl Definitions<'_> {
    fn apply(&self, folder: &str) {
        for (file, text) in files(folder) {
            // Short names are one for all groups.
            let text = text.replace("pointsman.dev", &self.group).replace("    - sset\n", "").replace("    - mp\n", "");
            let text = text.replace("    shortNames:\n", "");
            apply(self.cluster, &text).unwrap_or_else(|e| panic!("{file}: {e}"));
        }
        established(self.cluster, &self.group);
    }
}

impl Drop for Definitions<'_> {
    fn drop(&mut self) {
        for plural in ["selectorsets", "modelpools"] {
            let name = format!("{plural}.{}", self.group);
            self.cluster.try_kubectl(&["delete", "crd", &name, "--ignore-not-found", "--wait=false"], None).ok();
        }
    }
}

fn an_upgrade_keeps_objects(ns: &Namespace) {
    let cluster = ns.cluster();
    let definitions = Definitions { cluster, group: format!("{}.pointsman.test", ns.name()) };
    definitions.apply("tests/fixtures/kubernetes/crds-old");
    let api_version = format!("{}/v1alpha1", definitions.group);
    let set = json!({"apiVersion": api_version, "kind": "SelectorSet", "metadata": {"name": "fleet"},
        "spec": {"replicas": 2, "router": {"policy": "least-loaded"}, "podTemplate": {"labels": {"team": "a"}}}});
    let pool = json!({"apiVersion": api_version, "kind": "ModelPool", "metadata": {"name": "llama"},
        "spec": {"selectorRef": {"name": "fleet"}, "modelName": "llama", "workers": {"service": {"name": "vllm"}},
            "endpoint": {"port": "http"}, "blockSize": 16, "kvEvents": {"port": 5557}}});
    let kinds = [("selectorsets", "fleet", &set), ("modelpools", "llama", &pool)];
    let read = |plural: &str, name: &str| ns.json(&["get", &format!("{plural}.{}/{name}", definitions.group)]);
    for (_, _, object) in kinds {
        wait_until("an object under the older definition", || ns.try_apply(&object.to_string()));
    }
    let before = kinds.map(|(plural, name, _)| read(plural, name));
    assert!(before[0]["spec"].get("shutdownDelaySeconds").is_none(), "the fixture is not older: {}", before[0]);
    definitions.apply("crds");
    for ((plural, name, object), before) in kinds.iter().zip(before) {
        wait_until("the newer definition", || {
            let now = read(plural, name);
            let field = if *plural == "selectorsets" { "shutdownDelaySeconds" } else { "drain" };
            if now["spec"].get(field).is_some() { Ok(()) } else { Err(now.to_string()) }
        });
        let now = read(plural, name);
        assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(
            now["metadata"]["generation"], before["metadata"]["generation"],
            "an upgrade is no change of a spec"
        );
        for (field, value) in before["spec"].as_object().expect("a spec") {
            assert_eq!(&now["spec"][field], value, "{plural} {field}");
        }
        // And it can still be written as it was.
        ns.apply(&object.to_string());
    }
}
