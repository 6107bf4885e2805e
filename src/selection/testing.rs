//! What tests of the core share: a clock that stands still, event sinks that can be written to, a way to drive futures.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    hash,
    identity::Tier,
    index::StoredBlock,
    ingest::{EventSink, EventSource, EventSources},
    moment::{Clock, Moment},
};

/// Time that moves only when told to.
#[derive(Debug, Default)]
pub(crate) struct ManualClock(AtomicU64);

impl ManualClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).expect("a few years at most"), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }

    fn unix_nanos(&self) -> u64 {
        1_000 + self.now().0
    }
}

/// Keeps the sinks of attached ranks, so that a test can say what engines hold.
#[derive(Debug, Default)]
pub(crate) struct Sinks(Mutex<HashMap<(u64, u32), EventSink>>);

impl Sinks {
    /// Rank `dp_rank` of a worker holds blocks `from..from + locals.len()` of the prompt `locals` ends in. Names are
    /// the chained hashes, so equal content has equal names.
    pub(crate) fn store(&self, worker_id: u64, dp_rank: u32, tier: Tier, prompt: &[u64], from: usize) {
        let mut seqs = Vec::new();
        hash::sequence_hashes(prompt, &mut seqs);
        let blocks: Vec<_> = (from..prompt.len()).map(|at| StoredBlock { name: seqs[at], local: prompt[at] }).collect();
        let sinks = self.0.lock();
        let sink = sinks.get(&(worker_id, dp_rank)).expect("the rank is attached");
        sink.store(dp_rank, tier, from.checked_sub(1).map(|at| seqs[at]), &blocks);
    }
}

impl EventSources for Sinks {
    fn attach(&self, source: EventSource, sink: EventSink) {
        self.0.lock().insert((source.worker_id, source.dp_rank), sink);
    }

    fn detach(&self, worker_id: u64, dp_rank: u32) {
        self.0.lock().remove(&(worker_id, dp_rank));
    }
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
pub(crate) struct CountingWaker(AtomicUsize);

impl CountingWaker {
    pub(crate) fn wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The output of a future that has nothing to wait for.
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits"),
    }
}

/// Drives a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Counts log lines.
#[derive(Debug, Default)]
pub(crate) struct Lines(Arc<AtomicU64>);

impl Lines {
    /// Lines of warnings and errors that this thread logs in `run`.
    pub(crate) fn of(run: impl FnOnce()) -> u64 {
        let lines = Self::default();
        let count = Arc::clone(&lines.0);
        tracing::subscriber::with_default(lines, run);
        count.load(Ordering::SeqCst)
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
