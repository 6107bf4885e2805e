//! Reading a dump.

use crate::selection::core::SelectionCore;

/// Why a dump cannot be read. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// Not the JSON of a dump, or it ends too early.
    #[error("dump is malformed at byte {offset}: {detail}")]
    Malformed {
        /// Bytes read before.
        offset: u64,
        /// What is wrong.
        detail: &'static str,
    },
    /// One event is larger than the limit.
    #[error("an event of the dump exceeds {0} bytes")]
    EventTooLarge(usize),
}

/// What became of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ImportReport {
    /// Partitions that were filled or created.
    pub partitions: u64,
    /// Events applied.
    pub events: u64,
    /// Blocks they stored.
    pub blocks: u64,
    /// Events skipped: unknown tier, other residency domain, malformed, no parent, no room.
    pub skipped_events: u64,
    /// Partitions skipped, each with its key and the reason.
    pub skipped_partitions: Vec<(String, String)>,
}

/// A dump being read. Push its bytes, then [`Self::finish`]; dropped before that, it leaves nothing behind.
#[derive(Debug, Default)]
pub struct DumpImport {}

impl DumpImport {
    /// Takes the next piece of the document.
    ///
    /// # Errors
    /// Malformed input; give up on this dump then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), DumpError> {
        let _ = bytes;
        todo!()
    }

    /// The document is complete: puts what was read into `core`. Partitions that do not exist are created with the
    /// dump's block size; an existing one with another block size is skipped.
    ///
    /// # Errors
    /// The document is not complete.
    pub fn finish(self, core: &SelectionCore) -> Result<ImportReport, DumpError> {
        let _ = core;
        todo!()
    }
}
