//! `session-sticky`: a session stays on the rank of its first request.
//!
//! Its own table of sessions, unlike the host's affinity: bounded by number, the least recently used one goes. Requests
//! without a session, and first ones, go to the least busy rank. Queries bind nothing.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    check, picker_factory, provider as provider_of,
    rank_choice::{any_least, busyness, generator, loads, no_rows},
};
use crate::selection::{
    identity::WorkerWithDpRank,
    policy::{
        context::WorkerSelectionContext,
        inputs::{WorkerInputView, WorkerInputs, WorkerLoadInput},
        parameters::WorkerSelectionPolicyProviderError,
        stages::{
            WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider,
        },
    },
};

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    /// Requests of a rank over the mean above which a session leaves it, 1 or more; absent = it never does.
    load_factor: Option<f64>,
    /// Sessions remembered, 1 or more.
    max_sessions: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { load_factor: None, max_sessions: 65_536 }
    }
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    check(own.load_factor.is_none_or(|factor| factor.is_finite() && factor >= 1.0), || {
        "load_factor must be finite and at least 1".to_owned()
    })?;
    check(own.max_sessions > 0, || "max_sessions must be greater than zero".to_owned())?;
    Ok(picker_factory(false, move |config, partition| SessionSticky {
        load_factor: own.load_factor,
        sessions: Sessions { most: own.max_sessions, ..Sessions::default() },
        rng: generator(config, partition),
    }))
}

/// Ranks by the hash of a session's id, which is as good as the id and has one size.
#[derive(Debug, Default)]
struct Sessions {
    most: usize,
    ranks: HashMap<u128, (WorkerWithDpRank, u64)>,
    /// By time of last use.
    uses: BTreeMap<u64, u128>,
    now: u64,
}

impl Sessions {
    fn rank(&self, session: u128) -> Option<WorkerWithDpRank> {
        self.ranks.get(&session).map(|&(rank, _)| rank)
    }

    fn bind(&mut self, session: u128, rank: WorkerWithDpRank) {
        self.now += 1;
        if let Some((_, used)) = self.ranks.insert(session, (rank, self.now)) {
            self.uses.remove(&used);
        }
        self.uses.insert(self.now, session);
        while self.ranks.len() > self.most {
            let Some((_, oldest)) = self.uses.pop_first() else { break };
            self.ranks.remove(&oldest);
        }
    }

    fn end(&mut self, session: u128) {
        if let Some((_, used)) = self.ranks.remove(&session) {
            self.uses.remove(&used);
        }
    }
}

struct SessionSticky {
    load_factor: Option<f64>,
    sessions: Sessions,
    rng: fastrand::Rng,
}

impl SessionSticky {
    /// The row of the session's rank, while that may keep it.
    fn bound(&self, session: u128, input: WorkerInputView<'_>, loads: &[WorkerLoadInput]) -> Option<usize> {
        let rank = self.sessions.rank(session)?;
        let row = input.candidates().binary_search_by_key(&rank, |row| row.worker()).ok()?;
        let Some(factor) = self.load_factor else { return Some(row) };
        let total: f64 = loads.iter().map(|load| load.active_requests() as f64).sum();
        let bound = factor * (total + 1.0) / loads.len() as f64;
        (loads[row].active_requests() as f64 <= bound).then_some(row)
    }
}

impl WorkerPicker for SessionSticky {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let loads = loads(input)?;
        let session = context.session_id().map(|id| xxh3_128(id.as_bytes()));
        let row = match session.and_then(|session| self.bound(session, input, loads)) {
            Some(row) => row,
            None => any_least(loads.iter().map(busyness).enumerate(), &mut self.rng).ok_or_else(no_rows)?,
        };
        if let Some(session) = session.filter(|_| !context.is_query()) {
            if context.session_context().and_then(|session| session.session_final()) == Some(true) {
                self.sessions.end(session);
            } else {
                self.sessions.bind(session, input.candidates()[row].worker());
            }
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_session_goes() {
        let mut sessions = Sessions { most: 2, ..Sessions::default() };
        let rank = |worker| WorkerWithDpRank::new(worker, 0);
        sessions.bind(1, rank(1));
        sessions.bind(2, rank(2));
        sessions.bind(1, rank(1));
        sessions.bind(3, rank(3));
        assert_eq!([1, 2, 3].map(|id| sessions.rank(id)), [Some(rank(1)), None, Some(rank(3))]);
        sessions.end(3);
        sessions.end(3);
        assert_eq!((sessions.ranks.len(), sessions.uses.len()), (1, 1));
    }
}
