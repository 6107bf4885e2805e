//! Built-in filters.

use std::sync::Arc;

use serde::Deserialize;

use super::{
    Make, WorkerSelectionPolicyProviderError,
    document::{Component, unknown_type},
    refused,
};
use crate::selection::{
    policy::{
        context::WorkerSelectionContext,
        inputs::{WorkerCandidate, WorkerInputs},
        stages::{WorkerFilter, WorkerSelectionPolicyError},
    },
    trust::Trust,
};

/// Types of filters, as users write them.
pub(super) const TYPES: [&str; 5] =
    ["min-overlap", "max-active-requests", "max-prefill-tokens", "max-kv-utilisation", "min-trust"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MinOverlap {
    device_blocks: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Most {
    max: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MostShare {
    max: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AtLeast {
    at_least: WantedTrust,
}

/// Trust that can be asked for; all that is less trusted is refused.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WantedTrust {
    Complete,
    Replayed,
    Partial,
}

/// What keeps a candidate.
#[derive(Clone, Copy)]
enum Rule {
    MinOverlap(f64),
    MaxActiveRequests(u64),
    MaxPrefillTokens(u64),
    /// Workers that do not say their capacity stay.
    MaxKvUtilisation(f64),
    MinTrust(WantedTrust),
}

#[derive(Clone)]
struct BuiltinFilter {
    name: String,
    rule: Rule,
}

/// The filter of a type.
pub(super) fn filter(
    path: &str,
    component_type: &str,
    entry: &Component,
) -> Result<Make<dyn WorkerFilter>, WorkerSelectionPolicyProviderError> {
    let rule = match component_type {
        "min-overlap" => Rule::MinOverlap(f64::from(entry.parameters::<MinOverlap>(path)?.device_blocks)),
        "max-active-requests" => Rule::MaxActiveRequests(entry.parameters::<Most>(path)?.max),
        "max-prefill-tokens" => Rule::MaxPrefillTokens(entry.parameters::<Most>(path)?.max),
        "max-kv-utilisation" => {
            let max = entry.parameters::<MostShare>(path)?.max;
            if !(max.is_finite() && max >= 0.0) {
                return Err(refused(&format!("{path}.parameters.max"), "must be finite and at least 0"));
            }
            Rule::MaxKvUtilisation(max)
        }
        "min-trust" => Rule::MinTrust(entry.parameters::<AtLeast>(path)?.at_least),
        other => return Err(unknown_type(path, other, &TYPES)),
    };
    let filter = BuiltinFilter { name: entry.named(component_type), rule };
    Ok(Arc::new(move || Box::new(filter.clone())))
}

impl WorkerFilter for BuiltinFilter {
    fn required_worker_inputs(&self) -> WorkerInputs {
        match self.rule {
            Rule::MinOverlap(_) | Rule::MinTrust(_) => WorkerInputs::CACHE,
            Rule::MaxActiveRequests(_) | Rule::MaxPrefillTokens(_) | Rule::MaxKvUtilisation(_) => WorkerInputs::LOAD,
        }
    }

    fn keep(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError> {
        let load = candidate.load().copied().unwrap_or_default();
        Ok(match self.rule {
            Rule::MinOverlap(least) => candidate.cache().is_some_and(|cache| cache.device_overlap_blocks() >= least),
            Rule::MaxActiveRequests(most) => load.active_requests() as u64 <= most,
            Rule::MaxPrefillTokens(most) => load.active_prefill_tokens() as u64 <= most,
            Rule::MaxKvUtilisation(most) => {
                kv_utilisation(context, candidate).is_none_or(|utilisation| utilisation <= most)
            }
            Rule::MinTrust(wanted) => candidate.cache().is_some_and(|cache| {
                matches!(
                    (wanted, cache.trust()),
                    (_, Trust::Complete)
                        | (WantedTrust::Replayed | WantedTrust::Partial, Trust::Replayed)
                        | (WantedTrust::Partial, Trust::Partial)
                )
            }),
        })
    }

    fn component_name(&self) -> &str {
        &self.name
    }
}

/// Share of the rank's KV blocks that would be in use with this request; `None` when it does not say how many it has.
pub(super) fn kv_utilisation(context: &WorkerSelectionContext<'_>, candidate: WorkerCandidate<'_>) -> Option<f64> {
    let total = context.worker_capacity(candidate.worker()).total_kv_blocks().filter(|&total| total > 0)?;
    Some(candidate.load()?.decode_cost_blocks() / total as f64)
}
