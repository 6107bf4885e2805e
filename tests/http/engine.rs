//! An engine's event socket on libzmq, and a selector that follows it: what is published, and what it comes to.

use serde_json::{Value, json};

use super::server::{TestServer, eventually, within};
use pointsman::{http::HttpConfig, selection::SelectionConfig, service::ServiceConfig};

pub const A: [u32; 4] = [100, 101, 102, 103];
pub const B: [u32; 4] = [200, 201, 202, 203];
pub const C: [u32; 4] = [300, 301, 302, 303];
pub const D: [u32; 4] = [400, 401, 402, 403];

/// A publisher as engines have one.
pub struct Engine {
    pub endpoint: String,
    socket: zmq::Socket,
    /// Number of the next batch.
    pub next: u64,
}

impl Engine {
    pub fn bind() -> Self {
        Self::bind_at("tcp://127.0.0.1:*")
    }

    pub fn bind_at(endpoint: &str) -> Self {
        let context = zmq::Context::new();
        let deadline = std::time::Instant::now() + super::server::PATIENCE;
        loop {
            let socket = context.socket(zmq::XPUB).unwrap();
            socket.set_linger(0).unwrap();
            socket.set_sndhwm(0).unwrap();
            socket.set_xpub_verbose(true).unwrap();
            socket.set_ipv6(endpoint.contains('[')).unwrap();
            match socket.bind(endpoint) {
                Ok(()) => return Self { endpoint: socket.get_last_endpoint().unwrap().unwrap(), socket, next: 0 },
                // The one before it may not have let go yet.
                Err(error) => assert!(std::time::Instant::now() < deadline, "bind {endpoint}: {error}"),
            }
            std::thread::yield_now();
        }
    }

    /// Waits for a subscription that was not told of yet.
    pub async fn subscribed(&self) {
        eventually("a subscription", || async { self.socket.recv_bytes(zmq::DONTWAIT).is_ok_and(|f| f[0] == 1) }).await;
    }

    /// Whether somebody subscribed or left since the last look.
    pub fn was_touched(&self) -> bool {
        self.socket.recv_bytes(zmq::DONTWAIT).is_ok()
    }

    pub fn frames(&self, topic: &[u8], number: u64, payload: &[u8]) {
        self.socket.send_multipart([topic, &number.to_be_bytes(), payload], 0).unwrap();
    }

    /// The next batch, whatever its shape.
    pub fn batch(&mut self, batch: &Value) {
        self.frames(b"kv-events", self.next, &pack(batch));
        self.next += 1;
    }

    /// The next batch, of these events.
    pub fn events(&mut self, events: Value) {
        self.batch(&json!([1.5, events]));
    }

    /// The next batch, as the fixture has it.
    pub fn fixture(&mut self, id: &str) {
        let [topic, payload] = fixture(id);
        self.frames(&topic, self.next, &payload);
        self.next += 1;
    }

    /// Dies; its address is free for the next.
    pub fn kill(self) -> String {
        self.endpoint.clone()
    }
}

/// Topic and payload of a fixture.
pub fn fixture(id: &str) -> [Vec<u8>; 2] {
    let lines = include_str!("../fixtures/kv-events.jsonl").lines();
    let case = lines.map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|case| case["id"] == id).unwrap();
    [0, 2].map(|frame| {
        let hex = case["frames_hex"][frame].as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    })
}

fn pack(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::ext::to_value(value).unwrap()).unwrap();
    bytes
}

/// A store of one block or several under `parent`.
pub fn store(hashes: &[u64], parent: Option<u64>, tokens: &[[u32; 4]], medium: &str) -> Value {
    json!({"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens.concat(),
        "block_size": 4, "medium": medium})
}

pub fn removal(hashes: &[u64], medium: &str) -> Value {
    json!({"type": "BlockRemoved", "block_hashes": hashes, "medium": medium})
}

/// Worker `id` of model `m` with a rank for each endpoint, from `start` on.
pub fn worker(id: u64, start: u32, endpoints: &[&str]) -> Value {
    let by_rank: serde_json::Map<String, Value> =
        (start..).zip(endpoints).map(|(rank, endpoint)| (rank.to_string(), json!(endpoint))).collect();
    json!({"worker_id": id, "model_name": "m", "endpoint": format!("http://w{id}:8000"), "block_size": 4,
        "data_parallel_start_rank": start, "data_parallel_size": endpoints.len(), "kv_events_endpoints": by_rank})
}

/// A selector with KV events.
pub async fn selector() -> TestServer {
    let config = ServiceConfig { selection: SelectionConfig::default(), ..ServiceConfig::default() };
    TestServer::with(config, HttpConfig::default()).await
}

pub async fn register(server: &TestServer, worker: Value) {
    let (status, record) = server.call("POST", "/workers", worker).await;
    assert_eq!((status, &record["lifecycle"]), (201, &json!("schedulable")), "{record}");
}

/// One engine, worker 1, that a selector of its own follows.
pub async fn followed() -> (TestServer, Engine) {
    let (server, engine) = (selector().await, Engine::bind());
    register(&server, worker(1, 0, &[&engine.endpoint])).await;
    engine.subscribed().await;
    (server, engine)
}

/// What `GET /listeners` tells of a rank.
pub async fn listener(server: &TestServer, worker: u64, rank: u32) -> Value {
    let (_, all) = server.get("/listeners").await;
    let found = all.as_array().unwrap().iter().find(|l| l["worker_id"] == worker && l["dp_rank"] == rank);
    found.unwrap_or_else(|| panic!("no listener of {worker} {rank} in {all}")).clone()
}

/// Waits until a rank has taken everything that its engine sent.
pub async fn caught_up(server: &TestServer, worker: u64, rank: u32, engine: &Engine) {
    let last = json!(engine.next - 1);
    eventually("everything sent to be taken", || async { listener(server, worker, rank).await["position"] == last })
        .await;
}

/// Blocks of the prompt that a rank holds: on the device, and on the host beyond those.
pub async fn held(server: &TestServer, worker: u64, rank: u32, tokens: &[[u32; 4]]) -> (u64, u64) {
    held_for(server, worker, rank, json!({"model_name": "m", "token_ids": tokens.concat()})).await
}

/// The same for any query.
pub async fn held_for(server: &TestServer, worker: u64, rank: u32, query: Value) -> (u64, u64) {
    let (status, scores) = within(server.call("POST", "/overlap_scores", query)).await;
    assert_eq!(status, 200, "{scores}");
    let row = scores["workers"].as_array().unwrap().iter().find(|r| r["worker_id"] == worker && r["dp_rank"] == rank);
    let number = |field: &str| row.map_or(0, |row| row[field].as_u64().unwrap());
    (number("device_blocks"), number("host_pinned_extension_blocks"))
}
