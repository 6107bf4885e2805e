//! Dumps: what every partition has cached, in the JSON shape of the reference (spec index 6.3), written and read as a
//! stream.
//!
//! Writing holds one run of blocks in memory at a time. Reading takes the document in pieces of any size and holds one
//! event at a time; what it read is staged in indexes of its own, so a document that breaks off changes nothing.

pub mod import;

pub use import::{DumpError, DumpImport, ImportReport};
