//! `ModelPool`: the workers of one model, found in the cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{LocalReference, PortReference};

/// The workers of one model, found in the cluster and kept on every selector of a SelectorSet.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "pointsman.dev",
    version = "v1alpha1",
    kind = "ModelPool",
    plural = "modelpools",
    shortname = "mp",
    category = "pointsman",
    doc = "The workers of one model, kept on every selector of a SelectorSet.",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "ModelPoolStatus",
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.modelName",
        description = "Name that requests ask for"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.schedulableOfDiscovered",
        description = "Workers that take bookings, of all that were found"
    ),
    printcolumn(
        name = "Synced",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Synced\")].status",
        description = "Whether every selector has the newest workers"
    ),
    printcolumn(
        name = "Workers",
        type_ = "integer",
        json_path = ".status.discovered",
        description = "Pods or endpoints that were found"
    ),
    printcolumn(
        name = "Generation",
        type_ = "integer",
        json_path = ".status.catalogGeneration",
        description = "Generation of the catalog"
    ),
    printcolumn(
        name = "Selectors",
        type_ = "string",
        json_path = ".spec.selectorRef.name",
        description = "SelectorSet",
        priority = 1
    ),
    printcolumn(
        name = "Role",
        type_ = "string",
        json_path = ".spec.role",
        description = "What the workers do",
        priority = 1
    ),
    printcolumn(
        name = "Rejected",
        type_ = "integer",
        json_path = ".status.rejected",
        description = "Pods or endpoints that are no workers",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.blockSize) || (has(self.kvEvents) && self.kvEvents.source == 'Engine')").message("blockSize is required unless kvEvents.source is Engine"),
)]
pub struct ModelPoolSpec {
    /// The SelectorSet, in the same namespace.
    pub selector_ref: LocalReference,
    /// Name of the model, as requests ask for it.
    #[schemars(length(min = 1, max = 512))]
    pub model_name: String,
    /// Group of workers within the model. When absent: default, and for Prefill, Decode and Encode the role's name in
    /// lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub routing_group: Option<String>,
    /// What the workers do. All pools of one model and group have the same.
    #[serde(default)]
    pub role: Role,
    /// Where the workers are.
    pub workers: Workers,
    /// Where their requests go.
    pub endpoint: Endpoint,
    /// Tokens a KV block, as the engine has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub block_size: Option<u32>,
    /// Ranks of each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_parallel: Option<DataParallel>,
    /// Where the engines publish their KV events. When absent, they publish none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<KvEvents>,
    /// What a worker can take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Labels of the workers that constraints of requests name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub taints: Vec<String>,
    /// Topology of a worker: domain to label of its node, such as zone: topology.kubernetes.io/zone. Without the right to
    /// read nodes, zones come from EndpointSlices and other labels stay out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
    /// How KV caches may be transferred between workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_transfer: Option<KvTransfer>,
    /// Hints for routers that move KV caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_hint: Option<RouterHint>,
    /// Whether the engine hashes blocks with one token more, as EAGLE speculation does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eagle: Option<bool>,
    /// How workers leave.
    #[serde(default)]
    pub drain: Drain,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Aggregated,
    /// Prefill alone.
    Prefill,
    /// Decode alone.
    Decode,
    /// Encodes what is no text.
    Encode,
}

/// Where the workers are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.service) != has(self.podSelector)").message("set exactly one of service and podSelector"))]
pub struct Workers {
    /// A Service: its endpoints are the workers, readiness included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<LocalReference>,
    /// Pods by label: every one of them is a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
}

/// Where a worker's requests go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Scheme.
    #[serde(default)]
    pub scheme: Scheme,
    /// Port of the pod: its number, or its name in the Service or the pod.
    pub port: PortReference,
    /// What follows host and port in the endpoint that selectors hand out, such as /v1; nothing by default.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == '' || self.startsWith('/')").message("a path begins with a slash"))]
    #[schemars(length(max = 1024))]
    pub path: String,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self { scheme: Scheme::Http, port: PortReference::Name("http".to_owned()), path: String::new() }
    }
}

/// Scheme of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Plain.
    #[default]
    Http,
    /// TLS.
    Https,
}

/// Ranks of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataParallel {
    /// Number of ranks.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub size: u32,
    /// First global rank.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub start_rank: u32,
}

impl Default for DataParallel {
    fn default() -> Self {
        Self { size: 1, start_rank: 0 }
    }
}

fn one() -> u32 {
    1
}

/// Where an engine publishes its KV events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.source == 'Engine' || has(self.port)").message("port is required unless source is Engine"),
)]
pub struct KvEvents {
    /// Who tells ports, block size and ranks: Spec, this object; Engine, the engine itself, asked by SGLang's
    /// /server_info or vLLM's /kv_event_sources. What is set here wins over what the engine says.
    #[serde(default)]
    pub source: KvEventSource,
    /// Port of rank 0; rank r publishes on port + r * stride.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<u16>,
    /// Distance of the ports of two ranks; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024))]
    pub stride: Option<u16>,
    /// Port of rank 0 that gives lost events again; rank r is on replayPort + r * stride. When absent, what is lost stays
    /// lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub replay_port: Option<u16>,
}

/// Who tells where events are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum KvEventSource {
    /// The ModelPool.
    #[default]
    Spec,
    /// The engine.
    Engine,
}

/// What a worker can take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Most tokens a batch of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9_007_199_254_740_991_i64))]
    pub max_num_batched_tokens: Option<u64>,
    /// KV capacity of a rank in blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9_007_199_254_740_991_i64))]
    pub total_kv_blocks: Option<u64>,
}

/// How KV caches may be transferred between workers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvTransfer {
    /// Domain of the topology within which transfers go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Whether the domain is law.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// Weight of a preferred domain, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub preferred_weight: Option<f32>,
}

/// Whether a domain is law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Enforcement {
    /// Law.
    Required,
    /// A preference.
    Preferred,
}

/// Hints for routers that move KV caches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouterHint {
    /// Type by which workers are paired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_type: Option<String>,
    /// Port of rank 0's source control; rank r is on it plus r * the stride of kvEvents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub source_control_port: Option<u16>,
}

/// How workers leave. A worker that drains takes no new bookings and keeps its running ones.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Seconds a worker that is not ready drains before it is removed: a probe that fails under load does not throw away
    /// its index and its bookings.
    #[serde(default = "default_not_ready_grace")]
    #[schemars(range(min = 0, max = 86_400))]
    pub not_ready_grace_seconds: u32,
}

fn default_not_ready_grace() -> u32 {
    60
}

impl Default for Drain {
    fn default() -> Self {
        Self { not_ready_grace_seconds: default_not_ready_grace() }
    }
}

/// How a ModelPool stands.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelPoolStatus {
    /// Generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods or endpoints that were found.
    #[serde(default)]
    pub discovered: i32,
    /// Of those, ready.
    #[serde(default)]
    pub ready: i32,
    /// Workers that every selector books on.
    #[serde(default)]
    pub schedulable: i32,
    /// Workers that drain.
    #[serde(default)]
    pub draining: i32,
    /// Found, and no workers.
    #[serde(default)]
    pub rejected: i32,
    /// Schedulable of discovered, as 7/8.
    #[serde(default)]
    pub schedulable_of_discovered: String,
    /// Generation of the catalog that the selectors have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog_generation: Option<i64>,
    /// Why pods or endpoints are no workers, or workers take no bookings; the first 32 by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejections: Vec<Rejection>,
    /// Where the values in force come from, when the engine is asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<ValueSource>,
    /// Conditions: Accepted, WorkersDiscovered, Synced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A pod or endpoint that takes no bookings, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    /// Pod, or address and port where there is no pod.
    pub name: String,
    /// A stable word.
    pub reason: String,
    /// For a person.
    pub message: String,
}

/// A value and where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueSource {
    /// Field of the spec, such as blockSize.
    pub field: String,
    /// Value in force; those of single workers differ by annotation.
    pub value: String,
    /// Spec, or the route that was asked, such as GET /server_info.
    pub source: String,
}
