//! The default policy: the reference's cost function (spec scheduling 2.2, 2.3), chosen without a full scan.

mod cost;
mod scan;
mod search;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::{
    cost::{Formula, Weights},
    search::{Found, Scratch, Search},
};
use super::super::{
    CacheWeights, PickRequest, Picked, SelectionPolicy,
    eligibility::{self, Candidates},
};
use crate::selection::{
    error::SelectionError,
    load::{LoadTracker, Slot},
};

/// Fleets of at most this many ranks are priced whole; no order is kept for them.
const FEW_RANKS: usize = if cfg!(test) { 2 } else { 16 };

/// Lists of allowed workers up to this length are priced outright.
const FEW_WORKERS: usize = if cfg!(test) { 2 } else { 64 };

/// Distinct sets of taints above which there is no group for each.
const MANY_TAINT_SETS: usize = if cfg!(test) { 4 } else { 64 };

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
    name: Option<Arc<str>>,
    scratch: Scratch,
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
        let weights = Weights { parameters, accounting, block_size: block_size.max(1) };
        Self { weights, honour_overrides, name: None, scratch: Scratch::default() }
    }

    /// The name in explanations; `default` without one.
    pub(in crate::selection) fn with_name(self, name: Option<Arc<str>>) -> Self {
        Self { name, ..self }
    }

    fn weights(&self, request: &PickRequest<'_>) -> Weights {
        match request.overrides {
            Some(by) if self.honour_overrides => self.weights.overridden(by),
            _ => self.weights,
        }
    }

    /// The cheapest candidate, found without pricing all where that can be.
    fn cheapest(
        &mut self,
        formula: Formula,
        request: &PickRequest<'_>,
        load: &mut LoadTracker,
        candidates: &Candidates,
        rng: &mut fastrand::Rng,
    ) -> Option<Found> {
        let orders = matches!(candidates, Candidates::Open).then(|| self.orders(&formula, request, load)).flatten();
        let load = &*load;
        let search = Search::new(request, load, formula, &mut self.scratch, rng);
        match (candidates, orders) {
            (Candidates::Pinned(slot), _) => search.among(std::iter::once(*slot), true),
            (Candidates::Affinity(slots), _) => search.among(slots.iter().copied(), false),
            (Candidates::Open, Some(orders)) => search.open(orders.base, orders.by_taints, orders.prefill),
            (Candidates::Open, None) => match request.allowed_worker_ids {
                Some(allowed) if allowed.len() < load.len() => {
                    search.among(allowed.iter().flat_map(|&worker| load.slots_of(worker)), false)
                }
                _ => search.among(0..load.rows().len() as Slot, false),
            },
        }
    }

    /// The orders by which this request can be searched; `None` when its candidates are better priced one by one.
    fn orders(&self, formula: &Formula, request: &PickRequest<'_>, load: &mut LoadTracker) -> Option<Orders> {
        let few = load.len() <= FEW_RANKS
            || request
                .allowed_worker_ids
                .is_some_and(|allowed| allowed.len() <= FEW_WORKERS || allowed.len() < load.len() / FEW_WORKERS);
        // No order is kept for one request's scale.
        if few || (request.track_prefill_tokens && formula.scale() != self.weights.parameters.prefill_load_scale) {
            return None;
        }
        let constraints = request.constraints;
        let grouped = load.taint_sets() <= MANY_TAINT_SETS;
        if !constraints.preferred_taints.is_empty() && !grouped {
            return None;
        }
        let by_taints = grouped && !(constraints.preferred_taints.is_empty() && constraints.required_taints.is_empty());
        let (base, prefill) = search::order_specs(formula, by_taints);
        let (base, prefill) = load.keep_orders(base, prefill);
        Some(Orders { base, by_taints, prefill })
    }
}

/// Places of orders in the load tracker.
struct Orders {
    base: usize,
    by_taints: bool,
    prefill: Option<usize>,
}

impl SelectionPolicy for DefaultCost {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("default")
    }

    fn pick(
        &mut self,
        request: &PickRequest<'_>,
        load: &mut LoadTracker,
        rng: &mut fastrand::Rng,
    ) -> Result<Picked, SelectionError> {
        let candidates = eligibility::candidates(request, load, true)?;
        let weights = self.weights(request);
        let formula = Formula::new(weights, request);
        let temperature = weights.parameters.router_temperature;
        let (slot, cost, explanation) = if temperature > 0.0 || request.explain {
            let table = scan::table(formula, request, load, &candidates);
            let rows = &table.rows;
            let chosen = if temperature > 0.0 { scan::softmax(rows, temperature, rng) } else { scan::least(rows, rng) };
            let chosen = chosen.ok_or_else(eligibility::nobody)?;
            let explain = || scan::explain(self.name(), &table, chosen, request, load, &candidates);
            (rows[chosen].slot, rows[chosen].cost, request.explain.then(explain))
        } else {
            let found = self.cheapest(formula, request, load, &candidates, rng).ok_or_else(eligibility::nobody)?;
            (found.slot, found.cost, None)
        };
        if request.explain || temperature > 0.0 {
            load.walk(request.sequence, &mut self.scratch.path);
        }
        let inputs = scan::inputs(request, load, &self.scratch.path, slot);
        Ok(Picked {
            slot,
            cost,
            overlap: inputs.cached,
            cached_tokens: formula.cached_tokens(inputs.cached),
            decode_blocks: formula.decode_blocks(&inputs),
            active_prefill_tokens: inputs.load.prefill_tokens,
            explanation,
        })
    }
}
