//! Late joiners: what they end with, whatever happens to the way there.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    peer::{Action, Peer},
    program::{Selector, wait_for},
    rig::{self, Traffic, agree, blocking, engine, join, register},
};

/// A selector that knows `engines`, as workers 1, 2, ...
async fn selector(directory: &TempDir, engines: &[Arc<pointsman::engine::MockEngine>]) -> Selector {
    let (path, engines) = (directory.path().to_owned(), engines.to_vec());
    blocking(move || {
        let selector = Selector::start(&path, &[], &[]);
        for (engine, id) in engines.iter().zip(1..) {
            register(&selector, id, engine);
            // It knows the stream from its beginning.
            wait_for("the subscription", || (engine.stats()[0].subscribers > 0).then_some(()));
        }
        selector
    })
    .await
}

fn sum(selector: &Selector, field: &str) -> u64 {
    let listeners = selector.get("/listeners");
    listeners.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum()
}

fn trusts(selector: &Selector) -> Vec<Value> {
    selector.get("/listeners").as_array().unwrap().iter().map(|row| row["trust"].clone()).collect()
}

/// No gap, no double count, with and without replay sockets, while engines store and evict all the time.
async fn joins_beside_traffic(replay: bool) {
    let directory = tempfile::tempdir().unwrap();
    let engines = [engine(replay).await, engine(replay).await];
    let old = selector(&directory, &engines).await;
    let traffic = Traffic::start(&engines);
    traffic.go_on(400).await;
    for round in 0..3 {
        let (new, report) = join(directory.path(), &[&old.url()], &[]).await;
        assert_eq!(report["resumed_ranks"], 2, "{report}");
        traffic.go_on(100).await;
        let traffic_stops = round == 2;
        if !traffic_stops {
            drop(blocking(move || new).await);
            continue;
        }
        traffic.stop().await;
        return blocking(move || {
            agree(&old, &new);
            assert_eq!(sum(&new, "unfilled_gaps"), 0, "{}", new.get("/listeners"));
            assert_eq!(sum(&new, "publisher_restarts"), 0);
            assert_eq!(trusts(&new), ["replayed", "replayed"]);
            // Not from 0: what came by replay is a few batches each.
            let (came, all) = (sum(&new, "replayed_batches"), sum(&old, "batches"));
            assert!(came < all / 4, "{came} of {all} batches came by replay");
            // A second time from the first joiner: the same.
            let third = Selector::start(directory.path(), &[&rig::from_peers(&[&new.url()])], &[]);
            rig::ready(&third);
            agree(&old, &third);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_beside_traffic_with_replay_sockets() {
    joins_beside_traffic(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_beside_traffic_without_replay_sockets() {
    joins_beside_traffic(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_breaks_goes_on_from_the_last_whole_chunk() {
    let directory = tempfile::tempdir().unwrap();
    let engines = [engine(false).await];
    let old = selector(&directory, &engines).await;
    let traffic = Traffic::start(&engines);
    traffic.go_on(200).await;
    let peer = Peer::start(&old.url(), |path, before| match path {
        "/replica_sync/index/chunk?chunk=1" if before == 0 => Action::Cut,
        "/replica_sync/index/chunk?chunk=1" if before == 1 => Action::Close,
        "/replica_sync/index/chunk?chunk=2" if before == 0 => Action::Cut,
        _ => Action::Pass,
    })
    .await;
    let (new, report) = join(directory.path(), &[&peer.url], &[]).await;
    traffic.stop().await;
    assert_eq!((&report["resumed_ranks"], &report["attempts"][0]["resumed"]), (&json!(1), &json!(3)), "{report}");
    let begun = peer.seen().iter().filter(|path| path.contains("model_name=")).count();
    assert_eq!(begun, 1, "{:?}", peer.seen());
    blocking(move || agree(&old, &new)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_dies_midway_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let engines = [engine(true).await];
    let old = selector(&directory, &engines).await;
    let traffic = Traffic::start(&engines);
    traffic.go_on(200).await;
    let dying = |path: &str, _: usize| match path {
        "/replica_sync/index/chunk?chunk=2" => Action::Close,
        _ => Action::Pass,
    };
    let peer = Peer::start(&old.url(), dying).await;
    // Alone: the streams start as they would without it.
    let (alone, report) = join(directory.path(), &[&peer.url], &[]).await;
    assert_eq!(
        (&report["resumed_ranks"], &report["attempts"][0]["reason"]),
        (&json!(0), &json!("request")),
        "{report}"
    );
    // Beside a good one that has as much: the rest comes from there.
    let (second, report) = join(directory.path(), &[&peer.url, &old.url()], &[]).await;
    assert_eq!(report["resumed_ranks"], 1, "{report}");
    traffic.stop().await;
    blocking(move || {
        agree(&old, &second);
        agree(&old, &alone);
    })
    .await;
}

/// An engine that restarts while its blocks are on their way: they are of a cache that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_meanwhile_voids_the_snapshot_of_that_rank() {
    for replay in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let engines = [engine(replay).await, engine(replay).await];
        let old = Arc::new(selector(&directory, &engines).await);
        let traffic = Traffic::start(&engines);
        traffic.go_on(400).await;
        let dead: Arc<Mutex<BTreeSet<_>>> = Arc::default();
        // The restart happens before the second chunk is asked for at the peer.
        let restart = Arc::new(Mutex::new(Some(Arc::clone(&engines[0]))));
        let handle = tokio::runtime::Handle::current();
        let (known, before) = (Arc::clone(&old), Arc::clone(&dead));
        let peer = Peer::start(&old.url(), move |path, _| {
            if path.ends_with("chunk=2")
                && let Some(engine) = restart.lock().take()
            {
                let handle = handle.clone();
                *before.lock() = rig::held(&known);
                std::thread::spawn(move || handle.block_on(engine.restart())).join().unwrap().unwrap();
            }
            Action::Pass
        })
        .await;
        let (new, report) = join(directory.path(), &[&peer.url], &[]).await;
        traffic.go_on(200).await;
        traffic.stop().await;
        blocking(move || {
            // Which of the two notices first is a matter of luck; neither keeps a block of the dead process.
            assert!(report["resumed_ranks"].as_u64().unwrap() >= 1, "{report}");
            if replay {
                agree(&old, &new);
            } else {
                // Each has missed what was published before it was connected again.
                for selector in [&new, &*old] {
                    let held = rig::held(selector);
                    let ghosts = dead.lock().iter().filter(|block| block.0 == 1 && held.contains(block)).count();
                    assert_eq!(ghosts, 0, "blocks of the dead process");
                    assert!(held.iter().any(|block| block.0 == 1) && held.iter().any(|block| block.0 == 2));
                }
            }
        })
        .await;
    }
}

/// The best by coverage brings what it has, the other one what only it knows.
#[tokio::test(flavor = "multi_thread")]
async fn peers_are_merged_rank_by_rank() {
    let directory = tempfile::tempdir().unwrap();
    let engines = [engine(true).await, engine(true).await];
    let both = selector(&directory, &engines).await;
    let traffic = Traffic::start(&engines);
    traffic.go_on(300).await;
    traffic.stop().await;
    let third = engine(true).await;
    let other = {
        let (path, third) = (directory.path().to_owned(), Arc::clone(&third));
        blocking(move || {
            let selector = Selector::start(&path, &[], &[]);
            register(&selector, 3, &third);
            selector
        })
        .await
    };
    let traffic = Traffic::start(&[third]);
    traffic.go_on(20).await;
    traffic.stop().await;
    let (new, report) = join(directory.path(), &[&other.url(), &both.url()], &[]).await;
    assert_eq!(report["resumed_ranks"], 3, "{report}");
    blocking(move || {
        let wanted: BTreeSet<_> = rig::held(&both).union(&rig::held(&other)).cloned().collect();
        wait_for("all blocks", || (rig::held(&new) == wanted).then_some(()));
        assert_eq!(new.workers().len(), 3);
    })
    .await;
}

/// A dump recorded from the reference, whose selector has no snapshots.
#[tokio::test(flavor = "multi_thread")]
async fn the_references_dump_still_serves() {
    let directory = tempfile::tempdir().unwrap();
    let dump = include_bytes!("../fixtures/reference-dump.json");
    let peer = Peer::start("", |path, _| match path {
        "/dump" => Action::Answer(super::peer::http(dump)),
        _ => Action::Answer(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()),
    })
    .await;
    let (new, report) = join(directory.path(), &[&peer.url], &[]).await;
    assert_eq!((&report["attempts"][0]["kind"], &report["attempts"][0]["reason"]), (&json!("dump"), &Value::Null));
    blocking(move || {
        let again = Selector::start(directory.path(), &[&rig::from_peers(&[&new.url()])], &[]);
        rig::ready(&again);
        let wanted: Value = serde_json::from_slice(dump).unwrap();
        let blocks: usize = wanted["m:default"]["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["event"]["data"]["stored"]["blocks"].as_array().unwrap().len())
            .sum();
        assert_eq!((rig::held(&new).len(), rig::held(&again).len()), (blocks, blocks));
    })
    .await;
}
