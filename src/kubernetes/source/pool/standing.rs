//! Whether a candidate takes bookings, drains or is none: readiness, its end, and how long each is waited for.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Refusal, candidate::Candidate};
use crate::kubernetes::api::constants::rejection;

/// How a candidate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Takes bookings.
    Active,
    /// Takes none, and stays until then, or until it is gone.
    Draining {
        /// When its grace has passed.
        until: Option<Timestamp>,
    },
    /// No worker.
    Refused(Refusal),
}

impl Standing {
    /// When time alone changes it.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Draining { until } => *until,
            Self::Active | Self::Refused(_) => None,
        }
    }
}

/// What is remembered of an incarnation, where its pod does not tell.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    was_ready: bool,
    not_ready_since: Option<Timestamp>,
    round: u64,
}

/// Memories of a pool's workers, by identity and container. Those that a round does not ask for are forgotten with it.
#[derive(Clone, Debug, Default)]
pub struct Memories {
    by_incarnation: HashMap<(Arc<str>, Arc<str>), Memory>,
    round: u64,
}

impl Memories {
    /// Begins a round.
    pub(super) fn begin(&mut self) {
        self.round += 1;
    }

    /// The memory of an incarnation.
    pub(super) fn of(&mut self, identity: &Arc<str>, container: &Arc<str>) -> &mut Memory {
        let memory = self.by_incarnation.entry((identity.clone(), container.clone())).or_default();
        memory.round = self.round;
        memory
    }

    /// Ends a round.
    pub(super) fn end(&mut self) {
        let round = self.round;
        self.by_incarnation.retain(|_, memory| memory.round == round);
    }
}

/// How `candidate` stands, whose container was started at `started`.
///
/// A pod tells by itself whether it was ready before: its Ready condition last changed after the container was started.
/// So a reader that starts later comes to the same. A slice alone does not tell; there the memory does.
pub fn standing(
    candidate: &Candidate<'_>,
    started: Option<Timestamp>,
    memory: &mut Memory,
    grace: i64,
    now: Timestamp,
) -> Standing {
    let pod = candidate.pod;
    let end = pod.and_then(|pod| pod.terminating);
    let is_terminating = end.is_some() || candidate.is_terminating_in_slices();
    let is_ready = !is_terminating && candidate.is_ready_in_slices() && pod.is_none_or(|pod| pod.ready);
    if is_ready {
        *memory = Memory { was_ready: true, not_ready_since: None, round: memory.round };
        return Standing::Active;
    }
    let changed = pod.filter(|pod| !pod.ready).and_then(|pod| pod.ready_since);
    let was_ready_by_pod = changed.zip(started).is_some_and(|(changed, started)| changed > started);
    // Terminating pods are never ready in slices; the pod itself may still be, and a slice may say that it serves.
    let still_serves = is_terminating && pod.map_or(candidate.is_serving_in_slices(), |pod| pod.ready);
    memory.was_ready |= was_ready_by_pod || still_serves;
    if !memory.was_ready {
        let message = if is_terminating { "it terminates, and was never ready" } else { "it has not been ready yet" };
        return Standing::Refused((rejection::NOT_READY, message.to_owned()));
    }
    if is_terminating {
        return match end {
            Some(end) if end.until <= now => {
                let message = format!("it terminates, and its grace of {} s has passed", end.grace_seconds);
                Standing::Refused((rejection::POD_GONE, message))
            }
            end => Standing::Draining { until: end.map(|end| end.until) },
        };
    }
    // Clocks differ: what began in the future begins now.
    let since = changed.unwrap_or(*memory.not_ready_since.get_or_insert(now)).min(now);
    let until = since.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
    if until <= now {
        let message = format!("it is not ready since {since}, longer than its grace of {grace} s");
        return Standing::Refused((rejection::NOT_READY, message));
    }
    Standing::Draining { until: Some(until) }
}
