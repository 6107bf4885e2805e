//! The objects of a Managed SelectorSet, as typed objects. Pure.
//!
//! | file | owns |
//! |---|---|
//! | `args` | the selector's command line |
//! | `pod` | its pod |
//! | `network` | Services and the NetworkPolicy |
//! | `monitors` | PodMonitor and ServiceMonitor |
//!
//! Every object has the set as its controller, so that the garbage collector takes it when the set is deleted, and the
//! set's name or a name made of it. `replicas` is the spec's, whoever scales it.

pub mod args;
mod monitors;
mod network;
pub mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy},
        core::v1::ConfigMap,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;
use serde_json::Value;

pub use self::{
    monitors::{pod_monitor, service_monitor},
    network::{client_service, network_policy, peers_service},
};
use super::validate::Validated;
use crate::kubernetes::api::{
    SelectorSet,
    constants::{MANAGED_BY, SELECTOR_SET_LABEL},
    selector_set,
};

/// Key of the policy document in its ConfigMap.
pub const POLICY_KEY: &str = "policy.yaml";
/// The document in the selector's container.
pub const POLICY_PATH: &str = "/etc/pointsman/policy/policy.yaml";
/// The tracking key in the selector's container.
pub const TRACKING_KEY_PATH: &str = "/etc/pointsman/tracking/key";
/// The admin token in the selector's container.
pub const ADMIN_TOKEN_PATH: &str = "/etc/pointsman/admin/token";

const NAME_LABEL: &str = "app.kubernetes.io/name";
const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
const NAME: &str = "pointsman";
/// Tells the headless Service from the clients'.
const SERVICE_ROLE_LABEL: &str = "pointsman.dev/service";
const PEERS_ROLE: &str = "peers";
/// Template revisions that the StatefulSet keeps.
const REVISIONS: i32 = 5;

/// What objects are built from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The set; it has a name and a namespace.
    pub set: &'a SelectorSet,
    /// What its spec comes to.
    pub validated: &'a Validated,
    /// Hash of what pods must be restarted for and their template does not show.
    pub restart_hash: Option<&'a str>,
    /// The set, as the controller of what is built.
    pub owner: &'a OwnerReference,
    /// Namespace of the operator, which a NetworkPolicy lets in; the set's own when none.
    pub controller_namespace: Option<&'a str>,
}

/// Name of the headless Service, of which pods are named hosts.
pub fn peers_name(set: &str) -> String {
    format!("{set}-peers")
}

/// Name of the ConfigMap with the policy document.
pub fn policy_name(set: &str) -> String {
    format!("{set}-policy")
}

/// Labels by which Services and the StatefulSet find the pods. They can never change.
pub fn selector_labels(set: &str) -> BTreeMap<String, String> {
    [(NAME_LABEL, NAME), (INSTANCE_LABEL, set), (SELECTOR_SET_LABEL, set)]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into()
}

/// [`selector_labels`] as a query.
pub fn selector_query(set: &str) -> String {
    let terms: Vec<String> = selector_labels(set).iter().map(|(label, value)| format!("{label}={value}")).collect();
    terms.join(",")
}

/// Labels of everything that belongs to a set.
pub fn labels(set: &str) -> BTreeMap<String, String> {
    let mut labels = selector_labels(set);
    labels.insert(COMPONENT_LABEL.to_owned(), "selector".to_owned());
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    labels
}

/// The set as the controller of what it owns. It does not block its deletion, which would take a right of its own.
pub fn owner_reference(set: &SelectorSet) -> Option<OwnerReference> {
    use kube::Resource;
    let mut owner = set.controller_owner_ref(&())?;
    owner.block_owner_deletion = None;
    Some(owner)
}

fn metadata(owner: &OwnerReference, set: &SelectorSet, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: set.namespace(),
        labels: Some(labels(&set.name_any())),
        owner_references: Some(vec![owner.clone()]),
        ..ObjectMeta::default()
    }
}

fn pods_of(set: &SelectorSet) -> LabelSelector {
    LabelSelector { match_labels: Some(selector_labels(&set.name_any())), ..LabelSelector::default() }
}

/// ConfigMap `NAME-policy`; selectors follow its changes.
pub fn config_map(set: &SelectorSet, owner: &OwnerReference, document: &str) -> ConfigMap {
    ConfigMap {
        metadata: metadata(owner, set, policy_name(&set.name_any())),
        data: Some([(POLICY_KEY.to_owned(), document.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// StatefulSet `NAME`: pods start together, and are replaced one by one, each when the one before it is ready.
pub fn stateful_set(inputs: &Inputs<'_>) -> StatefulSet {
    let set = inputs.set;
    let name = set.name_any();
    let spec = StatefulSetSpec {
        pod_management_policy: Some("Parallel".to_owned()),
        replicas: Some(set.spec.replicas),
        revision_history_limit: Some(REVISIONS),
        selector: pods_of(set),
        service_name: Some(peers_name(&name)),
        template: pod::template(inputs),
        update_strategy: Some(StatefulSetUpdateStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(RollingUpdateStatefulSetStrategy {
                partition: Some(0),
                ..RollingUpdateStatefulSetStrategy::default()
            }),
        }),
        ..StatefulSetSpec::default()
    };
    StatefulSet { metadata: metadata(inputs.owner, set, name), spec: Some(spec), status: None }
}

/// PodDisruptionBudget `NAME`; none where it is turned off, or where a lone selector would hold up every drain and nobody
/// asked for that.
pub fn disruption_budget(set: &SelectorSet, owner: &OwnerReference) -> Option<PodDisruptionBudget> {
    let asked = set.spec.pod_disruption_budget.as_ref();
    if !asked.map_or(set.spec.replicas > 1, |budget| budget.enabled) {
        return None;
    }
    let limit = |value: &Option<Value>| value.as_ref().and_then(count_or_percent);
    let min_available = asked.and_then(|budget: &selector_set::PodDisruptionBudget| limit(&budget.min_available));
    let max_unavailable = asked
        .and_then(|budget| limit(&budget.max_unavailable))
        .or_else(|| min_available.is_none().then_some(IntOrString::Int(1)));
    let spec = PodDisruptionBudgetSpec {
        max_unavailable,
        min_available,
        selector: Some(pods_of(set)),
        // A selector that is not ready serves nobody: it may always go.
        unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
    };
    Some(PodDisruptionBudget { metadata: metadata(owner, set, set.name_any()), spec: Some(spec), status: None })
}

fn count_or_percent(value: &Value) -> Option<IntOrString> {
    match value {
        Value::Number(number) => i32::try_from(number.as_i64()?).ok().map(IntOrString::Int),
        Value::String(text) => Some(IntOrString::String(text.clone())),
        _ => None,
    }
}
