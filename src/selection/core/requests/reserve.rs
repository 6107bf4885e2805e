//! Bookings of a named rank, and of a cached selection (spec http 6).

use std::sync::Arc;

use super::{
    booked::{Booked, book},
    lookup::Scratch,
    takes_bookings,
};
use crate::selection::{
    config::SessionAffinityMode,
    core::{BookingEnd, SelectionCore, bookings::Claim},
    error::SelectionError,
    hash,
    identity::{PartitionKey, WorkerWithDpRank},
    load::Slot,
    partition::{Partition, PartitionRef, PartitionState},
    pending::{Generation, PendingSelection},
    prompt::{self, Purpose},
    replication::{Admission, PrefillHint},
    request::{ReservationRequest, ReservationResponse},
    sessions::Hold,
};

impl SelectionCore {
    /// Books a named rank, or replays a cached selection.
    ///
    /// # Errors
    /// Spec http 6.
    pub async fn create_reservation(&self, request: ReservationRequest) -> Result<ReservationResponse, SelectionError> {
        self.refuse_when_shutting_down()?;
        match request.worker_id {
            Some(worker_id) => self.reserve_named(&request, worker_id),
            None => self.replay(&request).await,
        }
    }

    fn reserve_named(
        &self,
        request: &ReservationRequest,
        worker_id: u64,
    ) -> Result<ReservationResponse, SelectionError> {
        self.pending.discard(&self.partition_key(request), &request.selection_id);
        let partition = self.ready_partition(&request.model_name, &request.routing_group)?;
        let isl_tokens = prompt::explicit_length(&request.prompt)?;
        if let Some(effective) = request.effective_prefill_tokens
            && effective > isl_tokens
        {
            return Err(SelectionError::BadRequest(format!(
                "effective_prefill_tokens ({effective}) must not exceed isl_tokens ({isl_tokens})"
            )));
        }
        let schedulable = |state: &mut PartitionState| state.load.worker(worker_id).is_some_and(|w| !w.draining);
        if !partition.with_state(schedulable)? {
            return Err(SelectionError::NotFound(format!(
                "schedulable worker {worker_id} not found for {}",
                partition.key
            )));
        }
        let records = partition.index.approximate().is_some() && prompt::has_content(&request.prompt);
        let mut scratch = Scratch::take();
        let scope = self.hashing_scope(&partition, &request.prompt, request.router_config_override.as_ref())?;
        scratch.prompt.prepare(&request.prompt, &scope, if records { Purpose::Select } else { Purpose::Track })?;
        let claim = self.claim(request.selection_id.as_str().into(), &partition)?;
        let rank = WorkerWithDpRank::new(worker_id, request.dp_rank.unwrap_or(0));
        let default_track = || self.tracks_prefill(request.router_config_override.as_ref());
        let track = request
            .track_prefill_tokens
            .unwrap_or_else(|| request.effective_prefill_tokens.is_some() || default_track());
        let admission = Admission {
            sequence: scratch.prompt.sequence().into(),
            track_prefill_tokens: track,
            expected_output_tokens: request.expected_output_tokens,
            prefill: request.effective_prefill_tokens.map(|tokens| PrefillHint { tokens, duration: None }),
        };
        let unknown = || SelectionError::NotFound(format!("Worker {rank:?} not found"));
        let (booked, endpoint) = self.book(&partition, rank, &admission, &claim, unknown)?;
        if records {
            booked.record(scratch.prompt.locals(), scratch.prompt.seqs())?;
        }
        let id = Arc::clone(claim.id());
        let _without_session = booked.install(claim, admission, request.prompt.lora_name.as_deref())?;
        Ok(answer(&partition, id, rank, endpoint))
    }

    async fn replay(&self, request: &ReservationRequest) -> Result<ReservationResponse, SelectionError> {
        let key = self.partition_key(request);
        let id = request.selection_id.as_str();
        let Some((generation, selection)) = self.pending.peek(&key, id, self.clock.now()) else {
            return Err(SelectionError::NotFound(format!(
                "no pending selection {id} for {key} (expired, already used, or never selected)"
            )));
        };
        let outcome = self.replay_selection(request, &selection).await;
        // A moved session is an answer for good; any other failure may be retried.
        if matches!(outcome, Ok(_) | Err(SelectionError::BadRequest(_))) {
            self.consume(&key, id, generation);
        }
        outcome
    }

    fn consume(&self, key: &PartitionKey, id: &str, generation: Generation) {
        let _was_the_same = self.pending.consume(key, id, generation);
    }

    async fn replay_selection(
        &self,
        request: &ReservationRequest,
        selection: &PendingSelection,
    ) -> Result<ReservationResponse, SelectionError> {
        let partition = self.ready_partition(&request.model_name, &request.routing_group)?;
        let rank = selection.rank;
        let unknown = || {
            SelectionError::NotFound(format!(
                "schedulable worker {} (dp_rank {}) not found for {}",
                rank.worker_id, rank.dp_rank, partition.key
            ))
        };
        if !partition.with_state(|state| schedulable_slot(state, rank).is_some())? {
            return Err(unknown());
        }
        let claim = self.claim(request.selection_id.as_str().into(), &partition)?;
        let hold = match selection.session_id.as_deref() {
            Some(session) => {
                partition
                    .sessions
                    .hold(session, None, &*self.clock, |target| takes_bookings(&partition, target))
                    .await?
            }
            None => Hold::Unbound,
        };
        if let Hold::Bound(bound) = &hold
            && self.config.session_affinity_mode == SessionAffinityMode::Hard
        {
            bound.check(rank)?;
        }
        let admission = Admission {
            sequence: Arc::clone(&selection.sequence),
            track_prefill_tokens: selection.track_prefill_tokens,
            expected_output_tokens: selection.expected_output_tokens,
            prefill: selection
                .track_prefill_tokens
                .then_some(PrefillHint { tokens: selection.effective_prefill_tokens, duration: None }),
        };
        let (booked, endpoint) = self.book(&partition, rank, &admission, &claim, unknown)?;
        if let Some(locals) = &selection.block_hashes {
            let mut seqs = Vec::new();
            hash::sequence_hashes(locals, &mut seqs);
            booked.record(locals, &seqs)?;
        }
        let id = Arc::clone(claim.id());
        let installed = booked.install(claim, admission, selection.lora_name.as_deref())?;
        if let Some(lease) = hold.commit(rank, &*self.clock) {
            installed.attach(lease, self.clock.now());
        }
        Ok(answer(&partition, id, rank, endpoint))
    }

    /// Books a rank that takes bookings.
    ///
    /// # Errors
    /// `unknown` when it does not, or not any more.
    fn book<'a>(
        &self,
        partition: &'a PartitionRef,
        rank: WorkerWithDpRank,
        admission: &Admission,
        claim: &Claim,
        unknown: impl FnOnce() -> SelectionError,
    ) -> Result<(Booked<'a>, Arc<str>), SelectionError> {
        let now = self.clock.now();
        let outcome = partition.with_state(|state| {
            let (slot, endpoint) = schedulable_slot(state, rank).ok_or_else(unknown)?;
            let expired = book(admission, &mut state.load, claim.attempt(), slot, now)?;
            Ok((expired, endpoint))
        });
        let (expired, endpoint) = outcome??;
        let booked = Booked::new(partition, rank, claim.attempt(), now);
        self.bookings.ended(&expired, BookingEnd::Expired, now);
        Ok((booked, endpoint))
    }

    fn partition_key(&self, request: &ReservationRequest) -> PartitionKey {
        match self.partition(&request.model_name, &request.routing_group) {
            Some(partition) => partition.key.clone(),
            None => PartitionKey::new(request.model_name.as_str(), request.routing_group.as_str()),
        }
    }
}

/// The slot and endpoint of a rank that takes bookings.
fn schedulable_slot(state: &PartitionState, rank: WorkerWithDpRank) -> Option<(Slot, Arc<str>)> {
    let slot = state.load.slot(rank)?;
    let facts = state.load.facts(slot)?;
    (!facts.draining).then(|| (slot, Arc::clone(&facts.endpoint)))
}

fn answer(partition: &Partition, id: Arc<str>, rank: WorkerWithDpRank, endpoint: Arc<str>) -> ReservationResponse {
    ReservationResponse {
        selection_id: id,
        model_name: Arc::clone(&partition.key.model_name),
        routing_group: Arc::clone(&partition.key.routing_group),
        worker_id: rank.worker_id,
        dp_rank: rank.dp_rank,
        endpoint,
    }
}
