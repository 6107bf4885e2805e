//! Where KV events come from: listeners, or something of the host's. Listeners connect at once, and what they receive
//! waits until the recovery of their rank is over; what a host brings is held back until all of it is, so that a peer's
//! dump never overwrites newer events (spec index 7).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::{
    events::{
        counts::Totals,
        listener::ListenerConfig,
        status::{ListenerStatus, RankTrust},
        supervisor::ListenerSupervisor,
        takeover::{Seed, StreamCut, StreamKey},
    },
    selection::ingest::{EventSink, EventSource, EventSources},
    telemetry::metrics::Metrics,
};

/// The service's event sources.
pub(super) enum Sources {
    /// They connect at once, and read once released.
    Listeners(Arc<ListenerSupervisor>),
    /// They are told of streams once released.
    Host(Arc<HeldSources>),
}

impl Sources {
    pub(super) fn listeners(runtime: Handle, config: ListenerConfig) -> Self {
        Self::Listeners(Arc::new(ListenerSupervisor::held(runtime, config)))
    }

    pub(super) fn host(sources: Arc<dyn EventSources>) -> Self {
        Self::Host(Arc::new(HeldSources::new(sources)))
    }

    pub(super) fn for_core(&self) -> Arc<dyn EventSources> {
        match self {
            Self::Listeners(listeners) => listeners.clone(),
            Self::Host(held) => held.clone(),
        }
    }

    /// Only streams of `ranks` wait any longer.
    pub(super) fn offer(&self, ranks: BTreeSet<StreamKey>) {
        if let Self::Listeners(listeners) = self {
            listeners.offer(ranks);
        }
    }

    /// No stream waits any longer; those with a seed go on from it.
    pub(super) fn release(&self, seeds: BTreeMap<StreamKey, Seed>) {
        match self {
            Self::Listeners(listeners) => listeners.open_with(seeds),
            Self::Host(held) => held.release(),
        }
    }

    /// Forgets the seeds that no stream took.
    pub(super) fn expire_seeds(&self) {
        if let Self::Listeners(listeners) = self {
            listeners.expire_seeds();
        }
    }

    /// Whether some stream waits that is not connected yet.
    pub(super) fn any_waits_unconnected(&self) -> bool {
        match self {
            Self::Listeners(listeners) => listeners.any_waits_unconnected(),
            Self::Host(_) => false,
        }
    }

    /// Where every stream stands.
    pub(super) fn cuts(&self) -> BTreeMap<StreamKey, StreamCut> {
        match self {
            Self::Listeners(listeners) => listeners.cuts(),
            Self::Host(_) => BTreeMap::new(),
        }
    }

    /// What changes when a stream's blocks of before are forgotten.
    pub(super) fn incarnations(&self) -> BTreeMap<StreamKey, u64> {
        match self {
            Self::Listeners(listeners) => listeners.incarnations(),
            Self::Host(_) => BTreeMap::new(),
        }
    }

    pub(super) fn statuses(&self) -> Vec<ListenerStatus> {
        match self {
            Self::Listeners(listeners) => listeners.statuses(),
            Self::Host(_) => Vec::new(),
        }
    }

    /// Pauses a listener or lets it go on; `false` when there is none or nothing changes.
    pub(super) fn set_paused(&self, worker_id: u64, dp_rank: u32, paused: bool) -> bool {
        match self {
            Self::Listeners(listeners) => listeners.set_paused(worker_id, dp_rank, paused),
            Self::Host(_) => false,
        }
    }

    /// Counts over all listeners.
    pub(super) fn totals(&self) -> Option<&Totals> {
        match self {
            Self::Listeners(listeners) => Some(listeners.totals()),
            Self::Host(_) => None,
        }
    }

    /// How far each rank can be believed; empty for a host with event sources of its own.
    pub(super) fn trusts(&self) -> BTreeMap<StreamKey, RankTrust> {
        match self {
            Self::Listeners(listeners) => listeners.trusts(),
            Self::Host(_) => BTreeMap::new(),
        }
    }

    pub(super) fn register(&self, metrics: &Metrics) {
        if let Self::Listeners(listeners) = self {
            metrics.register_named(|registry| listeners.register(registry));
        }
    }

    pub(super) async fn shutdown(&self) {
        if let Self::Listeners(listeners) = self {
            listeners.shutdown().await;
        }
    }
}

/// Rank to the stream that waits for it.
type Waiting = BTreeMap<(u64, u32), (EventSource, EventSink)>;

/// [`EventSources`] that can be held back: what the catalog attaches meanwhile starts then, what it detaches is
/// forgotten.
pub(super) struct HeldSources {
    inner: Arc<dyn EventSources>,
    /// `None` once released.
    waiting: Mutex<Option<Waiting>>,
}

impl HeldSources {
    pub(super) fn new(inner: Arc<dyn EventSources>) -> Self {
        Self { inner, waiting: Mutex::new(Some(Waiting::new())) }
    }

    /// Starts everything that waits; from now on calls go through at once.
    pub(super) fn release(&self) {
        // The lock is kept: a detach that comes meanwhile must find its attach done.
        let mut waiting = self.waiting.lock();
        for (source, sink) in waiting.take().into_iter().flatten().map(|(_, stream)| stream) {
            self.inner.attach(source, sink);
        }
    }
}

impl EventSources for HeldSources {
    fn attach(&self, source: EventSource, sink: EventSink) {
        match self.waiting.lock().as_mut() {
            Some(waiting) => drop(waiting.insert((source.worker_id, source.dp_rank), (source, sink))),
            None => self.inner.attach(source, sink),
        }
    }

    fn detach(&self, worker_id: u64, dp_rank: u32) {
        match self.waiting.lock().as_mut() {
            Some(waiting) => drop(waiting.remove(&(worker_id, dp_rank))),
            None => self.inner.detach(worker_id, dp_rank),
        }
    }
}
