//! A second policy beside the one in force: scored on live traffic, and acting for a share of it.
//!
//! Whichever does not act is asked first, as for a query, so that both see the load before the booking. What it says
//! never fails a request; when it acts and fails, the policy in force decides. The two decisions of one request are
//! apart by a lock hold: under load their inputs may differ by the bookings in between.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::{Partition, PartitionState, own};
use crate::selection::{
    error::SelectionError,
    explain::ShadowExplanation,
    identity::WorkerWithDpRank,
    policy::{
        PickRequest, Picked, SelectionPolicy,
        context::RequestFacts,
        document::Share,
        failures::{is_worth_a_line, one_more},
        inputs::WorkerInputs,
        shadow::{ShadowCounts, ShadowSource},
    },
};

/// The second policy of a partition.
pub struct Shadow {
    instance: Arc<str>,
    share: Share,
    policy: Shadowing,
    counts: Arc<ShadowCounts>,
    /// Times that it failed when it was its turn.
    failed_to_act: AtomicU64,
}

enum Shadowing {
    /// Called under the partition's lock, after its own.
    UnderLock(Mutex<Box<dyn SelectionPolicy>>),
    Own(Arc<own::OwnPolicy>),
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shadow").field("instance", &self.instance).field("share", &self.share).finish_non_exhaustive()
    }
}

/// One decision, as it is compared.
#[derive(Clone, Copy)]
struct Chosen {
    rank: Option<WorkerWithDpRank>,
    cost: f64,
    /// Prefill tokens before the first token: those in progress there, and the uncached ones of this prompt.
    tokens: u64,
}

impl Chosen {
    fn of(request: &PickRequest<'_>, state: &PartitionState, picked: &Picked) -> Self {
        let uncached = request.prompt_tokens.saturating_sub(picked.cached_tokens);
        Self {
            rank: state.load.rank(picked.slot),
            cost: picked.cost,
            tokens: picked.active_prefill_tokens.saturating_add(uncached),
        }
    }
}

impl Shadow {
    /// `policy` beside whatever is in force.
    pub fn new(source: &ShadowSource, policy: own::PartitionPolicy, counts: Arc<ShadowCounts>) -> Self {
        let policy = match policy {
            own::PartitionPolicy::Own(own) => Shadowing::Own(own),
            own::PartitionPolicy::UnderLock(policy) => Shadowing::UnderLock(Mutex::new(policy)),
        };
        Self {
            instance: Arc::clone(&source.instance),
            share: source.share,
            policy,
            counts,
            failed_to_act: AtomicU64::new(0),
        }
    }

    /// What it reads.
    pub fn required_inputs(&self) -> WorkerInputs {
        match &self.policy {
            Shadowing::UnderLock(policy) => policy.lock().required_inputs(),
            Shadowing::Own(own) => own.required_inputs(),
        }
    }

    /// Chooses a rank for `request` and lets `then` act on it under the partition's lock.
    ///
    /// # Errors
    /// What the policy that decides and `then` say.
    pub(in crate::selection) fn choose<R>(
        &self,
        partition: &Partition,
        request: &PickRequest<'_>,
        then: impl FnOnce(&mut PartitionState, Picked) -> Result<R, SelectionError>,
    ) -> Result<R, SelectionError> {
        let acts = self.share != Share::NONE && self.share.takes(&sharing_key(request));
        let query = PickRequest { explain: false, facts: RequestFacts { is_query: true, ..request.facts }, ..*request };
        let look = |state: &mut PartitionState, picked: Picked| Ok(Chosen::of(&query, state, &picked));
        let other = if acts { partition.decide(&query, look) } else { self.decide(partition, &query, look) };

        let mut then = Some(then);
        let other = other.ok();
        let mut settle = |state: &mut PartitionState, mut picked: Picked, other: Option<Chosen>, acts: bool| {
            let chosen = Chosen::of(request, state, &picked);
            let compared = self.compare(chosen, other, acts);
            if let Some(explanation) = &mut picked.explanation {
                explanation.shadow = Some(Box::new(compared));
            }
            let then = then.take().ok_or_else(|| SelectionError::Internal("a request was decided twice".to_owned()))?;
            then(state, picked)
        };
        if !acts {
            return partition.decide(request, |state, picked| settle(state, picked, other, false));
        }
        let mut decided = false;
        let acted = self.decide(partition, request, |state, picked| {
            decided = true;
            settle(state, picked, other, true)
        });
        match acted {
            Err(SelectionError::Internal(reason)) if !decided => {
                let times = one_more(&self.failed_to_act);
                if is_worth_a_line(times) {
                    let instance = &*self.instance;
                    tracing::warn!(partition = %partition.key, instance, reason, times, "canary policy failed");
                }
                partition.decide(request, |state, picked| settle(state, picked, None, false))
            }
            acted => acted,
        }
    }

    fn decide<R>(
        &self,
        partition: &Partition,
        request: &PickRequest<'_>,
        then: impl FnOnce(&mut PartitionState, Picked) -> Result<R, SelectionError>,
    ) -> Result<R, SelectionError> {
        match &self.policy {
            Shadowing::Own(own) => own.choose(request, partition, then),
            Shadowing::UnderLock(policy) => {
                let mut policy = policy.lock();
                partition.with_state(|state| {
                    // Contained here: a panic that reached the partition would cost its bookings.
                    let picked =
                        catch_unwind(AssertUnwindSafe(|| policy.pick(request, &mut state.load, &mut state.rng)));
                    let picked = picked
                        .map_err(|_| SelectionError::Internal(format!("shadow policy {} panicked", self.instance)))??;
                    then(state, picked)
                })?
            }
        }
    }

    /// Counts one request. `acted` is the shadow's turn.
    fn compare(&self, chosen: Chosen, other: Option<Chosen>, acted: bool) -> ShadowExplanation {
        let counts = &self.counts;
        add(&counts.acted, u64::from(acted));
        let mut compared = ShadowExplanation {
            instance: self.instance.to_string(),
            acted,
            worker_id: None,
            dp_rank: None,
            cost: None,
            regret_tokens: None,
        };
        let Some(other) = other else {
            add(&counts.failed, 1);
            return compared;
        };
        let same = chosen.rank == other.rank;
        add(if same { &counts.same } else { &counts.different }, 1);
        let (in_force, shadow) = if acted { (other, chosen) } else { (chosen, other) };
        add(&counts.in_force_regret, in_force.tokens.saturating_sub(shadow.tokens));
        add(&counts.shadow_regret, shadow.tokens.saturating_sub(in_force.tokens));
        (compared.worker_id, compared.dp_rank) = (other.rank.map(|r| r.worker_id), other.rank.map(|r| r.dp_rank));
        compared.cost = Some(other.cost);
        // Tokens of one fleet's prefill queues are far below 2^63.
        compared.regret_tokens = Some(in_force.tokens.cast_signed().saturating_sub(shadow.tokens.cast_signed()));
        compared
    }
}

fn add(count: &AtomicU64, amount: u64) {
    count.fetch_add(amount, Ordering::Relaxed);
}

/// What decides whether a request is in a share: its session, which so keeps one policy; else its id, else its prompt.
fn sharing_key<'a>(request: &PickRequest<'a>) -> std::borrow::Cow<'a, str> {
    let facts = &request.facts;
    let session = facts.session.map(|session| session.session_id.as_str()).or(facts.session_id);
    match session.or(facts.request_id) {
        Some(key) => key.into(),
        None => format!("{:x}", request.sequence.last().copied().unwrap_or(request.prompt_tokens)).into(),
    }
}
