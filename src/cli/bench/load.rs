//! Closed and open loops.
//!
//! In an open loop each unit of load has its time, drawn beforehand. A unit that no connection could take in time counts
//! from when it was due, so that a server that stalls is charged for everything that piled up meanwhile. A connection that
//! was waiting counts from when it woke: the inexactness of timers is not the server's.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::Method;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    client::{Connection, Server},
    flags::{Cycle, LoadArgs},
    prompt::Prompts,
    record::{Operation, Recorder},
};

/// What all connections of a run share.
pub struct Run {
    prompts: Prompts,
    cycle: Cycle,
    hold: usize,
    /// Distinguishes the ids of this run from those of others.
    tag: String,
    next: AtomicU64,
    /// Set when measuring begins.
    measuring: AtomicBool,
    stop: AtomicBool,
    pace: Option<Pace>,
    /// Units done, for the progress bar.
    pub done: AtomicU64,
}

/// Due times of an open loop.
struct Pace {
    due: Mutex<VecDeque<Instant>>,
    ready: Semaphore,
}

impl Run {
    /// A run that is not started.
    pub fn new(args: &LoadArgs, prompts: Prompts) -> Arc<Self> {
        Arc::new(Self {
            prompts,
            cycle: args.cycle,
            hold: args.hold as usize,
            tag: format!("bench-{:x}", fastrand::u64(..)),
            next: AtomicU64::new(0),
            measuring: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            pace: args.rate.map(|_| Pace { due: Mutex::default(), ready: Semaphore::new(0) }),
            done: AtomicU64::new(0),
        })
    }

    /// Starts `args.connections` connections, and the clock of an open loop.
    pub fn start(self: &Arc<Self>, args: &LoadArgs, server: &Server) -> JoinSet<Recorder> {
        let mut tasks = JoinSet::new();
        for _ in 0..args.connections {
            tasks.spawn(Arc::clone(self).drive(Connection::new(server.clone())));
        }
        if let Some(rate) = args.rate {
            let (run, seed) = (Arc::clone(self), args.seed);
            // A thread, because the runtime's timers are no finer than a millisecond.
            std::thread::spawn(move || run.keep_time(rate, seed));
        }
        tasks
    }

    /// From here on requests are recorded.
    pub fn begin_measuring(&self) {
        self.measuring.store(true, Ordering::Release);
    }

    /// Lets each connection finish what it is at, and end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        if let Some(pace) = &self.pace {
            pace.ready.close();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Releases units of load at their times: exponential gaps, as many independent users make them.
    fn keep_time(&self, rate: f64, seed: u64) {
        let Some(pace) = &self.pace else { return };
        let mut random = fastrand::Rng::with_seed(seed);
        let mut due = Instant::now();
        while !self.is_stopped() {
            due += Duration::from_secs_f64(-(1.0 - random.f64()).ln() / rate);
            while let Some(wait) = due.checked_duration_since(Instant::now()).filter(|w| !w.is_zero()) {
                std::thread::park_timeout(wait.min(Duration::from_millis(100)));
                if self.is_stopped() {
                    return;
                }
            }
            pace.due.lock().push_back(due);
            pace.ready.add_permits(1);
        }
    }

    /// When the next unit counts from; nothing when the run is over.
    async fn begin(&self) -> Option<Instant> {
        if self.is_stopped() {
            return None;
        }
        let Some(pace) = &self.pace else { return Some(Instant::now()) };
        let late = pace.ready.try_acquire().map(tokio::sync::SemaphorePermit::forget).is_ok();
        if !late {
            pace.ready.acquire().await.ok()?.forget();
        }
        let due = pace.due.lock().pop_front()?;
        Some(if late { due } else { Instant::now() })
    }

    async fn drive(self: Arc<Self>, mut connection: Connection) -> Recorder {
        let mut recorder = Recorder::default();
        let mut held = VecDeque::new();
        while let Some(began) = self.begin().await {
            // A unit is measured if it began in the measured time.
            let mut unmeasured = Recorder::default();
            let measured = self.measuring.load(Ordering::Acquire);
            let into = if measured { &mut recorder } else { &mut unmeasured };
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            match self.cycle {
                Cycle::Select => self.select(&mut connection, number, began, into).await,
                Cycle::Reserve => self.reserve(&mut connection, number, began, into, &mut held).await,
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        for id in held {
            // Whether it is still there does not matter any more.
            if connection.call(Method::DELETE, &format!("/reservations/{id}"), Vec::new()).await.is_err() {
                break;
            }
        }
        recorder
    }

    async fn select(&self, connection: &mut Connection, number: u64, began: Instant, into: &mut Recorder) {
        let body = self.prompts.render(number, None);
        let answer = connection.call(Method::POST, "/select", body).await;
        into.answered(Operation::Select, &answer, began.elapsed());
        if let Ok(answer) = answer
            && answer.is_success()
        {
            choice(&answer, self.prompts.tokens() as u64, into);
            into.cycle();
        }
    }

    async fn reserve(
        &self,
        connection: &mut Connection,
        number: u64,
        began: Instant,
        into: &mut Recorder,
        held: &mut VecDeque<String>,
    ) {
        let id = format!("{}-{number}", self.tag);
        let body = self.prompts.render(number, Some(&id));
        let answer = connection.call(Method::POST, "/select_and_reserve", body).await;
        into.answered(Operation::Reserve, &answer, began.elapsed());
        let Ok(answer) = answer else { return };
        if !answer.is_success() {
            return;
        }
        choice(&answer, self.prompts.tokens() as u64, into);
        let sent = Instant::now();
        let path = format!("/reservations/{id}/prefill_complete");
        let answer = connection.call(Method::POST, &path, Vec::new()).await;
        into.answered(Operation::PrefillComplete, &answer, sent.elapsed());
        held.push_back(id);
        if held.len() > self.hold
            && let Some(oldest) = held.pop_front()
        {
            let sent = Instant::now();
            let answer = connection.call(Method::DELETE, &format!("/reservations/{oldest}"), Vec::new()).await;
            into.answered(Operation::Free, &answer, sent.elapsed());
        }
        into.cycle();
    }
}

/// Records which worker an answer names.
pub fn choice(answer: &super::client::Answer, tokens: u64, into: &mut Recorder) -> Option<u64> {
    let worker = answer.number("worker_id")?;
    let uncached = answer.number("effective_prefill_tokens")?;
    into.chosen(worker, tokens, uncached);
    Some(uncached)
}
