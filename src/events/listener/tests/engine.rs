//! An engine's sockets on libzmq: a publisher, and a replay socket that answers from a ring.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::Mutex;

/// What the replay socket answers.
#[derive(Debug, Default)]
pub struct Ring {
    /// Batches it keeps.
    pub batches: Vec<(u64, Vec<u8>)>,
    /// Batches it gets right after its first answer.
    pub later: Vec<(u64, Vec<u8>)>,
    /// Put a topic frame in answers, as newer engines do.
    pub topic: Option<Vec<u8>>,
    /// Leave the end marker out.
    pub endless: bool,
    /// Never answer.
    pub silent: bool,
    /// Answer with exactly these messages instead.
    pub fixed: Option<Vec<Vec<Vec<u8>>>>,
    /// Requests so far, without the identity.
    pub requests: Vec<Vec<Vec<u8>>>,
}

impl Ring {
    fn answer(&self, start: u64) -> Vec<Vec<Vec<u8>>> {
        if self.silent {
            return Vec::new();
        }
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let message = |seq: [u8; 8], payload: &[u8]| {
            let mut frames = vec![Vec::new()];
            frames.extend(self.topic.clone());
            frames.extend([seq.to_vec(), payload.to_vec()]);
            frames
        };
        let wanted = self.batches.iter().filter(|(seq, _)| *seq >= start);
        let mut replies: Vec<_> = wanted.map(|(seq, payload)| message(seq.to_be_bytes(), payload)).collect();
        if !self.endless {
            replies.push(message([0xff; 8], &[]));
        }
        replies
    }

    /// First numbers of the requests.
    pub fn starts(&self) -> Vec<u64> {
        let starts = self.requests.iter().map(|frames| {
            assert_eq!((frames.len(), frames[0].len()), (2, 0), "an empty frame and a number");
            u64::from_be_bytes(frames[1][..].try_into().unwrap())
        });
        starts.collect()
    }
}

/// A replay socket with a thread of its own.
pub struct Replay {
    pub endpoint: String,
    pub ring: Arc<Mutex<Ring>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Replay {
    pub fn bind(ring: Ring) -> Self {
        Self::bind_at("tcp://127.0.0.1:*", ring)
    }

    pub fn bind_at(endpoint: &str, ring: Ring) -> Self {
        let socket = bind(zmq::ROUTER, endpoint);
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        let ring = Arc::new(Mutex::new(ring));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopping) = (Arc::clone(&ring), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopping.load(Relaxed) {
                if socket.poll(zmq::POLLIN, 10).unwrap() == 0 {
                    continue;
                }
                let mut frames = socket.recv_multipart(0).unwrap();
                let identity = frames.remove(0);
                let start = frames.get(1).and_then(|frame| frame[..].try_into().ok()).map_or(0, u64::from_be_bytes);
                let replies = {
                    let mut ring = shared.lock();
                    ring.requests.push(frames);
                    let replies = ring.answer(start);
                    let later = std::mem::take(&mut ring.later);
                    ring.batches.extend(later);
                    replies
                };
                for reply in replies {
                    let frames = std::iter::once(identity.clone()).chain(reply);
                    // An asker that is gone gets nothing: ROUTER drops what it cannot route.
                    socket.send_multipart(frames, 0).unwrap();
                }
            }
        });
        Self { endpoint, ring, stop, thread: Some(thread) }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// A publisher.
pub struct Publisher {
    pub endpoint: String,
    socket: zmq::Socket,
}

impl Publisher {
    pub fn bind() -> Self {
        Self::bind_at("tcp://127.0.0.1:*")
    }

    pub fn bind_at(endpoint: &str) -> Self {
        let socket = bind(zmq::XPUB, endpoint);
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        Self { endpoint, socket }
    }

    /// Waits for one subscription.
    pub async fn subscribed(&self) {
        super::until("a subscription arrives", || match self.socket.recv_bytes(zmq::DONTWAIT) {
            Ok(frame) => frame.first() == Some(&1),
            Err(_) => false,
        })
        .await;
    }

    pub fn send(&self, seq: u64, payload: &[u8]) {
        self.frames(&[b"kv", &seq.to_be_bytes(), payload]);
    }

    pub fn frames(&self, frames: &[&[u8]]) {
        self.socket.send_multipart(frames, 0).unwrap();
    }

    /// Dies, as the process of an engine does.
    pub fn kill(self) -> String {
        self.endpoint.clone()
    }
}

/// Binds, also where a socket closed a moment ago.
fn bind(kind: zmq::SocketType, endpoint: &str) -> zmq::Socket {
    let context = zmq::Context::new();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let socket = context.socket(kind).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_sndhwm(0).unwrap();
        if kind == zmq::XPUB {
            // Every subscription is told, also one that another connection has made before.
            socket.set_xpub_verbose(true).unwrap();
        }
        match socket.bind(endpoint) {
            Ok(()) => return socket,
            Err(error) if std::time::Instant::now() > deadline => panic!("bind {endpoint}: {error}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}
