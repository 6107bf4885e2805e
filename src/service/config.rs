//! Settings of the service: those of the core, and where it starts from.

use std::{fmt, time::Duration};

use zeroize::Zeroizing;

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

/// A bearer token for peers. Never printed, wiped on drop.
#[derive(Clone)]
pub struct PeerToken(Zeroizing<String>);

impl PeerToken {
    /// The token as it is sent.
    pub fn new(token: Zeroizing<String>) -> Self {
        Self(token)
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerToken(redacted)")
    }
}

/// How index and catalog are filled from peers before the first selection (spec index 7, design section 6).
#[derive(Clone, Debug)]
pub struct RecoveryConfig {
    /// Base URLs of selectors or indexers; all are asked. Empty = no recovery.
    pub peers: Vec<String>,
    /// What guards their catalog and peer routes; goes along with every question.
    pub token: Option<PeerToken>,
    /// Take a peer's catalog unless somebody applies one here before the peers have answered. Off where a source of
    /// one's own is configured.
    pub take_catalog: bool,
    /// What was recovered for ranks that nobody has registered is forgotten after that long.
    pub strangers_after: Duration,
    /// Pause before the first peer is asked, so that peers that start together have opened their ports. Not for peers of
    /// the mesh that have been heard.
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
            token: None,
            take_catalog: true,
            strangers_after: Duration::from_secs(600),
            wait: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
            peer_deadline: Duration::from_secs(120),
            max_bytes: 16 << 30,
        }
    }
}
