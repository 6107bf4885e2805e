//! Policy classes in force, and what waits in the queues of all partitions.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::MutexGuard;

use super::{PartitionFilter, SelectionCore, reconcile::RECORDS_AT_ONCE};
use crate::selection::{
    config::SelectionConfig,
    error::SelectionError,
    queue::{
        profile::{PolicyProfile, PolicyProfiles},
        report::{PartitionQueue, QueueCounts},
    },
    worker::{CAPACITY_REQUIRED, Lifecycle},
};

/// The profiles of a policy document, and the one of models it does not name.
#[derive(Debug)]
pub(super) struct Profiles {
    document: PolicyProfiles,
    synthetic: Arc<PolicyProfile>,
}

impl Profiles {
    pub(super) fn new(config: &SelectionConfig) -> Self {
        let synthetic = PolicyProfile::synthetic(config.queue_threshold, config.queue_policy);
        Self { document: config.profiles.clone(), synthetic: Arc::new(synthetic) }
    }

    fn of(&self, model_name: &str) -> &Arc<PolicyProfile> {
        self.document.of(model_name).unwrap_or(&self.synthetic)
    }
}

/// What requests are told that wait when the core shuts down.
pub(super) fn shut_down() -> SelectionError {
    SelectionError::Unavailable("endpoint subscriber shutdown".to_owned())
}

impl SelectionCore {
    /// The policy classes of a model.
    pub fn profile_of(&self, model_name: &str) -> Arc<PolicyProfile> {
        Arc::clone(self.profiles.read().of(model_name))
    }

    /// The profiles of the policy document in force.
    pub fn profiles(&self) -> PolicyProfiles {
        self.profiles.read().document.clone()
    }

    /// Replaces the policy classes of all models. Requests that wait stay, each in the class that it names by the new
    /// profile; limits are for those that come. Workers that lacked only a capacity which no class asks for any more
    /// become schedulable; those that are schedulable without one stay so, with the capacity the reference assumes,
    /// until they are registered anew.
    pub fn set_profiles(&self, profiles: PolicyProfiles) {
        // New partitions are made under this lock, so none is left with the old profile.
        let mut catalog = self.catalog.lock();
        self.profiles.write().document = profiles;
        for partition in self.partitions(&PartitionFilter::default()) {
            partition.set_profile(self.profile_of(&partition.key.model_name));
        }
        let lacks_capacity = |reasons: &[String]| reasons.iter().any(|reason| reason == CAPACITY_REQUIRED);
        let incomplete: Vec<u64> = catalog
            .workers
            .iter()
            .filter(|(_, entry)| entry.record.lifecycle == Lifecycle::Incomplete)
            .filter(|(_, entry)| lacks_capacity(&entry.record.not_schedulable_reasons))
            .map(|(&id, _)| id)
            .collect();
        for (count, id) in incomplete.into_iter().enumerate() {
            if count > 0 && count % RECORDS_AT_ONCE == 0 {
                MutexGuard::bump(&mut catalog);
            }
            let Some(entry) = catalog.workers.get(&id) else { continue };
            let record = Arc::clone(&entry.record);
            if record.lifecycle == Lifecycle::Incomplete && !self.profile_of(&record.request.model_name).queues() {
                self.put(&mut catalog, Arc::clone(&record.request), record.state, Arc::clone(&record.owner));
            }
        }
        self.retry_freed(&mut catalog);
    }

    pub(super) fn has_closed_queues(&self) -> bool {
        self.queues_closed.load(Ordering::Relaxed)
    }

    /// What waits in the partitions that pass, sorted by name.
    pub fn queues(&self, filter: &PartitionFilter) -> Vec<PartitionQueue> {
        let now = self.clock.now();
        self.partitions(filter).iter().filter_map(|partition| partition.queue_report(now)).collect()
    }

    /// What became of requests, by partition and class, sorted by name.
    pub fn queue_counts(&self) -> Vec<QueueCounts> {
        let of = |partition: &super::PartitionRef| QueueCounts {
            model_name: Arc::clone(&partition.key.model_name),
            routing_group: Arc::clone(&partition.key.routing_group),
            classes: partition.with_state(|state| state.queue.counts()).unwrap_or_default(),
        };
        self.partitions(&PartitionFilter::default()).iter().map(of).collect()
    }

    /// Nobody waits from now on, in a queue or for a classifier: who does is told to go elsewhere, and so is who would. Those that can go at once still
    /// do. For hosts that are going down.
    pub fn close_queues(&self) {
        self.queues_closed.store(true, Ordering::Relaxed);
        self.refuse_waiting_for_classifiers();
        let error = shut_down();
        for partition in self.partitions(&PartitionFilter::default()) {
            let _contained = partition.with_state(|state| state.queue.fail_all(&error));
        }
    }
}
