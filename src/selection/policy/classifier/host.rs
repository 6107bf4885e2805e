//! One classifier at work in one partition: its requests by id, its events in order, and the limits of both.
//!
//! Invariants: each tracked request has room for its first `Sent` and its last event, so neither is ever dropped while
//! the host is open; events are delivered in the order in which they were told; of the requests of one id, the next is
//! classified when the last event of the one before was delivered. Wakers are woken, and plugin code runs, outside the
//! state's lock.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    AbortCause, RequestClassifier,
    counts::{ClassifierCounts, ClassifyOutcome, EventOutcome},
    lifecycle::RequestLifecycle,
    progress::{RequestProgress, RequestProgressUpdater},
    request::Overrides,
};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    moment::{Clock, Moment},
    policy::failures::{contained, is_worth_a_line},
};

/// Limits of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassifierLimits {
    /// Longest time for one `classify`, unless the classifier states its own.
    pub classify_time: Duration,
    /// Longest time for one `on_event`.
    pub event_time: Duration,
    /// Most requests tracked at a time in a partition, those included whose last event was not delivered yet.
    pub max_requests: usize,
    /// Most events that wait beside each request's first `Sent` and last one.
    pub max_events: usize,
}

impl Default for ClassifierLimits {
    fn default() -> Self {
        Self {
            classify_time: Duration::from_secs(5),
            event_time: Duration::from_secs(30),
            max_requests: 65_536,
            max_events: 65_536,
        }
    }
}

/// What a host is made of.
#[allow(missing_docs, reason = "fields say what they are")]
pub struct HostParts {
    pub classifier: Box<dyn RequestClassifier>,
    pub limits: ClassifierLimits,
    pub clock: Arc<dyn Clock>,
    pub counts: Arc<ClassifierCounts>,
}

/// One lifecycle of a request id, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LifecycleKey(pub(super) u64);

static NEXT_KEY: AtomicU64 = AtomicU64::new(0);

/// A classifier at work.
pub struct ClassifierHost {
    pub(super) plugin: async_lock::Mutex<Box<dyn RequestClassifier>>,
    pub(super) classify_time: Duration,
    pub(super) limits: ClassifierLimits,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counts: Arc<ClassifierCounts>,
    pub(super) state: Mutex<State>,
}

impl fmt::Debug for ClassifierHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, events) = self.size();
        f.debug_struct("ClassifierHost").field("requests", &requests).field("events", &events).finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) requests: HashMap<LifecycleKey, Tracked>,
    /// Lifecycles of an id, oldest first, until their last event was delivered.
    pub(super) by_id: HashMap<Arc<str>, VecDeque<LifecycleKey>>,
    pub(super) events: VecDeque<QueuedEvent>,
    /// Events among them that had no room of their own.
    pub(super) extra_events: usize,
    /// Classifications under way: when their time is over, and who waits.
    pub(super) waiting: HashMap<LifecycleKey, (Moment, Waker)>,
    pub(super) driver: Option<Waker>,
    /// When the time of the event that is being delivered is over.
    pub(super) event_until: Option<Moment>,
    pub(super) phase: Phase,
    /// Set once the host is going down: what is not answered at once is refused.
    pub(super) nobody_waits: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Open,
    /// The partition went: what is tracked ends, then the driver does.
    Retired,
    /// The service goes down: nothing more is delivered.
    Closed,
}

pub(super) struct Tracked {
    pub(super) id: Arc<str>,
    /// Its last event was not told yet.
    pub(super) live: bool,
    sent: bool,
    pub(super) progress: RequestProgressUpdater,
    pub(super) classification: Classification,
}

#[derive(Debug)]
pub(super) enum Classification {
    None,
    Running,
    Done(Overrides),
}

/// What happened to a request.
#[derive(Debug)]
pub(super) enum Happening {
    Sent(WorkerWithDpRank),
    Responding(WorkerWithDpRank),
    Completed(WorkerWithDpRank, Option<usize>),
    Aborted(Option<WorkerWithDpRank>, Option<Arc<AbortCause>>),
}

impl Happening {
    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::Completed(..) | Self::Aborted(..))
    }
}

pub(super) struct QueuedEvent {
    pub(super) key: LifecycleKey,
    pub(super) what: Happening,
    /// It counts among the extra events.
    extra: bool,
}

impl ClassifierHost {
    /// A host without requests.
    pub fn new(parts: HostParts) -> Arc<Self> {
        let HostParts { classifier, limits, clock, counts } = parts;
        let stated = contained(|| classifier.classify_time_limit()).ok().flatten();
        Arc::new(Self {
            classify_time: stated.unwrap_or(limits.classify_time),
            plugin: async_lock::Mutex::new(classifier),
            limits,
            clock,
            counts,
            state: Mutex::default(),
        })
    }

    /// Tracks a request under its id until the lifecycle ends. With `exclusive`, an id that is live is refused; without,
    /// the caller knows that the one before is ending.
    ///
    /// # Errors
    /// 409 for a live id; 503 when too many are tracked, or the service goes down.
    pub fn register(self: &Arc<Self>, id: Arc<str>, exclusive: bool) -> Result<RequestLifecycle, SelectionError> {
        let key = LifecycleKey(NEXT_KEY.fetch_add(1, Ordering::Relaxed));
        let (_, progress) = RequestProgress::new(0);
        let mut state = self.state.lock();
        if state.phase == Phase::Closed {
            self.counts.count(ClassifyOutcome::Shutdown);
            return Err(shut_down());
        }
        if exclusive && state.live(&id).is_some() {
            return Err(SelectionError::Conflict(format!("request classifier is already tracking request ID {id:?}")));
        }
        if state.requests.len() >= self.limits.max_requests {
            self.counts.count(ClassifyOutcome::Full);
            return Err(SelectionError::Unavailable(format!(
                "request classifier tracks {} requests, as many as it may",
                state.requests.len()
            )));
        }
        let tracked = Tracked {
            id: Arc::clone(&id),
            live: true,
            sent: false,
            progress: progress.clone(),
            classification: Classification::None,
        };
        state.requests.insert(key, tracked);
        state.by_id.entry(id).or_default().push_back(key);
        drop(state);
        Ok(RequestLifecycle::new(Arc::clone(self), key, progress))
    }

    /// The live lifecycle of an id.
    pub fn find(&self, id: &str) -> Option<LifecycleKey> {
        self.state.lock().live(id)
    }

    /// Tracked requests, and events that wait.
    pub fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.requests.len(), state.events.len())
    }

    /// Tells an event; nothing after the last one of its lifecycle.
    pub(super) fn tell(&self, key: LifecycleKey, what: Happening) {
        let mut state = self.state.lock();
        let State { requests, events, extra_events, phase, .. } = &mut *state;
        let Some(tracked) = requests.get_mut(&key).filter(|tracked| tracked.live) else { return };
        let is_last = what.is_last();
        let has_room_of_its_own = is_last || matches!(what, Happening::Sent(_)) && !tracked.sent;
        tracked.sent |= matches!(what, Happening::Sent(_));
        tracked.live &= !is_last;
        if *phase == Phase::Closed {
            if is_last {
                let _next = state.forget(key);
            }
            drop(state);
            self.counts.count_events(EventOutcome::DroppedShutdown, 1);
            return;
        }
        if !has_room_of_its_own && *extra_events >= self.limits.max_events {
            drop(state);
            self.counts.count_events(EventOutcome::DroppedFull, 1);
            return;
        }
        let extra = !has_room_of_its_own;
        *extra_events += usize::from(extra);
        events.push_back(QueuedEvent { key, what, extra });
        let classifying = if is_last { state.waiting.remove(&key) } else { None };
        let driver = state.driver.take();
        drop(state);
        classifying.into_iter().for_each(|(_, waker)| waker.wake());
        driver.into_iter().for_each(Waker::wake);
    }

    /// Periodic work: wakes what is overdue, and lets the classifier do its own.
    pub fn tick(&self, now: Moment) {
        let mut state = self.state.lock();
        let mut overdue: Vec<Waker> =
            state.waiting.values().filter(|(until, _)| *until <= now).map(|(_, waker)| waker.clone()).collect();
        if state.event_until.is_some_and(|until| until <= now) {
            overdue.extend(state.driver.take());
        }
        let is_open = state.phase != Phase::Closed;
        drop(state);
        overdue.into_iter().for_each(Waker::wake);
        if is_open
            && let Some(mut plugin) = self.plugin.try_lock()
            && let Err(panic) = contained(|| plugin.on_tick())
        {
            let times = self.counts.count_tick_panic();
            if is_worth_a_line(times) {
                tracing::error!(%panic, times, "request classifier panicked in its periodic work");
            }
        }
    }

    /// The partition went: the driver ends when nothing is tracked any more.
    pub fn retire(&self) {
        self.turn_to(Phase::Retired);
    }

    /// Nobody waits for an answer from now on: who does is refused, and so is who would. Those that are answered at once
    /// go on, and events are delivered.
    pub fn refuse_waiting(&self) {
        let mut state = self.state.lock();
        state.nobody_waits = true;
        let wakers: Vec<Waker> = state.waiting.values().map(|(_, waker)| waker.clone()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The service goes down: whoever waits is refused, what runs is interrupted, what is left is not delivered.
    pub fn close(&self) {
        self.turn_to(Phase::Closed);
    }

    fn turn_to(&self, phase: Phase) {
        let mut state = self.state.lock();
        if state.phase != Phase::Closed {
            state.phase = phase;
        }
        let driver = state.driver.take();
        let (mut waiting, mut dropped) = (HashMap::new(), 0);
        if phase == Phase::Closed {
            waiting = std::mem::take(&mut state.waiting);
            dropped = state.events.len();
            while let Some(event) = state.next_event() {
                if event.what.is_last() {
                    let _next = state.forget(event.key);
                }
            }
        }
        drop(state);
        self.counts.count_events(EventOutcome::DroppedShutdown, dropped);
        driver.into_iter().for_each(Waker::wake);
        waiting.into_values().for_each(|(_, waker)| waker.wake());
    }
}

impl State {
    fn live(&self, id: &str) -> Option<LifecycleKey> {
        let newest = *self.by_id.get(id)?.back()?;
        self.requests.get(&newest).is_some_and(|tracked| tracked.live).then_some(newest)
    }

    /// Whether no earlier lifecycle of the same id is still to hear of its end.
    pub(super) fn is_first(&self, key: LifecycleKey) -> bool {
        let Some(tracked) = self.requests.get(&key) else { return false };
        self.by_id.get(&tracked.id).and_then(VecDeque::front) == Some(&key)
    }

    pub(super) fn next_event(&mut self) -> Option<QueuedEvent> {
        let event = self.events.pop_front()?;
        self.extra_events -= usize::from(event.extra);
        Some(event)
    }

    /// A lifecycle is over; whoever waits for it to be is handed out.
    pub(super) fn forget(&mut self, key: LifecycleKey) -> Option<Waker> {
        let tracked = self.requests.remove(&key)?;
        let of_id = self.by_id.get_mut(&tracked.id)?;
        of_id.retain(|&other| other != key);
        let Some(next) = of_id.front().copied() else {
            self.by_id.remove(&tracked.id);
            return None;
        };
        self.waiting.get(&next).map(|(_, waker)| waker.clone())
    }
}

/// What is answered while the service goes down.
pub(super) fn shut_down() -> SelectionError {
    SelectionError::Unavailable("endpoint subscriber shutdown".to_owned())
}
