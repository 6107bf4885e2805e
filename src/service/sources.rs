//! Holds event listeners back until start-up recovery is over, so that a peer's dump never overwrites newer events
//! (spec index 7). What the catalog attaches meanwhile starts then, what it detaches is forgotten.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use crate::selection::ingest::{EventSink, EventSource, EventSources};

/// Rank to the stream that waits for it.
type Waiting = BTreeMap<(u64, u32), (EventSource, EventSink)>;

/// [`EventSources`] that can be held back.
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
