//! Index snapshots between selectors of ours: one partition as a row of chunks, each complete in itself.
//!
//! A chunk is a JSON envelope and binary sections. Unknown fields and sections are ignored, unknown versions refused.
//! The first chunk tells, for every rank, the number of the newest batch applied *before* any block was read: stores
//! and removals say the same however often they are applied, so the blocks as they were read, in whatever moment, plus
//! every batch after that number give the state of the stream.
//!
//! | file | owns |
//! |---|---|
//! | `envelope` | what a chunk says beside its blocks |
//! | `export` | a partition as chunks |
//! | `import` | a chunk into an index |

mod envelope;
mod export;
mod import;

pub use self::{
    envelope::{ChunkHeader, Memory, PartitionHeader, RankHeader, Section, SnapshotError, VERSION},
    export::{ChunkWriter, IndexExport},
    import::{Chunk, RecoveringPartition},
};
