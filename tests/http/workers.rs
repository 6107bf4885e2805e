//! Worker routes under clients that leave, and ids that only exact integers keep.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::server::{TestServer, eventually};

/// No id goes through a double.
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_64_bits_stay_exact() {
    let server = TestServer::start().await;
    let ids = [9_007_199_254_740_993, 9_007_199_254_740_995, u64::MAX];
    for id in ids {
        server.add_worker(id).await;
    }
    let (_, workers) = server.get("/workers").await;
    let listed: Vec<_> = workers.as_array().unwrap().iter().map(|w| w["worker_id"].clone()).collect();
    assert_eq!(listed, ids.map(Value::from));
    let (_, loads) = server.get("/loads").await;
    let loaded: Vec<_> = loads[0]["loads"].as_array().unwrap().iter().map(|row| row["worker_id"].clone()).collect();
    assert_eq!(loaded, ids.map(Value::from));
    for id in ids {
        let request = json!({"model_name": "m", "token_ids": [1, 2, 3, 4], "allowed_worker_ids": [id]});
        let (status, chosen) = server.call("POST", "/select", request).await;
        assert_eq!((status, &chosen["worker_id"]), (200, &json!(id)), "{chosen}");
    }
}

/// An update that was begun is finished, whatever its client does.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_of_an_update_leaves_no_half_worker() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    let body = r#"{"worker_id":2,"model_name":"m","endpoint":"http://w2:8000","block_size":4}"#;
    let post = format!(
        "POST /workers HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for round in 0..100u64 {
        for request in [post.as_str(), "DELETE /workers/2 HTTP/1.1\r\nhost: x\r\n\r\n"] {
            let mut socket = server.connect().await;
            socket.write_all(request.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_micros(round * 20)).await;
        }
    }
    eventually("every request to end", || async {
        let (_, workers) = server.get("/workers").await;
        let settled = workers.as_array().unwrap().iter().all(|w| w["lifecycle"] == "schedulable");
        settled && super::server::metric(&server, "pointsman_http_connections").await <= 1.0
    })
    .await;
    server.add_worker(2).await;
    let request = json!({"model_name": "m", "token_ids": [1, 2, 3, 4], "allowed_worker_ids": [2]});
    assert_eq!(server.call("POST", "/select", request).await.0, 200);
}

/// Everything that is missing is named at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_bare_record_lists_all_it_lacks() {
    let server = TestServer::start().await;
    let (status, record) = server.call("POST", "/workers", json!({"worker_id": 1})).await;
    assert_eq!(status, 201);
    assert_eq!(
        record["not_schedulable_reasons"],
        json!(["endpoint is required", "block_size must be greater than 0"]),
        "{record}"
    );
    assert_eq!(server.get("/ready").await.0, 503);
}
