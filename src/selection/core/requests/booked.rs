//! A booking between the moment it is made and the moment it is installed.

use std::sync::Arc;

use crate::selection::{
    core::bookings::{Claim, Held, Installed, NotInstalled, SharedLifecycle},
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::{BookingId, LoadTracker, NewBooking, Slot},
    moment::Moment,
    partition::{Partition, PartitionRef},
    policy::inputs::WorkerInputs,
    replication::{Admission, BookingChange, BookingFacts},
};

/// Books `slot` under `attempt`; what expired there meanwhile is handed out.
///
/// # Errors
/// 500 when the tracker refuses: the slot is in use and attempts are unique, so only a prompt of more than 2^32 blocks
/// is refused.
pub(in crate::selection::core) fn book(
    admission: &Admission,
    load: &mut LoadTracker,
    attempt: BookingId,
    slot: Slot,
    now: Moment,
) -> Result<Vec<BookingId>, SelectionError> {
    let booking = NewBooking {
        id: attempt,
        slot,
        sequence: Arc::clone(&admission.sequence),
        prefill_tokens: admission.prefill_tokens(),
        prefill_duration: admission.prefill.and_then(|hint| hint.duration),
        expected_output_tokens: admission.expected_output_tokens,
    };
    match load.book(booking, now) {
        (true, expired) => Ok(expired),
        (false, _) => Err(SelectionError::Internal("booking was refused by the load tracker".to_owned())),
    }
}

/// A booking that counts in its partition and is not installed yet. Dropping it frees it.
pub(super) struct Booked<'a> {
    partition: &'a PartitionRef,
    rank: WorkerWithDpRank,
    attempt: BookingId,
    now: Moment,
    lifecycle: Option<SharedLifecycle>,
    armed: bool,
}

impl<'a> Booked<'a> {
    pub(super) fn new(partition: &'a PartitionRef, rank: WorkerWithDpRank, attempt: BookingId, now: Moment) -> Self {
        Self { partition, rank, attempt, now, lifecycle: None, armed: true }
    }

    /// Whoever touches the booking tells `lifecycle` of it.
    pub(super) fn follow(&mut self, lifecycle: Option<SharedLifecycle>) {
        self.lifecycle = lifecycle;
    }

    /// Records the prompt where the partition learns from its own decisions.
    ///
    /// # Errors
    /// 500 when the index panics.
    pub(super) fn record(&self, locals: &[u64], seqs: &[u64]) -> Result<(), SelectionError> {
        let Some(approximate) = self.partition.index.approximate() else { return Ok(()) };
        if !self.partition.required_inputs().contains(WorkerInputs::CACHE) {
            return Ok(());
        }
        let recorded = self.partition.health().contain(|| approximate.record(self.rank, locals, seqs, self.now));
        recorded.ok_or_else(|| SelectionError::Internal(format!("index of {} failed", self.partition.key)))
    }

    /// Makes the booking visible to lifecycle calls and to other replicas. It stands from then on; a session is given to it
    /// afterwards, so that one that fails moves none.
    ///
    /// # Errors
    /// 500 when its worker left meanwhile, 409 when another replica booked the id; nothing of the booking is left then.
    pub(super) fn install(
        mut self,
        claim: Claim,
        admission: Admission,
        lora_name: Option<&str>,
    ) -> Result<Installed, SelectionError> {
        let id = Arc::clone(claim.id());
        let (lora_name, origin) = (lora_name.map(Arc::from), self.partition.router_id());
        let facts = BookingFacts::new(id, self.rank, lora_name, admission, (self.now, self.now), origin);
        let facts = Arc::new(facts);
        match claim.install(Held { facts: Arc::clone(&facts), lease: None, lifecycle: self.lifecycle.take() }) {
            Ok(installed) => {
                self.armed = false;
                self.partition.publish_booking(&facts, || BookingChange::Admitted(facts.admission.clone()));
                Ok(installed)
            }
            Err(NotInstalled::Replaced) => {
                let id = &facts.id;
                Err(SelectionError::Conflict(format!("selection {id} reservation claim was replaced")))
            }
            Err(NotInstalled::Ended) => {
                forget_recorded(self.partition, self.rank);
                Err(SelectionError::Internal(format!(
                    "selected worker {} is no longer schedulable",
                    self.rank.worker_id
                )))
            }
        }
    }
}

impl Drop for Booked<'_> {
    fn drop(&mut self) {
        if self.armed {
            // A panic in there has dropped every booking of the partition, this one included.
            let _freed = self.partition.with_state(|state| state.load.free(self.attempt, self.now));
        }
    }
}

/// A rank that left takes along what was recorded for it after its blocks had been removed.
fn forget_recorded(partition: &Partition, rank: WorkerWithDpRank) {
    let registered = partition.with_state(|state| state.load.slot(rank).is_some()).unwrap_or(true);
    if !registered && let Some(approximate) = partition.index.approximate() {
        approximate.index().remove_rank(rank);
    }
}
