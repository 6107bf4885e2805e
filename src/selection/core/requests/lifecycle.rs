//! What happens to a booking after it was made (spec http 8).

use crate::selection::{
    core::{EndedBookings, SelectionCore},
    error::SelectionError,
    load::{BookingId, LoadTracker},
    moment::Moment,
};

fn unknown(selection_id: &str) -> SelectionError {
    SelectionError::NotFound(format!("reservation {selection_id} not found"))
}

impl SelectionCore {
    /// The prefill of a booking is done.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn prefill_complete(&self, selection_id: &str) -> Result<(), SelectionError> {
        self.on_booking(selection_id, LoadTracker::prefill_complete)
    }

    /// A booking produced one block of output.
    ///
    /// # Errors
    /// 400 fraction outside `[0, 1]`; 404 unknown id.
    pub fn add_output_block(&self, selection_id: &str, decay_fraction: Option<f64>) -> Result<(), SelectionError> {
        if decay_fraction.is_some_and(|fraction| !(0.0..=1.0).contains(&fraction)) {
            return Err(SelectionError::BadRequest("decay_fraction must be between 0.0 and 1.0".to_owned()));
        }
        self.on_booking(selection_id, |load, attempt, now| load.output_block(attempt, decay_fraction, now))
    }

    /// Ends a booking.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn free_reservation(&self, selection_id: &str) -> Result<(), SelectionError> {
        let taken = self.bookings.take(selection_id).ok_or_else(|| unknown(selection_id))?;
        let now = self.clock.now();
        let freed = taken.held.partition.with_state(|state| state.load.free(taken.attempt, now));
        if let Some(lease) = taken.held.lease {
            lease.release(now);
        }
        if freed? { Ok(()) } else { Err(unknown(selection_id)) }
    }

    /// Applies `change` to the booking an id names. The row of a booking that is gone goes too.
    fn on_booking(
        &self,
        selection_id: &str,
        change: impl FnOnce(&mut LoadTracker, BookingId, Moment) -> bool,
    ) -> Result<(), SelectionError> {
        let (partition, attempt) = self.bookings.find(selection_id).ok_or_else(|| unknown(selection_id))?;
        let now = self.clock.now();
        if partition.with_state(|state| change(&mut state.load, attempt, now))? {
            return Ok(());
        }
        self.bookings.forget(attempt, now);
        Err(unknown(selection_id))
    }

    /// Removes rows of the booking index whose booking is gone and releases their session leases. Bookings that end
    /// are reported as they do, so this finds only what a contained panic has lost. Called once an expiry period.
    pub(in crate::selection::core) fn sweep_bookings(&self, now: Moment) {
        for shard in 0..self.bookings.shards() {
            for (partition, attempts) in self.bookings.held_in(shard) {
                let gone = partition.with_state(|state| {
                    attempts.into_iter().filter(|&attempt| !state.load.is_live(attempt)).collect::<Vec<_>>()
                });
                gone.unwrap_or_default().into_iter().for_each(|attempt| self.bookings.forget(attempt, now));
            }
        }
        self.pending.sweep(now);
    }

    /// Bookings that ended without a lifecycle call.
    pub fn ended_bookings(&self) -> EndedBookings {
        self.bookings.ended_bookings()
    }

    /// Cached selections and their estimated bytes.
    pub fn pending_selections(&self) -> (usize, usize) {
        self.pending.size()
    }

    /// Selection ids that are claimed or held.
    pub fn live_bookings(&self) -> usize {
        self.bookings.len()
    }
}
