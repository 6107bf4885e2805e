//! Routing policies under simulated load: a fleet of simulated engines in virtual time, and the workloads they serve.
//!
//! [`engine`] is a worker that batches, caches and evicts in virtual time, [`workload`] what is asked of a fleet of
//! them. Both are pure: no clock, no sockets, and every random number from the seed it is given.

pub mod engine;
pub mod workload;

/// Virtual time: nanoseconds since the start of the simulation.
pub type Nanos = u64;

/// A millisecond of virtual time.
pub const MILLISECOND: Nanos = 1_000_000;

/// A second of virtual time.
pub const SECOND: Nanos = 1_000_000_000;
