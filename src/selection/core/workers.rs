//! Verbs of workers over `/workers`: one record at a time.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::MutexGuard;

use super::{PartitionFilter, SelectionCore};
use crate::selection::{
    catalog::{API_OWNER, Catalog},
    error::SelectionError,
    identity::PartitionKey,
    worker::{Lifecycle, WorkerPatch, WorkerRecord, WorkerRequest, WorkerRole, WorkerState},
};

impl SelectionCore {
    /// Registers or replaces a worker (`POST /workers`). A worker that a snapshot owns is changed at once and restored
    /// by the next [`Self::tick`].
    ///
    /// # Errors
    /// 400 when `data_parallel_size` exceeds the maximum or a weight is not finite; 503 while shutting down.
    pub fn upsert_worker(&self, request: WorkerRequest) -> Result<Arc<WorkerRecord>, SelectionError> {
        self.refuse_when_shutting_down()?;
        request.check_limits().map_err(SelectionError::BadRequest)?;
        let mut catalog = self.catalog.lock();
        let owner = owner_of(&catalog, request.worker_id);
        catalog.api_from_peer = false;
        let record = self.put(&mut catalog, Arc::new(request), WorkerState::Active, owner);
        self.changed_by_api(&mut catalog, &record);
        Ok(record)
    }

    /// Changes fields of a worker. Owned workers as in [`Self::upsert_worker`].
    ///
    /// # Errors
    /// 404 unknown id; 400 and 503 as for upsert.
    pub fn patch_worker(&self, worker_id: u64, patch: WorkerPatch) -> Result<Arc<WorkerRecord>, SelectionError> {
        self.refuse_when_shutting_down()?;
        let mut catalog = self.catalog.lock();
        let entry = catalog.workers.get(&worker_id).ok_or_else(|| unknown(worker_id))?;
        let (state, owner) = (entry.record.state, Arc::clone(&entry.record.owner));
        let mut request = (*entry.record.request).clone();
        request.fields.apply(patch);
        request.check_limits().map_err(SelectionError::BadRequest)?;
        let record = self.put(&mut catalog, Arc::new(request), state, owner);
        self.changed_by_api(&mut catalog, &record);
        Ok(record)
    }

    /// Removes a worker; its blocks are gone when this returns. Owned workers as in [`Self::upsert_worker`].
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn delete_worker(&self, worker_id: u64) -> Result<Arc<WorkerRecord>, SelectionError> {
        let mut catalog = self.catalog.lock();
        let record = self.remove(&mut catalog, worker_id).ok_or_else(|| unknown(worker_id))?;
        self.changed_by_api(&mut catalog, &record);
        Ok(Arc::new(WorkerRecord {
            lifecycle: Lifecycle::Unschedulable,
            not_schedulable_reasons: Vec::new(),
            ..(*record).clone()
        }))
    }

    /// All records, sorted by (model, group, id). Waits for no other verb.
    pub fn workers(&self, filter: &PartitionFilter) -> Vec<Arc<WorkerRecord>> {
        let records = self.records.read();
        let groups = records.iter().filter(|(key, _)| filter.accepts(key));
        groups.flat_map(|(_, group)| group.values().cloned()).collect()
    }

    /// One record.
    pub fn worker(&self, worker_id: u64) -> Option<Arc<WorkerRecord>> {
        self.catalog.lock().workers.get(&worker_id).map(|entry| Arc::clone(&entry.record))
    }

    /// Roles that partitions have now, each once.
    pub fn roles(&self) -> Vec<WorkerRole> {
        let mut roles = Vec::new();
        for partition in self.partitions(&PartitionFilter::default()) {
            roles.extend(partition.role().filter(|role| !roles.contains(role)));
        }
        roles
    }

    /// Workers anywhere that are schedulable.
    pub fn schedulable_workers(&self) -> u64 {
        self.schedulable.load(Ordering::Relaxed)
    }

    /// Whether a selection can be made anywhere: some partition has a schedulable worker and its last selection did not
    /// panic.
    pub fn can_select(&self) -> bool {
        let partitions = self.partitions.read();
        partitions.values().any(|partition| partition.schedulable_workers() > 0 && !partition.is_failing())
    }

    /// Panics contained in partitions since the start.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Partitions whose last selection panicked. Each is tried every second until it works again.
    pub fn failing_partitions(&self) -> Vec<PartitionKey> {
        let partitions = self.partitions(&PartitionFilter::default());
        partitions.iter().filter(|partition| partition.is_failing()).map(|partition| partition.key.clone()).collect()
    }

    /// An owned worker that the API changed is restored by the next tick.
    fn changed_by_api(&self, catalog: &mut MutexGuard<'_, Catalog>, record: &WorkerRecord) {
        if let Some(owner) = catalog.owners.get_mut(&*record.owner) {
            owner.dirty.insert(record.request.worker_id);
        }
        self.retry_freed(catalog);
    }
}

fn unknown(worker_id: u64) -> SelectionError {
    SelectionError::NotFound(format!("worker {worker_id} not found"))
}

/// Who owns the id: its live worker's owner, else an owner that wants it, else the API.
fn owner_of(catalog: &Catalog, worker_id: u64) -> Arc<str> {
    if let Some(entry) = catalog.workers.get(&worker_id) {
        return Arc::clone(&entry.record.owner);
    }
    let wanting = catalog.owners.iter().find(|(_, owner)| owner.desired.contains_key(&worker_id));
    wanting.map_or_else(|| Arc::from(API_OWNER), |(name, _)| Arc::clone(name))
}
