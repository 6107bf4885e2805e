//! The names an expression can use: type, scope, presence, and the input group that each costs.
//!
//! [`INPUTS`] is the only list; the checker, the row adapter and the reference page (`docs/expressions.md`, held to it by
//! a test) go by it.

use crate::selection::trust::Trust;

/// CEL types of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// `bool`
    Bool,
    /// `int`, 64 bits signed.
    Int,
    /// `uint`, 64 bits.
    UInt,
    /// `double`
    Double,
    /// `string`
    Text,
}

impl ValueType {
    /// CEL's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::UInt => "uint",
            Self::Double => "double",
            Self::Text => "string",
        }
    }

    /// `int`, `uint` or `double`.
    pub const fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::UInt | Self::Double)
    }
}

/// What must be materialised for an input (spec plugins 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputGroup {
    /// Identity and request: always there.
    None,
    /// What is cached where.
    Cache,
    /// Load of ranks.
    Load,
    /// The preferred-taint multiplier.
    PreferredTaint,
}

/// What an input depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One value a request.
    Request,
    /// One value a selection: folded over all candidates; for scorers only.
    Candidates,
    /// One value a candidate.
    Row,
}

/// How candidates are folded into one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The mean, a `double`.
    Mean,
}

macro_rules! inputs {
    ($($variant:ident $name:literal $ty:ident $scope:ident $group:ident $presence:ident $doc:literal;)*) => {
        /// An input.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Input {
            $(#[doc = $doc] $variant,)*
        }

        /// Every input, by name.
        pub static INPUTS: &[InputFacts] = &[
            $(InputFacts {
                input: Input::$variant,
                name: $name,
                value: ValueType::$ty,
                scope: Scope::$scope,
                group: InputGroup::$group,
                presence: Presence::$presence,
                doc: $doc,
            },)*
        ];
    };
}

/// Whether an input can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Never missing.
    Always,
    /// May be missing: reading it then is an error, and `has()` tells.
    Maybe,
}

/// What is known of an input before a request comes.
#[derive(Clone, Copy, Debug)]
pub struct InputFacts {
    /// Which.
    pub input: Input,
    /// As written in an expression.
    pub name: &'static str,
    /// Its type.
    pub value: ValueType,
    /// What it depends on.
    pub scope: Scope,
    /// What it costs.
    pub group: InputGroup,
    /// Whether it can be missing.
    pub presence: Presence,
    /// One line.
    pub doc: &'static str,
}

inputs! {
    WorkerId "worker.id" UInt Row None Always "Worker id.";
    DpRank "worker.dp_rank" Int Row None Always "Data-parallel rank.";
    DeviceBlocks "cache.device_blocks" Double Row Cache Always "Leading blocks of the prompt in the device tier.";
    HostBlocks "cache.host_blocks" Double Row Cache Always "Leading blocks in the host tier, beyond the device tier.";
    DiskBlocks "cache.disk_blocks" Double Row Cache Always "Leading blocks on disk, beyond the other tiers.";
    EstimatedBlocks "cache.estimated_blocks" Double Row Cache Always "Cached blocks, tiers weighted, as the selector books.";
    CachedTokens "cache.cached_tokens" Int Row Cache Always "Cached tokens, tiers weighted; not limited to the prompt.";
    HasTierMatches "cache.has_tier_matches" Bool Request Cache Always "Whether anybody has a leading block of the prompt.";
    CacheTrust "cache.trust" Text Row Cache Always "How far the index is believed: `complete`, `replayed`, `partial`, `stale`, `unknown`.";
    LoadAvailable "load.available" Bool Row Load Always "Whether the load is known; if not, its numbers are 0.";
    ActivePrefillTokens "load.active_prefill_tokens" Int Row Load Always "Prefill tokens in progress, before this request.";
    DecodeBlocks "load.decode_blocks" Double Row Load Always "Active blocks, with those this request would add.";
    ActiveRequests "load.active_requests" Int Row Load Always "Live bookings.";
    TaintMultiplier "taint_multiplier" Double Row PreferredTaint Always "Preferred-taint factor; 1.0 when nothing is preferred.";
    TotalKvBlocks "capacity.total_kv_blocks" Int Row None Maybe "KV capacity of the rank in blocks.";
    MaxBatchedTokens "capacity.max_num_batched_tokens" Int Row None Maybe "Most tokens in a batch.";
    PromptTokens "request.prompt_tokens" Int Request None Always "Prompt length.";
    RequestBlocks "request.blocks" Int Request None Always "Prompt length in blocks, rounded up.";
    BlockSize "request.block_size" Int Request None Always "Tokens a block.";
    TracksPrefill "request.tracks_prefill" Bool Request None Always "Whether the request adds prefill load.";
    PriorityJump "request.priority_jump" Double Request None Always "Seconds it jumps ahead in the queue.";
    StrictPriority "request.strict_priority" Int Request None Always "Queue priority.";
    IsQuery "request.is_query" Bool Request None Always "Whether nothing will be booked.";
    PolicyClass "request.policy_class" Text Request None Maybe "Policy class that the request asked for.";
    ExpectedOutputTokens "request.expected_output_tokens" Int Request None Maybe "Output length the client expects.";
    TemperatureOverride "request.router_temperature" Double Request None Maybe "Temperature asked for by the request.";
    PinnedWorkerId "request.pinned_worker_id" UInt Request None Maybe "Worker that the request is pinned to.";
    PinnedRank "request.pinned_dp_rank" Int Request None Maybe "Rank that the request is pinned to.";
    SessionId "session.id" Text Request None Maybe "Session.";
    ParentSessionId "session.parent_id" Text Request None Maybe "Parent session.";
    SessionFinal "session.final" Bool Request None Maybe "Whether the session says it ends.";
    InputTrigger "session.input_trigger" Text Request None Maybe "`user_message`, `tool_result` or `other`.";
    AffinityWorkerId "affinity.worker_id" UInt Request None Maybe "Worker the session or request wants.";
    AffinityRank "affinity.dp_rank" Int Request None Maybe "Rank the session or request wants.";
    CandidateCount "candidates.count" Int Candidates None Always "Number of candidates.";
    MinActiveRequests "candidates.min_active_requests" Int Candidates Load Always "Smallest `load.active_requests`.";
    MaxActiveRequests "candidates.max_active_requests" Int Candidates Load Always "Largest `load.active_requests`.";
    MeanActiveRequests "candidates.mean_active_requests" Double Candidates Load Always "Mean `load.active_requests`.";
    MinActivePrefillTokens "candidates.min_active_prefill_tokens" Int Candidates Load Always "Smallest `load.active_prefill_tokens`.";
    MaxActivePrefillTokens "candidates.max_active_prefill_tokens" Int Candidates Load Always "Largest `load.active_prefill_tokens`.";
    MeanActivePrefillTokens "candidates.mean_active_prefill_tokens" Double Candidates Load Always "Mean `load.active_prefill_tokens`.";
    MinDecodeBlocks "candidates.min_decode_blocks" Double Candidates Load Always "Smallest `load.decode_blocks`.";
    MaxDecodeBlocks "candidates.max_decode_blocks" Double Candidates Load Always "Largest `load.decode_blocks`.";
    MeanDecodeBlocks "candidates.mean_decode_blocks" Double Candidates Load Always "Mean `load.decode_blocks`.";
    MinCachedTokens "candidates.min_cached_tokens" Int Candidates Cache Always "Smallest `cache.cached_tokens`.";
    MaxCachedTokens "candidates.max_cached_tokens" Int Candidates Cache Always "Largest `cache.cached_tokens`.";
    MeanCachedTokens "candidates.mean_cached_tokens" Double Candidates Cache Always "Mean `cache.cached_tokens`.";
    MinDeviceBlocks "candidates.min_device_blocks" Double Candidates Cache Always "Smallest `cache.device_blocks`.";
    MaxDeviceBlocks "candidates.max_device_blocks" Double Candidates Cache Always "Largest `cache.device_blocks`.";
    MeanDeviceBlocks "candidates.mean_device_blocks" Double Candidates Cache Always "Mean `cache.device_blocks`.";
}

impl Input {
    /// What is known of it.
    pub fn facts(self) -> &'static InputFacts {
        // The variants are numbered in the order of the list, which the same macro wrote.
        &INPUTS[self as usize]
    }

    /// The input with this name.
    pub fn named(name: &str) -> Option<&'static InputFacts> {
        INPUTS.iter().find(|facts| facts.name == name)
    }

    /// For an input of [`Scope::Candidates`]: which input is folded, and how. The count is none of them.
    pub(super) const fn folded(self) -> Option<(Fold, Self)> {
        Some(match self {
            Self::MinActiveRequests => (Fold::Min, Self::ActiveRequests),
            Self::MaxActiveRequests => (Fold::Max, Self::ActiveRequests),
            Self::MeanActiveRequests => (Fold::Mean, Self::ActiveRequests),
            Self::MinActivePrefillTokens => (Fold::Min, Self::ActivePrefillTokens),
            Self::MaxActivePrefillTokens => (Fold::Max, Self::ActivePrefillTokens),
            Self::MeanActivePrefillTokens => (Fold::Mean, Self::ActivePrefillTokens),
            Self::MinDecodeBlocks => (Fold::Min, Self::DecodeBlocks),
            Self::MaxDecodeBlocks => (Fold::Max, Self::DecodeBlocks),
            Self::MeanDecodeBlocks => (Fold::Mean, Self::DecodeBlocks),
            Self::MinCachedTokens => (Fold::Min, Self::CachedTokens),
            Self::MaxCachedTokens => (Fold::Max, Self::CachedTokens),
            Self::MeanCachedTokens => (Fold::Mean, Self::CachedTokens),
            Self::MinDeviceBlocks => (Fold::Min, Self::DeviceBlocks),
            Self::MaxDeviceBlocks => (Fold::Max, Self::DeviceBlocks),
            Self::MeanDeviceBlocks => (Fold::Mean, Self::DeviceBlocks),
            _ => return None,
        })
    }
}

/// Where one request's inputs come from. Rows are candidates; `from` is the first row wanted, and as many as the slice
/// holds are. Inputs of [`Scope::Request`] have the same value in every row.
///
/// The evaluator asks each method only for inputs of its type, never for [`Scope::Candidates`], and reads the value of
/// an input that may be missing only where `present` says that it is there.
pub trait Rows {
    /// Number of candidates.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values of a `bool` input.
    fn bools(&self, input: Input, from: usize, values: &mut [bool]);

    /// Values of an `int` input.
    fn ints(&self, input: Input, from: usize, values: &mut [i64]);

    /// Values of a `uint` input.
    fn uints(&self, input: Input, from: usize, values: &mut [u64]);

    /// Values of a `double` input.
    fn doubles(&self, input: Input, from: usize, values: &mut [f64]);

    /// Where an input that may be missing is there.
    fn present(&self, input: Input, from: usize, present: &mut [bool]);

    /// How far the index is to be believed about each candidate (`cache.trust`).
    fn trusts(&self, from: usize, values: &mut [Trust]);

    /// A `string` input of the request; `None` = missing.
    fn text(&self, input: Input) -> Option<&str>;

    /// First value of a header of the request's agent, by lower-case name.
    fn header(&self, name: &str) -> Option<&str>;
}
