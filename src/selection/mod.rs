//! The selection core: which worker rank a request goes to.
//!
//! Owns the catalog, one partition for each `(model_name, routing_group)`, and the verbs over them. It opens no socket
//! and reads no clock: time comes from a [`Clock`] its host supplies, KV events come in through an
//! [`ingest::EventSink`], and what the core needs from outside goes through the traits it declares itself.

pub mod catalog;
pub mod config;
pub mod core;
pub mod dump;
pub mod endpoint;
pub mod error;
pub mod explain;
pub mod hash;
pub mod hints;
pub mod identity;
pub mod index;
pub mod ingest;
pub mod instance;
pub mod load;
pub mod moment;
pub mod partition;
pub mod pending;
pub mod policy;
pub mod prompt;
pub mod queue;
pub mod replication;
pub mod request;
pub mod sessions;
mod slab;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
pub mod trust;
pub mod worker;

pub use config::SelectionConfig;
pub use core::SelectionCore;
pub use error::SelectionError;
pub use identity::{PartitionKey, Tier, WorkerWithDpRank};
pub use moment::{Clock, Moment};
