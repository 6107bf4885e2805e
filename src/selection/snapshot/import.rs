//! A chunk into an index. Every length is checked before it is believed; nothing is allocated for what did not come.

use std::sync::Arc;

use parking_lot::Mutex;

use super::envelope::{ChunkHeader, MEMORY, Memory, RUNS, SnapshotError, VERSION, take};
use crate::selection::{
    identity::{Tier, WorkerWithDpRank},
    index::StoredBlock,
    partition::{PartitionIndex, PartitionRef},
};

/// A chunk that was read.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Its envelope.
    pub header: ChunkHeader,
    body: &'a [u8],
}

/// Only what tells the version: another one may have another shape.
#[derive(serde::Deserialize)]
struct VersionOnly {
    version: u32,
}

impl<'a> Chunk<'a> {
    /// Reads envelope and lengths.
    ///
    /// # Errors
    /// Not a chunk of this version.
    pub fn read(mut bytes: &'a [u8]) -> Result<Self, SnapshotError> {
        let length = u32::from_le_bytes(take(&mut bytes)?) as usize;
        let (json, body) = bytes.split_at_checked(length).ok_or(SnapshotError::Malformed("it ends too early"))?;
        let malformed = |_| SnapshotError::Malformed("its envelope cannot be read");
        let VersionOnly { version } = serde_json::from_slice(json).map_err(malformed)?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let header: ChunkHeader = serde_json::from_slice(json).map_err(malformed)?;
        let named = header.sections.iter().try_fold(0u64, |sum, section| sum.checked_add(section.bytes));
        if named != Some(body.len() as u64) {
            return Err(SnapshotError::Malformed("its sections have another length than named"));
        }
        Ok(Self { header, body })
    }

    fn sections(&self, kind: &str) -> impl Iterator<Item = &'a [u8]> {
        let mut at = 0;
        let body = self.body;
        self.header.sections.iter().filter_map(move |section| {
            // The lengths were summed up to the body's.
            let bytes = body.get(at..at + section.bytes as usize)?;
            at += bytes.len();
            (section.kind == kind).then_some(bytes)
        })
    }

    /// What streams have taught.
    ///
    /// # Errors
    /// Malformed.
    pub fn memories(&self) -> Result<Vec<Memory>, SnapshotError> {
        let mut found = Vec::new();
        for mut bytes in self.sections(MEMORY) {
            while !bytes.is_empty() {
                let rank = u32::from_le_bytes(take(&mut bytes)?);
                let length = u32::from_le_bytes(take(&mut bytes)?) as usize;
                let Some((memory, rest)) = bytes.split_at_checked(length) else {
                    return Err(SnapshotError::Malformed("it ends too early"));
                };
                found.push(Memory { rank, bytes: memory.to_vec() });
                bytes = rest;
            }
        }
        Ok(found)
    }

    /// Stores the runs of the ranks that `table` names; others are passed over. Returns the number of blocks.
    ///
    /// # Errors
    /// Malformed; what came before is stored.
    pub fn store(
        &self,
        table: &[Option<WorkerWithDpRank>],
        partition: &RecoveringPartition,
    ) -> Result<u64, SnapshotError> {
        let mut stored = 0;
        let mut blocks = Vec::new();
        let closed = partition.closed.lock();
        if *closed {
            return Ok(0);
        }
        for mut bytes in self.sections(RUNS) {
            while !bytes.is_empty() {
                let rank = u32::from_le_bytes(take(&mut bytes)?);
                let [tier, has_parent] = take(&mut bytes)?;
                let count = usize::from(u16::from_le_bytes(take(&mut bytes)?));
                let parent = u64::from_le_bytes(take(&mut bytes)?);
                let Some((run, rest)) = bytes.split_at_checked(16 * count) else {
                    return Err(SnapshotError::Malformed("it ends too early"));
                };
                bytes = rest;
                let tier = *Tier::ALL.get(usize::from(tier)).ok_or(SnapshotError::Malformed("a tier is unknown"))?;
                let rank = table.get(rank as usize).ok_or(SnapshotError::Malformed("a rank is not in the table"))?;
                let Some(rank) = *rank else { continue };
                blocks.clear();
                blocks.extend(run.as_chunks::<8>().0.as_chunks::<2>().0.iter().map(|[name, local]| StoredBlock {
                    name: u64::from_le_bytes(*name),
                    local: u64::from_le_bytes(*local),
                }));
                partition.store(rank, tier, (has_parent != 0).then_some(parent), &blocks);
                stored += count as u64;
            }
        }
        Ok(stored)
    }
}

/// A partition whose index is being filled from a peer.
#[derive(Clone, Debug)]
pub struct RecoveringPartition {
    partition: PartitionRef,
    /// Held while a chunk is stored; nothing is stored any more once it is set.
    closed: Arc<Mutex<bool>>,
}

impl RecoveringPartition {
    /// `None` for a partition that predicts from own decisions: it has no streams to continue a snapshot with.
    pub(in crate::selection) fn new(partition: PartitionRef) -> Option<Self> {
        let takes = matches!(partition.index, PartitionIndex::Events { .. });
        takes.then(|| {
            partition.admit_strangers();
            Self { partition, closed: Arc::default() }
        })
    }

    fn store(&self, rank: WorkerWithDpRank, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) {
        self.partition.health().contain(|| self.partition.index.primary().store(rank, tier, parent, blocks));
    }

    /// Forgets what was stored for a rank.
    pub fn clear(&self, rank: WorkerWithDpRank) {
        self.partition.health().contain(|| self.partition.index.primary().clear(rank));
    }

    /// The snapshot will not be completed: forgets what was stored for `ranks`, and stores nothing more. Waits for the
    /// chunk that is being stored.
    pub fn abandon(&self, ranks: &[WorkerWithDpRank]) {
        *self.closed.lock() = true;
        ranks.iter().for_each(|&rank| self.clear(rank));
    }
}
