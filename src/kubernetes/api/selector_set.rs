//! `SelectorSet`: selectors that share one catalog and one mesh.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    common::{SecretKeyReference, any_object, any_objects, int_or_percent},
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

/// How workers are chosen.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.policy) && has(self.document))").message("set either policy, a name, or document, a whole policy document"))]
pub struct Router {
    /// Type of the policy, such as work-ahead; default, also when absent, is the cost of the reference. A change acts without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub policy: Option<String>,
    /// A whole policy document: policies by role, classes of the queue, shadow, canary. A change acts without a restart;
    /// one that cannot be used leaves in force what was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub document: Option<Map<String, Value>>,
    /// Whether caches are learned from the engines' KV events (the default) or predicted from own decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<bool>,
    /// Life of a predicted block without KV events, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub predicted_block_ttl_seconds: Option<f64>,
    /// Prefill load, as a fraction of a worker's maxNumBatchedTokens, from which requests wait. They never wait when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub queue_threshold: Option<f64>,
    /// Order of waiting requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_policy: Option<QueuePolicy>,
    /// Randomness of the choice; 0, the default, takes the cheapest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub temperature: Option<f64>,
    /// Flags of `pointsman selector` beyond these, each as one word, such as --router-prefill-load-scale=2. Flags that
    /// the operator sets itself are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub extra_args: Vec<String>,
}

/// Order of waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum QueuePolicy {
    /// First come, first served.
    #[serde(rename = "fcfs")]
    Fcfs,
    /// Last come, first served.
    #[serde(rename = "lcfs")]
    Lcfs,
    /// Least uncached work first, weighted.
    #[serde(rename = "wspt")]
    Wspt,
}

impl QueuePolicy {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Lcfs => "lcfs",
            Self::Wspt => "wspt",
        }
    }
}

/// Selections that wait for their replay by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectionCache {
    /// Seconds a selection can be replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ttl_seconds: Option<i64>,
    /// Most selections that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_entries: Option<i64>,
    /// Most bytes that they may take together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_bytes: Option<i64>,
}

/// Keyed hashes of prompts: what selectors tell each other then says nothing about prompts to who lacks the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrackingHash {
    /// Secret and key with exactly 32 raw bytes. A change restarts the selectors.
    pub key_secret_ref: SecretKeyReference,
    /// Name of the key's epoch; all selectors of a mesh have the same.
    #[schemars(length(min = 1, max = 128))]
    pub key_id: String,
}

/// The mesh.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSync {
    /// Whether selectors tell each other of bookings and sessions.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Publishers outside the set that its selectors follow too, such as tcp://10.0.0.8:9092.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub peers: Vec<String>,
    /// Seconds after which a booking of another selector that arrives late is ignored. Never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub stale_after_seconds: Option<i64>,
}

fn yes() -> bool {
    true
}

impl Default for ReplicaSync {
    fn default() -> Self {
        Self { enabled: true, peers: Vec::new(), stale_after_seconds: None }
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
