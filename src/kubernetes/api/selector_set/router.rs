//! What selectors are configured with: how they choose, and what they tell each other.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::common::{SecretKeyReference, any_object};

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

pub(super) fn yes() -> bool {
    true
}

impl Default for ReplicaSync {
    fn default() -> Self {
        Self { enabled: true, peers: Vec::new(), stale_after_seconds: None }
    }
}
