//! One selector of the fleet, and everything it knows as comparable values.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    link::Link,
    program::{Selector, reference::ports, wait_for},
};

/// What a replica knows of the bookings and sessions of a partition, and what its index holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// Id to worker, rank and whether its prefill is done.
    pub bookings: BTreeMap<String, (u64, u64, bool)>,
    /// Session to worker and rank.
    pub sessions: BTreeMap<String, (u64, u64)>,
    /// Load of each rank: prefill tokens and bookings.
    pub load: BTreeMap<(u64, u64), (u64, u64)>,
    /// Worker, rank and block hash.
    pub blocks: BTreeSet<(u64, u64, u64)>,
}

pub struct Replica {
    selector: Option<Selector>,
    pub http_port: u16,
    pub sync_port: u16,
    /// Links to the publishers of the others, by their number.
    pub links: BTreeMap<usize, Link>,
    pub is_stopped: bool,
    /// Seconds after which it ends bookings, other than the default.
    pub expiry: Option<u64>,
}

impl Replica {
    pub fn new() -> Self {
        let (http_port, sync_port) = (ports::free(), ports::free());
        Self { selector: None, http_port, sync_port, links: BTreeMap::new(), is_stopped: false, expiry: None }
    }

    pub fn publisher(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.sync_port))
    }

    /// Starts its process, which follows the others from its first moment.
    pub fn start(&mut self, directory: &Path) {
        let peers: Vec<String> = self.links.values().map(Link::endpoint).collect();
        let (sync, peers) = (self.sync_port.to_string(), peers.join(","));
        let url = format!("http://127.0.0.1:{}", self.http_port);
        let mut flags = vec!["--replica-sync-port", &sync, "--replica-sync-host", "127.0.0.1"];
        flags.extend(["--advertise-url", &url, "--session-affinity-ttl-secs", "600"]);
        flags.extend(["--ready-requires", "index,peers"]);
        if !self.links.is_empty() {
            flags.extend(["--replica-sync-peers", &peers]);
        }
        let expiry = self.expiry.map(|seconds| seconds.to_string());
        let variables: Vec<(&str, &str)> =
            expiry.iter().map(|seconds| ("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS", seconds.as_str())).collect();
        self.selector = Some(Selector::start_on(self.http_port, directory, &flags, &variables));
        self.is_stopped = false;
    }

    pub fn wait_until_ready(&self) {
        let ready = || self.selector().send("GET", "/readyz", None).ok().filter(|answer| answer.status == 200);
        wait_for("a replica to be ready", ready);
    }

    pub fn is_running(&self) -> bool {
        self.selector.is_some() && !self.is_stopped
    }

    pub fn selector(&self) -> &Selector {
        self.selector.as_ref().expect("it was started")
    }

    /// Ends its process without a word.
    pub fn kill(&mut self) {
        self.selector = None;
    }

    /// Asks its process to end, and waits for that.
    pub fn terminate(&mut self) {
        let mut selector = self.selector.take().expect("it was started");
        selector.program.signal(Signal::SIGTERM);
        assert!(selector.program.exit().success());
    }

    pub fn stop(&mut self) {
        self.selector().program.signal(Signal::SIGSTOP);
        self.is_stopped = true;
    }

    pub fn go_on(&mut self) {
        if self.is_stopped {
            self.selector().program.signal(Signal::SIGCONT);
            self.is_stopped = false;
        }
    }

    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.selector().call(method, path, body)
    }

    pub fn status(&self) -> Value {
        self.selector().get("/replica_sync/status")
    }

    /// The same without bookings that may be about to expire. What ranks carry is left out where some are still there.
    pub fn knowledge_without(&self, model: &str, aged: &BTreeSet<String>) -> Knowledge {
        let mut knowledge = self.knowledge(model);
        let all = knowledge.bookings.len();
        knowledge.bookings.retain(|id, _| !aged.contains(id));
        if knowledge.bookings.len() < all {
            knowledge.load.clear();
        }
        knowledge
    }

    /// Everything it knows of a partition.
    pub fn knowledge(&self, model: &str) -> Knowledge {
        let path = format!("/replica_sync/state?model_name={model}&routing_group=default");
        let answer = self.selector().send("GET", &path, None).unwrap();
        assert_eq!(answer.status, 200);
        let mut knowledge = Knowledge::default();
        let mut rest = &answer.body[..];
        let mut ended = false;
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (frame, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            rest = after;
            let frame: Value = rmpv::ext::from_value(rmpv::decode::read_value(&mut &frame[..]).unwrap()).unwrap();
            for booking in frame["bookings"].as_array().into_iter().flatten() {
                let place = (number(&booking["worker_id"]), number(&booking["dp_rank"]));
                let done = booking["prefill_completed"].as_bool().unwrap();
                knowledge.bookings.insert(text(&booking["id"]), (place.0, place.1, done));
            }
            for session in frame["sessions"].as_array().into_iter().flatten() {
                let place = (number(&session["worker_id"]), number(&session["dp_rank"]));
                knowledge.sessions.insert(text(&session["id"]), place);
            }
            ended |= frame["end"] == json!(true);
        }
        assert!(ended, "the state has an end");
        for partition in self.selector().get("/loads").as_array().unwrap() {
            for rank in partition["loads"].as_array().unwrap() {
                let place = (number(&rank["worker_id"]), number(&rank["dp_rank"]));
                let load = (number(&rank["potential_prefill_tokens"]), number(&rank["active_requests"]));
                knowledge.load.insert(place, load);
            }
        }
        let dump = self.selector().get("/dump");
        for event in dump.as_object().unwrap().values().flat_map(|p| p["events"].as_array().unwrap()) {
            let (worker, event) = (number(&event["worker_id"]), &event["event"]);
            for block in event["data"]["stored"]["blocks"].as_array().into_iter().flatten() {
                knowledge.blocks.insert((worker, number(&event["dp_rank"]), number(&block["tokens_hash"])));
            }
        }
        knowledge
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}
