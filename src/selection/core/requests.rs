//! Verbs of requests: selections, reservations, their lifecycle, and inspection.

use super::{PartitionFilter, SelectionCore};
use crate::selection::{
    error::SelectionError,
    moment::Moment,
    request::{
        LoadQuery, OverlapScores, PartitionLoads, RankLoadRow, ReservationRequest, ReservationResponse, SelectRequest,
        SelectResponse,
    },
};

impl SelectionCore {
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

    // -- periodic work, called by `tick` ---------------------------------------------------------------------------

    /// Removes rows of the booking index whose booking is gone and releases their session leases. Called once an
    /// expiry period.
    pub(super) fn sweep_bookings(&self, now: Moment) {
        let _ = now;
    }
}
