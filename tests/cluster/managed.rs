//! A SelectorSet of the operator's over mock engines, as most trials of the operator need it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::harness::{Agreement, Namespace, manifests, wait_until};

/// Labels of the selectors' pods.
pub const SELECTORS: &str = "pointsman.dev/selector-set=fleet";

/// SelectorSet `fleet` with this spec, and ModelPool `pool` over `engines` mock engines.
pub fn apply(ns: &Namespace, spec: &Value, engines: u32) {
    apply_set(ns, spec);
    ns.apply(&pool("http").to_string());
    ns.apply(&manifests::list(&manifests::engines("engines", engines, ns.cluster().image(), &[])));
}

/// SelectorSet `fleet` with this spec.
pub fn apply_set(ns: &Namespace, spec: &Value) {
    let set = json!({
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "SelectorSet",
        "metadata": {"name": "fleet"},
        "spec": spec,
    });
    ns.apply(&set.to_string());
}

/// ModelPool `pool` of the Service `engines`.
pub fn pool(port: &str) -> Value {
    json!({
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "pool"},
        "spec": {
            "selectorRef": {"name": "fleet"},
            "modelName": manifests::MODEL,
            "workers": {"service": {"name": "engines"}},
            "endpoint": {"port": port},
            "blockSize": manifests::BLOCK_SIZE,
            "kvEvents": {"port": manifests::ENGINE_PORTS[1], "replayPort": manifests::ENGINE_PORTS[2]},
            "capacity": {"maxNumBatchedTokens": 8192, "totalKvBlocks": 20000},
        },
    })
}

/// Owner of the set's records at its selectors.
pub fn owner(ns: &Namespace) -> String {
    format!("k8s.{}.fleet", ns.name())
}

/// Status of a condition, `Missing` where there is none.
pub fn condition(object: &Value, kind: &str) -> String {
    let all = object["status"]["conditions"].as_array().into_iter().flatten();
    let found = all.into_iter().find(|condition| condition["type"] == kind);
    found.map_or("Missing".to_owned(), |condition| condition["status"].as_str().unwrap_or_default().to_owned())
}

/// Waits until `selectors` selectors agree on `workers` workers, and both statuses say that all is well, about the
/// present specs; what the selectors agree on.
#[track_caller]
pub fn wait_until_well(ns: &Namespace, selectors: usize, workers: usize) -> Agreement {
    wait_until_well_but_for(0, ns, selectors, workers)
}

/// The same, but that at most `most_left` bookings may be left over, on all selectors alike.
#[track_caller]
pub fn wait_until_well_but_for(most_left: u64, ns: &Namespace, selectors: usize, workers: usize) -> Agreement {
    let all = format!("{workers}/{workers}");
    wait_until(&format!("{workers} workers"), || {
        let pool = ns.object("modelpool", "pool")?.ok_or("no pool")?;
        if pool["status"]["schedulableOfDiscovered"] == *all { Ok(()) } else { Err(pool["status"].to_string()) }
    });
    let agreed = ns.wait_for_agreement_but_for(most_left, SELECTORS, selectors, &owner(ns));
    assert_eq!(agreed.workers.len(), workers, "{agreed:?}");
    wait_until("statuses that say so", || {
        let set = ns.object("selectorset", "fleet")?.ok_or("no set")?;
        let pool = ns.object("modelpool", "pool")?.ok_or("no pool")?;
        let is_well = ["Available", "CatalogSynced", "PeersWired"].iter().all(|kind| condition(&set, kind) == "True")
            && ["Progressing", "Degraded"].iter().all(|kind| condition(&set, kind) == "False")
            && ["Accepted", "WorkersDiscovered", "Synced"].iter().all(|kind| condition(&pool, kind) == "True")
            && [&set, &pool].iter().all(|o| o["status"]["observedGeneration"] == o["metadata"]["generation"])
            && set["status"]["readyOfReplicas"] == format!("{selectors}/{selectors}")
            && pool["status"]["schedulableOfDiscovered"] == *all;
        let rows: Vec<&Value> = set["status"]["selectors"].as_array().into_iter().flatten().collect();
        let digests: BTreeSet<&str> = rows.iter().filter_map(|row| row["digest"].as_str()).collect();
        let agrees = rows.len() == selectors && digests.len() == 1 && digests.contains(&*agreed.digest);
        if is_well && agrees { Ok(()) } else { Err(format!("{agreed:?}\n{}\n{}", set["status"], pool["status"])) }
    });
    agreed
}

/// Epoch and generation of the catalog that the set's status names.
pub fn version(ns: &Namespace) -> Result<(u64, u64), String> {
    let set = ns.object("selectorset", "fleet")?.ok_or("no set")?;
    let catalog = &set["status"]["catalog"];
    let number = |field: &str| catalog[field].as_u64().ok_or_else(|| format!("no {field} in {catalog}"));
    Ok((number("epoch")?, number("generation")?))
}
