//! Health, readiness, metrics and the OpenAPI document.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pointsman::{
    http::HttpConfig,
    selection::{Clock, Moment},
    service::{SelectionServiceBuilder, ServiceConfig},
    telemetry::readiness::{Condition, ReadyRequirements},
};
use serde_json::{Value, json};

use super::server::{TestServer, eventually, metric, service_config};

#[tokio::test(flavor = "multi_thread")]
async fn ready_needs_a_schedulable_worker_and_readyz_does_not() {
    let server = TestServer::start().await;
    let nobody = json!({"ready": false, "schedulable_workers": 0, "workers": []});
    assert_eq!(server.get("/ready").await, (503, nobody));
    let (status, readyz) = server.get("/readyz").await;
    assert_eq!((status, &readyz["ready"], &readyz["missing"]), (200, &json!(true), &json!([])), "{readyz}");
    server.add_worker(1).await;
    let (status, ready) = server.get("/ready").await;
    assert_eq!((status, &ready["ready"], &ready["schedulable_workers"]), (200, &json!(true), &json!(1)), "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_waits_for_a_catalog_when_told_to_even_an_empty_one() {
    let ready_requires = ReadyRequirements::default().with(Condition::Catalog);
    let server = TestServer::with(ServiceConfig { ready_requires, ..service_config() }, HttpConfig::default()).await;
    let (status, readyz) = server.get("/readyz").await;
    assert_eq!((status, &readyz["missing"]), (503, &json!(["catalog"])), "{readyz}");
    let empty = json!({"epoch": 1, "generation": 1, "digest": "d", "workers": []});
    assert_eq!(server.call("PUT", "/catalog/file.default", empty).await.0, 200);
    assert_eq!(server.get("/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_by_template_and_errors_by_reason() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    for id in 0..3 {
        server.call("DELETE", &format!("/reservations/{id}"), Value::Null).await;
        server.get(&format!("/unknown/{id}")).await;
    }
    let requests = "pointsman_http_requests_total";
    let deleted = format!("{requests}{{method=\"DELETE\",route=\"/reservations/{{selection_id}}\",status=\"404\"}}");
    assert_eq!(metric(&server, &deleted).await, 3.0);
    assert_eq!(metric(&server, &format!("{requests}{{method=\"other\",route=\"other\",status=\"404\"}}")).await, 3.0);
    assert_eq!(metric(&server, "pointsman_http_request_errors_total{reason=\"not_found\"}").await, 3.0);
    assert_eq!(metric(&server, "pointsman_http_request_errors_total{reason=\"route_not_found\"}").await, 3.0);
    assert_eq!(metric(&server, "pointsman_workers{lifecycle=\"schedulable\"}").await, 1.0);
    assert_eq!(metric(&server, "pointsman_partition_schedulable_workers{model=\"m\",group=\"default\"}").await, 1.0);
    assert_eq!(metric(&server, "pointsman_load_ranks{model=\"m\",group=\"default\"}").await, 1.0);
    assert_eq!(metric(&server, "pointsman_task_running{task=\"tick\"}").await, 1.0);
    assert_eq!(metric(&server, "pointsman_events_batches_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_that_clients_choose_have_a_limit() {
    let server = TestServer::start().await;
    for id in 0..150 {
        let worker = json!({"worker_id": id, "model_name": format!("m{id:03}"), "endpoint": "x", "block_size": 4});
        assert_eq!(server.call("POST", "/workers", worker).await.0, 201);
    }
    let text = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    let series: Vec<_> = text.lines().filter(|line| line.starts_with("pointsman_load_ranks{")).collect();
    assert_eq!(series.len(), 101, "{series:?}");
    assert!(series.contains(&"pointsman_load_ranks{model=\"_others\",group=\"_others\"} 50.0"), "{series:?}");
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_document_is_served() {
    let server = TestServer::start().await;
    let (status, document) = server.get("/openapi.json").await;
    assert_eq!(status, 200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    assert!(document["paths"]["/select_and_reserve"]["post"].is_object());
}

/// A clock that can be made to hang, as a core that is stuck does, or to panic once.
struct FaultyClock {
    origin: Instant,
    hang: Arc<AtomicBool>,
    panic: Arc<AtomicBool>,
}

impl Clock for FaultyClock {
    fn now(&self) -> Moment {
        assert!(!self.panic.swap(false, Ordering::AcqRel), "injected");
        while self.hang.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Moment(u64::try_from(self.origin.elapsed().as_nanos()).unwrap())
    }

    fn unix_nanos(&self) -> u64 {
        1
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_core_that_is_stuck_is_not_live_and_not_ready_until_it_goes_on() {
    let hang = Arc::new(AtomicBool::new(false));
    let clock = FaultyClock { origin: Instant::now(), hang: hang.clone(), panic: Arc::default() };
    let config = ServiceConfig {
        stuck_after: Duration::from_millis(300),
        tick_interval: Duration::from_millis(10),
        ..service_config()
    };
    let service = SelectionServiceBuilder::new(config).clock(Arc::new(clock)).build().unwrap();
    let server = TestServer::over(service, HttpConfig::default()).await;
    eventually("live", || async { server.get("/livez").await.0 == 200 && server.get("/readyz").await.0 == 200 }).await;
    hang.store(true, Ordering::Release);
    eventually("not live", || async { server.get("/livez").await.0 == 503 }).await;
    let (_, livez) = server.get("/livez").await;
    assert!(livez["reasons"][0].as_str().unwrap().starts_with("periodic work has not completed"), "{livez}");
    assert_eq!(server.get("/readyz").await.0, 503);
    hang.store(false, Ordering::Release);
    eventually("live again", || async { server.get("/livez").await.0 == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_inside_a_verb_is_that_requests_500() {
    let panic = Arc::new(AtomicBool::new(false));
    let clock = FaultyClock { origin: Instant::now(), hang: Arc::default(), panic: panic.clone() };
    // The first tick is the last: the request is what meets the panic.
    let config = ServiceConfig { tick_interval: Duration::from_secs(3600), ..service_config() };
    let service = SelectionServiceBuilder::new(config).clock(Arc::new(clock)).build().unwrap();
    let server = TestServer::over(service, HttpConfig::default()).await;
    server.add_worker(1).await;
    let request = json!({"model_name": "m", "token_ids": [1, 2, 3, 4]});
    assert_eq!(server.call("POST", "/select", request.clone()).await.0, 200);
    panic.store(true, Ordering::Release);
    let (status, body) = server.call("POST", "/select", request.clone()).await;
    assert_eq!((status, body), (500, json!({"error": "internal error"})));
    assert_eq!(server.call("POST", "/select", request).await.0, 200);
    assert_eq!(metric(&server, "pointsman_panics_total").await, 1.0);
    assert_eq!(server.get("/livez").await.0, 200);
    assert_eq!(server.get("/ready").await.0, 200);
}
