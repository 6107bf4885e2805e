//! Choosing a rank, with or without a booking (spec http 5).

use std::{sync::Arc, time::Duration};

use super::{
    answer::Decision,
    booked::{Booked, book},
    classify::Tracked,
    fetch::{FetchSource, fetch_source},
    is_schedulable,
    lookup::Scratch,
    takes_bookings,
};
use crate::selection::{
    config::SessionAffinityMode,
    core::{BookingEnd, SelectionCore, bookings::Claim},
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::BookingId,
    moment::Moment,
    partition::{Partition, PartitionRef, PartitionState},
    pending::PendingSelection,
    policy::{PickRequest, Picked, context::RequestFacts},
    prompt::Purpose,
    replication::{Admission, PrefillHint},
    request::{AffinityTarget, SelectRequest, SelectResponse, Steering},
    sessions::Hold,
};

impl SelectionCore {
    /// Chooses a rank and books nothing.
    ///
    /// # Errors
    /// Spec http 5.2.
    pub async fn select(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        let deadline = self.deadline(&request.steering);
        let partition = self.ready_partition(&request.model_name, &request.routing_group)?;
        let session = self.steerable_session(&request);
        let bound = match session {
            Some(id) => partition.sessions.target(id, self.clock.now())?,
            None => None,
        };
        let mut scratch = self.prepare(&partition, &request)?;
        let id = request.selection_id.as_deref().map(Arc::from);
        let aim = Aim { queued: !request.advisory, id, ..self.aim(&request.steering, bound, true) };
        let then = |state: &mut PartitionState, scratch: &Scratch, _: Moment, picked: Picked| {
            decision(&partition, state, scratch, picked)
        };
        let (decision, now) = self.admitted(&partition, &request, &aim, &mut scratch, deadline, then).await?;
        let load = request.advisory.then(|| decision.worker_load(&self.config));
        if let Some(id) = &aim.id {
            let selection = PendingSelection {
                rank: decision.rank,
                sequence: scratch.prompt.sequence().into(),
                isl_tokens: scratch.prompt.isl_tokens(),
                effective_prefill_tokens: decision.effective_prefill_tokens(scratch.prompt.isl_tokens()),
                expected_output_tokens: request.steering.expected_output_tokens,
                track_prefill_tokens: self.tracks_prefill(request.router_config_override.as_ref()),
                lora_name: request.prompt.lora_name.as_deref().map(Into::into),
                session_id: session.map(Into::into),
                block_hashes: partition.index.approximate().map(|_| scratch.prompt.locals().into()),
            };
            self.pending.insert(&partition.key, Arc::clone(id), selection, now);
        }
        let mut answer = decision.answer(&self.config, &partition, &scratch);
        answer.selection_id = aim.id;
        answer.worker_load = load;
        Ok(answer)
    }

    /// Chooses a rank and books it. Dropping the future before it is ready leaves nothing behind.
    ///
    /// # Errors
    /// Spec http 5.2.
    pub async fn select_and_reserve(&self, mut request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        let deadline = self.deadline(&request.steering);
        let partition = self.ready_partition(&request.model_name, &request.routing_group)?;
        let id = request.selection_id.take().map_or_else(generated_id, Arc::from);
        let claim = self.claim(Arc::clone(&id), &partition)?;
        let mut tracked = self.track(&partition, &id)?;
        let reserved = self.reserve_claimed(request, &partition, claim, deadline, &mut tracked).await;
        if let Err(error) = &reserved {
            tracked.failed(error);
        }
        reserved
    }

    async fn reserve_claimed(
        &self,
        mut request: SelectRequest,
        partition: &PartitionRef,
        claim: Claim,
        deadline: Option<Moment>,
        tracked: &mut Tracked,
    ) -> Result<SelectResponse, SelectionError> {
        let id = Arc::clone(claim.id());
        let hold = self.hold_session(partition, &request, deadline).await?;
        let mut scratch = self.prepare(partition, &request)?;
        let classified = self.classify(partition, tracked, &mut request, &mut scratch, deadline).await?;
        let mut aim = Aim { id: Some(Arc::clone(&id)), ..self.aim(&request.steering, hold.target(), false) };
        aim.reconsider(classified);
        let track = self.tracks_prefill(request.router_config_override.as_ref());
        let mut admission = Admission {
            sequence: scratch.prompt.sequence().into(),
            track_prefill_tokens: track,
            expected_output_tokens: request.steering.expected_output_tokens,
            prefill: None,
        };
        let then = |state: &mut PartitionState, scratch: &Scratch, now: Moment, picked: Picked| {
            let decision = decision(partition, state, scratch, picked)?;
            self.check_session(state, &hold, &decision)?;
            let source = fetch_source(&partition.index, &scratch.matches, &state.load, decision.picked.slot);
            if track {
                let tokens = decision.effective_prefill_tokens(scratch.prompt.isl_tokens());
                admission.prefill = Some(PrefillHint { tokens, duration: None });
            }
            let expired = book(&admission, &mut state.load, claim.attempt(), decision.picked.slot, now)?;
            Ok(Chosen { decision, source, expired })
        };
        let (chosen, now) = self.admitted(partition, &request, &aim, &mut scratch, deadline, then).await?;
        let Chosen { decision, source, expired } = chosen;
        let mut booked = Booked::new(partition, decision.rank, claim.attempt(), now);
        booked.follow(tracked.sent(decision.rank));
        self.bookings.ended(&expired, BookingEnd::Expired, now);
        booked.record(scratch.prompt.locals(), scratch.prompt.seqs())?;
        let installed = booked.install(claim, admission, request.prompt.lora_name.as_deref())?;
        if let Some(lease) = hold.commit(decision.rank, &*self.clock) {
            installed.attach(lease, self.clock.now());
        }

        let mut answer = decision.answer(&self.config, partition, &scratch);
        answer.kv_hint = source.and_then(|source| {
            source.hint(partition.index.primary(), scratch.prompt.locals(), scratch.prompt.seqs(), Arc::clone(&id))
        });
        answer.selection_id = Some(id);
        answer.sequence_hashes = Some(match request.prompt.sequence_hashes {
            Some(given) if crate::selection::hash::token_view(&request.prompt).is_none() => given,
            _ => scratch.prompt.sequence().iter().map(|hash| hash.cast_signed()).collect(),
        });
        answer.isl_tokens = Some(scratch.prompt.isl_tokens());
        answer.track_prefill_tokens = Some(track);
        Ok(answer)
    }

    /// The session of a request, when sessions are on and nothing else steers it.
    fn steerable_session<'a>(&self, request: &'a SelectRequest) -> Option<&'a str> {
        if self.config.session_affinity_ttl.is_none()
            || request.steering.pinned_worker.is_some()
            || request.steering.affinity_target.is_some()
        {
            return None;
        }
        let context = request.session_context.as_ref().map(|context| context.session_id.as_str());
        context.or(request.session_id.as_deref())
    }

    /// A session that is bound moves only when its rank left since it was held, or when bindings are advice.
    ///
    /// # Errors
    /// 400 when the rank is still there and another one was chosen: the session keeps its binding.
    fn check_session(&self, state: &PartitionState, hold: &Hold, decision: &Decision) -> Result<(), SelectionError> {
        match hold {
            Hold::Bound(bound)
                if self.config.session_affinity_mode == SessionAffinityMode::Hard
                    && is_schedulable(&state.load, bound.target()) =>
            {
                bound.check(decision.rank)
            }
            _ => Ok(()),
        }
    }

    async fn hold_session(
        &self,
        partition: &PartitionRef,
        request: &SelectRequest,
        deadline: Option<Moment>,
    ) -> Result<Hold, SelectionError> {
        let Some(id) = self.steerable_session(request) else { return Ok(Hold::Unbound) };
        partition.sessions.hold(id, deadline, &*self.clock, |target| takes_bookings(partition, target)).await
    }

    /// Checks prompt and pin.
    fn prepare(&self, partition: &PartitionRef, request: &SelectRequest) -> Result<Scratch, SelectionError> {
        let mut scratch = Scratch::take();
        let scope = self.hashing_scope(partition, &request.prompt, request.router_config_override.as_ref())?;
        scratch.prompt.prepare(&request.prompt, &scope, Purpose::Select)?;
        check_pin(&request.steering)?;
        Ok(scratch)
    }

    fn aim(&self, steering: &Steering, bound: Option<AffinityTarget>, is_query: bool) -> Aim {
        let asked = steering.affinity_target;
        let is_binding =
            asked.is_none() && bound.is_some() && self.config.session_affinity_mode == SessionAffinityMode::Hard;
        Aim { target: asked.or(bound), is_binding, is_query, queued: true, id: None }
    }

    /// When a request is refused for being late.
    fn deadline(&self, steering: &Steering) -> Option<Moment> {
        let deadline = steering.deadline_ms.map(|ms| self.clock.now().after(Duration::from_millis(ms)));
        deadline.into_iter().chain(steering.due).min()
    }

    /// What a policy is asked.
    pub(super) fn wish<'a>(
        &self,
        partition: &'a Partition,
        request: &'a SelectRequest,
        aim: &'a Aim,
        scratch: &'a Scratch,
        now: Moment,
    ) -> PickRequest<'a> {
        PickRequest {
            prompt_tokens: scratch.prompt.isl_tokens(),
            sequence: scratch.prompt.sequence(),
            track_prefill_tokens: self.tracks_prefill(request.router_config_override.as_ref()),
            matches: &scratch.matches,
            index: partition.index.primary(),
            pinned_worker: request.steering.pinned_worker,
            allowed_worker_ids: request.steering.allowed_worker_ids.as_ref(),
            affinity_target: aim.target,
            target_is_binding: aim.is_binding,
            constraints: &request.steering.routing_constraints,
            overrides: request.router_config_override.as_ref(),
            explain: request.explain,
            facts: facts(request, aim),
            now,
        }
    }
}

/// What an answer needs of a choice, while the state is locked.
///
/// # Errors
/// 500 when the policy named no rank.
fn decision(
    partition: &Partition,
    state: &PartitionState,
    scratch: &Scratch,
    picked: Picked,
) -> Result<Decision, SelectionError> {
    Decision::of(partition, state, scratch, picked)
        .ok_or_else(|| SelectionError::Internal("selection policy chose a rank that does not exist".to_owned()))
}

/// What only policies of users read of a request.
fn facts<'a>(request: &'a SelectRequest, aim: &'a Aim) -> RequestFacts<'a> {
    let steering = &request.steering;
    RequestFacts {
        session: request.session_context.as_ref(),
        session_id: request.session_id.as_deref(),
        request_id: aim.id.as_deref(),
        expected_output_tokens: steering.expected_output_tokens,
        priority_jump: steering.priority_jump.unwrap_or(0.0),
        strict_priority: steering.strict_priority.unwrap_or(0),
        policy_class: steering.policy_class.as_deref(),
        shared_hits: None,
        is_query: aim.is_query,
    }
}

/// Where a selection should go.
pub(super) struct Aim {
    target: Option<AffinityTarget>,
    /// The selection's.
    id: Option<Arc<str>>,
    /// Whether the target is its session's binding, and bindings are law.
    is_binding: bool,
    /// Nothing is booked.
    is_query: bool,
    /// It waits for its turn.
    pub(super) queued: bool,
}

impl Aim {
    /// What a classifier says of the target goes before what the request wishes and before a binding that is advice.
    fn reconsider(&mut self, classified: Option<Option<WorkerWithDpRank>>) {
        if let Some(target) = classified
            && !self.is_binding
        {
            self.target = target.map(|worker| AffinityTarget::new(worker.worker_id, Some(worker.dp_rank)));
        }
    }
}

/// What came out of the critical section of a booking.
struct Chosen {
    decision: Decision,
    source: Option<FetchSource>,
    expired: Vec<BookingId>,
}

/// A pin outside the allowed set is refused before it waits.
fn check_pin(steering: &Steering) -> Result<(), SelectionError> {
    match (&steering.pinned_worker, &steering.allowed_worker_ids) {
        (Some(pin), Some(allowed)) if !allowed.contains(&pin.worker_id) => {
            Err(SelectionError::BadRequest(format!("pinned worker {} is not in allowed worker set", pin.worker_id)))
        }
        _ => Ok(()),
    }
}

/// A random UUID (version 4) in its usual spelling.
fn generated_id() -> Arc<str> {
    let mut buffer = uuid::Uuid::encode_buffer();
    Arc::from(&*uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer))
}
