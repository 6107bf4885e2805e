//! Bodies of the worker routes (spec http 4.1). No member is flattened here, so that positional arrays are read as the
//! reference reads them: its fields in its order, ours after them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use utoipa::ToSchema;

use super::{BodyError, decode};
use crate::selection::worker::{self, KvTransferEnforcement, WorkerFields, WorkerPatch, WorkerRole};

fn default_name() -> String {
    "default".to_owned()
}

/// `POST /workers`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct WorkerRequest {
    /// Unique in the service; the full 64-bit range.
    pub worker_id: u64,
    /// Model name.
    #[serde(default = "default_name")]
    pub model_name: String,
    /// Routing group.
    #[serde(default = "default_name")]
    pub routing_group: String,
    /// Where requests go, as the caller wants it back.
    pub endpoint: Option<String>,
    /// Event endpoint of the single rank of a one-rank worker.
    pub kv_events_endpoint: Option<String>,
    /// Event endpoint by rank; wins over the scalar when not empty.
    #[serde(default)]
    pub kv_events_endpoints: BTreeMap<u32, String>,
    /// Replay endpoint of a one-rank worker.
    pub replay_endpoint: Option<String>,
    /// Tokens a block.
    pub block_size: Option<u32>,
    /// First global rank; 0 when absent.
    pub data_parallel_start_rank: Option<u32>,
    /// Number of ranks, at most 4096; 1 when absent.
    pub data_parallel_size: Option<u32>,
    /// Most tokens a batch of the engine.
    pub max_num_batched_tokens: Option<u64>,
    /// KV capacity in blocks.
    pub total_kv_blocks: Option<u64>,
    /// Identity that outlives restarts; stored and shown.
    pub stable_routing_id: Option<String>,
    /// Blocks are hashed with one look-ahead token.
    pub is_eagle: Option<bool>,
    /// Labels that constraints name.
    #[serde(default)]
    pub taints: BTreeSet<String>,
    /// Topology labels; stored and shown.
    #[serde(default)]
    pub topology_domains: BTreeMap<String, String>,
    /// Topology key for KV transfer; stored and shown.
    pub kv_transfer_domain: Option<String>,
    /// Stored and shown.
    pub kv_transfer_enforcement: Option<KvTransferEnforcement>,
    /// Stored and shown.
    pub kv_transfer_preferred_weight: Option<f32>,
    /// Type by which KV hints pair workers.
    pub router_hint_worker_type: Option<String>,
    /// Control endpoint by rank that a KV hint names as source.
    #[serde(default)]
    pub router_hint_source_control_endpoints: BTreeMap<u32, String>,
    /// How the worker's events are produced; `state_agent_v2` is never a hint source.
    pub kv_event_source_mode: Option<String>,
    /// Replay endpoint by rank; wins over the scalar when not empty.
    #[serde(default)]
    pub replay_endpoints: BTreeMap<u32, String>,
    /// Role; a routing group has one. Aggregated when absent.
    #[serde(default)]
    pub worker_role: Option<WorkerRole>,
}

impl From<WorkerRequest> for worker::WorkerRequest {
    fn from(wire: WorkerRequest) -> Self {
        Self {
            worker_id: wire.worker_id,
            model_name: wire.model_name,
            routing_group: wire.routing_group,
            fields: WorkerFields {
                endpoint: wire.endpoint,
                kv_events_endpoint: wire.kv_events_endpoint,
                kv_events_endpoints: wire.kv_events_endpoints,
                replay_endpoint: wire.replay_endpoint,
                block_size: wire.block_size,
                data_parallel_start_rank: wire.data_parallel_start_rank,
                data_parallel_size: wire.data_parallel_size,
                max_num_batched_tokens: wire.max_num_batched_tokens,
                total_kv_blocks: wire.total_kv_blocks,
                stable_routing_id: wire.stable_routing_id,
                is_eagle: wire.is_eagle,
                taints: wire.taints,
                topology_domains: wire.topology_domains,
                kv_transfer_domain: wire.kv_transfer_domain,
                kv_transfer_enforcement: wire.kv_transfer_enforcement,
                kv_transfer_preferred_weight: wire.kv_transfer_preferred_weight.map(finite),
                router_hint_worker_type: wire.router_hint_worker_type,
                router_hint_source_control_endpoints: wire.router_hint_source_control_endpoints,
                kv_event_source_mode: wire.kv_event_source_mode,
                replay_endpoints: wire.replay_endpoints,
                worker_role: wire.worker_role,
            },
        }
    }
}

/// `PATCH /workers/{worker_id}`.
///
/// # Errors
/// [`BodyError`].
pub fn patch(body: &[u8]) -> Result<WorkerPatch, BodyError> {
    let mut patch: WorkerPatch = decode(body)?;
    patch.kv_transfer_preferred_weight = patch.kv_transfer_preferred_weight.map(finite);
    Ok(patch)
}

/// JSON numbers beyond the range of an f32 decode as infinite, which JSON cannot say back.
fn finite(weight: f32) -> f32 {
    weight.clamp(f32::MIN, f32::MAX)
}
