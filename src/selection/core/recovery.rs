//! Verbs of start-up recovery: partitions that a peer's dump fills before their workers are known.

use super::SelectionCore;
use crate::selection::{error::SelectionError, identity::PartitionKey, partition::PartitionRef};

impl SelectionCore {
    /// The partition `key`, made with `block_size` when it does not exist: where a peer's blocks are stored. It stays
    /// without workers until [`Self::discard_recovered`], or until workers came and left. Its eagle flag is set by the
    /// first worker.
    ///
    /// # Errors
    /// 400 block size 0; 409 the partition exists with another block size.
    pub fn recover_partition(&self, key: PartitionKey, block_size: u32) -> Result<PartitionRef, SelectionError> {
        let _ = (key, block_size);
        todo!()
    }

    /// A recovery failed halfway: empties the index of every partition that has no worker and removes it.
    pub fn discard_recovered(&self) {
        todo!()
    }
}
