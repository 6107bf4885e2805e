//! `warm-and-idle`: among workers that hold enough of the prompt, the one with the fewest requests.
//!
//! A prompt that no worker holds enough of is refused (503), so pair it with a second instance or a limit of 0 where that
//! may happen.

use std::sync::Arc;

use pointsman::plugins::{
    RouterPluginRegistry, WorkerSelectionPolicyProviderError, WorkerSelectionPolicyRegistryError,
    worker_selection::{
        WorkerCandidate, WorkerCandidates, WorkerFilter, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer,
        WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
    },
};
use serde::Deserialize;

/// The name that a policy file uses as `type`.
pub const TYPE: &str = "warm-and-idle";

/// What a policy file may set under `parameters`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// A worker must have this many blocks of the prompt on its device.
    pub min_device_overlap_blocks: f64,
    /// Requests in progress that cost nothing.
    pub free_requests: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { min_device_overlap_blocks: 0.0, free_requests: 0 }
    }
}

impl Parameters {
    fn validate(&self) -> Result<(), WorkerSelectionPolicyProviderError> {
        if self.min_device_overlap_blocks.is_finite() && self.min_device_overlap_blocks >= 0.0 {
            return Ok(());
        }
        Err(WorkerSelectionPolicyProviderError::new("min_device_overlap_blocks must be finite and non-negative"))
    }
}

/// Keeps workers with enough of the prompt.
struct MinimumOverlap {
    blocks: f64,
}

impl WorkerFilter for MinimumOverlap {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE
    }

    fn keep(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError> {
        let cache = candidate.cache().ok_or_else(|| WorkerSelectionPolicyError::failed("cache input is missing"))?;
        // A prompt shorter than the limit needs no more than all of itself.
        Ok(cache.device_overlap_blocks() >= self.blocks.min(context.request_blocks() as f64))
    }
}

/// A block of cost for each request above the free ones.
struct ActiveRequests {
    free: u64,
}

impl WorkerScorer for ActiveRequests {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        for (candidate, cost) in candidates.iter().zip(costs) {
            let load = candidate.load().ok_or_else(|| WorkerSelectionPolicyError::failed("load input is missing"))?;
            *cost = (load.active_requests() as u64).saturating_sub(self.free) as f64;
        }
        Ok(())
    }
}

/// The least cost; the first of equals.
struct LowestCost;

impl WorkerPicker for LowestCost {
    fn pick(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let rows = input.candidates().iter().enumerate();
        let least = rows.min_by(|(_, a), (_, b)| a.cost().total_cmp(&b.cost()));
        least.map(|(row, _)| row).ok_or_else(|| WorkerSelectionPolicyError::failed("no candidate"))
    }
}

/// Makes the policy of one configured instance: a fresh one for every model, routing group and role.
pub fn factory(parameters: Parameters) -> WorkerSelectionPolicyFactory {
    Arc::new(move |config, role, _partition| {
        WorkerSelectionPolicy::new_with_filters(
            config.clone(),
            role.as_str(),
            vec![Box::new(MinimumOverlap { blocks: parameters.min_device_overlap_blocks })],
            vec![Box::new(ActiveRequests { free: parameters.free_requests })],
            Box::new(LowestCost),
        )
    })
}

/// Makes the policy known under [`TYPE`].
///
/// # Errors
/// Another policy has that name.
pub fn register(registry: &mut RouterPluginRegistry) -> Result<(), WorkerSelectionPolicyRegistryError> {
    registry.register_worker_selection(
        TYPE,
        Arc::new(|parameters| {
            let parameters: Parameters = parameters.deserialize()?;
            parameters.validate()?;
            Ok(factory(parameters))
        }),
    )
}
