//! What the partition's lock guards, and how a panic under that lock is contained.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{
    PartitionIndex,
    own::{OwnPolicy, PartitionPolicies, PartitionPolicy},
    posted::PostedPolicy,
};
use crate::selection::{
    config::SelectionConfig,
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::{BookingId, LoadConfig, LoadTracker, WorkerFacts},
    policy::{PickRequest, Picked, PolicyScope, inputs::WorkerInputs},
    queue::AdmissionQueue,
    worker::WorkerRole,
};

/// Picks that may panic in a row before the load tracker is suspected and rebuilt too.
const PANICS_BEFORE_REBUILD: u32 = 3;

/// Makes the policy instances of a partition; called again after a panic in one.
pub type PolicyFactory = dyn Fn(&Arc<SelectionConfig>, &PolicyScope) -> PartitionPolicies + Send + Sync;

/// What asking the policy came to.
pub(super) enum Pick {
    /// A choice.
    Made(Picked),
    /// The policy has a lock of its own: ask it there.
    Own(Arc<OwnPolicy>),
}

/// Counts contained panics of a partition.
#[derive(Debug, Default)]
pub struct Health {
    panics: AtomicU64,
    /// Those of all partitions, past ones included.
    total: Arc<AtomicU64>,
    failing: AtomicBool,
}

impl Health {
    pub(super) fn new(total: Arc<AtomicU64>) -> Self {
        Self { total, ..Self::default() }
    }

    /// Panics so far.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Whether the last selection panicked.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Runs `f`; `None` when it panicked.
    pub(in crate::selection) fn contain<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let result = catch_unwind(AssertUnwindSafe(f)).ok();
        if result.is_none() {
            self.count();
        }
        result
    }

    /// A policy with a lock of its own panicked.
    pub(in crate::selection) fn failed(&self) {
        self.count();
        self.failing.store(true, Ordering::Relaxed);
    }

    /// It decided again.
    #[inline]
    pub(in crate::selection) fn recovered(&self) {
        if self.is_failing() {
            self.failing.store(false, Ordering::Relaxed);
        }
    }

    fn count(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the partition's lock guards.
pub struct PartitionState {
    /// Ranks and bookings.
    pub load: LoadTracker,
    /// Ties and random hashes.
    pub rng: fastrand::Rng,
    /// Registered workers by id, draining ones included. Their ranks are exactly those of `load`.
    pub workers: HashMap<u64, Arc<WorkerFacts>>,
    /// Requests that wait for a rank.
    pub queue: AdmissionQueue,
    policy: PartitionPolicy,
    /// What of it readers without the lock see.
    posted: Arc<PostedPolicy>,
    policies: Arc<PolicyFactory>,
    scope: PolicyScope,
    config: Arc<SelectionConfig>,
    health: Arc<Health>,
    failed_picks: u32,
    /// The tracker is suspect: to be rebuilt before it is used again.
    broken: bool,
    /// Bookings that rebuilding lost, until somebody asks.
    lost: Vec<BookingId>,
}

impl PartitionState {
    pub(super) fn new(
        scope: PolicyScope,
        config: &Arc<SelectionConfig>,
        policies: Arc<PolicyFactory>,
        health: Arc<Health>,
        mut queue: AdmissionQueue,
        posted: &Arc<PostedPolicy>,
    ) -> Self {
        let mut load = new_tracker(&scope, config);
        queue.attach(&mut load);
        let policy = posted.post(policies(config, &scope));
        Self {
            load,
            queue,
            rng: config.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed),
            workers: HashMap::new(),
            policy,
            posted: Arc::clone(posted),
            policies,
            scope,
            config: Arc::clone(config),
            health,
            failed_picks: 0,
            broken: false,
            lost: Vec::new(),
        }
    }

    /// Asks the policy. A panic inside it costs the policy instance, not the bookings.
    ///
    /// # Errors
    /// What the policy says; `Internal` when it panics.
    pub(super) fn pick(&mut self, request: &PickRequest<'_>) -> Result<Pick, SelectionError> {
        let policy = match &mut self.policy {
            PartitionPolicy::UnderLock(policy) => policy,
            PartitionPolicy::Own(own) => return Ok(Pick::Own(Arc::clone(own))),
        };
        let (load, rng) = (&mut self.load, &mut self.rng);
        if let Some(picked) = self.health.contain(|| policy.pick(request, load, rng)) {
            if self.failed_picks > 0 {
                self.recovered();
            }
            return picked.map(Pick::Made);
        }
        self.health.failing.store(true, Ordering::Relaxed);
        self.failed_picks = self.failed_picks.saturating_add(1);
        // One instance may be at fault, a row of them hints at the tracker they read.
        self.broken |= self.failed_picks == PANICS_BEFORE_REBUILD;
        self.make_policy();
        Err(SelectionError::Internal(format!("selection policy of {} failed", self.scope.key)))
    }

    /// After a pick that panicked: whether `request` can be decided again, which counts nothing. A policy with a lock of
    /// its own is handed out.
    pub(super) fn probe(&mut self, request: &PickRequest<'_>) -> Option<Arc<OwnPolicy>> {
        let (load, rng) = (&mut self.load, &mut self.rng);
        match &mut self.policy {
            PartitionPolicy::Own(own) => return Some(Arc::clone(own)),
            PartitionPolicy::UnderLock(policy) => {
                match catch_unwind(AssertUnwindSafe(|| policy.pick(request, load, rng))) {
                    // An error is a decision too.
                    Ok(_) => self.recovered(),
                    Err(_) => self.make_policy(),
                }
            }
        }
        None
    }

    fn make_policy(&mut self) {
        self.policy = self.posted.post((self.policies)(&self.config, &self.scope));
        if self.posted.inputs().contains(WorkerInputs::PROGRESS) {
            self.load.retire_work();
        } else {
            self.load.forget_work();
        }
    }

    pub(super) fn replace_policy(&mut self, policies: Arc<PolicyFactory>) {
        self.policies = policies;
        self.make_policy();
    }

    /// Lets the next waiting request go. A panic in the queue costs those that wait an error, nobody else anything.
    pub(super) fn advance(&mut self) {
        let (queue, load) = (&mut self.queue, &mut self.load);
        if self.health.contain(|| queue.advance(load)).is_none() {
            let _reset = self.health.contain(|| queue.reset(load));
        }
    }

    fn recovered(&mut self) {
        self.failed_picks = 0;
        self.health.failing.store(false, Ordering::Relaxed);
    }

    /// Bookings lost when the state was rebuilt, once.
    pub fn take_lost(&mut self) -> Vec<BookingId> {
        std::mem::take(&mut self.lost)
    }

    /// Sets the role of the workers, which may choose another policy.
    pub(super) fn set_role(&mut self, role: WorkerRole) {
        if self.scope.role != role {
            self.scope.role = role;
            self.make_policy();
        }
    }

    /// Runs `f`; `None` when it panicked and the state was rebuilt.
    pub(super) fn contain<R>(&mut self, index: &PartitionIndex, f: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.broken {
            self.try_rebuild(index);
        }
        let result = catch_unwind(AssertUnwindSafe(|| f(self))).ok();
        if result.is_none() {
            self.health.count();
            self.broken = true;
        }
        if self.broken {
            self.try_rebuild(index);
        }
        result
    }

    /// A panic here leaves the mark, so that the next caller tries again.
    fn try_rebuild(&mut self, index: &PartitionIndex) {
        match catch_unwind(AssertUnwindSafe(|| self.rebuild(index))) {
            Ok(()) => self.broken = false,
            Err(_) => self.health.count(),
        }
    }

    fn rebuild(&mut self, index: &PartitionIndex) {
        let fresh = self.load.successor();
        let mut suspect = std::mem::replace(&mut self.load, fresh);
        let mut heard = Vec::new();
        // What it still knows of its bookings; it may panic again over them.
        for facts in self.workers.values() {
            for dp_rank in facts.ranks.clone() {
                let rank = WorkerWithDpRank::new(facts.worker_id, dp_rank);
                heard.extend(suspect.hears_events(rank).then_some(rank));
                let lost = catch_unwind(AssertUnwindSafe(|| suspect.remove_rank(rank)));
                self.lost.extend(lost.into_iter().flatten());
            }
        }
        // A policy with a lock of its own took no part in it.
        if matches!(self.policy, PartitionPolicy::UnderLock(_)) {
            self.make_policy();
        }
        self.queue.attach(&mut self.load);
        for facts in self.workers.values() {
            for dp_rank in facts.ranks.clone() {
                let rank = WorkerWithDpRank::new(facts.worker_id, dp_rank);
                index.unbind_slot(rank);
                let slot = self.load.upsert_rank(rank, Arc::clone(facts));
                if !index.bind_slot(rank, slot) {
                    self.load.remove_rank(rank);
                }
            }
        }
        heard.into_iter().for_each(|rank| self.load.set_event_flow(rank, true));
    }
}

fn new_tracker(scope: &PolicyScope, config: &SelectionConfig) -> LoadTracker {
    LoadTracker::new(LoadConfig { block_size: scope.block_size, expiry: config.active_request_expiry })
}
