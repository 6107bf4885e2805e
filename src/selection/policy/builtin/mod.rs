//! Policies that ship with the crate, one file each.

pub mod default_cost;
mod thunderagent;

use self::default_cost::{DefaultCost, DefaultCostParameters};
use super::{
    CacheWeights, SelectionPolicy, classifier::config::RequestClassifierRegistryError, registry::RouterPluginRegistry,
};
use crate::selection::{config::SelectionConfig, partition::PolicyScope, worker::WorkerRole};

/// The policy of a partition nobody configured one for: the default cost with the settings of the core.
pub fn default_policy(config: &SelectionConfig, scope: &PolicyScope) -> Box<dyn SelectionPolicy> {
    let parameters = DefaultCostParameters {
        overlap_score_credit: config.overlap_score_credit,
        overlap_score_credit_decay: config.overlap_score_credit_decay,
        prefill_load_scale: config.prefill_load_scale,
        decode_active_request_weight: config.decode_active_request_weight,
        host_cache_hit_weight: config.host_cache_hit_weight,
        disk_cache_hit_weight: config.disk_cache_hit_weight,
        router_temperature: config.router_temperature,
        // The reference knows two labels: every pool that is not a prefill pool scores as a decode pool.
        decode_label: scope.role != WorkerRole::Prefill,
    };
    let accounting = CacheWeights { host: config.host_cache_hit_weight, disk: config.disk_cache_hit_weight };
    Box::new(DefaultCost::new(parameters, accounting, scope.block_size, true))
}

/// Registers the request classifiers that ship.
///
/// # Errors
/// Their names are taken.
pub fn register_classifiers(registry: &mut RouterPluginRegistry) -> Result<(), RequestClassifierRegistryError> {
    registry.register_request_classifier("thunderagent", thunderagent::classifier::provider())
}
