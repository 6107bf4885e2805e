//! Applying snapshots to targets.
//!
//! One task a target, and in it one pending slot: the newest snapshot of the source. A pass that fails is tried again
//! after [`ApplyOptions::retry`], unless a newer snapshot arrives first; while it waits nothing else is pending, however
//! long the target is away. A target that lost what was applied (it was restarted) is found by a cheap look every
//! [`ApplyOptions::check`] and filled again at once. Every call that leaves the process has a timeout.

mod client;
mod in_process;
mod reference;
mod remote;
mod state_file;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub use client::{ClientError, RemoteClient};
pub use in_process::InProcessTarget;
pub use remote::{RemoteOptions, RemoteTarget};
pub use state_file::{Remembered, StateFile, WiredPeers, WorkerIds};

use super::{Snapshot, SourceStatus};
use crate::selection::{
    catalog::{SnapshotVersion, WorkerOutcome},
    worker::Lifecycle,
};

/// Where snapshots go.
pub trait Target: Send + 'static {
    /// Names it in logs and metrics.
    fn name(&self) -> &str;

    /// Makes the target's workers be those of `snapshot`. One record that fails does not stop the others.
    ///
    /// # Errors
    /// The first failure; the pass is to be repeated.
    fn apply(&mut self, snapshot: &Snapshot) -> impl Future<Output = Result<PassReport, PassError>> + Send;

    /// Looks, cheaply, whether the target still has what was applied, and does what needs no pass.
    ///
    /// # Errors
    /// The target cannot be asked.
    fn check(&mut self, snapshot: &Snapshot) -> impl Future<Output = Result<Check, PassError>> + Send;
}

/// What a look at a target found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It has what was applied.
    Same,
    /// It has something else, for this reason: it needs a pass.
    Differs(&'static str),
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Records sent.
    pub upserted: usize,
    /// Records removed.
    pub deleted: usize,
    /// Workers that do not take bookings, with their reasons, sorted by id.
    pub not_schedulable: Vec<(u64, Vec<String>)>,
}

impl PassReport {
    /// Of what became of the workers that a target knows.
    fn new(upserted: usize, deleted: usize, outcomes: Vec<WorkerOutcome>) -> Self {
        let idle = |o: &WorkerOutcome| !matches!(o.lifecycle, Some(Lifecycle::Schedulable | Lifecycle::Draining));
        let not_schedulable = outcomes.into_iter().filter(idle).map(|o| (o.worker_id, o.reasons)).collect();
        Self { upserted, deleted, not_schedulable }
    }
}

/// What a pass would change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// Ids that are not there yet.
    pub added: Vec<u64>,
    /// Ids whose record differs.
    pub changed: Vec<u64>,
    /// Ids that would go.
    pub removed: Vec<u64>,
    /// Ids that somebody else owns, who that is, and that therefore stay as they are.
    pub foreign: Vec<(u64, String)>,
}

/// Why a pass or a look failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// The target could not be reached, answered too late, or answered with an error.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// Another source applies the same owner's workers with a later version.
    #[error("another source is applying this owner with version ({}, {})", .0.epoch, .0.generation)]
    Superseded(SnapshotVersion),
    /// The target refuses the snapshot as a whole.
    #[error("the target refuses the snapshot: {0}")]
    Refused(String),
    /// What was applied cannot be remembered.
    #[error("cannot write the state file: {0}")]
    StateFile(String),
}

impl PassError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Call(error) => error.reason(),
            Self::Superseded(_) => "superseded",
            Self::Refused(_) => "refused",
            Self::StateFile(_) => "state_file",
        }
    }

    /// Whether the target was not there at all, so that its return is news.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Call(ClientError::Transport { .. } | ClientError::Timeout { .. }))
    }
}

/// How a target is driven.
#[derive(Clone, Copy, Debug)]
pub struct ApplyOptions {
    /// Pause after a pass that failed.
    pub retry: Duration,
    /// Time between two looks at a target that has everything.
    pub check: Duration,
}

impl Default for ApplyOptions {
    fn default() -> Self {
        Self { retry: Duration::from_secs(5), check: Duration::from_secs(1) }
    }
}

/// Longest time between two looks at a slow target.
const MAX_CHECK_PAUSE: Duration = Duration::from_secs(60);

/// How a target stands.
#[derive(Clone, Debug, Default)]
pub struct TargetStatus {
    /// The last snapshot applied in full.
    pub applied: Option<(SnapshotVersion, Arc<str>)>,
    /// What the last pass that succeeded did.
    pub report: PassReport,
    /// Why the last pass failed; none after one that succeeded.
    pub error: Option<PassError>,
    /// Why the last look failed; none after one that succeeded.
    pub away: Option<PassError>,
    /// When the target was last known to have what was applied.
    pub last_success: Option<Instant>,
    /// Passes that succeeded.
    pub passes: u64,
    /// Passes that failed.
    pub failures: u64,
}

/// Drives `target` until `stop`, or until the source is gone and its last snapshot is applied.
pub async fn run<T: Target>(
    mut target: T,
    mut source: SourceStatus,
    options: ApplyOptions,
    status: watch::Sender<TargetStatus>,
    stop: CancellationToken,
) {
    let mut driver = Driver { options, applied: None, failed: None, next_check: Instant::now(), source_lives: true };
    loop {
        let snapshot = source.borrow_and_update().snapshot.clone();
        let work = async {
            let Some(snapshot) = &snapshot else { return };
            let step = driver.step(snapshot, Instant::now());
            match step {
                Step::Nothing => {}
                Step::Pass => driver.pass(&mut target, snapshot, &status).await,
                Step::Check => driver.check(&mut target, snapshot, &status).await,
            }
        };
        tokio::select! {
            () = work => {}
            // A pass that is cut short is safe: every one starts from what the target says it has.
            () = stop.cancelled() => return,
        }
        if !driver.source_lives && driver.failed.is_none() {
            return;
        }
        tokio::select! {
            changed = source.changed(), if driver.source_lives => driver.source_lives = changed.is_ok(),
            () = driver.sleep(snapshot.is_some()) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// What a driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Pass,
    Check,
}

/// Which snapshot failed, and when it may be tried again.
#[derive(Debug)]
struct Failed {
    version: SnapshotVersion,
    retry_at: Instant,
    /// The target was not there: its return ends the wait.
    absent: bool,
}

struct Driver {
    options: ApplyOptions,
    applied: Option<(SnapshotVersion, Arc<str>)>,
    failed: Option<Failed>,
    next_check: Instant,
    source_lives: bool,
}

impl Driver {
    fn step(&self, snapshot: &Snapshot, now: Instant) -> Step {
        if let Some(failed) = &self.failed {
            // A newer snapshot may be a better one, but it does not bring a target back: looks find that out.
            if failed.retry_at <= now || (failed.version < snapshot.version && !failed.absent) {
                return Step::Pass;
            }
            return if failed.absent && self.next_check <= now { Step::Check } else { Step::Nothing };
        }
        match &self.applied {
            Some((version, _)) if *version == snapshot.version => {
                if self.next_check <= now {
                    Step::Check
                } else {
                    Step::Nothing
                }
            }
            _ => Step::Pass,
        }
    }

    async fn pass<T: Target>(&mut self, target: &mut T, snapshot: &Snapshot, status: &watch::Sender<TargetStatus>) {
        let started = Instant::now();
        let outcome = target.apply(snapshot).await;
        self.next_check = Instant::now() + self.options.check;
        match outcome {
            Ok(report) => {
                tracing::info!(
                    selector = target.name(),
                    workers = snapshot.workers().len(),
                    upserted = report.upserted,
                    deleted = report.deleted,
                    not_schedulable = report.not_schedulable.len(),
                    generation = snapshot.version.generation,
                    elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                    "catalog applied"
                );
                log_not_schedulable(target.name(), &report);
                self.failed = None;
                self.applied = Some((snapshot.version, snapshot.digest().into()));
                status.send_modify(|s| {
                    s.applied.clone_from(&self.applied);
                    s.report = report;
                    s.error = None;
                    s.away = None;
                    s.last_success = Some(Instant::now());
                    s.passes += 1;
                });
            }
            Err(error) => {
                tracing::warn!(selector = target.name(), %error, reason = error.reason(), "catalog not applied");
                self.failed = Some(Failed {
                    version: snapshot.version,
                    retry_at: Instant::now() + self.options.retry,
                    absent: error.is_absence(),
                });
                status.send_modify(|s| {
                    s.error = Some(error);
                    s.failures += 1;
                });
            }
        }
    }

    async fn check<T: Target>(&mut self, target: &mut T, snapshot: &Snapshot, status: &watch::Sender<TargetStatus>) {
        let started = Instant::now();
        let found = target.check(snapshot).await;
        // A look that takes long (many workers, a slow target) must not become most of what the target does.
        let pause = if found.is_ok() { (started.elapsed() * 20).min(MAX_CHECK_PAUSE) } else { Duration::ZERO };
        self.next_check = Instant::now() + self.options.check.max(pause);
        match (found, self.failed.is_some()) {
            (Ok(_), true) => {
                tracing::info!(selector = target.name(), "target is back");
                self.pass(target, snapshot, status).await;
            }
            (Ok(Check::Differs(why)), false) => {
                tracing::info!(selector = target.name(), why, "target needs the catalog again");
                self.pass(target, snapshot, status).await;
            }
            (Ok(Check::Same), false) => status.send_modify(|s| {
                s.away = None;
                s.last_success = Some(Instant::now());
            }),
            (Err(error), false) => {
                // Nothing is pending: the next look tells whether there is something to do.
                tracing::debug!(selector = target.name(), %error, "target does not answer");
                status.send_modify(|s| s.away = Some(error));
            }
            (Err(_), true) => {}
        }
    }

    async fn sleep(&self, has_snapshot: bool) {
        if !has_snapshot {
            return std::future::pending().await;
        }
        let until = match &self.failed {
            Some(failed) if failed.absent => failed.retry_at.min(self.next_check),
            Some(failed) => failed.retry_at,
            None => self.next_check,
        };
        sleep_until(until).await;
    }
}

/// Says which workers take no bookings, a few by name.
fn log_not_schedulable(target: &str, report: &PassReport) {
    const NAMED: usize = 10;
    for (worker_id, reasons) in report.not_schedulable.iter().take(NAMED) {
        tracing::warn!(selector = target, worker_id, reasons = reasons.join("; "), "worker takes no bookings");
    }
    let more = report.not_schedulable.len().saturating_sub(NAMED);
    if more > 0 {
        tracing::warn!(selector = target, more, "more workers take no bookings");
    }
}

#[cfg(test)]
#[cfg(feature = "server")]
mod remote_tests;
#[cfg(test)]
mod tests;
