//! The verbs (spec clients 5a): what a host calls. Those that are not `async` never wait for I/O; worker and catalog
//! verbs of many workers take a while, so async hosts call them off their async threads.

use std::{io, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;

use super::SelectionService;
use crate::{
    selection::{
        SelectionError,
        catalog::{CatalogDelta, CatalogError, CatalogReport, CatalogSnapshot, CatalogStatus},
        core::PartitionFilter,
        queue::report::PartitionQueue,
        request::{
            LoadQuery, OverlapScores, PartitionLoads, RankLoadRow, ReservationRequest, ReservationResponse,
            SelectRequest, SelectResponse,
        },
        worker::{Lifecycle, WorkerPatch, WorkerRecord, WorkerRequest},
    },
    telemetry::readiness::Condition,
};

impl SelectionService {
    // -- workers -------------------------------------------------------------------------------------------------

    /// Registers or replaces a worker.
    ///
    /// # Errors
    /// 400 when `data_parallel_size` exceeds the maximum.
    pub fn upsert_worker(&self, request: WorkerRequest) -> Result<Arc<WorkerRecord>, SelectionError> {
        self.shared.contain("upsert_worker", || self.shared.core.upsert_worker(request))?
    }

    /// Changes fields of a worker.
    ///
    /// # Errors
    /// 404 unknown id; 400 as for upsert.
    pub fn patch_worker(&self, worker_id: u64, patch: WorkerPatch) -> Result<Arc<WorkerRecord>, SelectionError> {
        self.shared.contain("patch_worker", || self.shared.core.patch_worker(worker_id, patch))?
    }

    /// Removes a worker; its blocks are gone when this returns.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn delete_worker(&self, worker_id: u64) -> Result<Arc<WorkerRecord>, SelectionError> {
        self.shared.contain("delete_worker", || self.shared.core.delete_worker(worker_id))?
    }

    /// All records, sorted by (model, group, id).
    ///
    /// # Errors
    /// 500 only.
    pub fn workers(&self, filter: &PartitionFilter) -> Result<Vec<Arc<WorkerRecord>>, SelectionError> {
        self.shared.contain("workers", || self.shared.core.workers(filter))
    }

    /// One owner's complete desired set.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn apply_catalog(
        &self,
        owner: &str,
        snapshot: CatalogSnapshot,
        adopt: Option<&str>,
    ) -> Result<CatalogReport, CatalogError> {
        let applied = self.shared.contain("apply_catalog", || self.shared.core.apply_catalog(owner, snapshot, adopt));
        let report = applied.map_err(|error| CatalogError::Internal(error.to_string()))??;
        self.shared.readiness.set(Condition::Catalog);
        log_changes(owner, &report);
        Ok(report)
    }

    /// A change to an owner's desired set.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn apply_catalog_delta(&self, owner: &str, delta: CatalogDelta) -> Result<CatalogReport, CatalogError> {
        let applied = self.shared.contain("apply_catalog_delta", || self.shared.core.apply_catalog_delta(owner, delta));
        let report = applied.map_err(|error| CatalogError::Internal(error.to_string()))??;
        self.shared.readiness.set(Condition::Catalog);
        log_changes(owner, &report);
        Ok(report)
    }

    /// All owners.
    ///
    /// # Errors
    /// 500 only.
    pub fn catalog(&self) -> Result<CatalogStatus, SelectionError> {
        self.shared.contain("catalog", || self.shared.core.catalog())
    }

    /// Says why an owner's source is behind, or that it no longer is.
    ///
    /// # Errors
    /// 500 only.
    pub fn set_source_error(&self, owner: &str, error: Option<String>) -> Result<(), SelectionError> {
        self.shared.contain("set_source_error", || self.shared.core.set_source_error(owner, error))
    }

    // -- selections ----------------------------------------------------------------------------------------------

    /// Chooses a rank and books nothing.
    ///
    /// # Errors
    /// Spec http 5.2; 503 until start-up recovery is over.
    pub async fn select(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        self.require_recovered()?;
        self.contain_async("select", self.shared.core.select(request)).await
    }

    /// Chooses a rank and books it. Dropping the future before it is ready leaves nothing behind.
    ///
    /// # Errors
    /// As [`Self::select`].
    pub async fn select_and_reserve(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        self.require_recovered()?;
        self.contain_async("select_and_reserve", self.shared.core.select_and_reserve(request)).await
    }

    /// Books a named rank, or replays a cached selection.
    ///
    /// # Errors
    /// Spec http 6; 503 until start-up recovery is over.
    pub async fn create_reservation(&self, request: ReservationRequest) -> Result<ReservationResponse, SelectionError> {
        self.require_recovered()?;
        self.contain_async("create_reservation", self.shared.core.create_reservation(request)).await
    }

    /// The prefill of a booking is done.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn prefill_complete(&self, selection_id: &str) -> Result<(), SelectionError> {
        self.shared.contain("prefill_complete", || self.shared.core.prefill_complete(selection_id))?
    }

    /// A booking produced one block of output.
    ///
    /// # Errors
    /// 400 fraction outside `[0, 1]`; 404 unknown id.
    pub fn add_output_block(&self, selection_id: &str, decay_fraction: Option<f64>) -> Result<(), SelectionError> {
        self.shared.contain("add_output_block", || self.shared.core.add_output_block(selection_id, decay_fraction))?
    }

    /// Ends a booking.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn free_reservation(&self, selection_id: &str) -> Result<(), SelectionError> {
        self.shared.contain("free_reservation", || self.shared.core.free_reservation(selection_id))?
    }

    // -- inspection ----------------------------------------------------------------------------------------------

    /// Requests that wait, by partition and policy class.
    ///
    /// # Errors
    /// 500 only.
    pub fn queues(&self, filter: &PartitionFilter) -> Result<Vec<PartitionQueue>, SelectionError> {
        self.shared.contain("queues", || self.shared.core.queues(filter))
    }

    /// Load of every rank.
    ///
    /// # Errors
    /// 500 only.
    pub fn loads(&self, filter: &PartitionFilter) -> Result<Vec<PartitionLoads>, SelectionError> {
        self.shared.contain("loads", || self.shared.core.loads(filter))
    }

    /// Load of every rank of one partition if it took the prompt.
    ///
    /// # Errors
    /// 503 not ready; 400 prompt.
    pub fn potential_loads(&self, query: &LoadQuery) -> Result<Vec<RankLoadRow>, SelectionError> {
        self.require_recovered()?;
        self.shared.contain("potential_loads", || self.shared.core.potential_loads(query))?
    }

    /// What every rank of one partition has cached of the prompt.
    ///
    /// # Errors
    /// 503 not ready; 400 prompt.
    pub fn overlap_scores(&self, query: &LoadQuery) -> Result<OverlapScores, SelectionError> {
        self.require_recovered()?;
        self.shared.contain("overlap_scores", || self.shared.core.overlap_scores(query))?
    }

    /// Writes everything cached, in the JSON shape that peers recover from. Blocks as long as `out` does.
    ///
    /// # Errors
    /// The first error of `out`.
    pub fn dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.shared.contain("dump", || self.shared.core.write_dump(out)).map_err(io::Error::other)?
    }

    pub(super) fn require_recovered(&self) -> Result<(), SelectionError> {
        if self.is_recovered() {
            return Ok(());
        }
        Err(SelectionError::Unavailable("start-up recovery is not complete".to_owned()))
    }

    async fn contain_async<R>(
        &self,
        verb: &'static str,
        run: impl Future<Output = Result<R, SelectionError>>,
    ) -> Result<R, SelectionError> {
        match AssertUnwindSafe(run).catch_unwind().await {
            Ok(result) => result,
            Err(panic) => Err(self.shared.panicked(verb, &*panic)),
        }
    }
}

/// A line for each snapshot or delta that changed something; sources send what is in force again and again.
fn log_changes(owner: &str, report: &CatalogReport) {
    if !report.changes.any() {
        return;
    }
    let count = |lifecycle| report.workers.iter().filter(|worker| worker.lifecycle == lifecycle).count();
    tracing::info!(
        owner,
        epoch = report.version.epoch,
        generation = report.version.generation,
        upserted = report.changes.upserted,
        deleted = report.changes.deleted,
        incomplete = count(Some(Lifecycle::Incomplete)),
        rejected = count(None),
        "catalog changed"
    );
}
