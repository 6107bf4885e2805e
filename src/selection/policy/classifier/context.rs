//! What a classifier can ask at any time: block size, workers, the time.

use std::{fmt, sync::Arc, time::Instant};

use crate::selection::identity::WorkerWithDpRank;

/// A rank that takes bookings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestClassifierWorker {
    worker: WorkerWithDpRank,
    total_kv_blocks: Option<u64>,
}

impl RequestClassifierWorker {
    /// A rank and its capacity.
    pub fn new(worker: WorkerWithDpRank, total_kv_blocks: Option<u64>) -> Self {
        Self { worker, total_kv_blocks }
    }

    /// The rank.
    pub fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    /// Its KV capacity in blocks, when its worker stated one.
    pub fn total_kv_blocks(&self) -> Option<u64> {
        self.total_kv_blocks
    }
}

/// What a classifier is made with. Clones ask the same partition; nothing here does I/O.
#[derive(Clone)]
pub struct RequestClassifierContext {
    block_size: u32,
    workers: Arc<dyn Fn() -> Vec<RequestClassifierWorker> + Send + Sync>,
    now: Arc<dyn Fn() -> Instant + Send + Sync>,
}

impl fmt::Debug for RequestClassifierContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestClassifierContext").field("block_size", &self.block_size).finish_non_exhaustive()
    }
}

impl RequestClassifierContext {
    /// A context whose workers `workers` tells; it must not block. The time is the machine's.
    pub fn new(block_size: u32, workers: impl Fn() -> Vec<RequestClassifierWorker> + Send + Sync + 'static) -> Self {
        Self { block_size, workers: Arc::new(workers), now: Arc::new(Instant::now) }
    }

    /// The same with time from `now`.
    #[must_use]
    pub fn with_clock(mut self, now: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        self.now = Arc::new(now);
        self
    }

    /// Tokens a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Ranks that take bookings now, by worker and rank.
    pub fn workers(&self) -> Vec<RequestClassifierWorker> {
        (self.workers)()
    }

    /// The time by the router's clock. Ours.
    pub fn now(&self) -> Instant {
        (self.now)()
    }
}
