//! A client that books through a Service at a steady rate, and counts everything that is not as it should be.
//!
//! It behaves as a careful gateway does. It keeps spare connections open and renews them now and then. It repeats a request once,
//! and only where no byte of an answer came, on a connection that is open already if there is one. Each call goes to
//! whatever replica its connection leads to, so the replica that ends a booking is seldom the one that made it; a 404 of a
//! lifecycle call within 10 s of its booking counts as done, because the replica may hear of the booking later and then
//! ends it by itself. Anything else that is not 2xx is a failure.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::Method;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, sleep},
};

use super::{
    cluster::Cluster,
    http::{Answer, Broken, Connection, call},
    wait::wait_until,
};

/// How long after its booking a lifecycle call may be answered 404.
const EARLY: Duration = Duration::from_secs(10);
/// Requests on a connection before it is renewed, so that replicas that came later get their share.
const USES: u32 = 40;
/// Connections that are open without a request. While a replica has crashed and kube-proxy does not know it yet, a new
/// connection may be refused; one that is open leads to a replica that lives.
const SPARE: usize = 12;
/// Before a request is repeated. Other connections to the same replica are known to be broken by then.
const PAUSE: Duration = Duration::from_millis(50);
/// Failures that are kept with their bodies; the rest is counted.
const KEPT: usize = 50;
/// Longest time for the bookings under way when the load ends.
const LAST: Duration = Duration::from_secs(60);

/// What is booked.
#[derive(Clone, Debug)]
pub struct BookingLoad {
    /// Where, such as a Service's cluster address.
    pub target: SocketAddr,
    pub model: String,
    /// Bookings a second; each is three requests.
    pub rate: f64,
    /// From a booking to its end; `prefill_complete` comes at half of it.
    pub hold: Duration,
    /// Tokens of a prompt. Three quarters are shared with the other prompts of its family, of which there are 32.
    pub prompt_tokens: u32,
}

impl BookingLoad {
    /// 60 bookings a second for `model` through port 8092 of `host`, each of 128 tokens held for 400 ms.
    pub fn new(host: IpAddr, model: &str) -> Self {
        Self {
            target: (host, 8092).into(),
            model: model.to_owned(),
            rate: 60.0,
            hold: Duration::from_millis(400),
            prompt_tokens: 128,
        }
    }

    /// Waits until somebody behind the address is ready, and starts to book. A Service whose pods have only just become
    /// ready refuses connections until kube-proxy knows of them.
    #[track_caller]
    pub fn start(self, cluster: &'static Cluster) -> Booker {
        let (host, port) = (self.target.ip(), self.target.port());
        wait_until(&format!("an answer at {}", self.target), || match call(host, port, "GET", "/readyz", None) {
            Ok(answer) if answer.is_success() => Ok(()),
            Ok(answer) => Err(answer.text()),
            Err(error) => Err(error),
        });
        let run = Arc::new(Run {
            load: self,
            tag: format!("trial-{:x}", fastrand::u64(..)),
            started: Instant::now(),
            idle: Mutex::default(),
            opening: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            booked: AtomicU64::new(0),
            report: Mutex::default(),
        });
        let task = cluster.runtime().spawn(Arc::clone(&run).drive());
        Booker { cluster, run, task: Some(task) }
    }
}

/// A load under way. Dropping it stops it; [`Booker::finish`] tells how it went.
pub struct Booker {
    cluster: &'static Cluster,
    run: Arc<Run>,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Booker {
    /// Bookings made so far.
    pub fn booked(&self) -> u64 {
        self.run.booked.load(Ordering::Acquire)
    }

    /// Waits until `more` bookings were made from now on.
    #[track_caller]
    pub fn wait_for_bookings(&self, more: u64) {
        let wanted = self.booked() + more;
        wait_until(&format!("{more} more bookings"), || {
            let booked = self.booked();
            if booked >= wanted { Ok(()) } else { Err(format!("{booked} of {wanted}\n{}", self.so_far())) }
        });
    }

    /// What was counted so far.
    pub fn so_far(&self) -> Report {
        self.run.report.lock().clone()
    }

    /// Makes no more bookings, waits until those under way are ended, and reports.
    #[track_caller]
    pub fn finish(mut self) -> Report {
        self.run.stop.store(true, Ordering::Release);
        if let Some(task) = self.task.take() {
            self.cluster.block_on(task).unwrap_or_else(|e| panic!("the load ended early: {e}\n{}", self.so_far()));
        }
        self.so_far()
    }
}

impl Drop for Booker {
    fn drop(&mut self) {
        self.run.stop.store(true, Ordering::Release);
    }
}

/// A request that did not go as it should.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Since the load began.
    pub at: Duration,
    /// `reserve`, `prefill_complete` or `free`.
    pub verb: &'static str,
    pub selection_id: String,
    /// Absent when there was no answer.
    pub status: Option<u16>,
    /// Body of the answer, or why there was none.
    pub text: String,
}

/// Counts of a load.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Answers by verb and status, the tolerated and the failed among them.
    pub answers: BTreeMap<(&'static str, u16), u64>,
    /// Requests sent again because no byte of an answer had come, by verb.
    pub repeated: BTreeMap<&'static str, u64>,
    /// Lifecycle calls whose early 404 counts as done.
    pub early: u64,
    /// Bookings by worker.
    pub workers: BTreeMap<u64, u64>,
    /// Every failure, the first 50 with what was said.
    pub failed: u64,
    pub failures: Vec<Failure>,
}

impl Report {
    /// Bookings that were made.
    pub fn booked(&self) -> u64 {
        self.workers.values().sum()
    }

    /// Fails unless at least `bookings` were made and nothing went wrong; prints the counts.
    #[track_caller]
    pub fn assert_clean(&self, bookings: u64) {
        println!("{self}");
        assert!(self.failed == 0, "the client saw failures\n{self}");
        assert!(self.booked() >= bookings, "fewer than {bookings} bookings\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bookings on {} workers; answers:", self.booked(), self.workers.len())?;
        for ((verb, status), count) in &self.answers {
            write!(f, " {verb} {status} x{count}")?;
        }
        write!(f, "; repeated: {:?}; early 404: {}; failed: {}", self.repeated, self.early, self.failed)?;
        for failure in &self.failures {
            let Failure { at, verb, selection_id, status, text } = failure;
            write!(f, "\n  at {:.3} s {verb} {selection_id}: {status:?} {text}", at.as_secs_f64())?;
        }
        Ok(())
    }
}

struct Run {
    load: BookingLoad,
    tag: String,
    started: Instant,
    /// Open connections; the one idle for longest is taken first.
    idle: Mutex<VecDeque<Connection>>,
    /// Spare connections that are being made.
    opening: AtomicUsize,
    stop: AtomicBool,
    booked: AtomicU64,
    report: Mutex<Report>,
}

impl Run {
    async fn drive(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / self.load.rate));
        // Users do not wait for each other: what is late is sent all the same.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut tasks = JoinSet::new();
        let mut number = 0_u64;
        while !self.stop.load(Ordering::Acquire) {
            ticks.tick().await;
            if self.idle.lock().len() + self.opening.load(Ordering::Acquire) < SPARE {
                self.opening.fetch_add(1, Ordering::AcqRel);
                tasks.spawn(Arc::clone(&self).add_spare());
            }
            number += 1;
            tasks.spawn(Arc::clone(&self).cycle(number));
            while tasks.try_join_next().is_some() {}
        }
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST, all).await.is_err() {
            self.fail("free", "several", None, "bookings were still under way a minute after the load ended".into());
        }
    }

    async fn cycle(self: Arc<Self>, number: u64) {
        let id = format!("{}-{number}", self.tag);
        let body = json!({"model_name": self.load.model, "selection_id": id, "token_ids": self.prompt(number)});
        let Some(answer) = self.request("reserve", &id, Method::POST, "/select_and_reserve", Some(&body)).await else {
            return;
        };
        if !answer.is_success() {
            return self.fail("reserve", &id, Some(answer.status), answer.text());
        }
        let booked = Instant::now();
        let worker = answer.json()["worker_id"].as_u64().unwrap_or_default();
        *self.report.lock().workers.entry(worker).or_default() += 1;
        self.booked.fetch_add(1, Ordering::AcqRel);
        let path = format!("/reservations/{id}");
        sleep(self.load.hold / 2).await;
        self.lifecycle("prefill_complete", &id, Method::POST, &format!("{path}/prefill_complete"), booked).await;
        sleep(self.load.hold / 2).await;
        self.lifecycle("free", &id, Method::DELETE, &path, booked).await;
    }

    fn prompt(&self, number: u64) -> Vec<u32> {
        let shared = self.load.prompt_tokens / 4 * 3;
        let family = (number % 32) as u32 * 100_000;
        let own = fastrand::u32(4_000_000..u32::MAX - self.load.prompt_tokens);
        (0..shared).map(|t| family + t).chain((shared..self.load.prompt_tokens).map(|t| own + t)).collect()
    }

    async fn lifecycle(&self, verb: &'static str, id: &str, method: Method, path: &str, booked: Instant) {
        let Some(answer) = self.request(verb, id, method, path, None).await else { return };
        if answer.status == 404 && booked.elapsed() < EARLY {
            self.report.lock().early += 1;
        } else if !answer.is_success() {
            self.fail(verb, id, Some(answer.status), answer.text());
        }
    }

    /// An answer; none after the failure was counted.
    async fn request(
        &self,
        verb: &'static str,
        id: &str,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Option<Answer> {
        let mut outcome = self.attempt(method.clone(), path, body, USES).await;
        if let Err(Broken { had_begun: false, .. }) = outcome {
            *self.report.lock().repeated.entry(verb).or_default() += 1;
            sleep(PAUSE).await;
            // A connection that still works is better than a new one, whatever its age.
            outcome = self.attempt(method, path, body, u32::MAX).await;
        }
        match outcome {
            Ok(answer) => {
                *self.report.lock().answers.entry((verb, answer.status)).or_default() += 1;
                Some(answer)
            }
            Err(Broken { had_begun, why, .. }) => {
                let part = if had_begun { "; a part of an answer had come" } else { "" };
                self.fail(verb, id, None, format!("{why}{part}"));
                None
            }
        }
    }

    async fn attempt(
        &self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
        uses: u32,
    ) -> Result<Answer, Broken> {
        loop {
            let idle = self.take();
            let is_new = idle.is_none();
            let mut connection = match idle {
                Some(idle) => idle,
                None => Connection::open(self.load.target).await?,
            };
            if !is_new && (connection.uses >= uses || !connection.is_usable().await) {
                continue;
            }
            match connection.exchange(method.clone(), path, body).await {
                // The connection was closed before the request was put on it.
                Err(Broken { was_sent: false, .. }) if !is_new => {}
                Err(broken) => return Err(broken),
                Ok(answer) => {
                    self.idle.lock().push_back(connection);
                    return Ok(answer);
                }
            }
        }
    }

    async fn add_spare(self: Arc<Self>) {
        // Nobody waits for it: the next tick tries again.
        if let Ok(connection) = Connection::open(self.load.target).await {
            self.idle.lock().push_back(connection);
        }
        self.opening.fetch_sub(1, Ordering::AcqRel);
    }

    fn take(&self) -> Option<Connection> {
        self.idle.lock().pop_front()
    }

    fn fail(&self, verb: &'static str, id: &str, status: Option<u16>, text: String) {
        let mut report = self.report.lock();
        report.failed += 1;
        if report.failures.len() < KEPT {
            let at = self.started.elapsed();
            report.failures.push(Failure { at, verb, selection_id: id.to_owned(), status, text });
        }
    }
}
