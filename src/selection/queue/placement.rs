//! Where a waiting request may go, and whether somebody there is free (spec scheduling 3.4).

use std::{collections::BTreeSet, sync::Arc};

use crate::selection::{
    identity::WorkerWithDpRank,
    load::{LoadTracker, Slot, TouchedRank},
    request::Steering,
};

/// Who may take a request. Requests of equal constraints wait in one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::selection) struct Constraint {
    /// Only these workers.
    allowed: Option<BTreeSet<u64>>,
    /// All must be on the worker.
    required_taints: BTreeSet<String>,
}

/// Where a request may go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::selection) enum Placement {
    /// To any rank that takes bookings.
    Anywhere,
    /// To this rank.
    Pinned(WorkerWithDpRank),
    /// Where the constraint allows.
    Within(Arc<Constraint>),
}

impl Placement {
    /// What the steering of a request says. An affinity target is a wish and does not count, as in the reference: a
    /// bound session does not wait while another worker is free.
    pub(in crate::selection) fn of(steering: &Steering) -> Self {
        let (allowed, required_taints) = (&steering.allowed_worker_ids, &steering.routing_constraints.required_taints);
        if let Some(pin) = steering.pinned_worker {
            Self::Pinned(pin)
        } else if allowed.is_none() && required_taints.is_empty() {
            Self::Anywhere
        } else {
            let (allowed, required_taints) = (allowed.clone(), required_taints.clone());
            Self::Within(Arc::new(Constraint { allowed, required_taints }))
        }
    }

    /// Whether the rank takes bookings and may take the request.
    pub(in crate::selection) fn admits(&self, load: &LoadTracker, slot: Slot) -> bool {
        let Some(row) = load.rows().get(slot as usize).filter(|row| row.takes_bookings) else { return false };
        match self {
            Self::Anywhere => true,
            Self::Pinned(rank) => load.slot(*rank) == Some(slot),
            Self::Within(constraint) => {
                constraint.allowed.as_ref().is_none_or(|allowed| allowed.contains(&row.worker_id))
                    && constraint.has_taints(load, slot)
            }
        }
    }

    /// Whether all ranks that may take the request are busy by the numbered threshold, and there is one. A request
    /// that nobody can take is not blocked: it is to learn that.
    pub(super) fn is_blocked(&self, load: &LoadTracker, board: Option<usize>) -> bool {
        let Some(board) = board else { return false };
        let busy = load.busy();
        match self {
            Self::Anywhere => busy.free_ranks(board) == 0 && busy.takers() > 0,
            Self::Pinned(rank) => {
                load.slot(*rank).is_some_and(|slot| self.admits(load, slot) && !busy.is_free(board, slot))
            }
            Self::Within(constraint) => {
                let free = match &constraint.allowed {
                    // Few are free while requests wait, so looking at those is mostly shorter.
                    Some(allowed) if allowed.len() < busy.free_ranks(board) => allowed
                        .iter()
                        .flat_map(|&id| load.slots_of(id))
                        .any(|slot| busy.is_free(board, slot) && constraint.has_taints(load, slot)),
                    _ => busy.free_slots(board).any(|slot| self.admits(load, slot)),
                };
                !free && self.anybody(constraint, load)
            }
        }
    }

    /// Whether any rank may take the request, busy or not.
    fn anybody(&self, constraint: &Constraint, load: &LoadTracker) -> bool {
        match &constraint.allowed {
            Some(allowed) => allowed.iter().flat_map(|&id| load.slots_of(id)).any(|slot| self.admits(load, slot)),
            None => (0..load.rows().len()).any(|slot| self.admits(load, slot as Slot)),
        }
    }

    /// Whether what happened to a rank may unblock the request.
    pub(super) fn may_want(&self, touched: &TouchedRank, load: &LoadTracker) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Pinned(rank) => *rank == touched.rank,
            Self::Within(constraint) => {
                let worker_id = touched.rank.worker_id;
                constraint.allowed.as_ref().is_none_or(|allowed| allowed.contains(&worker_id))
                    && (touched.changed || load.slot(touched.rank).is_some_and(|slot| self.admits(load, slot)))
            }
        }
    }
}

impl Constraint {
    fn has_taints(&self, load: &LoadTracker, slot: Slot) -> bool {
        self.required_taints.is_empty()
            || load.facts(slot).is_some_and(|facts| self.required_taints.is_subset(&facts.taints))
    }
}
