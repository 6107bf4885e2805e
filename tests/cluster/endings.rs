//! Deletions end, in whatever order; and an operator that has nothing to do does nothing, whoever touches its objects.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::{
    harness::{AuditLog, Namespace, manifests, trial, wait_until, within},
    managed,
};

/// The finalizer of sets in mode External.
const FINALIZER: &str = "pointsman.dev/catalog";
/// Longest wait for a deletion: a set waits for selectors that do not answer for 30 s.
const END: Duration = Duration::from_secs(90);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("endings::touches_of_others_cause_no_writes", touches_of_others_cause_no_writes),
        trial("endings::sets_that_were_leaving_when_the_operator_came", sets_that_were_leaving_when_the_operator_came),
        trial("endings::a_set_whose_selectors_do_not_answer", a_set_whose_selectors_do_not_answer),
        trial("endings::the_operator_goes_first", the_operator_goes_first),
        trial("endings::the_namespace_with_everything", the_namespace_with_everything),
    ]
}

/// SelectorSet `NAME` of pods with the label `app=NAME`.
fn external(name: &str, spec: &Value) -> Value {
    let mut set = json!({
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "SelectorSet",
        "metadata": {"name": name},
        "spec": {"mode": "External", "podSelector": {"matchLabels": {"app": name}}},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        set["spec"][field] = value.clone();
    }
    set
}

fn is_gone(ns: &Namespace, kind: &str, name: &str) -> Result<(), String> {
    match ns.object(kind, name)? {
        None => Ok(()),
        Some(object) => Err(object.to_string()),
    }
}

#[track_caller]
fn wait_for_finalizer(ns: &Namespace, name: &str) {
    wait_until(&format!("the finalizer of {name}"), || {
        let set = ns.object("selectorset", name)?.ok_or("no set")?;
        if set["metadata"]["finalizers"] == json!([FINALIZER]) { Ok(()) } else { Err(set.to_string()) }
    });
}

fn touches_of_others_cause_no_writes(ns: &Namespace) {
    const TOUCHES: u32 = 20;
    let _operator = ns.install_operator(&[]);
    managed::apply(ns, &json!({"replicas": 2}), 2);
    ns.wait_for_pods(managed::SELECTORS, 2);
    wait_until("a fleet at rest", || {
        let set = ns.object("selectorset", "fleet")?.ok_or("no set")?;
        let pool = ns.object("modelpool", "pool")?.ok_or("no pool")?;
        let is_well = managed::condition(&set, "CatalogSynced") == "True"
            && managed::condition(&set, "Progressing") == "False"
            && pool["status"]["schedulableOfDiscovered"] == "2/2";
        if is_well { Ok(()) } else { Err(format!("{}\n{}", set["status"], pool["status"])) }
    });
    managed::wait_until_well(ns, 2, 2);
    // Events about what has just ended.
    std::thread::park_timeout(Duration::from_secs(3));
    let audit = AuditLog::from_now(ns.cluster());
    let mut next = Instant::now();
    for touch in 0..TOUCHES {
        let mark = format!("trial/touched={touch}");
        let owned = "statefulsets,services,configmaps,poddisruptionbudgets";
        ns.kubectl(&["annotate", "--overwrite", owned, "-l", "pointsman.dev/selector-set=fleet", &mark]);
        for object in ["selectorset/fleet", "modelpool/pool"] {
            ns.kubectl(&["annotate", "--overwrite", object, &mark]);
        }
        next += Duration::from_secs(1);
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
    }
    let all = audit.requests().by_service_account(ns.name(), ns.operator_account());
    let writes = all.clone().writes().but("leases");
    let reads = all.len() - all.clone().writes().len();
    println!("{TOUCHES} touches of 6 objects: {} writes, {reads} reads", writes.len());
    assert!(writes.is_empty(), "{writes:?}");
    // A look at what a set owns is a dozen reads; each touch may cause one, and the touches of a second share it or not.
    assert!(reads <= 14 * 5 * TOUCHES as usize, "{reads} reads");
}

/// Somebody's finalizer holds a set until the operator is there, as one of ours would that an earlier operator left.
fn held(mut set: Value, finalizer: &str) -> Value {
    set["metadata"]["finalizers"] = json!([finalizer]);
    set
}

fn sets_that_were_leaving_when_the_operator_came(ns: &Namespace) {
    const FOREIGN: &str = "trial.example/held";
    ns.cluster().apply_crds();
    let secret = json!({"adminTokenSecretRef": {"name": "none", "key": "token"}});
    let mut managed = external("managed", &json!({}));
    managed["spec"] = json!({"replicas": 1});
    let sets = [
        held(external("without-pods", &json!({})), FINALIZER),
        // The last to go, so that its time is all that happens then.
        held(external("without-its-secret", &secret), FINALIZER),
        held(managed, FOREIGN),
    ];
    ns.apply(&manifests::list(&sets));
    for name in ["without-pods", "without-its-secret", "managed"] {
        ns.kubectl(&["delete", "selectorset", name, "--wait=false"]);
    }
    let audit = AuditLog::from_now(ns.cluster());
    let _operator = ns.install_operator(&[]);
    let started = Instant::now();
    for name in ["without-pods", "without-its-secret"] {
        within(END, &format!("the end of {name}"), || is_gone(ns, "selectorset", name));
        println!("{name} went after {:?}", started.elapsed());
    }
    let managed = ns.object("selectorset", "managed").unwrap().expect("it is held");
    assert_eq!(managed["metadata"]["finalizers"], json!([FOREIGN]));
    assert!(ns.object("statefulset", "managed").unwrap().is_none(), "something was made for a set that goes");
    ns.kubectl(&["patch", "selectorset", "managed", "--type=merge", "-p", r#"{"metadata": {"finalizers": null}}"#]);
    within(END, "the end of the set that was held", || is_gone(ns, "selectorset", "managed"));
    let account = ns.operator_account();
    let refused = audit.requests().by_service_account(ns.name(), account).answered(403);
    assert!(refused.is_empty(), "{refused:?}");
}

fn a_set_whose_selectors_do_not_answer(ns: &Namespace) {
    let _operator = ns.install_operator(&[]);
    ns.apply(&external("deaf", &json!({})).to_string());
    // A pod that nobody runs, at an address that nobody has.
    ns.apply(&silent_selector("deaf").to_string());
    let status = manifests::unbacked_status("10.88.255.250", "1234", true).to_string();
    ns.kubectl(&["patch", "pod", "silent", "--subresource=status", "--type=merge", "-p", &status]);
    wait_for_finalizer(ns, "deaf");
    wait_until("a status that says so", || {
        let set = ns.object("selectorset", "deaf")?.ok_or("no set")?;
        let all = set["status"]["conditions"].as_array().into_iter().flatten();
        let is_named = all.into_iter().any(|c| c["type"] == "CatalogSynced" && c["reason"] == "SelectorUnreachable");
        if is_named { Ok(()) } else { Err(set["status"].to_string()) }
    });
    let started = Instant::now();
    for _ in 0..2 {
        ns.kubectl(&["delete", "selectorset", "deaf", "--wait=false"]);
    }
    within(END, "its end", || is_gone(ns, "selectorset", "deaf"));
    println!("it went after {:?}", started.elapsed());
}

/// A pod `silent` that no kubelet runs and no garbage collector takes: it waits for a scheduler that there is not.
fn silent_selector(app: &str) -> Value {
    let mut pod = manifests::unbacked_pod("silent", &json!({"app": app}));
    let spec = pod["spec"].as_object_mut().expect("a spec");
    spec.remove("nodeName");
    spec.insert("schedulerName".into(), json!("nobody"));
    pod
}

fn the_operator_goes_first(ns: &Namespace) {
    let operator = ns.install_operator(&[]);
    managed::apply(ns, &json!({"replicas": 1}), 1);
    ns.apply(&external("sidecars", &json!({})).to_string());
    ns.wait_for_pods(managed::SELECTORS, 1);
    wait_for_finalizer(ns, "sidecars");
    drop(operator);
    ns.wait_for_pods(managed::SELECTORS, 1);
    ns.kubectl(&["delete", "modelpool/pool", "selectorset/fleet", "--timeout=60s"]);
    wait_until("no selectors", || {
        let pods = ns.try_pods(managed::SELECTORS)?;
        if pods.is_empty() { Ok(()) } else { Err(format!("{pods:?}")) }
    });
    ns.kubectl(&["delete", "selectorset/sidecars", "--wait=false"]);
    // Nobody is left to take its finalizer off; this is the command that the guide gives.
    let guide = include_str!("../../docs/kubernetes/operations.md");
    let command = r#"kubectl patch sset NAME --type=merge -p '{"metadata":{"finalizers":null}}'"#;
    assert!(guide.contains(command), "the guide does not say how to end it");
    ns.kubectl(&["patch", "sset", "sidecars", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    within(END, "its end", || is_gone(ns, "selectorset", "sidecars"));
}

fn the_namespace_with_everything(ns: &Namespace) {
    let inner = Namespace::new(ns.cluster(), "ends-with-everything");
    // Helm's records go with the namespace: there is nothing left to uninstall.
    let operator = inner.install_operator(&[]);
    managed::apply(&inner, &json!({"replicas": 1}), 1);
    inner.apply(&external("sidecars", &json!({})).to_string());
    inner.wait_for_pods(managed::SELECTORS, 1);
    wait_for_finalizer(&inner, "sidecars");
    let started = Instant::now();
    inner.cluster().kubectl(&["delete", "namespace", inner.name(), "--wait=false"]);
    // The namespace takes the operator's rights before its sets, so that the operator may come too late.
    let mut left = String::new();
    within(END, "the end of all but what waits for the operator", || {
        left = inner.try_kubectl(&["get", "sset,mp,pods,sts,svc,cm,pdb,netpol", "-o", "name", "--ignore-not-found"])?;
        let only_waits =
            left.lines().all(|name| name == "selectorset.pointsman.dev/sidecars" || name.contains("kube-root-ca"));
        if only_waits { Ok(()) } else { Err(left.clone()) }
    });
    println!("left after {:?}: {left}", started.elapsed());
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    inner.try_kubectl(&["patch", "sset", "sidecars", "--type=merge", "-p", patch]).ok();
    within(END, "the end of the namespace", || {
        match ns.cluster().try_kubectl(&["get", "namespace", inner.name(), "--ignore-not-found", "-o", "json"], None) {
            Ok(text) if text.is_empty() => Ok(()),
            Ok(text) | Err(text) => Err(text),
        }
    });
    drop(operator);
}
