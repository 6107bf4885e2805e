//! Calls that end a booking, beside a replica that listens.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use serde_json::json;
use tower::ServiceExt;

use crate::{
    events::transport::{Subscriber, TransportConfig},
    http::{HttpConfig, metrics::HttpMetrics, routes},
    mesh::{BoundMesh, MeshConfig},
    selection::SelectionConfig,
    service::{SelectionService, SelectionServiceBuilder, ServiceConfig},
};

/// Waits until `condition`.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("waited in vain for {what}"));
}

fn router(service: &SelectionService) -> axum::Router {
    let config = HttpConfig::default();
    let metrics: Arc<HttpMetrics> = HttpMetrics::register(service.metrics(), config.face);
    routes::router(routes::App::new(service.clone(), &config, metrics), &config)
}

async fn call(router: &axum::Router, method: Method, path: &str, body: serde_json::Value) -> StatusCode {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).expect("a request");
    router.clone().oneshot(request).await.expect("never fails").status()
}

// One thread: what was published goes out when a handler gives way, and not before.
#[tokio::test(flavor = "current_thread")]
async fn replicas_are_told_of_a_call_before_its_client() {
    let mesh = MeshConfig {
        bind: "tcp://127.0.0.1:*".to_owned(),
        // No beacons among what is published.
        beacon_interval: Duration::from_secs(3600),
        ..MeshConfig::default()
    };
    let mesh = BoundMesh::bind(mesh).await.expect("bound");
    let endpoint = mesh.endpoint().to_owned();
    let selection = SelectionConfig { use_kv_events: false, ..SelectionConfig::default() };
    let config = ServiceConfig { selection, ..ServiceConfig::default() };
    let service = SelectionServiceBuilder::new(config).mesh(mesh).build().expect("valid");
    let mesh = service.mesh().expect("a mesh");
    let _replica = Subscriber::connect(&endpoint, &[b"".as_slice()], TransportConfig::default()).expect("an endpoint");
    until("a subscriber", || mesh.status().subscribers > 0).await;

    let router = router(&service);
    let worker = json!({"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 16});
    assert_eq!(call(&router, Method::POST, "/workers", worker).await, StatusCode::CREATED);
    let booking = json!({"selection_id": "x", "model_name": "m", "worker_id": 1, "token_ids": [1, 2, 3]});
    assert_eq!(call(&router, Method::POST, "/reservations", booking).await, StatusCode::CREATED);
    for (method, path) in [(Method::POST, "/reservations/x/prefill_complete"), (Method::DELETE, "/reservations/x")] {
        until("what was published before", || !mesh.has_queued()).await;
        assert_eq!(call(&router, method, path, json!(null)).await, StatusCode::OK);
        assert!(!mesh.has_queued(), "{path} is answered, and its message has not gone out");
    }
}
