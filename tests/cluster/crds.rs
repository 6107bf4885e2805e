//! The definitions at the apiserver: what they refuse, and with which words; that an upgrade keeps objects; that what the
//! repository shows is what an apiserver takes.

use std::{collections::BTreeMap, fs, path::PathBuf};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::harness::{Cluster, Namespace, trial, wait_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("crds::bad_objects_are_refused_in_words", bad_objects_are_refused_in_words),
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
