//! What happens to the selectors of a fleet, for those who want to feed another selector the same.

use crate::selection::{
    index::StoredBlock,
    request::{SelectRequest, SelectResponse},
    worker::WorkerRequest,
};

/// One thing that a selector was told or that it decided. An observer gets them in the order in which they take effect;
/// what selectors tell each other is not among them.
#[derive(Clone, Copy, Debug)]
pub enum FleetEvent<'a> {
    /// Every selector knows the worker.
    Joined(&'a WorkerRequest),
    /// Every selector heard that the worker caches `blocks`, which follow the block called `parent`.
    Stored {
        /// The worker.
        worker_id: u64,
        /// Name of the block before the first one; `None` at the beginning of a prompt.
        parent: Option<u64>,
        /// In the order of the prompt.
        blocks: &'a [StoredBlock],
    },
    /// Every selector heard that the worker no longer caches the blocks called `names`.
    Removed {
        /// The worker.
        worker_id: u64,
        /// Names of the blocks.
        names: &'a [u64],
    },
    /// A request came to the selector `replica`.
    Asked {
        /// Number of the selector.
        replica: u32,
        /// The request, its selection id given.
        request: &'a SelectRequest,
    },
    /// The selector `replica` chose a worker for it and booked it there.
    Chosen {
        /// Number of the selector.
        replica: u32,
        /// Its answer.
        answer: &'a SelectResponse,
    },
    /// The selector `replica` was told of the first token of a request.
    PrefillComplete {
        /// Number of the selector.
        replica: u32,
        /// The request.
        selection_id: &'a str,
        /// Whether the booking was still there: they expire.
        booked: bool,
    },
    /// The selector `replica` was told that a request ended.
    Freed {
        /// Number of the selector.
        replica: u32,
        /// The request.
        selection_id: &'a str,
        /// Whether the booking was still there: they expire.
        booked: bool,
    },
}
