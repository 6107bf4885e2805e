//! Objects of Prometheus' operator, whose types are the cluster's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt, api::ApiResource};
use serde_json::{Value, json};

use super::{metadata, pod::merged, selector_labels};
use crate::kubernetes::{
    api::{SelectorSet, constants::HTTP_PORT_NAME, selector_set::Monitoring},
    controller::apply::Desired,
};

/// PodMonitor `NAME`, of the cluster's kind `resource`: every selector, ready or not.
///
/// # Errors
/// It cannot be written as JSON.
pub fn pod_monitor(
    set: &SelectorSet,
    owner: &OwnerReference,
    resource: &ApiResource,
) -> serde_json::Result<Option<Desired>> {
    let Some(monitoring) = set.spec.monitoring.as_ref().filter(|monitoring| monitoring.pod_monitor) else {
        return Ok(None);
    };
    monitor(set, owner, resource, monitoring, "podMetricsEndpoints").map(Some)
}

/// ServiceMonitor `NAME`, of the cluster's kind `resource`: the ready selectors.
///
/// # Errors
/// It cannot be written as JSON.
pub fn service_monitor(
    set: &SelectorSet,
    owner: &OwnerReference,
    resource: &ApiResource,
) -> serde_json::Result<Option<Desired>> {
    let Some(monitoring) = set.spec.monitoring.as_ref().filter(|monitoring| monitoring.service_monitor) else {
        return Ok(None);
    };
    monitor(set, owner, resource, monitoring, "endpoints").map(Some)
}

fn monitor(
    set: &SelectorSet,
    owner: &OwnerReference,
    resource: &ApiResource,
    monitoring: &Monitoring,
    endpoints: &str,
) -> serde_json::Result<Desired> {
    let mut metadata = metadata(owner, set, set.name_any());
    metadata.labels = Some(merged(&monitoring.labels, &set.name_any()));
    let mut endpoint = json!({"port": HTTP_PORT_NAME, "path": "/metrics"});
    if let Some(interval) = &monitoring.interval {
        endpoint["interval"] = Value::String(interval.clone());
    }
    let mut value = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": serde_json::to_value(metadata)?,
        "spec": {"selector": {"matchLabels": selector_labels(&set.name_any())}},
    });
    value["spec"][endpoints] = json!([endpoint]);
    // The headless Service carries the same labels, and would count every selector twice.
    if endpoints == "endpoints" {
        value["spec"]["selector"]["matchExpressions"] =
            json!([{"key": super::SERVICE_ROLE_LABEL, "operator": "NotIn", "values": [super::PEERS_ROLE]}]);
    }
    Ok(Desired::new(resource.clone(), value))
}
