//! One partition: index, load, queue, policy and sessions of a `(model_name, routing_group)` under one roof.
//!
//! The index is read without a lock. Pick and book are one critical section inside [`Partition::with_state`], which is
//! never held across an await. A panic inside it fails that call only; the state is rebuilt before the next one.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::{
    error::SelectionError,
    identity::PartitionKey,
    index::{PrefixIndex, approximate::ApproximateIndex},
    load::{LoadTracker, WorkerFacts},
    policy::{PickRequest, Picked, SelectionPolicy},
    queue::Admission,
    sessions::SessionTable,
};

/// Where a partition's cache knowledge comes from.
#[derive(Debug)]
pub enum PartitionIndex {
    /// Engines' events, with an optional overlay of own decisions.
    Events {
        /// Confirmed blocks.
        confirmed: PrefixIndex,
        /// Own decisions (predict-on-route).
        predicted: Option<ApproximateIndex>,
    },
    /// Own decisions only.
    Approximate(ApproximateIndex),
}

impl PartitionIndex {
    /// The index that lookups, dumps and hints start from.
    pub fn primary(&self) -> &PrefixIndex {
        match self {
            Self::Events { confirmed, .. } => confirmed,
            Self::Approximate(approximate) => approximate.index(),
        }
    }
}

/// A worker that takes, or as a draining one took, bookings of the partition.
#[derive(Clone, Debug)]
pub struct PartitionWorker {
    /// What a pick reads about it.
    pub facts: Arc<WorkerFacts>,
    /// Its first global rank.
    pub start_rank: u32,
    /// How many ranks it has.
    pub ranks: u32,
}

/// What the partition's lock guards.
pub struct PartitionState {
    /// Ranks and bookings.
    pub load: LoadTracker,
    /// Who chooses; call it through [`Self::pick`].
    pub policy: Box<dyn SelectionPolicy>,
    /// Ties and random hashes.
    pub rng: fastrand::Rng,
    /// Registered workers by id, draining ones included. Their ranks are exactly those of `load`.
    pub workers: HashMap<u64, PartitionWorker>,
}

impl PartitionState {
    /// Asks the policy. A panic inside it is an `Internal` error and costs the policy instance, not the bookings.
    ///
    /// # Errors
    /// What the policy says.
    pub fn pick(&mut self, request: &PickRequest<'_>) -> Result<Picked, SelectionError> {
        self.policy.pick(request, &mut self.load, &mut self.rng)
    }
}

/// A partition.
pub struct Partition {
    /// Its name.
    pub key: PartitionKey,
    /// Tokens a block, fixed while the partition lives.
    pub block_size: u32,
    /// Cache knowledge.
    pub index: PartitionIndex,
    /// Session affinity.
    pub sessions: SessionTable,
    /// What non-advisory selections pass before their pick.
    pub admission: Admission,
    is_eagle: bool,
    schedulable: AtomicU64,
    state: Mutex<PartitionState>,
}

/// Shared handle.
pub type PartitionRef = Arc<Partition>;

impl Partition {
    /// Blocks are hashed with one look-ahead token.
    pub fn is_eagle(&self) -> bool {
        self.is_eagle
    }

    /// Workers that are schedulable (draining ones are not).
    pub fn schedulable_workers(&self) -> u64 {
        self.schedulable.load(Ordering::Relaxed)
    }

    /// Runs `f` on the state, in mutual exclusion.
    ///
    /// # Errors
    /// `Internal` when `f` panics; the state is rebuilt from the registered workers then.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut PartitionState) -> R) -> Result<R, SelectionError> {
        Ok(f(&mut self.state.lock()))
    }
}
