//! A request as a classifier sees it. What it sets goes to the queue; everything else is read only.

use std::{sync::Arc, time::Instant};

use super::progress::RequestProgress;
use crate::selection::{identity::WorkerWithDpRank, request::SessionContext};

/// What the queue takes from a classifier instead of what it would find out itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Class or family of the profile.
    pub policy_class: Option<String>,
    /// Cost in the queue, in tokens; at least 1.
    pub scheduling_cost_tokens: Option<usize>,
    /// When the request gets late.
    pub due_at: Option<Instant>,
    /// Soft target; `Some(None)` = none, whatever the request or its session says.
    pub target: Option<Option<WorkerWithDpRank>>,
}

/// What is known of a request before it queues.
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// Prompt length in tokens.
    pub input_tokens: usize,
    /// Prompt tokens that the best rank has cached.
    pub cached_tokens: usize,
    /// When the request came.
    pub ingress_at: Instant,
    /// Class the request asked for.
    pub policy_class: Option<String>,
    /// Session, when there is one.
    pub session: Option<SessionContext>,
    /// Exactly this rank.
    pub pinned_worker: Option<WorkerWithDpRank>,
    /// Tracking hashes of the prompt's complete blocks.
    pub sequence: Option<Arc<[u64]>>,
}

/// A request on its way to the queue.
#[derive(Debug)]
pub struct ClassifyRequest {
    /// Tells this request from any other that a classifier may hand back.
    identity: u64,
    request_id: Arc<str>,
    facts: RequestFacts,
    progress: RequestProgress,
    overrides: Overrides,
}

impl ClassifyRequest {
    pub(super) fn new(identity: u64, request_id: Arc<str>, facts: RequestFacts, progress: RequestProgress) -> Self {
        Self { identity, request_id, facts, progress, overrides: Overrides::default() }
    }

    pub(super) fn is(&self, identity: u64) -> bool {
        self.identity == identity
    }

    pub(super) fn into_overrides(self) -> Overrides {
        self.overrides
    }

    /// Its id: the selection id, over HTTP.
    pub fn request_id(&self) -> Option<&str> {
        Some(&self.request_id)
    }

    /// Prompt length in tokens.
    pub fn input_tokens(&self) -> usize {
        self.facts.input_tokens
    }

    /// Prompt and output as they grow; keep a clone to watch a request.
    pub fn progress(&self) -> &RequestProgress {
        &self.progress
    }

    /// When the request came. Waiting here costs it no place in the queue.
    pub fn ingress_at(&self) -> Instant {
        self.facts.ingress_at
    }

    /// Its session. One that came as a bare id has nothing but that id.
    pub fn session_context(&self) -> Option<&SessionContext> {
        self.facts.session.as_ref()
    }

    /// The rank it is pinned to.
    pub fn pinned_worker(&self) -> Option<WorkerWithDpRank> {
        self.facts.pinned_worker
    }

    /// Tracking hashes of the prompt's complete blocks; random ones where prompts are not to share blocks.
    pub fn sequence_hashes(&self) -> Option<&[u64]> {
        self.facts.sequence.as_deref()
    }

    /// The class set here, else the one the request asked for.
    pub fn policy_class(&self) -> Option<&str> {
        self.overrides.policy_class.as_deref().or(self.facts.policy_class.as_deref())
    }

    /// Puts the request into a class or family of its model's profile; another name fails the request.
    pub fn set_policy_class(&mut self, policy_class: impl Into<String>) {
        self.overrides.policy_class = Some(policy_class.into());
    }

    /// The cost set here, else the prompt tokens that no rank has cached, at least 1.
    pub fn scheduling_cost_tokens(&self) -> usize {
        let uncached = self.facts.input_tokens.saturating_sub(self.facts.cached_tokens).max(1);
        self.overrides.scheduling_cost_tokens.unwrap_or(uncached)
    }

    /// Sets the cost in the queue, in tokens; 0 fails the request.
    pub fn set_scheduling_cost_tokens(&mut self, tokens: usize) {
        self.overrides.scheduling_cost_tokens = Some(tokens);
    }

    /// When it gets late, if that was set.
    pub fn due_at(&self) -> Option<Instant> {
        self.overrides.due_at
    }

    /// Sets when it gets late: in its class it goes before those that are due later or never, and it is refused
    /// afterwards.
    pub fn set_due_at(&mut self, due_at: impl Into<Instant>) {
        self.overrides.due_at = Some(due_at.into());
    }

    /// Asks for a rank, as an affinity target does. It is no pin: eligibility still rules, and a pin goes before it.
    pub fn set_worker_selection_target(&mut self, worker: WorkerWithDpRank) {
        self.overrides.target = Some(Some(worker));
    }

    /// Takes the request's affinity target away.
    pub fn clear_worker_selection_target(&mut self) {
        self.overrides.target = Some(None);
    }
}
