//! Policies that ship with the crate, one file each; docs/policies says when to use which.

mod consistent_hashing;
pub mod default_cost;
mod least_loaded;
mod named_default_cost;
mod power_of_two;
mod priced;
mod random;
mod rank_choice;
mod round_robin;
mod session_sticky;
mod soft_affinity;
#[cfg(test)]
mod testing;
mod thunderagent;
mod two_tier;
pub(in crate::selection) mod work_ahead;

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use self::default_cost::{DefaultCost, DefaultCostParameters};
use super::{
    CacheWeights, SelectionPolicy,
    classifier::config::RequestClassifierRegistryError,
    parameters::WorkerSelectionPolicyProviderError,
    pipeline::{self, PIPELINE},
    registry::RouterPluginRegistry,
    stages::{
        RoutingPartitionRef, WorkerPicker, WorkerScorer, WorkerSelectionPolicy, WorkerSelectionPolicyFactory,
        WorkerSelectionPolicyProvider,
    },
};
use crate::selection::{config::SelectionConfig, policy::PolicyScope, worker::WorkerRole};

/// Makes a provider.
type Shipped = fn() -> WorkerSelectionPolicyProvider;

/// Providers by type name.
const SHIPPED: [(&str, Shipped); 13] = [
    ("work-ahead", work_ahead::provider),
    ("dynamo-default-cost-fn", named_default_cost::provider),
    ("dynamo-two-tier-cost-fn", two_tier::provider),
    ("thunderagent", thunderagent::provider),
    ("least-loaded", least_loaded::provider),
    ("round-robin", round_robin::provider),
    ("random", random::provider),
    ("power-of-two-choices", power_of_two::provider),
    ("consistent-hashing", consistent_hashing::provider),
    ("session-sticky", session_sticky::provider),
    ("soft-affinity-load-guard", soft_affinity::provider),
    // Its name elsewhere.
    ("dynamo-soft-affinity-load-guard", soft_affinity::provider),
    (PIPELINE, pipeline::provider),
];

/// A registry with the policies that ship, and the default cost as its default.
pub fn router_plugin_registry() -> RouterPluginRegistry {
    let default: WorkerSelectionPolicyFactory =
        Arc::new(|_, role, _| WorkerSelectionPolicy::default_cost(None, role.default_selector_label()));
    let mut registry = RouterPluginRegistry::default().with_default_factory(default);
    for (name, provider) in SHIPPED {
        let registered = registry.register_worker_selection(name, provider());
        debug_assert!(registered.is_ok(), "the names are distinct");
    }
    let registered = register_classifiers(&mut registry);
    debug_assert!(registered.is_ok(), "nothing was registered before");
    registry
}

/// The policy of a partition nobody configured one for: the default cost with the settings of the core.
pub fn default_policy(config: &SelectionConfig, scope: &PolicyScope) -> Box<dyn SelectionPolicy> {
    let accounting = CacheWeights { host: config.host_cache_hit_weight, disk: config.disk_cache_hit_weight };
    Box::new(DefaultCost::new(default_parameters(config, scope.role), accounting, scope.block_size, true))
}

/// Parameters of the default cost from the settings of the core.
fn default_parameters(config: &SelectionConfig, role: WorkerRole) -> DefaultCostParameters {
    DefaultCostParameters {
        overlap_score_credit: config.overlap_score_credit,
        overlap_score_credit_decay: config.overlap_score_credit_decay,
        prefill_load_scale: config.prefill_load_scale,
        decode_active_request_weight: config.decode_active_request_weight,
        host_cache_hit_weight: config.host_cache_hit_weight,
        disk_cache_hit_weight: config.disk_cache_hit_weight,
        router_temperature: config.router_temperature,
        // The reference knows two labels: every pool that is not a prefill pool scores as a decode pool.
        decode_label: role != WorkerRole::Prefill,
    }
}

/// No parameters.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

/// A provider that reads its parameters as `P`.
fn provider<P: DeserializeOwned + Serialize + 'static>(
    make: fn(P) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError>,
) -> WorkerSelectionPolicyProvider {
    Arc::new(move |parameters| make(parameters.deserialize_shown()?))
}

/// A factory of policies with one picker. `exclusive`: a binding of a session is kept to.
fn picker_factory<P: WorkerPicker + 'static>(
    exclusive: bool,
    make: impl Fn(&SelectionConfig, RoutingPartitionRef<'_>) -> P + Send + Sync + 'static,
) -> WorkerSelectionPolicyFactory {
    scored_factory(exclusive, move |config, partition| (Vec::new(), Box::new(make(config, partition)) as _))
}

fn scored_factory(
    exclusive: bool,
    make: impl Fn(&SelectionConfig, RoutingPartitionRef<'_>) -> (Vec<Box<dyn WorkerScorer>>, Box<dyn WorkerPicker>)
    + Send
    + Sync
    + 'static,
) -> WorkerSelectionPolicyFactory {
    Arc::new(move |config, role, partition| {
        let (scorers, picker) = make(config, partition);
        WorkerSelectionPolicy::new(config.clone(), role.as_str(), scorers, picker).with_exclusive_affinity(exclusive)
    })
}

/// Checks a parameter.
fn check(ok: bool, text: impl FnOnce() -> String) -> Result<(), WorkerSelectionPolicyProviderError> {
    if ok { Ok(()) } else { Err(WorkerSelectionPolicyProviderError::new(text())) }
}

/// Registers the request classifiers that ship.
///
/// # Errors
/// Their names are taken.
pub fn register_classifiers(registry: &mut RouterPluginRegistry) -> Result<(), RequestClassifierRegistryError> {
    registry.register_request_classifier("thunderagent", thunderagent::classifier::provider())
}
