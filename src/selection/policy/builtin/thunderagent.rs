//! `thunderagent`: routing for fleets of agents (spec plugins 8.1). Here its worker selection: tokens in progress, and a
//! session's own rank first.

pub(super) mod classifier;

use super::{
    NoParameters, provider as provider_of,
    rank_choice::{first_least, no_rows},
    scored_factory,
};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    inputs::{WorkerCandidates, WorkerInputView, WorkerInputs},
    parameters::WorkerSelectionPolicyProviderError,
    stages::{
        WorkerPicker, WorkerScorer, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
        WorkerSelectionPolicyProvider,
    },
};

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(_: NoParameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    Ok(scored_factory(false, |_, _| (vec![Box::new(TokensInProgress)], Box::new(TargetFirst))))
}

/// Prefill tokens and decode blocks of a rank with this request, in tokens.
struct TokensInProgress;

impl WorkerScorer for TokensInProgress {
    /// No cost reads the cache, but what is booked is less what is cached, and that is the load of the next selection.
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD | WorkerInputs::CACHE
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let block_size = f64::from(context.block_size());
        for (candidate, cost) in candidates.iter().zip(costs) {
            if let Some(load) = candidate.load() {
                *cost = load.active_prefill_tokens() as f64 + load.decode_cost_blocks() * block_size;
            }
        }
        Ok(())
    }
}

/// The cheapest rank of the affinity target, else the cheapest; ties go to the lowest (worker, rank).
struct TargetFirst;

impl WorkerPicker for TargetFirst {
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let costs = || input.candidates().iter().map(|candidate| candidate.cost()).enumerate();
        let bound = context
            .affinity_target()
            .and_then(|target| first_least(costs().filter(|&(row, _)| target.is(input.candidates()[row].worker()))));
        bound.or_else(|| first_least(costs())).ok_or_else(no_rows)
    }
}
