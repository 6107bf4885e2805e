//! Load of one partition: what every rank is doing, and the order of ranks by it.
//!
//! Owns the slots (dense ids of ranks that can be selected), the live bookings, the forest of active prompt prefixes
//! (runs of blocks, shared between bookings of a rank), prefill tokens with their optional decay, output blocks, and
//! the ordered structures that make a pick sub-linear. Pure: no lock, no clock, saturating arithmetic.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{identity::WorkerWithDpRank, moment::Moment};

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
    pub hint_control_endpoints: std::collections::BTreeMap<u32, String>,
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

/// Load of all ranks of a partition.
#[derive(Debug)]
pub struct LoadTracker {}

impl LoadTracker {
    /// No rank, no load.
    pub fn new(config: LoadConfig) -> Self {
        let _ = config;
        todo!()
    }

    /// Registers a rank with no load, or replaces the facts of a registered one and keeps its load.
    pub fn upsert_rank(&mut self, rank: WorkerWithDpRank, facts: Arc<WorkerFacts>) -> Slot {
        let _ = (rank, facts);
        todo!()
    }

    /// Removes a rank; returns its bookings, which are gone.
    pub fn remove_rank(&mut self, rank: WorkerWithDpRank) -> Vec<BookingId> {
        let _ = rank;
        todo!()
    }

    /// The slot of a registered rank.
    pub fn slot(&self, rank: WorkerWithDpRank) -> Option<Slot> {
        let _ = rank;
        todo!()
    }

    /// The rank of a slot in use.
    pub fn rank(&self, slot: Slot) -> Option<WorkerWithDpRank> {
        let _ = slot;
        todo!()
    }

    /// The facts of a slot in use.
    pub fn facts(&self, slot: Slot) -> Option<&Arc<WorkerFacts>> {
        let _ = slot;
        todo!()
    }

    /// The facts of a worker with at least one slot in use.
    pub fn worker(&self, worker_id: u64) -> Option<&Arc<WorkerFacts>> {
        let _ = worker_id;
        todo!()
    }

    /// Slots in use, sorted by (worker, rank).
    pub fn slots(&self) -> Vec<Slot> {
        todo!()
    }

    /// Adds a booking. Ids are unique by construction; the slot must be in use (`false` otherwise, nothing booked).
    /// May drop expired bookings of the rank (see [`Self::expire`]); they are returned.
    pub fn book(&mut self, booking: NewBooking, now: Moment) -> (bool, Vec<BookingId>) {
        let _ = (booking, now);
        todo!()
    }

    /// The prefill of a booking is done; idempotent. `false` when the booking is gone.
    pub fn prefill_complete(&mut self, id: BookingId, now: Moment) -> bool {
        let _ = (id, now);
        todo!()
    }

    /// Ends a booking. `false` when it is gone.
    pub fn free(&mut self, id: BookingId, now: Moment) -> bool {
        let _ = (id, now);
        todo!()
    }

    /// Adds one output block and, given a fraction in `[0, 1]`, sets it as the weight of the booking's output blocks and
    /// of its exclusive prompt tail. `false` when the booking is gone.
    pub fn output_block(&mut self, id: BookingId, decay_fraction: Option<f64>, now: Moment) -> bool {
        let _ = (id, decay_fraction, now);
        todo!()
    }

    /// Whether a booking lives.
    pub fn is_live(&self, id: BookingId) -> bool {
        let _ = id;
        todo!()
    }

    /// Number of live bookings of the partition.
    pub fn live(&self) -> usize {
        todo!()
    }

    /// Live bookings of one rank.
    pub fn bookings_of(&self, rank: WorkerWithDpRank) -> usize {
        let _ = rank;
        todo!()
    }

    /// Drops bookings older than the expiry; call it every 60 s. Returns them.
    pub fn expire(&mut self, now: Moment) -> Vec<BookingId> {
        let _ = now;
        todo!()
    }

    /// Current load of a slot.
    pub fn load(&self, slot: Slot, now: Moment) -> RankLoad {
        let _ = (slot, now);
        todo!()
    }

    /// Leading blocks of `sequence` that live prompts on the slot hold.
    pub fn shared_blocks(&self, slot: Slot, sequence: &[u64]) -> u64 {
        let _ = (slot, sequence);
        todo!()
    }
}
