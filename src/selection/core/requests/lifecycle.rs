//! What happens to a booking after it was made (spec http 8).

use crate::selection::{
    core::{
        EndedBookings, SelectionCore,
        bookings::{Early, LiveBooking},
    },
    error::SelectionError,
    load::{BookingId, LoadTracker},
    moment::Moment,
    replication::BookingChange,
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
        let booking = match self.on_booking(selection_id, LoadTracker::prefill_complete) {
            Ok(booking) => booking,
            Err(error) => {
                self.came_early(selection_id, Early { prefill_completed: true, ..Early::default() });
                return Err(error);
            }
        };
        self.bookings.complete_prefill(&booking);
        booking.lifecycle.as_ref().into_iter().for_each(|lifecycle| lifecycle.lock().responding());
        // Again when it was done before: a peer may have missed it.
        booking.partition.publish_booking(&booking.facts, || BookingChange::PrefillCompleted);
        Ok(())
    }

    /// A booking produced one block of output.
    ///
    /// # Errors
    /// 400 fraction outside `[0, 1]`; 404 unknown id.
    pub fn add_output_block(&self, selection_id: &str, decay_fraction: Option<f64>) -> Result<(), SelectionError> {
        if decay_fraction.is_some_and(|fraction| !(0.0..=1.0).contains(&fraction)) {
            return Err(SelectionError::BadRequest("decay_fraction must be between 0.0 and 1.0".to_owned()));
        }
        let booking =
            self.on_booking(selection_id, |load, attempt, now| load.output_block(attempt, decay_fraction, now))?;
        if let Some(lifecycle) = &booking.lifecycle {
            lifecycle.lock().observe_output_tokens(booking.partition.block_size as usize);
        }
        Ok(())
    }

    /// Ends a booking.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn free_reservation(&self, selection_id: &str) -> Result<(), SelectionError> {
        let now = self.clock.now();
        let Some(taken) = self.bookings.take(selection_id, now) else {
            self.came_early(selection_id, Early { freed: true, ..Early::default() });
            return Err(unknown(selection_id));
        };
        let freed = taken.partition.with_state(|state| state.load.free(taken.attempt, now));
        if let Some(lease) = taken.held.lease {
            lease.release(now);
        }
        taken.held.lifecycle.into_iter().for_each(|lifecycle| lifecycle.lock().complete());
        taken.partition.publish_booking(&taken.held.facts, || BookingChange::Freed);
        if freed? { Ok(()) } else { Err(unknown(selection_id)) }
    }

    /// A client's call for an id that is not live here: its mirror may be on the way.
    fn came_early(&self, selection_id: &str, early: Early) {
        let early = Early { is_local: true, ..early };
        self.bookings.call_came_early(selection_id, early, self.clock.now());
    }

    /// Applies `change` to the booking an id names. The row of a booking that is gone goes too.
    fn on_booking(
        &self,
        selection_id: &str,
        change: impl FnOnce(&mut LoadTracker, BookingId, Moment) -> bool,
    ) -> Result<LiveBooking, SelectionError> {
        let booking = self.bookings.find(selection_id).ok_or_else(|| unknown(selection_id))?;
        let now = self.clock.now();
        if booking.partition.with_state(|state| change(&mut state.load, booking.attempt, now))? {
            return Ok(booking);
        }
        self.bookings.forget(booking.attempt, now);
        Err(unknown(selection_id))
    }

    /// Removes rows of the booking index whose booking is gone and releases their session leases. Bookings that end
    /// are reported as they do, so this finds only what a contained panic has lost. Called once an expiry period.
    pub(in crate::selection::core) fn sweep_bookings(&self, now: Moment) {
        for shard in 0..self.bookings.shards() {
            for LiveBooking { partition, attempt, .. } in self.bookings.live_in(shard, |_, _| true) {
                if !partition.with_state(|state| state.load.is_live(attempt)).unwrap_or(true) {
                    self.bookings.forget(attempt, now);
                }
            }
        }
        self.bookings.forget_recent(now);
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
