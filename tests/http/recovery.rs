//! Start-up recovery from peers without snapshots that are good, bad or absent (spec index 7). Those with
//! snapshots are in `tests/warm_start`.

use std::time::{Duration, Instant};

use pointsman::{
    http::HttpConfig,
    selection::SelectionConfig,
    service::{RecoveryConfig, SelectionServiceBuilder, ServiceConfig},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::server::{PATIENCE, TestServer, eventually, within};

/// A peer that answers every request with `answer` and then closes, or never when it is empty.
async fn peer(answer: impl Into<Vec<u8>>) -> String {
    let answer = answer.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                socket.read(&mut request).await.unwrap_or_default();
                if answer.is_empty() {
                    std::future::pending::<()>().await;
                }
                socket.write_all(&answer).await.unwrap_or_default();
            });
        }
    });
    url
}

fn http(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A dump of one block of worker 1 in partition (m, default).
fn dump() -> Value {
    json!({"m:default": {"block_size": 4, "events": [{
        "worker_id": 1, "storage_tier": "device", "residency_domain": "worker",
        "event": {"event_id": 0, "dp_rank": 0, "data": {"stored": {
            "parent_hash": null, "start_position": null,
            "blocks": [{"block_hash": 101, "tokens_hash": 14_643_705_804_678_351_452u64, "mm_extra_info": null}]}}}}]}})
}

/// With KV events, as recovery fills an event-driven index.
fn config(peers: &[String]) -> ServiceConfig {
    let recovery = RecoveryConfig {
        peers: peers.to_vec(),
        wait: Duration::from_millis(1),
        timeout: Duration::from_millis(500),
        peer_deadline: Duration::from_secs(5),
        max_bytes: 1 << 20,
        ..RecoveryConfig::default()
    };
    ServiceConfig { selection: SelectionConfig::default(), recovery, ..ServiceConfig::default() }
}

async fn recover(peers: &[String]) -> TestServer {
    TestServer::with(config(peers), HttpConfig::default()).await
}

/// The reason for which each peer was not usable; `None` for one that was, with or without anything cached.
async fn reasons(server: &TestServer) -> Vec<Option<&'static str>> {
    server.service.recovered().await.attempts.iter().map(|attempt| attempt.reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_dump_is_served_again() {
    let server = recover(&[peer(http(&dump().to_string())).await]).await;
    assert_eq!(reasons(&server).await, [None]);
    let (status, served) = server.get("/dump").await;
    assert_eq!(status, 200);
    assert_eq!(served, dump());
    let second = recover(&[server.url("")]).await;
    assert_eq!(second.get("/dump").await.1, dump());
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_64_bits_come_back_from_a_dump_exactly() {
    let mut dump = dump();
    let event = dump["m:default"]["events"][0].clone();
    let of = |id: u64, rank: u32| {
        let mut event = event.clone();
        (event["worker_id"], event["event"]["dp_rank"]) = (json!(id), json!(rank));
        event
    };
    let ids = [(9_007_199_254_740_993, 0), (9_007_199_254_740_995, 0), (u64::MAX, u32::MAX - 1)];
    dump["m:default"]["events"] = ids.map(|(id, rank)| of(id, rank)).into();
    let mut server = recover(&[peer(http(&dump.to_string())).await]).await;
    // And from one selector to the next.
    for _ in 0..2 {
        let (_, served) = server.get("/dump").await;
        let events = served["m:default"]["events"].as_array().unwrap();
        let mut found: Vec<_> = events
            .iter()
            .map(|e| (e["worker_id"].as_u64().unwrap(), e["event"]["dp_rank"].as_u64().unwrap()))
            .collect();
        found.sort_unstable();
        assert_eq!(found, ids.map(|(id, rank)| (id, u64::from(rank))), "{served}");
        server = recover(&[server.url("")]).await;
    }
    let worker = json!({"worker_id": ids[1].0, "model_name": "m", "endpoint": "http://w", "block_size": 4,
                        "kv_events_endpoint": "tcp://127.0.0.1:1"});
    assert_eq!(server.call("POST", "/workers", worker).await.0, 201);
    let query = json!({"model_name": "m", "token_ids": [1, 2, 3, 4]});
    let (_, scores) = server.call("POST", "/overlap_scores", query).await;
    let row = scores["workers"].as_array().unwrap().iter().find(|row| row["worker_id"] == ids[1].0);
    assert_eq!(row.unwrap_or_else(|| panic!("{scores}"))["device_blocks"], 1, "{scores}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_peer_is_passed_over_for_the_first_good_one() {
    let good = http(&dump().to_string());
    let half = &good.as_bytes()[..good.len() - 20];
    let mut cut = dump().to_string();
    cut.truncate(cut.len() - 20);
    let refused = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let endless =
        format!("{}{}", http("").replace("content-length: 0", "content-length: 99999999"), " ".repeat(2 << 20));
    let peers = [
        refused,
        "not a url".to_owned(),
        peer("").await,
        peer("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n").await,
        peer("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await,
        peer(http("{}")).await,
        peer(http("<html>welcome</html>")).await,
        peer(http("{\"m:default\":{\"error\":\"no\"}}")).await,
        peer(half).await,
        peer(http(&cut)).await,
        peer(good.replace("content-type", "content-encoding: gzip\r\ncontent-type")).await,
        peer(endless).await,
        peer(&b"\x1f\x8b\x08\x00\x00"[..]).await,
        peer(good).await,
    ];
    let server = recover(&peers).await;
    let found = reasons(&server).await;
    assert_eq!(
        found,
        [
            Some("request"),
            Some("request"),
            Some("timeout"),
            Some("status"),
            Some("status"),
            None,
            Some("dump"),
            None,
            Some("request"),
            Some("dump"),
            Some("encoding"),
            Some("too_large"),
            Some("request"),
            None,
        ]
    );
    assert_eq!(server.get("/dump").await.1, dump());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_good_peer_the_service_starts_empty() {
    let server = recover(&[peer("").await, peer(http("{}x")).await]).await;
    assert_eq!(server.get("/dump").await, (200, json!({})));
    assert_eq!(server.get("/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn until_recovery_is_over_only_catalog_and_probes_work() {
    let mut slow = config(&[peer("").await]);
    slow.recovery.timeout = PATIENCE;
    slow.recovery.peer_deadline = PATIENCE;
    let service = SelectionServiceBuilder::new(slow).build().unwrap();
    let server = TestServer::over(service, HttpConfig::default()).await;
    for path in ["/livez", "/metrics", "/catalog", "/workers", "/replica_sync/peers"] {
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
    let (status, readyz) = server.get("/readyz").await;
    assert_eq!((status, &readyz["missing"]), (503, &json!(["index"])), "{readyz}");
    let worker = json!({"worker_id": 1, "model_name": "m", "endpoint": "http://w1:8000", "block_size": 4,
                        "kv_events_endpoint": "tcp://127.0.0.1:1"});
    let (status, record) = server.call("POST", "/workers", worker).await;
    assert_eq!((status, &record["lifecycle"]), (201, &json!("schedulable")), "{record}");
    for path in ["/health", "/ready", "/loads", "/dump", "/listeners"] {
        assert_eq!(server.get(path).await, (503, json!({"error": "start-up recovery is not complete"})), "{path}");
    }
    let request = json!({"model_name": "m", "token_ids": [1, 2, 3, 4]});
    for path in ["/select", "/select_and_reserve", "/potential_loads", "/overlap_scores"] {
        assert_eq!(server.call("POST", path, request.clone()).await.0, 503, "{path}");
    }
    assert_eq!(server.get("/nope").await.0, 404);
}

/// Selectors that start together ask each other, and nobody waits for anybody.
#[tokio::test(flavor = "multi_thread")]
async fn selectors_that_list_each_other_all_start() {
    let mut listeners = Vec::new();
    for _ in 0..3 {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let urls: Vec<_> = listeners.iter().map(|l| format!("http://{}", l.local_addr().unwrap())).collect();
    let started = Instant::now();
    let mut services = Vec::new();
    for listener in listeners {
        // Each lists itself too.
        let service = SelectionServiceBuilder::new(config(&urls)).build().unwrap();
        let shutdown = tokio_util::sync::CancellationToken::new();
        services.push((service.clone(), shutdown.clone()));
        pointsman::http::serve(service, HttpConfig::default(), listener, shutdown).unwrap();
    }
    for (service, _) in &services {
        assert_eq!(within(service.recovered()).await.attempts.len(), 3);
    }
    assert!(started.elapsed() < PATIENCE);
    for url in &urls {
        eventually("ready", || async {
            reqwest::get(format!("{url}/readyz")).await.is_ok_and(|response| response.status() == 200)
        })
        .await;
    }
}
