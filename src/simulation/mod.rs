//! Routing policies under simulated load: a fleet of simulated engines in virtual time behind real selection cores, and
//! the workloads they serve.
//!
//! | module | owns |
//! |---|---|
//! | [`engine`] | a worker that batches, caches and evicts in virtual time |
//! | [`workload`] | what is asked of a fleet: traces and generated sessions |
//! | [`catalogue`] | workloads by name |
//! | [`candidate`] | policies by name or document |
//! | [`clock`], [`fleet`] | selectors and engines together, in order of virtual time |
//! | [`figures`] | what is measured of a run |
//! | [`grid`] | cells, and the threads that run them |
//! | [`comparison`], [`quality`] | policies against a baseline; the routing quality index |
//! | [`study`] | the cells of the index, and its other figures |
//! | [`report`] | all of it as text, CSV and a page with charts |
//!
//! Engines and workloads are pure: no clock, no sockets, and every random number from the seed they are given. Selectors
//! are the core that the service runs, driven through its verbs, so a change of a policy shows in these numbers.

pub mod candidate;
pub mod catalogue;
pub mod clock;
pub mod comparison;
pub mod engine;
pub mod figures;
pub mod fleet;
pub mod grid;
pub mod quality;
pub mod report;
pub mod study;
pub mod workload;

/// Virtual time: nanoseconds since the start of the simulation.
pub type Nanos = u64;

/// A millisecond of virtual time.
pub const MILLISECOND: Nanos = 1_000_000;

/// A second of virtual time.
pub const SECOND: Nanos = 1_000_000_000;

/// Why a simulation could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The policy.
    #[error(transparent)]
    Candidate(#[from] candidate::CandidateError),
    /// The workload.
    #[error(transparent)]
    Workload(#[from] workload::WorkloadError),
    /// A workload that is not there.
    #[error(transparent)]
    Catalogue(#[from] catalogue::CatalogueError),
    /// Of an index not one workload is there.
    #[error("no workload of the index is there: {0}")]
    NoCells(String),
    /// What the engines are made of.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// Work that does not end within what virtual time can count.
    #[error("what was asked of the engines takes more than {days} days")]
    Endless {
        /// The limit.
        days: u64,
    },
    /// A worker that the core does not take.
    #[error("the selector does not take the simulated workers: {0}")]
    Worker(String),
    /// What one replica wrote another one cannot read.
    #[error("a message of the mesh could not be read")]
    Mesh,
}
