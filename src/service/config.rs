//! Settings of the service: those of the core, and where it starts from.

use std::time::Duration;

use crate::{selection::SelectionConfig, telemetry::readiness::ReadyRequirements};

/// Settings of a [`super::SelectionService`]. `Default` is what an unconfigured selector runs.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// The core's.
    pub selection: SelectionConfig,
    /// Start-up recovery.
    pub recovery: RecoveryConfig,
    /// What `/readyz` waits for.
    pub ready_requires: ReadyRequirements,
    /// Interval of the core's periodic work.
    pub tick_interval: Duration,
    /// Time without a completed tick after which the service reports that it is stuck.
    pub stuck_after: Duration,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            selection: SelectionConfig::default(),
            recovery: RecoveryConfig::default(),
            ready_requires: ReadyRequirements::default(),
            tick_interval: Duration::from_millis(100),
            stuck_after: Duration::from_secs(10),
        }
    }
}

/// How the index is filled from peers before the first selection (spec index 7).
#[derive(Clone, Debug)]
pub struct RecoveryConfig {
    /// Base URLs, asked in order for `/dump`; the first usable answer wins. Empty = no recovery.
    pub peers: Vec<String>,
    /// Pause before the first peer is asked, so that peers that start together have opened their ports.
    pub wait: Duration,
    /// Longest time to connect, to the first byte of an answer, and between two pieces of it.
    pub timeout: Duration,
    /// Longest time for one peer's whole answer.
    pub peer_deadline: Duration,
    /// Largest answer read, in bytes; a longer one is not usable.
    pub max_bytes: u64,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            wait: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
            peer_deadline: Duration::from_secs(120),
            max_bytes: 16 << 30,
        }
    }
}
