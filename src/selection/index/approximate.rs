//! An index of the router's own decisions, for engines without events and for predict-on-route: each booking records
//! its prompt for the chosen rank, and each block goes at its deadline unless booked again.

use std::time::Duration;

use super::PrefixIndex;
use crate::selection::{identity::WorkerWithDpRank, moment::Moment};

/// Prefix index whose blocks expire `ttl` after they were last booked, rounded up to 100 ms.
#[derive(Debug)]
pub struct ApproximateIndex {
    index: PrefixIndex,
}

impl ApproximateIndex {
    /// An empty index whose deadlines are multiples of 100 ms counted from `start`.
    pub fn new(ttl: Duration, start: Moment) -> Self {
        let _ = (ttl, start);
        todo!()
    }

    /// The index itself, for slots, lookups, removal of workers and dumps.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// `rank` was sent this prompt: its blocks (named by their seqs) count until the new deadline.
    pub fn record(&self, rank: WorkerWithDpRank, locals: &[u64], seqs: &[u64], now: Moment) {
        let _ = (rank, locals, seqs, now);
        todo!()
    }

    /// Removes what is past its deadline; returns how many blocks went.
    pub fn expire(&self, now: Moment) -> usize {
        let _ = now;
        todo!()
    }
}
