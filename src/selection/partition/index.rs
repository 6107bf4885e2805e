//! Where a partition's cache knowledge comes from, and what concerns all of its indexes at once.

use crate::selection::{
    config::SelectionConfig,
    identity::WorkerWithDpRank,
    index::{PrefixIndex, approximate::ApproximateIndex},
    load::Slot,
    moment::Moment,
};

/// Where a partition's cache knowledge comes from.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one a partition, behind its Arc")]
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

impl PartitionIndex {
    pub(super) fn new(config: &SelectionConfig, now: Moment, recovered: Option<PrefixIndex>) -> Self {
        if config.use_kv_events {
            Self::Events {
                confirmed: recovered.unwrap_or_default(),
                predicted: config.predicted_ttl.map(|ttl| ApproximateIndex::new(ttl, now)),
            }
        } else {
            Self::Approximate(ApproximateIndex::new(config.ttl, now))
        }
    }

    /// The index that lookups, dumps and hints start from.
    pub fn primary(&self) -> &PrefixIndex {
        match self {
            Self::Events { confirmed, .. } => confirmed,
            Self::Approximate(approximate) => approximate.index(),
        }
    }

    /// The index of own decisions, if there is one.
    pub fn approximate(&self) -> Option<&ApproximateIndex> {
        match self {
            Self::Events { predicted, .. } => predicted.as_ref(),
            Self::Approximate(approximate) => Some(approximate),
        }
    }

    /// The primary index and the overlay.
    pub fn all(&self) -> impl Iterator<Item = &PrefixIndex> {
        let overlay = match self {
            Self::Events { predicted, .. } => predicted.as_ref().map(ApproximateIndex::index),
            Self::Approximate(_) => None,
        };
        std::iter::once(self.primary()).chain(overlay)
    }

    /// Binds a slot in every index; `false`, and bound in none, when one of them is full.
    pub(super) fn bind_slot(&self, rank: WorkerWithDpRank, slot: Slot) -> bool {
        let bound = self.all().all(|index| index.bind_slot(rank, slot));
        if !bound {
            self.unbind_slot(rank);
        }
        bound
    }

    /// Forgets some ranks that nobody registered; `false` when there is none.
    pub(super) fn make_room(&self, is_registered: impl Fn(WorkerWithDpRank) -> bool) -> bool {
        // In all of them: the rank needs a place in each.
        self.all().filter(|index| index.make_room(&is_registered)).count() > 0
    }

    pub(super) fn unbind_slot(&self, rank: WorkerWithDpRank) {
        self.all().for_each(|index| index.unbind_slot(rank));
    }

    pub(in crate::selection) fn clear(&self, rank: WorkerWithDpRank) {
        self.all().for_each(|index| index.clear(rank));
    }

    pub(in crate::selection) fn remove_rank(&self, rank: WorkerWithDpRank) {
        self.all().for_each(|index| index.remove_rank(rank));
    }

    pub(in crate::selection) fn remove_worker(&self, worker_id: u64) {
        self.all().for_each(|index| index.remove_worker(worker_id));
    }
}
