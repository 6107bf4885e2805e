//! The default policy: the reference's cost function (spec scheduling 2.2, 2.3), chosen without a full scan.

use super::super::{PickRequest, Picked, SelectionPolicy};
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
pub struct DefaultCost {}

impl DefaultCost {
    /// A policy with these parameters for blocks of `block_size` tokens. `honour_overrides`: request overrides of
    /// scores and temperature act (design deviation 4; off for a named instance). `accounting`: weights of the
    /// estimate that is booked.
    pub fn new(
        parameters: DefaultCostParameters,
        accounting: super::super::CacheWeights,
        block_size: u32,
        honour_overrides: bool,
    ) -> Self {
        let _ = (parameters, accounting, block_size, honour_overrides);
        todo!()
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
        let _ = (request, load, rng);
        todo!()
    }
}
