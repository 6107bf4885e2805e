//! The catalog of a selector that starts while nobody applies one (design section 6).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use super::{
    peer::{Action, Peer},
    program::{Selector, wait_for},
    rig::{self, blocking},
};

const QUIET: [(&str, &str); 1] = [("DYN_ROUTER_USE_KV_EVENTS", "false")];

fn record(id: u64) -> Value {
    json!({"worker_id": id, "model_name": "m", "endpoint": format!("http://w{id}:8000"), "block_size": 4})
}

fn snapshot(epoch: u64, generation: u64, digest: &str, ids: &[u64]) -> Value {
    let workers: Vec<Value> = ids.iter().map(|&id| record(id)).collect();
    json!({"epoch": epoch, "generation": generation, "digest": digest, "workers": workers})
}

fn start(directory: &std::path::Path, flags: &[&str]) -> Selector {
    let selector = Selector::start(directory, flags, &QUIET);
    rig::ready(&selector);
    selector
}

#[tokio::test(flavor = "multi_thread")]
async fn it_comes_from_a_peer_with_owners_and_epochs() {
    blocking(|| {
        let directory = tempfile::tempdir().unwrap();
        let old = start(directory.path(), &[]);
        let put = old.call("PUT", "/catalog/k8s.ns.set", Some(&snapshot(7, 3, "d", &[1, 2, 3])));
        assert_eq!(put.0, 200, "{put:?}");
        let mut draining = snapshot(7, 4, "e", &[1, 2]);
        draining["workers"][1]["state"] = json!("draining");
        // A draining worker stays while it has a booking.
        let booked =
            json!({"selection_id": "s", "model_name": "m", "token_ids": [1, 2, 3, 4], "worker_id": 2, "dp_rank": 0});
        assert_eq!(old.call("POST", "/reservations", Some(&booked)).0, 201);
        assert_eq!(old.call("PUT", "/catalog/k8s.ns.set", Some(&draining)).0, 200);
        assert_eq!(old.call("POST", "/workers", Some(&record(9))).0, 201);

        // It waits for a catalog, and a peer's word counts as one.
        let peers = rig::from_peers(&[&old.url()]);
        let new = start(directory.path(), &[&peers, "--ready-requires=index,catalog,peers"]);
        let owner = new.owner("k8s.ns.set").unwrap();
        assert_eq!((&owner["epoch"], &owner["generation"], &owner["digest"]), (&json!(7), &json!(4), &json!("e")));
        assert_eq!((&owner["source"], &new.owner("api").unwrap()["source"]), (&json!("peer"), &json!("peer")));
        assert!(new.workers().keys().copied().any(|id| id == 9) && new.workers().contains_key(&1));

        // Somebody applies: older is refused, equal and newer win.
        let (status, refused) = new.call("PUT", "/catalog/k8s.ns.set", Some(&snapshot(7, 3, "d", &[1])));
        assert_eq!((status, &refused["current"]["generation"]), (409, &json!(4)), "{refused}");
        let delta = json!({"epoch": 7, "generation": 5, "base_digest": "e", "digest": "f", "upsert": [record(4)]});
        assert_eq!(
            new.call("PUT", "/catalog/k8s.ns.set", Some(&delta)).0,
            409,
            "a delta needs more than a peer's word"
        );
        // The same digest: what the owner wants is more than what lived on the peer.
        assert_eq!(new.call("PUT", "/catalog/k8s.ns.set", Some(&snapshot(7, 4, "e", &[1, 5]))).0, 200);
        assert_eq!(new.workers().keys().copied().collect::<Vec<_>>(), [1, 5, 9]);
        assert_eq!(new.owner("k8s.ns.set").unwrap()["source"], Value::Null);
        assert_eq!(new.call("POST", "/workers", Some(&record(10))).0, 201);
        assert_eq!(new.owner("api").unwrap()["source"], Value::Null);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_not_taken_where_somebody_applies() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let old = blocking(move || {
        let old = start(&path, &[]);
        assert_eq!(old.call("PUT", "/catalog/k8s.ns.set", Some(&snapshot(7, 3, "d", &[1, 2, 3]))).0, 200);
        old
    })
    .await;
    // The peer answers once a snapshot was applied.
    let applied = Arc::new(AtomicBool::new(false));
    let peer = {
        let applied = Arc::clone(&applied);
        Peer::start(&old.url(), move |path, _| {
            if path.starts_with("/catalog") {
                wait_for("the snapshot", || applied.load(Ordering::Relaxed).then_some(()));
            }
            Action::Pass
        })
        .await
    };
    let peers = rig::from_peers(&[&peer.url]);
    blocking(move || {
        let new = Selector::start(directory.path(), &[&peers], &QUIET);
        assert_eq!(new.call("PUT", "/catalog/other", Some(&snapshot(1, 1, "x", &[8]))).0, 200);
        applied.store(true, Ordering::Relaxed);
        rig::ready(&new);
        assert_eq!(new.workers().keys().copied().collect::<Vec<_>>(), [8]);

        let file = directory.path().join("workers.yaml");
        std::fs::write(&file, "version: 1\nworkers: []\n").unwrap();
        let of_file = start(directory.path(), &[&peers, "--workers-file", file.to_str().unwrap()]);
        assert_eq!(of_file.workers().len(), 0);
    })
    .await;
    drop(old);
}
