//! Dumps: what every partition has cached, in the JSON shape of the reference (spec index 6.3), written and read as a
//! stream.
//!
//! Writing holds one run of blocks in memory at a time. Reading takes the document in pieces of any size and holds one
//! event at a time; what it read is staged in indexes of its own, so a document that breaks off changes nothing.
//!
//! The key of a partition is `model:group`. Where a name contains a colon that is ambiguous (the reference splits at
//! the first one), so such a partition carries `model_name` and `routing_group` besides, which the reference ignores.

mod chains;
mod event;
mod export;
mod import;
mod scanner;

pub use self::import::{DumpError, DumpImport, ImportReport};
pub(super) use self::{chains::for_each_chain, export::write, import::StagedPartition};
