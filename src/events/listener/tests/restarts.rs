//! Publishers that restart at the same address with an empty cache.

use super::*;

async fn followed(publisher: &Publisher, rig: &Rig, len: u32) {
    publisher.subscribed().await;
    for (seq, payload) in history(100, len) {
        publisher.send(seq, &payload);
    }
    rig.position(u64::from(len) - 1).await;
    assert_eq!(rig.depth(100, len), len);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_engine_without_replay_is_noticed_by_its_first_batch() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    followed(&publisher, &rig, 50).await;
    let publisher = Publisher::bind_at(&publisher.kill());
    publisher.subscribed().await;
    publisher.send(0, &link(900, 900, 2));
    until("the new block counts", || rig.depth(900, 1) == 1).await;
    assert_eq!(rig.depth(100, 50), 0);
    publisher.send(1, &link(901, 900, 2));
    rig.position(1).await;
    let status = rig.status();
    assert_eq!((rig.depth(900, 2), status.publisher_restarts, status.trust), (2, 1, Trust::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_noticed_though_the_first_number_is_the_last_one() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    followed(&publisher, &rig, 1).await;
    // The same number on the same connection is a duplicate ...
    publisher.send(0, &link(900, 900, 2));
    until("the duplicate is dropped", || rig.status().dropped.contains_key("duplicate")).await;
    assert_eq!((rig.depth(100, 1), rig.depth(900, 1)), (1, 0));
    // ... on a new one, with other content, it is another process.
    let publisher = Publisher::bind_at(&publisher.kill());
    publisher.subscribed().await;
    publisher.send(0, &link(900, 900, 2));
    until("the new block counts", || rig.depth(900, 1) == 1).await;
    assert_eq!((rig.depth(100, 1), rig.status().publisher_restarts), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarted_idle_is_noticed_by_its_short_ring() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(100, 30), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    rig.position(29).await;
    assert_eq!(rig.depth(100, 30), 30);
    let endpoint = publisher.kill();
    replay.ring.lock().batches.clear();
    let publisher = Publisher::bind_at(&endpoint);
    until("the old blocks are gone", || rig.depth(100, 1) == 0).await;
    until("the position is unset", || rig.status().position.is_none()).await;
    assert_eq!(rig.status().publisher_restarts, 1);
    publisher.send(0, &link(900, 900, 2));
    rig.position(0).await;
    assert_eq!((rig.depth(900, 1), rig.status().trust), (1, Trust::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarted_and_went_on_is_exact_again_at_once() {
    for new in [3, 30, 45] {
        let publisher = Publisher::bind();
        let replay = Replay::bind(Ring { batches: history(100, 30), ..Ring::default() });
        let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
        rig.position(29).await;
        let endpoint = publisher.kill();
        // The new process has published fewer, as many, and more batches than the old one while nobody listened.
        replay.ring.lock().batches = history(900, new);
        let publisher = Publisher::bind_at(&endpoint);
        until("the restart is noticed", || rig.status().publisher_restarts == 1).await;
        rig.position(u64::from(new) - 1).await;
        until("the state settled", || rig.status().state == ListenerState::Live).await;
        assert_eq!((rig.depth(100, 1), rig.depth(900, new)), (0, new), "{new}");
        assert_eq!((rig.status().publisher_restarts, rig.status().trust), (1, Trust::Complete), "{new}");
        publisher.subscribed().await;
        let next = history(900, new + 1).pop().unwrap();
        publisher.send(next.0, &next.1);
        rig.position(next.0).await;
        assert_eq!(rig.depth(900, new + 1), new + 1, "{new}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_seen_live_is_rebuilt_by_replay() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { silent: true, ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    followed(&publisher, &rig, 20).await;
    let endpoint = publisher.kill();
    let publisher = Publisher::bind_at(&endpoint);
    publisher.subscribed().await;
    {
        let mut ring = replay.ring.lock();
        ring.batches = history(900, 4);
        ring.silent = false;
    }
    let next = history(900, 5).pop().unwrap();
    publisher.send(next.0, &next.1);
    rig.position(4).await;
    until("the state settled", || rig.status().state == ListenerState::Live).await;
    assert_eq!((rig.depth(100, 1), rig.depth(900, 5)), (0, 5));
    assert_eq!((rig.status().publisher_restarts, rig.status().trust), (1, Trust::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_moved_on_proves_nothing() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(100, 10), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    rig.position(9).await;
    let endpoint = publisher.kill();
    replay.ring.lock().batches = (20..25).map(|seq| (seq, link(900 + seq as u32, 920, 1))).collect();
    let publisher = Publisher::bind_at(&endpoint);
    rig.position(24).await;
    assert_eq!((rig.depth(100, 1), rig.depth(920, 5)), (0, 5));
    assert_eq!(rig.status().trust, Trust::Replayed);
    drop(publisher);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_learned_survives_a_reconnect_and_not_a_restart() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    publisher.subscribed().await;
    let grouped = |number: u32, kind: Value| {
        let mut event = json!({"type": "BlockStored", "block_hashes": [number], "parent_block_hash": null,
            "token_ids": vec![number; 4], "block_size": 4, "group_idx": 3});
        event["kv_cache_spec_kind"] = kind;
        pack(&json!([f64::from(number), [event], 0]))
    };
    publisher.send(0, &grouped(1, json!("full_attention")));
    rig.position(0).await;
    let publisher = Publisher::bind_at(&publisher.kill());
    publisher.subscribed().await;
    publisher.send(1, &grouped(2, json!(null)));
    rig.position(1).await;
    assert_eq!((rig.depth(1, 1), rig.depth(2, 1)), (1, 1));
    publisher.send(0, &grouped(3, json!(null)));
    rig.position(0).await;
    assert_eq!((rig.depth(1, 1), rig.depth(3, 1)), (0, 0), "nobody has explained group 3 yet");
    assert_eq!(rig.status().dropped["attention_group"], 1);
}
