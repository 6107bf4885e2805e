//! Load of one partition: what every rank is doing, and the order of ranks by it.
//!
//! Owns the slots (dense ids of ranks that can be selected), the live bookings, the forest of active prompt prefixes
//! (runs of blocks, shared between bookings), prefill tokens with their optional decay, output blocks, which ranks are
//! busy, and the ordered structures that make a pick sub-linear. Pure: no lock, no clock. Sums are exact in 128 bits and read saturated, so
//! whatever was booked, load returns exactly to zero, and so does memory.

mod bookings;
mod busy;
mod forest;
mod groups;
mod order;
mod owners;
mod prefill;
mod ranks;
mod slices;
mod tracker;
mod weight;
mod work;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

pub use self::{busy::BusyThreshold, tracker::LoadTracker};
pub(in crate::selection) use self::{
    busy::{Touched, TouchedRank},
    forest::Passed,
    order::OrderSpec,
    ranks::Row,
    slices::{Slices, key_of, least_cost},
    work::{Line, Work, WorkForm, WorkSpec},
};

/// Dense id of a rank in a partition, stable while the rank is registered, reused afterwards.
pub type Slot = u32;

/// One booking attempt; unique in the process for all time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BookingId(pub u64);

/// What a pick reads about a worker. Shared by its ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerFacts {
    /// Worker.
    pub worker_id: u64,
    /// Its ranks.
    pub ranks: std::ops::Range<u32>,
    /// Labels for constraints.
    pub taints: BTreeSet<String>,
    /// Most tokens a batch.
    pub max_num_batched_tokens: Option<u64>,
    /// KV capacity in blocks.
    pub total_kv_blocks: Option<u64>,
    /// Where requests go.
    pub endpoint: Arc<str>,
    /// Takes no new booking.
    pub draining: bool,
    /// Type for KV hints; empty = none.
    pub hint_worker_type: Arc<str>,
    /// Whether it may be a hint source at all (`kv_event_source_mode` is not `state_agent_v2`).
    pub hint_source: bool,
    /// Control endpoint by rank for KV hints.
    pub hint_control_endpoints: BTreeMap<u32, String>,
}

/// A rank's load as readers see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Prefill tokens in progress, decayed to now.
    pub prefill_tokens: u64,
    /// Distinct live blocks, weighted and rounded half away from zero.
    pub blocks: u64,
    /// Live bookings.
    pub requests: u64,
}

/// What one booking adds.
#[derive(Clone, Debug)]
pub struct NewBooking {
    /// Attempt.
    pub id: BookingId,
    /// The rank.
    pub slot: Slot,
    /// Tracking hashes of the prompt's complete blocks.
    pub sequence: Arc<[u64]>,
    /// Prefill tokens to count; 0 = none (untracked).
    pub prefill_tokens: u64,
    /// Modelled duration of the prefill, for hosts with an estimator.
    pub prefill_duration: Option<Duration>,
    /// Expected length of the output, in tokens.
    pub expected_output_tokens: Option<u32>,
}

/// Settings of the tracker.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Tokens a block.
    pub block_size: u32,
    /// Age at which a booking is dropped; `None` = never.
    pub expiry: Option<Duration>,
}
