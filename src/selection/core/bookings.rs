//! The service-wide index of bookings: selection id to partition and booking attempt.
//!
//! An id is *claimed* before its booking exists and *held* afterwards; both refuse a second booking of the id, only a
//! held one is seen by lifecycle calls. Invariants: a claim dropped before it is installed leaves nothing behind; a
//! row names exactly one attempt, so a late call never touches a later booking of the id; whoever takes a row out owns
//! what it held, so a booking is released once.
//!
//! Sharded by id; a booking's number carries its shard, so that the end of a booking is found without its id.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::{HashMap, HashTable};
use parking_lot::Mutex;

use crate::selection::{
    error::SelectionError,
    load::BookingId,
    moment::Moment,
    partition::{Partition, PartitionRef},
    sessions::SessionLease,
};

const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;

/// Why a booking ended without a lifecycle call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookingEnd {
    /// Older than the expiry.
    Expired,
    /// Its rank left the partition.
    RankLeft,
    /// The partition's state was rebuilt after a panic.
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
}

struct Row {
    hash: u64,
    id: Arc<str>,
    attempt: BookingId,
    state: RowState,
}

enum RowState {
    Claimed,
    /// The booking ended before it was installed.
    Lost,
    Held(Held),
}

/// What a row holds of a live booking.
pub(super) struct Held {
    pub(super) partition: PartitionRef,
    pub(super) lease: Option<SessionLease>,
}

/// A booking taken out of the index.
pub(super) struct TakenBooking {
    pub(super) attempt: BookingId,
    pub(super) held: Held,
}

impl Shard {
    fn find(&self, hash: u64, id: &str) -> Option<&Row> {
        self.rows.find(hash, |row| &*row.id == id)
    }

    /// Takes the row of `attempt` out.
    fn take(&mut self, hash: u64, attempt: BookingId) -> Option<Row> {
        let entry = self.rows.find_entry(hash, |row| row.attempt == attempt).ok()?;
        self.attempts.remove(&attempt);
        Some(entry.remove().0)
    }
}

impl Default for BookingIndex {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            ended: Default::default(),
        }
    }
}

impl BookingIndex {
    fn shard_of(&self, hash: u64) -> usize {
        // The table uses the other bits of the hash.
        (hash >> 32) as usize & (SHARDS - 1)
    }

    /// Reserves `id` for a booking that is being made.
    ///
    /// # Errors
    /// 409 when the id is claimed or held.
    pub(super) fn claim(self: &Arc<Self>, id: Arc<str>) -> Result<Claim, SelectionError> {
        let hash = self.hasher.hash_one(&*id);
        let number = self.shard_of(hash);
        let mut shard = self.shards[number].lock();
        if shard.find(hash, &id).is_some() {
            return Err(SelectionError::Conflict(format!("selection {id} is already reserved or being reserved")));
        }
        shard.last += 1;
        let attempt = BookingId(shard.last << SHARD_BITS | number as u64);
        let row = Row { hash, id: Arc::clone(&id), attempt, state: RowState::Claimed };
        shard.rows.insert_unique(hash, row, |row| row.hash);
        shard.attempts.insert(attempt, hash);
        drop(shard);
        Ok(Claim { index: Arc::clone(self), id, hash, attempt, open: true })
    }

    /// The live booking of an id: its partition and attempt.
    pub(super) fn find(&self, id: &str) -> Option<(PartitionRef, BookingId)> {
        let hash = self.hasher.hash_one(id);
        let shard = self.shards[self.shard_of(hash)].lock();
        match shard.find(hash, id)? {
            Row { attempt, state: RowState::Held(held), .. } => Some((Arc::clone(&held.partition), *attempt)),
            _ => None,
        }
    }

    /// Takes the live booking of an id out; of several callers one gets it.
    pub(super) fn take(&self, id: &str) -> Option<TakenBooking> {
        let hash = self.hasher.hash_one(id);
        let mut shard = self.shards[self.shard_of(hash)].lock();
        let entry = shard.rows.find_entry(hash, |row| &*row.id == id).ok()?;
        if !matches!(entry.get().state, RowState::Held(_)) {
            return None;
        }
        let (row, _) = entry.remove();
        shard.attempts.remove(&row.attempt);
        drop(shard);
        match row.state {
            RowState::Held(held) => Some(TakenBooking { attempt: row.attempt, held }),
            RowState::Claimed | RowState::Lost => None,
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
        ended.iter().for_each(|&attempt| self.forget(attempt, now));
    }

    /// A booking is gone from its load tracker; a later booking of its id is left alone.
    pub(super) fn forget(&self, attempt: BookingId, now: Moment) {
        let mut shard = self.shards[attempt.0 as usize & (SHARDS - 1)].lock();
        let Some(&hash) = shard.attempts.get(&attempt) else { return };
        let Some(row) = shard.rows.find_mut(hash, |row| row.attempt == attempt) else { return };
        if !matches!(row.state, RowState::Held(_)) {
            // Its request still runs and learns it when it installs the booking.
            row.state = RowState::Lost;
            return;
        }
        let row = shard.take(hash, attempt);
        drop(shard);
        if let Some(Row { state: RowState::Held(Held { lease: Some(lease), .. }), .. }) = row {
            lease.release(now);
        }
    }

    /// Number of shards, for work that goes through all of them.
    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The live bookings of one shard, by partition.
    pub(super) fn held_in(&self, shard: usize) -> Vec<(PartitionRef, Vec<BookingId>)> {
        let mut found: HashMap<*const Partition, (PartitionRef, Vec<BookingId>)> = HashMap::new();
        for row in &self.shards[shard].lock().rows {
            if let RowState::Held(held) = &row.state {
                let group = found
                    .entry(Arc::as_ptr(&held.partition))
                    .or_insert_with(|| (Arc::clone(&held.partition), Vec::new()));
                group.1.push(row.attempt);
            }
        }
        found.into_values().collect()
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

/// The right to book an id. Dropped before it is installed, it frees the id.
#[derive(Debug)]
pub(super) struct Claim {
    index: Arc<BookingIndex>,
    id: Arc<str>,
    hash: u64,
    attempt: BookingId,
    open: bool,
}

impl Claim {
    /// The id.
    pub(super) fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The number of the booking that is being made.
    pub(super) fn attempt(&self) -> BookingId {
        self.attempt
    }

    /// The booking exists: lifecycle calls may find it from now on.
    ///
    /// # Errors
    /// What it held, when the booking has ended meanwhile; the id is free then.
    pub(super) fn install(mut self, held: Held) -> Result<(), Held> {
        let mut shard = self.index.shards[self.index.shard_of(self.hash)].lock();
        let row = shard.rows.find_mut(self.hash, |row| row.attempt == self.attempt);
        match row {
            Some(row) if matches!(row.state, RowState::Claimed) => {
                row.state = RowState::Held(held);
                drop(shard);
                self.open = false;
                Ok(())
            }
            _ => Err(held),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.open {
            let row = self.index.shards[self.index.shard_of(self.hash)].lock().take(self.hash, self.attempt);
            drop(row);
        }
    }
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
