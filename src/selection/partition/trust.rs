//! What listeners say of their ranks: how far the blocks indexed for each can be believed.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::selection::{identity::WorkerWithDpRank, ingest::Trust};

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
    pub(super) fn set(&self, rank: WorkerWithDpRank, trust: Trust, changed: impl FnOnce(Option<Trust>)) {
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
