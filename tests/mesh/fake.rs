//! What is no selector and speaks to one: publishers that say anything, and HTTP servers that behave badly.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use super::program::{PATIENCE, Selector, wait_for};

pub const SLOT: &str = "dynamo.slot-tracker.v1";
pub const SESSION: &str = "dynamo.session-affinity.v1";
pub const MESH: &str = "pointsman.mesh.v1";

/// A publisher of libzmq, as the reference's is.
pub struct Publisher {
    socket: zmq::Socket,
    pub endpoint: String,
    pub router_id: u64,
}

impl Publisher {
    pub fn new() -> Self {
        Self::on("127.0.0.1:*")
    }

    pub fn on(address: &str) -> Self {
        let socket = zmq::Context::new().socket(zmq::XPUB).unwrap();
        socket.set_sndhwm(0).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_xpub_verbose(true).unwrap();
        socket.set_ipv6(address.starts_with("[")).unwrap();
        // A port that was just closed may take a moment.
        wait_for("the address", || socket.bind(&format!("tcp://{address}")).ok());
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        Self { socket, endpoint, router_id: fastrand::u64(1..) }
    }

    pub fn address(&self) -> SocketAddr {
        self.endpoint.strip_prefix("tcp://").unwrap().parse().unwrap()
    }

    /// Waits until somebody subscribes to bookings.
    pub fn wait_for_subscriber(&self) {
        self.socket.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
        loop {
            let message = self.socket.recv_bytes(0).expect("a subscriber in time");
            if message.split_first() == Some((&1, SLOT.as_bytes())) {
                return;
            }
        }
    }

    /// Registers it at `selector` and waits for the subscription.
    pub fn followed_by(self, selector: &Selector) -> Self {
        register(selector, &self.endpoint);
        self.wait_for_subscriber();
        self
    }

    pub fn frames(&self, frames: &[&[u8]]) {
        self.socket.send_multipart(frames, 0).unwrap();
    }

    pub fn say(&self, topic: &str, payload: &[u8]) {
        self.frames(&[topic.as_bytes(), payload]);
    }

    pub fn pack(&self, topic: &str, payload: &Value) {
        self.say(topic, &packed(payload));
    }

    pub fn slot(&self, id: &str, data: Value) {
        self.pack(SLOT, &slot("m", 16, 1, id, data, self.router_id));
    }

    pub fn book(&self, id: &str) {
        self.slot(id, add());
    }

    pub fn free(&self, id: &str) {
        self.slot(id, json!("Free"));
    }

    /// A beacon with these fields beside the mandatory ones.
    pub fn beacon(&self, fields: Value) {
        let mut beacon = json!({"instance_id": self.router_id.to_string(), "sent": now(), "sequence": 0});
        beacon.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.pack(MESH, &json!({"version": 1, "router_id": self.router_id, "beacon": beacon}));
    }

    /// A beacon that claims `bookings` of its own in the partition.
    pub fn claim(&self, bookings: u64, fields: Value) {
        let origin = json!({"router_id": self.router_id, "bookings": bookings, "high": 1, "low": bookings});
        let state = json!({"model_name": "m", "routing_group": "default", "block_size": 16, "origins": [origin]});
        let mut fields = fields;
        fields["partitions"] = json!([state]);
        self.beacon(fields);
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

pub fn packed(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::ext::to_value(value).unwrap()).unwrap();
    bytes
}

/// An event as the reference sends it.
pub fn slot(model: &str, block_size: u32, worker: u64, id: &str, data: Value, router_id: u64) -> Value {
    let worker = json!({"worker_id": worker, "dp_rank": 0});
    let event = json!({"request_id": id, "worker": worker, "data": data, "router_id": router_id, "lora_name": null});
    json!({"model_name": model, "routing_group": "default", "block_size": block_size, "event": event})
}

pub fn add() -> Value {
    let hint = json!({"initial_effective_prefill_tokens": 32, "expected_prefill_duration": null});
    json!({"AddRequest": {"token_sequence": [1, 2], "track_prefill_tokens": true, "expected_output_tokens": null,
                          "prefill_load_hint": hint}})
}

pub fn register(selector: &Selector, endpoint: &str) {
    let (status, answer) = selector.call("POST", "/replica_sync/register_peer", Some(&json!({"endpoint": endpoint})));
    assert!([200, 201].contains(&status), "{status} {answer}");
}

/// The peer's part of the status.
pub fn peer(selector: &Selector, endpoint: &str) -> Value {
    let status = selector.get("/replica_sync/status");
    let peers = status["peers"].as_array().unwrap();
    peers.iter().find(|peer| peer["endpoint"] == endpoint).unwrap_or_else(|| panic!("{endpoint}: {status}")).clone()
}

pub fn wait_for_peer(selector: &Selector, endpoint: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let start = std::time::Instant::now();
    loop {
        last = if start.elapsed() < PATIENCE { peer(selector, endpoint) } else { panic!("{what}: {last:#}") };
        if is_so(&last) {
            return last;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Live bookings of the partition.
pub fn live(selector: &Selector) -> u64 {
    let loads = selector.get("/loads");
    let rows = loads.as_array().unwrap().iter().flat_map(|p| p["loads"].as_array().unwrap().clone());
    rows.map(|row| row["active_requests"].as_u64().unwrap()).sum()
}

pub fn wait_for_live(selector: &Selector, count: u64) {
    wait_for(&format!("{count} bookings"), || (live(selector) == count).then_some(()));
}

/// Resident memory in bytes.
pub fn resident(selector: &Selector) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{}/statm", selector.program.pid())).unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Anything that accepts connections: what becomes of each is a thread of its own.
pub struct Server {
    pub address: SocketAddr,
    accepted: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Server {
    pub fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (ended, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, count, serve) = (ended.clone(), accepted.clone(), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                count.fetch_add(1, Ordering::Relaxed);
                let (stream, serve) = (stream.unwrap(), serve.clone());
                std::thread::spawn(move || serve(stream));
            }
        });
        Self { address, accepted, ended }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        TcpStream::connect(self.address).ok();
    }
}

/// Reads until the other side ends.
pub fn read_on(mut stream: &TcpStream) {
    let mut bytes = [0; 4096];
    while matches!(stream.read(&mut bytes), Ok(1..)) {}
}

/// Reads the head of a request.
pub fn read_request(mut stream: &TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
}

/// A server that passes requests on and holds every answer back for `delay`, and how many pieces it has held.
pub fn slow_way_to(target: SocketAddr, delay: Duration) -> (Server, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let held = count.clone();
    let server = Server::start(move |mut client| {
        let mut server = TcpStream::connect(target).unwrap();
        let (mut requests, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            std::io::copy(&mut requests, &mut to_server).ok();
            to_server.shutdown(std::net::Shutdown::Write).ok();
        });
        let mut bytes = [0; 65_536];
        while let Ok(got @ 1..) = server.read(&mut bytes) {
            held.fetch_add(1, Ordering::Relaxed);
            std::thread::park_timeout(delay);
            if client.write_all(&bytes[..got]).is_err() {
                return;
            }
        }
    });
    (server, count)
}
