//! What workers have room for, and what the programs on them take, in tokens.

use std::{collections::BTreeMap, time::Instant};

use super::{Parameters, Program};
use crate::selection::{identity::WorkerWithDpRank, policy::classifier::context::RequestClassifierWorker};

/// One rank.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Infinite when its worker stated none.
    capacity: f64,
    used: f64,
    /// A request of a program runs there.
    busy: bool,
}

impl Rank {
    fn share(&self) -> f64 {
        self.used / self.capacity
    }

    fn takes(&self, tokens: f64, most: f64) -> bool {
        self.used + tokens <= self.capacity * most || !self.busy
    }
}

/// All ranks, as of the last measurement and what came since.
#[derive(Debug)]
pub(super) struct Usage {
    block_size: f64,
    ranks: BTreeMap<(u64, u32), Rank>,
    measured: Instant,
}

impl Usage {
    pub(super) fn new(block_size: u32, now: Instant) -> Self {
        Self { block_size: f64::from(block_size), ranks: BTreeMap::new(), measured: now }
    }

    pub(super) fn measured(&self) -> Instant {
        self.measured
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    pub(super) fn measure<'a>(
        &mut self,
        workers: &[RequestClassifierWorker],
        programs: impl Iterator<Item = &'a Program>,
        parameters: &Parameters,
        now: Instant,
    ) {
        self.measured = now;
        self.ranks.clear();
        for rank in workers {
            let blocks = rank.total_kv_blocks().filter(|blocks| *blocks > 0);
            let capacity = blocks.map_or(f64::INFINITY, |blocks| blocks as f64 * self.block_size);
            self.ranks.insert(key(rank.worker()), Rank { capacity, ..Rank::default() });
        }
        for program in programs {
            let Some(rank) = program.worker.and_then(|worker| self.ranks.get_mut(&key(worker))) else { continue };
            rank.used += footprint(program, parameters, now);
            rank.busy |= !program.running.is_empty();
        }
    }

    pub(super) fn has(&self, worker: WorkerWithDpRank) -> bool {
        self.ranks.contains_key(&key(worker))
    }

    /// A program takes that much more of `worker`.
    pub(super) fn add(&mut self, worker: WorkerWithDpRank, tokens: f64) {
        if let Some(rank) = self.ranks.get_mut(&key(worker)) {
            rank.used = (rank.used + tokens).max(0.0);
            rank.busy |= tokens > 0.0;
        }
    }

    pub(super) fn used(&self, worker: WorkerWithDpRank) -> f64 {
        self.ranks.get(&key(worker)).map_or(0.0, |rank| rank.used)
    }

    pub(super) fn capacity(&self, worker: WorkerWithDpRank) -> f64 {
        self.ranks.get(&key(worker)).map_or(f64::INFINITY, |rank| rank.capacity)
    }

    /// Ranks of which more than `share` is taken.
    pub(super) fn above(&self, share: f64) -> Vec<WorkerWithDpRank> {
        let over = self.ranks.iter().filter(|(_, rank)| rank.share() > share);
        over.map(|(&(worker_id, dp_rank), _)| WorkerWithDpRank::new(worker_id, dp_rank)).collect()
    }

    /// Where `tokens` more fit: `prefers` if they do there, anywhere (`Some(None)`) if they do everywhere, else the rank
    /// of which the least is taken.
    pub(super) fn place(
        &self,
        tokens: f64,
        prefers: Option<WorkerWithDpRank>,
        most: f64,
    ) -> Option<Option<WorkerWithDpRank>> {
        if let Some(worker) = prefers
            && self.ranks.get(&key(worker)).is_some_and(|rank| rank.takes(tokens, most))
        {
            return Some(Some(worker));
        }
        if self.ranks.values().all(|rank| rank.takes(tokens, most)) {
            return Some(None);
        }
        self.least(|rank| rank.takes(tokens, most)).map(Some)
    }

    /// The rank of which the least is taken.
    pub(super) fn emptiest(&self) -> Option<WorkerWithDpRank> {
        self.least(|_| true)
    }

    fn least(&self, passes: impl Fn(&Rank) -> bool) -> Option<WorkerWithDpRank> {
        let passing = self.ranks.iter().filter(|(_, rank)| passes(rank));
        let least = passing.min_by(|(_, a), (_, b)| a.share().total_cmp(&b.share()));
        least.map(|(&(worker_id, dp_rank), _)| WorkerWithDpRank::new(worker_id, dp_rank))
    }
}

/// What a program takes of its worker now: all of its context while it reasons, ever less of it while it acts, nothing
/// while it is paused and none of its requests runs.
pub(super) fn footprint(program: &Program, parameters: &Parameters, now: Instant) -> f64 {
    let tokens = program.tokens() as f64 + parameters.buffer_per_program as f64;
    if !program.running.is_empty() {
        tokens
    } else if program.paused {
        0.0
    } else {
        tokens * parameters.acting_weight(now.saturating_duration_since(program.since))
    }
}

fn key(worker: WorkerWithDpRank) -> (u64, u32) {
    (worker.worker_id, worker.dp_rank)
}
