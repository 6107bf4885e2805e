//! What is said about a worker: the request that registers it, the patch, the record the catalog shows, and the checks
//! between them.

mod checks;
mod rank_map;
mod record;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

pub(super) use self::checks::{CAPACITY_REQUIRED, Needs, RankSource, WorkerPlan};

use super::identity::PartitionKey;

/// Most ranks one worker may have.
pub const MAX_DATA_PARALLEL_SIZE: u32 = 4096;

/// What a worker does in a disaggregated deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum WorkerRole {
    /// Computes prompts.
    Prefill,
    /// Generates output.
    Decode,
    /// Encodes multimodal input.
    Encode,
    /// Does all of it.
    #[default]
    Aggregated,
}

impl WorkerRole {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Prefill, Self::Decode, Self::Encode, Self::Aggregated];

    /// Its name.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Encode => "encode",
            Self::Aggregated => "aggregated",
        }
    }

    /// The label under which the built-in policy scores and logs its pools: it knows only two.
    pub const fn default_selector_label(&self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode | Self::Encode | Self::Aggregated => "decode",
        }
    }
}

impl std::fmt::Display for WorkerRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown worker type {token:?}, expected 'prefill', 'decode', 'encode' or 'aggregated'")]
pub struct ParseWorkerRoleError {
    /// The text.
    pub token: String,
}

impl std::str::FromStr for WorkerRole {
    type Err = ParseWorkerRoleError;

    /// Blanks around the name and case do not count.
    fn from_str(text: &str) -> Result<Self, ParseWorkerRoleError> {
        let named = |role: &Self| role.as_str().eq_ignore_ascii_case(text.trim());
        Self::ALL.into_iter().find(named).ok_or_else(|| ParseWorkerRoleError { token: text.to_owned() })
    }
}

/// Whether a worker takes new bookings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// Takes bookings.
    #[default]
    Active,
    /// Takes no new booking; keeps listener, index and bookings until the last one ends.
    Draining,
    /// Only its cache is indexed: no selection goes to it, and it carries no load (`POST /register`).
    Indexed,
}

/// How strictly KV transfer stays inside a topology domain. Stored and shown; not acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum KvTransferEnforcement {
    /// Only inside the domain.
    Required,
    /// Rather inside the domain.
    Preferred,
}

fn default_name() -> String {
    "default".to_owned()
}

/// Everything about a worker but its id and partition. `None` and empty are "not sent"; effective defaults are applied
/// when the worker is reconciled, never written back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct WorkerFields {
    /// Where requests go, as the caller wants it back.
    pub endpoint: Option<String>,
    /// Event endpoint of the single rank of a one-rank worker.
    pub kv_events_endpoint: Option<String>,
    /// Event endpoint by rank; wins over the scalar when not empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "rank_map::deserialize")]
    pub kv_events_endpoints: BTreeMap<u32, String>,
    /// Replay endpoint of a one-rank worker.
    pub replay_endpoint: Option<String>,
    /// Tokens a block.
    pub block_size: Option<u32>,
    /// First global rank; 0 when absent.
    pub data_parallel_start_rank: Option<u32>,
    /// Number of ranks; 1 when absent, at most [`MAX_DATA_PARALLEL_SIZE`].
    pub data_parallel_size: Option<u32>,
    /// Most tokens a batch of the engine.
    pub max_num_batched_tokens: Option<u64>,
    /// KV capacity in blocks.
    pub total_kv_blocks: Option<u64>,
    /// Identity that outlives restarts. Stored and shown.
    pub stable_routing_id: Option<String>,
    /// Blocks are hashed with one look-ahead token.
    pub is_eagle: Option<bool>,
    /// Labels that constraints name.
    pub taints: BTreeSet<String>,
    /// Topology labels. Stored and shown.
    pub topology_domains: BTreeMap<String, String>,
    /// Topology key for KV transfer. Stored and shown.
    pub kv_transfer_domain: Option<String>,
    /// Stored and shown.
    pub kv_transfer_enforcement: Option<KvTransferEnforcement>,
    /// Stored and shown.
    pub kv_transfer_preferred_weight: Option<f32>,
    /// Type by which KV hints pair workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_hint_worker_type: Option<String>,
    /// Control endpoint by rank that a KV hint names as source.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "rank_map::deserialize")]
    pub router_hint_source_control_endpoints: BTreeMap<u32, String>,
    /// How the worker's events are produced; `state_agent_v2` is never a hint source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_event_source_mode: Option<String>,
    /// Ours: replay endpoint by rank; wins over the scalar when not empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "rank_map::deserialize")]
    pub replay_endpoints: BTreeMap<u32, String>,
    /// Ours: role; a partition has one. Aggregated when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_role: Option<WorkerRole>,
}

/// `POST /workers`, and one record of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct WorkerRequest {
    /// Unique in the service; the full 64-bit range.
    pub worker_id: u64,
    /// Model name, `"default"` when absent.
    #[serde(default = "default_name")]
    pub model_name: String,
    /// Routing group, `"default"` when absent.
    #[serde(default = "default_name")]
    pub routing_group: String,
    /// The rest.
    #[serde(flatten)]
    pub fields: WorkerFields,
}

impl WorkerRequest {
    /// The partition the worker belongs to.
    pub fn partition(&self) -> PartitionKey {
        PartitionKey::new(self.model_name.as_str(), self.routing_group.as_str())
    }
}

/// `PATCH /workers/{worker_id}`: a present value replaces, an absent or null one keeps. Maps and sets are replaced
/// whole. As a positional array it is read as the reference reads it: its fields in its order, ours after them and
/// optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[allow(missing_docs, reason = "each field replaces the one of the same name in WorkerFields")]
pub struct WorkerPatch {
    pub endpoint: Option<String>,
    pub kv_events_endpoint: Option<String>,
    pub kv_events_endpoints: Option<BTreeMap<u32, String>>,
    pub replay_endpoint: Option<String>,
    pub block_size: Option<u32>,
    pub data_parallel_start_rank: Option<u32>,
    pub data_parallel_size: Option<u32>,
    pub max_num_batched_tokens: Option<u64>,
    pub total_kv_blocks: Option<u64>,
    pub stable_routing_id: Option<String>,
    pub is_eagle: Option<bool>,
    pub taints: Option<BTreeSet<String>>,
    pub topology_domains: Option<BTreeMap<String, String>>,
    pub kv_transfer_domain: Option<String>,
    pub kv_transfer_enforcement: Option<KvTransferEnforcement>,
    pub kv_transfer_preferred_weight: Option<f32>,
    pub router_hint_worker_type: Option<String>,
    pub router_hint_source_control_endpoints: Option<BTreeMap<u32, String>>,
    pub kv_event_source_mode: Option<String>,
    #[serde(default)]
    pub replay_endpoints: Option<BTreeMap<u32, String>>,
    #[serde(default)]
    pub worker_role: Option<WorkerRole>,
}

/// Where a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// Known, but something is missing: see the reasons.
    Incomplete,
    /// Takes bookings.
    Schedulable,
    /// On its way out.
    Draining,
    /// Gone, as the answer to DELETE says, or never meant to take bookings: only its cache is indexed.
    Unschedulable,
}

/// A worker as the catalog shows it: what was sent, not effective defaults. Serialised by hand to keep the field order
/// and the null-or-omitted rules of the reference (spec http 4.2).
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRecord {
    /// What was sent.
    pub request: Arc<WorkerRequest>,
    /// Where it stands.
    pub lifecycle: Lifecycle,
    /// Why it is not schedulable; empty when it is.
    pub not_schedulable_reasons: Vec<String>,
    /// Who registered it: `api`, `file.<name>`, `k8s.<namespace>.<set>`. Shown by `GET /catalog?workers=true` only.
    pub owner: Arc<str>,
    /// Active, draining or only indexed, as its owner wants it.
    pub state: WorkerState,
}
