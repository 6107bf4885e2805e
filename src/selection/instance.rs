//! What the standalone indexer's verbs take and answer (spec index 9): an *instance* is a worker whose cache is indexed
//! and that takes no bookings.

use std::collections::BTreeMap;

use serde::Serialize;

use super::request::OverlapTokens;

/// One rank of an instance to be indexed (`POST /register`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRank {
    /// The instance; shares its numbers with workers.
    pub instance_id: u64,
    /// The rank.
    pub dp_rank: u32,
    /// Model name.
    pub model_name: String,
    /// Routing group.
    pub routing_group: String,
    /// Tokens a block.
    pub block_size: u32,
    /// ZMQ endpoint of the publisher.
    pub endpoint: String,
    /// ZMQ endpoint of the replay socket.
    pub replay_endpoint: Option<String>,
}

/// What is no longer to be indexed (`POST /unregister`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRemoval {
    /// The instance.
    pub instance_id: u64,
    /// Model it must be registered for.
    pub model_name: String,
    /// Group it must be registered for; any when absent.
    pub routing_group: Option<String>,
    /// One rank only; counts with a group alone, as in the reference.
    pub dp_rank: Option<u32>,
}

/// A prompt to look up (`POST /query`, `POST /query_by_hash`).
#[derive(Clone, Debug, PartialEq)]
pub enum IndexQuery {
    /// Tokens, hashed as the partition hashes.
    Tokens {
        /// Tokens.
        token_ids: Vec<u32>,
        /// LoRA adapter; empty equals absent.
        lora_name: Option<String>,
        /// Cache salt; empty equals absent.
        cache_salt: Option<String>,
    },
    /// Content hashes of whole blocks, bits of a u64, salt and adapter included.
    Hashes(Vec<i64>),
}

/// What every instance and worker of a partition holds of a prompt, in tokens. Ranks that hold nothing are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct IndexScores {
    /// Device tokens, by instance and rank; only where there are some.
    pub scores: BTreeMap<u64, BTreeMap<u32, u32>>,
    /// Always empty.
    pub frequencies: Vec<u32>,
    /// All tiers, by instance.
    pub instances: BTreeMap<u64, OverlapTokens>,
}
