//! Bodies of requests as they stand on the wire (spec http 3 to 8), and how they become the core's types.
//!
//! Prompt fields are flattened, as in the reference: their members are buffered, so syntax errors anywhere in the body
//! are found before a prompt field of the wrong type. Names of the types appear in error texts.

use std::collections::BTreeSet;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::selection::{
    WorkerWithDpRank, request,
    request::{AffinityTarget, PromptInput, RoutingConstraints, SessionContext},
};

fn default_name() -> String {
    "default".to_owned()
}

/// Per-request settings, ranges checked.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(try_from = "request::RouterConfigOverride")]
pub struct RouterConfigOverride(pub request::RouterConfigOverride);

impl TryFrom<request::RouterConfigOverride> for RouterConfigOverride {
    type Error = &'static str;

    fn try_from(settings: request::RouterConfigOverride) -> Result<Self, Self::Error> {
        let usable = |value: Option<f64>| value.is_none_or(|value| value.is_finite() && value >= 0.0);
        if !usable(settings.overlap_score_credit) {
            return Err("overlap_score_credit must be a finite, non-negative number");
        }
        if !usable(settings.prefill_load_scale) || !usable(settings.overlap_score_weight) {
            return Err("prefill_load_scale must be finite and non-negative");
        }
        if !usable(settings.router_temperature) {
            return Err("router_temperature must be finite and non-negative");
        }
        if settings.shared_cache_multiplier.is_some_and(|value| !(0.0..=1.0).contains(&value)) {
            return Err("shared_cache_multiplier must be between 0 and 1");
        }
        Ok(Self(settings))
    }
}

/// A body with a prompt.
pub trait Prompted {
    /// The prompt, to put arrays in that were read apart.
    fn prompt_mut(&mut self) -> &mut PromptInput;
}

macro_rules! selection_request {
    ($(#[$meta:meta])* $name:ident { $($(#[$extra_meta:meta])* $extra:ident: $extra_type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Deserialize, ToSchema)]
        pub struct $name {
            /// Model name.
            #[serde(default = "default_name")]
            pub model_name: String,
            /// Routing group.
            #[serde(default = "default_name")]
            pub routing_group: String,
            /// Id of the selection; any string. A booking without one gets a UUID.
            pub selection_id: Option<String>,
            /// Settings of this request.
            pub router_config_override: Option<RouterConfigOverride>,
            /// Expected length of the output, in tokens.
            pub expected_output_tokens: Option<u32>,
            /// Seconds ahead in the queue.
            pub priority_jump: Option<f64>,
            /// Higher goes first in the queue.
            pub strict_priority: Option<u32>,
            /// Exactly this rank.
            pub pinned_worker: Option<WorkerWithDpRank>,
            /// Only these workers; an empty list allows none.
            pub allowed_worker_ids: Option<BTreeSet<u64>>,
            /// Exclusive while eligible, ignored otherwise.
            pub affinity_target: Option<AffinityTarget>,
            /// Taints that a worker must or should have.
            #[serde(default)]
            pub routing_constraints: RoutingConstraints,
            /// Session id.
            pub session_id: Option<String>,
            /// Session; wins over `session_id`.
            pub session_context: Option<SessionContext>,
            /// Longest wait, in milliseconds; the smaller of this and the header `x-pointsman-deadline-ms` counts.
            pub deadline_ms: Option<u64>,
            $($(#[$extra_meta])* pub $extra: $extra_type,)*
            /// Prompt.
            #[serde(flatten)]
            pub prompt: PromptInput,
        }

        impl Prompted for $name {
            fn prompt_mut(&mut self) -> &mut PromptInput {
                &mut self.prompt
            }
        }

        impl $name {
            /// The core's request; policy class, explanation and a deadline in a header are added by the caller.
            pub(crate) fn into_core(self, advisory: bool) -> request::SelectRequest {
                request::SelectRequest {
                    model_name: self.model_name,
                    routing_group: self.routing_group,
                    selection_id: self.selection_id,
                    prompt: self.prompt,
                    router_config_override: self.router_config_override.map(|settings| settings.0),
                    steering: request::Steering {
                        pinned_worker: self.pinned_worker,
                        allowed_worker_ids: self.allowed_worker_ids,
                        affinity_target: self.affinity_target,
                        routing_constraints: finite_constraints(self.routing_constraints),
                        priority_jump: self.priority_jump,
                        strict_priority: self.strict_priority,
                        expected_output_tokens: self.expected_output_tokens,
                        policy_class: None,
                        deadline_ms: self.deadline_ms,
                        due: None,
                        scheduling_cost: None,
                        came: None,
                    },
                    session_id: self.session_id,
                    session_context: self.session_context,
                    advisory,
                    explain: false,
                }
            }
        }
    };
}

selection_request! {
    /// `POST /select`.
    SelectRequest {
        /// Skip the queue and report the worker's load.
        #[serde(default)]
        advisory: bool,
    }
}

selection_request! {
    /// `POST /select_and_reserve`.
    ReserveRequest {}
}

/// JSON numbers beyond the range of an f32 decode as infinite; the largest finite weight means the same and adds up.
fn finite_constraints(mut constraints: RoutingConstraints) -> RoutingConstraints {
    for weight in constraints.preferred_taints.values_mut() {
        *weight = weight.clamp(f32::MIN, f32::MAX);
    }
    constraints
}

/// `POST /reservations`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ReservationRequest {
    /// Model name.
    #[serde(default = "default_name")]
    pub model_name: String,
    /// Routing group.
    #[serde(default = "default_name")]
    pub routing_group: String,
    /// Id to book, and to look up when no worker is given.
    pub selection_id: String,
    /// Worker of the explicit form; absent = replay of a cached selection.
    pub worker_id: Option<u64>,
    /// Rank of the explicit form, 0 when absent.
    pub dp_rank: Option<u32>,
    /// Settings of this request.
    pub router_config_override: Option<RouterConfigOverride>,
    /// Expected length of the output, in tokens.
    pub expected_output_tokens: Option<u32>,
    /// Prefill tokens to book, at most the prompt's.
    pub effective_prefill_tokens: Option<u64>,
    /// Whether to count them.
    pub track_prefill_tokens: Option<bool>,
    /// Prompt.
    #[serde(flatten)]
    pub prompt: PromptInput,
}

impl Prompted for ReservationRequest {
    fn prompt_mut(&mut self) -> &mut PromptInput {
        &mut self.prompt
    }
}

impl From<ReservationRequest> for request::ReservationRequest {
    fn from(wire: ReservationRequest) -> Self {
        Self {
            model_name: wire.model_name,
            routing_group: wire.routing_group,
            selection_id: wire.selection_id,
            worker_id: wire.worker_id,
            dp_rank: wire.dp_rank,
            prompt: wire.prompt,
            router_config_override: wire.router_config_override.map(|settings| settings.0),
            expected_output_tokens: wire.expected_output_tokens,
            effective_prefill_tokens: wire.effective_prefill_tokens,
            track_prefill_tokens: wire.track_prefill_tokens,
        }
    }
}

/// `POST /potential_loads` and `POST /overlap_scores`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LoadQuery {
    /// Model name.
    #[serde(default = "default_name")]
    pub model_name: String,
    /// Routing group.
    #[serde(default = "default_name")]
    pub routing_group: String,
    /// Settings of this request.
    pub router_config_override: Option<RouterConfigOverride>,
    /// Prompt.
    #[serde(flatten)]
    pub prompt: PromptInput,
}

impl Prompted for LoadQuery {
    fn prompt_mut(&mut self) -> &mut PromptInput {
        &mut self.prompt
    }
}

impl From<LoadQuery> for request::LoadQuery {
    fn from(wire: LoadQuery) -> Self {
        Self {
            model_name: wire.model_name,
            routing_group: wire.routing_group,
            prompt: wire.prompt,
            router_config_override: wire.router_config_override.map(|settings| settings.0),
        }
    }
}

/// `POST /reservations/{selection_id}/output_block`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OutputBlockRequest {
    /// Weight from now on, 0 to 1, of the booking's output blocks and of its exclusive prompt tail.
    pub decay_fraction: Option<f64>,
}

/// `POST /replica_sync/register_peer` and `/deregister_peer`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PeerRequest {
    /// ZMQ endpoint of the peer's publisher, e.g. `tcp://10.0.0.7:9092`.
    pub endpoint: String,
}
