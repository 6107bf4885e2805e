//! The default cost (spec scheduling 2.2), term by term in the reference's order of operations, so that costs agree to
//! the last bit.

use crate::selection::{
    index::TierBlocks,
    load::{OrderSpec, RankLoad},
    policy::{CacheWeights, PickRequest},
    request::RouterConfigOverride,
};

use super::DefaultCostParameters;

/// Parameters after the request's overrides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weights {
    pub(super) parameters: DefaultCostParameters,
    pub(super) accounting: CacheWeights,
    pub(super) block_size: u32,
}

impl Weights {
    /// Applies the overrides of one request. The deprecated weight wins over the scale, and 0 also takes the credit.
    pub(super) fn overridden(mut self, by: &RouterConfigOverride) -> Self {
        let own = &mut self.parameters;
        own.overlap_score_credit = by.overlap_score_credit.unwrap_or(own.overlap_score_credit);
        own.prefill_load_scale = by.prefill_load_scale.unwrap_or(own.prefill_load_scale);
        own.router_temperature = by.router_temperature.unwrap_or(own.router_temperature);
        if let Some(weight) = by.overlap_score_weight {
            own.prefill_load_scale = weight;
            if weight == 0.0 {
                own.overlap_score_credit = 0.0;
            }
        }
        self
    }
}

/// Everything about one selection that is the same for all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Formula {
    weights: Weights,
    prompt_tokens: u64,
    sequence_blocks: u64,
    request_blocks: f64,
    track: bool,
    /// Least prefill tokens among the candidates; the credit's decay is measured from it.
    pub(super) least_prefill: u64,
}

/// What is known of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Inputs {
    pub(super) load: RankLoad,
    pub(super) cached: TierBlocks,
    /// Leading blocks of the prompt that live prompts of the rank hold.
    pub(super) shared: u64,
}

/// The terms of a cost before the preferred-taint multiplier, in blocks, in the order they are added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) prefill: f64,
    pub(super) decode: f64,
    pub(super) requests: f64,
}

impl Formula {
    pub(super) fn new(weights: Weights, request: &PickRequest<'_>) -> Self {
        Self {
            weights,
            prompt_tokens: request.prompt_tokens,
            sequence_blocks: request.sequence.len() as u64,
            request_blocks: request.prompt_tokens.div_ceil(u64::from(weights.block_size)).max(1) as f64,
            track: request.track_prefill_tokens,
            least_prefill: 0,
        }
    }

    /// Whether the credit of device blocks depends on prefill load.
    pub(super) fn credit_decays(&self) -> bool {
        self.track && self.weights.parameters.overlap_score_credit_decay > 0.0
    }

    /// Factor of the prefill term.
    pub(super) fn scale(&self) -> f64 {
        self.weights.parameters.prefill_load_scale
    }

    /// Without a device credit the policy reads no cache data at all.
    pub(super) fn reads_cache(&self) -> bool {
        self.weights.parameters.overlap_score_credit > 0.0
    }

    /// Blocks on the rank with this request.
    pub(super) fn decode_blocks(&self, inputs: &Inputs) -> u64 {
        inputs.load.blocks.saturating_add(self.sequence_blocks - inputs.shared)
    }

    /// Cached tokens by the accounting weights.
    pub(super) fn cached_tokens(&self, cached: TierBlocks) -> u64 {
        self.weights.accounting.cached_tokens(cached, self.weights.block_size)
    }

    /// The cost, at most `f64::MAX`. `multiplier` is that of the preferred taints.
    #[inline]
    pub(super) fn cost(&self, inputs: &Inputs, multiplier: f64) -> f64 {
        let terms = self.terms(inputs);
        ((terms.prefill + terms.decode + terms.requests) * multiplier).min(f64::MAX)
    }

    /// What the cost of a rank exceeds its base cost by, up to rounding, when it shares nothing with the prompt.
    pub(super) fn prompt_cost(&self) -> f64 {
        let prefill = if self.track {
            self.weights.parameters.prefill_load_scale
                * (self.prompt_tokens as f64 / f64::from(self.weights.block_size))
        } else {
            0.0
        };
        prefill + self.sequence_blocks as f64
    }

    /// The order in which ranks that share nothing with the prompt come.
    pub(super) fn base_order(&self, by_taints: bool) -> OrderSpec {
        let own = &self.weights.parameters;
        OrderSpec {
            prefill_scale: if self.track { own.prefill_load_scale } else { 0.0 },
            decode: true,
            request_weight: own.decode_active_request_weight,
            by_taints,
        }
    }

    /// Most that cached blocks can take off a cost, up to rounding.
    pub(super) fn most_credit(&self, cached: TierBlocks) -> f64 {
        if !self.reads_cache() {
            return 0.0;
        }
        let credit = self.credit(1.0, cached);
        if self.track {
            self.weights.parameters.prefill_load_scale * credit
        } else if self.decode_form() {
            credit
        } else {
            0.0
        }
    }

    fn decode_form(&self) -> bool {
        self.weights.parameters.decode_label && !self.track && self.reads_cache()
    }

    pub(super) fn terms(&self, inputs: &Inputs) -> Terms {
        let own = &self.weights.parameters;
        let (credit, cached_tokens) = if self.reads_cache() && inputs.cached != TierBlocks::default() {
            (self.credit(self.decay(&inputs.load), inputs.cached), self.cached_tokens(inputs.cached))
        } else {
            (0.0, 0)
        };
        let decode = sum(inputs.load.blocks, self.sequence_blocks - inputs.shared);
        let requests = own.decode_active_request_weight * inputs.load.requests as f64;
        if self.decode_form() {
            return Terms { prefill: 0.0, decode: (decode - credit).max(0.0), requests };
        }
        let raw_tokens = if self.track {
            // The uncached part of the prompt and the cached one.
            sum(inputs.load.prefill_tokens, self.prompt_tokens.max(cached_tokens))
        } else {
            0.0
        };
        let adjusted = (raw_tokens / f64::from(self.weights.block_size) - credit).max(0.0);
        Terms { prefill: own.prefill_load_scale * adjusted, decode, requests }
    }

    /// Share of the device credit left to a rank with this load.
    fn decay(&self, load: &RankLoad) -> f64 {
        if !self.credit_decays() {
            return 1.0;
        }
        let excess = load.prefill_tokens.saturating_sub(self.least_prefill) as f64 / f64::from(self.weights.block_size);
        1.0 / (1.0 + self.weights.parameters.overlap_score_credit_decay * (excess / self.request_blocks))
    }

    fn credit(&self, decay: f64, cached: TierBlocks) -> f64 {
        let own = &self.weights.parameters;
        own.overlap_score_credit * decay * f64::from(cached.device)
            + own.host_cache_hit_weight * f64::from(cached.host)
            + own.disk_cache_hit_weight * (f64::from(cached.disk) + f64::from(cached.external))
    }
}

/// The sum rounded once. Past 64 bits it goes on growing, so that saturation never makes a rank cheaper than its order
/// says.
fn sum(a: u64, b: u64) -> f64 {
    a.checked_add(b).map_or_else(|| (u128::from(a) + u128::from(b)) as f64, |sum| sum as f64)
}
