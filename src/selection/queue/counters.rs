//! What became of the requests of a class, counted for metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Upper bounds of waits, in seconds.
pub const WAIT_BOUNDS: [f64; 14] = [0.0, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];
/// Classes of a partition counted by name, over all profiles it had; the rest are counted together.
const MAX_CLASSES: usize = 100;
/// Name of the rest. No class can have it: `_others` could be one, so it has a character that names cannot have.
const OTHERS: &str = "(others)";

/// Which limit refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Waiting requests of the class.
    Requests,
    /// Waiting prompt tokens of the class.
    RawIslTokens,
    /// Waiting prompt tokens of the class that are cached.
    CachedTokens,
    /// Waiting requests of the partition (ours).
    PartitionRequests,
    /// Waiting prompt tokens of the partition (ours).
    PartitionTokens,
}

impl LimitKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Requests, Self::RawIslTokens, Self::CachedTokens, Self::PartitionRequests, Self::PartitionTokens];

    /// The word in answers and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::RawIslTokens => "raw_isl_tokens",
            Self::CachedTokens => "cached_tokens",
            Self::PartitionRequests => "partition_requests",
            Self::PartitionTokens => "partition_isl_tokens",
        }
    }
}

/// Why a request leaves the queue by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its client is gone.
    Cancelled,
    /// Its deadline or due time passed.
    Expired,
}

/// Counters of one class.
#[derive(Debug, Default)]
pub struct ClassCounters {
    /// Requests that went, by wait; the last is beyond all bounds.
    waits: [AtomicU64; WAIT_BOUNDS.len() + 1],
    waited_nanos: AtomicU64,
    rejected: [AtomicU64; LimitKind::ALL.len()],
    expired: AtomicU64,
    cancelled: AtomicU64,
}

/// Counters of one class, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassCounts {
    /// Requests that went, by wait, not cumulative; the last is beyond [`WAIT_BOUNDS`].
    pub waits: [u64; WAIT_BOUNDS.len() + 1],
    /// Sum of their waits, in seconds.
    pub waited_seconds: f64,
    /// Refused, in the order of [`LimitKind::ALL`].
    pub rejected: [u64; LimitKind::ALL.len()],
    /// Their deadline or due time passed.
    pub expired: u64,
    /// Their client left.
    pub cancelled: u64,
}

impl ClassCounts {
    /// Adds those of another class.
    pub fn add(&mut self, other: &Self) {
        let sums = self.waits.iter_mut().zip(&other.waits).chain(self.rejected.iter_mut().zip(&other.rejected));
        sums.for_each(|(sum, more)| *sum += more);
        self.waited_seconds += other.waited_seconds;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
    }
}

impl ClassCounters {
    /// A request went after a wait.
    pub(in crate::selection) fn went(&self, waited: Duration) {
        let seconds = waited.as_secs_f64();
        let bucket = WAIT_BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(WAIT_BOUNDS.len());
        self.waits[bucket].fetch_add(1, Relaxed);
        self.waited_nanos.fetch_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn rejected(&self, kind: LimitKind) {
        self.rejected[kind as usize].fetch_add(1, Relaxed);
    }

    /// A request left by itself.
    pub(in crate::selection) fn left(&self, why: Departure) {
        let counter = match why {
            Departure::Cancelled => &self.cancelled,
            Departure::Expired => &self.expired,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn read(&self) -> ClassCounts {
        ClassCounts {
            waits: std::array::from_fn(|at| self.waits[at].load(Relaxed)),
            waited_seconds: self.waited_nanos.load(Relaxed) as f64 / 1e9,
            rejected: std::array::from_fn(|at| self.rejected[at].load(Relaxed)),
            expired: self.expired.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
        }
    }
}

/// Counters of all classes a partition had. They outlive the classes: a counter never goes back.
#[derive(Debug, Default)]
pub(super) struct Counters(BTreeMap<Arc<str>, Arc<ClassCounters>>);

impl Counters {
    pub(super) fn of(&mut self, class: &Arc<str>) -> Arc<ClassCounters> {
        let is_known = self.0.contains_key(class);
        let name = if is_known || self.0.len() < MAX_CLASSES { Arc::clone(class) } else { Arc::from(OTHERS) };
        Arc::clone(self.0.entry(name).or_default())
    }

    pub(super) fn read(&self) -> Vec<(Arc<str>, ClassCounts)> {
        self.0.iter().map(|(name, counters)| (Arc::clone(name), counters.read())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_fall_into_their_buckets() {
        let mut counters = Counters::default();
        let class = counters.of(&"a".into());
        for millis in [0, 1, 2, 100, 101, 1_000_000] {
            class.went(Duration::from_millis(millis));
        }
        let (_, counts) = counters.read().remove(0);
        let buckets: Vec<_> = (0..).zip(counts.waits).filter(|&(_, count)| count > 0).collect();
        assert_eq!(buckets, [(0, 1), (1, 1), (2, 1), (6, 1), (7, 1), (14, 1)]);
        assert!((counts.waited_seconds - 1000.204).abs() < 1e-6);
    }

    #[test]
    fn names_are_bounded() {
        let mut counters = Counters::default();
        for at in 0..500 {
            counters.of(&format!("class-{at}").into()).left(Departure::Cancelled);
        }
        counters.of(&"class-3".into()).left(Departure::Cancelled);
        let read = counters.read();
        assert_eq!(read.len(), MAX_CLASSES + 1);
        assert_eq!(read.iter().map(|(_, counts)| counts.cancelled).sum::<u64>(), 501);
        assert_eq!(read.iter().find(|(name, _)| **name == *OTHERS).map(|(_, counts)| counts.cancelled), Some(400));
    }

    #[test]
    fn counts_of_two_classes_add_up() {
        let mut counters = Counters::default();
        let class = counters.of(&"a".into());
        class.went(Duration::from_secs(2));
        class.rejected(LimitKind::ALL[1]);
        [Departure::Cancelled, Departure::Expired].into_iter().for_each(|why| class.left(why));
        let (_, one) = counters.read().remove(0);
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.waits.iter().sum::<u64>(), sum.rejected[1]), (2, 2));
        assert_eq!((sum.waited_seconds, sum.expired, sum.cancelled), (4.0, 2, 2));
    }
}
