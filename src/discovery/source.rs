//! What a source publishes: its newest snapshot, and why it may be behind.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::watch;

use super::Snapshot;

/// The newest state of a source. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SourceState {
    /// The last good snapshot; none until the source has had a complete list.
    pub snapshot: Option<Snapshot>,
    /// Why the source could not read what is there now. The last good snapshot stays in force.
    pub error: Option<Arc<str>>,
}

/// Follows a source. Only the newest state is kept: a reader that is late misses the ones between, by design.
pub type SourceStatus = watch::Receiver<SourceState>;

/// What a source counted since it started.
#[derive(Debug, Default)]
pub struct SourceCounters {
    snapshots: AtomicU64,
    refusals: [AtomicU64; REFUSALS.len()],
}

/// Reasons for which a source refuses what it reads, as metrics name them.
pub const REFUSALS: [&str; 7] = ["unreadable", "too_large", "empty", "syntax", "unknown_key", "value", "duplicate"];

impl SourceCounters {
    /// A snapshot was published.
    pub fn count_snapshot(&self) {
        self.snapshots.fetch_add(1, Ordering::Relaxed);
    }

    /// Content was refused for `reason`, one of [`REFUSALS`].
    pub fn count_refusal(&self, reason: &str) {
        if let Some(at) = REFUSALS.iter().position(|known| *known == reason) {
            self.refusals[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Snapshots published.
    pub fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Relaxed)
    }

    /// Refusals by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REFUSALS.iter().zip(&self.refusals).map(|(reason, count)| (*reason, count.load(Ordering::Relaxed)))
    }
}
