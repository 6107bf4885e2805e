//! Request classifiers in the service: over HTTP, where a booking is the lifecycle, and with a host that manages its own.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pointsman::{
    WorkerType,
    http::HttpConfig,
    plugins::{
        request_classifier::{
            ClassifyEvent, ClassifyFuture, ClassifyRequest, RequestClassifier, RequestClassifierConfig,
            RequestClassifierFactory, RequestClassifierParameters, WorkerWithDpRank, async_trait,
        },
        router_plugin_registry,
    },
    selection::{SelectionError, request::SelectRequest},
    service::{SelectionService, SelectionServiceBuilder},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::server::{TestServer, eventually, metric, service_config};

type Heard = Arc<Mutex<Vec<String>>>;

/// Does what request ids say, and notes what it hears.
struct ByName(Heard);

#[async_trait]
impl RequestClassifier for ByName {
    fn classify(&mut self, mut request: ClassifyRequest) -> ClassifyFuture {
        let id = request.request_id().unwrap_or_default().to_owned();
        match id.as_str() {
            "panics" => panic!("a secret"),
            "to-2" => request.set_worker_selection_target(WorkerWithDpRank::new(2, 0)),
            "late" => request.set_due_at(Instant::now() - Duration::from_millis(1)),
            "nonsense" => request.set_policy_class("no such class"),
            _ => {}
        }
        Box::pin(async move {
            match id.as_str() {
                "fails" => Err("a secret".into()),
                "waits" => std::future::pending().await,
                "sleeps" => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    Ok(request)
                }
                _ => Ok(request),
            }
        })
    }

    async fn on_event(&mut self, event: ClassifyEvent) {
        tokio::task::yield_now().await;
        let text = match event {
            ClassifyEvent::Sent { request_id, worker } => format!("sent {request_id} {}", worker.worker_id),
            ClassifyEvent::Responding { request_id, .. } => format!("responding {request_id}"),
            ClassifyEvent::Completed { request_id, context_tokens, .. } => {
                format!("completed {request_id} {}", context_tokens.unwrap_or_default())
            }
            ClassifyEvent::Aborted { request_id, error, .. } => {
                format!("aborted {request_id} {}", error.map_or_else(|| "-".to_owned(), |error| error.to_string()))
            }
            _ => return,
        };
        self.0.lock().unwrap().push(text);
    }
}

fn factory(heard: &Heard) -> RequestClassifierFactory {
    let heard = heard.clone();
    Arc::new(move |_context| Box::new(ByName(heard.clone())))
}

async fn serve(service: SelectionService) -> TestServer {
    let server = TestServer::over(service, HttpConfig::default()).await;
    server.service.recovered().await;
    server.add_worker(1).await;
    server.add_worker(2).await;
    server
}

async fn classified() -> (TestServer, Heard) {
    let heard = Heard::default();
    let service = SelectionServiceBuilder::new(service_config()).request_classifier(factory(&heard)).build().unwrap();
    (serve(service).await, heard)
}

fn booking(id: &str) -> Value {
    json!({"model_name": "m", "selection_id": id, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8]})
}

async fn reserve(server: &TestServer, id: &str) -> (u16, Value) {
    server.call("POST", "/select_and_reserve", booking(id)).await
}

async fn hears(heard: &Heard, text: &str) {
    eventually(text, || async { heard.lock().unwrap().iter().any(|known| known == text) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_booking_is_the_lifecycle_of_its_request() {
    let (server, heard) = classified().await;
    for id in ["to-2", "sleeps"] {
        let (status, body) = reserve(&server, id).await;
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(server.call("POST", "/reservations/to-2/prefill_complete", json!({})).await.0, 200);
    assert_eq!(server.call("POST", "/reservations/to-2/output_block", json!({})).await.0, 200);
    assert_eq!(server.call("DELETE", "/reservations/to-2", Value::Null).await.0, 200);
    hears(&heard, "completed to-2 12").await;
    let of_it: Vec<String> = heard.lock().unwrap().iter().filter(|text| text.contains("to-2")).cloned().collect();
    assert_eq!(of_it, ["sent to-2 2", "responding to-2", "completed to-2 12"]);
    assert_eq!(metric(&server, "pointsman_request_classifier_requests").await, 1.0);
    let delivered = metric(&server, "pointsman_request_classifier_events_total{outcome=\"delivered\"}").await;
    assert!(delivered >= 3.0, "{delivered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_classifier_are_told_without_its_words() {
    let (server, heard) = classified().await;
    for id in ["panics", "fails", "nonsense"] {
        let (status, body) = reserve(&server, id).await;
        assert_eq!((status, body), (500, json!({"error": "request classifier failed"})));
    }
    let (status, body) = reserve(&server, "late").await;
    assert_eq!((status, body), (429, json!({"error": "request deadline exceeded"})));
    hears(&heard, "aborted panics request classifier panicked: a secret").await;
    hears(&heard, "aborted fails request classifier failed: a secret").await;
    hears(&heard, "aborted late request deadline exceeded").await;
    assert_eq!(reserve(&server, "fine").await.0, 200, "it goes on");
    for (outcome, count) in [("panic", 1.0), ("error", 1.0), ("invalid", 1.0)] {
        let series = format!("pointsman_request_classifier_classifications_total{{outcome=\"{outcome}\"}}");
        assert_eq!(metric(&server, &series).await, count, "{outcome}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_or_whose_deadline_passes_waits_no_longer() {
    let (server, heard) = classified().await;
    let mut hurried = booking("waits");
    hurried["deadline_ms"] = json!(50);
    let (status, body) = server.call("POST", "/select_and_reserve", hurried).await;
    assert_eq!((status, body), (429, json!({"error": "request deadline exceeded"})));
    hears(&heard, "aborted waits request deadline exceeded").await;
    let request = server.request("POST", "/select_and_reserve").json(&booking("waits"));
    let left = tokio::time::timeout(Duration::from_millis(50), request.send()).await;
    assert!(left.is_err(), "it still waits");
    hears(&heard, "aborted waits -").await;
    eventually("the id is free", || async { server.service.core().live_bookings() == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_manages_lifecycles_says_which_requests_are_classified() {
    let heard = Heard::default();
    let builder = SelectionServiceBuilder::new(service_config()).request_classifier(factory(&heard));
    let server = serve(builder.host_manages_request_lifecycle().build().unwrap()).await;
    let service = &server.service;
    // Nobody has told of it: what it would do wrong is not done.
    assert_eq!(reserve(&server, "panics").await.0, 200);
    let mut lifecycle = service.begin_request_lifecycle("m", "default", "to-2").unwrap().unwrap();
    let refused = service.begin_request_lifecycle("m", "default", "to-2").unwrap_err();
    assert_eq!(refused.to_string(), "request classifier is already tracking request ID \"to-2\"");
    let request = SelectRequest {
        model_name: "m".to_owned(),
        routing_group: "default".to_owned(),
        selection_id: Some("to-2".to_owned()),
        prompt: serde_json::from_value(json!({"token_ids": [1, 2, 3, 4]})).unwrap(),
        ..SelectRequest::default()
    };
    let answer = service.select_and_reserve(request.clone()).await.unwrap();
    assert_eq!(answer.worker_id, 2);
    lifecycle.sent(WorkerWithDpRank::new(2, 0));
    service.free_reservation("to-2").unwrap();
    lifecycle.observe_context_tokens(40);
    lifecycle.complete();
    hears(&heard, "completed to-2 40").await;
    assert_eq!(*heard.lock().unwrap(), ["sent to-2 2", "completed to-2 40"]);
    // An embedding host is told what went wrong.
    let _lifecycle = service.begin_request_lifecycle("m", "default", "fails").unwrap().unwrap();
    let failed = service.select_and_reserve(SelectRequest { selection_id: Some("fails".to_owned()), ..request }).await;
    assert_eq!(failed, Err(SelectionError::Classifier("request classifier failed: a secret".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configured_classifier_comes_from_the_registry() {
    let heard = Heard::default();
    let mut registry = router_plugin_registry();
    let made = factory(&heard);
    registry.register_request_classifier("by-name", Arc::new(move |_| Ok(made.clone()))).unwrap();
    let with = |classifier_type: &str| {
        let mut config = service_config();
        config.selection.request_classifier = Some(Arc::new(RequestClassifierConfig {
            classifier_type: classifier_type.to_owned(),
            parameters: RequestClassifierParameters::default(),
        }));
        SelectionServiceBuilder::with_plugins(config, WorkerType::default(), registry.clone()).build()
    };
    let refused = with("no-such").unwrap_err().to_string();
    let text = "unknown request-classifier type \"no-such\"; linked classifier types: by-name, thunderagent";
    assert_eq!(refused, text);
    let server = serve(with("by-name").unwrap()).await;
    assert_eq!(reserve(&server, "to-2").await.1["worker_id"], 2);
    hears(&heard, "sent to-2 2").await;
}
