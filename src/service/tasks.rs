//! Background tasks of the service, watched: a task that panics or ends before its time is remembered and makes the
//! service not live, and so does periodic work that no longer completes.

use std::{
    collections::BTreeMap,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    Running,
    /// Ended before the word to stop.
    Dead,
}

/// Spawns tasks and remembers which died.
#[derive(Debug)]
pub(crate) struct Tasks {
    stop: CancellationToken,
    states: Mutex<BTreeMap<&'static str, TaskState>>,
}

impl Tasks {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { stop: CancellationToken::new(), states: Mutex::default() })
    }

    /// Tells all tasks to end.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Runs `task` until the word to stop. It must not end before.
    pub(crate) fn spawn(self: &Arc<Self>, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.states.lock().insert(name, TaskState::Running);
        let tasks = self.clone();
        tokio::spawn(async move {
            let stopped = tasks.stop.clone();
            let ended = tokio::select! {
                () = stopped.cancelled() => return,
                ended = AssertUnwindSafe(task).catch_unwind() => ended,
            };
            if tasks.stop.is_cancelled() {
                return;
            }
            tasks.states.lock().insert(name, TaskState::Dead);
            match ended {
                Ok(()) => tracing::error!(task = name, "background task ended before its time"),
                Err(panic) => tracing::error!(task = name, panic = panic_text(&*panic), "background task panicked"),
            }
        });
    }

    /// What ends all tasks.
    pub(crate) fn stopped(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// A task that was spawned elsewhere panicked.
    pub(crate) fn died(&self, name: &'static str, panic: &str) {
        self.states.lock().insert(name, TaskState::Dead);
        tracing::error!(task = name, panic, "background task panicked");
    }

    /// Names of tasks that died.
    pub(crate) fn dead(&self) -> Vec<&'static str> {
        self.states.lock().iter().filter(|(_, state)| **state == TaskState::Dead).map(|(name, _)| *name).collect()
    }

    /// All tasks and whether each is running.
    pub(crate) fn running(&self) -> Vec<(&'static str, bool)> {
        self.states.lock().iter().map(|(name, state)| (*name, *state == TaskState::Running)).collect()
    }
}

/// When periodic work last completed.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    origin: Instant,
    /// Milliseconds after the origin.
    last: AtomicU64,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), last: AtomicU64::new(0) }
    }

    pub(crate) fn beat(&self) {
        self.last.store(self.millis(), Ordering::Relaxed);
    }

    /// Time since the last beat, or since creation.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(self.millis().saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The text of a panic, when it has one.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn wait_for(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < deadline, "condition did not come true");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    #[tokio::test]
    async fn a_task_that_panics_or_ends_is_dead_and_one_that_runs_is_not() {
        let tasks = Tasks::new();
        tasks.spawn("panics", async { panic!("injected") });
        tasks.spawn("ends", async {});
        tasks.spawn("runs", std::future::pending());
        wait_for(|| tasks.dead() == ["ends", "panics"]).await;
        assert_eq!(tasks.running(), [("ends", false), ("panics", false), ("runs", true)]);
    }

    #[tokio::test]
    async fn a_task_that_was_told_to_stop_is_not_dead() {
        let tasks = Tasks::new();
        let (sender, ended) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn("waits", async move {
            let _held = sender;
            std::future::pending().await
        });
        tasks.stop();
        assert!(ended.await.is_err(), "the task was dropped");
        assert_eq!(tasks.dead(), Vec::<&str>::new());
    }
}
