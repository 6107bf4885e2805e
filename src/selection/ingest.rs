//! How KV events enter the core: one sink for each listener, bound to one incarnation of a worker rank.
//!
//! Invariant: after [`EventSink::close`] returned, the sink writes nothing more.

use std::sync::Arc;

use super::{
    identity::Tier,
    index::{RemoveOutcome, StoreOutcome, StoredBlock},
};

/// How far a rank's part of the index can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Every event was seen.
    #[default]
    Full,
    /// Events were lost for good.
    Partial,
}

/// Applies a listener's events to its partition's index.
#[derive(Clone, Debug)]
pub struct EventSink {
    /// Shared by clones.
    pub(super) inner: Arc<SinkInner>,
}

/// What the clones share.
#[derive(Debug)]
pub(super) struct SinkInner {}

impl EventSink {
    /// Tokens a block in the partition.
    pub fn block_size(&self) -> u32 {
        todo!()
    }

    /// The rank the listener was registered for; batches may name another of the same worker.
    pub fn registered_rank(&self) -> u32 {
        todo!()
    }

    /// `dp_rank` of the worker now holds `blocks`.
    pub fn store(&self, dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        let _ = (dp_rank, tier, parent, blocks);
        todo!()
    }

    /// `dp_rank` of the worker no longer holds the blocks called `names`.
    pub fn remove(&self, dp_rank: u32, tier: Tier, names: &[u64]) -> RemoveOutcome {
        let _ = (dp_rank, tier, names);
        todo!()
    }

    /// `dp_rank` of the worker holds nothing any more.
    pub fn clear(&self, dp_rank: u32) {
        let _ = dp_rank;
        todo!()
    }

    /// The publisher restarted or its gap cannot be filled: every rank this sink ever wrote holds nothing any more.
    pub fn reset(&self) {
        todo!()
    }

    /// Says how far the rank can be believed.
    pub fn set_trust(&self, trust: Trust) {
        let _ = trust;
        todo!()
    }

    /// No further write; called by the core when the listener is detached.
    pub fn close(&self) {
        todo!()
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
