//! The cluster as a source of workers: one [`Snapshot`](crate::discovery::Snapshot) for each SelectorSet, and for each
//! ModelPool what became of every pod or endpoint.
//!
//! Two layers. [`world::World`] is pure: views of objects and the time go in, [`Sets`] come out, the same whatever the
//! order in which objects were told of. [`watch::ClusterSource`] is the edge: it lists and watches, and publishes.
//!
//! Invariants: nothing is published from a list that is not complete; a list that is read again replaces the old one at
//! once; what cannot be read keeps in force what was; a change is recomputed for the pools that it touches alone.

pub mod counters;
pub mod engine;
mod follow;
pub mod objects;
mod pool;
pub mod service;
mod set;
pub mod state;
pub mod watch;
pub mod world;

pub use counters::SourceCounters;
pub use state::{PoolOutcome, SelectorPod, SetKey, SetState, Sets};
pub use watch::{ClusterSource, Given, SourceOptions};

/// Whether the spec of `pool` can be followed.
///
/// # Errors
/// What a person has to change.
pub fn check_pool(pool: &super::api::ModelPool) -> Result<(), String> {
    pool::PoolSpec::new(pool).map(drop)
}

#[cfg(test)]
mod testing;
#[cfg(test)]
pub(super) mod tests;
