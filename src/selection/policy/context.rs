//! What a request says to a policy.

use super::{
    PickRequest,
    inputs::{SharedCacheHits, WorkerInputs},
    table::Members,
};
use crate::selection::{
    identity::WorkerWithDpRank,
    request::{AffinityTarget, SessionContext},
};

/// What a request says beyond what eligibility and load need to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestFacts<'a> {
    /// Session object.
    pub session: Option<&'a SessionContext>,
    /// Session id without a session object.
    pub session_id: Option<&'a str>,
    /// Id of the selection.
    pub request_id: Option<&'a str>,
    /// Expected length of the output, in tokens.
    pub expected_output_tokens: Option<u32>,
    /// Seconds ahead in the queue.
    pub priority_jump: f64,
    /// Higher goes first in the queue.
    pub strict_priority: u32,
    /// Class of the queue the request asked for.
    pub policy_class: Option<&'a str>,
    /// Hits in a cache that all workers share, from a host that has one.
    pub shared_hits: Option<&'a SharedCacheHits>,
    /// Nothing is booked.
    pub is_query: bool,
}

/// One selection as filters, scorers and pickers see it. Access to cache facts is the component's own.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSelectionContext<'a> {
    request: &'a PickRequest<'a>,
    members: &'a Members,
    block_size: u32,
    inputs: WorkerInputs,
}

impl<'a> WorkerSelectionContext<'a> {
    pub(super) fn new(request: &'a PickRequest<'a>, members: &'a Members, block_size: u32) -> Self {
        Self { request, members, block_size, inputs: WorkerInputs::NONE }
    }

    /// The context of a component that declared `inputs`.
    pub(super) fn with_inputs(self, inputs: WorkerInputs) -> Self {
        Self { inputs, ..self }
    }

    /// Exact prompt length in tokens; 0 for embeddings only.
    pub fn prompt_tokens(&self) -> usize {
        usize::try_from(self.request.prompt_tokens).unwrap_or(usize::MAX)
    }

    /// Prompt length in blocks, a partial one included.
    pub fn request_blocks(&self) -> u64 {
        self.request.prompt_tokens.div_ceil(u64::from(self.block_size.max(1)))
    }

    /// Tokens a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Whether this request counts as prefill load.
    pub fn tracks_prefill_tokens(&self) -> bool {
        self.request.track_prefill_tokens
    }

    /// Tracking hashes of the prompt's complete blocks, in order.
    pub fn prefix_hashes(&self) -> &'a [u64] {
        self.request.sequence
    }

    /// The rank the request is pinned to. An affinity target is no pin, exclusive or not.
    pub fn pinned_worker(&self) -> Option<WorkerWithDpRank> {
        self.request.pinned_worker
    }

    /// Where the session is bound or the request wants to go; it may be absent from the candidates.
    pub fn affinity_target(&self) -> Option<AffinityTarget> {
        self.request.affinity_target
    }

    /// The session object, when the request has one.
    pub fn session_context(&self) -> Option<&'a SessionContext> {
        self.request.facts.session
    }

    /// The session's id, from the session object or by itself.
    pub fn session_id(&self) -> Option<&'a str> {
        let context = self.request.facts.session.map(|session| session.session_id.as_str());
        context.or(self.request.facts.session_id)
    }

    /// Expected length of the output, in tokens.
    pub fn expected_output_tokens(&self) -> Option<u32> {
        self.request.facts.expected_output_tokens
    }

    /// Seconds ahead in the queue.
    pub fn priority_jump(&self) -> f64 {
        self.request.facts.priority_jump
    }

    /// Priority level in the queue; higher goes first.
    pub fn strict_priority(&self) -> u32 {
        self.request.facts.strict_priority
    }

    /// Class of the queue the request asked for.
    pub fn policy_class(&self) -> Option<&'a str> {
        self.request.facts.policy_class
    }

    /// The request's own temperature.
    pub fn router_temperature_override(&self) -> Option<f64> {
        self.request.overrides.and_then(|overrides| overrides.router_temperature)
    }

    /// Whether nothing is booked for this selection. Policies that learn from their choices leave such ones out.
    pub fn is_query(&self) -> bool {
        self.request.facts.is_query
    }

    /// Cache facts of the whole request; `None` unless the component declared [`WorkerInputs::CACHE`].
    pub fn cache(&self) -> Option<RequestCacheInput<'a>> {
        self.inputs.contains(WorkerInputs::CACHE).then_some(RequestCacheInput {
            shared_hits: self.request.facts.shared_hits,
            has_tier_matches: !self.request.matches.classes.is_empty(),
        })
    }

    /// What the worker of a rank stated about its size; everything is unknown for one that is not registered.
    pub fn worker_capacity(&self, worker: WorkerWithDpRank) -> WorkerCapacity {
        self.members.facts_of(worker).map_or_else(WorkerCapacity::default, |facts| WorkerCapacity {
            total_kv_blocks: facts.total_kv_blocks,
            max_num_batched_tokens: facts.max_num_batched_tokens,
        })
    }
}

/// Cache facts of a whole request.
#[derive(Clone, Copy, Debug)]
pub struct RequestCacheInput<'a> {
    shared_hits: Option<&'a SharedCacheHits>,
    has_tier_matches: bool,
}

impl<'a> RequestCacheInput<'a> {
    /// Hits in a cache that all workers share; `None` without one.
    pub fn shared_hits(self) -> Option<&'a SharedCacheHits> {
        self.shared_hits
    }

    /// Whether anybody holds a block of the prompt in any tier.
    pub fn has_tier_matches(self) -> bool {
        self.has_tier_matches
    }
}

/// What a worker stated about its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCapacity {
    total_kv_blocks: Option<u64>,
    max_num_batched_tokens: Option<u64>,
}

impl WorkerCapacity {
    /// KV capacity of a rank in blocks.
    pub fn total_kv_blocks(self) -> Option<u64> {
        self.total_kv_blocks
    }

    /// Most tokens a batch.
    pub fn max_num_batched_tokens(self) -> Option<u64> {
        self.max_num_batched_tokens
    }
}
