//! One live booking, and the list of a rank's bookings in the order they were admitted.
//!
//! There are many bookings and each is touched once in a while, so the row is kept to a cache line and what few bookings
//! have is boxed.

use std::time::Duration;

use super::{BookingId, Slot, weight::Missing};
use crate::selection::{moment::Moment, slab::Slab};

/// No booking.
pub(super) const NONE: u32 = u32::MAX;

/// A live booking.
#[derive(Debug)]
pub(super) struct Booking {
    pub(super) id: BookingId,
    pub(super) admitted: Moment,
    /// Prefill tokens that count; 0 when none do any more.
    pub(super) prefill_tokens: u64,
    pub(super) slot: Slot,
    /// Blocks of its prompt.
    pub(super) blocks: u32,
    /// Run of the forest its prompt ends in; `None` for an empty prompt.
    pub(super) last_run: Option<u32>,
    pub(super) expected_output_tokens: Option<u32>,
    previous: u32,
    next: u32,
    rare: Option<Box<Rare>>,
}

/// What few bookings have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Modelled duration of its prefill.
    pub(super) duration: Option<Duration>,
    /// Output blocks so far.
    pub(super) outputs: u64,
    /// Their weight together.
    pub(super) output_weight: u128,
    /// Weights it gave its own prompt blocks.
    pub(super) missing: Missing,
}

impl Booking {
    pub(super) fn new(id: BookingId, slot: Slot, admitted: Moment, blocks: u32) -> Self {
        Self {
            id,
            admitted,
            prefill_tokens: 0,
            slot,
            blocks,
            last_run: None,
            expected_output_tokens: None,
            previous: NONE,
            next: NONE,
            rare: None,
        }
    }

    pub(super) fn next(&self) -> u32 {
        self.next
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        self.rare.as_ref()?.duration
    }

    pub(super) fn output_weight(&self) -> u128 {
        self.rare.as_ref().map_or(0, |rare| rare.output_weight)
    }

    /// What its weights take off the blocks `start..end` of its prompt.
    pub(super) fn missing(&self, start: u32, end: u32) -> u128 {
        self.rare.as_ref().map_or(0, |rare| rare.missing.sum(start, end))
    }
}

/// A rank's bookings, oldest first.
#[derive(Debug)]
pub(super) struct Admitted {
    oldest: u32,
    newest: u32,
}

impl Admitted {
    pub(super) fn new() -> Self {
        Self { oldest: NONE, newest: NONE }
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn push(&mut self, bookings: &mut Slab<Booking>, booking: u32) {
        bookings[booking].previous = self.newest;
        if self.newest == NONE {
            self.oldest = booking;
        } else {
            bookings[self.newest].next = booking;
        }
        self.newest = booking;
    }

    pub(super) fn remove(&mut self, bookings: &mut Slab<Booking>, booking: u32) {
        let (previous, next) = (bookings[booking].previous, bookings[booking].next);
        if previous == NONE {
            self.oldest = next;
        } else {
            bookings[previous].next = next;
        }
        if next == NONE {
            self.newest = previous;
        } else {
            bookings[next].previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_booking_is_one_cache_line() {
        assert!(size_of::<Option<Booking>>() <= 64, "{}", size_of::<Option<Booking>>());
    }
}
