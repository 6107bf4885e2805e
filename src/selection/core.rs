//! The verbs. Every edge (HTTP, embedding host, simulator) calls these and nothing below them.
//!
//! Worker verbs serialise on the catalog's lock, which no selection takes.

use std::sync::Arc;

use super::{
    catalog::{CatalogDelta, CatalogError, CatalogReport, CatalogSnapshot, CatalogStatus},
    config::{ConfigError, SelectionConfig},
    error::SelectionError,
    ingest::EventSources,
    moment::Clock,
    request::{
        LoadQuery, OverlapScores, PartitionLoads, RankLoadRow, ReservationRequest, ReservationResponse, SelectRequest,
        SelectResponse,
    },
    worker::{WorkerPatch, WorkerRecord, WorkerRequest},
};

/// The selection core.
pub struct SelectionCore {}

/// Restricts a listing to exact names.
#[derive(Clone, Debug, Default)]
pub struct PartitionFilter {
    /// Model name.
    pub model_name: Option<String>,
    /// Routing group.
    pub routing_group: Option<String>,
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
        let _ = (config, clock, sources);
        todo!()
    }

    /// A core for local use: system clock, no event sources.
    ///
    /// # Errors
    /// A setting out of range, a bad tracking-hash configuration among them.
    pub fn try_new_local(config: SelectionConfig) -> Result<Arc<Self>, ConfigError> {
        let _ = config;
        todo!()
    }

    // -- workers -------------------------------------------------------------------------------------------------

    /// Registers or replaces a worker (`POST /workers`).
    ///
    /// # Errors
    /// 400 when `data_parallel_size` exceeds the maximum.
    pub fn upsert_worker(&self, request: WorkerRequest) -> Result<WorkerRecord, SelectionError> {
        let _ = request;
        todo!()
    }

    /// Changes fields of a worker.
    ///
    /// # Errors
    /// 404 unknown id; 400 as for upsert.
    pub fn patch_worker(&self, worker_id: u64, patch: WorkerPatch) -> Result<WorkerRecord, SelectionError> {
        let _ = (worker_id, patch);
        todo!()
    }

    /// Removes a worker; its blocks are gone when this returns.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn delete_worker(&self, worker_id: u64) -> Result<WorkerRecord, SelectionError> {
        let _ = worker_id;
        todo!()
    }

    /// All records, sorted by (model, group, id).
    pub fn workers(&self, filter: &PartitionFilter) -> Vec<WorkerRecord> {
        let _ = filter;
        todo!()
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

    // -- selections ----------------------------------------------------------------------------------------------

    /// Chooses a rank and books nothing.
    ///
    /// # Errors
    /// Spec http 5.2.
    pub async fn select(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        let _ = request;
        todo!()
    }

    /// Chooses a rank and books it. Dropping the future before it is ready leaves nothing behind.
    ///
    /// # Errors
    /// Spec http 5.2.
    pub async fn select_and_reserve(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        let _ = request;
        todo!()
    }

    /// Books a named rank, or replays a cached selection.
    ///
    /// # Errors
    /// Spec http 6.
    pub async fn create_reservation(&self, request: ReservationRequest) -> Result<ReservationResponse, SelectionError> {
        let _ = request;
        todo!()
    }

    /// The prefill of a booking is done.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn prefill_complete(&self, selection_id: &str) -> Result<(), SelectionError> {
        let _ = selection_id;
        todo!()
    }

    /// A booking produced one block of output.
    ///
    /// # Errors
    /// 400 fraction outside `[0, 1]`; 404 unknown id.
    pub fn add_output_block(&self, selection_id: &str, decay_fraction: Option<f64>) -> Result<(), SelectionError> {
        let _ = (selection_id, decay_fraction);
        todo!()
    }

    /// Ends a booking.
    ///
    /// # Errors
    /// 404 unknown id.
    pub fn free_reservation(&self, selection_id: &str) -> Result<(), SelectionError> {
        let _ = selection_id;
        todo!()
    }

    // -- inspection ----------------------------------------------------------------------------------------------

    /// Load of every rank.
    pub fn loads(&self, filter: &PartitionFilter) -> Vec<PartitionLoads> {
        let _ = filter;
        todo!()
    }

    /// Load of every rank of one partition if it took the prompt.
    ///
    /// # Errors
    /// 503 not ready; 400 prompt.
    pub fn potential_loads(&self, query: &LoadQuery) -> Result<Vec<RankLoadRow>, SelectionError> {
        let _ = query;
        todo!()
    }

    /// What every rank of one partition has cached of the prompt.
    ///
    /// # Errors
    /// 503 not ready; 400 prompt.
    pub fn overlap_scores(&self, query: &LoadQuery) -> Result<OverlapScores, SelectionError> {
        let _ = query;
        todo!()
    }
}
