//! Prefill tokens in progress on one rank, in the order they were admitted, with the optional modelled decay.
//!
//! A host with an estimator gives each prefill a duration; the rank's total then falls as time passes (spec scheduling
//! 3.3, sequences 1.5). Without durations the total changes by events alone.

use std::time::Duration;

use super::{bookings::Booking, slab::Slab};
use crate::selection::moment::Moment;

/// No booking.
pub(super) const NONE: u32 = u32::MAX;

/// A booking's place in its rank's queue of prefills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefill {
    pub(super) tokens: u64,
    pub(super) duration: Option<Duration>,
    previous: u32,
    next: u32,
}

/// The queue of one rank. The sum is exact in 128 bits, so it returns to zero whatever was booked.
#[derive(Debug)]
pub(super) struct Prefills {
    oldest: u32,
    newest: u32,
    sum: u128,
    /// Entries without a duration.
    unmodelled: u32,
    /// Since when the oldest entry is worked on.
    anchor: Moment,
}

impl Prefills {
    pub(super) fn new() -> Self {
        Self { oldest: NONE, newest: NONE, sum: 0, unmodelled: 0, anchor: Moment::default() }
    }

    /// Appends the prefill of `booking`.
    pub(super) fn push(
        &mut self,
        bookings: &mut Slab<Booking>,
        booking: u32,
        tokens: u64,
        duration: Option<Duration>,
        now: Moment,
    ) {
        bookings[booking].prefill = Some(Prefill { tokens, duration, previous: self.newest, next: NONE });
        if self.newest == NONE {
            self.oldest = booking;
            self.anchor = now;
        } else {
            self.link(bookings, self.newest).next = booking;
        }
        self.newest = booking;
        self.sum += u128::from(tokens);
        self.unmodelled += u32::from(duration.is_none());
    }

    /// Takes the prefill of `booking` out. `false` when it has none.
    pub(super) fn remove(&mut self, bookings: &mut Slab<Booking>, booking: u32, now: Moment) -> bool {
        let Some(gone) = bookings[booking].prefill.take() else { return false };
        self.sum -= u128::from(gone.tokens);
        self.unmodelled -= u32::from(gone.duration.is_none());
        if gone.next == NONE {
            self.newest = gone.previous;
        } else {
            self.link(bookings, gone.next).previous = gone.previous;
        }
        if gone.previous == NONE {
            self.oldest = gone.next;
            self.anchor = now;
        } else {
            self.link(bookings, gone.previous).next = gone.next;
            if let Some(duration) = gone.duration {
                // The engine is taken to have worked on it too, so the total stays continuous.
                self.anchor = self.anchor.after(duration).min(now.max(self.anchor));
            }
        }
        true
    }

    /// Whether the total changes by itself.
    pub(super) fn decays(&self, bookings: &Slab<Booking>) -> bool {
        self.oldest != NONE && self.oldest_entry(bookings).duration.is_some()
    }

    /// Tokens in progress at `now`, saturating.
    pub(super) fn tokens(&self, bookings: &Slab<Booking>, now: Moment) -> u64 {
        if self.oldest == NONE {
            return 0;
        }
        let oldest = self.oldest_entry(bookings);
        let left = match oldest.duration {
            None => self.sum,
            Some(duration) => {
                let (total, elapsed) = (duration.as_nanos(), now.since(self.anchor).as_nanos());
                let tokens = u128::from(oldest.tokens);
                if total == 0 {
                    self.sum - tokens
                } else if self.unmodelled == 0 {
                    self.sum.saturating_sub(share(tokens, elapsed, total))
                } else {
                    let done = elapsed.min(total);
                    self.sum - tokens + (tokens - share(tokens, done, total))
                }
            }
        };
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    fn oldest_entry(&self, bookings: &Slab<Booking>) -> Prefill {
        bookings[self.oldest].prefill.expect("the oldest booking has a prefill")
    }

    fn link<'a>(&self, bookings: &'a mut Slab<Booking>, booking: u32) -> &'a mut Prefill {
        bookings[booking].prefill.as_mut().expect("linked bookings have a prefill")
    }
}

/// `floor(tokens * elapsed / total)`; the product of two 64-bit numbers fits, a longer duration saturates.
fn share(tokens: u128, elapsed: u128, total: u128) -> u128 {
    tokens.saturating_mul(elapsed) / total
}
