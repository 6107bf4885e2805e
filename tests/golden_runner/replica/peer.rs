//! The peers the runner plays: libzmq XPUB sockets, which see who subscribes to what.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::{super::ports, DEADLINE};

/// A publishing peer.
pub struct Peer {
    socket: zmq::Socket,
    pub endpoint: String,
    topics: BTreeSet<String>,
}

impl Peer {
    /// Binds a socket that never drops what it is given.
    pub fn bind(context: &zmq::Context) -> Self {
        let socket = context.socket(zmq::XPUB).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_sndhwm(0).unwrap();
        let endpoint = format!("tcp://127.0.0.1:{}", ports::free());
        socket.bind(&endpoint).unwrap_or_else(|e| panic!("bind {endpoint}: {e}"));
        Self { socket, endpoint, topics: BTreeSet::new() }
    }

    /// Sends one message.
    pub fn send(&mut self, frames: Vec<Vec<u8>>) {
        self.pump(Duration::ZERO);
        self.socket.send_multipart(frames, 0).unwrap();
    }

    /// Waits until every one of `topics` is subscribed, or none is.
    pub fn await_topics(&mut self, topics: &[String], subscribed: bool) -> Result<(), String> {
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            if topics.iter().all(|t| self.topics.contains(t) == subscribed) {
                return Ok(());
            }
            self.pump(Duration::from_millis(20));
        }
        Err(format!("subscriptions of {} are {:?}", self.endpoint, self.topics))
    }

    fn pump(&mut self, wait: Duration) {
        let mut wait = wait.as_millis() as i64;
        while self.socket.poll(zmq::POLLIN, wait).unwrap() > 0 {
            let message = self.socket.recv_bytes(0).unwrap();
            let topic = String::from_utf8_lossy(message.get(1..).unwrap_or_default()).into_owned();
            match message.first() {
                Some(1) => drop(self.topics.insert(topic)),
                Some(0) => drop(self.topics.remove(&topic)),
                _ => {}
            }
            wait = 0;
        }
    }
}
