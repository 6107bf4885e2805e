//! Virtual time for cores: it stands still until the driver moves it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Nanos;
use crate::selection::{Clock, Moment};

/// Wall-clock time at which every simulation starts: some moment after the epoch, so that what replicas compare by
/// wall clock is never near zero.
const START_UNIX_NANOS: u64 = 1_800_000_000_000_000_000;

/// The clock of all replicas of one fleet.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Moves time to `at`; earlier times change nothing.
    pub fn advance_to(&self, at: Nanos) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }

    fn unix_nanos(&self) -> u64 {
        START_UNIX_NANOS.saturating_add(self.now().0)
    }
}
