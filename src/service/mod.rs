//! The embeddable service: core, listeners, recovery and shutdown behind typed verbs.
//!
//! | file | owns |
//! |---|---|
//! | `builder` | how a service is put together |
//! | `verbs` | workers, selections, reservations, inspection |
//! | `instances` | the standalone indexer's verbs |
//! | `classifier` | request classifiers: their events, their metrics |
//! | `policy` | policies in force, and reloads of their document |
//! | `recovery` | filling index and catalog from peers at start |
//! | `exports` | snapshots of the index for peers that start |
//! | `file` | files that are followed |
//! | `sources` | listeners, and what they wait for |
//! | `tasks` | background tasks, watched |
//! | `health` | whether the service is alive and ready |
//! | `metrics` | what of it a scrape shows |
//!
//! Invariants: a panic inside a verb fails that call only; nothing here waits without a limit; no selection is made
//! before start-up recovery is over.

mod builder;
mod classifier;
pub mod config;
pub mod exports;
pub(crate) mod file;
mod health;
mod instances;
mod metrics;
pub mod policy;
mod recovery;
mod sources;
mod tasks;
mod verbs;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use builder::{BuildError, SelectionServiceBuilder};
pub use config::{PeerToken, RecoveryConfig, ServiceConfig};
pub use health::{LivenessReport, ReadinessReport};
pub use policy::{PolicyReloadError, PolicySource, PolicyStatus};
pub use recovery::{PeerAttempt, RecoveryError, RecoveryReport};
use sources::Sources;
use tasks::{Heartbeat, Tasks, panic_text};
use tokio::{sync::watch, time::MissedTickBehavior};

use crate::{
    events::status::{ListenerStatus, RankTrust},
    mesh::{BoundMesh, Mesh, MeshStatus},
    selection::{Clock, SelectionCore, SelectionError, config::ConfigError},
    telemetry::{
        metrics::Metrics,
        readiness::{Condition, Readiness},
    },
};

/// How often a catalog that is awaited is looked for.
const CATALOG_POLL: Duration = Duration::from_millis(20);
/// Time that the last messages to other replicas have.
const LEAVE: Duration = Duration::from_secs(2);

/// The selection service. Clones share one service; it stops by [`Self::stop`] or when the last clone is dropped.
#[derive(Clone)]
pub struct SelectionService {
    shared: Arc<Shared>,
    /// Stops the tasks with the last clone; tasks hold `shared`, not this.
    _guard: Arc<StopGuard>,
}

impl fmt::Debug for SelectionService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelectionService").field("readiness", &self.shared.readiness).finish_non_exhaustive()
    }
}

struct Shared {
    core: Arc<SelectionCore>,
    config: ServiceConfig,
    readiness: Readiness,
    metrics: Metrics,
    sources: Sources,
    mesh: Option<Mesh>,
    tasks: Arc<Tasks>,
    ticked: Heartbeat,
    panics: AtomicU64,
    exports: exports::Exports,
    policies: Arc<policy::Policies>,
    /// Follows the policy document.
    _policy_file: Option<file::StopHandle>,
    late_peers: recovery::LatePeers,
    /// `Some` once start-up recovery is over.
    recovery: watch::Sender<Option<RecoveryReport>>,
}

struct StopGuard(Arc<Tasks>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl SelectionService {
    fn start(
        config: ServiceConfig,
        clock: Arc<dyn Clock>,
        sources: Sources,
        mesh: Option<BoundMesh>,
        policies: PolicySource,
        (classifier, runtime): (classifier::ClassifierChoice, tokio::runtime::Handle),
    ) -> Result<Self, ConfigError> {
        let plugins = policies.composition.plugins();
        let core = SelectionCore::try_new_with_plugins(config.selection.clone(), clock, sources.for_core(), plugins)?;
        let policies = policy::Policies::new(policies, &config.selection);
        let policy_file = policy::follow(&policies, &core).map_err(|error| ConfigError(error.to_string()))?;
        let tasks = Tasks::new();
        if let Some(setup) = classifier.setup(&tasks, runtime) {
            core.install_request_classifier(setup);
        }
        let metrics = Metrics::default();
        let mesh = mesh.map(|mesh| mesh.start(&core, &metrics));
        let shared = Arc::new(Shared {
            core,
            mesh,
            readiness: Readiness::new(config.ready_requires),
            config,
            metrics,
            sources,
            tasks: tasks.clone(),
            ticked: Heartbeat::new(),
            panics: AtomicU64::new(0),
            exports: exports::Exports::default(),
            policies,
            _policy_file: policy_file,
            late_peers: recovery::LatePeers::default(),
            recovery: watch::Sender::new(None),
        });
        metrics::register(&shared);
        tasks.spawn("tick", tick(shared.clone()));
        tasks.spawn("recovery", recover(shared.clone()));
        Ok(Self { shared, _guard: Arc::new(StopGuard(tasks)) })
    }

    /// Waits until start-up recovery is over, with or without success.
    pub async fn recovered(&self) -> RecoveryReport {
        let mut recovery = self.shared.recovery.subscribe();
        match recovery.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            // The sender lives in `shared`.
            Err(_) => RecoveryReport::default(),
        }
    }

    /// Names selectors that start-up recovery asks too, beside the configured ones. `false` when it has asked already.
    pub fn recover_from(&self, peers: impl IntoIterator<Item = String>) -> bool {
        self.shared.late_peers.add(peers)
    }

    /// Whether start-up recovery is over.
    pub fn is_recovered(&self) -> bool {
        self.shared.readiness.is_set(Condition::Index)
    }

    /// Listeners for KV events, by worker and rank; empty for a host with event sources of its own.
    pub fn listeners(&self) -> Vec<ListenerStatus> {
        self.shared.sources.statuses()
    }

    /// How far each rank's part of the index can be believed, by worker and rank; empty for a host with event sources of
    /// its own.
    pub fn trusts(&self) -> BTreeMap<(u64, u32), RankTrust> {
        self.shared.sources.trusts()
    }

    /// The core, for hosts that need what no verb here offers.
    pub fn core(&self) -> &Arc<SelectionCore> {
        &self.shared.core
    }

    /// The mesh of replicas, where it is on.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.shared.mesh.as_ref()
    }

    /// How the mesh stands; off without one.
    pub fn mesh_status(&self) -> MeshStatus {
        match &self.shared.mesh {
            Some(mesh) => mesh.status(),
            None => MeshStatus::disabled(self.shared.core.instance_id()),
        }
    }

    /// The policies in force, and what became of their document.
    pub fn policy_status(&self) -> PolicyStatus {
        self.shared.policies.status()
    }

    /// Replaces the policies and the classes of the queue by what the text of a document says. Bookings, sessions and
    /// waiting requests stay. `Ok(false)` when it says what is in force.
    ///
    /// # Errors
    /// The document is refused, and what was in force stays.
    pub fn reload_policy(&self, text: &str) -> Result<bool, PolicyReloadError> {
        self.shared.policies.reload(&self.shared.core, text)
    }

    /// Metrics of the service; parts around it register theirs here.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Says that the service is going down: it is not ready any more, and still answers.
    pub fn begin_shutdown(&self) {
        self.shared.readiness.begin_shutdown();
    }

    /// Whether the service was told to go down.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.readiness.is_shutting_down()
    }

    /// Answers requests that wait in a queue, and those that would, with 503: there is no time left to wait.
    pub fn close_queues(&self) {
        self.shared.core.close_queues();
    }

    /// Refuses new selections, ends all background tasks, and waits for the listeners.
    pub async fn stop(&self) {
        self.begin_shutdown();
        self.shared.core.begin_shutdown();
        if let Some(mesh) = &self.shared.mesh {
            mesh.leave(LEAVE).await;
        }
        self.shared.tasks.stop();
        self.shared.sources.shutdown().await;
    }
}

impl Shared {
    /// Runs a verb; a panic inside is an error of that call.
    fn contain<R>(&self, verb: &'static str, run: impl FnOnce() -> R) -> Result<R, SelectionError> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(|panic| self.panicked(verb, &*panic))
    }

    #[cold]
    fn panicked(&self, verb: &'static str, panic: &(dyn std::any::Any + Send)) -> SelectionError {
        self.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(verb, panic = panic_text(panic), "verb panicked");
        SelectionError::Internal("internal error".to_owned())
    }
}

/// The core's periodic work. Each round runs off the async threads: a core that is stuck holds up no request, and its
/// missing heartbeat makes the service not live.
async fn tick(shared: Arc<Shared>) {
    let mut interval = tokio::time::interval(shared.config.tick_interval);
    // A late round is not made up for: each part of the work keeps its own period.
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        shared.exports.forget_idle();
        let round = shared.clone();
        let done = tokio::task::spawn_blocking(move || round.contain("tick", || round.core.tick())).await;
        if matches!(done, Ok(Ok(()))) {
            shared.ticked.beat();
        }
    }
}

async fn recover(shared: Arc<Shared>) {
    let heard = match &shared.mesh {
        Some(mesh) => mesh.first_contacts().await,
        None => Vec::new(),
    };
    let recovery::Filled { report, held, seeds } = recovery::run(&shared, heard).await;
    shared.sources.release(seeds);
    shared.readiness.set(Condition::Index);
    shared.recovery.send_replace(Some(report));
    if let Some(mesh) = &shared.mesh {
        catalog_needed(&shared).await;
        mesh.warm_up().await;
    }
    shared.readiness.set(Condition::Peers);
    // The task stays until the word to stop: one that ends is dead.
    if held.is_empty() {
        return std::future::pending().await;
    }
    tokio::time::sleep(shared.config.recovery.strangers_after).await;
    shared.sources.expire_seeds();
    let core = shared.core.clone();
    if tokio::task::spawn_blocking(move || core.forget_strangers(&held)).await.is_err() {
        tracing::error!("what was recovered for unknown workers could not be forgotten");
    }
    std::future::pending().await
}

/// Waits for the catalog where readiness does: load is taken over for ranks that are registered.
async fn catalog_needed(shared: &Shared) {
    if shared.config.ready_requires.contains(Condition::Catalog) {
        while !shared.readiness.is_set(Condition::Catalog) {
            tokio::time::sleep(CATALOG_POLL).await;
        }
    }
}
