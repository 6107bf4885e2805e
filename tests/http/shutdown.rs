//! Draining.

use std::time::Duration;

use pointsman::http::{Drained, HttpConfig};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::server::{TestServer, eventually, read_all, read_until, service_config, within};

const BODY: &str = r#"{"worker_id":1}"#;

/// A request whose head has come and whose body has not.
async fn half_sent(server: &TestServer) -> TcpStream {
    let mut socket = server.connect().await;
    let head = format!(
        "POST /workers HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n",
        BODY.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut socket, "100 Continue").await;
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_progress_is_answered_and_idle_connections_are_closed() {
    let server = TestServer::start().await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut idle, "ok").await;
    let mut busy = half_sent(&server).await;
    server.shutdown.cancel();
    assert_eq!(read_all(idle).await, "");
    eventually("the port to close", || async { TcpStream::connect(server.address).await.is_err() }).await;
    busy.write_all(BODY.as_bytes()).await.unwrap();
    assert!(read_all(busy).await.contains("201 Created"));
    assert_eq!(server.stop().await, Drained { cut_off: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_in_time_is_cut_off() {
    let config = HttpConfig { drain_timeout: Duration::from_millis(100), ..HttpConfig::default() };
    let server = TestServer::with(service_config(), config).await;
    let busy = half_sent(&server).await;
    assert_eq!(server.stop().await, Drained { cut_off: 1 });
    assert!(!read_all(busy).await.contains("201"));
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_delay_is_over_readyz_fails_and_requests_are_served() {
    let config = HttpConfig { shutdown_delay: Duration::from_secs(3600), ..HttpConfig::default() };
    let server = TestServer::with(service_config(), config).await;
    server.add_worker(1).await;
    assert_eq!(server.get("/readyz").await.0, 200);
    let ask = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut kept = server.connect().await;
    kept.write_all(ask).await.unwrap();
    assert!(!read_until(&mut kept, "ok").await.contains("connection: close"));
    server.shutdown.cancel();
    eventually("not ready", || async { server.get("/readyz").await.0 == 503 }).await;
    let (_, readyz) = server.get("/readyz").await;
    assert_eq!(readyz["shutting_down"], json!(true));
    assert_eq!(server.get("/ready").await.0, 503);
    assert_eq!(server.get("/livez").await.0, 200);
    // Who asks on a connection from before is answered and sent away.
    kept.write_all(ask).await.unwrap();
    assert!(read_all(kept).await.contains("connection: close"));
    let request = json!({"model_name": "m", "token_ids": [1, 2, 3, 4], "selection_id": "a"});
    assert_eq!(server.call("POST", "/select_and_reserve", request).await.0, 200);
    assert_eq!(server.call("DELETE", "/reservations/a", json!(null)).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_service_refuses_selections_in_process() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    let service = server.service.clone();
    server.stop().await;
    let error = within(service.select(Default::default())).await.unwrap_err();
    assert_eq!(error.to_string(), "selection service is shutting down");
}
