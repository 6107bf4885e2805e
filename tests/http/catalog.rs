//! `/catalog`, and the token that guards it.

use async_compression::tokio::write::ZstdEncoder;
use pointsman::http::{AdminToken, HttpConfig};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::server::{TestServer, answer, service_config};

fn worker(id: u64) -> Value {
    json!({"worker_id": id, "model_name": "m", "endpoint": format!("http://w{id}:8000"), "block_size": 4})
}

fn snapshot(epoch: u64, generation: u64, digest: &str, ids: impl IntoIterator<Item = u64>) -> Value {
    let workers: Vec<_> = ids.into_iter().map(worker).collect();
    json!({"epoch": epoch, "generation": generation, "digest": digest, "workers": workers})
}

async fn put(server: &TestServer, path: &str, body: Value) -> (u16, Value) {
    server.call("PUT", path, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_replaces_the_owners_records_and_says_what_became_of_each() {
    let server = TestServer::start().await;
    server.add_worker(9).await;
    let (status, report) = put(&server, "/catalog/file.a", snapshot(5, 1, "d1", [1, 2, 9])).await;
    assert_eq!(status, 200, "{report}");
    assert_eq!((&report["epoch"], &report["generation"], &report["digest"]), (&json!(5), &json!(1), &json!("d1")));
    let outcomes: Vec<_> = report["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| (w["worker_id"].clone(), w["lifecycle"].clone()))
        .collect();
    assert_eq!(outcomes, [(json!(1), json!("schedulable")), (json!(2), json!("schedulable")), (json!(9), Value::Null)]);
    assert_eq!(report["workers"][2]["reasons"], json!(["rejected: owned by api"]));
    assert_eq!(put(&server, "/catalog/file.a", snapshot(5, 2, "d2", [2])).await.0, 200);
    let (_, workers) = server.get("/workers").await;
    let ids: Vec<_> = workers.as_array().unwrap().iter().map(|w| w["worker_id"].clone()).collect();
    assert_eq!(ids, [json!(2), json!(9)]);

    let (status, catalog) = server.get("/catalog").await;
    assert_eq!(status, 200);
    assert_eq!(catalog["instance_id"], report["instance_id"]);
    assert!(catalog.get("workers").is_none());
    let owned = catalog["owners"].as_array().unwrap().iter().find(|o| o["owner"] == "file.a").unwrap();
    assert_eq!((&owned["generation"], &owned["digest"], &owned["workers"]), (&json!(2), &json!("d2"), &json!(1)));
    let (_, catalog) = server.get("/catalog?workers=true").await;
    let records: Vec<_> =
        catalog["workers"].as_array().unwrap().iter().map(|w| (w["owner"].clone(), w["worker_id"].clone())).collect();
    assert_eq!(records, [(json!("file.a"), json!(2)), (json!("api"), json!(9))]);
    assert_eq!(catalog["workers"][0]["state"], json!("active"));
    assert_eq!(catalog["workers"][0]["endpoint"], json!("http://w2:8000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_snapshot_is_refused_with_what_is_in_force() {
    let server = TestServer::start().await;
    assert_eq!(put(&server, "/catalog/file.a", snapshot(5, 7, "d", [1])).await.0, 200);
    for (epoch, generation) in [(5, 6), (4, 99)] {
        let (status, body) = put(&server, "/catalog/file.a", snapshot(epoch, generation, "x", [])).await;
        assert_eq!(status, 409, "{body}");
        assert_eq!(body["current"], json!({"epoch": 5, "generation": 7, "digest": "d"}));
    }
    assert_eq!(server.get("/workers").await.1.as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_applies_to_its_base_only() {
    let server = TestServer::start().await;
    assert_eq!(put(&server, "/catalog/file.a", snapshot(1, 1, "d1", [1, 2])).await.0, 200);
    let delta = |generation: u64, base: &str, digest: &str| {
        json!({"epoch": 1, "generation": generation, "base_digest": base, "digest": digest,
               "upsert": [worker(3)], "delete": [1]})
    };
    let (status, body) = put(&server, "/catalog/file.a", delta(2, "other", "d2")).await;
    assert_eq!((status, &body["current"]["digest"]), (409, &json!("d1")), "{body}");
    let (status, body) = put(&server, "/catalog/file.a?adopt=file.b", delta(2, "d1", "d2")).await;
    assert_eq!(status, 400, "{body}");
    assert_eq!(put(&server, "/catalog/file.a", delta(2, "d1", "d2")).await.0, 200);
    let (_, workers) = server.get("/workers").await;
    let ids: Vec<_> = workers.as_array().unwrap().iter().map(|w| w["worker_id"].clone()).collect();
    assert_eq!(ids, [json!(2), json!(3)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_can_take_over_anothers_records() {
    let server = TestServer::start().await;
    assert_eq!(put(&server, "/catalog/file.a", snapshot(1, 1, "d", [1, 2])).await.0, 200);
    let (status, report) = put(&server, "/catalog/file.b?adopt=file.a", snapshot(1, 1, "d", [1, 2])).await;
    assert_eq!(status, 200, "{report}");
    assert_eq!(report["workers"][0]["lifecycle"], json!("schedulable"), "{report}");
    let (_, catalog) = server.get("/catalog?workers=true").await;
    assert_eq!(catalog["workers"][0]["owner"], json!("file.b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_nothing_could_follow_is_refused() {
    let server = TestServer::start().await;
    assert_eq!(put(&server, "/catalog/file.a", snapshot(1, 1, "d", [1])).await.0, 200);
    let delta = json!({"epoch": 1, "generation": u64::MAX, "base_digest": "d", "digest": "e", "delete": [1]});
    for (sent, name) in [(snapshot(u64::MAX, u64::MAX, "x", []), "epoch"), (delta, "generation")] {
        let (status, body) = put(&server, "/catalog/file.a", sent).await;
        let text = format!("{name} {} is too large: at most {} (2^63 - 1)", u64::MAX, i64::MAX);
        assert_eq!((status, body), (400, json!({"error": text})));
    }
    assert_eq!(put(&server, "/catalog/file.a", snapshot(1, 2, "f", [1, 2])).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_may_be_compressed_and_have_a_limit_after_decompression() {
    let config = HttpConfig { max_catalog_bytes: 64 << 10, max_body_bytes: 100, ..HttpConfig::default() };
    let server = TestServer::with(service_config(), config).await;
    let send = async |body: Value, encoding: &str| {
        let mut encoder = ZstdEncoder::new(Vec::new());
        encoder.write_all(body.to_string().as_bytes()).await.unwrap();
        encoder.shutdown().await.unwrap();
        let request = server
            .request("PUT", "/catalog/file.a")
            .header("content-type", "application/json")
            .header("content-encoding", encoding)
            .body(encoder.into_inner());
        answer(request).await
    };
    let (status, report) = send(snapshot(1, 1, "d", 1..=20), "zstd").await;
    assert_eq!((status, report["workers"].as_array().map(Vec::len)), (200, Some(20)), "{report}");
    // A few kB that decompress to more than the limit.
    let mut bomb = snapshot(1, 2, "d", []);
    bomb["pad"] = json!("x".repeat(128 << 10));
    let (status, body) = send(bomb, "zstd").await;
    assert_eq!((status, &body["error"]), (413, &json!("Failed to buffer the request body: length limit exceeded")));
    for encoding in ["lzma", "gzip", "zstd, zstd"] {
        let (status, body) = send(snapshot(1, 3, "d", []), encoding).await;
        let text = format!("content-encoding `{encoding}` is not supported: send `zstd` or none");
        assert_eq!((status, body), (415, json!({"error": text})));
    }
    let metrics = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("http_request_errors_total{reason=\"content_encoding\"} 3"), "{metrics}");
    let request = server
        .request("PUT", "/catalog/file.a")
        .header("content-type", "application/json")
        .header("content-encoding", "zstd")
        .body("not zstd");
    let (status, body) = answer(request).await;
    assert_eq!(status, 400, "{body}");
    assert_eq!(server.get("/workers").await.1.as_array().unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_workers_are_applied_while_selections_go_on() {
    let server = TestServer::start().await;
    server.add_worker(1_000_000).await;
    let select = json!({"model_name": "m", "token_ids": [1, 2, 3, 4]});
    let big = snapshot(1, 1, "big", 1..=100_000);
    let applied = put(&server, "/catalog/file.big", big);
    tokio::pin!(applied);
    let mut selections = 0;
    let (status, report) = loop {
        tokio::select! {
            answer = &mut applied => break answer,
            (status, body) = server.call("POST", "/select", select.clone()) => {
                assert_eq!(status, 200, "{body}");
                selections += 1;
            }
        }
    };
    assert_eq!(status, 200);
    assert!(selections > 0);
    // A partition holds a limited number of ranks; the rest say so.
    let outcomes = report["workers"].as_array().unwrap();
    assert_eq!(outcomes.len(), 100_000);
    for outcome in outcomes {
        let schedulable = outcome["lifecycle"] == "schedulable";
        assert!(schedulable || outcome["reasons"][0] == "partition full", "{outcome}");
    }
    assert_eq!(server.call("POST", "/select", select).await.0, 200);
    assert_eq!(server.get("/livez").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_guards_changes_and_nothing_else() {
    let config = HttpConfig { admin_token: AdminToken::new("s3cret"), ..HttpConfig::default() };
    let server = TestServer::with(service_config(), config).await;
    let guarded = [
        ("POST", "/workers", worker(1)),
        ("PATCH", "/workers/1", json!({})),
        ("DELETE", "/workers/1", Value::Null),
        ("PUT", "/catalog/file.a", snapshot(1, 1, "d", [])),
        ("POST", "/replica_sync/register_peer", json!({"endpoint": "tcp://h:1"})),
        ("POST", "/replica_sync/deregister_peer", json!({"endpoint": "tcp://h:1"})),
    ];
    for (method, path, body) in &guarded {
        for header in [None, Some("Bearer"), Some("Bearer s3cre"), Some("Basic s3cret"), Some("s3cret")] {
            let mut request = server.request(method, path).json(body);
            if let Some(value) = header {
                request = request.header("authorization", value);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 401, "{method} {path} {header:?}");
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
        }
    }
    for (method, path, body) in guarded {
        let request = server.request(method, path).header("authorization", "bearer  s3cret");
        let request = if body.is_null() { request } else { request.json(&body) };
        let (status, answer) = answer(request).await;
        assert!(status != 401, "{method} {path}: {answer}");
    }
    for path in ["/workers", "/catalog", "/replica_sync/peers", "/health", "/metrics", "/loads"] {
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_sync_says_that_it_is_off() {
    let server = TestServer::start().await;
    assert_eq!(server.get("/replica_sync/peers").await, (200, json!([])));
    for path in ["/replica_sync/register_peer", "/replica_sync/deregister_peer"] {
        let (status, body) = server.call("POST", path, json!({"endpoint": "bad"})).await;
        assert_eq!((status, body), (409, json!({"error": "replica sync is disabled"})));
        assert_eq!(server.call("POST", path, json!({})).await.0, 422);
    }
}
