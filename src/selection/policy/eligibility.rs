//! Who may take a request (spec scheduling 2.1): allowed ids, draining, required taints, pin, exclusive affinity.

use std::collections::BTreeSet;

use super::PickRequest;
use crate::selection::{
    error::SelectionError,
    load::{LoadTracker, Row, Slot, WorkerFacts},
    request::{AffinityTarget, RoutingConstraints},
};

/// The ranks among which a policy chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Candidates {
    /// The pinned rank, which is eligible.
    Pinned(Slot),
    /// Ranks of the affinity target, all eligible.
    Affinity(Vec<Slot>),
    /// Every rank that the [`Filter`] admits; there may be none.
    Open,
}

impl Candidates {
    /// Visits every candidate with the factor of its cost by preferred taints, in the order of slots where all are open.
    /// A pinned rank has none.
    pub(super) fn for_each(&self, request: &PickRequest<'_>, load: &LoadTracker, mut visit: impl FnMut(Slot, f64)) {
        let mut filter = Filter::new(request, load);
        match self {
            Self::Pinned(slot) => visit(*slot, 1.0),
            Self::Affinity(slots) => {
                for &slot in slots {
                    visit(slot, filter.admits(&load.rows()[slot as usize]).unwrap_or(1.0));
                }
            }
            Self::Open => {
                for (slot, row) in load.rows().iter().enumerate() {
                    if let Some(multiplier) = filter.admits(row) {
                        visit(slot as Slot, multiplier);
                    }
                }
            }
        }
    }
}

/// The error when nobody is eligible.
pub(in crate::selection) fn nobody() -> SelectionError {
    SelectionError::Unavailable("no endpoints available to route work".to_owned())
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

/// What a request's constraints say about one set of taints.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Unknown,
    Refused,
    /// Factor of the cost.
    Admitted(f64),
}

/// Eligibility of open requests and the preferred-taint multiplier, judged once for each set of taints.
#[derive(Debug)]
pub(super) struct Filter<'a> {
    load: &'a LoadTracker,
    allowed: Option<&'a BTreeSet<u64>>,
    constraints: &'a RoutingConstraints,
    verdicts: Vec<Verdict>,
}

impl<'a> Filter<'a> {
    pub(super) fn new(request: &PickRequest<'a>, load: &'a LoadTracker) -> Self {
        let constraints = request.constraints;
        let unconstrained = constraints.required_taints.is_empty() && constraints.preferred_taints.is_empty();
        let verdicts = if unconstrained { Vec::new() } else { vec![Verdict::Unknown; load.taint_sets()] };
        Self { load, allowed: request.allowed_worker_ids, constraints, verdicts }
    }

    /// Whether every rank that takes bookings is eligible, with a factor of 1.
    pub(super) fn admits_all(&self) -> bool {
        self.allowed.is_none() && self.verdicts.is_empty()
    }

    /// The factor of the rank's cost; `None` when the rank is not eligible.
    #[inline]
    pub(super) fn admits(&mut self, row: &Row) -> Option<f64> {
        if !row.takes_bookings || self.allowed.is_some_and(|allowed| !allowed.contains(&row.worker_id)) {
            return None;
        }
        self.multiplier(row.taints)
    }

    /// The factor for workers with the numbered set of taints; `None` when they are not eligible.
    #[inline]
    pub(super) fn multiplier(&mut self, taints: u32) -> Option<f64> {
        let Some(verdict) = self.verdicts.get_mut(taints as usize) else { return Some(1.0) };
        if *verdict == Verdict::Unknown {
            *verdict = match self.load.taint_set(taints) {
                Some(set) if self.constraints.required_taints.is_subset(set) => {
                    Verdict::Admitted(taint_multiplier(self.constraints, set))
                }
                _ => Verdict::Refused,
            };
        }
        match *verdict {
            Verdict::Admitted(multiplier) => Some(multiplier),
            _ => None,
        }
    }
}

/// `exp(-tanh(sum of the weights of the preferred taints the worker has))`; 1 when it has none.
fn taint_multiplier(constraints: &RoutingConstraints, taints: &BTreeSet<String>) -> f64 {
    let preferred = constraints.preferred_taints.iter();
    let matching = preferred.filter(|(taint, _)| taints.contains(taint.as_str()));
    let sum: f64 = matching.map(|(_, &weight)| f64::from(weight)).sum();
    (-sum.tanh()).exp()
}

/// Applies pin and affinity target. An eligible target is the only candidate when it is a session's binding, or when the
/// policy asks for that (`exclusive`); it is ignored otherwise.
///
/// # Errors
/// The request is wrong in itself, or its pin is not eligible.
pub(super) fn candidates(
    request: &PickRequest<'_>,
    load: &LoadTracker,
    exclusive: bool,
) -> Result<Candidates, SelectionError> {
    if request.constraints.preferred_taints.values().any(|weight| !weight.is_finite()) {
        return Err(SelectionError::BadRequest(
            "routing_constraints: preferred_taints weights must be finite".to_owned(),
        ));
    }
    let affinity = request.affinity_target.filter(|_| exclusive || request.target_is_binding).and_then(|target| {
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
        let text = format!("pinned worker {} is not in allowed worker set", pin.worker_id);
        return Err(SelectionError::BadRequest(text));
    }
    match load.slot(pin) {
        Some(slot) if admits(request, load, slot) => Ok(Candidates::Pinned(slot)),
        _ => Err(nobody()),
    }
}

fn admits(request: &PickRequest<'_>, load: &LoadTracker, slot: Slot) -> bool {
    load.facts(slot).is_some_and(|facts| excluded(request, facts).is_none())
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
