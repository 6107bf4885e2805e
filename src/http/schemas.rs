//! Shapes of answers that are written by hand, for the OpenAPI document.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::selection::worker::{KvTransferEnforcement, Lifecycle, WorkerRole};

/// A worker as the catalog shows it: what was sent, not effective defaults. Absent values are null unless they say
/// that they are omitted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorkerRecord)]
#[allow(dead_code, missing_docs, reason = "only its schema is used: records are written in the reference's own order")]
pub(super) struct WorkerRecordSchema {
    pub worker_id: u64,
    pub model_name: String,
    pub routing_group: String,
    pub lifecycle: Lifecycle,
    pub endpoint: Option<String>,
    pub kv_events_endpoint: Option<String>,
    /// Omitted when empty.
    #[serde(default)]
    pub kv_events_endpoints: BTreeMap<u32, String>,
    pub replay_endpoint: Option<String>,
    pub block_size: Option<u32>,
    pub data_parallel_start_rank: Option<u32>,
    pub data_parallel_size: Option<u32>,
    pub max_num_batched_tokens: Option<u64>,
    pub total_kv_blocks: Option<u64>,
    pub stable_routing_id: Option<String>,
    pub is_eagle: Option<bool>,
    pub taints: Vec<String>,
    pub topology_domains: BTreeMap<String, String>,
    pub kv_transfer_domain: Option<String>,
    pub kv_transfer_enforcement: Option<KvTransferEnforcement>,
    pub kv_transfer_preferred_weight: Option<f32>,
    /// Omitted when absent.
    pub router_hint_worker_type: Option<String>,
    /// Omitted when empty.
    #[serde(default)]
    pub router_hint_source_control_endpoints: BTreeMap<u32, String>,
    /// Omitted when absent.
    pub kv_event_source_mode: Option<String>,
    /// Omitted when empty.
    #[serde(default)]
    pub replay_endpoints: BTreeMap<u32, String>,
    /// Omitted when absent.
    pub worker_role: Option<WorkerRole>,
    /// Why it is not schedulable; omitted when it is.
    #[serde(default)]
    pub not_schedulable_reasons: Vec<String>,
}
