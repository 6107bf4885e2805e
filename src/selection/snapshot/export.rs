//! A partition as chunks. Holds the cursor of the export and one chunk at a time.

use std::collections::HashMap;

use super::envelope::{
    ChunkHeader, MEMORY, Memory, PartitionHeader, RUN_HEAD, RUNS, RankHeader, Section, SnapshotError, VERSION,
};
use crate::selection::{
    identity::WorkerWithDpRank,
    index::{ExportCursor, ExportedRun},
    partition::PartitionRef,
};

/// Most blocks a run of a chunk.
const MAX_RUN: usize = u16::MAX as usize;

/// An export under way.
#[derive(Debug)]
pub struct IndexExport {
    id: String,
    partition: PartitionRef,
    ranks: HashMap<WorkerWithDpRank, u32>,
    cursor: ExportCursor,
    next: u64,
    done: bool,
}

impl IndexExport {
    /// An export of `partition` for the ranks of `table`, whose positions were read already. Runs of other ranks are
    /// left out: they came after.
    pub fn new(id: String, partition: PartitionRef, table: &[RankHeader]) -> Self {
        let ranks = table.iter().zip(0..);
        let ranks = ranks.map(|(rank, at)| (WorkerWithDpRank::new(rank.worker_id, rank.dp_rank), at)).collect();
        Self { id, partition, ranks, cursor: ExportCursor::default(), next: 0, done: false }
    }

    /// Number of the next chunk.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether every block is out: only the last chunk is missing.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The first chunk: the ranks and what their streams have taught.
    pub fn first(&mut self, table: Vec<RankHeader>, memories: &[Memory]) -> Vec<u8> {
        let partition = PartitionHeader { key: self.partition.key.clone(), block_size: self.partition.block_size };
        let mut writer = ChunkWriter::new(self.header());
        (writer.header.partition, writer.header.ranks) = (Some(partition), table);
        for memory in memories {
            writer.body.extend_from_slice(&memory.rank.to_le_bytes());
            writer.body.extend_from_slice(&u32::try_from(memory.bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
            writer.body.extend_from_slice(&memory.bytes);
        }
        writer.finish(MEMORY)
    }

    /// A chunk of about `blocks` blocks.
    ///
    /// # Errors
    /// The index failed.
    pub fn runs(&mut self, blocks: usize) -> Result<Vec<u8>, SnapshotError> {
        let mut writer = ChunkWriter::new(self.header());
        let (cursor, ranks) = (&mut self.cursor, &self.ranks);
        let index = self.partition.index.primary();
        let more = self.partition.health().contain(|| {
            index.export_more(cursor, blocks, &mut |run| {
                if let Some(&rank) = ranks.get(&run.rank) {
                    writer.run(rank, &run);
                }
            })
        });
        self.done = !more.ok_or(SnapshotError::Malformed("the index failed"))?;
        Ok(writer.finish(RUNS))
    }

    /// The last chunk.
    pub fn last(&mut self, void: Vec<u32>) -> Vec<u8> {
        let mut writer = ChunkWriter::new(self.header());
        (writer.header.void, writer.header.last) = (void, true);
        writer.finish(RUNS)
    }

    fn header(&mut self) -> ChunkHeader {
        let header =
            ChunkHeader { version: VERSION, export: self.id.clone(), chunk: self.next, ..ChunkHeader::default() };
        self.next += 1;
        header
    }
}

/// Writes one chunk.
#[derive(Debug)]
pub struct ChunkWriter {
    /// Its envelope; sections are added when it is finished.
    pub header: ChunkHeader,
    body: Vec<u8>,
}

impl ChunkWriter {
    /// A chunk without content.
    pub fn new(header: ChunkHeader) -> Self {
        Self { header, body: Vec::new() }
    }

    /// Adds a run of the rank at `rank` in the table.
    pub fn run(&mut self, rank: u32, run: &ExportedRun) {
        let mut parent = run.parent;
        for blocks in run.blocks.chunks(MAX_RUN) {
            self.body.reserve(RUN_HEAD + 16 * blocks.len());
            self.body.extend_from_slice(&rank.to_le_bytes());
            self.body.extend_from_slice(&[run.tier as u8, u8::from(parent.is_some())]);
            self.body.extend_from_slice(&(blocks.len() as u16).to_le_bytes());
            self.body.extend_from_slice(&parent.unwrap_or(0).to_le_bytes());
            for block in blocks {
                self.body.extend_from_slice(&block.name.to_le_bytes());
                self.body.extend_from_slice(&block.local.to_le_bytes());
            }
            parent = blocks.last().map(|block| block.name);
        }
    }

    /// The chunk, with all that was added as one section.
    pub fn finish(mut self, kind: &str) -> Vec<u8> {
        if !self.body.is_empty() {
            self.header.sections.push(Section { kind: kind.to_owned(), bytes: self.body.len() as u64 });
        }
        // Plain strings and numbers always serialise.
        let header = serde_json::to_vec(&self.header).unwrap_or_default();
        let mut out = Vec::with_capacity(4 + header.len() + self.body.len());
        out.extend_from_slice(&u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(&self.body);
        out
    }
}
