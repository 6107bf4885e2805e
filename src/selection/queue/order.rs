//! Order inside a class (spec scheduling 3.6): strict priority, due time, score, number of arrival.

use std::{cmp::Reverse, str::FromStr};

use crate::selection::{error::ConfigError, moment::Moment};

/// Order of the queue's one synthetic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Last come, first served.
    Lcfs,
    /// Shortest uncached prompt first.
    Wspt,
}

impl FromStr for QueuePolicy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "fcfs" => Ok(Self::Fcfs),
            "lcfs" => Ok(Self::Lcfs),
            "wspt" => Ok(Self::Wspt),
            _ => Err(ConfigError(format!("unknown queue policy: {text:?}, expected 'fcfs', 'lcfs', or 'wspt'"))),
        }
    }
}

/// What a request brings to be ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rank {
    /// Higher goes first.
    pub(super) strict_priority: u32,
    /// Earlier goes first; any before none.
    pub(super) due: Option<Moment>,
    /// Seconds ahead; negative counts as 0.
    pub(super) jump: f64,
    /// When it came.
    pub(super) arrived: Moment,
    /// Uncached prompt tokens, at least 1.
    pub(super) cost: u64,
}

/// A place in the order; the least goes first. Numbers are unique, so keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderKey {
    strict_priority: Reverse<u32>,
    due: Moment,
    score: Reverse<Score>,
    /// Grows with every arrival in the partition.
    pub(super) number: u64,
}

impl OrderKey {
    /// The place of a request under a policy. It never changes while the request waits.
    pub(super) fn new(rank: &Rank, policy: QueuePolicy, number: u64) -> Self {
        Self {
            strict_priority: Reverse(rank.strict_priority),
            due: rank.due.unwrap_or(Moment(u64::MAX)),
            score: Reverse(Score(score(rank, policy))),
            number,
        }
    }
}

/// Higher goes first.
fn score(rank: &Rank, policy: QueuePolicy) -> f64 {
    // Not `jump.max(0.0)` alone: an embedding host may hand in anything.
    let jump = if rank.jump > 0.0 { rank.jump } else { 0.0 };
    let arrived = rank.arrived.0 as f64 / 1e9;
    match policy {
        QueuePolicy::Fcfs => jump - arrived,
        QueuePolicy::Lcfs => jump + arrived,
        QueuePolicy::Wspt => (1.0 + jump) / rank.cost.max(1) as f64,
    }
}

/// A number that is none of the not-a-numbers.
#[derive(Clone, Copy, Debug)]
struct Score(f64);

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64, jump: f64) -> Rank {
        Rank { arrived: Moment(secs * 1_000_000_000), jump, cost: 64, ..Rank::default() }
    }

    fn order(policy: QueuePolicy, ranks: &[Rank]) -> Vec<usize> {
        let mut keys: Vec<_> =
            ranks.iter().zip(0..).map(|(rank, number)| OrderKey::new(rank, policy, number)).collect();
        keys.sort();
        keys.iter().map(|key| key.number as usize).collect()
    }

    #[test]
    fn the_recorded_orders() {
        let jumps = [at(0, 0.0), at(1, -5.0), at(2, 30.0), at(3, 10.0)];
        assert_eq!(order(QueuePolicy::Fcfs, &jumps), [2, 3, 0, 1], "a negative jump is none");
        let plain = [at(0, 0.0), at(1, 0.0), at(2, 0.0)];
        assert_eq!(order(QueuePolicy::Fcfs, &plain), [0, 1, 2]);
        assert_eq!(order(QueuePolicy::Lcfs, &plain), [2, 1, 0]);
        assert_eq!(order(QueuePolicy::Lcfs, &[at(0, 5.0), at(1, 0.0)]), [0, 1]);
        let costs = [(100, 0.0), (10, 0.0), (10, 0.0), (100, 19.0)].map(|(cost, jump)| Rank { cost, ..at(0, jump) });
        assert_eq!(order(QueuePolicy::Wspt, &costs), [3, 1, 2, 0]);
    }

    #[test]
    fn strict_priority_goes_before_due_times_and_those_before_scores() {
        let strict = |strict_priority, rank| Rank { strict_priority, ..rank };
        let due = |secs, rank| Rank { due: Some(Moment(secs)), ..rank };
        let ranks = [at(0, 1e9), due(9, at(3, 0.0)), due(5, at(4, 0.0)), strict(1, at(5, 0.0)), due(5, at(2, 0.0))];
        assert_eq!(order(QueuePolicy::Fcfs, &ranks), [3, 4, 2, 1, 0]);
    }

    #[test]
    fn jumps_that_are_no_numbers_are_none() {
        let odd = [at(0, f64::NAN), at(1, f64::NEG_INFINITY), at(2, f64::INFINITY)];
        assert_eq!(order(QueuePolicy::Fcfs, &odd), [2, 0, 1]);
    }
}
