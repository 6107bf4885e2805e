//! A booking between the moment it is made and the moment it is installed.

use std::sync::Arc;

use crate::selection::{
    core::bookings::{Claim, Held},
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::{BookingId, LoadTracker, NewBooking, Slot},
    moment::Moment,
    partition::{Partition, PartitionRef},
    sessions::SessionLease,
};

/// What is booked, apart from where.
#[derive(Debug)]
pub(super) struct Charge {
    /// Tracking hashes.
    pub(super) sequence: Arc<[u64]>,
    /// Prefill tokens to count.
    pub(super) prefill_tokens: u64,
    pub(super) expected_output_tokens: Option<u32>,
}

impl Charge {
    /// Books `slot` under `attempt`; what expired there meanwhile is handed out.
    ///
    /// # Errors
    /// 500 when the tracker refuses: the slot is in use and attempts are unique, so only a prompt of more than 2^32
    /// blocks is refused.
    pub(super) fn book(
        self,
        load: &mut LoadTracker,
        attempt: BookingId,
        slot: Slot,
        now: Moment,
    ) -> Result<Vec<BookingId>, SelectionError> {
        let booking = NewBooking {
            id: attempt,
            slot,
            sequence: self.sequence,
            prefill_tokens: self.prefill_tokens,
            prefill_duration: None,
            expected_output_tokens: self.expected_output_tokens,
        };
        match load.book(booking, now) {
            (true, expired) => Ok(expired),
            (false, _) => Err(SelectionError::Internal("booking was refused by the load tracker".to_owned())),
        }
    }
}

/// A booking that counts in its partition and is not installed yet. Dropping it frees it.
pub(super) struct Booked<'a> {
    partition: &'a PartitionRef,
    rank: WorkerWithDpRank,
    attempt: BookingId,
    now: Moment,
    armed: bool,
}

impl<'a> Booked<'a> {
    pub(super) fn new(partition: &'a PartitionRef, rank: WorkerWithDpRank, attempt: BookingId, now: Moment) -> Self {
        Self { partition, rank, attempt, now, armed: true }
    }

    /// Records the prompt where the partition learns from its own decisions.
    ///
    /// # Errors
    /// 500 when the index panics.
    pub(super) fn record(&self, locals: &[u64], seqs: &[u64]) -> Result<(), SelectionError> {
        let Some(approximate) = self.partition.index.approximate() else { return Ok(()) };
        let recorded = self.partition.health().contain(|| approximate.record(self.rank, locals, seqs, self.now));
        recorded.ok_or_else(|| SelectionError::Internal(format!("index of {} failed", self.partition.key)))
    }

    /// Makes the booking visible to lifecycle calls.
    ///
    /// # Errors
    /// 500 when its worker left meanwhile; nothing of the booking is left then.
    pub(super) fn install(mut self, claim: Claim, lease: Option<SessionLease>) -> Result<(), SelectionError> {
        match claim.install(Held { partition: Arc::clone(self.partition), lease }) {
            Ok(()) => {
                self.armed = false;
                Ok(())
            }
            Err(held) => {
                drop(held);
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
