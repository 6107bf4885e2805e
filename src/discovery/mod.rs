//! Discovery: sources of complete worker snapshots, and targets they are applied to.
//!
//! A source owns what the workers *should* be and yields whole [`Snapshot`]s, never changes to one; the first only once
//! it has the full list. One task a target applies it, each with the newest snapshot as its only pending work, so
//! that a slow or dead target delays nobody. Beside it, one task a target registers the others' publishers there, so that
//! selectors hear of each other's bookings.

pub mod apply;
pub mod file;
pub mod fleet;
pub mod identity;
pub mod metrics;
pub mod snapshot;
pub mod source;
pub mod wiring;

pub use snapshot::{Snapshot, epoch_now};
pub use source::{SourceState, SourceStatus};
