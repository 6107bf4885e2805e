//! `SelectorSet`: selectors that share one catalog and one mesh.

mod pods;
mod router;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    pods::{
        ClientService, Image, Monitoring, NetworkPolicy, PodDisruptionBudget, PodTemplate, PullPolicy, ServiceType,
    },
    router::{QueuePolicy, ReplicaSync, Router, SelectionCache, TrackingHash},
};
use super::{
    common::SecretKeyReference,
    constants::{HTTP_PORT, REPLICA_SYNC_PORT},
};

/// Selectors that share one catalog and one mesh. The operator keeps the workers of every ModelPool that names the set,
/// the same on every selector, and registers the selectors with each other.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "pointsman.dev",
    version = "v1alpha1",
    kind = "SelectorSet",
    plural = "selectorsets",
    shortname = "sset",
    category = "pointsman",
    doc = "Selectors that share one catalog and one mesh.",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "SelectorSetStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.readyOfReplicas", description = "Selectors that are ready, of all"),
    printcolumn(name = "Synced", type_ = "string", json_path = ".status.conditions[?(@.type==\"CatalogSynced\")].status", description = "Whether every selector has the newest catalog"),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.catalog.workers", description = "Workers in the catalog"),
    printcolumn(name = "Generation", type_ = "integer", json_path = ".status.catalog.generation", description = "Generation of the catalog"),
    printcolumn(name = "Peers", type_ = "string", json_path = ".status.conditions[?(@.type==\"PeersWired\")].status", description = "Whether every selector has all others as peers", priority = 1),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode", description = "Who runs the selectors", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 52").message("the name must have at most 52 characters: pods and their labels are named after it")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.mode == 'External' ? has(self.podSelector) : !has(self.podSelector)").message("podSelector names the pods of mode External; mode Managed makes its own and takes none"),
    validation = Rule::new("self.mode == oldSelf.mode").message("mode cannot be changed: make another SelectorSet"),
)]
pub struct SelectorSetSpec {
    /// Who runs the selectors: Managed, a StatefulSet of the operator; External, somebody else's pods that podSelector
    /// finds, such as sidecars of a gateway.
    #[serde(default)]
    pub mode: Mode,
    /// Selectors to run. Each has the whole catalog and mirrors the bookings of all others; two survive the loss of one.
    /// Without meaning in mode External.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 64))]
    pub replicas: i32,
    /// Pods that run a selector, in mode External. It is their owner's: the operator never changes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// Ports of the selectors.
    #[serde(default)]
    pub ports: Ports,
    /// Image of the selectors; the operator's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// How workers are chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<Router>,
    /// Seconds a session stays with its worker after its last request. No sessions when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub session_affinity_ttl_seconds: Option<i64>,
    /// Selections that wait for their replay by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_cache: Option<SelectionCache>,
    /// Keyed hashes for the prompts of bookings that selectors tell each other of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracking_hash: Option<TrackingHash>,
    /// The mesh in which selectors tell each other of bookings and sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_sync: Option<ReplicaSync>,
    /// Token that changes of the catalog and of peers must carry. When absent, nothing is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_token_secret_ref: Option<SecretKeyReference>,
    /// What the pods of the selectors have beyond what the operator gives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,
    /// The Service that clients use. It has the name of the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ClientService>,
    /// How many selectors a drain of nodes may take away at once. One when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudget>,
    /// Who may reach the selectors. Nobody is kept away when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// Objects by which Prometheus finds the selectors, where its operator is installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<Monitoring>,
    /// Seconds between the first sign of an end and the first refused request, so that no client is sent to a selector
    /// that is leaving.
    #[serde(default = "default_shutdown_delay")]
    #[schemars(range(min = 0, max = 300))]
    pub shutdown_delay_seconds: i32,
}

fn default_replicas() -> i32 {
    3
}

fn default_shutdown_delay() -> i32 {
    5
}

/// Who runs the selectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Mode {
    /// A StatefulSet of the operator.
    #[default]
    Managed,
    /// Somebody else's pods.
    External,
}

/// Ports of a selector, by pod address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// Port of the HTTP API.
    #[serde(default = "default_http_port")]
    #[schemars(range(min = 1, max = 65_535))]
    pub http: u16,
    /// Port on which bookings and sessions are published to peers.
    #[serde(default = "default_replica_sync_port")]
    #[schemars(range(min = 1, max = 65_535))]
    pub replica_sync: u16,
}

fn default_http_port() -> u16 {
    HTTP_PORT
}

fn default_replica_sync_port() -> u16 {
    REPLICA_SYNC_PORT
}

impl Default for Ports {
    fn default() -> Self {
        Self { http: HTTP_PORT, replica_sync: REPLICA_SYNC_PORT }
    }
}

/// How a SelectorSet stands.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectorSetStatus {
    /// Generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Selectors that there are.
    #[serde(default)]
    pub replicas: i32,
    /// Of those, ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Of those, of the newest template.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Ready of wanted, as 2/3.
    #[serde(default)]
    pub ready_of_replicas: String,
    /// Labels of the selectors' pods, for the scale subresource.
    #[serde(default)]
    pub label_selector: String,
    /// The newest catalog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<CatalogStatus>,
    /// The policy that the set asks for, in a word: its type, document for a document, or default.
    #[serde(default)]
    pub policy: String,
    /// Every selector, by pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pod"]))]
    pub selectors: Vec<SelectorStatus>,
    /// Conditions: Available, Progressing, CatalogSynced, PeersWired, Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The catalog that every selector should have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CatalogStatus {
    /// Who owns its records at the selectors: k8s.NAMESPACE.NAME.
    pub owner: String,
    /// Term of the operator that made it.
    pub epoch: i64,
    /// Counts catalogs within a term.
    pub generation: i64,
    /// Digest over all records; equal digests are equal catalogs.
    pub digest: String,
    /// Workers in it.
    pub workers: i64,
}

/// One selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectorStatus {
    /// Name of its pod.
    pub pod: String,
    /// Address of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether the pod is ready.
    pub ready: bool,
    /// How its catalog stands: pending, applied, behind, failing or unreachable.
    pub catalog: String,
    /// Digest of the catalog last applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How its peers stand: pending, wired, incomplete, disabled, unsupported, unreachable or clash.
    pub peers: String,
    /// Why the last attempt to reach it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
