//! Session affinity over HTTP.

use std::{sync::Arc, time::Duration};

use pointsman::{http::HttpConfig, service::ServiceConfig};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::server::{TestServer, service_config};

/// Two workers, and sessions that stay for `ttl`.
async fn with_sessions(ttl: Duration) -> TestServer {
    let mut config = ServiceConfig { ..service_config() };
    config.selection.session_affinity_ttl = Some(ttl);
    let server = TestServer::with(config, HttpConfig::default()).await;
    server.add_worker(1).await;
    server.add_worker(2).await;
    server
}

const LONG: Duration = Duration::from_secs(3600);

fn turn(session: Value, tokens: [u32; 4]) -> Value {
    let mut request = json!({"model_name": "m", "token_ids": tokens});
    let name = if session.is_object() { "session_context" } else { "session_id" };
    request[name] = session;
    request
}

async fn worker_of(server: &TestServer, path: &str, request: Value) -> (u64, String) {
    let (status, body) = server.call("POST", path, request).await;
    assert!(status == 200 || status == 201, "{status} {body}");
    (body["worker_id"].as_u64().unwrap(), body["selection_id"].as_str().unwrap_or_default().to_owned())
}

/// Loads every worker but `free` so much that an unbound request goes there.
async fn load_all_but(server: &TestServer, free: u64) {
    for worker in [1, 2] {
        if worker != free {
            let request = json!({"model_name": "m", "selection_id": format!("load-{worker}"), "worker_id": worker,
                                 "sequence_hashes": (0..1000).collect::<Vec<i64>>(), "isl_tokens": 4000,
                                 "effective_prefill_tokens": 4000});
            assert_eq!(server.call("POST", "/reservations", request).await.0, 201);
        }
    }
}

/// One call or two, a booking binds its session; a selection alone does not.
#[tokio::test(flavor = "multi_thread")]
async fn both_ways_of_booking_bind() {
    let server = with_sessions(LONG).await;
    let mut select = turn(json!("s"), [1, 2, 3, 4]);
    select["selection_id"] = json!("x");
    let (bound, _) = worker_of(&server, "/select", select).await;
    worker_of(&server, "/reservations", json!({"model_name": "m", "selection_id": "x"})).await;
    load_all_but(&server, 3 - bound).await;
    for tokens in [[9, 9, 9, 9], [8, 8, 8, 8]] {
        assert_eq!(worker_of(&server, "/select", turn(json!("s"), tokens)).await.0, bound);
        // Another session, never booked: free to go elsewhere.
        assert_eq!(worker_of(&server, "/select", turn(json!("t"), tokens)).await.0, 3 - bound);
    }
}

/// A request that must go elsewhere goes there, and the session stays where it was.
#[tokio::test(flavor = "multi_thread")]
async fn an_override_serves_one_request_and_moves_nothing() {
    let server = with_sessions(LONG).await;
    let (bound, _) = worker_of(&server, "/select_and_reserve", turn(json!("s"), [1, 2, 3, 4])).await;
    let other = 3 - bound;
    let mut pinned = turn(json!("s"), [5, 6, 7, 8]);
    pinned["pinned_worker"] = json!({"worker_id": other, "dp_rank": 0});
    assert_eq!(worker_of(&server, "/select_and_reserve", pinned).await.0, other);
    let mut target = turn(json!("s"), [5, 6, 7, 8]);
    target["affinity_target"] = json!({"worker_id": other});
    assert_eq!(worker_of(&server, "/select_and_reserve", target).await.0, other);
    let mut impossible = turn(json!("s"), [5, 6, 7, 8]);
    impossible["pinned_worker"] = json!({"worker_id": 99, "dp_rank": 0});
    assert_eq!(server.call("POST", "/select_and_reserve", impossible).await.0, 503);
    let mut elsewhere = turn(json!("s"), [5, 6, 7, 8]);
    elsewhere["allowed_worker_ids"] = json!([other]);
    server.call("POST", "/select_and_reserve", elsewhere).await;
    assert_eq!(worker_of(&server, "/select", turn(json!("s"), [5, 6, 7, 8])).await.0, bound);
}

/// Requests that open a session together end on one worker, and those whose clients left book nothing.
#[tokio::test(flavor = "multi_thread")]
async fn first_requests_of_a_session_agree() {
    let server = Arc::new(with_sessions(LONG).await);
    for round in 0..5u32 {
        let session = format!("s{round}");
        let mut clients = Vec::new();
        for number in 0..40u32 {
            let (server, request) = (server.clone(), turn(json!(session), [round, number, 1, 2]));
            clients.push(tokio::spawn(async move {
                if number % 2 == 0 {
                    return Some(worker_of(&server, "/select_and_reserve", request).await);
                }
                let body = request.to_string();
                let head = "POST /select_and_reserve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
                let mut socket = server.connect().await;
                let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                socket.write_all(text.as_bytes()).await.unwrap();
                None
            }));
        }
        let mut workers = Vec::new();
        for client in clients {
            if let Some((worker, id)) = client.await.unwrap() {
                workers.push(worker);
                assert_eq!(server.call("DELETE", &format!("/reservations/{id}"), Value::Null).await.0, 200);
            }
        }
        assert_eq!(workers.len(), 20);
        workers.dedup();
        assert_eq!(workers.len(), 1, "one session, several workers: {workers:?}");
    }
}

/// Ids have a limit, and the limit is told only where the id would be used.
#[tokio::test(flavor = "multi_thread")]
async fn session_ids_have_256_bytes_and_are_ignored_without_sessions() {
    let server = with_sessions(LONG).await;
    for (id, status) in [("é".repeat(128), 200), (format!("{}x", "é".repeat(128)), 400), (String::new(), 200)] {
        let (found, body) = server.call("POST", "/select", turn(json!(id), [1, 2, 3, 4])).await;
        assert_eq!(found, status, "{body}");
    }
    let mut pinned = turn(json!("x".repeat(257)), [1, 2, 3, 4]);
    pinned["pinned_worker"] = json!({"worker_id": 1, "dp_rank": 0});
    assert_eq!(server.call("POST", "/select", pinned).await.0, 200, "a pin leaves the session out");
    let without = TestServer::start().await;
    without.add_worker(1).await;
    assert_eq!(without.call("POST", "/select", turn(json!("x".repeat(257)), [1, 2, 3, 4])).await.0, 200);
}

/// The object wins over the flat id, and must have an id.
#[tokio::test(flavor = "multi_thread")]
async fn the_session_object_wins() {
    let server = with_sessions(LONG).await;
    let (bound, _) = worker_of(&server, "/select_and_reserve", turn(json!({"session_id": "ctx"}), [1, 2, 3, 4])).await;
    load_all_but(&server, 3 - bound).await;
    let mut both = turn(json!({"session_id": "ctx"}), [7, 7, 7, 7]);
    both["session_id"] = json!("flat");
    assert_eq!(worker_of(&server, "/select", both).await.0, bound);
    let mut swapped = turn(json!({"session_id": "flat"}), [7, 7, 7, 7]);
    swapped["session_id"] = json!("ctx");
    assert_eq!(worker_of(&server, "/select", swapped).await.0, 3 - bound);
    for context in [json!({}), json!({"session_id": "s", "input_trigger": "x"}), json!({"session_id": 5})] {
        assert_eq!(server.call("POST", "/select", turn(context, [1, 2, 3, 4])).await.0, 422);
    }
}
