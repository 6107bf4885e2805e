//! What engines send, through real sockets and the whole selector, as `/overlap_scores` and `/select` show it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    engine::{
        A, B, C, D, Engine, caught_up, followed, held, held_for, listener, register, removal, selector, store, worker,
    },
    server::TestServer,
};

async fn selects(server: &TestServer, times: usize) {
    let prompt = [A, B].concat();
    let request = json!({"model_name": "m", "token_ids": prompt});
    for _ in 0..times {
        let (status, answer) = server.call("POST", "/select", request.clone()).await;
        assert_eq!(status, 200, "{answer}");
    }
}

/// Workers and ranks that hold something, by `GET /dump`.
async fn dumped(server: &TestServer) -> Vec<(u64, u32)> {
    let (_, dump) = server.get("/dump").await;
    let events = dump["m:default"]["events"].as_array().unwrap_or_else(|| panic!("{dump}"));
    let number = |value: &Value| value.as_u64().unwrap();
    let rank = |event: &Value| (number(&event["worker_id"]), number(&event["event"]["dp_rank"]) as u32);
    events.iter().map(rank).collect::<BTreeSet<_>>().into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_and_events_of_every_shape_count_for_the_registered_rank() {
    let server = selector().await;
    let shapes = [
        ("arr-min", false),
        ("arr-lora-slot", false),
        ("arr-medium", true),
        ("arr-full-tail", true),
        ("arr-extra-future", true),
        ("map-new", true),
        ("map-outer", true),
        ("map-outer-norank", false),
    ];
    for (id, (shape, names_rank_0)) in (1..).zip(shapes) {
        let mut engine = Engine::bind();
        // Where a batch names no rank, the stream's own is meant; 0 is the engine's word for its first.
        let rank = if names_rank_0 { 3 } else { 4 };
        let mut endpoints = ["tcp://127.0.0.1:1"; 2];
        endpoints[rank as usize - 3] = &engine.endpoint;
        register(&server, worker(id, 3, &endpoints)).await;
        engine.subscribed().await;
        engine.fixture(shape);
        caught_up(&server, id, rank, &engine).await;
        for other in [0, 3, 4] {
            let wanted = if other == rank { (2, 0) } else { (0, 0) };
            assert_eq!(held(&server, id, other, &[A, B]).await, wanted, "{shape} {other}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_under_any_topic_are_received() {
    let (server, mut engine) = followed().await;
    for topic in ["frame-topic-empty", "frame-topic-long"] {
        engine.fixture(topic);
        caught_up(&server, 1, 0, &engine).await;
        assert_eq!(held(&server, 1, 0, &[A]).await, (1, 0), "{topic}");
        engine.events(json!([["AllBlocksCleared"]]));
        caught_up(&server, 1, 0, &engine).await;
        assert_eq!(held(&server, 1, 0, &[A]).await, (0, 0), "{topic}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_cannot_be_meant_cost_themselves_and_no_selection() {
    const E: [u32; 4] = [900, 901, 902, 903];
    let (server, mut engine) = followed().await;
    // A block that is its own parent, a circle, one hash twice, tokens for other hashes, a missing field; what is
    // credited of each, the event beside it or the part of it that can be meant; and how much of what it names first.
    for (odd, credited, of_itself) in [
        ("self-parent", vec![C], 0),
        ("cycle", vec![A, B], 2),
        ("dup-in-event", vec![C], 0),
        ("tokens-too-many", vec![D], 0),
        ("tokens-too-few", vec![D], 1),
        ("bad-then-good", vec![C], 0),
    ] {
        engine.events(json!([["AllBlocksCleared"], store(&[1009], None, &[E], "GPU")]));
        engine.fixture(odd);
        caught_up(&server, 1, 0, &engine).await;
        assert_eq!(held(&server, 1, 0, &credited).await, (credited.len() as u64, 0), "{odd}");
        assert_eq!(held(&server, 1, 0, &[E]).await, (1, 0), "{odd}: what was there before");
        assert_eq!(held(&server, 1, 0, &[A, B, C]).await, (of_itself, 0), "{odd}");
        selects(&server, 100).await;
    }
    let listener = listener(&server, 1, 0).await;
    assert_eq!((&listener["gaps"], &listener["listener_restarts"]), (&json!(0), &json!(0)), "{listener}");
    assert_eq!(listener["dropped"]["repeated_hash"], 2, "{listener}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_another_size_never_count_and_the_size_may_change_with_the_last_worker() {
    let (server, mut engine) = followed().await;
    let mut other = worker(2, 0, &["tcp://127.0.0.1:1"]);
    other["block_size"] = json!(8);
    let (status, record) = server.call("POST", "/workers", other).await;
    assert_eq!((status, &record["lifecycle"]), (201, &json!("incomplete")), "{record}");
    assert!(record["not_schedulable_reasons"].to_string().contains("block_size mismatch"), "{record}");
    assert_eq!(server.call("DELETE", "/workers/2", Value::Null).await.0, 200);

    engine.fixture("wrong-bs");
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[[500, 501, 502, 503]]).await, (1, 0));
    assert_eq!(held(&server, 1, 0, &[A, B]).await, (0, 0));
    assert_eq!(listener(&server, 1, 0).await["dropped"]["block_size"], 1);

    assert_eq!(server.call("DELETE", "/workers/1", Value::Null).await.0, 200);
    let mut engine = Engine::bind();
    let mut larger = worker(1, 0, &[&engine.endpoint]);
    larger["block_size"] = json!(8);
    register(&server, larger).await;
    engine.subscribed().await;
    assert_eq!(held(&server, 1, 0, &[[500, 501, 502, 503], A]).await, (0, 0), "a block of the old size");
    let mut event = store(&[1], None, &[A, B], "GPU");
    event["block_size"] = json!(8);
    engine.events(json!([event]));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[A, B]).await, (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn salted_blocks_are_seen_under_their_salt_alone() {
    let (server, mut engine) = followed().await;
    let mut other = Engine::bind();
    register(&server, worker(2, 0, &[&other.endpoint])).await;
    other.subscribed().await;
    engine.fixture("sgl-salt-map");
    other.events(json!([store(&[1001], None, &[A], "GPU")]));
    caught_up(&server, 1, 0, &engine).await;
    caught_up(&server, 2, 0, &other).await;
    let query = |salt: Option<&str>| {
        let mut query = json!({"model_name": "m", "token_ids": A});
        if let Some(salt) = salt {
            query["cache_salt"] = json!(salt);
        }
        query
    };
    for (salt, first, second) in [(None, 0, 1), (Some("tenant-a"), 1, 0), (Some("tenant-b"), 0, 0)] {
        let found = [held_for(&server, 1, 0, query(salt)).await.0, held_for(&server, 2, 0, query(salt)).await.0];
        assert_eq!(found, [first, second], "{salt:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn media_that_nobody_knows_count_nowhere() {
    let (server, mut engine) = followed().await;
    for odd in ["tier-unknown", "tier-storage-hash-only"] {
        engine.fixture(odd);
        caught_up(&server, 1, 0, &engine).await;
        assert_eq!(held(&server, 1, 0, &[A]).await, (0, 0), "{odd}");
    }
    engine.fixture("map-new");
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[A, B]).await, (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_goes_on_behind_what_is_not_there_on_every_tier() {
    for (medium, held_on) in [("GPU", [(2, 0), (1, 0), (0, 0)]), ("CPU", [(0, 2), (0, 1), (0, 0)])] {
        let (server, mut engine) = followed().await;
        let mut other = Engine::bind();
        register(&server, worker(2, 0, &[&other.endpoint])).await;
        other.subscribed().await;
        let chain = || json!([store(&[1001, 1002], None, &[A, B], medium)]);
        engine.events(chain());
        other.events(chain());
        caught_up(&server, 2, 0, &other).await;
        caught_up(&server, 1, 0, &engine).await;
        assert_eq!(held(&server, 1, 0, &[A, B]).await, held_on[0]);
        // The absent one first.
        engine.events(json!([removal(&[424_242, 1002], medium)]));
        caught_up(&server, 1, 0, &engine).await;
        assert_eq!(held(&server, 1, 0, &[A, B]).await, held_on[1], "{medium}");
        engine.events(json!([removal(&[1001, 1002], medium), removal(&[1002], medium)]));
        caught_up(&server, 1, 0, &engine).await;
        assert_eq!(held(&server, 1, 0, &[A, B]).await, held_on[2], "{medium}");
        assert_eq!(held(&server, 2, 0, &[A, B]).await, held_on[0], "the other worker keeps its own");
        let listener = listener(&server, 1, 0).await;
        assert_eq!((&listener["gaps"], &listener["last_error"]), (&json!(0), &Value::Null), "{listener}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_empties_every_tier_of_its_rank_and_of_no_other() {
    let server = selector().await;
    let mut engines = [Engine::bind(), Engine::bind(), Engine::bind(), Engine::bind()];
    for id in [1, 2] {
        let of = |rank: usize| engines[2 * (id as usize - 1) + rank].endpoint.as_str();
        register(&server, worker(id, 0, &[of(0), of(1)])).await;
    }
    let ranks = [(1, 0), (1, 1), (2, 0), (2, 1)];
    let both = || json!([store(&[1], None, &[A], "GPU"), store(&[2], Some(1), &[B], "CPU")]);
    for (engine, (id, rank)) in engines.iter_mut().zip(ranks) {
        engine.subscribed().await;
        engine.batch(&json!([1.5, both(), rank]));
        caught_up(&server, id, rank, engine).await;
        assert_eq!(held(&server, id, rank, &[A, B]).await, (1, 1));
    }
    engines[0].fixture("cleared-map");
    caught_up(&server, 1, 0, &engines[0]).await;
    for ((id, rank), wanted) in ranks.into_iter().zip([(0, 0), (1, 1), (1, 1), (1, 1)]) {
        assert_eq!(held(&server, id, rank, &[A, B]).await, wanted, "{id} {rank}");
    }
    // An engine that clears all the time costs nothing, and counts again with its next store.
    for _ in 0..100 {
        engines[0].events(vec![json!(["AllBlocksCleared"]); 100].into());
    }
    caught_up(&server, 1, 0, &engines[0]).await;
    engines[0].batch(&json!([1.5, both(), 0]));
    caught_up(&server, 1, 0, &engines[0]).await;
    assert_eq!(held(&server, 1, 0, &[A, B]).await, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_told_twice_is_gone_with_one_removal() {
    let (server, mut engine) = followed().await;
    engine.fixture("dup-store-remove-once");
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[A]).await, (0, 0));
    // The same batch under the same number, as a replay brings it.
    engine.events(json!([store(&[1002], None, &[B], "GPU")]));
    engine.next -= 1;
    engine.events(json!([store(&[1002], None, &[B], "GPU")]));
    engine.events(json!([removal(&[1002], "GPU"), store(&[1003], None, &[C], "GPU")]));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[B]).await, (0, 0));
    assert_eq!(held(&server, 1, 0, &[C]).await, (1, 0));
    assert_eq!(listener(&server, 1, 0).await["dropped"]["duplicate"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_prefix_counts_however_much_lies_behind_a_hole() {
    const LEN: u32 = 1000;
    let (server, mut engine) = followed().await;
    let block = |at: u32| [at; 4];
    let chain: Vec<[u32; 4]> = (1..=LEN).map(block).collect();
    let hashes: Vec<u64> = (1..=u64::from(LEN)).collect();
    engine.events(json!([store(&hashes, None, &chain, "GPU")]));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &chain).await, (1000, 0));
    engine.events(json!([removal(&[500], "GPU")]));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &chain).await, (499, 0));
    // What lies behind it was never said to be gone.
    engine.events(json!([store(&[500], Some(499), &[block(500)], "GPU")]));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &chain).await, (1000, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_a_batch_names_is_credited_and_one_of_nobody_goes_with_the_worker() {
    let server = selector().await;
    let mut engines = [Engine::bind(), Engine::bind(), Engine::bind()];
    register(&server, worker(1, 0, &[&engines[0].endpoint, &engines[1].endpoint])).await;
    // Another one, so that the partition outlives it.
    register(&server, worker(2, 0, &[&engines[2].endpoint])).await;
    for engine in &engines {
        engine.subscribed().await;
    }
    engines[2].events(json!([store(&[1001], None, &[A], "GPU")]));
    caught_up(&server, 2, 0, &engines[2]).await;
    for (odd, credited) in [("rank-unregistered", 0), ("rank-negative", 0), ("rank-1-on-rank-0-port", 1)] {
        engines[0].fixture(odd);
        caught_up(&server, 1, 0, &engines[0]).await;
        assert_eq!(held(&server, 1, 0, &[A]).await, (0, 0), "{odd}");
        assert_eq!(held(&server, 1, 1, &[A]).await, (credited, 0), "{odd}");
    }
    for _ in 0..20 {
        let (_, chosen) = server.call("POST", "/select", json!({"model_name": "m", "token_ids": A})).await;
        assert!(chosen["dp_rank"].as_u64().is_some_and(|rank| rank < 2), "{chosen}");
    }
    // -1 is the last number there is.
    assert_eq!(dumped(&server).await, [(1, 1), (1, 7), (1, u32::MAX), (2, 0)]);
    assert_eq!(server.call("DELETE", "/workers/1", Value::Null).await.0, 200);
    assert_eq!(dumped(&server).await, [(2, 0)]);
    assert_eq!(server.call("DELETE", "/workers/2", Value::Null).await.0, 200);
    assert_eq!(server.get("/dump").await, (200, json!({})));
}
