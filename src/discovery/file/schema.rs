//! The shape of a workers file, version 1. Every map is strict: an unknown key is an error.
//!
//! `null` counts as not given everywhere but in `version` and `workers`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::selection::worker::{KvTransferEnforcement, WorkerRole, WorkerState};

/// The only version there is.
pub const VERSION: u64 = 1;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    pub version: Spanned<u64>,
    #[serde(default)]
    pub defaults: Option<Defaults>,
    /// Required, so that a file without it is a mistake and `[]` a wish.
    pub workers: Vec<Spanned<Entry>>,
}

/// What workers of a file have in common. A worker's own value replaces it whole.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    pub model_name: Option<String>,
    pub routing_group: Option<String>,
    pub block_size: Option<u32>,
    pub data_parallel_size: Option<u32>,
    pub max_num_batched_tokens: Option<u64>,
    pub total_kv_blocks: Option<u64>,
    pub is_eagle: Option<bool>,
    pub taints: Option<BTreeSet<String>>,
    pub topology_domains: Option<BTreeMap<String, String>>,
    pub kv_transfer_domain: Option<String>,
    pub kv_transfer_enforcement: Option<KvTransferEnforcement>,
    pub kv_transfer_preferred_weight: Option<Spanned<f32>>,
    pub router_hint_worker_type: Option<String>,
    pub kv_event_source_mode: Option<String>,
    pub worker_role: Option<WorkerRole>,
}

/// One worker: its identity, a short form for event endpoints, and every field of `POST /workers` by its own name.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Entry {
    /// Identity; the id is derived from it unless `worker_id` is given.
    pub name: Option<Spanned<String>>,
    pub worker_id: Option<Spanned<u64>>,
    pub state: Option<WorkerState>,
    pub kv_events: Option<Spanned<KvEvents>>,
    pub model_name: Option<String>,
    pub routing_group: Option<String>,
    pub endpoint: Option<String>,
    pub kv_events_endpoint: Option<String>,
    pub kv_events_endpoints: Option<BTreeMap<u32, String>>,
    pub replay_endpoint: Option<String>,
    pub replay_endpoints: Option<BTreeMap<u32, String>>,
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
    pub kv_transfer_preferred_weight: Option<Spanned<f32>>,
    pub router_hint_worker_type: Option<String>,
    pub router_hint_source_control_endpoints: Option<BTreeMap<u32, String>>,
    pub kv_event_source_mode: Option<String>,
    pub worker_role: Option<WorkerRole>,
}

/// Event endpoints of all ranks by the port of rank 0: rank `r` publishes on `port + r * stride`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvEvents {
    pub endpoint: String,
    #[serde(default)]
    pub replay: Option<String>,
    #[serde(default)]
    pub stride: Option<u16>,
}
