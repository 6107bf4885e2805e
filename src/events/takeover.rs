//! What start-up recovery gives to listeners: which of them wait, and where a stream goes on that a peer has followed.
//!
//! Listeners connect at once, and their queues keep what is published meanwhile. Invariants: a seed is taken once, by
//! the listener of the very endpoint it tells of; what nobody takes is forgotten after a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::selection::ingest::Trust;

/// Worker and rank.
pub type StreamKey = (u64, u32);

/// Where the stream of one rank goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Endpoint of the stream that the peer followed; another one voids the seed and the rank's blocks.
    pub endpoint: Option<String>,
    /// Number and payload fingerprint of the newest batch that is in the rank's blocks; absent when the peer told none.
    pub position: Option<(u64, u64)>,
    /// What the stream has taught, as the peer's listener wrote it.
    pub memory: Vec<u8>,
    /// How far the peer believed it.
    pub trust: Trust,
}

/// A stream as a snapshot takes it.
#[derive(Clone, Debug)]
pub struct StreamCut {
    /// Its endpoint.
    pub endpoint: String,
    /// Changes when the blocks of before are forgotten.
    pub incarnation: u64,
    /// Number and payload fingerprint of the newest batch that is in the index.
    pub position: Option<(u64, u64)>,
    /// What it has taught; `None` when that is more than a snapshot carries, and then it has no position either.
    pub memory: Option<Vec<u8>>,
    /// How far it can be believed, its silence apart.
    pub trust: Trust,
}

/// Who waits.
#[derive(Clone, Debug)]
pub(super) enum Gate {
    /// Everybody.
    Closed,
    /// Those that a peer has offered.
    Offered(Arc<BTreeSet<StreamKey>>),
    /// Nobody.
    Open,
}

impl Gate {
    pub(super) fn lets_pass(&self, key: StreamKey) -> bool {
        match self {
            Self::Closed => false,
            Self::Offered(offered) => !offered.contains(&key),
            Self::Open => true,
        }
    }
}

/// The gate, and the seeds behind it.
#[derive(Debug)]
pub(super) struct Takeover {
    gate: watch::Sender<Gate>,
    seeds: Mutex<BTreeMap<StreamKey, Seed>>,
}

impl Takeover {
    pub(super) fn closed() -> Self {
        Self { gate: watch::Sender::new(Gate::Closed), seeds: Mutex::default() }
    }

    pub(super) fn watch(&self) -> watch::Receiver<Gate> {
        self.gate.subscribe()
    }

    /// Only `ranks` wait from now on.
    pub(super) fn offer(&self, ranks: BTreeSet<StreamKey>) {
        self.gate.send_replace(Gate::Offered(Arc::new(ranks)));
    }

    /// Lets everybody pass; who has a seed goes on from it.
    pub(super) fn open(&self, seeds: BTreeMap<StreamKey, Seed>) {
        *self.seeds.lock() = seeds;
        self.gate.send_replace(Gate::Open);
    }

    /// The seed of a rank, once.
    pub(super) fn take(&self, key: StreamKey) -> Option<Seed> {
        self.seeds.lock().remove(&key)
    }

    /// Forgets the seeds that nobody took, and says whose they were.
    pub(super) fn expire(&self) -> Vec<StreamKey> {
        std::mem::take(&mut *self.seeds.lock()).into_keys().collect()
    }
}
