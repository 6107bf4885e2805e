//! The standalone indexer's routes, and what `--face indexer` changes.

use pointsman::{
    http::{AdminToken, Face, HttpConfig},
    selection::SelectionConfig,
    service::ServiceConfig,
};
use serde_json::{Value, json};

use super::server::{TestServer, answer};

fn with_events() -> ServiceConfig {
    ServiceConfig { selection: SelectionConfig::default(), ..ServiceConfig::default() }
}

async fn indexer() -> TestServer {
    TestServer::with(with_events(), HttpConfig { face: Face::Indexer, ..HttpConfig::default() }).await
}

fn error(text: &str) -> Value {
    json!({ "error": text })
}

/// Nobody publishes there.
fn instance(id: u64, rank: u32) -> Value {
    json!({"instance_id": id, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "block_size": 4, "dp_rank": rank})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_face_registers_queries_and_unregisters() {
    for face in [Face::Selector, Face::Indexer] {
        let server = TestServer::with(with_events(), HttpConfig { face, ..HttpConfig::default() }).await;
        let query = json!({"model_name": "m", "token_ids": [1, 2, 3, 4]});
        let nobody = (404, error("no indexer for model=m routing_group=default"));
        assert_eq!(server.call("POST", "/query", query.clone()).await, nobody);
        let ok = json!({"status": "ok"});
        assert_eq!(server.call("POST", "/register", instance(1, 0)).await, (201, ok.clone()));
        let taken = (409, error("instance 1 dp_rank 0 already registered"));
        assert_eq!(server.call("POST", "/register", instance(1, 0)).await, taken);
        let nothing = (200, json!({"scores": {}, "frequencies": [], "instances": {}}));
        assert_eq!(server.call("POST", "/query", query.clone()).await, nothing);
        let by_hash = json!({"model_name": "m", "block_hashes": [1, -2]});
        assert_eq!(server.call("POST", "/query_by_hash", by_hash).await, nothing);
        let salted = json!({"model_name": "m", "block_hashes": [], "cache_salt": ""});
        let (status, text) = server.call("POST", "/query_by_hash", salted).await;
        assert_eq!(status, 400);
        assert!(text["error"].as_str().unwrap().starts_with("cache_salt is not accepted by /query_by_hash;"), "{text}");
        // An instance is never selected.
        assert_eq!(server.call("POST", "/select", query.clone()).await.0, 503);
        let gone = json!({"instance_id": 1, "model_name": "m"});
        assert_eq!(server.call("POST", "/unregister", gone.clone()).await, (200, ok));
        assert_eq!(server.call("POST", "/unregister", gone).await, (404, error("instance 1 not found")));
        assert_eq!(server.call("POST", "/query", query).await, nobody);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_selectors_face_keeps_its_shapes() {
    let server = TestServer::with(with_events(), HttpConfig::default()).await;
    server.call("POST", "/register", instance(1, 0)).await;
    let (_, workers) = server.get("/workers").await;
    assert_eq!(workers[0]["worker_id"], 1);
    assert_eq!(workers[0]["lifecycle"], "unschedulable");
    assert_eq!(workers[0]["not_schedulable_reasons"], json!(["only its cache is indexed"]));
    assert_eq!(server.get("/health").await, (200, json!({"status": "ok"})));
    for path in ["/peers", "/register_peer", "/reopen_logs", "/test/pause_listener"] {
        assert_eq!(server.call("POST", path, json!({})).await, (404, error("route not found")), "{path}");
    }
    let text = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(!text.contains("dynamo_kvindexer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_indexers_face_lists_streams_and_remembers_peers() {
    let server = indexer().await;
    server.call("POST", "/register", instance(1, 0)).await;
    server.call("POST", "/register", instance(1, 3)).await;
    let worker = json!({"worker_id": 7, "model_name": "n", "endpoint": "http://w", "block_size": 16,
        "kv_events_endpoint": "tcp://127.0.0.1:2"});
    assert_eq!(server.call("POST", "/workers", worker).await.0, 201);
    server.call("POST", "/workers", json!({"worker_id": 8, "model_name": "n"})).await;
    let listener = |port: u16| json!({"endpoint": format!("tcp://127.0.0.1:{port}"), "status": "active"});
    let first = json!({
        "instance_id": 1, "source": "zmq", "status": "active", "model_name": "m", "routing_group": "default",
        "block_size": 4, "endpoints": {"0": "tcp://127.0.0.1:1", "3": "tcp://127.0.0.1:1"},
        "listeners": {"0": listener(1), "3": listener(1)},
    });
    let second = json!({
        "instance_id": 7, "source": "zmq", "status": "active", "model_name": "n", "routing_group": "default",
        "block_size": 16, "endpoints": {"0": "tcp://127.0.0.1:2"}, "listeners": {"0": listener(2)},
    });
    super::server::eventually("both listeners run", || async {
        let (_, listed) = server.get("/workers").await;
        listed == json!([first, second])
    })
    .await;
    assert_eq!(server.get("/workers?model_name=n&routing_group=g").await, (200, json!([])));
    assert_eq!(server.get("/health").await, (200, json!("")));

    let peer = |url: &str| json!({ "url": url });
    for url in ["http://b", "http://a", "http://b"] {
        assert_eq!(server.call("POST", "/register_peer", peer(url)).await, (201, json!({"status": "ok"})));
    }
    assert_eq!(server.get("/peers").await, (200, json!(["http://a", "http://b"])));
    assert_eq!(server.call("POST", "/deregister_peer", peer("http://b")).await, (200, json!({"status": "ok"})));
    assert_eq!(server.call("POST", "/deregister_peer", peer("http://b")).await, (404, error("peer not found")));
    assert_eq!(server.call("POST", "/register_peer", peer(&"x".repeat(3000))).await.0, 400);
    assert_eq!(server.call("POST", "/reopen_logs", Value::Null).await, (200, json!({"status": "ok"})));

    let text = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    for line in [
        r#"dynamo_kvindexer_requests_total{endpoint="/register_peer",method="POST"} 4"#,
        r#"dynamo_kvindexer_errors_total{endpoint="/deregister_peer",status_class="4xx"} 1"#,
        r#"dynamo_kvindexer_request_duration_seconds_count{endpoint="/peers"} 1"#,
        r#"dynamo_kvindexer_listeners{status="active"} 3"#,
        r#"dynamo_kvindexer_listeners{status="paused"} 0"#,
        "dynamo_kvindexer_workers 2",
        "dynamo_kvindexer_models 2",
        r#"dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="ok"} 0"#,
    ] {
        assert!(text.lines().any(|found| found.strip_suffix(".0").unwrap_or(found) == line), "no {line} in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_token_covers_instances_and_peers() {
    let config = HttpConfig {
        face: Face::Indexer,
        pause_routes: true,
        admin_token: AdminToken::new("s3cret"),
        ..HttpConfig::default()
    };
    let server = TestServer::with(with_events(), config).await;
    for (path, body, status) in [
        ("/register", instance(1, 0), 201),
        ("/test/pause_listener", json!({"instance_id": 1}), 200),
        ("/test/resume_listener", json!({"instance_id": 1}), 200),
        ("/unregister", json!({"instance_id": 1, "model_name": "m"}), 200),
        ("/register_peer", json!({"url": "http://a"}), 201),
        ("/deregister_peer", json!({"url": "http://a"}), 200),
    ] {
        assert_eq!(server.call("POST", path, body.clone()).await.0, 401, "{path}");
        let request = server.request("POST", path).bearer_auth("s3cret").json(&body);
        assert_eq!(answer(request).await.0, status, "{path}");
    }
    let query = json!({"model_name": "m", "token_ids": [1]});
    assert_eq!(server.call("POST", "/query", query).await.0, 404, "reading stays open");
}
