//! Built-in pickers.

use std::sync::Arc;

use serde::Deserialize;

use super::{
    Make, WorkerSelectionPolicyProviderError,
    document::{Component, unknown_type},
    refused,
};
use crate::selection::{
    identity::WorkerWithDpRank,
    policy::{
        context::WorkerSelectionContext,
        inputs::{ScoredWorkerCandidate, WorkerInputView},
        stages::{WorkerPicker, WorkerSelectionPolicyError},
    },
};

/// Types of pickers, as users write them.
pub(super) const TYPES: [&str; 1] = ["lowest-cost"];

/// Who of those with the lowest cost.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Ties {
    /// Anyone, with equal chances.
    #[default]
    Random,
    /// The lowest (worker, rank).
    LowestId,
    /// The next (worker, rank) after the last that was picked.
    Rotate,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LowestCostParameters {
    ties: Ties,
    temperature: f64,
    seed: Option<u64>,
}

/// The lowest cost, or a draw by cost when there is a temperature.
struct LowestCost {
    name: String,
    ties: Ties,
    temperature: f64,
    rng: fastrand::Rng,
    last: Option<WorkerWithDpRank>,
    /// Running sums of the softmax, kept for their memory.
    sums: Vec<f64>,
}

/// The picker of an entry; lowest cost without one.
pub(super) fn picker(
    path: &str,
    entry: Option<&Component>,
) -> Result<Make<dyn WorkerPicker>, WorkerSelectionPolicyProviderError> {
    let mut parameters = LowestCostParameters::default();
    let mut name = TYPES[0].to_owned();
    if let Some(entry) = entry {
        if entry.cel.is_some() {
            return Err(refused(path, "a picker cannot be an expression; write scorers instead"));
        }
        if entry.weight.is_some() {
            return Err(refused(path, "a picker has no weight"));
        }
        match entry.component_type.as_deref() {
            Some("lowest-cost") => parameters = entry.parameters(path)?,
            Some(other) => return Err(unknown_type(path, other, &TYPES)),
            None => return Err(refused(path, "needs a `type`")),
        }
        name = entry.named(TYPES[0]);
    }
    if !(parameters.temperature.is_finite() && parameters.temperature >= 0.0) {
        return Err(refused(&format!("{path}.parameters.temperature"), "must be finite and at least 0"));
    }
    Ok(Arc::new(move || {
        let LowestCostParameters { ties, temperature, seed } = parameters;
        let rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Box::new(LowestCost { name: name.clone(), ties, temperature, rng, last: None, sums: Vec::new() })
    }))
}

impl WorkerPicker for LowestCost {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let candidates = input.candidates();
        let lowest = candidates.iter().map(ScoredWorkerCandidate::cost).fold(f64::INFINITY, f64::min);
        let row = if self.temperature > 0.0 { self.drawn(candidates, lowest) } else { self.least(candidates, lowest) };
        if let Some(row) = row {
            self.last = Some(candidates[row].worker());
        }
        row.ok_or_else(|| WorkerSelectionPolicyError::failed(format!("picker {:?}: nobody to pick", self.name)))
    }

    fn component_name(&self) -> &str {
        &self.name
    }
}

impl LowestCost {
    fn least(&mut self, candidates: &[ScoredWorkerCandidate], lowest: f64) -> Option<usize> {
        let ties = || candidates.iter().enumerate().filter(move |(_, candidate)| candidate.cost() == lowest);
        let first = |after: Option<WorkerWithDpRank>| {
            let later = ties().filter(|(_, candidate)| after.is_none_or(|last| candidate.worker() > last));
            later.min_by_key(|(_, candidate)| candidate.worker()).map(|(row, _)| row)
        };
        match self.ties {
            Ties::LowestId => first(None),
            Ties::Rotate => first(self.last).or_else(|| first(None)),
            Ties::Random => match ties().count() {
                0 => None,
                count => ties().nth(self.rng.usize(..count)).map(|(row, _)| row),
            },
        }
    }

    /// A row with chances `exp(-(cost - lowest) / ((highest - lowest) * temperature))`; all alike when all costs are.
    fn drawn(&mut self, candidates: &[ScoredWorkerCandidate], lowest: f64) -> Option<usize> {
        let highest = candidates.iter().map(ScoredWorkerCandidate::cost).fold(f64::NEG_INFINITY, f64::max);
        // Halves, so that the range of costs near both ends of `double` is finite.
        let range = (highest / 2.0 - lowest / 2.0) * self.temperature;
        self.sums.clear();
        let mut sum = 0.0;
        self.sums.extend(candidates.iter().map(|candidate| {
            let behind = candidate.cost() / 2.0 - lowest / 2.0;
            sum += if range > 0.0 { (-behind / range).exp() } else { 1.0 };
            sum
        }));
        let at = self.rng.f64() * sum;
        let row = self.sums.partition_point(|&sum| sum <= at);
        candidates.len().checked_sub(1).map(|last| row.min(last))
    }
}
