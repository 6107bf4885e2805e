//! Requests that wait, over real sockets.

use std::{sync::Arc, time::Duration};

use pointsman::{
    http::HttpConfig,
    selection::{
        config::QueuePolicy,
        queue::profile::{PolicyClass, PolicyProfile, PolicyProfiles},
    },
};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::server::{TestServer, read_until, service_config, within};

/// One worker; ranks with a prefill token in progress are busy. `tight` is a class of one place.
async fn queueing() -> TestServer {
    let mut config = service_config();
    let mut profile = PolicyProfile::synthetic(Some(0.0), QueuePolicy::Fcfs);
    let tight = PolicyClass {
        name: "tight".into(),
        cell: None,
        request_queue_limit_per_worker: Some(1),
        ..profile.classes[0].clone()
    };
    profile.classes.push(tight);
    config.selection.profiles = PolicyProfiles { root: Some(Arc::new(profile)), ..PolicyProfiles::default() };
    let server = TestServer::with(config, HttpConfig::default()).await;
    let worker =
        json!({"worker_id": 1, "model_name": "m", "endpoint": "e", "block_size": 4, "max_num_batched_tokens": 100});
    assert_eq!(server.call("POST", "/workers", worker).await.0, 201);
    server
}

fn prompt(id: &str) -> Value {
    json!({"model_name": "m", "selection_id": id, "token_ids": [1, 2, 3, 4]})
}

/// Sends a booking and does not wait for its answer.
async fn start(server: &TestServer, id: &str, headers: &str) -> TcpStream {
    let body = prompt(id).to_string();
    let head = "POST /select_and_reserve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let mut socket = server.connect().await;
    let text = format!("{head}{headers}content-length: {}\r\n\r\n{body}", body.len());
    socket.write_all(text.as_bytes()).await.unwrap();
    socket
}

/// Waits until as many requests wait.
async fn waiting(server: &TestServer, count: u64) {
    within(async {
        while server.get("/queue").await.1[0]["waiting"] != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn book(server: &TestServer, id: &str) {
    assert_eq!(server.call("POST", "/select_and_reserve", prompt(id)).await.0, 200);
}

async fn end(server: &TestServer, id: &str) {
    assert_eq!(server.call("DELETE", &format!("/reservations/{id}"), Value::Null).await.0, 200);
}

/// Clients that are gone hold back nobody and book nothing.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_the_queue_hold_back_nobody() {
    let server = queueing().await;
    book(&server, "busy").await;
    let mut sockets = Vec::new();
    for at in 0..10 {
        sockets.push(start(&server, &at.to_string(), "").await);
        waiting(&server, at + 1).await;
    }
    let mut survivor = sockets.pop().unwrap();
    drop(sockets);
    waiting(&server, 1).await;
    end(&server, "busy").await;
    assert!(read_until(&mut survivor, "\"9\"").await.starts_with("HTTP/1.1 200"));
    let (_, loads) = server.get("/loads").await;
    assert_eq!(loads[0]["loads"][0]["active_requests"], 1, "{loads}");
    assert_eq!(server.call("POST", "/reservations/3/prefill_complete", Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_shown_and_counted() {
    let server = queueing().await;
    book(&server, "busy").await;
    let _plain = start(&server, "a", "").await;
    waiting(&server, 1).await;
    let tight = "x-dynamo-meta-policy-class: tight\r\n";
    let _tight = start(&server, "b", tight).await;
    waiting(&server, 2).await;
    let mut refused = start(&server, "c", tight).await;
    let refused = read_until(&mut refused, "\"limit\":1}").await;
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    let late = server.request("POST", "/select").header("x-pointsman-deadline-ms", "20").json(&prompt("d"));
    let late = late.send().await.unwrap();
    assert_eq!(late.status(), 429);
    assert_eq!(late.json::<Value>().await.unwrap(), json!({"error": "request deadline exceeded"}));

    let (_, queues) = server.get("/queue?model_name=m").await;
    let queue = &queues[0];
    assert_eq!((&queue["waiting"], &queue["isl_tokens"], &queue["ranks"]), (&json!(2), &json!(8), &json!(1)));
    let class = queue["classes"].as_array().unwrap().iter().find(|class| class["policy_class"] == "tight").unwrap();
    assert_eq!(
        (&class["waiting"], &class["busy_ranks"], &class["limits"]),
        (&json!(1), &json!(1), &json!({"requests": 1}))
    );
    assert!(class["oldest_age_seconds"].as_f64().unwrap() >= 0.0);
    assert_eq!(server.get("/queue?model_name=other").await.1, json!([]));

    let metrics = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    let labels = |class: &str| format!("{{model=\"m\",group=\"default\",policy_class=\"{class}\"");
    for line in [
        format!("pointsman_queue_waiting_requests{}}} 1", labels("tight")),
        format!("pointsman_queue_rejected_requests_total{},limit_kind=\"requests\"}} 1", labels("tight")),
        format!("pointsman_queue_expired_requests_total{}}} 1", labels("default")),
        format!("pointsman_queue_wait_seconds_count{}}} 1", labels("default")),
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(&line)), "{line} is not in\n{metrics}");
    }
}

/// Whoever waits is sent elsewhere in time, not cut off at the end of the drain.
#[tokio::test(flavor = "multi_thread")]
async fn going_down_answers_whoever_waits() {
    let server = queueing().await;
    book(&server, "busy").await;
    let mut waits = start(&server, "a", "").await;
    waiting(&server, 1).await;
    server.shutdown.cancel();
    let answer = read_until(&mut waits, "shutdown").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("endpoint subscriber shutdown"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_drains_in_order() {
    let server = queueing().await;
    book(&server, "0").await;
    let mut sockets = Vec::new();
    for at in 1..=20 {
        sockets.push(start(&server, &at.to_string(), "").await);
        waiting(&server, at).await;
    }
    for (at, mut socket) in sockets.into_iter().enumerate() {
        end(&server, &at.to_string()).await;
        read_until(&mut socket, &format!("\"selection_id\":\"{}\"", at + 1)).await;
    }
    waiting(&server, 0).await;
}
