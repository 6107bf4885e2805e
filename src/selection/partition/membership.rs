//! Workers that join and leave a partition: the load tracker's ranks and the index's slots change together, under the
//! partition's lock, so that no pick sees one without the other.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
};

use super::{Partition, PartitionState, PartitionTraits};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::{BookingId, WorkerFacts},
};

/// Ranks registered or removed in one hold of the lock: a worker of many ranks does not hold up selections.
const RANKS_AT_ONCE: usize = 256;

/// Why a worker could not join; none of its ranks is registered then.
#[derive(Debug)]
pub(in crate::selection) enum JoinError {
    /// The index holds as many ranks as it can.
    Full,
    /// The partition panicked.
    Failed(SelectionError),
}

impl Partition {
    /// Fixes the traits with the first worker; later calls change nothing.
    pub(in crate::selection) fn settle(&self, traits: PartitionTraits) {
        if self.traits.set(traits).is_ok() {
            // A policy that panics while it is made leaves the state to be rebuilt, which makes it again.
            let _contained = self.with_state(|state| state.set_role(traits.role));
        }
    }

    /// What the first worker fixed.
    pub(in crate::selection) fn traits(&self) -> Option<PartitionTraits> {
        self.traits.get().copied()
    }

    /// Whether `worker_id` is the only worker.
    pub(in crate::selection) fn is_only_worker(&self, worker_id: u64) -> bool {
        self.state.lock().workers.keys().chain(&*self.indexed_only.lock()).all(|&id| id == worker_id)
    }

    /// Whether a worker that joined has the rank, or one is indexed that did not join.
    pub fn has_rank(&self, rank: WorkerWithDpRank) -> bool {
        self.is_registered(&self.state.lock().workers, rank)
    }

    fn is_registered(&self, joined: &HashMap<u64, Arc<WorkerFacts>>, rank: WorkerWithDpRank) -> bool {
        joined.get(&rank.worker_id).is_some_and(|facts| facts.ranks.contains(&rank.dp_rank))
            || self.indexed_only.lock().contains(&rank.worker_id)
    }

    /// Whether nobody joined and nobody is indexed.
    pub(in crate::selection) fn has_no_worker(&self) -> bool {
        self.state.lock().workers.is_empty() && self.indexed_only.lock().is_empty()
    }

    /// Whether a worker has listeners here without having joined.
    pub(in crate::selection) fn set_indexed_only(&self, worker_id: u64, indexed_only: bool) {
        let mut ids = self.indexed_only.lock();
        if indexed_only {
            ids.insert(worker_id);
        } else {
            ids.remove(&worker_id);
        }
    }

    /// Registers a worker or replaces its facts. Ranks it no longer has leave first; bookings of those that stay are
    /// kept. Returns bookings that ended.
    pub(in crate::selection) fn join(&self, facts: &Arc<WorkerFacts>) -> (Vec<BookingId>, Result<(), JoinError>) {
        let worker_id = facts.worker_id;
        self.membership.fetch_add(1, Ordering::Relaxed);
        let known = self.with_state(|state| {
            state.workers.insert(worker_id, Arc::clone(facts)).map_or(0..0, |old| old.ranks.clone())
        });
        let known = match known {
            Ok(known) => known,
            Err(error) => return (self.leave(worker_id), Err(JoinError::Failed(error))),
        };
        let mut ended = self.remove_ranks(worker_id, known.clone().filter(|rank| !facts.ranks.contains(rank)));
        for ranks in slices(facts.ranks.clone()) {
            let joined = self.with_state(|state| {
                let PartitionState { workers, load, .. } = state;
                let is_registered = |rank: WorkerWithDpRank| self.is_registered(workers, rank);
                ranks.iter().all(|&dp_rank| {
                    let rank = WorkerWithDpRank::new(worker_id, dp_rank);
                    let slot = load.upsert_rank(rank, Arc::clone(facts));
                    let bind = || self.index.bind_slot(rank, slot);
                    known.contains(&dp_rank) || bind() || (self.index.make_room(is_registered) && bind())
                })
            });
            let error = match joined {
                Ok(true) => continue,
                Ok(false) => JoinError::Full,
                Err(error) => JoinError::Failed(error),
            };
            ended.append(&mut self.leave(worker_id));
            return (ended, Err(error));
        }
        (ended, Ok(()))
    }

    /// Takes every rank of a worker out of selection; what the index holds for it stays. Returns bookings that ended.
    pub(in crate::selection) fn leave(&self, worker_id: u64) -> Vec<BookingId> {
        self.membership.fetch_add(1, Ordering::Relaxed);
        // After a panic the state is rebuilt without the worker, and there is nothing left to remove.
        let left = self.with_state(|state| state.workers.remove(&worker_id));
        match left {
            Ok(Some(facts)) => self.remove_ranks(worker_id, facts.ranks.clone()),
            _ => Vec::new(),
        }
    }

    fn remove_ranks(&self, worker_id: u64, ranks: impl Iterator<Item = u32>) -> Vec<BookingId> {
        let mut ended = Vec::new();
        for ranks in slices(ranks) {
            let removed = self.with_state(|state| {
                let mut ended = Vec::new();
                for dp_rank in ranks {
                    let rank = WorkerWithDpRank::new(worker_id, dp_rank);
                    ended.append(&mut state.load.remove_rank(rank));
                    self.index.unbind_slot(rank);
                }
                ended
            });
            ended.append(&mut removed.unwrap_or_default());
        }
        ended
    }

    /// Forgets what the index holds for a worker that left, ranks that only its events named included.
    pub(in crate::selection) fn forget(&self, worker_id: u64, ranks: impl Iterator<Item = u32>) {
        self.health().contain(|| {
            if self.has_strangers() {
                self.index.remove_worker(worker_id);
            } else {
                ranks.for_each(|rank| self.index.remove_rank(WorkerWithDpRank::new(worker_id, rank)));
            }
        });
    }
}

fn slices(ranks: impl Iterator<Item = u32>) -> impl Iterator<Item = Vec<u32>> {
    let mut ranks = ranks.fuse();
    std::iter::from_fn(move || {
        let slice: Vec<u32> = ranks.by_ref().take(RANKS_AT_ONCE).collect();
        (!slice.is_empty()).then_some(slice)
    })
}
