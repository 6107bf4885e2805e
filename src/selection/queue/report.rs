//! What waits, for `GET /queue` and metrics.

use std::{collections::HashMap, sync::Arc};

use serde::Serialize;

use super::order::QueuePolicy;
use super::{
    admission::AdmissionQueue,
    counters::{ClassCounts, LimitKind},
    limits::limits_of,
};
use crate::selection::{load::LoadTracker, moment::Moment};

/// One partition of `GET /queue`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PartitionQueue {
    /// Model name.
    pub model_name: Arc<str>,
    /// Routing group.
    pub routing_group: Arc<str>,
    /// Whether any class has a threshold; otherwise nobody waits.
    pub enabled: bool,
    /// Requests that wait.
    pub waiting: u64,
    /// Prompt tokens that wait.
    pub isl_tokens: u64,
    /// Most requests that may wait.
    pub max_requests: u64,
    /// Most prompt tokens that may wait.
    pub max_isl_tokens: u64,
    /// Ranks that take bookings.
    pub ranks: u64,
    /// In the order of the policy document.
    pub classes: Vec<ClassQueue>,
}

/// One class of [`PartitionQueue`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClassQueue {
    /// Its name.
    pub policy_class: Arc<str>,
    /// `fcfs`, `lcfs` or `wspt`.
    pub queue_policy: &'static str,
    /// Requests that wait.
    pub waiting: u64,
    /// Prompt tokens that wait.
    pub isl_tokens: u64,
    /// Of those, tokens that are cached where they may go.
    pub cached_tokens: u64,
    /// Time since the longest waiting request came, in seconds; absent when nobody waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_age_seconds: Option<f64>,
    /// Groups of requests that may go to the same ranks, all of them busy.
    pub blocked_lanes: u64,
    /// Limits in force, for the workers there are now.
    pub limits: ClassLimits,
    /// Prefill tokens above which a rank is busy, as the profile says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_busy_threshold: Option<u64>,
    /// The same as a fraction of a worker's `max_num_batched_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_busy_threshold_frac: Option<f64>,
    /// Ranks that take bookings and are busy for this class.
    pub busy_ranks: u64,
    /// Uncached tokens a round of the round robin.
    pub quantum: u64,
    /// Uncached tokens it may send before its next round.
    pub deficit: u64,
}

/// Limits of a class; absent = none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClassLimits {
    /// Requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_isl_tokens: Option<u64>,
    /// Cached prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
}

/// Counters of one partition's classes, classes of earlier profiles included.
#[derive(Clone, Debug)]
pub struct QueueCounts {
    /// Model name.
    pub model_name: Arc<str>,
    /// Routing group.
    pub routing_group: Arc<str>,
    /// By class, sorted.
    pub classes: Vec<(Arc<str>, ClassCounts)>,
}

impl AdmissionQueue {
    /// What became of requests, by class.
    pub(in crate::selection) fn counts(&self) -> Vec<(Arc<str>, ClassCounts)> {
        self.counters.read()
    }

    /// What waits. Looks at every entry once.
    pub(in crate::selection) fn report(
        &self,
        names: (Arc<str>, Arc<str>),
        load: &LoadTracker,
        workers: u64,
        now: Moment,
    ) -> PartitionQueue {
        let mut oldest: HashMap<usize, Moment> = HashMap::new();
        for entry in self.entries.values() {
            let known = oldest.entry(entry.class).or_insert(entry.arrived());
            *known = entry.arrived().min(*known);
        }
        let ranks = if self.is_on() {
            load.busy().takers()
        } else {
            load.rows().iter().filter(|row| row.takes_bookings).count()
        };
        let class = |(at, (class, share)): (usize, (&super::admission::Class, &super::round_robin::Share))| {
            let [requests, raw_isl_tokens, cached_tokens] = limits_of(&class.spec, workers).map(|(_, limit)| limit);
            let busy = class.board.map_or(0, |board| ranks - load.busy().free_ranks(board));
            ClassQueue {
                policy_class: Arc::clone(&class.spec.name),
                queue_policy: match class.spec.queue_policy {
                    QueuePolicy::Fcfs => "fcfs",
                    QueuePolicy::Lcfs => "lcfs",
                    QueuePolicy::Wspt => "wspt",
                },
                waiting: class.waiting.requests,
                isl_tokens: class.waiting.raw_tokens,
                cached_tokens: class.waiting.cached_tokens,
                oldest_age_seconds: oldest.get(&at).map(|&arrived| now.since(arrived).as_secs_f64()),
                blocked_lanes: class.lanes.parked() as u64,
                limits: ClassLimits { requests, raw_isl_tokens, cached_tokens },
                prefill_busy_threshold: class.spec.prefill_busy_threshold,
                prefill_busy_threshold_frac: class.spec.prefill_busy_threshold_frac.filter(|limit| limit.is_finite()),
                busy_ranks: busy as u64,
                quantum: share.quantum,
                deficit: share.deficit,
            }
        };
        let (max_requests, max_isl_tokens) = self.limits();
        PartitionQueue {
            model_name: names.0,
            routing_group: names.1,
            enabled: self.is_on(),
            waiting: self.waiting.requests,
            isl_tokens: self.waiting.raw_tokens,
            max_requests,
            max_isl_tokens,
            ranks: ranks as u64,
            classes: self.classes.iter().zip(&self.shares).enumerate().map(class).collect(),
        }
    }
}

/// Names of limits, in the order counts have them.
pub fn limit_words() -> [&'static str; LimitKind::ALL.len()] {
    LimitKind::ALL.map(LimitKind::word)
}
