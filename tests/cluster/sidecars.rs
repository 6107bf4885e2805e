//! Selectors in pods that somebody else runs, with the operator and without it: what the examples say, as they stand.

use std::fs;

use libtest_mimic::Trial;
use serde_json::json;

use super::harness::{
    AuditLog, Fleet, Namespace, PodFacts, condition, manifests, pool, selector_set, trial, wait_until,
};

/// Model of the examples.
const MODEL: &str = "llama-3.1-70b";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("sidecars::all_ways_lead_to_one_catalog", all_ways_lead_to_one_catalog),
        trial("sidecars::without_pods_the_slices_serve", without_pods_the_slices_serve),
        trial("sidecars::what_is_not_ours_is_not_touched", what_is_not_ours_is_not_touched),
    ]
}

/// A file of the repository.
fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// An example with the image under test.
fn example(ns: &Namespace, name: &str) -> String {
    let text = read(&format!("examples/kubernetes/{name}"));
    assert!(text.contains("image: pointsman/pointsman:"), "{name} names the image");
    let lines = text.lines().map(|line| match line.split_once("image: pointsman/pointsman:") {
        Some((indent, _)) => format!("{indent}image: {}\n", ns.cluster().image()),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Rules of the first Role in a text, one a line, comments left out.
fn rules(text: &str) -> Vec<String> {
    let role = text.split_once("kind: Role\n").map(|(_, rest)| rest).expect("there is a Role");
    let lines = role.lines().map(|line| line.split('#').next().unwrap_or_default().trim_end());
    let lines = lines.skip_while(|line| *line != "rules:").skip(1).filter(|line| !line.is_empty());
    lines.take_while(|line| line.starts_with(' ')).map(|line| line.trim().to_owned()).collect()
}

fn engines(ns: &Namespace, count: u32) -> Vec<PodFacts> {
    ns.apply(&manifests::list(&manifests::engines("vllm", count, ns.cluster().image(), &[])));
    ns.wait_for_pods("app=vllm", count as usize)
}

fn all_ways_lead_to_one_catalog(ns: &Namespace) {
    let audit = AuditLog::from_now(ns.cluster());
    let mut workers = engines(ns, 2);

    // By themselves, under the Role that the guide names.
    let standalone = example(ns, "standalone.yaml");
    assert_eq!(rules(&standalone), rules(&read("docs/kubernetes/standalone.md")), "the guide and the example differ");
    ns.apply(&standalone);
    let alone = Fleet::of(ns, "vllm", "app=gateway", 2);
    alone.wait_for_pods(&workers);
    let agreed = ns.wait_for_agreement("app=gateway", 2, alone.owner());
    let pods = ns.pods("app=gateway");

    // A Managed set, and sidecars that the operator serves.
    let _operator = ns.install_operator(&[]);
    let sidecar = example(ns, "sidecar.yaml").replace("gateway", "sidecar");
    ns.apply(&sidecar);
    let external = Fleet::of(ns, "sidecar", "app=sidecar", 2);
    let managed = Fleet::managed(ns, "fleet", 2);
    ns.apply(&pool("llama", "fleet", &json!({"service": {"name": "vllm"}}), &json!({"modelName": MODEL})).to_string());
    external.selectors();
    let of_sidecars = ns.wait_for_agreement("app=sidecar", 2, external.owner());
    managed.selectors();
    let of_managed = ns.wait_for_agreement("pointsman.dev/selector-set=fleet", 2, managed.owner());
    assert_eq!([&of_sidecars, &of_managed], [&agreed, &agreed], "the same digest, the same workers");
    for set in ["sidecar", "fleet"] {
        wait_until(&format!("status of SelectorSet {set}"), || {
            let object = ns.object("selectorset", set)?.ok_or("it is gone")?;
            let good = ["Available", "CatalogSynced", "PeersWired"]
                .iter()
                .all(|kind| condition(&object["status"], kind)["status"] == "True");
            let digest = &object["status"]["catalog"]["digest"];
            if good && *digest == agreed.digest.as_str() { Ok(()) } else { Err(object["status"].to_string()) }
        });
    }

    // All of them follow.
    ns.kubectl(&["scale", "deployment/vllm", "--replicas=3"]);
    workers = ns.wait_for_pods("app=vllm", 3);
    let seen = [&alone, &external, &managed].map(|fleet| fleet.wait_for_pods(&workers));
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");

    // A sidecar that comes later is one of them.
    ns.kubectl(&["scale", "deployment/sidecar", "--replicas=3"]);
    ns.wait_for_agreement("app=sidecar", 3, external.owner());

    // Without its set, nobody looks after a sidecar: it gives its workers back, and goes on.
    let before = ns.wait_for_pods("app=sidecar", 3);
    ns.kubectl(&["delete", "sset", "sidecar", "--timeout=60s"]);
    let left = Fleet::of(ns, "sidecar", "app=sidecar", 3);
    for selector in &before {
        let workers = left.ask(selector, "GET", "/workers", None).json();
        assert_eq!(workers, json!([]), "{} keeps workers of a set that is gone", selector.name);
        let catalog = left.ask(selector, "GET", "/catalog", None).json();
        let count: u64 =
            catalog["owners"].as_array().into_iter().flatten().filter_map(|owner| owner["workers"].as_u64()).sum();
        assert_eq!(count, 0, "{}: {catalog}", selector.name);
    }
    assert_eq!(ns.wait_for_pods("app=sidecar", 3), before, "its pods are not the operator's to end");
    managed.wait_for_pods(&workers);
    alone.wait_for_pods(&workers);
    assert_eq!(ns.pods("app=gateway"), pods, "those without operator were not touched");
    let requests = audit.requests().by_service_account(ns.name(), "gateway");
    assert!(!requests.is_empty(), "the selectors asked under an account of their own");
    for what in [requests.answered(403), audit.requests().by_service_account(ns.name(), "gateway").writes()] {
        assert!(what.is_empty(), "{what:?}");
    }
}

fn without_pods_the_slices_serve(ns: &Namespace) {
    let workers = engines(ns, 2);
    let standalone = example(ns, "standalone.yaml");
    let (before, after) = standalone.split_once("  # Optional;").expect("the rule for Pods is optional");
    let (_, after) = after.split_once("---\n").expect("another document follows");
    ns.apply(&format!("{before}---\n{after}"));
    let alone = Fleet::of(ns, "vllm", "app=gateway", 2);
    let known = alone.wait_for_pods(&workers);
    ns.wait_for_agreement("app=gateway", 2, alone.owner());
    ns.kubectl(&["delete", "pod", &workers[0].name, "--force", "--grace-period=0"]);
    let workers = ns.wait_for_pods("app=vllm", 2);
    let now = alone.wait_for_pods(&workers);
    assert_eq!(now.keys().filter(|id| known.contains_key(id)).count(), 1, "{known:?}, then {now:?}");
    ns.wait_for_agreement("app=gateway", 2, alone.owner());
}

fn what_is_not_ours_is_not_touched(ns: &Namespace) {
    ns.apply(&manifests::service("fleet", &json!({"app": "mine"}), &[("mine", 80)], false).to_string());
    let mine = || ns.object("service", "fleet").unwrap_or_else(|e| panic!("{e}"));
    let before = mine();
    let _operator = ns.install_operator(&[]);
    ns.apply(&selector_set("fleet", 1).to_string());
    let degraded = |status: &str, reason: &str| {
        wait_until(&format!("Degraded {status} {reason}"), || {
            let object = ns.object("selectorset", "fleet")?.ok_or("it is gone")?;
            let found = condition(&object["status"], "Degraded").clone();
            if found["status"] == status && found["reason"] == reason {
                Ok(found["message"].to_string())
            } else {
                Err(object["status"].to_string())
            }
        })
    };
    let message = degraded("True", "NameConflict");
    assert!(message.contains("Service") && message.contains("fleet"), "{message}");
    // Selectors run all the same.
    ns.wait_for_pods("pointsman.dev/selector-set=fleet", 1);
    degraded("True", "NameConflict");
    assert_eq!(mine(), before, "somebody else's Service is as it was, to the last field");
    let text = ns.kubectl(&["describe", "sset", "fleet"]);
    assert!(text.contains("NameConflict"), "{text}");
    // Once the name is free, it is taken.
    ns.kubectl(&["delete", "service", "fleet"]);
    degraded("False", "AsExpected");
    let ours = mine().expect("the set has its Service now");
    assert_eq!(ours["spec"]["ports"][0]["port"], 8092, "{ours}");
}
