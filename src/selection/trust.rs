//! How far the blocks indexed for a rank can be believed, as its listener says.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use super::identity::WorkerWithDpRank;

/// How far a rank's part of the index can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Trust {
    /// Every batch since the publisher's start or its last clear was applied: the index equals the engine's cache.
    Complete,
    /// What the stream did not bring came from the engine's replay ring or from a peer's snapshot, and nothing since is
    /// missing: what is indexed is right, blocks from before may be missing.
    Replayed,
    /// Batches were lost for good: blocks may be missing, and blocks that are gone may be indexed.
    Partial,
    /// Nothing was heard for longer than the configured limit: the rank's blocks earn no credit until it is heard again
    /// or a replay proves that nothing was missed.
    Stale,
    /// Nothing is known of the stream yet; what is indexed, if anything, comes from a peer that told no position.
    #[default]
    Unknown,
}

impl Trust {
    /// All of them, in the order of their numbers: the most trusted first, but for `Stale`.
    pub const ALL: [Self; 5] = [Self::Complete, Self::Replayed, Self::Partial, Self::Stale, Self::Unknown];

    /// A stable word for metrics and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Replayed => "replayed",
            Self::Partial => "partial",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
        }
    }
}

/// Trust by rank; absent = unknown.
#[derive(Debug, Default)]
pub(in crate::selection) struct TrustTable {
    known: Mutex<HashMap<WorkerWithDpRank, Trust>>,
    /// Grows with every change.
    version: AtomicU64,
}

impl TrustTable {
    pub(in crate::selection) fn get(&self, rank: WorkerWithDpRank) -> Trust {
        self.known.lock().get(&rank).copied().unwrap_or_default()
    }

    /// Readers who saw this version need not look again while it stands.
    pub(in crate::selection) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Replaces what is said of a rank; `changed` runs with what was said before, so that nothing comes between.
    pub(in crate::selection) fn set(&self, rank: WorkerWithDpRank, trust: Trust, changed: impl FnOnce(Option<Trust>)) {
        let mut known = self.known.lock();
        let before = match trust {
            Trust::Unknown => known.remove(&rank),
            _ => known.insert(rank, trust),
        };
        self.version.fetch_add(1, Ordering::Release);
        changed(before);
    }

    /// Replaces `out` by the trust of each of `ranks`.
    pub(in crate::selection) fn read(&self, ranks: &[WorkerWithDpRank], out: &mut Vec<Trust>) {
        let known = self.known.lock();
        out.clear();
        if !known.is_empty() {
            out.extend(ranks.iter().map(|rank| known.get(rank).copied().unwrap_or_default()));
        }
    }
}
