//! Prefill tokens in progress on one rank, with the optional modelled decay.
//!
//! A host with an estimator gives each prefill a duration; the rank's total then falls as time passes (spec scheduling
//! 3.3, sequences 1.5). Without durations the total changes by events alone. The order of prefills is that of the
//! rank's list of bookings.

use std::time::Duration;

use super::bookings::{Booking, NONE};
use crate::selection::{moment::Moment, slab::Slab};

/// The prefills of one rank. The sum is exact in 128 bits, so it returns to zero whatever was booked.
#[derive(Debug)]
pub(super) struct Prefills {
    sum: u128,
    /// The booking that is worked on.
    oldest: u32,
    count: u32,
    /// Prefills without a duration.
    unmodelled: u32,
    /// Since when the oldest is worked on.
    anchor: Moment,
}

impl Prefills {
    pub(super) fn new() -> Self {
        Self { sum: 0, oldest: NONE, count: 0, unmodelled: 0, anchor: Moment::default() }
    }

    /// Adds the prefill of the rank's newest booking. No tokens are no prefill.
    pub(super) fn push(
        &mut self,
        bookings: &mut Slab<Booking>,
        booking: u32,
        tokens: u64,
        duration: Option<Duration>,
        now: Moment,
    ) {
        if tokens == 0 {
            return;
        }
        bookings[booking].prefill_tokens = tokens;
        if duration.is_some() {
            bookings[booking].rare().duration = duration;
        }
        if self.count == 0 {
            self.oldest = booking;
            self.anchor = now;
        }
        self.count += 1;
        self.sum += u128::from(tokens);
        self.unmodelled += u32::from(duration.is_none());
    }

    /// Takes the prefill of `booking` out, while it is still in the rank's list. `false` when it has none.
    pub(super) fn remove(&mut self, bookings: &mut Slab<Booking>, booking: u32, now: Moment) -> bool {
        let entry = &mut bookings[booking];
        let (tokens, duration) = (std::mem::take(&mut entry.prefill_tokens), entry.duration());
        if tokens == 0 {
            return false;
        }
        self.sum -= u128::from(tokens);
        self.count -= 1;
        self.unmodelled -= u32::from(duration.is_none());
        if booking == self.oldest {
            self.anchor = now;
            self.oldest = NONE;
            if self.count > 0 {
                // Each booking is passed over once: the oldest only ever moves on.
                let mut next = bookings[booking].next();
                while bookings[next].prefill_tokens == 0 {
                    next = bookings[next].next();
                }
                self.oldest = next;
            }
        } else if let Some(duration) = duration {
            // The engine is taken to have worked on it too, so the total stays continuous.
            self.anchor = self.anchor.after(duration).min(now.max(self.anchor));
        }
        true
    }

    /// Tokens of all of them as booked, saturating.
    pub(super) fn booked(&self) -> u64 {
        u64::try_from(self.sum).unwrap_or(u64::MAX)
    }

    /// Tokens of the oldest, and when it was booked.
    pub(super) fn head(&self, bookings: &Slab<Booking>) -> Option<(u64, Moment)> {
        let oldest = bookings.get(self.oldest).filter(|_| self.count > 0)?;
        Some((oldest.prefill_tokens, oldest.admitted))
    }

    /// Whether the total changes by itself.
    pub(super) fn decays(&self, bookings: &Slab<Booking>) -> bool {
        self.unmodelled < self.count && bookings[self.oldest].duration().is_some()
    }

    /// Tokens in progress at `now`, saturating.
    pub(super) fn tokens(&self, bookings: &Slab<Booking>, now: Moment) -> u64 {
        let left = if self.unmodelled == self.count { self.sum } else { self.modelled(&bookings[self.oldest], now) };
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    fn modelled(&self, oldest: &Booking, now: Moment) -> u128 {
        let Some(duration) = oldest.duration() else { return self.sum };
        let tokens = u128::from(oldest.prefill_tokens);
        let (total, elapsed) = (duration.as_nanos(), now.since(self.anchor).as_nanos());
        if total == 0 {
            self.sum - tokens
        } else if self.unmodelled == 0 {
            self.sum.saturating_sub(share(tokens, elapsed, total))
        } else {
            self.sum - share(tokens, elapsed.min(total), total)
        }
    }
}

/// `floor(tokens * elapsed / total)`; the product of two 64-bit numbers fits, a longer duration saturates.
fn share(tokens: u128, elapsed: u128, total: u128) -> u128 {
    tokens.saturating_mul(elapsed) / total
}
