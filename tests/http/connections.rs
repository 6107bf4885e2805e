//! Connections: keep-alive, pipelining, slow and half-closed clients, limits.

use std::time::Duration;

use pointsman::http::HttpConfig;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::server::{TestServer, eventually, metric, read_all, read_until, service_config};

const OK: &str = "{\"status\":\"ok\"}";

async fn with_http(config: HttpConfig) -> TestServer {
    TestServer::with(service_config(), config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_connection_are_answered_in_order_pipelined_or_not() {
    let server = TestServer::start().await;
    let mut socket = server.connect().await;
    for _ in 0..3 {
        socket.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        read_until(&mut socket, OK).await;
    }
    socket
        .write_all(
            b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n\
              GET /nope HTTP/1.1\r\nhost: x\r\n\r\n\
              GET /loads HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        )
        .await
        .unwrap();
    let answers = read_all(socket).await;
    let (health, rest) = answers.split_once(OK).unwrap();
    assert!(health.starts_with("HTTP/1.1 200"), "{answers}");
    let (nope, loads) = rest.split_once("{\"error\":\"route not found\"}").unwrap();
    assert!(nope.starts_with("HTTP/1.1 404"), "{answers}");
    assert!(loads.starts_with("HTTP/1.1 200") && loads.ends_with("[]"), "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn head_has_the_head_of_get_and_http_1_0_works() {
    let server = TestServer::start().await;
    let answer = server.exchange(b"HEAD /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("content-length: 15") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = server.exchange(b"GET /health HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with(OK), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_first_is_told_to_go_on_or_that_its_body_is_too_long() {
    let server = TestServer::start().await;
    let body = r#"{"worker_id":1}"#;
    let head = |length: usize| {
        format!(
            "POST /workers HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             expect: 100-continue\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        )
    };
    let mut socket = server.connect().await;
    socket.write_all(head(body.len()).as_bytes()).await.unwrap();
    read_until(&mut socket, "HTTP/1.1 100 Continue\r\n\r\n").await;
    socket.write_all(body.as_bytes()).await.unwrap();
    assert!(read_all(socket).await.starts_with("HTTP/1.1 201"));
    let refused = server.exchange(head((8 << 20) + 1).as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    assert!(!refused.contains("100 Continue"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_trickles_in_is_cut_off_and_others_are_served() {
    let config = HttpConfig { header_timeout: Duration::from_millis(200), ..HttpConfig::default() };
    let server = with_http(config).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut socket = server.connect().await;
        socket.write_all(b"GET /health HTTP/1.1\r\nx-a: ").await.unwrap();
        slow.push(socket);
    }
    assert_eq!(server.get("/health").await.0, 200);
    for mut socket in slow {
        socket.write_all(b"a").await.unwrap_or_default();
        assert_eq!(read_all(socket).await, "", "nothing is answered to half a head");
    }
    // A connection is counted after it was closed.
    let closed = "pointsman_http_connections_closed_total{reason=\"head_timeout\"}";
    eventually("all are counted", async || metric(&server, closed).await == 20.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_given_up() {
    let config = HttpConfig { body_timeout: Duration::from_millis(200), ..HttpConfig::default() };
    let server = with_http(config).await;
    let answer = server
        .exchange(b"POST /workers HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
        .await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(server.get("/workers").await, (200, json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let config = HttpConfig { idle_timeout: Duration::from_secs(2), ..HttpConfig::default() };
    let server = with_http(config).await;
    let idle = server.connect().await;
    let mut used = server.connect().await;
    used.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut used, OK).await;
    assert_eq!(read_all(idle).await, "");
    assert_eq!(read_all(used).await, "", "idle after its request");
    let closed = "pointsman_http_connections_closed_total{reason=\"idle_timeout\"}";
    assert!(metric(&server, closed).await >= 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_and_a_closed_half_leave_nothing_behind() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    let body = r#"{"model_name":"m","token_ids":[1,2,3,4]}"#;
    let whole = format!(
        "POST /select_and_reserve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for cut in [1, 40, whole.len() - body.len(), whole.len() - 1] {
        let mut socket = server.connect().await;
        socket.write_all(&whole.as_bytes()[..cut]).await.unwrap();
        socket.shutdown().await.unwrap();
        read_all(socket).await;
    }
    eventually("all connections of this test to end", || async {
        metric(&server, "pointsman_http_connections").await <= 1.0
    })
    .await;
    let (_, loads) = server.get("/loads").await;
    assert_eq!(loads[0]["loads"][0]["active_requests"], json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_told_so() {
    let server = with_http(HttpConfig { max_connections: 2, ..HttpConfig::default() }).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut socket = server.connect().await;
        socket.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        read_until(&mut socket, OK).await;
        held.push(socket);
    }
    let refused = read_all(server.connect().await).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.ends_with("{\"error\":\"connection limit is reached\"}"), "{refused}");
    drop(held);
    eventually("a free place", || async {
        let mut socket = server.connect().await;
        socket.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.is_ok()
            && read_all(socket).await.ends_with(OK)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_http_is_answered_400_or_closed() {
    let server = TestServer::start().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        &[b'A'; 1 << 20],
    ] {
        let mut socket = server.connect().await;
        socket.write_all(bytes).await.unwrap_or_default();
        let answer = read_all(socket).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_is_told_in_json_and_counted() {
    let server = TestServer::start().await;
    let closed = |reason: &str| format!("pointsman_http_connections_closed_total{{reason=\"{reason}\"}}");
    let (malformed, long) = (closed("malformed_head"), closed("head_too_large"));
    let field = format!("GET /health HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(200));
    let path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(70_000));
    let mut expected = [0.0, 0.0];
    for (sent, status, reason) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..], "400 Bad Request", "malformed HTTP request"),
        (b"GET / HTTP/9.9\r\n\r\n", "400 Bad Request", "malformed HTTP request"),
        (b"GET /health HTTP/1.1\r\nbad header\r\n\r\n", "400 Bad Request", "malformed HTTP request"),
        (b"POST /select HTTP/1.1\r\ncontent-length: x\r\n\r\n", "400 Bad Request", "malformed HTTP request"),
        (field.as_bytes(), "431 Request Header Fields Too Large", "request head is too long"),
        (path.as_bytes(), "414 URI Too Long", "request URI is too long"),
    ] {
        let answer = server.exchange(sent).await;
        let body = format!("{{\"error\":\"{reason}\"}}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        let (head, content) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(content, body);
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("content-type: application/json") && head.contains("connection: close"), "{head}");
        expected[usize::from(!status.starts_with("400"))] += 1.0;
    }
    eventually("all are counted", || async {
        [metric(&server, &malformed).await, metric(&server, &long).await] == expected
    })
    .await;
    // After a good request on the same connection.
    let answer = server.exchange(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n").await;
    let (good, bad) = answer.split_once(OK).unwrap();
    assert!(good.starts_with("HTTP/1.1 200") && bad.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(bad.ends_with("{\"error\":\"malformed HTTP request\"}"), "{answer}");
}
