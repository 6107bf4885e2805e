//! What a chunk says beside its blocks, and how its parts lie together: the length of the JSON (4 bytes, little
//! endian), the JSON, the sections it names.

use serde::{Deserialize, Serialize};

use crate::selection::{identity::PartitionKey, trust::Trust};

/// The version this program writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// Why a chunk cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Another version.
    #[error("index snapshot has version {0}, this selector reads version {VERSION}: upgrade the older one")]
    Version(u32),
    /// Not a chunk.
    #[error("index snapshot is malformed: {0}")]
    Malformed(&'static str),
}

impl SnapshotError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Version(_) => "version",
            Self::Malformed(_) => "malformed",
        }
    }
}

/// The envelope of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChunkHeader {
    /// [`VERSION`].
    pub version: u32,
    /// The export it belongs to.
    pub export: String,
    /// Its place in the row, from 0.
    pub chunk: u64,
    /// Nothing comes after it.
    #[serde(default)]
    pub last: bool,
    /// In the first chunk: which partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionHeader>,
    /// In the first chunk: the ranks; sections name them by their place here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankHeader>,
    /// In the last chunk: ranks whose stream began anew or lost its blocks while they were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub void: Vec<u32>,
    /// What follows, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sections: Vec<Section>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionHeader {
    /// Its name.
    #[serde(flatten)]
    pub key: PartitionKey,
    /// Tokens a block.
    pub block_size: u32,
}

/// A rank, as it stood before its blocks were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankHeader {
    /// Worker.
    pub worker_id: u64,
    /// Rank.
    pub dp_rank: u32,
    /// Blocks it holds in all tiers.
    pub blocks: u64,
    /// Endpoint of its stream; absent when it has none here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Number of the newest batch applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Fingerprint of that batch's payload (XXH3-64).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<u64>,
    /// How far it can be believed.
    #[serde(default)]
    pub trust: Trust,
}

/// A part after the JSON. Kinds known: `runs`, `memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// What it holds.
    pub kind: String,
    /// Its length.
    pub bytes: u64,
}

/// What the events of one stream have taught its listener, as bytes that only listeners read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Place in the table of ranks.
    pub rank: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Section of runs: rank (4 bytes), tier (1), whether there is a parent (1), number of blocks (2), parent (8), then name
/// and content hash of each block (8 and 8). All little endian.
pub(super) const RUNS: &str = "runs";
/// Section of memories: rank (4 bytes), length (4), bytes.
pub(super) const MEMORY: &str = "memory";
/// Bytes of a run before its blocks.
pub(super) const RUN_HEAD: usize = 16;

/// Reads a number from the front.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], SnapshotError> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(SnapshotError::Malformed("it ends too early"))?;
    *bytes = rest;
    Ok(*head)
}
