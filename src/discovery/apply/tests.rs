//! The driver: what is pending, what is retried, and when.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::*;
use crate::{
    discovery::SourceState,
    selection::{
        catalog::DesiredWorker,
        worker::{WorkerFields, WorkerRequest, WorkerState},
    },
};

/// A target that answers as it is told and writes down what it was asked.
#[derive(Clone, Default)]
struct Fake {
    log: Arc<Mutex<Vec<(Duration, String)>>>,
    passes: Arc<Mutex<VecDeque<Result<(), PassError>>>>,
    checks: Arc<Mutex<VecDeque<Result<Check, PassError>>>>,
    /// How long each pass takes.
    slow: Duration,
    start: Option<Instant>,
}

impl Fake {
    fn write(&self, what: String) {
        self.log.lock().push((self.start.map_or(Duration::ZERO, |s| s.elapsed()), what));
    }

    /// What was asked, with the second it was asked in.
    fn log(&self) -> Vec<String> {
        self.log.lock().iter().map(|(at, what)| format!("{} {what}", at.as_secs())).collect()
    }
}

impl Target for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    async fn apply(&mut self, snapshot: &Snapshot) -> Result<PassReport, PassError> {
        self.write(format!("pass {}", snapshot.version.generation));
        tokio::time::sleep(self.slow).await;
        self.passes.lock().pop_front().unwrap_or(Ok(())).map(|()| PassReport { upserted: 3, ..PassReport::default() })
    }

    async fn check(&mut self, _: &Snapshot) -> Result<Check, PassError> {
        self.write("check".to_owned());
        self.checks.lock().pop_front().unwrap_or(Ok(Check::Same))
    }
}

fn snapshot(generation: u64) -> SourceState {
    let worker = DesiredWorker {
        state: WorkerState::Active,
        request: WorkerRequest {
            worker_id: generation,
            model_name: String::new(),
            routing_group: String::new(),
            fields: WorkerFields::default(),
        },
    };
    let snapshot = Snapshot::new(SnapshotVersion { epoch: 1, generation }, vec![worker]).unwrap();
    SourceState { snapshot: Some(snapshot), error: None }
}

fn server_error() -> PassError {
    PassError::Call(ClientError::Status { call: "PUT".to_owned(), status: 503, text: String::new(), current: None })
}

struct Running {
    fake: Fake,
    source: watch::Sender<SourceState>,
    status: watch::Receiver<TargetStatus>,
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

fn start(mut fake: Fake, state: SourceState) -> Running {
    fake.start = Some(Instant::now());
    let (source, followed) = watch::channel(state);
    let (publish, status) = watch::channel(TargetStatus::default());
    let stop = CancellationToken::new();
    let options = ApplyOptions { retry: Duration::from_secs(5), check: Duration::from_secs(1) };
    let task = tokio::spawn(run(fake.clone(), followed, options, publish, stop.clone()));
    Running { fake, source, status, task, stop }
}

impl Running {
    async fn after(&self, seconds: u64) {
        // Between two whole seconds, so that what is due on one has happened.
        tokio::time::sleep_until(self.fake.start.unwrap() + Duration::from_millis(seconds * 1000 + 500)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_pass_is_retried_once_every_five_seconds() {
    let fake = Fake::default();
    fake.passes.lock().extend(std::iter::repeat_with(|| Err(server_error())).take(3));
    let running = start(fake, snapshot(1));
    running.after(15).await;
    let passes: Vec<_> = running.fake.log().into_iter().filter(|l| l.contains("pass")).collect();
    assert_eq!(passes, ["0 pass 1", "5 pass 1", "10 pass 1", "15 pass 1"]);
    let status = running.status.borrow().clone();
    assert_eq!((status.passes, status.failures, status.error), (1, 3, None));
}

#[tokio::test(start_paused = true)]
async fn a_newer_snapshot_ends_the_wait_and_is_the_only_one_pending() {
    let fake = Fake::default();
    fake.passes.lock().push_back(Err(server_error()));
    let running = start(fake, snapshot(1));
    running.after(1).await;
    for generation in 2..=9 {
        running.source.send_replace(snapshot(generation));
    }
    running.after(8).await;
    let passes: Vec<_> = running.fake.log().into_iter().filter(|l| l.contains("pass")).collect();
    assert_eq!(passes, ["0 pass 1", "1 pass 9"]);
}

#[tokio::test(start_paused = true)]
async fn snapshots_that_arrive_during_a_pass_are_skipped_but_for_the_newest() {
    let running = start(Fake { slow: Duration::from_secs(3), ..Fake::default() }, snapshot(1));
    running.after(0).await;
    for generation in 2..=5 {
        running.source.send_replace(snapshot(generation));
    }
    running.after(7).await;
    let passes: Vec<_> = running.fake.log().into_iter().filter(|l| l.contains("pass")).collect();
    assert_eq!(passes, ["0 pass 1", "3 pass 5"]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_lost_its_catalog_is_filled_at_once() {
    let fake = Fake::default();
    fake.checks.lock().extend([Ok(Check::Same), Ok(Check::Differs("restarted")), Ok(Check::Same)]);
    let running = start(fake, snapshot(1));
    running.after(3).await;
    assert_eq!(running.fake.log(), ["0 pass 1", "1 check", "2 check", "2 pass 1", "3 check"]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_was_away_is_filled_when_it_is_back() {
    let absent = || PassError::Call(ClientError::unavailable("PUT"));
    let fake = Fake::default();
    fake.passes.lock().push_back(Err(absent()));
    fake.checks.lock().extend([Err(absent()), Ok(Check::Same)]);
    let running = start(fake, snapshot(1));
    running.after(2).await;
    assert_eq!(running.fake.log(), ["0 pass 1", "1 check", "2 check", "2 pass 1"]);
    assert!(running.status.borrow().applied.is_some());
}

#[tokio::test(start_paused = true)]
async fn snapshots_that_arrive_while_a_target_is_away_do_not_pile_up() {
    let absent = || PassError::Call(ClientError::unavailable("PUT"));
    let fake = Fake::default();
    fake.passes.lock().extend(std::iter::repeat_with(|| Err(absent())).take(100));
    fake.checks.lock().extend(std::iter::repeat_with(|| Err(absent())).take(1000));
    let running = start(fake, snapshot(1));
    for second in 0..60 {
        running.after(second).await;
        running.source.send_replace(snapshot(second + 2));
    }
    let log = running.fake.log();
    let passes = log.iter().filter(|l| l.contains("pass")).count();
    let looks = log.iter().filter(|l| l.contains("check")).count();
    assert!((12..=13).contains(&passes), "{log:?}");
    assert!((40..=60).contains(&looks), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_before_the_first_snapshot() {
    let running = start(Fake::default(), SourceState::default());
    running.after(60).await;
    assert!(running.fake.log().is_empty());
    running.source.send_replace(snapshot(1));
    running.after(61).await;
    running.stop.cancel();
    running.task.await.unwrap();
    assert_eq!(running.fake.log()[0], "60 pass 1");
}

#[tokio::test(start_paused = true)]
async fn a_source_that_ends_leaves_its_last_snapshot_applied() {
    let fake = Fake::default();
    fake.passes.lock().push_back(Err(server_error()));
    let running = start(fake, snapshot(1));
    drop(running.source);
    running.task.await.unwrap();
    assert_eq!(running.fake.log(), ["0 pass 1", "5 pass 1"]);
}

#[tokio::test(start_paused = true)]
async fn slow_targets_are_not_looked_at_all_the_time() {
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<u32>>);
    impl Target for Slow {
        fn name(&self) -> &str {
            "slow"
        }
        async fn apply(&mut self, _: &Snapshot) -> Result<PassReport, PassError> {
            Ok(PassReport::default())
        }
        async fn check(&mut self, _: &Snapshot) -> Result<Check, PassError> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            *self.0.lock() += 1;
            Ok(Check::Same)
        }
    }
    let slow = Slow::default();
    let (_source, followed) = watch::channel(snapshot(1));
    let publish = watch::Sender::new(TargetStatus::default());
    tokio::spawn(run(slow.clone(), followed, ApplyOptions::default(), publish, CancellationToken::new()));
    tokio::time::sleep(Duration::from_secs(210)).await;
    let looks = *slow.0.lock();
    assert!((9..=11).contains(&looks), "{looks}");
}

#[tokio::test(start_paused = true)]
async fn the_status_is_that_of_the_last_pass_and_the_last_look() {
    let absent = || PassError::Call(ClientError::unavailable("PUT"));
    let fake = Fake::default();
    fake.passes.lock().push_back(Err(server_error()));
    fake.checks.lock().extend([Ok(Check::Same), Err(absent()), Ok(Check::Same)]);
    let running = start(fake, snapshot(1));
    let at = |status: &TargetStatus| status.last_success.map(|at| (at - running.fake.start.unwrap()).as_secs());
    running.after(0).await;
    let failed = running.status.borrow().clone();
    assert_eq!((failed.error.clone(), failed.away.clone(), at(&failed)), (Some(server_error()), None, None));
    running.after(5).await;
    let applied = running.status.borrow().clone();
    assert_eq!((applied.report.upserted, applied.error.clone(), at(&applied)), (3, None, Some(5)));
    running.after(6).await;
    assert_eq!(at(&running.status.borrow()), Some(6), "it was seen to have it");
    running.after(7).await;
    let away = running.status.borrow().clone();
    assert_eq!((away.away.clone(), away.error.clone(), at(&away)), (Some(absent()), None, Some(6)));
    running.after(8).await;
    let back = running.status.borrow().clone();
    assert_eq!((back.away.clone(), at(&back)), (None, Some(8)));
}
