//! How much may wait (spec scheduling 3.5): by class, as the profile says, and by partition.
//!
//! Each limit is checked before a request is added, against what waits then: the request that crosses one is accepted,
//! the next is refused.

use super::{counters::LimitKind, profile::PolicyClass};
use crate::selection::error::QueueRejection;

/// Most requests that wait in one partition, unless set otherwise.
pub const DEFAULT_MAX_REQUESTS: u64 = 10_000;
/// Most prompt tokens that wait in one partition, unless set otherwise. A waiting request keeps its prompt: about a
/// gigabyte of token ids and hashes.
pub const DEFAULT_MAX_TOKENS: u64 = 134_217_728;

/// Most that may wait in one partition, over all classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens.
    pub tokens: u64,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { requests: DEFAULT_MAX_REQUESTS, tokens: DEFAULT_MAX_TOKENS }
    }
}

impl QueueLimits {
    /// The limits of requests that have an idle rank to go to, which pass a full queue: twice as much, so that even those
    /// are bounded.
    pub(super) fn with_room(self) -> Self {
        Self { requests: self.requests.saturating_mul(2), tokens: self.tokens.saturating_mul(2) }
    }
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) raw_tokens: u64,
    pub(super) cached_tokens: u64,
}

impl Totals {
    pub(super) fn add(&mut self, raw_tokens: u64, cached_tokens: u64) {
        self.requests += 1;
        self.raw_tokens = self.raw_tokens.saturating_add(raw_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(cached_tokens);
    }

    pub(super) fn remove(&mut self, raw_tokens: u64, cached_tokens: u64) {
        self.requests = self.requests.saturating_sub(1);
        self.raw_tokens = self.raw_tokens.saturating_sub(raw_tokens);
        self.cached_tokens = self.cached_tokens.saturating_sub(cached_tokens);
    }
}

/// A limit that is reached.
pub(super) type Reached = (LimitKind, QueueRejection);

/// The first limit of a class that is reached.
pub(super) fn class_limit(class: &PolicyClass, waiting: Totals, workers: u64) -> Option<Reached> {
    limits_of(class, workers).into_iter().find_map(|(kind, limit)| {
        let current = match kind {
            LimitKind::RawIslTokens => waiting.raw_tokens,
            LimitKind::CachedTokens => waiting.cached_tokens,
            _ => waiting.requests,
        };
        limit.and_then(|limit| reached(class, kind, current, limit))
    })
}

/// The first limit of the partition that is reached.
pub(super) fn partition_limit(class: &PolicyClass, waiting: Totals, limits: QueueLimits) -> Option<Reached> {
    reached(class, LimitKind::PartitionRequests, waiting.requests, limits.requests)
        .or_else(|| reached(class, LimitKind::PartitionTokens, waiting.raw_tokens, limits.tokens))
}

/// The limits of a class in the order they are checked.
pub(super) fn limits_of(class: &PolicyClass, workers: u64) -> [(LimitKind, Option<u64>); 3] {
    let scaled = |limit: Option<u64>| limit.map(|limit| limit.saturating_mul(workers));
    [
        (LimitKind::Requests, scaled(class.request_queue_limit_per_worker)),
        (LimitKind::RawIslTokens, scaled(class.raw_isl_token_queue_limit_per_worker)),
        (LimitKind::CachedTokens, scaled(class.cached_token_queue_limit_per_worker)),
    ]
}

/// Whether requests of the class can never wait: a limit of it, or of the partition, is 0.
pub(super) fn never_queues(class: &PolicyClass, limits: QueueLimits) -> bool {
    limits.requests == 0 || limits.tokens == 0 || limits_of(class, 1).iter().any(|(_, limit)| *limit == Some(0))
}

fn reached(class: &PolicyClass, kind: LimitKind, current: u64, limit: u64) -> Option<Reached> {
    (current >= limit).then(|| {
        let policy_class = class.name.to_string();
        (kind, QueueRejection { policy_class, limit_kind: kind.word(), current, limit })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::{config::QueuePolicy, queue::profile::PolicyProfile};

    fn class(requests: Option<u64>, raw: Option<u64>, cached: Option<u64>) -> PolicyClass {
        PolicyClass {
            request_queue_limit_per_worker: requests,
            raw_isl_token_queue_limit_per_worker: raw,
            cached_token_queue_limit_per_worker: cached,
            ..PolicyProfile::synthetic(None, QueuePolicy::Fcfs).classes.remove(0)
        }
    }

    #[test]
    fn limits_scale_with_workers_and_are_checked_in_order() {
        let waiting = Totals { requests: 2, raw_tokens: 106, cached_tokens: 16 };
        let said = |class: &PolicyClass, workers| {
            class_limit(class, waiting, workers)
                .map(|(_, rejection)| (rejection.limit_kind, rejection.current, rejection.limit))
        };
        assert_eq!(said(&class(Some(1), None, None), 2), Some(("requests", 2, 2)));
        assert_eq!(said(&class(Some(1), Some(0), None), 3), Some(("raw_isl_tokens", 106, 0)));
        assert_eq!(said(&class(None, Some(50), None), 2), Some(("raw_isl_tokens", 106, 100)));
        assert_eq!(said(&class(None, None, Some(8)), 2), Some(("cached_tokens", 16, 16)));
        assert_eq!(said(&class(Some(2), Some(54), Some(9)), 2), None);
        assert_eq!(said(&class(Some(u64::MAX), None, None), u64::MAX), None, "the product saturates");
    }

    #[test]
    fn a_partition_has_limits_of_its_own() {
        let limits = QueueLimits { requests: 3, tokens: 100 };
        let said = |requests, raw_tokens| {
            let waiting = Totals { requests, raw_tokens, cached_tokens: 0 };
            partition_limit(&class(None, None, None), waiting, limits).map(|(_, rejection)| rejection.limit_kind)
        };
        assert_eq!(said(2, 99), None);
        assert_eq!(said(3, 99), Some("partition_requests"));
        assert_eq!(said(2, 100), Some("partition_isl_tokens"));
    }

    #[test]
    fn a_class_with_a_limit_of_zero_never_queues() {
        let partition = QueueLimits::default();
        assert!(!never_queues(&class(None, Some(1), None), partition));
        assert!(never_queues(&class(Some(1), None, Some(0)), partition));
        assert!(never_queues(&class(None, None, None), QueueLimits { requests: 0, ..partition }));
        assert!(never_queues(&class(None, None, None), QueueLimits { tokens: 0, ..partition }));
    }
}
