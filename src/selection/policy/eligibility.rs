//! Who may take a request (spec scheduling 2.1): allowed ids, draining, required taints, pin, exclusive affinity.

use super::PickRequest;
use crate::selection::{
    error::SelectionError,
    load::{LoadTracker, Slot, WorkerFacts},
    request::AffinityTarget,
};

/// Nobody is eligible.
fn no_endpoints() -> SelectionError {
    SelectionError::Unavailable("no endpoints available to route work".to_owned())
}

/// The ranks among which a policy chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Candidates {
    /// The pinned rank, which is eligible.
    Pinned(Slot),
    /// Ranks of the affinity target, all eligible.
    Affinity(Vec<Slot>),
    /// Every rank for which [`admits`] holds; there may be none.
    Open,
}

/// Why a rank is no candidate, as a stable word; `None` = it is one.
pub(super) fn excluded(request: &PickRequest<'_>, facts: &WorkerFacts) -> Option<&'static str> {
    if request.allowed_worker_ids.is_some_and(|allowed| !allowed.contains(&facts.worker_id)) {
        Some("not_allowed")
    } else if facts.draining {
        Some("draining")
    } else if !request.constraints.required_taints.is_subset(&facts.taints) {
        Some("required_taints")
    } else {
        None
    }
}

/// Whether an open request may go to the slot.
pub(super) fn admits(request: &PickRequest<'_>, load: &LoadTracker, slot: Slot) -> bool {
    load.facts(slot).is_some_and(|facts| excluded(request, facts).is_none())
}

/// Applies pin and affinity target.
///
/// # Errors
/// The request is wrong in itself, or its pin is not eligible.
pub(super) fn candidates(request: &PickRequest<'_>, load: &LoadTracker) -> Result<Candidates, SelectionError> {
    if request.constraints.preferred_taints.values().any(|weight| !weight.is_finite()) {
        return Err(SelectionError::BadRequest(
            "routing_constraints: preferred_taints weights must be finite".to_owned(),
        ));
    }
    let affinity = request.affinity_target.and_then(|target| {
        let slots = target_slots(request, load, target);
        (!slots.is_empty()).then_some((target, slots))
    });
    let Some(pin) = request.pinned_worker else {
        return Ok(affinity.map_or(Candidates::Open, |(_, slots)| Candidates::Affinity(slots)));
    };
    let other_target = affinity.is_some_and(|(target, _)| {
        target.worker_id != pin.worker_id || target.dp_rank.is_some_and(|rank| rank != pin.dp_rank)
    });
    if other_target || request.allowed_worker_ids.is_some_and(|allowed| !allowed.contains(&pin.worker_id)) {
        return Err(SelectionError::BadRequest(format!(
            "pinned worker {} is not in allowed worker set",
            pin.worker_id
        )));
    }
    match load.slot(pin) {
        Some(slot) if admits(request, load, slot) => Ok(Candidates::Pinned(slot)),
        _ => Err(no_endpoints()),
    }
}

/// The error when an open request found nobody.
pub(super) fn nobody() -> SelectionError {
    no_endpoints()
}

/// Eligible ranks of an affinity target; none = the target is ignored.
fn target_slots(request: &PickRequest<'_>, load: &LoadTracker, target: AffinityTarget) -> Vec<Slot> {
    load.slots_of(target.worker_id)
        .filter(|&slot| {
            target.dp_rank.is_none_or(|wanted| load.rank(slot).is_some_and(|rank| rank.dp_rank == wanted))
                && admits(request, load, slot)
        })
        .collect()
}
