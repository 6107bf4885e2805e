//! A routing policy of your own, and a selector that runs it.
//!
//! ```text
//! cargo run --example custom_policy -- selector --router-policy-config examples/custom_policy.yaml
//! ```
//!
//! docs/write-a-policy.md walks through it; examples/routing-policy lays the same out as packages of their own.

use std::{process::ExitCode, sync::Arc};

use pointsman::plugins::worker_selection::{
    WorkerCandidates, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer, WorkerSelectionContext,
    WorkerSelectionPolicy, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
};
use serde::Deserialize;

/// What the policy file may set.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Parameters {
    /// Blocks of prompt that one request in progress is worth.
    request_weight: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { request_weight: 8.0 }
    }
}

/// Prompt blocks to compute, and a price for every request in progress.
struct WorkToDo(Parameters);

impl WorkerScorer for WorkToDo {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE | WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        for (candidate, cost) in candidates.iter().zip(costs) {
            let (Some(cache), Some(load)) = (candidate.cache(), candidate.load()) else {
                return Err(WorkerSelectionPolicyError::failed("inputs are missing"));
            };
            let uncached = context.request_blocks() as f64 - cache.device_overlap_blocks();
            *cost = uncached.max(0.0) + self.0.request_weight * load.active_requests() as f64;
        }
        Ok(())
    }
}

/// The least cost.
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

fn main() -> ExitCode {
    let mut registry = pointsman::plugins::router_plugin_registry();
    let registered = registry.register_worker_selection(
        "work-to-do",
        Arc::new(|parameters| {
            let parameters: Parameters = parameters.deserialize()?;
            let factory: WorkerSelectionPolicyFactory = Arc::new(move |config, role, _partition| {
                let scorer = Box::new(WorkToDo(parameters.clone()));
                WorkerSelectionPolicy::new(config.clone(), role.as_str(), vec![scorer], Box::new(LowestCost))
            });
            Ok(factory)
        }),
    );
    if let Err(error) = registered {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    pointsman::cli::run_with(&registry)
}
