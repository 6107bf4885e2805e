//! Engines' sockets as libzmq makes them: verbose XPUB publishers and ROUTER replay servers.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

/// An XPUB socket that reports every subscription.
pub struct Publisher {
    context: zmq::Context,
    socket: zmq::Socket,
    pub endpoint: String,
}

impl Publisher {
    pub fn bind(context: &zmq::Context, port: u16) -> Self {
        let endpoint = format!("tcp://127.0.0.1:{port}");
        Self { context: context.clone(), socket: Self::open(context, &endpoint), endpoint }
    }

    fn open(context: &zmq::Context, endpoint: &str) -> zmq::Socket {
        let socket = context.socket(zmq::XPUB).unwrap();
        socket.set_xpub_verbose(true).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_sndhwm(0).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while let Err(error) = socket.bind(endpoint) {
            assert!(Instant::now() < end, "bind {endpoint}: {error}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
        socket
    }

    /// Waits for `count` subscriptions, or their end.
    pub fn await_subscriptions(&self, count: u64, subscribe: bool, deadline: Duration) -> Result<(), String> {
        let end = Instant::now() + deadline;
        let mut seen = 0;
        while seen < count {
            let left = end.saturating_duration_since(Instant::now());
            if self.socket.poll(zmq::POLLIN, left.as_millis() as i64).unwrap() == 0 {
                return Err(format!("no (un)subscription arrived on {}", self.endpoint));
            }
            let frame = self.socket.recv_bytes(0).unwrap();
            seen += u64::from(frame.first() == Some(&u8::from(subscribe)));
        }
        Ok(())
    }

    pub fn send(&self, frames: Vec<Vec<u8>>) {
        self.socket.send_multipart(frames, 0).unwrap();
    }

    /// Closes the socket and binds a new one at the same address.
    pub fn restart(&mut self) {
        let unused = self.context.socket(zmq::PAIR).unwrap();
        drop(std::mem::replace(&mut self.socket, unused));
        self.socket = Self::open(&self.context, &self.endpoint);
    }
}

/// A ROUTER that answers replay requests from a fixed buffer.
pub struct Replay {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<Value>>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Replay {
    pub fn bind(context: &zmq::Context, port: u16, spec: &Value) -> Self {
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let socket = context.socket(zmq::ROUTER).unwrap();
        socket.set_linger(0).unwrap();
        socket.bind(&endpoint).unwrap();
        let (requests, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, stopped, spec) = (requests.clone(), stop.clone(), spec.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if socket.poll(zmq::POLLIN, 20).unwrap() > 0 {
                    Self::answer(&socket, &spec, &log);
                }
            }
        });
        Self { endpoint, requests, stop, thread: Some(thread) }
    }

    fn answer(socket: &zmq::Socket, spec: &Value, log: &Mutex<Vec<Value>>) {
        let frames = socket.recv_multipart(0).unwrap();
        let nth = {
            let mut log = log.lock().unwrap();
            log.push(frames[1..].iter().map(|f| STANDARD.encode(f)).collect::<Vec<_>>().into());
            log.len() as u64
        };
        if frames.len() != 3 || frames[2].len() != 8 {
            return;
        }
        let start = u64::from_be_bytes(frames[2].as_slice().try_into().unwrap());
        let topic = spec["topic_b64"].as_str().map(|t| STANDARD.decode(t).unwrap());
        let send = |seq: u64, payload: Vec<u8>| {
            let mut message = vec![frames[0].clone(), Vec::new()];
            message.extend(topic.clone());
            message.push(seq.to_be_bytes().to_vec());
            message.push(payload);
            socket.send_multipart(message, 0).ok();
        };
        for entry in spec["buffer"].as_array().into_iter().flatten() {
            let seq = entry["seq"].as_u64().unwrap();
            if seq >= start && entry["from_request"].as_u64().unwrap_or(1) <= nth {
                send(seq, STANDARD.decode(entry["payload_b64"].as_str().unwrap()).unwrap());
            }
        }
        let ends = match &spec["end"] {
            Value::Bool(end) => u64::from(*end),
            other => other.as_u64().unwrap_or(1),
        };
        for _ in 0..ends {
            send(u64::MAX, Vec::new());
        }
    }

    /// Frames of every request so far, base64, identity removed.
    pub fn requests(&self) -> Value {
        self.requests.lock().unwrap().clone().into()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
