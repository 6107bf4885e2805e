//! What one shard remembers of ids that are not live: bookings that ended, and calls that came before their booking's
//! mirror.
//!
//! Invariants: bounded by time and count, the oldest go first; a call is remembered only for an id that was not live
//! here lately, so that an id that was freed may be booked again.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::selection::{identity::WorkerWithDpRank, moment::Moment};

/// How long a call that came early waits for its booking.
const EARLY_FOR: Duration = Duration::from_secs(10);
/// How long an ended booking is remembered.
const ENDED_FOR: Duration = Duration::from_secs(60);
/// Most ids a shard remembers; 64 shards.
const MOST: usize = 4096;

/// Calls that came before their booking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::selection::core) struct Early {
    /// The booking is to end when it comes.
    pub(in crate::selection::core) freed: bool,
    /// Its prefill is done.
    pub(in crate::selection::core) prefill_completed: bool,
    /// The call came from a client of this replica, so the others do not know of it.
    pub(in crate::selection::core) is_local: bool,
    /// The rank it named; clients name none.
    pub(in crate::selection::core) rank: Option<WorkerWithDpRank>,
}

#[derive(Debug)]
enum Memory {
    Ended { rank: WorkerWithDpRank, by_call: bool },
    Early(Early),
}

#[derive(Debug, Default)]
pub(super) struct Recent {
    entries: HashMap<Arc<str>, (Moment, Memory)>,
    /// One for each time an entry was written; those that do not match their entry any more are passed over.
    order: VecDeque<(Moment, Arc<str>)>,
}

impl Recent {
    fn write(&mut self, id: Arc<str>, memory: Memory, now: Moment) {
        self.entries.insert(Arc::clone(&id), (now, memory));
        self.order.push_back((now, id));
        while self.order.len() > MOST {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((written, id)) = self.order.pop_front()
            && self.entries.get(&id).is_some_and(|entry| entry.0 == written)
        {
            self.entries.remove(&id);
        }
    }

    /// A booking of `id` ended, by a call or otherwise.
    pub(super) fn ended(&mut self, id: Arc<str>, rank: WorkerWithDpRank, by_call: bool, now: Moment) {
        self.write(id, Memory::Ended { rank, by_call }, now);
    }

    /// `id` lives: what was remembered of it is over.
    pub(super) fn lives(&mut self, id: &str) {
        self.entries.remove(id);
    }

    /// A call for an id that is not live.
    pub(super) fn call_came_early(&mut self, id: &str, early: Early, now: Moment) {
        match self.entries.get_mut(id) {
            Some((ended, Memory::Ended { .. })) if now.since(*ended) < ENDED_FOR => {}
            Some((came, Memory::Early(known))) if now.since(*came) < EARLY_FOR && known.rank == early.rank => {
                known.freed |= early.freed;
                known.prefill_completed |= early.prefill_completed;
                known.is_local |= early.is_local;
            }
            _ => self.write(id.into(), Memory::Early(early), now),
        }
    }

    /// Calls for `id` that came early and concern a booking on `rank`.
    pub(super) fn take_early(&mut self, id: &str, rank: WorkerWithDpRank, now: Moment) -> Option<Early> {
        match self.entries.get(id) {
            Some(&(came, Memory::Early(early)))
                if now.since(came) < EARLY_FOR && early.rank.is_none_or(|named| named == rank) =>
            {
                self.entries.remove(id);
                Some(early)
            }
            _ => None,
        }
    }

    /// When a call ended the last booking of `id`, if it was on `rank`.
    pub(super) fn ended_by_call(&self, id: &str, rank: WorkerWithDpRank, now: Moment) -> Option<Moment> {
        match self.entries.get(id) {
            Some(&(ended, Memory::Ended { rank: of, by_call: true })) if of == rank && now.since(ended) < ENDED_FOR => {
                Some(ended)
            }
            _ => None,
        }
    }

    /// Gives back what is older than it may be.
    pub(super) fn forget_old(&mut self, now: Moment) {
        while self.order.front().is_some_and(|(written, _)| now.since(*written) >= ENDED_FOR) {
            self.forget_first();
        }
    }
}
