//! What an engine tells about its KV cache, before it is encoded.

use std::sync::Arc;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Device memory.
    Gpu,
    /// Host memory, filled with what the device evicts.
    Host,
}

/// What separates equal tokens of different requests: part of every block hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// LoRA adapter.
    pub lora_name: Option<Arc<str>>,
    /// Tenant's salt.
    pub cache_salt: Option<Arc<str>>,
}

/// One change of the cache, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Consecutive blocks of one chain are now held.
    Stored {
        /// The engine's hashes of the blocks.
        hashes: Vec<u64>,
        /// Hash of the block before the first; `None` at the start of a prompt.
        parent: Option<u64>,
        /// Tokens of all blocks.
        tokens: Vec<u32>,
        /// What the blocks belong to.
        namespace: Namespace,
        /// Where they lie.
        medium: Medium,
    },
    /// Blocks are held no more.
    Removed {
        /// Their hashes.
        hashes: Vec<u64>,
        /// Where they lay.
        medium: Medium,
    },
    /// Nothing is held any more.
    Cleared,
}
