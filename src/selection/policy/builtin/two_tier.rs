//! `dynamo-two-tier-cost-fn`: balance while load is uneven, else follow the cache (spec plugins 8.1).

use serde::{Deserialize, Serialize};

use super::{
    check, picker_factory, provider as provider_of,
    rank_choice::{first_least, loads, no_rows},
};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    inputs::{WorkerInputView, WorkerInputs},
    parameters::WorkerSelectionPolicyProviderError,
    stages::{WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
};

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    /// Share of the prompt above which the holders of the deepest device match are preferred, 0 to 1.
    cache_threshold: f64,
    /// Spread of active requests up to which load counts as even.
    balance_abs_threshold: u64,
    /// Most over least active requests up to which load counts as even, 1 or more.
    balance_rel_threshold: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { cache_threshold: 0.5, balance_abs_threshold: 32, balance_rel_threshold: 1.1 }
    }
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    check((0.0..=1.0).contains(&own.cache_threshold), || {
        "cache_threshold must be a finite number between 0.0 and 1.0".to_owned()
    })?;
    check(own.balance_rel_threshold.is_finite() && own.balance_rel_threshold >= 1.0, || {
        "balance_rel_threshold must be a finite number greater than or equal to 1.0".to_owned()
    })?;
    Ok(picker_factory(false, move |_, _| TwoTier(own)))
}

struct TwoTier(Parameters);

impl WorkerPicker for TwoTier {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE | WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let loads = loads(input)?;
        let requests = || loads.iter().map(|load| load.active_requests());
        let least = || first_least(requests().enumerate()).ok_or_else(no_rows);
        let (min, max) = requests().fold((usize::MAX, 0), |(min, max), n| (min.min(n), max.max(n)));
        let uneven = max.saturating_sub(min) as u64 > self.0.balance_abs_threshold
            && max as f64 > self.0.balance_rel_threshold * min as f64;
        let Some(caches) = input.cache().filter(|_| !uneven) else { return least() };
        let deepest = caches.iter().map(|cache| cache.device_overlap_blocks()).fold(0.0, f64::max);
        if deepest / context.request_blocks().max(1) as f64 <= self.0.cache_threshold {
            return least();
        }
        let holders = requests().zip(caches.iter()).enumerate();
        let holders = holders.filter(|(_, (_, cache))| cache.device_overlap_blocks() == deepest);
        first_least(holders.map(|(row, (requests, _))| (row, requests))).ok_or_else(no_rows)
    }
}
