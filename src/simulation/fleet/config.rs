//! Selectors and engines of a fleet, before it runs.

use crate::simulation::{
    Nanos,
    engine::{EngineConfig, EngineError},
};

/// What stands in front of the workload.
#[derive(Clone, Debug)]
pub struct FleetConfig {
    /// Engines, 1 or more.
    pub workers: u32,
    /// Each of them.
    pub engine: EngineConfig,
    /// Speeds of the engines, given to them in turn; empty = all as `engine` says.
    pub speeds: Vec<f64>,
    /// From the end of a step to when selectors hear of what it cached; `None` = never.
    pub event_delay: Option<Nanos>,
    /// Selectors, 1 or more.
    pub replicas: u32,
    /// From a booking to when the other selectors know of it; `None` = never.
    pub mesh_lag: Option<Nanos>,
    /// Of random choices.
    pub seed: u64,
}

impl FleetConfig {
    /// Whether its engines can be.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self) -> Result<(), EngineError> {
        self.engine.check()?;
        self.speeds.iter().try_for_each(|&speed| EngineConfig { speed, ..self.engine.clone() }.check())
    }
}
