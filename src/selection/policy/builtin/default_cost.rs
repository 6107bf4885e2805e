//! The default policy: the reference's cost function (spec scheduling 2.2, 2.3), chosen without a full scan.

mod cost;
mod scan;

#[cfg(test)]
mod tests;

use self::cost::{Formula, Weights};
use super::super::{CacheWeights, PickRequest, Picked, SelectionPolicy, eligibility};
use crate::selection::{error::SelectionError, load::LoadTracker};

/// Parameters of the default cost, in blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DefaultCostParameters {
    /// Credit a cached device block.
    pub overlap_score_credit: f64,
    /// Decay of that credit with excess prefill load.
    pub overlap_score_credit_decay: f64,
    /// Factor of the prefill term.
    pub prefill_load_scale: f64,
    /// Blocks added a live booking.
    pub decode_active_request_weight: f64,
    /// Credit a host block.
    pub host_cache_hit_weight: f64,
    /// Credit a disk or external block.
    pub disk_cache_hit_weight: f64,
    /// 0 = lowest cost, else softmax over the range.
    pub router_temperature: f64,
    /// The pool is a plain decode pool: cost form of spec scheduling 2.2 for untracked prompts.
    pub decode_label: bool,
}

/// The default policy.
#[derive(Debug)]
pub struct DefaultCost {
    weights: Weights,
    honour_overrides: bool,
}

impl DefaultCost {
    /// A policy with these parameters for blocks of `block_size` tokens. `honour_overrides`: request overrides of
    /// scores and temperature act (design deviation 4; off for a named instance). `accounting`: weights of the
    /// estimate that is booked.
    pub fn new(
        parameters: DefaultCostParameters,
        accounting: CacheWeights,
        block_size: u32,
        honour_overrides: bool,
    ) -> Self {
        Self { weights: Weights { parameters, accounting, block_size: block_size.max(1) }, honour_overrides }
    }

    fn weights(&self, request: &PickRequest<'_>) -> Weights {
        match request.overrides {
            Some(by) if self.honour_overrides => self.weights.overridden(by),
            _ => self.weights,
        }
    }
}

impl SelectionPolicy for DefaultCost {
    fn name(&self) -> &str {
        "default"
    }

    fn pick(
        &mut self,
        request: &PickRequest<'_>,
        load: &mut LoadTracker,
        rng: &mut fastrand::Rng,
    ) -> Result<Picked, SelectionError> {
        let candidates = eligibility::candidates(request, load)?;
        let weights = self.weights(request);
        let table = scan::table(Formula::new(weights, request), request, load, &candidates);
        let temperature = weights.parameters.router_temperature;
        let chosen = if temperature > 0.0 {
            scan::softmax(&table.rows, temperature, rng)
        } else {
            scan::least(&table.rows, rng)
        };
        let chosen = chosen.ok_or_else(eligibility::nobody)?;
        let row = table.rows[chosen];
        let explanation =
            request.explain.then(|| scan::explain(self.name(), &table, chosen, request, load, &candidates));
        Ok(Picked {
            slot: row.slot,
            cost: row.cost,
            overlap: row.inputs.cached,
            cached_tokens: table.formula.cached_tokens(row.inputs.cached),
            decode_blocks: table.formula.decode_blocks(&row.inputs),
            active_prefill_tokens: row.inputs.load.prefill_tokens,
            explanation,
        })
    }
}
