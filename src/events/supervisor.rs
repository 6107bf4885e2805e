//! One supervised task a stream: started and stopped as the catalog says, started again when it fails.
//!
//! Invariants: attaching and detaching return at once; a listener that panics costs itself a pause, never another one
//! or the process; after shutdown nothing runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    counts::{Count, Totals},
    listener::{Listener, ListenerConfig},
    normalise::EventTarget,
    status::{ListenerState, ListenerStatus, RankTrust, Shared},
    takeover::{Seed, StreamCut, StreamKey, Takeover},
};
use crate::selection::ingest::{EventSink, EventSource, EventSources};

/// A listener that ran this long starts again after the shortest pause.
const STEADY: Duration = Duration::from_secs(60);

/// Runs the listeners of a service.
#[derive(Debug)]
pub struct ListenerSupervisor {
    runtime: Handle,
    config: Arc<ListenerConfig>,
    takeover: Arc<Takeover>,
    pub(super) totals: Arc<Totals>,
    pub(super) listeners: Arc<Mutex<Listeners>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// By worker and rank.
pub(super) type Listeners = BTreeMap<(u64, u32), Entry>;

/// One listener.
#[derive(Debug)]
pub(super) struct Entry {
    pub shared: Arc<Shared>,
    stop: CancellationToken,
    pause: watch::Sender<bool>,
}

impl ListenerSupervisor {
    /// A supervisor whose listeners run on `runtime`.
    pub fn new(runtime: Handle, config: ListenerConfig) -> Self {
        let supervisor = Self::held(runtime, config);
        supervisor.open();
        supervisor
    }

    /// As [`Self::new`], but listeners only connect, and read once [`Self::open`] was called: their queues keep what is
    /// published during start-up recovery.
    pub fn held(runtime: Handle, config: ListenerConfig) -> Self {
        Self {
            runtime,
            config: Arc::new(config),
            takeover: Arc::new(Takeover::closed()),
            totals: Arc::default(),
            listeners: Arc::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Lets listeners read, those of now and of later: start-up recovery is done.
    pub fn open(&self) {
        self.open_with(BTreeMap::new());
    }

    /// Only the listeners of `ranks`, which a peer's snapshot brings, wait any longer.
    pub fn offer(&self, ranks: BTreeSet<StreamKey>) {
        self.takeover.offer(ranks);
    }

    /// As [`Self::open`]; streams with a seed go on where a peer's snapshot was cut, those that are attached later too.
    pub fn open_with(&self, seeds: BTreeMap<StreamKey, Seed>) {
        self.takeover.open(seeds);
    }

    /// Forgets the seeds that no listener has taken, and says whose they were.
    pub fn expire_seeds(&self) -> Vec<StreamKey> {
        self.takeover.expire()
    }

    /// Whether some listener waits that is not connected yet.
    pub fn any_waits_unconnected(&self) -> bool {
        self.listeners.lock().values().any(|entry| entry.shared.waits_unconnected())
    }

    /// Where every stream stands. Each is looked at between two batches.
    pub fn cuts(&self) -> BTreeMap<StreamKey, StreamCut> {
        let listeners: Vec<_> =
            self.listeners.lock().iter().map(|(key, entry)| (*key, Arc::clone(&entry.shared))).collect();
        let cut = |(key, shared): (StreamKey, Arc<Shared>)| (key, shared.cut());
        listeners.into_iter().map(cut).collect()
    }

    /// The incarnation of every stream, see [`StreamCut::incarnation`].
    pub fn incarnations(&self) -> BTreeMap<StreamKey, u64> {
        let listeners: Vec<_> =
            self.listeners.lock().iter().map(|(key, entry)| (*key, Arc::clone(&entry.shared))).collect();
        listeners.into_iter().map(|(key, shared)| (key, shared.stream.lock().incarnation)).collect()
    }

    /// All listeners, by worker and rank.
    pub fn statuses(&self) -> Vec<ListenerStatus> {
        self.listeners.lock().values().map(|entry| entry.shared.status()).collect()
    }

    /// Makes the listener of a rank stand still, unsubscribed, or go on from where it was; what was published meanwhile
    /// comes by replay. `false` when there is no such listener, or nothing to change.
    pub fn set_paused(&self, worker_id: u64, dp_rank: u32, paused: bool) -> bool {
        let listeners = self.listeners.lock();
        let Some(entry) = listeners.get(&(worker_id, dp_rank)) else { return false };
        let changed = entry.pause.send_if_modified(|now| std::mem::replace(now, paused) != paused);
        if changed {
            // Seen at once, before the task has taken notice.
            entry.shared.set_state(if paused { ListenerState::Paused } else { ListenerState::Connecting });
        }
        changed
    }

    /// How far each rank can be believed, by worker and rank.
    pub fn trusts(&self) -> BTreeMap<StreamKey, RankTrust> {
        let trust = |(key, entry): (&StreamKey, &Entry)| {
            let (trust, age) = entry.shared.trust();
            (*key, RankTrust { dp_rank: key.1, trust, trust_age_seconds: age.as_secs_f64() })
        };
        self.listeners.lock().iter().map(trust).collect()
    }

    /// Counts over all listeners, those that are gone included.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Ends all listeners and waits for them.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.listeners.lock().clear();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Starts listening to `source`, in place of the listener of that rank.
    pub(super) fn start<T: EventTarget + Send + Sync + 'static>(&self, source: EventSource, target: T) {
        let key = (source.worker_id, source.dp_rank);
        let shared = Arc::new(Shared::new(source, Arc::clone(&self.totals)));
        let stop = self.stop.child_token();
        let config = Arc::clone(&self.config);
        let listener = Listener::new(Arc::clone(&shared), target, Arc::clone(&config), Arc::clone(&self.takeover));
        let former = {
            let mut listeners = self.listeners.lock();
            if self.stop.is_cancelled() {
                return;
            }
            let pause = watch::Sender::new(false);
            let watched = watch_over(listener, Arc::clone(&shared), config, pause.subscribe());
            let task = stop.clone().run_until_cancelled_owned(watched);
            self.tasks.spawn_on(task, &self.runtime);
            listeners.insert(key, Entry { shared, stop, pause })
        };
        if let Some(former) = former {
            former.stop.cancel();
        }
    }
}

impl EventSources for ListenerSupervisor {
    fn attach(&self, source: EventSource, sink: EventSink) {
        self.start(source, sink);
    }

    fn detach(&self, worker_id: u64, dp_rank: u32) {
        if let Some(entry) = self.listeners.lock().remove(&(worker_id, dp_rank)) {
            entry.stop.cancel();
        }
    }
}

impl Drop for ListenerSupervisor {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs a listener, and again when it fails or was paused. Never ends but for an endpoint that cannot be used.
async fn watch_over<T: EventTarget>(
    mut listener: Listener<T>,
    shared: Arc<Shared>,
    config: Arc<ListenerConfig>,
    mut paused: watch::Receiver<bool>,
) {
    let mut pause = config.restart_min;
    loop {
        let started = Instant::now();
        let outcome = tokio::select! {
            biased;
            Ok(_) = paused.wait_for(|paused| *paused) => None,
            // What a panic leaves behind in the listener is sound: its position moves before a batch is applied.
            outcome = AssertUnwindSafe(listener.run()).catch_unwind() => Some(outcome),
        };
        let Some(outcome) = outcome else {
            shared.set_state(ListenerState::Paused);
            // The sender goes with the listener's entry, and then this task is cancelled.
            let resumed = paused.wait_for(|paused| !*paused).await.is_ok();
            if !resumed {
                return;
            }
            shared.set_state(ListenerState::Connecting);
            continue;
        };
        let source = &shared.source;
        match outcome {
            Ok(Ok(never)) => match never {},
            Ok(Err(error)) => {
                tracing::error!(worker_id = source.worker_id, dp_rank = source.dp_rank, %error, "no event listener");
                shared.set_error(error.to_string());
                shared.set_state(ListenerState::Failed);
                return;
            }
            Err(panic) => {
                let what = panic.downcast_ref::<&str>().copied().map(str::to_owned);
                let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                tracing::error!(
                    worker_id = source.worker_id,
                    dp_rank = source.dp_rank,
                    what,
                    "event listener panicked"
                );
                shared.set_error(format!("listener panicked: {what}"));
                shared.count(Count::ListenerRestarts);
                listener.panicked();
            }
        }
        shared.set_state(ListenerState::Restarting);
        if started.elapsed() > STEADY {
            pause = config.restart_min;
        }
        sleep(pause).await;
        pause = (pause * 2).min(config.restart_max);
    }
}
