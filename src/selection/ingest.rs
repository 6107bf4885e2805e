//! How KV events enter the core: one sink for each listener, bound to one incarnation of a worker rank.
//!
//! Invariant: after [`EventSink::close`] returned, the sink writes nothing more.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

pub use super::trust::Trust;
use super::{
    identity::{Tier, WorkerWithDpRank},
    index::{RemoveOutcome, StoreOutcome, StoredBlock},
    partition::{Partition, PartitionRef},
};

/// Ranks that events of one worker may name besides its registered ones.
pub const MAX_FOREIGN_RANKS: usize = 64;

/// Applies a listener's events to its partition's index.
///
/// Every call names the rank a batch carries. A registered rank of the worker is taken as it is; on the stream of rank
/// `start + n` the engine-local number `n` means that rank; any other rank is indexed under its own number, up to
/// 64 a worker, is never selectable, and goes with the worker.
#[derive(Clone, Debug)]
pub struct EventSink {
    /// Shared by clones.
    pub(super) inner: Arc<SinkInner>,
}

/// What the clones share.
#[derive(Debug)]
pub(super) struct SinkInner {
    worker_id: u64,
    dp_rank: u32,
    block_size: u32,
    ranks: Arc<WorkerRanks>,
    gate: Mutex<Gate>,
}

/// Guards every write; `close` waits for it.
#[derive(Debug)]
struct Gate {
    /// `None` once closed.
    partition: Option<PartitionRef>,
    /// Index ranks written, sorted: what a reset empties.
    written: Vec<u32>,
}

/// Ranks of one worker, shared by its sinks.
#[derive(Debug)]
pub(super) struct WorkerRanks {
    /// Start and end of the registered range, packed.
    registered: AtomicU64,
    foreign: Mutex<BTreeSet<u32>>,
}

impl WorkerRanks {
    pub(super) fn new(registered: Range<u32>) -> Arc<Self> {
        Arc::new(Self { registered: AtomicU64::new(pack(&registered)), foreign: Mutex::default() })
    }

    /// The worker's range changed; sinks of ranks that stay go on.
    pub(super) fn set_registered(&self, registered: Range<u32>) {
        self.registered.store(pack(&registered), Ordering::Relaxed);
    }

    pub(super) fn registered(&self) -> Range<u32> {
        let packed = self.registered.load(Ordering::Relaxed);
        // The halves were u32 when packed.
        (packed >> 32) as u32..packed as u32
    }

    /// Registered ranks, and those that events named besides.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        let registered = self.registered();
        let foreign = self.foreign.lock().clone();
        let beside = registered.clone();
        registered.chain(foreign.into_iter().filter(move |rank| !beside.contains(rank)))
    }

    fn admit(&self, rank: u32) -> bool {
        let mut foreign = self.foreign.lock();
        foreign.contains(&rank) || (foreign.len() < MAX_FOREIGN_RANKS && foreign.insert(rank))
    }
}

fn pack(range: &Range<u32>) -> u64 {
    u64::from(range.start) << 32 | u64::from(range.end)
}

impl EventSink {
    pub(super) fn new(partition: PartitionRef, worker_id: u64, dp_rank: u32, ranks: Arc<WorkerRanks>) -> Self {
        let block_size = partition.block_size;
        let gate = Mutex::new(Gate { partition: Some(partition), written: Vec::new() });
        Self { inner: Arc::new(SinkInner { worker_id, dp_rank, block_size, ranks, gate }) }
    }

    /// Tokens a block in the partition.
    pub fn block_size(&self) -> u32 {
        self.inner.block_size
    }

    /// The worker the listener was registered for.
    pub fn worker_id(&self) -> u64 {
        self.inner.worker_id
    }

    /// The rank the listener was registered for; batches may name another of the same worker.
    pub fn registered_rank(&self) -> u32 {
        self.inner.dp_rank
    }

    /// The registered rank of the worker that a batch of this stream means by `dp_rank`.
    pub fn registered(&self, dp_rank: u32) -> Option<u32> {
        let (rank, registered) = self.index_rank(dp_rank);
        registered.then_some(rank)
    }

    /// `dp_rank` of the worker now holds `blocks`. A closed sink drops the event as [`StoreOutcome::Full`].
    pub fn store(&self, dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        let stored = self.write(dp_rank, true, |partition, rank| {
            let outcome = partition.index.primary().store(rank, tier, parent, blocks);
            if tier == Tier::Device && outcome == StoreOutcome::Applied {
                partition.note_stored(rank, parent, blocks);
            }
            outcome
        });
        stored.unwrap_or(StoreOutcome::Full)
    }

    /// `dp_rank` of the worker no longer holds the blocks called `names`.
    pub fn remove(&self, dp_rank: u32, tier: Tier, names: &[u64]) -> RemoveOutcome {
        let removed = self.write(dp_rank, false, |partition, rank| partition.index.primary().remove(rank, tier, names));
        removed.unwrap_or(RemoveOutcome { removed: 0, unknown: names.len() })
    }

    /// `dp_rank` of the worker holds nothing any more. Own predictions for it stay until they expire.
    pub fn clear(&self, dp_rank: u32) {
        self.write(dp_rank, false, |partition, rank| partition.index.primary().clear(rank));
    }

    /// The publisher restarted or its gap cannot be filled: every rank this sink ever wrote holds nothing any more, own
    /// predictions included.
    pub fn reset(&self) {
        let mut gate = self.inner.gate.lock();
        let Gate { partition: Some(partition), written } = &mut *gate else { return };
        let ranks = std::mem::take(written);
        partition.health().contain(|| {
            for rank in ranks.into_iter().chain([self.inner.dp_rank]) {
                partition.index.clear(self.rank(rank));
            }
        });
    }

    /// Says how far the rank can be believed.
    pub fn set_trust(&self, trust: Trust) {
        if let Some(partition) = &self.inner.gate.lock().partition {
            partition.set_trust(self.rank(self.inner.dp_rank), trust);
        }
    }

    /// No further write; called by the core when the listener is detached. Waits for a write in progress.
    pub fn close(&self) {
        self.inner.gate.lock().partition = None;
    }

    /// Whether the core detached the listener.
    pub fn is_closed(&self) -> bool {
        self.inner.gate.lock().partition.is_none()
    }

    /// Closes the sink and empties what it alone wrote: its own rank, and ranks that nobody registered.
    pub(super) fn close_and_clear(&self) {
        let mut gate = self.inner.gate.lock();
        let Some(partition) = gate.partition.take() else { return };
        let registered = self.inner.ranks.registered();
        let foreign = gate.written.iter().copied().filter(|rank| !registered.contains(rank));
        partition.health().contain(|| {
            for rank in foreign.chain([self.inner.dp_rank]) {
                partition.index.clear(self.rank(rank));
            }
        });
        partition.set_trust(self.rank(self.inner.dp_rank), Trust::Unknown);
    }

    fn rank(&self, dp_rank: u32) -> WorkerWithDpRank {
        WorkerWithDpRank::new(self.inner.worker_id, dp_rank)
    }

    /// The index rank a batch of this stream means by `dp_rank`.
    fn index_rank(&self, dp_rank: u32) -> (u32, bool) {
        let registered = self.inner.ranks.registered();
        if registered.contains(&dp_rank) {
            return (dp_rank, true);
        }
        // Engines number their ranks from 0 wherever the worker's range starts.
        if registered.start.checked_add(dp_rank) == Some(self.inner.dp_rank) {
            return (self.inner.dp_rank, true);
        }
        (dp_rank, false)
    }

    /// Runs `f` unless the sink is closed, the rank is one too many, or `f` panics.
    fn write<R>(&self, dp_rank: u32, stores: bool, f: impl FnOnce(&Partition, WorkerWithDpRank) -> R) -> Option<R> {
        let (dp_rank, registered) = self.index_rank(dp_rank);
        let mut gate = self.inner.gate.lock();
        let Gate { partition: Some(partition), written } = &mut *gate else { return None };
        if stores && let Err(at) = written.binary_search(&dp_rank) {
            if !registered && !self.inner.ranks.admit(dp_rank) {
                return None;
            }
            written.insert(at, dp_rank);
        }
        partition.health().contain(|| f(partition, self.rank(dp_rank)))
    }
}

/// One event stream the catalog wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventSource {
    /// The worker.
    pub worker_id: u64,
    /// The rank.
    pub dp_rank: u32,
    /// ZMQ endpoint of the publisher.
    pub endpoint: String,
    /// ZMQ endpoint of the replay socket.
    pub replay_endpoint: Option<String>,
}

/// Runs listeners for the core. Calls come under the catalog lock, in order: return at once.
pub trait EventSources: Send + Sync + 'static {
    /// Start listening to `source` and apply to `sink`.
    fn attach(&self, source: EventSource, sink: EventSink);

    /// Stop listening for the rank; its sink is closed already.
    fn detach(&self, worker_id: u64, dp_rank: u32);
}

/// For hosts without events: every source is ignored.
#[derive(Debug, Default)]
pub struct NoEventSources;

impl EventSources for NoEventSources {
    fn attach(&self, _source: EventSource, _sink: EventSink) {}
    fn detach(&self, _worker_id: u64, _dp_rank: u32) {}
}
