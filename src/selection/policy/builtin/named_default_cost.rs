//! `dynamo-default-cost-fn`: the default cost with parameters of an instance's own (spec plugins 8.1). What an instance
//! leaves out it takes from the settings of the core; requests override nothing of it (design deviation 4).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{check, default_parameters, provider as provider_of};
use crate::selection::policy::{
    parameters::WorkerSelectionPolicyProviderError,
    stages::{WorkerSelectionPolicy, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
};

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    overlap_score_credit: Option<f64>,
    overlap_score_credit_decay: Option<f64>,
    prefill_load_scale: Option<f64>,
    decode_active_request_weight: Option<f64>,
    host_cache_hit_weight: Option<f64>,
    disk_cache_hit_weight: Option<f64>,
    /// Checked and without effect: the service has no cache that all workers share.
    shared_cache_multiplier: Option<f64>,
    router_temperature: Option<f64>,
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    for (name, value) in [
        ("overlap_score_credit", own.overlap_score_credit),
        ("overlap_score_credit_decay", own.overlap_score_credit_decay),
        ("prefill_load_scale", own.prefill_load_scale),
        ("decode_active_request_weight", own.decode_active_request_weight),
        ("host_cache_hit_weight", own.host_cache_hit_weight),
        ("disk_cache_hit_weight", own.disk_cache_hit_weight),
        ("shared_cache_multiplier", own.shared_cache_multiplier),
        ("router_temperature", own.router_temperature),
    ] {
        let fits = value.is_none_or(|value| value.is_finite() && value >= 0.0);
        check(fits, || format!("{name} must be finite and non-negative"))?;
    }
    Ok(Arc::new(move |config, role, _| {
        let mut all = default_parameters(config, role);
        let inherit = |value: &mut f64, own: Option<f64>| *value = own.unwrap_or(*value);
        inherit(&mut all.overlap_score_credit, own.overlap_score_credit);
        inherit(&mut all.overlap_score_credit_decay, own.overlap_score_credit_decay);
        inherit(&mut all.prefill_load_scale, own.prefill_load_scale);
        inherit(&mut all.decode_active_request_weight, own.decode_active_request_weight);
        inherit(&mut all.host_cache_hit_weight, own.host_cache_hit_weight);
        inherit(&mut all.disk_cache_hit_weight, own.disk_cache_hit_weight);
        inherit(&mut all.router_temperature, own.router_temperature);
        WorkerSelectionPolicy::default_cost(Some(all), role.default_selector_label())
    }))
}
