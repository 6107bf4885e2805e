//! One partition: index, load, queue, policy and sessions of a `(model_name, routing_group)` under one roof.
//!
//! The index is read without a lock. Pick and book are one critical section under `state`, which is never held across
//! an await.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    identity::PartitionKey,
    index::{PrefixIndex, approximate::ApproximateIndex},
    load::LoadTracker,
    policy::SelectionPolicy,
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

/// What the partition's lock guards.
pub struct PartitionState {
    /// Ranks and bookings.
    pub load: LoadTracker,
    /// Who chooses.
    pub policy: Box<dyn SelectionPolicy>,
    /// Ties and random hashes.
    pub rng: fastrand::Rng,
}

/// A partition.
pub struct Partition {
    /// Its name.
    pub key: PartitionKey,
    /// Tokens a block, fixed while the partition lives.
    pub block_size: u32,
    /// Blocks are hashed with one look-ahead token.
    pub is_eagle: bool,
    /// Cache knowledge.
    pub index: PartitionIndex,
    /// Load and policy.
    pub state: Mutex<PartitionState>,
}

/// Shared handle.
pub type PartitionRef = Arc<Partition>;
