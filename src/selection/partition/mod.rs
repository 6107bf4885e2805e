//! One partition: index, load, queue, policy and sessions of a `(model_name, routing_group)` under one roof.
//!
//! The index is read without a lock. Pick and book are one critical section inside [`Partition::with_state`], which is
//! never held across an await. A panic inside it fails that call only; the state is rebuilt before the next one.
//!
//! Created with the first worker that can join or is to be indexed, or by recovery; removed when the last one leaves.

mod index;
mod membership;
mod own;
mod posted;
mod shadow;
mod state;
mod turn;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

pub(super) use self::membership::JoinError;
pub use self::{
    index::PartitionIndex,
    own::{OwnPolicy, PartitionPolicies, PartitionPolicy},
    shadow::Shadow,
    state::{Health, PartitionState, PolicyFactory},
};
use self::{posted::PostedPolicy, state::Pick};
use super::{
    config::SelectionConfig,
    error::SelectionError,
    hash,
    identity::{PartitionKey, WorkerWithDpRank},
    index::{Matches, PrefixIndex, StoredBlock},
    moment::Moment,
    policy::{
        PickRequest, Picked, PolicyScope, classifier::ClassifierSlot, context::RequestFacts, inputs::WorkerInputs,
    },
    queue::{AdmissionQueue, profile::PolicyProfile, report::PartitionQueue},
    replication::{BookingChange, BookingEvent, BookingFacts, LoadDigests, ReplicationCell, RouterId},
    request::RoutingConstraints,
    sessions::SessionTable,
    trust::{Trust, TrustTable},
    worker::WorkerRole,
};

/// A partition.
pub struct Partition {
    /// Its name.
    pub key: PartitionKey,
    /// Tokens a block, fixed while the partition lives.
    pub block_size: u32,
    /// Cache knowledge.
    pub index: PartitionIndex,
    /// Session affinity.
    pub sessions: SessionTable,
    /// Live bookings by the replica that made them.
    pub(super) digests: LoadDigests,
    replication: ReplicationCell,
    /// What sees its requests before they queue.
    pub classifier: ClassifierSlot,
    /// Workers that joined or left.
    membership: AtomicU64,
    /// Set by the first worker; absent in a recovered partition that nobody joined yet.
    traits: OnceLock<PartitionTraits>,
    schedulable: AtomicU64,
    /// The index may hold ranks of registered workers that their own events never named: a dump filled it.
    strangers: AtomicBool,
    /// Workers whose cache is indexed and who did not join.
    indexed_only: Mutex<BTreeSet<u64>>,
    trust: TrustTable,
    posted: Arc<PostedPolicy>,
    health: Arc<Health>,
    state: Mutex<PartitionState>,
}

/// What became of a request that wants a rank.
pub(super) enum Choice<R, W> {
    /// Decided and acted on.
    Made(R),
    /// It waits first.
    Waits(W),
}

/// Shared handle.
pub type PartitionRef = Arc<Partition>;

/// What the first worker fixes besides the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionTraits {
    /// Blocks are hashed with one look-ahead token.
    pub is_eagle: bool,
    /// Role of all workers.
    pub role: WorkerRole,
}

/// What all partitions of a core share.
pub(super) struct PartitionParts<'a> {
    pub(super) config: &'a Arc<SelectionConfig>,
    pub(super) policies: &'a Arc<PolicyFactory>,
    /// Counts the panics of all.
    pub(super) panics: &'a Arc<AtomicU64>,
    pub(super) replication: &'a ReplicationCell,
    /// Policy classes of its model.
    pub(super) profile: Arc<PolicyProfile>,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("key", &self.key)
            .field("block_size", &self.block_size)
            .field("traits", &self.traits.get())
            .finish_non_exhaustive()
    }
}

impl Partition {
    /// A partition without workers; `recovered` is what its index starts with.
    pub(super) fn new(
        key: PartitionKey,
        block_size: u32,
        parts: PartitionParts<'_>,
        now: Moment,
        recovered: Option<PrefixIndex>,
    ) -> Self {
        let PartitionParts { config, policies, panics, replication, profile } = parts;
        let health = Arc::new(Health::new(Arc::clone(panics)));
        let posted = Arc::<PostedPolicy>::default();
        let scope = PolicyScope { key: key.clone(), block_size, role: WorkerRole::default() };
        let queue = AdmissionQueue::new(profile, config.queue_limits);
        Self {
            block_size,
            strangers: AtomicBool::new(recovered.is_some()),
            index: PartitionIndex::new(config, now, recovered),
            sessions: SessionTable::new(config, &key, replication),
            digests: LoadDigests::default(),
            replication: Arc::clone(replication),
            classifier: ClassifierSlot::default(),
            membership: AtomicU64::new(0),
            traits: OnceLock::new(),
            schedulable: AtomicU64::new(0),
            indexed_only: Mutex::default(),
            trust: TrustTable::default(),
            state: Mutex::new(PartitionState::new(
                scope,
                config,
                Arc::clone(policies),
                Arc::clone(&health),
                queue,
                &posted,
            )),
            posted,
            health,
            key,
        }
    }

    /// Blocks are hashed with one look-ahead token.
    pub fn is_eagle(&self) -> bool {
        self.traits.get().is_some_and(|traits| traits.is_eagle)
    }

    /// Role of its workers; `None` until the first joined.
    pub fn role(&self) -> Option<WorkerRole> {
        self.traits.get().map(|traits| traits.role)
    }

    /// Workers that are schedulable (draining ones are not).
    pub fn schedulable_workers(&self) -> u64 {
        self.schedulable.load(Ordering::Relaxed)
    }

    /// How far the blocks indexed for `rank` can be believed.
    pub fn trust(&self, rank: WorkerWithDpRank) -> Trust {
        self.trust.get(rank)
    }

    /// Panics contained since the partition exists.
    pub fn panics(&self) -> u64 {
        self.health.panics()
    }

    /// Whether the last selection of the partition panicked: it cannot select now.
    pub fn is_failing(&self) -> bool {
        self.health.is_failing()
    }

    /// Runs `f` on the state, in mutual exclusion. Waiting requests that can go after it are let go.
    ///
    /// # Errors
    /// `Internal` when `f` panics. The state is rebuilt from the registered workers then; live bookings are lost.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut PartitionState) -> R) -> Result<R, SelectionError> {
        let mut state = self.state.lock();
        let result = state.contain(&self.index, f);
        if !state.queue.is_quiet() {
            self.go_on(state);
        }
        result.ok_or_else(|| {
            tracing::error!(partition = %self.key, "partition panicked; its state was rebuilt, its bookings are lost");
            SelectionError::Internal(format!("partition {} failed and was rebuilt", self.key))
        })
    }

    /// Replaces the policy classes; requests that wait stay.
    pub(super) fn set_profile(&self, profile: Arc<PolicyProfile>) {
        let _contained = self.with_state(|state| state.queue.set_profile(profile, &mut state.load));
    }

    /// Requests and prompt tokens that wait.
    pub fn waiting(&self) -> (u64, u64) {
        self.with_state(|state| state.queue.totals()).unwrap_or_default()
    }

    /// What waits.
    pub(super) fn queue_report(&self, now: Moment) -> Option<PartitionQueue> {
        let workers = self.schedulable_workers();
        let names = || (Arc::clone(&self.key.model_name), Arc::clone(&self.key.routing_group));
        self.with_state(|state| state.queue.report(names(), &state.load, workers, now)).ok()
    }

    /// Chooses a rank for `request` and lets `then` act on it, all in one critical section unless the policy has a lock
    /// of its own (see [`PartitionPolicy`]). `gate` comes first, under the lock: a request that it makes
    /// wait is not decided.
    ///
    /// # Errors
    /// What the gate, the policy and `then` say; `Internal` when one of them panics.
    pub(super) fn choose<R, W>(
        &self,
        request: &PickRequest<'_>,
        gate: impl FnOnce(&mut PartitionState) -> Result<Option<W>, SelectionError>,
        then: impl FnOnce(&mut PartitionState, Picked) -> Result<R, SelectionError>,
    ) -> Result<Choice<R, W>, SelectionError> {
        let Some(shadow) = self.posted.shadow() else { return self.choose_in_force(request, gate, then) };
        match self.with_state(gate)?? {
            Some(ticket) => Ok(Choice::Waits(ticket)),
            None => shadow.choose(self, request, then).map(Choice::Made),
        }
    }

    /// What the policy in force decides, whatever stands beside it or waits.
    pub(super) fn decide<R>(
        &self,
        request: &PickRequest<'_>,
        then: impl FnOnce(&mut PartitionState, Picked) -> Result<R, SelectionError>,
    ) -> Result<R, SelectionError> {
        match self.choose_in_force(request, |_| Ok(None::<Infallible>), then)? {
            Choice::Made(made) => Ok(made),
            Choice::Waits(never) => match never {},
        }
    }

    fn choose_in_force<R, W>(
        &self,
        request: &PickRequest<'_>,
        gate: impl FnOnce(&mut PartitionState) -> Result<Option<W>, SelectionError>,
        then: impl FnOnce(&mut PartitionState, Picked) -> Result<R, SelectionError>,
    ) -> Result<Choice<R, W>, SelectionError> {
        let mut then = Some(then);
        let own = self.with_state(|state| {
            if let Some(ticket) = gate(state)? {
                return Ok(Err(Choice::Waits(ticket)));
            }
            match state.pick(request)? {
                Pick::Own(own) => Ok(Ok(own)),
                Pick::Made(picked) => {
                    let then = then.take().expect("called once");
                    then(state, picked).map(|made| Err(Choice::Made(made)))
                }
            }
        })??;
        match (own, then) {
            (Err(choice), _) => Ok(choice),
            (Ok(own), Some(then)) => own.choose(request, self, then).map(Choice::Made),
            (Ok(_), None) => unreachable!("only a pick takes it"),
        }
    }

    /// What the policy reads. Without [`WorkerInputs::CACHE`] nobody asks the index.
    pub fn required_inputs(&self) -> WorkerInputs {
        self.posted.inputs()
    }

    /// Has another policy from now on; bookings and sessions stay. A selection at work ends with the one it began with.
    pub(super) fn replace_policy(&self, policies: &Arc<PolicyFactory>) {
        let _contained = self.with_state(|state| state.replace_policy(Arc::clone(policies)));
    }

    /// After a panic in a pick: finds out whether an empty prompt can be decided again, which books nothing. Without it
    /// a partition that gets no requests because it is not ready would never become ready.
    pub(super) fn probe(&self, now: Moment) {
        if !self.is_failing() {
            return;
        }
        let (constraints, matches) = (RoutingConstraints::default(), Matches::default());
        let request = PickRequest {
            prompt_tokens: 0,
            sequence: &[],
            track_prefill_tokens: false,
            matches: &matches,
            index: self.index.primary(),
            pinned_worker: None,
            allowed_worker_ids: None,
            affinity_target: None,
            target_is_binding: false,
            constraints: &constraints,
            overrides: None,
            explain: false,
            facts: RequestFacts { is_query: true, ..RequestFacts::default() },
            now,
        };
        if let Ok(Some(own)) = self.with_state(|state| state.probe(&request)) {
            // An error is a decision too, and a panic has been noted.
            let _decided = own.choose(&request, self, |_, _| Ok(()));
        }
    }

    /// Grows whenever workers join or leave.
    pub(super) fn membership(&self) -> u64 {
        self.membership.load(Ordering::Relaxed)
    }

    /// This process among its replicas; 0 when it is alone.
    pub(super) fn router_id(&self) -> RouterId {
        self.replication.get().map_or(0, |replication| replication.router_id)
    }

    /// Tells other replicas of a change made here.
    pub(super) fn publish_booking(&self, facts: &BookingFacts, change: impl FnOnce() -> BookingChange) {
        if let Some(replication) = self.replication.get() {
            let change = change();
            let is_new = matches!(change, BookingChange::Admitted(_));
            let number = replication.outlet.booking(BookingEvent {
                partition: self.key.clone(),
                block_size: self.block_size,
                selection_id: Arc::clone(&facts.id),
                rank: facts.rank,
                lora_name: facts.lora_name.clone(),
                change,
            });
            if is_new {
                facts.set_published(number);
            }
        }
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn trusts(&self) -> &TrustTable {
        &self.trust
    }

    /// The engine of a rank told of blocks on its device: what is ahead of it is less by those of booked prompts.
    pub(super) fn note_stored(&self, rank: WorkerWithDpRank, parent: Option<u64>, blocks: &[StoredBlock]) {
        if !self.required_inputs().contains(WorkerInputs::PROGRESS) {
            return;
        }
        let mut previous = match parent.map(|name| self.index.primary().seq_of(rank, name)) {
            None => None,
            Some(Some(seq)) => Some(seq),
            // Taken away again meanwhile.
            Some(None) => return,
        };
        let chained = blocks.iter().map(|block| {
            let seq = previous.map_or(block.local, |before| hash::chain(before, block.local));
            previous = Some(seq);
            seq
        });
        let sequence: Vec<u64> = chained.collect();
        // What a contained panic lost is counted there.
        let _contained = self.with_state(|state| state.load.stored(rank, &sequence));
    }

    pub(super) fn set_trust(&self, rank: WorkerWithDpRank, trust: Trust) {
        // Under the table's lock, so that the index shows what was said last.
        self.trust.set(rank, trust, |before| {
            if (before == Some(Trust::Stale)) != (trust == Trust::Stale) {
                self.health.contain(|| self.index.primary().withhold(rank, trust == Trust::Stale));
            }
        });
        let flows = matches!(trust, Trust::Complete | Trust::Replayed | Trust::Partial);
        let _contained = self.with_state(|state| state.load.set_event_flow(rank, flows));
    }

    /// A dump is stored into the index.
    pub(super) fn admit_strangers(&self) {
        self.strangers.store(true, Ordering::Relaxed);
    }

    fn has_strangers(&self) -> bool {
        self.strangers.load(Ordering::Relaxed)
    }

    pub(super) fn add_schedulable(&self) {
        self.schedulable.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_schedulable(&self) {
        self.schedulable.fetch_sub(1, Ordering::Relaxed);
    }
}
