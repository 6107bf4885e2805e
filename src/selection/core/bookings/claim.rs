//! The right to book an id.

use std::sync::{Arc, atomic::Ordering};

use super::{BookingIndex, Held, RowState};
use crate::selection::{load::BookingId, moment::Moment, sessions::SessionLease};

/// The right to book an id. Dropped before it is installed, it frees the id.
#[derive(Debug)]
pub(in crate::selection::core) struct Claim {
    index: Arc<BookingIndex>,
    id: Arc<str>,
    hash: u64,
    attempt: BookingId,
    open: bool,
}

/// Why a claim could not be installed.
#[derive(Debug)]
pub(in crate::selection::core) enum NotInstalled {
    /// The booking has ended meanwhile; the id is free then.
    Ended,
    /// Another replica booked the id.
    Replaced,
}

impl Claim {
    pub(super) fn new(index: Arc<BookingIndex>, id: Arc<str>, hash: u64, attempt: BookingId) -> Self {
        Self { index, id, hash, attempt, open: true }
    }

    /// The id.
    pub(in crate::selection::core) fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The number of the booking that is being made.
    pub(in crate::selection::core) fn attempt(&self) -> BookingId {
        self.attempt
    }

    /// The booking exists: lifecycle calls may find it from now on.
    ///
    /// # Errors
    /// The booking has ended, or its claim went to another one; what was held is dropped.
    pub(in crate::selection::core) fn install(mut self, held: Held) -> Result<Installed, NotInstalled> {
        let (origin, part, words) = (held.facts.origin, held.facts.digest(), held.facts.words());
        let is_mirrored = held.facts.is_mirrored();
        let mut shard = self.index.shards[self.index.shard_of(self.hash)].lock();
        let Some(row) = shard.rows.find_mut(self.hash, |row| row.attempt == self.attempt) else {
            return Err(NotInstalled::Replaced);
        };
        if !matches!(row.state, RowState::Claimed) {
            return Err(NotInstalled::Ended);
        }
        row.state = RowState::Held(held);
        let partition = Arc::clone(&row.partition);
        if self.index.remembers.load(Ordering::Relaxed) {
            shard.recent.lives(&self.id, is_mirrored);
        }
        // Under the lock: the digest never loses a part before it has it.
        partition.digests.add(origin, part);
        self.index.mirrored_words.fetch_add(words, Ordering::Relaxed);
        drop(shard);
        self.open = false;
        Ok(Installed { index: Arc::clone(&self.index), hash: self.hash, attempt: self.attempt })
    }
}

/// A booking that lifecycle calls can find, and may have ended since.
#[derive(Debug)]
pub(in crate::selection::core) struct Installed {
    index: Arc<BookingIndex>,
    hash: u64,
    attempt: BookingId,
}

impl Installed {
    /// Gives the booking its session. When it has ended meanwhile, the lease ends as it would have with the booking.
    pub(in crate::selection::core) fn attach(self, lease: SessionLease, now: Moment) {
        let mut shard = self.index.shards[self.index.shard_of(self.hash)].lock();
        if let Some(row) = shard.rows.find_mut(self.hash, |row| row.attempt == self.attempt)
            && let RowState::Held(held) = &mut row.state
        {
            held.lease = Some(lease);
            return;
        }
        drop(shard);
        lease.release(now);
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
