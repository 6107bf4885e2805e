//! Load of one partition: what every rank is doing, and the order of ranks by it.
//!
//! Owns the slots (dense ids of ranks that can be selected), the live bookings, the forest of active prompt prefixes
//! (runs of blocks, shared between bookings of a rank), prefill tokens with their optional decay, output blocks, and
//! the ordered structures that make a pick sub-linear. Pure: no lock, no clock, saturating arithmetic.

mod bookings;
mod forest;
mod owners;
mod prefill;
mod slab;
mod weight;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;

use self::{
    bookings::{Admitted, Booking},
    forest::{Change, Forest, Passed},
    prefill::Prefills,
    slab::Slab,
};
use super::{identity::WorkerWithDpRank, moment::Moment};

/// A rank looks for expired bookings when it gets a new one, but not more often than this.
const EXPIRY_CHECK_PERIOD: Duration = Duration::from_secs(30);

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

/// Load of all ranks of a partition.
#[derive(Debug)]
pub struct LoadTracker {
    config: LoadConfig,
    ranks: Slab<Rank>,
    slots: BTreeMap<WorkerWithDpRank, Slot>,
    bookings: Slab<Booking>,
    ids: HashMap<BookingId, u32>,
    forest: Forest,
}

/// One registered rank.
#[derive(Debug)]
struct Rank {
    id: WorkerWithDpRank,
    facts: Arc<WorkerFacts>,
    requests: u64,
    /// Distinct prompt blocks held by its bookings, each counted fully.
    prompt_blocks: u64,
    /// What weights take off those.
    missing: u128,
    /// Weight of all output blocks.
    outputs: u128,
    prefills: Prefills,
    admitted: Admitted,
    expiry_checked: Option<Moment>,
    /// The load as of the last change; prefill tokens are current unless they decay.
    load: RankLoad,
}

impl Rank {
    fn apply(&mut self, bookings: &Slab<Booking>, change: Change) {
        match change {
            Change::Held(blocks) => self.prompt_blocks += u64::from(blocks),
            Change::Left(blocks) => self.prompt_blocks -= u64::from(blocks),
            Change::Applies { booking, start, end } => self.missing += bookings[booking].missing.sum(start, end),
            Change::Ceases { booking, start, end } => self.missing -= bookings[booking].missing.sum(start, end),
        }
    }

    fn blocks(&self) -> u64 {
        if self.missing == 0 && self.outputs == 0 {
            return self.prompt_blocks;
        }
        weight::to_blocks(u128::from(self.prompt_blocks) * weight::ONE - self.missing + self.outputs)
    }
}

impl LoadTracker {
    /// No rank, no load.
    pub fn new(config: LoadConfig) -> Self {
        Self {
            config,
            ranks: Slab::new(),
            slots: BTreeMap::new(),
            bookings: Slab::new(),
            ids: HashMap::new(),
            forest: Forest::new(),
        }
    }

    /// Tokens a block.
    pub fn block_size(&self) -> u32 {
        self.config.block_size
    }

    /// Registers a rank with no load, or replaces the facts of a registered one and keeps its load.
    pub fn upsert_rank(&mut self, rank: WorkerWithDpRank, facts: Arc<WorkerFacts>) -> Slot {
        if let Some(&slot) = self.slots.get(&rank) {
            self.ranks[slot].facts = facts;
            return slot;
        }
        let slot = self.ranks.insert(Rank {
            id: rank,
            facts,
            requests: 0,
            prompt_blocks: 0,
            missing: 0,
            outputs: 0,
            prefills: Prefills::new(),
            admitted: Admitted::new(),
            expiry_checked: None,
            load: RankLoad::default(),
        });
        self.slots.insert(rank, slot);
        slot
    }

    /// Removes a rank; returns its bookings, which are gone.
    pub fn remove_rank(&mut self, rank: WorkerWithDpRank) -> Vec<BookingId> {
        let Some(slot) = self.slots.remove(&rank) else { return Vec::new() };
        let mut gone = Vec::new();
        while let Some(booking) = self.ranks[slot].admitted.oldest() {
            gone.push(self.bookings[booking].id);
            self.drop_booking(booking, Moment::default());
        }
        self.ranks.remove(slot);
        gone
    }

    /// The slot of a registered rank.
    pub fn slot(&self, rank: WorkerWithDpRank) -> Option<Slot> {
        self.slots.get(&rank).copied()
    }

    /// The rank of a slot in use.
    pub fn rank(&self, slot: Slot) -> Option<WorkerWithDpRank> {
        Some(self.ranks.get(slot)?.id)
    }

    /// The facts of a slot in use.
    pub fn facts(&self, slot: Slot) -> Option<&Arc<WorkerFacts>> {
        Some(&self.ranks.get(slot)?.facts)
    }

    /// The facts of a worker with at least one slot in use.
    pub fn worker(&self, worker_id: u64) -> Option<&Arc<WorkerFacts>> {
        self.facts(self.slots_of(worker_id).next()?)
    }

    /// Slots in use, sorted by (worker, rank).
    pub fn slots(&self) -> Vec<Slot> {
        self.slots.values().copied().collect()
    }

    /// Slots of one worker, sorted by rank.
    pub fn slots_of(&self, worker_id: u64) -> impl Iterator<Item = Slot> + '_ {
        let all = WorkerWithDpRank::new(worker_id, 0)..=WorkerWithDpRank::new(worker_id, u32::MAX);
        self.slots.range(all).map(|(_, &slot)| slot)
    }

    /// Number of slots in use.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds a booking. Ids are unique by construction; the slot must be in use (`false` otherwise, nothing booked).
    /// May drop expired bookings of the rank (see [`Self::expire`]); they are returned.
    pub fn book(&mut self, booking: NewBooking, now: Moment) -> (bool, Vec<BookingId>) {
        let slot = booking.slot;
        if self.ranks.get(slot).is_none() || self.ids.contains_key(&booking.id) {
            return (false, Vec::new());
        }
        let Ok(blocks) = u32::try_from(booking.sequence.len()) else { return (false, Vec::new()) };
        let expired = self.expire_at_booking(slot, now);
        let mut entry = Booking::new(booking.id, slot, now, blocks);
        entry.expected_output_tokens = booking.expected_output_tokens;
        let key = self.bookings.insert(entry);
        self.ids.insert(booking.id, key);
        let (rank, bookings) = (&mut self.ranks[slot], &mut self.bookings);
        let last_run = self.forest.book(slot, &booking.sequence, |change| rank.apply(bookings, change));
        bookings[key].last_run = last_run;
        rank.admitted.push(bookings, key);
        rank.requests += 1;
        if booking.prefill_tokens > 0 {
            rank.prefills.push(bookings, key, booking.prefill_tokens, booking.prefill_duration, now);
        }
        self.changed(slot, now);
        (true, expired)
    }

    /// The prefill of a booking is done; idempotent. `false` when the booking is gone.
    pub fn prefill_complete(&mut self, id: BookingId, now: Moment) -> bool {
        let Some(&key) = self.ids.get(&id) else { return false };
        let slot = self.bookings[key].slot;
        if self.ranks[slot].prefills.remove(&mut self.bookings, key, now) {
            self.changed(slot, now);
        }
        true
    }

    /// Ends a booking. `false` when it is gone.
    pub fn free(&mut self, id: BookingId, now: Moment) -> bool {
        let Some(&key) = self.ids.get(&id) else { return false };
        self.drop_booking(key, now);
        true
    }

    /// Adds one output block and, given a fraction in `[0, 1]`, sets it as the weight of the booking's output blocks and
    /// of its exclusive prompt tail. `false` when the booking is gone.
    ///
    /// The exclusive tail is what no other live booking of the rank holds now, from the end of the prompt upwards. The
    /// weight is the booking's own: while another one holds the same blocks they count fully. A fraction outside the
    /// range is clamped.
    pub fn output_block(&mut self, id: BookingId, decay_fraction: Option<f64>, now: Moment) -> bool {
        let Some(&key) = self.ids.get(&id) else { return false };
        let slot = self.bookings[key].slot;
        let (rank, bookings) = (&mut self.ranks[slot], &mut self.bookings);
        let entry = &mut bookings[key];
        let before = entry.output_weight;
        entry.outputs += 1;
        match decay_fraction.map(weight::of_fraction) {
            None => entry.output_weight += weight::ONE,
            Some(weight) => {
                entry.output_weight = weight * u128::from(entry.outputs);
                if let Some(last) = entry.last_run {
                    let len = entry.blocks;
                    let start = self.forest.weigh_tail(slot, key, last, len, |change| rank.apply(bookings, change));
                    if start < len {
                        bookings[key].missing.set_from(start, weight::ONE - weight);
                        rank.apply(bookings, Change::Applies { booking: key, start, end: len });
                    }
                }
            }
        }
        rank.outputs = rank.outputs - before + bookings[key].output_weight;
        self.changed(slot, now);
        true
    }

    /// Whether a booking lives.
    pub fn is_live(&self, id: BookingId) -> bool {
        self.ids.contains_key(&id)
    }

    /// Number of live bookings of the partition.
    pub fn live(&self) -> usize {
        self.bookings.len()
    }

    /// The slot and the expected output of a live booking, in tokens.
    pub fn booking(&self, id: BookingId) -> Option<(Slot, Option<u32>)> {
        let entry = &self.bookings[*self.ids.get(&id)?];
        Some((entry.slot, entry.expected_output_tokens))
    }

    /// Live bookings of one rank.
    pub fn bookings_of(&self, rank: WorkerWithDpRank) -> usize {
        self.slot(rank).map_or(0, |slot| usize::try_from(self.ranks[slot].requests).unwrap_or(usize::MAX))
    }

    /// Drops bookings older than the expiry; call it every 60 s. Returns them.
    pub fn expire(&mut self, now: Moment) -> Vec<BookingId> {
        let mut expired = Vec::new();
        if self.config.expiry.is_some() {
            for slot in self.slots() {
                self.expire_rank(slot, now, &mut expired);
            }
        }
        expired
    }

    /// Current load of a slot.
    pub fn load(&self, slot: Slot, now: Moment) -> RankLoad {
        let Some(rank) = self.ranks.get(slot) else { return RankLoad::default() };
        if rank.prefills.decays(&self.bookings) {
            return RankLoad { prefill_tokens: rank.prefills.tokens(&self.bookings, now), ..rank.load };
        }
        rank.load
    }

    /// Leading blocks of `sequence` that live prompts on the slot hold.
    pub fn shared_blocks(&self, slot: Slot, sequence: &[u64]) -> u64 {
        u64::from(self.forest.shared(slot, sequence))
    }

    /// Runs in the forest of active prompts, for metrics.
    pub fn active_runs(&self) -> usize {
        self.forest.runs()
    }

    /// Visits every slot that holds leading blocks of `sequence`, with their number: each slot once, deepest first.
    pub fn for_each_sharing(&self, sequence: &[u64], mut visit: impl FnMut(Slot, u64)) {
        let mut path: Vec<Passed> = Vec::new();
        self.forest.walk(sequence, &mut path);
        let mut seen = vec![false; self.ranks.bound()];
        for passed in path.iter().rev() {
            self.forest.owners(passed.run).for_each(|slot| {
                if !std::mem::replace(&mut seen[slot as usize], true) {
                    visit(slot, u64::from(passed.depth));
                }
            });
        }
    }

    fn expire_at_booking(&mut self, slot: Slot, now: Moment) -> Vec<BookingId> {
        let mut expired = Vec::new();
        if self.config.expiry.is_some() {
            let rank = &mut self.ranks[slot];
            match rank.expiry_checked {
                Some(last) if now.since(last) < EXPIRY_CHECK_PERIOD => {}
                None => rank.expiry_checked = Some(now),
                Some(_) => self.expire_rank(slot, now, &mut expired),
            }
        }
        expired
    }

    fn expire_rank(&mut self, slot: Slot, now: Moment, expired: &mut Vec<BookingId>) {
        let Some(expiry) = self.config.expiry else { return };
        self.ranks[slot].expiry_checked = Some(now);
        while let Some(oldest) = self.ranks[slot].admitted.oldest() {
            let entry = &self.bookings[oldest];
            if now.since(entry.admitted) <= expiry {
                break;
            }
            expired.push(entry.id);
            self.drop_booking(oldest, now);
        }
    }

    fn drop_booking(&mut self, key: u32, now: Moment) {
        let (rank, bookings) = {
            let slot = self.bookings[key].slot;
            (&mut self.ranks[slot], &mut self.bookings)
        };
        rank.prefills.remove(bookings, key, now);
        rank.admitted.remove(bookings, key);
        let entry = &bookings[key];
        let slot = entry.slot;
        if let Some(last) = entry.last_run {
            self.forest.free(slot, key, last, entry.blocks, |change| rank.apply(bookings, change));
        }
        let entry = bookings.remove(key).expect("the booking was just read");
        rank.outputs -= entry.output_weight;
        rank.requests -= 1;
        self.ids.remove(&entry.id);
        if self.ids.capacity() > 64 && self.ids.capacity() / 8 > self.ids.len() {
            self.ids.shrink_to(self.ids.len() * 2);
        }
        self.changed(slot, now);
    }

    /// Brings what is derived from a rank's load up to date.
    fn changed(&mut self, slot: Slot, now: Moment) {
        let rank = &mut self.ranks[slot];
        rank.load = RankLoad {
            prefill_tokens: rank.prefills.tokens(&self.bookings, now),
            blocks: rank.blocks(),
            requests: rank.requests,
        };
    }
}
