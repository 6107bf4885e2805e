//! Requests and answers of the verbs, in the shapes of the HTTP API (spec http 3 to 8). Field order is the order in
//! which answers are written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{explain::Explanation, hints::KvHint, identity::WorkerWithDpRank, moment::Moment};

/// One multimodal object in a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct MmObject {
    /// Content hash.
    pub mm_hash: u64,
    /// Token ranges; they never enter a hash.
    pub offsets: Vec<(u64, u64)>,
}

/// Multimodal data of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct BlockMmInfo {
    /// Objects in the block.
    pub mm_objects: Vec<MmObject>,
}

/// Routing tokens of a multimodal prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct MmRoutingInfo {
    /// Used instead of `token_ids` when not empty.
    pub routing_token_ids: Vec<u32>,
    /// Per-block objects.
    #[serde(default)]
    pub block_mm_infos: Option<Vec<Option<BlockMmInfo>>>,
}

/// The prompt, in one of three forms: multimodal routing tokens, tokens, or hashes with a length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PromptInput {
    /// Raw tokens; an empty list counts as present.
    pub token_ids: Option<Vec<u32>>,
    /// Multimodal routing tokens; win when not empty.
    pub mm_routing_info: Option<MmRoutingInfo>,
    /// Per-block objects for `token_ids`.
    pub block_mm_infos: Option<Vec<Option<BlockMmInfo>>>,
    /// Content hashes, bits of a u64.
    pub block_hashes: Option<Vec<i64>>,
    /// Tracking hashes, bits of a u64.
    pub sequence_hashes: Option<Vec<i64>>,
    /// Prompt length for the hash form, in tokens.
    pub isl_tokens: Option<u64>,
    /// LoRA adapter; empty equals absent.
    pub lora_name: Option<String>,
    /// Cache salt; empty equals absent.
    pub cache_salt: Option<String>,
    /// Overrides the partition's eagle setting.
    pub is_eagle: Option<bool>,
}

/// Per-request settings. Ranges are checked when decoded (spec http 3.2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RouterConfigOverride {
    /// Credit a cached device block; finite, not negative.
    pub overlap_score_credit: Option<f64>,
    /// Factor of the prefill term; finite, not negative.
    pub prefill_load_scale: Option<f64>,
    /// Deprecated: sets the scale, and credit 0 when 0.
    pub overlap_score_weight: Option<f64>,
    /// 0 = lowest cost; finite, not negative.
    pub router_temperature: Option<f64>,
    /// `false`: random tracking hashes.
    pub assume_kv_reuse: Option<bool>,
    /// Whether the request counts as prefill load.
    pub track_prefill_tokens: Option<bool>,
    /// Credit a shared-cache block, 0 to 1.
    pub shared_cache_multiplier: Option<f64>,
}

/// A target that is exclusive while eligible and ignored otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct AffinityTarget {
    /// Worker.
    pub worker_id: u64,
    /// Rank; any when absent.
    #[serde(default)]
    pub dp_rank: Option<u32>,
}

impl AffinityTarget {
    /// Rank `dp_rank` of `worker_id`, or any rank of it.
    pub fn new(worker_id: u64, dp_rank: Option<u32>) -> Self {
        Self { worker_id, dp_rank }
    }

    /// Whether it names this rank.
    pub fn is(&self, rank: WorkerWithDpRank) -> bool {
        self.worker_id == rank.worker_id && self.dp_rank.is_none_or(|dp_rank| dp_rank == rank.dp_rank)
    }
}

/// Taints a worker must or should have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RoutingConstraints {
    /// All must be on the worker.
    pub required_taints: BTreeSet<String>,
    /// Weight by taint; multiplies the cost by `exp(-tanh(sum))`.
    pub preferred_taints: BTreeMap<String, f32>,
}

/// What triggered a turn of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InputTrigger {
    /// A person.
    UserMessage,
    /// A tool's result.
    ToolResult,
    /// Something else.
    Other,
}

/// The session a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct SessionContext {
    /// Id; wins over the flat `session_id`.
    pub session_id: String,
    /// Session that spawned this one.
    #[serde(default)]
    pub parent_session_id: Option<String>,
    /// The session ends with this turn.
    #[serde(default)]
    pub session_final: Option<bool>,
    /// What triggered the turn.
    #[serde(default)]
    pub input_trigger: Option<InputTrigger>,
    /// Opaque headers for policies.
    #[serde(default)]
    pub agent_headers: Option<BTreeMap<String, Vec<String>>>,
}

impl SessionContext {
    /// A session without headers.
    pub fn new(
        session_id: String,
        parent_session_id: Option<String>,
        session_final: Option<bool>,
        input_trigger: Option<InputTrigger>,
    ) -> Self {
        Self { session_id, parent_session_id, session_final, input_trigger, agent_headers: None }
    }

    /// Id.
    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    /// Session that spawned this one.
    pub fn parent_session_id(&self) -> Option<&str> {
        self.parent_session_id.as_deref()
    }

    /// Whether the session ends with this turn, if the client says.
    pub fn session_final(&self) -> Option<bool> {
        self.session_final
    }

    /// What triggered the turn, if the client says.
    pub fn input_trigger(&self) -> Option<InputTrigger> {
        self.input_trigger
    }

    /// Opaque headers; empty when there are none.
    pub fn agent_headers(&self) -> &BTreeMap<String, Vec<String>> {
        static NONE: BTreeMap<String, Vec<String>> = BTreeMap::new();
        self.agent_headers.as_ref().unwrap_or(&NONE)
    }
}

/// Where a request may go, and in what order it waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steering {
    /// Exactly this rank.
    pub pinned_worker: Option<WorkerWithDpRank>,
    /// Only these workers; an empty set allows none.
    pub allowed_worker_ids: Option<BTreeSet<u64>>,
    /// Rather here.
    pub affinity_target: Option<AffinityTarget>,
    /// Taints.
    pub routing_constraints: RoutingConstraints,
    /// Seconds ahead in the queue.
    pub priority_jump: Option<f64>,
    /// Higher goes first.
    pub strict_priority: Option<u32>,
    /// Expected length of the output, in tokens.
    pub expected_output_tokens: Option<u32>,
    /// Policy class of the queue (header `x-dynamo-meta-policy-class`).
    pub policy_class: Option<String>,
    /// Longest wait in milliseconds (ours). It orders nothing.
    pub deadline_ms: Option<u64>,
    /// For embedding hosts: when the request gets late. In its class it waits before those without or with a later one,
    /// and it is refused afterwards.
    pub due: Option<Moment>,
    /// For embedding hosts: cost in the queue, in tokens, instead of the prompt tokens that are not cached.
    pub scheduling_cost: Option<u64>,
    /// When the request came, where something held it up before it could queue: its place is among those of that time.
    pub came: Option<Moment>,
}

/// `POST /select` and `POST /select_and_reserve`; `advisory` is ignored by the latter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelectRequest {
    /// Model name.
    pub model_name: String,
    /// Routing group.
    pub routing_group: String,
    /// Id of the selection; a booking without one gets a UUID.
    pub selection_id: Option<String>,
    /// Prompt.
    pub prompt: PromptInput,
    /// Settings of this request.
    pub router_config_override: Option<RouterConfigOverride>,
    /// Steering.
    pub steering: Steering,
    /// Flat session id.
    pub session_id: Option<String>,
    /// Session object; wins.
    pub session_context: Option<SessionContext>,
    /// Skip the queue, report worker load.
    pub advisory: bool,
    /// Report why (`?explain=true`).
    pub explain: bool,
}

/// `POST /reservations`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReservationRequest {
    /// Model name.
    pub model_name: String,
    /// Routing group.
    pub routing_group: String,
    /// Id to book, and to look up when no worker is given.
    pub selection_id: String,
    /// Worker of the explicit form; absent = replay of a cached selection.
    pub worker_id: Option<u64>,
    /// Rank of the explicit form, 0 when absent.
    pub dp_rank: Option<u32>,
    /// Prompt.
    pub prompt: PromptInput,
    /// Settings of this request.
    pub router_config_override: Option<RouterConfigOverride>,
    /// Expected length of the output, in tokens.
    pub expected_output_tokens: Option<u32>,
    /// Prefill tokens to book, at most the prompt's.
    pub effective_prefill_tokens: Option<u64>,
    /// Whether to count them.
    pub track_prefill_tokens: Option<bool>,
}

/// `POST /potential_loads` and `POST /overlap_scores`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadQuery {
    /// Model name.
    pub model_name: String,
    /// Routing group.
    pub routing_group: String,
    /// Prompt.
    pub prompt: PromptInput,
    /// Settings of this request.
    pub router_config_override: Option<RouterConfigOverride>,
}

/// Cached tokens of the chosen worker; maxima over its ranks, cumulative through the tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct OverlapTokens {
    /// Deepest of all tiers.
    pub longest_matched: u32,
    /// Device.
    pub gpu: u32,
    /// Device tokens by rank.
    pub dp: BTreeMap<u32, u32>,
    /// Device and host.
    pub cpu: u32,
    /// Device, host, disk and external.
    pub disk: u32,
}

/// Load of the chosen rank before this request (advisory answers).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct WorkerLoad {
    /// Prefill tokens in progress.
    pub active_prefill_tokens: u64,
    /// `max_num_batched_tokens`, or 10,000,000.
    pub prefill_token_capacity: u64,
    /// KV capacity when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_kv_blocks: Option<u64>,
    /// Over the configured threshold, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_busy: Option<bool>,
}

/// The answer to `select` and `select_and_reserve`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct SelectResponse {
    /// Id, as sent or generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection_id: Option<Arc<str>>,
    /// Tracking hashes (bookings only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_hashes: Option<Vec<i64>>,
    /// Prompt length (bookings only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isl_tokens: Option<u64>,
    /// Whether prefill is counted (bookings only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub track_prefill_tokens: Option<bool>,
    /// Model name.
    pub model_name: Arc<str>,
    /// Routing group.
    pub routing_group: Arc<str>,
    /// Chosen worker.
    pub worker_id: u64,
    /// Chosen rank.
    pub dp_rank: u32,
    /// The worker's endpoint.
    pub endpoint: Arc<str>,
    /// Tokens a block.
    pub block_size: u32,
    /// What the worker has cached.
    pub overlap: OverlapTokens,
    /// Prompt tokens the rank must compute.
    pub effective_prefill_tokens: u64,
    /// Blocks on the rank with this request.
    pub potential_decode_blocks: u64,
    /// Over the decode threshold, when it can be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_busy: Option<bool>,
    /// Advisory answers only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_load: Option<WorkerLoad>,
    /// Bookings only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_hint: Option<KvHint>,
    /// Ours, on `?explain=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain: Option<Explanation>,
}

/// The answer to `POST /reservations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ReservationResponse {
    /// Id.
    pub selection_id: Arc<str>,
    /// Model name.
    pub model_name: Arc<str>,
    /// Routing group.
    pub routing_group: Arc<str>,
    /// Worker.
    pub worker_id: u64,
    /// Rank.
    pub dp_rank: u32,
    /// The worker's endpoint.
    pub endpoint: Arc<str>,
}

/// One rank's load, now or with a request added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct RankLoadRow {
    /// Worker.
    pub worker_id: u64,
    /// Rank.
    pub dp_rank: u32,
    /// Prefill tokens.
    pub potential_prefill_tokens: u64,
    /// Blocks.
    pub potential_decode_blocks: u64,
    /// Live bookings.
    pub active_requests: u64,
}

/// One partition of `GET /loads`; rows sorted by (worker, rank).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PartitionLoads {
    /// Model name.
    pub model_name: Arc<str>,
    /// Routing group.
    pub routing_group: Arc<str>,
    /// A row a rank.
    pub loads: Vec<RankLoadRow>,
    /// Requests that wait.
    pub pending_count: u64,
    /// Prompt tokens that wait.
    pub pending_isl_tokens: u64,
}

/// One rank of `POST /overlap_scores`, cumulative block counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct OverlapRow {
    /// Worker.
    pub worker_id: u64,
    /// Rank.
    pub dp_rank: u32,
    /// Device.
    pub device_blocks: u32,
    /// Device and host.
    pub host_pinned_blocks: u32,
    /// Device, host, disk and external.
    pub disk_blocks: u32,
    /// Host beyond device.
    pub host_pinned_extension_blocks: u32,
    /// Disk and external beyond host.
    pub disk_extension_blocks: u32,
    /// Always null here.
    pub shared_beyond_device_blocks: Option<u32>,
}

/// Shared-cache part of `POST /overlap_scores`; off in this service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct SharedCacheReport {
    /// Whether one is attached.
    pub enabled: bool,
    /// Hits.
    pub total_hit_blocks: u64,
    /// Ranges of hits.
    pub ranges: Vec<(u64, u64)>,
    /// Why it could not be asked.
    pub error: Option<String>,
}

/// The answer to `POST /overlap_scores`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct OverlapScores {
    /// Tokens a block.
    pub block_size: u32,
    /// Hashed blocks of the prompt.
    pub num_blocks: u64,
    /// Sorted by (worker, rank).
    pub workers: Vec<OverlapRow>,
    /// Shared cache.
    pub shared_cache: SharedCacheReport,
}
