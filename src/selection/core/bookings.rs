//! The service-wide index of bookings: selection id to partition and booking attempt.
//!
//! An id is *claimed* before its booking exists and *held* afterwards; both refuse a second booking of the id, only a
//! held one is seen by lifecycle calls. Invariants: a claim dropped before it is installed leaves nothing behind; a
//! row names exactly one attempt, so a late call never touches a later booking of the id; whoever takes a row out owns
//! what it held, so a booking is released once.
//!
//! A booking made by another replica has a row like any other. Its id may be in use in another partition: its row is
//! then *shadowed*, known to replicas and not to calls by id.
//!
//! Sharded by id; a booking's number carries its shard, so that the end of a booking is found without its id.

mod claim;
mod recent;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use hashbrown::{HashMap, HashTable};
use parking_lot::Mutex;

pub(super) use self::claim::{Claim, Installed, NotInstalled};
use self::recent::Recent;
pub(super) use self::recent::{Early, EndedBooking};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::BookingId,
    moment::Moment,
    partition::PartitionRef,
    policy::classifier::lifecycle::RequestLifecycle,
    replication::{BookingFacts, MAX_MIRRORED_WORDS},
    sessions::SessionLease,
};

const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;

/// Why a booking ended without a lifecycle call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookingEnd {
    /// Older than the expiry.
    #[error("booking expired")]
    Expired,
    /// Its rank left the partition.
    #[error("worker left")]
    RankLeft,
    /// The partition's state was rebuilt after a panic.
    #[error("partition failed and was rebuilt")]
    Rebuilt,
}

/// Bookings that ended without a lifecycle call, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedBookings {
    /// Older than the expiry.
    pub expired: u64,
    /// Their rank left the partition.
    pub rank_left: u64,
    /// The partition's state was rebuilt after a panic.
    pub rebuilt: u64,
}

/// Maps selection ids to bookings.
pub struct BookingIndex {
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    ended: [AtomicU64; 3],
    /// Whether ended bookings and early calls are remembered, for other replicas.
    remembers: AtomicBool,
    /// What live bookings of other replicas hold, in words of eight bytes.
    mirrored_words: AtomicU64,
}

impl std::fmt::Debug for BookingIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BookingIndex").field("rows", &self.len()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shard {
    rows: HashTable<Row>,
    /// Hash under which the row of an attempt lies.
    attempts: HashMap<BookingId, u64, BuildAttemptHasher>,
    last: u64,
    recent: Recent,
}

struct Row {
    hash: u64,
    id: Arc<str>,
    attempt: BookingId,
    partition: PartitionRef,
    /// Another partition had the id first.
    shadowed: bool,
    state: RowState,
}

impl Row {
    fn is_in(&self, partition: &PartitionRef) -> bool {
        Arc::ptr_eq(&self.partition, partition)
    }
}

enum RowState {
    Claimed,
    /// The booking ended before it was installed.
    Lost,
    Held(Held),
}

/// What a row holds of a live booking.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) facts: Arc<BookingFacts>,
    pub(super) lease: Option<SessionLease>,
    /// Who tells its classifier.
    pub(super) lifecycle: Option<SharedLifecycle>,
}

/// The lifecycle of a booking's request, told of by whoever touches the booking.
pub(super) type SharedLifecycle = Arc<Mutex<RequestLifecycle>>;

/// A live booking.
pub(super) struct LiveBooking {
    pub(super) attempt: BookingId,
    pub(super) partition: PartitionRef,
    pub(super) facts: Arc<BookingFacts>,
    pub(super) lifecycle: Option<SharedLifecycle>,
}

/// A booking taken out of the index.
pub(super) struct TakenBooking {
    pub(super) attempt: BookingId,
    pub(super) partition: PartitionRef,
    pub(super) held: Held,
}

impl Shard {
    /// The row calls by id mean.
    fn find(&self, hash: u64, id: &str) -> Option<&Row> {
        self.rows.find(hash, |row| &*row.id == id && !row.shadowed)
    }

    /// Adds a row with a new attempt.
    fn add(&mut self, number: usize, hash: u64, id: Arc<str>, partition: &PartitionRef, shadowed: bool) -> BookingId {
        self.last += 1;
        let attempt = BookingId(self.last << SHARD_BITS | number as u64);
        let row = Row { hash, id, attempt, partition: Arc::clone(partition), shadowed, state: RowState::Claimed };
        self.rows.insert_unique(hash, row, |row| row.hash);
        self.attempts.insert(attempt, hash);
        attempt
    }

    /// Takes the row of `attempt` out.
    fn take(&mut self, hash: u64, attempt: BookingId) -> Option<Row> {
        let entry = self.rows.find_entry(hash, |row| row.attempt == attempt).ok()?;
        self.attempts.remove(&attempt);
        Some(entry.remove().0)
    }

    /// Takes a held row out.
    fn take_held(&mut self, hash: u64, is_it: impl Fn(&Row) -> bool) -> Option<TakenBooking> {
        let entry = self.rows.find_entry(hash, |row| is_it(row) && matches!(row.state, RowState::Held(_))).ok()?;
        let (row, _) = entry.remove();
        self.attempts.remove(&row.attempt);
        match row.state {
            RowState::Held(held) => Some(TakenBooking { attempt: row.attempt, partition: row.partition, held }),
            RowState::Claimed | RowState::Lost => None,
        }
    }
}

impl Default for BookingIndex {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            ended: Default::default(),
            remembers: AtomicBool::new(false),
            mirrored_words: AtomicU64::new(0),
        }
    }
}

impl BookingIndex {
    fn shard_of(&self, hash: u64) -> usize {
        // The table uses the other bits of the hash.
        (hash >> 32) as usize & (SHARDS - 1)
    }

    fn shard(&self, id: &str) -> (u64, usize) {
        let hash = self.hasher.hash_one(id);
        (hash, self.shard_of(hash))
    }

    /// From now on ended bookings and early calls are remembered.
    pub(super) fn remember(&self) {
        self.remembers.store(true, Ordering::Relaxed);
    }

    fn remembers(&self) -> bool {
        self.remembers.load(Ordering::Relaxed)
    }

    /// Reserves `id` for a booking in `partition` that is being made.
    ///
    /// # Errors
    /// 409 when the id is claimed or held.
    pub(super) fn claim(self: &Arc<Self>, id: Arc<str>, partition: &PartitionRef) -> Result<Claim, SelectionError> {
        let (hash, number) = self.shard(&id);
        let mut shard = self.shards[number].lock();
        if shard.rows.find(hash, |row| row.id == id && (!row.shadowed || row.is_in(partition))).is_some() {
            return Err(SelectionError::Conflict(format!("selection {id} is already reserved or being reserved")));
        }
        let attempt = shard.add(number, hash, Arc::clone(&id), partition, false);
        drop(shard);
        Ok(Claim::new(Arc::clone(self), id, hash, attempt))
    }

    /// Reserves `id` for a mirrored booking in `partition`; a booking that is being made here under that id in that
    /// partition loses its claim. `None` when the id is held there.
    pub(super) fn mirror(self: &Arc<Self>, id: Arc<str>, partition: &PartitionRef) -> Option<Claim> {
        let (hash, number) = self.shard(&id);
        let mut shard = self.shards[number].lock();
        let known = shard.rows.find(hash, |row| row.id == id && row.is_in(partition));
        let replaced = match known {
            Some(Row { state: RowState::Held(_), .. }) => return None,
            Some(claimed) => Some(claimed.attempt),
            None => None,
        };
        let row = replaced.and_then(|attempt| shard.take(hash, attempt));
        let shadowed = match &row {
            Some(row) => row.shadowed,
            None => shard.find(hash, &id).is_some(),
        };
        let attempt = shard.add(number, hash, Arc::clone(&id), partition, shadowed);
        drop(shard);
        Some(Claim::new(Arc::clone(self), id, hash, attempt))
    }

    /// The live booking of an id.
    pub(super) fn find(&self, id: &str) -> Option<LiveBooking> {
        let (hash, number) = self.shard(id);
        self.shards[number].lock().find(hash, id).and_then(live)
    }

    /// The live booking of an id in one partition, shadowed or not.
    pub(super) fn find_in(&self, id: &str, partition: &PartitionRef) -> Option<LiveBooking> {
        let (hash, number) = self.shard(id);
        self.shards[number].lock().rows.find(hash, |row| &*row.id == id && row.is_in(partition)).and_then(live)
    }

    /// Takes the live booking of an id out; of several callers one gets it.
    pub(super) fn take(&self, id: &str, now: Moment) -> Option<TakenBooking> {
        let (hash, number) = self.shard(id);
        self.taken(number, now, |shard| shard.take_held(hash, |row| &*row.id == id && !row.shadowed))
    }

    /// Takes the live booking `attempt` of an id out.
    pub(super) fn take_attempt(&self, id: &str, attempt: BookingId, now: Moment) -> Option<TakenBooking> {
        let (hash, number) = self.shard(id);
        self.taken(number, now, |shard| shard.take_held(hash, |row| row.attempt == attempt))
    }

    fn taken(
        &self,
        number: usize,
        now: Moment,
        take: impl FnOnce(&mut Shard) -> Option<TakenBooking>,
    ) -> Option<TakenBooking> {
        let mut shard = self.shards[number].lock();
        let taken = take(&mut shard)?;
        let facts = &taken.held.facts;
        if self.remembers() {
            shard.recent.ended(Arc::clone(&facts.id), ended_as(facts, true), now);
        }
        let part = facts.digest();
        drop(shard);
        self.mirrored_words.fetch_sub(facts.words(), Ordering::Relaxed);
        taken.partition.digests.remove(facts.origin, part);
        Some(taken)
    }

    /// The prefill of a live booking is done.
    pub(super) fn complete_prefill(&self, booking: &LiveBooking) {
        let shard = self.shards[booking.attempt.0 as usize & (SHARDS - 1)].lock();
        let is_known = shard.attempts.contains_key(&booking.attempt);
        let before = if is_known { booking.facts.complete_prefill() } else { None };
        let after = booking.facts.digest();
        drop(shard);
        if let Some(before) = before {
            booking.partition.digests.replace(booking.facts.origin, before, after);
        }
    }

    /// A lifecycle call for an id that is not live here. Remembered for a while, unless the id was live here lately.
    pub(super) fn call_came_early(&self, id: &str, early: Early, now: Moment) {
        if self.remembers() {
            let (_, number) = self.shard(id);
            self.shards[number].lock().recent.call_came_early(id, early, now);
        }
    }

    /// What calls for `id` on `rank` came before its mirror did; forgotten by that.
    pub(super) fn take_early(&self, id: &str, rank: WorkerWithDpRank, now: Moment) -> Option<Early> {
        let (_, number) = self.shard(id);
        self.shards[number].lock().recent.take_early(id, rank, now)
    }

    /// A mirrored booking ended the moment it came.
    pub(super) fn ended_at_once(&self, facts: &BookingFacts, now: Moment) {
        if self.remembers() {
            let (_, number) = self.shard(&facts.id);
            self.shards[number].lock().recent.ended(Arc::clone(&facts.id), ended_as(facts, true), now);
        }
    }

    /// Whether bookings of other replicas may hold that much more. Several at a time may pass the limit by a booking each.
    pub(super) fn has_room_for(&self, facts: &BookingFacts) -> bool {
        self.mirrored_words.load(Ordering::Relaxed).saturating_add(facts.words()) <= MAX_MIRRORED_WORDS
    }

    /// The last booking of `id` here, on `rank` or another one, if it ended lately, and when.
    pub(super) fn ended_lately(&self, id: &str, rank: WorkerWithDpRank, now: Moment) -> Option<(Moment, EndedBooking)> {
        let (_, number) = self.shard(id);
        self.shards[number].lock().recent.ended_lately(id, rank, now)
    }

    /// Forgets what was remembered long enough.
    pub(super) fn forget_recent(&self, now: Moment) {
        if self.remembers() {
            self.shards.iter().for_each(|shard| shard.lock().recent.forget_old(now));
        }
    }

    /// `ended` are gone from their partition's load tracker: their ids are free, their sessions released.
    pub fn ended(&self, ended: &[BookingId], why: BookingEnd, now: Moment) {
        if ended.is_empty() {
            return;
        }
        let counter = match why {
            BookingEnd::Expired => 0,
            BookingEnd::RankLeft => 1,
            BookingEnd::Rebuilt => 2,
        };
        self.ended[counter].fetch_add(ended.len() as u64, Ordering::Relaxed);
        ended.iter().for_each(|&attempt| self.forget_because(attempt, why, now));
    }

    /// A booking is gone from its load tracker, which was rebuilt; a later booking of its id is left alone.
    pub(super) fn forget(&self, attempt: BookingId, now: Moment) {
        self.forget_because(attempt, BookingEnd::Rebuilt, now);
    }

    fn forget_because(&self, attempt: BookingId, why: BookingEnd, now: Moment) {
        let mut shard = self.shards[attempt.0 as usize & (SHARDS - 1)].lock();
        let Some(&hash) = shard.attempts.get(&attempt) else { return };
        let Some(row) = shard.rows.find_mut(hash, |row| row.attempt == attempt) else { return };
        if !matches!(row.state, RowState::Held(_)) {
            // Its request still runs and learns it when it installs the booking.
            row.state = RowState::Lost;
            return;
        }
        let Some(Row { state: RowState::Held(held), partition, .. }) = shard.take(hash, attempt) else { return };
        if self.remembers() {
            shard.recent.ended(Arc::clone(&held.facts.id), ended_as(&held.facts, false), now);
        }
        let part = held.facts.digest();
        drop(shard);
        self.mirrored_words.fetch_sub(held.facts.words(), Ordering::Relaxed);
        partition.digests.remove(held.facts.origin, part);
        if let Some(lease) = held.lease {
            lease.release(now);
        }
        if let Some(lifecycle) = held.lifecycle {
            lifecycle.lock().abort(Some(Arc::new(why)));
        }
    }

    /// Number of shards, for work that goes through all of them.
    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The live bookings of one shard that pass.
    pub(super) fn live_in(
        &self,
        shard: usize,
        passes: impl Fn(&PartitionRef, &BookingFacts) -> bool,
    ) -> Vec<LiveBooking> {
        let shard = self.shards[shard].lock();
        let passing = shard.rows.iter().filter(|row| match &row.state {
            RowState::Held(held) => passes(&row.partition, &held.facts),
            RowState::Claimed | RowState::Lost => false,
        });
        passing.filter_map(live).collect()
    }

    /// Live bookings and claims.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().rows.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bookings that ended without a lifecycle call.
    pub fn ended_bookings(&self) -> EndedBookings {
        let [expired, rank_left, rebuilt] = std::array::from_fn(|at| self.ended[at].load(Ordering::Relaxed));
        EndedBookings { expired, rank_left, rebuilt }
    }
}

fn ended_as(facts: &BookingFacts, by_call: bool) -> EndedBooking {
    EndedBooking { rank: facts.rank, origin: Some(facts.origin), by_call }
}

fn live(row: &Row) -> Option<LiveBooking> {
    let RowState::Held(held) = &row.state else { return None };
    let (partition, facts) = (Arc::clone(&row.partition), Arc::clone(&held.facts));
    Some(LiveBooking { attempt: row.attempt, partition, facts, lifecycle: held.lifecycle.clone() })
}

/// Attempts are counters: a multiplication spreads them well enough.
#[derive(Clone, Copy, Default)]
struct BuildAttemptHasher;

impl BuildHasher for BuildAttemptHasher {
    type Hasher = AttemptHasher;

    fn build_hasher(&self) -> AttemptHasher {
        AttemptHasher(0)
    }
}

struct AttemptHasher(u64);

impl Hasher for AttemptHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
