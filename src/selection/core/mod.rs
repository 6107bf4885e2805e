//! The verbs. Every edge (HTTP, embedding host, simulator) calls these and nothing below them.
//!
//! | file | verbs |
//! |---|---|
//! | `workers` | registration of single workers |
//! | `instances` | the standalone indexer's verbs |
//! | `snapshots` | owners and their desired records |
//! | `takeover` | a peer's catalog |
//! | `classifiers` | request classifiers |
//! | `queueing` | policy classes, and what waits |
//! | `upkeep` | periodic work |
//! | `work` | reports of prefill work ahead |
//! | `requests` | selections, reservations, lifecycle, inspection |
//! | `recovery` | dumps and snapshots of indexes |
//! | `policies` | which policy partitions get |
//! | `replicas` | what other replicas tell, and what they are shown |
//!
//! Lock order: applying, catalog, then partition map or records, then one partition's state. Worker verbs serialise on
//! the catalog's lock, which no selection takes.

mod bookings;
pub(in crate::selection) mod classifiers;
mod instances;
mod policies;
mod queueing;
mod reconcile;
mod recovery;
mod replicas;
mod requests;
mod snapshots;
mod takeover;
mod upkeep;
mod work;
mod workers;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use hashbrown::{Equivalent, HashMap};
use parking_lot::{Mutex, RwLock};

use self::{queueing::Profiles, upkeep::Upkeep};

use self::policies::Shadows;
pub use self::{
    bookings::{BookingEnd, BookingIndex, EndedBookings},
    classifiers::{ClassifierSetup, LifecycleOwner},
    recovery::HeldRanks,
    replicas::{BookingSnapshot, MergeReport, MirrorDrop, Mirrored, MissedCall, OriginDigest, PartitionDigests},
    work::WorkReport,
};
pub use super::policy::plugins::Plugins;
use super::{
    catalog::Catalog,
    config::{ConfigError, SelectionConfig},
    error::SelectionError,
    identity::PartitionKey,
    index::PrefixIndex,
    ingest::{EventSources, NoEventSources},
    moment::{Clock, Moment, SystemClock},
    partition::{Partition, PartitionParts, PartitionRef, PolicyFactory},
    pending::PendingSelections,
    policy::{builtin, failures::PluginFailures},
    replication::{Replication, ReplicationCell},
    worker::{WorkerRecord, WorkerRole},
};

/// The selection core.
pub struct SelectionCore {
    config: Arc<SelectionConfig>,
    clock: Arc<dyn Clock>,
    sources: Arc<dyn EventSources>,
    policies: RwLock<Arc<PolicyFactory>>,
    plugin_failures: Arc<PluginFailures>,
    shadows: Shadows,
    /// What sees requests before they queue; most cores have none.
    classifiers: OnceLock<classifiers::Classifiers>,
    /// In force; changed under the catalog's lock.
    profiles: RwLock<Profiles>,
    instance_id: String,
    /// Held from start to end of a snapshot; the catalog's lock is held in slices.
    applying: Mutex<()>,
    catalog: Mutex<Catalog>,
    catalog_applied: AtomicBool,
    /// What readers of the catalog see, by partition and id.
    records: RwLock<BTreeMap<PartitionKey, BTreeMap<u64, Arc<WorkerRecord>>>>,
    upkeep: Upkeep,
    /// Panics contained in partitions.
    panics: Arc<AtomicU64>,
    /// Read by every request, written when a partition comes or goes.
    partitions: RwLock<HashMap<PartitionKey, PartitionRef>>,
    /// Schedulable workers anywhere.
    schedulable: AtomicU64,
    shutting_down: AtomicBool,
    queues_closed: AtomicBool,
    /// Selection id to booking, over all partitions.
    bookings: Arc<BookingIndex>,
    /// Decided, not yet booked.
    pending: PendingSelections,
    replication: ReplicationCell,
}

/// Restricts a listing to exact names.
#[derive(Clone, Debug, Default)]
pub struct PartitionFilter {
    /// Model name.
    pub model_name: Option<String>,
    /// Routing group.
    pub routing_group: Option<String>,
}

impl PartitionFilter {
    /// Whether `key` passes.
    pub fn accepts(&self, key: &PartitionKey) -> bool {
        self.model_name.as_deref().is_none_or(|name| name == &*key.model_name)
            && self.routing_group.as_deref().is_none_or(|group| group == &*key.routing_group)
    }
}

/// Looks a partition up without building a key. Hashes like [`PartitionKey`].
#[derive(Hash)]
struct PartitionName<'a> {
    model_name: &'a str,
    routing_group: &'a str,
}

impl Equivalent<PartitionKey> for PartitionName<'_> {
    fn equivalent(&self, key: &PartitionKey) -> bool {
        self.model_name == &*key.model_name && self.routing_group == &*key.routing_group
    }
}

impl SelectionCore {
    /// A core with no worker, and the policies that ship.
    ///
    /// # Errors
    /// A setting out of range, or a policy for aggregated pools that cannot be.
    pub fn try_new(
        config: SelectionConfig,
        clock: Arc<dyn Clock>,
        sources: Arc<dyn EventSources>,
    ) -> Result<Arc<Self>, ConfigError> {
        Self::try_new_with_plugins(
            config,
            clock,
            sources,
            Plugins::Registry { registry: &builtin::router_plugin_registry(), role: WorkerRole::default() },
        )
    }

    /// [`Self::try_new`] with policies of the host's.
    ///
    /// # Errors
    /// As there, for the role that the host names.
    pub fn try_new_with_plugins(
        config: SelectionConfig,
        clock: Arc<dyn Clock>,
        sources: Arc<dyn EventSources>,
        plugins: Plugins<'_>,
    ) -> Result<Arc<Self>, ConfigError> {
        config.validate()?;
        let (failures, shadows) = (Arc::default(), Shadows::default());
        let policies = plugins.policies(&config, &failures, &shadows)?;
        Ok(Self::assemble(config, clock, sources, policies, failures, shadows))
    }

    /// [`Self::try_new`] with a policy for each partition from `policies`.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn try_new_with_policies(
        config: SelectionConfig,
        clock: Arc<dyn Clock>,
        sources: Arc<dyn EventSources>,
        policies: Arc<PolicyFactory>,
    ) -> Result<Arc<Self>, ConfigError> {
        config.validate()?;
        Ok(Self::assemble(config, clock, sources, policies, Arc::default(), Shadows::default()))
    }

    fn assemble(
        config: SelectionConfig,
        clock: Arc<dyn Clock>,
        sources: Arc<dyn EventSources>,
        policies: Arc<PolicyFactory>,
        plugin_failures: Arc<PluginFailures>,
        shadows: Shadows,
    ) -> Arc<Self> {
        Arc::new(Self {
            upkeep: Upkeep::new(clock.now()),
            clock,
            sources,
            policies: RwLock::new(policies),
            plugin_failures,
            shadows,
            classifiers: OnceLock::new(),
            profiles: RwLock::new(Profiles::new(&config)),
            instance_id: uuid::Uuid::new_v4().to_string(),
            applying: Mutex::default(),
            catalog: Mutex::default(),
            catalog_applied: AtomicBool::new(false),
            records: RwLock::default(),
            panics: Arc::default(),
            partitions: RwLock::default(),
            schedulable: AtomicU64::new(0),
            shutting_down: AtomicBool::new(false),
            queues_closed: AtomicBool::new(false),
            bookings: Arc::default(),
            replication: ReplicationCell::default(),
            pending: PendingSelections::new(&config),
            config: Arc::new(config),
        })
    }

    /// A core for local use: system clock, no event sources.
    ///
    /// # Errors
    /// A setting out of range, a bad tracking-hash configuration among them.
    pub fn try_new_local(config: SelectionConfig) -> Result<Arc<Self>, ConfigError> {
        Self::try_new(config, Arc::new(SystemClock::default()), Arc::new(NoEventSources))
    }

    /// Tells other replicas of what happens here from now on, and takes what they tell. Call it before the first
    /// request; a second call changes nothing and answers `false`.
    pub fn replicate(&self, replication: Replication) -> bool {
        self.bookings.remember();
        self.replication.set(replication).is_ok()
    }

    /// The time by the clock of its host.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The settings it runs with.
    pub fn config(&self) -> &SelectionConfig {
        &self.config
    }

    /// New selections and bookings are refused from now on, those that wait at once; lifecycle calls still work.
    pub fn begin_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Relaxed);
        self.close_classifiers();
        self.close_queues();
    }

    /// The partition, once selections may go to it: checks 1 and 2 of spec http 5.2.
    fn ready_partition(&self, model_name: &str, routing_group: &str) -> Result<PartitionRef, SelectionError> {
        self.refuse_when_shutting_down()?;
        if self.schedulable.load(Ordering::Relaxed) == 0 {
            return Err(SelectionError::Unavailable("no schedulable workers are available".to_owned()));
        }
        match self.partition(model_name, routing_group) {
            Some(partition) if partition.schedulable_workers() > 0 => Ok(partition),
            _ => Err(SelectionError::Unavailable(format!(
                "no schedulable workers for model={model_name} routing_group={routing_group}"
            ))),
        }
    }

    fn refuse_when_shutting_down(&self) -> Result<(), SelectionError> {
        if self.shutting_down.load(Ordering::Relaxed) {
            return Err(SelectionError::Unavailable("selection service is shutting down".to_owned()));
        }
        Ok(())
    }

    /// The partition, ready or not. Takes a read lock for the look-up alone.
    fn partition(&self, model_name: &str, routing_group: &str) -> Option<PartitionRef> {
        self.partitions.read().get(&PartitionName { model_name, routing_group }).cloned()
    }

    /// All partitions that pass, sorted by name.
    pub fn partitions(&self, filter: &PartitionFilter) -> Vec<PartitionRef> {
        let mut found: Vec<_> =
            self.partitions.read().values().filter(|partition| filter.accepts(&partition.key)).cloned().collect();
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found
    }

    /// Makes a partition without workers and shows it to requests. Call it under the catalog's lock.
    fn create_partition(&self, key: PartitionKey, block_size: u32, recovered: Option<PrefixIndex>) -> PartitionRef {
        let policies = Arc::clone(&self.policies.read());
        let parts = PartitionParts {
            config: &self.config,
            policies: &policies,
            panics: &self.panics,
            replication: &self.replication,
            profile: self.profile_of(&key.model_name),
        };
        let partition = Partition::new(key.clone(), block_size, parts, self.clock.now(), recovered);
        let partition = Arc::new(partition);
        self.partitions.write().insert(key, Arc::clone(&partition));
        partition
    }
}
