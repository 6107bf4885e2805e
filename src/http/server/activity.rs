//! What a connection is doing, and when it has waited too long.
//!
//! Written by the connection's own task (socket, requests) and read by its timer; times are milliseconds since the
//! connection was made.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// A request's head takes too long.
    Head,
    /// No request for too long.
    Idle,
}

#[derive(Debug)]
pub(super) struct Activity {
    origin: Instant,
    in_flight: AtomicU32,
    /// When bytes of the next request came first, plus one; 0 = none yet.
    head_since: AtomicU64,
    /// When something last moved.
    idle_since: AtomicU64,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            in_flight: AtomicU32::new(0),
            head_since: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Bytes came in.
    pub(super) fn received(&self) {
        if self.in_flight.load(Relaxed) == 0 && self.head_since.load(Relaxed) == 0 {
            self.head_since.store(self.now() + 1, Relaxed);
        }
    }

    /// Bytes of an answer went out.
    pub(super) fn sent(&self) {
        self.idle_since.store(self.now(), Relaxed);
    }

    /// Whether no request is being handled.
    pub(super) fn is_between(&self) -> bool {
        self.in_flight.load(Relaxed) == 0
    }

    /// A head is complete; the request runs until the guard drops.
    pub(super) fn begin(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        self.head_since.store(0, Relaxed);
        InFlight(self)
    }

    /// Whether the connection has waited too long.
    pub(super) fn overdue(&self, head: Duration, idle: Duration) -> Option<Overdue> {
        if self.in_flight.load(Relaxed) > 0 {
            return None;
        }
        let now = self.now();
        let longer = |since: u64, limit: Duration| Duration::from_millis(now.saturating_sub(since)) > limit;
        match self.head_since.load(Relaxed) {
            0 => longer(self.idle_since.load(Relaxed), idle).then_some(Overdue::Idle),
            since => longer(since - 1, head).then_some(Overdue::Head),
        }
    }
}

/// A request in progress.
pub(super) struct InFlight<'a>(&'a Activity);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Relaxed);
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_head_counts_from_its_first_byte_and_a_request_in_progress_never() {
        let activity = Activity::new();
        assert_eq!(activity.overdue(Duration::ZERO, LONG), None, "nothing came yet");
        let deadline = Instant::now() + Duration::from_secs(30);
        let overdue = |head, idle| {
            while activity.overdue(head, idle).is_none() {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
            activity.overdue(head, idle)
        };
        assert_eq!(overdue(LONG, Duration::from_millis(1)), Some(Overdue::Idle));
        activity.received();
        assert_eq!(activity.overdue(LONG, Duration::ZERO), None, "not idle any more");
        assert_eq!(overdue(Duration::from_millis(1), LONG), Some(Overdue::Head));
        let request = activity.begin();
        activity.received();
        assert_eq!(activity.overdue(Duration::ZERO, Duration::ZERO), None);
        drop(request);
        assert_eq!(overdue(LONG, Duration::from_millis(1)), Some(Overdue::Idle));
    }
}
