//! Why a rank was chosen: verdicts, inputs and cost by term of every candidate.

use std::borrow::Cow;

use serde::Serialize;

/// One candidate of an explained selection.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ExplainedCandidate {
    /// Worker.
    pub worker_id: u64,
    /// Rank.
    pub dp_rank: u32,
    /// `eligible`, or the stable word of the check that excluded it.
    pub verdict: &'static str,
    /// Place and name of the filter that dropped it (`filtered`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_by: Option<String>,
    /// Cached blocks on device, host, disk and external.
    pub cached_blocks: [u32; 4],
    /// Prefill tokens in progress.
    pub active_prefill_tokens: u64,
    /// Active blocks.
    pub active_blocks: u64,
    /// Live bookings.
    pub active_requests: u64,
    /// Leading prompt blocks that live bookings there share.
    pub shared_active_blocks: u64,
    /// Terms of the cost by name, in the order they are added: in blocks for the default cost, in tokens for
    /// `work-ahead`, else what each scorer wrote.
    pub cost_terms: Vec<(Cow<'static, str>, f64)>,
    /// The cost; absent when not eligible.
    pub cost: Option<f64>,
}

/// `?explain=true`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Policy that decided.
    pub policy: String,
    /// Every rank, sorted by (worker, rank).
    pub candidates: Vec<ExplainedCandidate>,
    /// Second best eligible rank.
    pub runner_up: Option<(u64, u32)>,
    /// Candidates that share the lowest cost.
    pub ties: u64,
    /// What the policy beside it would have done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Box<ShadowExplanation>>,
}

/// The decision that was compared and not taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ShadowExplanation {
    /// Instance that shadows the policy in force.
    pub instance: String,
    /// It was the shadow's turn: the policy in force is the one compared.
    pub acted: bool,
    /// Worker that the one compared chose; absent when it failed.
    pub worker_id: Option<u64>,
    /// Its rank.
    pub dp_rank: Option<u32>,
    /// Its cost, in its own unit.
    pub cost: Option<f64>,
    /// Prefill tokens by which the choice of the policy in force has more to compute before the first token than the
    /// shadow's; negative when it has less.
    pub regret_tokens: Option<i64>,
}
