//! One event of a dump, as it is read and as it is written.

use serde::{Deserialize, Serialize, Serializer};

use crate::selection::{
    identity::{Tier, WorkerWithDpRank},
    index::{ExportedRun, StoredBlock},
};

/// An event as peers of any version write it; unknown fields are ignored.
#[derive(Deserialize)]
pub(super) struct ReadEvent {
    worker_id: u64,
    #[serde(default)]
    storage_tier: Option<Tier>,
    #[serde(default)]
    residency_domain: Option<String>,
    event: ReadKvEvent,
}

#[derive(Deserialize)]
struct ReadKvEvent {
    data: ReadData,
    #[serde(default)]
    dp_rank: u32,
}

/// What an event says.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReadData {
    /// Blocks that are held.
    Stored {
        /// Name of the block before the first one.
        #[serde(default)]
        parent_hash: Option<u64>,
        /// In order.
        blocks: Vec<ReadBlock>,
    },
    /// Blocks that are not.
    Removed {
        /// Their names.
        block_hashes: Vec<u64>,
    },
    /// Nothing is held.
    Cleared,
}

#[derive(Deserialize)]
pub(super) struct ReadBlock {
    block_hash: u64,
    tokens_hash: u64,
}

impl From<&ReadBlock> for StoredBlock {
    fn from(block: &ReadBlock) -> Self {
        Self { name: block.block_hash, local: block.tokens_hash }
    }
}

impl ReadEvent {
    /// Rank, tier and content; `None` for residency domains other than workers' own.
    pub(super) fn into_parts(self) -> Option<(WorkerWithDpRank, Tier, ReadData)> {
        if self.residency_domain.is_some_and(|domain| domain != "worker") {
            return None;
        }
        let rank = WorkerWithDpRank::new(self.worker_id, self.event.dp_rank);
        Some((rank, self.storage_tier.unwrap_or(Tier::Device), self.event.data))
    }
}

/// A run as an event of the dump.
#[derive(Serialize)]
pub(super) struct WrittenEvent<'a> {
    worker_id: u64,
    storage_tier: Tier,
    residency_domain: &'static str,
    event: WrittenKvEvent<'a>,
}

#[derive(Serialize)]
struct WrittenKvEvent<'a> {
    event_id: u64,
    data: WrittenData<'a>,
    dp_rank: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum WrittenData<'a> {
    Stored {
        parent_hash: Option<u64>,
        start_position: Option<u64>,
        #[serde(serialize_with = "serialize_blocks")]
        blocks: &'a [StoredBlock],
    },
}

#[derive(Serialize)]
struct WrittenBlock {
    block_hash: u64,
    tokens_hash: u64,
    mm_extra_info: (),
}

fn serialize_blocks<S: Serializer>(blocks: &[StoredBlock], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(blocks.iter().map(|block| WrittenBlock {
        block_hash: block.name,
        tokens_hash: block.local,
        mm_extra_info: (),
    }))
}

impl<'a> WrittenEvent<'a> {
    pub(super) fn new(event_id: u64, run: &'a ExportedRun) -> Self {
        let data = WrittenData::Stored { parent_hash: run.parent, start_position: None, blocks: &run.blocks };
        Self {
            worker_id: run.rank.worker_id,
            storage_tier: run.tier,
            residency_domain: "worker",
            event: WrittenKvEvent { event_id, data, dp_rank: run.rank.dp_rank },
        }
    }
}
