//! `consistent-hashing`: equal beginnings, or equal sessions, go to one rank while it is not overloaded.
//!
//! Rendezvous hashing: each rank has a weight for a key, the heaviest rank within the bound wins. A rank that comes or
//! goes moves only the keys that are its own. Bound: `load_factor * (requests + 1) / ranks`, which the least busy rank
//! always keeps.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    check, picker_factory, provider as provider_of,
    rank_choice::{busyness, first_least, loads, mix, no_rows},
};
use crate::selection::{
    identity::WorkerWithDpRank,
    policy::{
        context::WorkerSelectionContext,
        inputs::{WorkerInputView, WorkerInputs},
        parameters::WorkerSelectionPolicyProviderError,
        stages::{
            WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider,
        },
    },
};

/// What the key is made of.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Key {
    /// The first `prefix_tokens` of the prompt, in whole blocks.
    #[default]
    Prefix,
    /// The session; the prefix without one.
    Session,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    key: Key,
    /// Tokens of the prompt that make the key, rounded up to blocks; 1 or more.
    prefix_tokens: u64,
    /// Load of a rank over the mean up to which it takes its own keys; 1 or more.
    load_factor: f64,
    /// Another seed is another distribution; equal on all replicas.
    seed: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { key: Key::Prefix, prefix_tokens: 256, load_factor: 1.25, seed: 0 }
    }
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    check(own.prefix_tokens > 0, || "prefix_tokens must be greater than zero".to_owned())?;
    check(own.load_factor.is_finite() && own.load_factor >= 1.0, || {
        "load_factor must be finite and at least 1".to_owned()
    })?;
    Ok(picker_factory(true, move |_, _| ConsistentHashing(own)))
}

struct ConsistentHashing(Parameters);

impl ConsistentHashing {
    /// `None` for a prompt of less than a block.
    fn key(&self, context: &WorkerSelectionContext<'_>) -> Option<u64> {
        let session = || context.session_id().map(|id| xxh3_64(id.as_bytes()));
        let prefix = || {
            let blocks = self.0.prefix_tokens.div_ceil(u64::from(context.block_size().max(1)));
            let hashes = context.prefix_hashes();
            let last = usize::try_from(blocks).unwrap_or(usize::MAX).min(hashes.len()).checked_sub(1)?;
            // A tracking hash stands for all blocks up to its own.
            hashes.get(last).copied()
        };
        match self.0.key {
            Key::Prefix => prefix(),
            Key::Session => session().or_else(prefix),
        }
    }

    fn weight(&self, key: u64, rank: WorkerWithDpRank) -> u64 {
        mix(key ^ mix(rank.worker_id ^ mix(u64::from(rank.dp_rank) ^ self.0.seed)))
    }
}

impl WorkerPicker for ConsistentHashing {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let loads = loads(input)?;
        let least = || first_least(loads.iter().map(busyness).enumerate()).ok_or_else(no_rows);
        let Some(key) = self.key(context) else { return least() };
        let total: f64 = loads.iter().map(|load| load.active_requests() as f64).sum();
        let bound = self.0.load_factor * (total + 1.0) / loads.len().max(1) as f64;
        let within = loads.iter().enumerate().filter(|(_, load)| load.active_requests() as f64 <= bound);
        let heaviest = within.max_by_key(|&(row, _)| self.weight(key, input.candidates()[row].worker()));
        heaviest.map_or_else(least, |(row, _)| Ok(row))
    }
}
