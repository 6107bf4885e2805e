//! The pods of the selectors, and the objects that stand around them.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    super::common::{any_object, any_objects, int_or_percent},
    router::yes,
};

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.digest) || self.digest.matches('^[a-z0-9]+:[a-f0-9]{32,}$')").message("digest has the form sha256:<hex>"))]
pub struct Image {
    /// Repository, registry included; the operator's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Tag; the operator's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Digest, such as sha256:...; wins over the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When the image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// When the node lacks it.
    IfNotPresent,
    /// Not at all.
    Never,
}

impl PullPolicy {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// What the pods of the selectors have beyond what the operator gives them. Lists of objects are those of a Pod; see
/// `kubectl explain pod.spec`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels. Those of the operator win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations. Those of the operator win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// CPU and memory, as a container's resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub resources: Option<Map<String, Value>>,
    /// Labels of nodes that may run them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity, as a pod's. When absent, selectors of a set prefer different nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub affinity: Option<Map<String, Value>>,
    /// Tolerations, as a pod's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub tolerations: Vec<Value>,
    /// Spread over zones or nodes, as a pod's. A constraint without labelSelector means the selectors of the set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub topology_spread_constraints: Vec<Value>,
    /// Priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Runtime class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// ServiceAccount. Selectors need no rights; the namespace's default one when absent, without its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Secrets for the registry of the image, each with a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub image_pull_secrets: Vec<Value>,
    /// Environment of the selector, as a container's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub env: Vec<Value>,
    /// Environment from ConfigMaps and Secrets, as a container's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub env_from: Vec<Value>,
    /// Further volumes, as a pod's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub volumes: Vec<Value>,
    /// Where the selector sees them, as a container's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub volume_mounts: Vec<Value>,
    /// Further containers, as a pod's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub sidecars: Vec<Value>,
    /// Seconds from the end's first sign to the kill. When absent, what the selector needs to leave in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub termination_grace_period_seconds: Option<i64>,
}

/// The Service that clients use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientService {
    /// How it can be reached.
    #[serde(default)]
    pub type_: ServiceType,
    /// Port; 8092 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<u16>,
    /// Labels. Those of the operator win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// How a Service can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ServiceType {
    /// Within the cluster.
    #[default]
    ClusterIP,
    /// On a port of every node too.
    NodePort,
    /// By a load balancer of the cloud too.
    LoadBalancer,
}

impl ServiceType {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// How many selectors a drain of nodes may take away at once.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.minAvailable) && has(self.maxUnavailable))").message("set either minAvailable or maxUnavailable"))]
pub struct PodDisruptionBudget {
    /// Whether there is one.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Least selectors that stay, a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_percent")]
    pub min_available: Option<Value>,
    /// Most selectors that go, a number or a percentage; 1 when neither is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_percent")]
    pub max_unavailable: Option<Value>,
}

/// Who may reach the selectors. The cluster's network must enforce such policies; not all do.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// Whether there is one: the HTTP port then takes clients and the operator, the publisher's port the set's selectors.
    #[serde(default)]
    pub enabled: bool,
    /// Clients of the HTTP port, as `from` of a NetworkPolicy. Every pod of the namespace when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_objects")]
    pub clients: Vec<Value>,
}

/// Objects by which Prometheus finds the selectors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// Make a PodMonitor: every selector is scraped, ready or not.
    #[serde(default)]
    pub pod_monitor: bool,
    /// Make a ServiceMonitor: the ready selectors are scraped through the Service.
    #[serde(default)]
    pub service_monitor: bool,
    /// Time between two scrapes, such as 15s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Labels of the monitors, by which an instance of Prometheus takes them up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}
