//! The verbs. Every edge (HTTP, embedding host, simulator) calls these and nothing below them.
//!
//! | file | verbs |
//! |---|---|
//! | `workers` | registration, snapshots, periodic work |
//! | `requests` | selections, reservations, lifecycle, inspection |
//! | `recovery` | the dump of all partitions |
//!
//! Lock order: catalog, then partition map, then one partition's state. Worker verbs serialise on the catalog's lock,
//! which no selection takes.

mod bookings;
mod recovery;
mod requests;
mod workers;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use hashbrown::{Equivalent, HashMap};
use parking_lot::RwLock;

pub use self::bookings::{BookingEnd, BookingIndex, EndedBookings};
use super::{
    config::{ConfigError, SelectionConfig},
    error::SelectionError,
    identity::PartitionKey,
    ingest::{EventSources, NoEventSources},
    moment::{Clock, SystemClock},
    partition::PartitionRef,
    pending::PendingSelections,
};

/// The selection core.
pub struct SelectionCore {
    config: SelectionConfig,
    clock: Arc<dyn Clock>,
    sources: Arc<dyn EventSources>,
    /// Read by every request, written when a partition comes or goes.
    partitions: RwLock<HashMap<PartitionKey, PartitionRef>>,
    /// Schedulable workers anywhere.
    schedulable: AtomicU64,
    shutting_down: AtomicBool,
    /// Selection id to booking, over all partitions.
    bookings: Arc<BookingIndex>,
    /// Decided, not yet booked.
    pending: PendingSelections,
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
    /// A core with no worker.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn try_new(
        config: SelectionConfig,
        clock: Arc<dyn Clock>,
        sources: Arc<dyn EventSources>,
    ) -> Result<Arc<Self>, ConfigError> {
        config.validate()?;
        Ok(Arc::new(Self {
            clock,
            sources,
            partitions: RwLock::default(),
            schedulable: AtomicU64::new(0),
            shutting_down: AtomicBool::new(false),
            bookings: Arc::default(),
            pending: PendingSelections::new(&config),
            config,
        }))
    }

    /// A core for local use: system clock, no event sources.
    ///
    /// # Errors
    /// A setting out of range, a bad tracking-hash configuration among them.
    pub fn try_new_local(config: SelectionConfig) -> Result<Arc<Self>, ConfigError> {
        Self::try_new(config, Arc::new(SystemClock::default()), Arc::new(NoEventSources))
    }

    /// The settings it runs with.
    pub fn config(&self) -> &SelectionConfig {
        &self.config
    }

    /// New selections and bookings are refused from now on; lifecycle calls still work.
    pub fn begin_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Relaxed);
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
}
