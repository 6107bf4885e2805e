//! Names of things: workers, ranks, partitions, cache tiers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One data-parallel rank of a worker: the unit that holds blocks, has an event stream and carries load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct WorkerWithDpRank {
    /// The worker's id, unique in the service; the full 64-bit range is used.
    pub worker_id: u64,
    /// Global rank number.
    pub dp_rank: u32,
}

impl WorkerWithDpRank {
    /// Names rank `dp_rank` of `worker_id`.
    pub fn new(worker_id: u64, dp_rank: u32) -> Self {
        Self { worker_id, dp_rank }
    }
}

/// What shares one index, load tracker, queue, policy and session table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartitionKey {
    /// Model name; empty is a valid name of its own.
    pub model_name: Arc<str>,
    /// Routing group; empty is a valid name of its own.
    pub routing_group: Arc<str>,
}

impl PartitionKey {
    /// The partition of `model_name` and `routing_group`.
    pub fn new(model_name: impl Into<Arc<str>>, routing_group: impl Into<Arc<str>>) -> Self {
        Self { model_name: model_name.into(), routing_group: routing_group.into() }
    }
}

impl std::fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "model={} routing_group={}", self.model_name, self.routing_group)
    }
}

/// Where a cached block lies. The order is the order in which a match continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Tier {
    /// Accelerator memory.
    Device = 0,
    /// Pinned host memory.
    HostPinned = 1,
    /// Local disk.
    Disk = 2,
    /// Shared or remote storage.
    External = 3,
}

impl Tier {
    /// All tiers, in match order.
    pub const ALL: [Tier; 4] = [Tier::Device, Tier::HostPinned, Tier::Disk, Tier::External];
}
