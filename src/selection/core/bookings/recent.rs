//! What one shard remembers of ids that are not live: bookings that ended, and calls that came before their booking's
//! mirror.
//!
//! Invariants: bounded by time, count and length of ids, the oldest go first; a call is remembered only for an id that
//! was not live here lately, so that an id that was freed may be booked again.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::selection::{identity::WorkerWithDpRank, moment::Moment, replication::RouterId};

/// How long a call that came early waits for its booking.
const EARLY_FOR: Duration = Duration::from_secs(10);
/// How long an ended booking is remembered.
const ENDED_FOR: Duration = Duration::from_secs(60);
/// Most ids a shard remembers; 64 shards.
const MOST: usize = 4096;
/// Longest id remembered, in bytes.
const LONGEST_ID: usize = 1024;
/// Ranks that early calls for one id may name, and none.
const MOST_RANKS: usize = 4;

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

impl Early {
    pub(in crate::selection::core) fn add(&mut self, other: Self) {
        self.freed |= other.freed;
        self.prefill_completed |= other.prefill_completed;
        self.is_local |= other.is_local;
    }
}

/// A booking that ended here lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::selection::core) struct EndedBooking {
    pub(in crate::selection::core) rank: WorkerWithDpRank,
    /// Who made it, if it was live here.
    pub(in crate::selection::core) origin: Option<RouterId>,
    /// A call ended it; otherwise its rank left, or it expired.
    pub(in crate::selection::core) by_call: bool,
}

#[derive(Debug)]
enum Memory {
    Ended(EndedBooking),
    Early(Vec<Early>),
}

#[derive(Debug, Default)]
pub(super) struct Recent {
    entries: HashMap<Arc<str>, (Moment, Memory)>,
    /// One for each time an entry was written; those that do not match their entry any more are passed over.
    order: VecDeque<(Moment, Arc<str>)>,
}

impl Recent {
    fn write(&mut self, id: Arc<str>, memory: Memory, now: Moment) {
        if id.len() > LONGEST_ID {
            return;
        }
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

    /// A booking of `id` ended.
    pub(super) fn ended(&mut self, id: Arc<str>, booking: EndedBooking, now: Moment) {
        self.write(id, Memory::Ended(booking), now);
    }

    /// `id` lives: what was remembered of it is over. Calls that came while a mirror was being made are still to be taken.
    pub(super) fn lives(&mut self, id: &str, is_mirrored: bool) {
        if !is_mirrored || matches!(self.entries.get(id), Some((_, Memory::Ended(_)))) {
            self.entries.remove(id);
        }
    }

    /// A call for an id that is not live.
    pub(super) fn call_came_early(&mut self, id: &str, early: Early, now: Moment) {
        match self.entries.get_mut(id) {
            // Its rank left, say, and now a call ends it too: for replicas that still have it.
            Some((ended, Memory::Ended(booking))) if now.since(*ended) < ENDED_FOR => booking.by_call |= early.freed,
            Some((came, Memory::Early(known))) if now.since(*came) < EARLY_FOR => {
                if let Some(known) = known.iter_mut().find(|known| known.rank == early.rank) {
                    known.add(early);
                } else if known.len() < MOST_RANKS {
                    known.push(early);
                }
            }
            _ => self.write(id.into(), Memory::Early(vec![early]), now),
        }
    }

    /// Calls for `id` that came early and concern a booking on `rank`.
    pub(super) fn take_early(&mut self, id: &str, rank: WorkerWithDpRank, now: Moment) -> Option<Early> {
        let Some((came, Memory::Early(known))) = self.entries.get(id) else { return None };
        let mut concerned = known.iter().filter(|early| early.rank.is_none_or(|named| named == rank));
        let mut early = *concerned.next().filter(|_| now.since(*came) < EARLY_FOR)?;
        concerned.for_each(|other| early.add(*other));
        self.entries.remove(id);
        Some(early)
    }

    /// The last booking of `id`, if it ended lately, and when: the caller looks at its rank. A replica's word that it ended
    /// counts though the booking was never live here; of several, the one about `rank`.
    pub(super) fn ended_lately(&self, id: &str, rank: WorkerWithDpRank, now: Moment) -> Option<(Moment, EndedBooking)> {
        let (at, memory) = self.entries.get(id)?;
        if now.since(*at) >= ENDED_FOR {
            return None;
        }
        let ended = match memory {
            Memory::Ended(booking) => *booking,
            Memory::Early(known) => {
                let mut named = known.iter().filter(|early| early.freed).filter_map(|early| early.rank);
                let any = named.clone().next()?;
                let rank = named.find(|named| *named == rank).unwrap_or(any);
                EndedBooking { rank, origin: None, by_call: true }
            }
        };
        Some((*at, ended))
    }

    /// Gives back what is older than it may be.
    pub(super) fn forget_old(&mut self, now: Moment) {
        while self.order.front().is_some_and(|(written, _)| now.since(*written) >= ENDED_FOR) {
            self.forget_first();
        }
    }
}
