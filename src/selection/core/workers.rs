//! Verbs of workers: registration, snapshots, and periodic work.

use std::sync::Arc;

use super::{PartitionFilter, SelectionCore};
use crate::selection::{
    catalog::{CatalogDelta, CatalogError, CatalogReport, CatalogSnapshot, CatalogStatus},
    error::SelectionError,
    worker::{WorkerPatch, WorkerRecord, WorkerRequest},
};

impl SelectionCore {
    /// Registers or replaces a worker (`POST /workers`).
    ///
    /// # Errors
    /// 400 when `data_parallel_size` exceeds the maximum.
    pub fn upsert_worker(&self, request: WorkerRequest) -> Result<Arc<WorkerRecord>, SelectionError> {
        let _ = request;
        todo!()
    }

    /// Changes fields of a worker.
    ///
    /// # Errors
    /// 404 unknown id; 400 as for upsert.
    pub fn patch_worker(&self, worker_id: u64, patch: WorkerPatch) -> Result<Arc<WorkerRecord>, SelectionError> {
        let _ = (worker_id, patch);
        todo!()
    }

    /// Removes a worker; its blocks are gone when this returns.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn delete_worker(&self, worker_id: u64) -> Result<Arc<WorkerRecord>, SelectionError> {
        let _ = worker_id;
        todo!()
    }

    /// All records, sorted by (model, group, id).
    pub fn workers(&self, filter: &PartitionFilter) -> Vec<Arc<WorkerRecord>> {
        let _ = filter;
        todo!()
    }

    /// Workers anywhere that are schedulable.
    pub fn schedulable_workers(&self) -> u64 {
        self.schedulable.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// One owner's complete desired set; reconciled in one pass, one failing record does not stop the others.
    /// `adopt`: take over the records of that owner.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn apply_catalog(
        &self,
        owner: &str,
        snapshot: CatalogSnapshot,
        adopt: Option<&str>,
    ) -> Result<CatalogReport, CatalogError> {
        let _ = (owner, snapshot, adopt);
        todo!()
    }

    /// A change to an owner's desired set.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn apply_catalog_delta(&self, owner: &str, delta: CatalogDelta) -> Result<CatalogReport, CatalogError> {
        let _ = (owner, delta);
        todo!()
    }

    /// All owners.
    pub fn catalog(&self) -> CatalogStatus {
        todo!()
    }

    /// Says why an owner's source is behind, or that it no longer is.
    pub fn set_source_error(&self, owner: &str, error: Option<String>) {
        let _ = (owner, error);
        todo!()
    }

    /// Periodic work: expiry of bookings, sessions and approximate blocks, index sweeps, incomplete owned workers,
    /// drained workers. Call it about every 100 ms; each part keeps its own period.
    pub fn tick(&self) {
        todo!()
    }
}
