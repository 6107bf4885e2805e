//! Worker records and the event streams behind them: what a change of one does to the other.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{
    engine::{A, B, C, D, Engine, caught_up, followed, held, listener, register, selector, store, worker},
    server::{eventually, metric, within},
};

fn one(block: [u32; 4]) -> Value {
    json!([store(&[u64::from(block[0])], None, &[block], "GPU")])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_removed_and_registered_again_starts_over() {
    let (server, mut engine) = followed().await;
    // Another one, so that the partition stays.
    register(&server, worker(2, 0, &["tcp://127.0.0.1:1"])).await;
    for _ in 0..50 {
        engine.events(json!([]));
    }
    engine.events(one(A));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[A]).await, (1, 0));
    assert_eq!(server.call("DELETE", "/workers/1", Value::Null).await.0, 200);
    // Another engine at the same address, which counts from 0 again.
    let mut engine = Engine::bind_at(&engine.kill());
    register(&server, worker(1, 0, &[&engine.endpoint])).await;
    engine.subscribed().await;
    assert_eq!(held(&server, 1, 0, &[A]).await, (0, 0));
    engine.events(one(D));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[D]).await, (1, 0), "its first batch counts");
    assert_eq!(held(&server, 1, 0, &[A]).await, (0, 0));
    assert_eq!(listener(&server, 1, 0).await["dropped"]["duplicate"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_change_of_a_ranks_own_endpoint_starts_that_rank_over() {
    let server = selector().await;
    let mut engines = [Engine::bind(), Engine::bind()];
    let record = worker(1, 0, &[&engines[0].endpoint, &engines[1].endpoint]);
    register(&server, record.clone()).await;
    for (rank, engine) in (0..).zip(&mut engines) {
        engine.subscribed().await;
        engine.batch(&json!([1.5, one(A), rank]));
        caught_up(&server, 1, rank, engine).await;
    }
    let mut moved = record.clone();
    moved["endpoint"] = json!("http://elsewhere:8000");
    register(&server, record).await;
    let (status, _) = server.call("PATCH", "/workers/1", json!({"endpoint": "http://elsewhere:8000"})).await;
    assert_eq!(status, 200);
    for (rank, engine) in (0..).zip(&engines) {
        assert!(!engine.was_touched(), "somebody subscribed again or left");
        assert_eq!(held(&server, 1, rank, &[A]).await, (1, 0));
        assert_eq!(listener(&server, 1, rank).await["position"], 0);
    }
    let mut third = Engine::bind();
    moved["kv_events_endpoints"]["1"] = json!(third.endpoint);
    register(&server, moved).await;
    third.subscribed().await;
    assert_eq!(held(&server, 1, 0, &[A]).await, (1, 0));
    assert_eq!(held(&server, 1, 1, &[A]).await, (0, 0));
    // Its number is the first there is, and no duplicate of what the other publisher sent.
    third.batch(&json!([1.5, one(B), 1]));
    caught_up(&server, 1, 1, &third).await;
    assert_eq!(held(&server, 1, 1, &[B]).await, (1, 0));
    assert!(!engines[0].was_touched());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_may_have_one_event_endpoint() {
    let (server, mut engine) = followed().await;
    register(&server, worker(2, 0, &[&engine.endpoint])).await;
    engine.subscribed().await;
    engine.events(one(A));
    for id in [1, 2] {
        caught_up(&server, id, 0, &engine).await;
        assert_eq!(held(&server, id, 0, &[A]).await, (1, 0));
    }
    assert_eq!(server.call("DELETE", "/workers/2", Value::Null).await.0, 200);
    engine.events(one(B));
    caught_up(&server, 1, 0, &engine).await;
    assert_eq!(held(&server, 1, 0, &[B]).await, (1, 0), "the other goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_over_ipv6() {
    let server = selector().await;
    let mut engine = Engine::bind_at("tcp://[::1]:*");
    assert!(engine.endpoint.starts_with("tcp://[::1]:"), "{}", engine.endpoint);
    let mut record = worker(6, 0, &[&engine.endpoint]);
    record["endpoint"] = json!("http://[::1]:8001");
    register(&server, record).await;
    engine.subscribed().await;
    engine.events(one(A));
    caught_up(&server, 6, 0, &engine).await;
    assert_eq!(held(&server, 6, 0, &[A]).await, (1, 0));
    let (_, chosen) = server.call("POST", "/select", json!({"model_name": "m", "token_ids": A})).await;
    assert_eq!(chosen["endpoint"], "http://[::1]:8001", "{chosen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rank_facts_that_contradict_each_other_are_named_and_mended_in_place() {
    let server = selector().await;
    let endpoints = |ranks: &[&str]| -> Value {
        ranks
            .iter()
            .map(|rank| (rank.to_string(), json!("tcp://127.0.0.1:1")))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let wanted = |rank: u32| format!("kv_events endpoint is required for dp_rank {rank}");
    for (facts, reasons, mend) in [
        (
            json!({"data_parallel_start_rank": 2, "data_parallel_size": 2, "kv_events_endpoints": endpoints(&["0"])}),
            vec![wanted(2), wanted(3)],
            json!({"kv_events_endpoints": endpoints(&["2", "3"])}),
        ),
        (
            json!({"data_parallel_size": 2, "kv_events_endpoints": endpoints(&["0"])}),
            vec![wanted(1)],
            json!({"data_parallel_size": 1}),
        ),
        (
            json!({"data_parallel_size": 0, "kv_events_endpoints": endpoints(&["0"])}),
            vec!["data_parallel_size must be greater than 0".to_owned()],
            json!({"data_parallel_size": 1}),
        ),
        // The replay protocol carries no rank.
        (
            json!({"data_parallel_size": 2, "kv_events_endpoints": endpoints(&["0", "1"]),
                   "replay_endpoint": "tcp://127.0.0.1:1"}),
            vec!["replay_endpoint is supported only for data_parallel_size 1".to_owned()],
            json!({"data_parallel_size": 1}),
        ),
    ] {
        let mut record = json!({"worker_id": 2, "model_name": "m", "endpoint": "http://w:1", "block_size": 4});
        record.as_object_mut().unwrap().extend(facts.as_object().unwrap().clone());
        let (status, record) = server.call("POST", "/workers", record).await;
        assert_eq!((status, &record["lifecycle"]), (201, &json!("incomplete")), "{record}");
        assert_eq!(record["not_schedulable_reasons"], json!(reasons));
        let (status, ready) = server.get("/ready").await;
        assert_eq!(status, 503);
        assert!(ready.to_string().contains(&reasons[0]), "{ready}");
        assert_eq!(server.call("POST", "/select", json!({"model_name": "m", "token_ids": A})).await.0, 503);
        let (status, mended) = server.call("PATCH", "/workers/2", mend).await;
        assert_eq!((status, &mended["lifecycle"]), (200, &json!("schedulable")), "{mended}");
        assert_eq!(server.get("/ready").await.0, 200);
        assert_eq!(server.call("DELETE", "/workers/2", Value::Null).await.0, 200);
    }
    let mut odd = worker(2, 0, &["tcp://127.0.0.1:1"]);
    odd["kv_events_endpoints"] = endpoints(&["zero"]);
    let (status, error) = server.call("POST", "/workers", odd).await;
    assert!((400..500).contains(&status) && error["error"].is_string(), "{status} {error}");
    assert_eq!(server.get("/workers").await.1, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_whose_clients_leave_lose_no_stream() {
    let server = selector().await;
    let mut engines = [Engine::bind(), Engine::bind()];
    register(&server, worker(1, 0, &[&engines[0].endpoint])).await;
    let request = |record: &Value| {
        let body = record.to_string();
        let head = "POST /workers HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        format!("{head}content-length: {}\r\n\r\n{body}", body.len())
    };
    let gone = "DELETE /workers/1 HTTP/1.1\r\nhost: x\r\n\r\n".to_owned();
    let posts = engines.each_ref().map(|engine| request(&worker(1, 0, &[&engine.endpoint])));
    // A timer's least step is longer than a request takes.
    let leave = async |request: &String, after: u32| {
        let mut socket = server.connect().await;
        socket.write_all(request.as_bytes()).await.unwrap();
        for _ in 0..after {
            tokio::task::yield_now().await;
        }
    };
    let all_ended = async || {
        // Connections are accepted in their order.
        server.exchange(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        let ended = || async { metric(&server, "pointsman_http_connections").await <= 1.0 };
        eventually("every request to end", ended).await;
    };
    // Where nobody removes it the worker stays, and whichever update came last, its stream is the one of its record.
    for round in 0..50 {
        for request in [&posts[1], &posts[0]] {
            leave(request, round * 20).await;
        }
        all_ended().await;
        eventually("the stream of the record to be followed", || async {
            let wanted = server.get("/workers").await.1[0]["kv_events_endpoints"]["0"].clone();
            wanted.is_string() && server.get("/listeners").await.1[0]["endpoint"] == wanted
        })
        .await;
    }
    for round in 0..100 {
        for request in [&posts[1], &posts[0], &gone] {
            leave(request, round * 10).await;
        }
    }
    all_ended().await;
    register(&server, worker(1, 0, &[&engines[0].endpoint])).await;
    assert_eq!(listener(&server, 1, 0).await["endpoint"], json!(engines[0].endpoint));
    // Its subscription may still be on the way, behind those of before.
    within(async {
        while held(&server, 1, 0, &[C]).await != (1, 0) {
            engines[0].events(one(C));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    engines[1].events(one(D));
    engines[0].events(one(B));
    caught_up(&server, 1, 0, &engines[0]).await;
    assert_eq!(held(&server, 1, 0, &[B]).await, (1, 0));
    assert_eq!(held(&server, 1, 0, &[D]).await, (0, 0), "the engine it had for a moment is not its any more");
}
