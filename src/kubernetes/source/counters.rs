//! What the source counts, for metrics. Labels are the words of [`WATCHED`] and [`ERRORS`], so series are bounded.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is watched, as metrics name it.
pub const WATCHED: [&str; 5] = ["selectorsets", "modelpools", "endpointslices", "pods", "nodes"];
/// Why listing or watching failed, as metrics name it.
pub const ERRORS: [&str; 7] = ["transport", "timeout", "forbidden", "gone", "throttled", "server", "decode"];

/// Counts since the start.
#[derive(Debug, Default)]
pub struct SourceCounters {
    errors: [[AtomicU64; ERRORS.len()]; WATCHED.len()],
    lists: [AtomicU64; WATCHED.len()],
    watches: [AtomicU64; WATCHED.len()],
    unreadable: [AtomicU64; WATCHED.len()],
    recomputed_pools: AtomicU64,
    snapshots: AtomicU64,
}

impl SourceCounters {
    pub(super) fn count_error(&self, watched: usize, reason: &str) {
        if let Some(at) = ERRORS.iter().position(|known| *known == reason) {
            self.errors[watched][at].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn count_list(&self, watched: usize) {
        self.lists[watched].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_watch(&self, watched: usize) {
        self.watches[watched].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unreadable(&self, watched: usize) {
        self.unreadable[watched].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_recomputed(&self, pools: u64, snapshots: u64) {
        self.recomputed_pools.store(pools, Ordering::Relaxed);
        self.snapshots.store(snapshots, Ordering::Relaxed);
    }

    /// Failures by what is watched and why.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        WATCHED.iter().zip(&self.errors).flat_map(|(watched, counts)| {
            let count =
                |(reason, count): (&&'static str, &AtomicU64)| (*watched, *reason, count.load(Ordering::Relaxed));
            ERRORS.iter().zip(counts).map(count)
        })
    }

    /// Complete lists that were read, by what is watched.
    pub fn lists(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_word(&self.lists)
    }

    /// Watches that were begun, by what is watched.
    pub fn watches(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_word(&self.watches)
    }

    /// Objects that could not be read, by what is watched.
    pub fn unreadable(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_word(&self.unreadable)
    }

    /// ModelPools that were computed again.
    pub fn recomputed_pools(&self) -> u64 {
        self.recomputed_pools.load(Ordering::Relaxed)
    }

    /// Snapshots that were published, each with another digest than the one before of its set.
    pub fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Relaxed)
    }
}

fn by_word(counts: &[AtomicU64; WATCHED.len()]) -> impl Iterator<Item = (&'static str, u64)> {
    WATCHED.iter().zip(counts).map(|(word, count)| (*word, count.load(Ordering::Relaxed)))
}
