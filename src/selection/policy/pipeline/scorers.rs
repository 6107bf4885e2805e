//! Built-in scorers. Each writes a cost in the unit its name says, times its weight.

use std::sync::Arc;

use serde::Deserialize;

use super::{
    Make, WorkerSelectionPolicyProviderError,
    document::{Component, NoParameters, unknown_type},
    filters::kv_utilisation,
    refused,
};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    inputs::{WorkerCandidate, WorkerCandidates, WorkerInputs},
    stages::{WorkerScorer, WorkerSelectionPolicyError},
};

/// Types of scorers, as users write them.
pub(super) const TYPES: [&str; 7] = [
    "uncached-prefill-tokens",
    "active-prefill-tokens",
    "decode-blocks",
    "active-requests",
    "kv-utilisation",
    "missing-overlap-share",
    "preferred-taints",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct KvUtilisation {
    when_unknown: f64,
}

impl Default for KvUtilisation {
    fn default() -> Self {
        Self { when_unknown: 1.0 }
    }
}

#[derive(Clone, Copy)]
enum Measure {
    /// Tokens of this prompt that the rank would have to prefill.
    UncachedPrefillTokens,
    /// Prefill tokens in progress.
    ActivePrefillTokens,
    DecodeBlocks,
    ActiveRequests,
    /// Share of the KV blocks in use with this request; the number is for ranks that do not state their capacity.
    KvUtilisation(f64),
    /// Share of the prompt's blocks that the rank does not have on its device, 0 to 1.
    MissingOverlapShare,
    /// The preferred-taint factor less 1: negative for workers that are preferred.
    PreferredTaints,
}

#[derive(Clone)]
struct BuiltinScorer {
    name: String,
    measure: Measure,
    weight: f64,
}

/// The scorer of a type.
pub(super) fn scorer(
    path: &str,
    component_type: &str,
    entry: &Component,
    weight: f64,
) -> Result<Make<dyn WorkerScorer>, WorkerSelectionPolicyProviderError> {
    let measure = match component_type {
        "kv-utilisation" => {
            let when_unknown = entry.parameters::<KvUtilisation>(path)?.when_unknown;
            if !when_unknown.is_finite() {
                return Err(refused(&format!("{path}.parameters.when_unknown"), "must be finite"));
            }
            Measure::KvUtilisation(when_unknown)
        }
        plain => {
            let measure = match plain {
                "uncached-prefill-tokens" => Measure::UncachedPrefillTokens,
                "active-prefill-tokens" => Measure::ActivePrefillTokens,
                "decode-blocks" => Measure::DecodeBlocks,
                "active-requests" => Measure::ActiveRequests,
                "missing-overlap-share" => Measure::MissingOverlapShare,
                "preferred-taints" => Measure::PreferredTaints,
                other => return Err(unknown_type(path, other, &TYPES)),
            };
            let NoParameters {} = entry.parameters(path)?;
            measure
        }
    };
    let scorer = BuiltinScorer { name: entry.named(component_type), measure, weight };
    Ok(Arc::new(move || Box::new(scorer.clone())))
}

impl WorkerScorer for BuiltinScorer {
    fn required_worker_inputs(&self) -> WorkerInputs {
        match self.measure {
            Measure::UncachedPrefillTokens | Measure::MissingOverlapShare => WorkerInputs::CACHE,
            Measure::PreferredTaints => WorkerInputs::PREFERRED_TAINT,
            _ => WorkerInputs::LOAD,
        }
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let weight = self.weight;
        let mut write = |measure: &dyn Fn(WorkerCandidate<'_>) -> f64| {
            for (cost, candidate) in costs.iter_mut().zip(candidates.iter()) {
                *cost = weight * measure(candidate);
            }
        };
        match self.measure {
            Measure::UncachedPrefillTokens => {
                let prompt = context.prompt_tokens();
                write(&|row| {
                    let cached = row.cache().map_or(0, |cache| cache.accounting_cache_estimate().1);
                    prompt.saturating_sub(cached) as f64
                });
            }
            Measure::ActivePrefillTokens => {
                write(&|row| row.load().map_or(0.0, |load| load.active_prefill_tokens() as f64));
            }
            Measure::DecodeBlocks => write(&|row| row.load().map_or(0.0, |load| load.decode_cost_blocks())),
            Measure::ActiveRequests => write(&|row| row.load().map_or(0.0, |load| load.active_requests() as f64)),
            Measure::KvUtilisation(unknown) => write(&|row| kv_utilisation(context, row).unwrap_or(unknown)),
            Measure::MissingOverlapShare => {
                let blocks = context.request_blocks().max(1) as f64;
                write(&|row| {
                    let held = row.cache().map_or(0.0, |cache| cache.device_overlap_blocks());
                    1.0 - (held / blocks).min(1.0)
                });
            }
            Measure::PreferredTaints => {
                write(&|row| row.preferred_taint_multiplier().map_or(0.0, |factor| factor - 1.0))
            }
        }
        Ok(())
    }

    fn component_name(&self) -> &str {
        &self.name
    }
}
