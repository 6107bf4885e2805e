//! Clients that take a long answer by the spoonful.

use std::time::Duration;

use pointsman::{
    http::HttpConfig,
    mesh::{BoundMesh, MeshConfig},
    service::SelectionServiceBuilder,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::server::{TestServer, eventually, metric, service_config, within};

/// Bookings, and hashes of each: far more than the system's buffers hold.
const BOOKINGS: u64 = 48;
const HASHES: u64 = 100_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_by_the_spoonful_makes_room_for_others() {
    let mesh = MeshConfig { bind: "tcp://127.0.0.1:*".to_owned(), ..MeshConfig::default() };
    let mesh = BoundMesh::bind(mesh).await.unwrap();
    let service = SelectionServiceBuilder::new(service_config()).mesh(mesh).build().unwrap();
    let config = HttpConfig { reader_grace: Duration::from_secs(2), slowest_reader: 4 << 20, ..HttpConfig::default() };
    let server = TestServer::over(service, config).await;
    within(server.service.recovered()).await;
    server.add_worker(1).await;
    for booking in 0..BOOKINGS {
        let hashes: Vec<u64> = (0..HASHES).map(|at| (1 << 40) + booking * HASHES + at).collect();
        let body = json!({"selection_id": booking.to_string(), "model_name": "m", "worker_id": 1, "dp_rank": 0,
            "sequence_hashes": hashes, "isl_tokens": HASHES * 4});
        let (status, answer) = server.call("POST", "/reservations", body).await;
        assert_eq!(status, 201, "{answer}");
    }
    let ask = b"GET /replica_sync/state?model_name=m&routing_group=default HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut socket = server.connect().await;
        socket.write_all(ask).await.unwrap();
        slow.push(tokio::spawn(async move {
            let (mut spoon, mut taken) = ([0; 1024], Vec::new());
            // A few kilobytes a second, until the answer is over one way or the other.
            while let Ok(count) = socket.read(&mut spoon).await {
                if count == 0 {
                    break;
                }
                taken.extend_from_slice(&spoon[..count]);
                if taken.len() < 1 << 20 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            taken
        }));
    }
    let cut = "pointsman_http_slow_readers_total{answer=\"state\"}";
    eventually("all are cut off", || async {
        let text = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
        text.lines().any(|line| line == format!("{cut} 8"))
    })
    .await;
    // Their places are free, and who reads gets all of it.
    let answer = server.request("GET", "/replica_sync/state?model_name=m&routing_group=default").send().await.unwrap();
    let whole = within(answer.bytes()).await.unwrap();
    assert!(whole.len() as u64 > BOOKINGS * HASHES * 8, "{} bytes", whole.len());
    assert_eq!(metric(&server, cut).await, 8.0);
    for client in slow {
        client.abort();
    }
}
