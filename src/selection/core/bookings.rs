//! The service-wide index of bookings: id to partition and booking attempt, claims included.

use crate::selection::load::BookingId;

/// Why bookings ended without a lifecycle call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookingEnd {
    /// Older than the expiry.
    Expired,
    /// Their rank left the partition. The id stays taken until a lifecycle call or the sweep, as in the reference.
    RankLeft,
    /// The partition's state was rebuilt after a panic.
    Rebuilt,
}

/// Maps selection ids to bookings.
#[derive(Debug, Default)]
pub struct BookingIndex {}

impl BookingIndex {
    /// `ended` are gone from their partition's load tracker.
    pub fn ended(&self, ended: &[BookingId], why: BookingEnd) {
        let _ = (ended, why);
    }
}
