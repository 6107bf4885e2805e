//! One live booking, and the list of a rank's bookings in the order they were admitted.

use super::{
    BookingId, Slot,
    prefill::{NONE, Prefill},
    slab::Slab,
    weight::Missing,
};
use crate::selection::moment::Moment;

/// A live booking.
#[derive(Debug)]
pub(super) struct Booking {
    pub(super) id: BookingId,
    pub(super) slot: Slot,
    pub(super) admitted: Moment,
    /// Run of the forest its prompt ends in; `None` for an empty prompt.
    pub(super) last_run: Option<u32>,
    /// Blocks of its prompt.
    pub(super) blocks: u32,
    pub(super) prefill: Option<Prefill>,
    /// Output blocks so far.
    pub(super) outputs: u64,
    /// Their weight together.
    pub(super) output_weight: u128,
    /// Weights it gave its own prompt blocks.
    pub(super) missing: Missing,
    pub(super) expected_output_tokens: Option<u32>,
    previous: u32,
    next: u32,
}

impl Booking {
    pub(super) fn new(id: BookingId, slot: Slot, admitted: Moment, blocks: u32) -> Self {
        Self {
            id,
            slot,
            admitted,
            last_run: None,
            blocks,
            prefill: None,
            outputs: 0,
            output_weight: 0,
            missing: Missing::default(),
            expected_output_tokens: None,
            previous: NONE,
            next: NONE,
        }
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
