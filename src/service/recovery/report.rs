//! How start-up recovery ended, as `/readyz` shows it.

use serde::Serialize;

use crate::selection::{dump::DumpError, snapshot::SnapshotError};

/// Why a peer was not used.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The request cannot be made or sent, or the connection ended.
    #[error("request failed: {0}")]
    Request(#[source] reqwest::Error),
    /// The peer answered with an error.
    #[error("peer answered {0}")]
    Status(u16),
    /// The answer is compressed, which was not asked for.
    #[error("answer is encoded as `{0}`")]
    Encoding(String),
    /// Nothing came for too long, or not everything in time.
    #[error("timed out {0}")]
    Timeout(&'static str),
    /// More than is read.
    #[error("answer exceeds {0} bytes")]
    TooLarge(u64),
    /// Not a dump.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// Not a snapshot of an index.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A snapshot does not decompress, or to more than is read.
    #[error("index snapshot does not decompress")]
    Compression,
    /// Not a catalog.
    #[error("catalog cannot be read")]
    Catalog,
    /// The peer is recovering itself.
    #[error("peer is starting itself")]
    NotReady,
    /// It is this selector.
    #[error("it is this selector")]
    Itself,
    /// The reader failed.
    #[error("reading the answer failed")]
    Reader,
}

impl RecoveryError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Request(_) => "request",
            Self::Status(_) => "status",
            Self::Encoding(_) => "encoding",
            Self::Timeout(_) => "timeout",
            Self::TooLarge(_) => "too_large",
            Self::Dump(_) => "dump",
            Self::Snapshot(SnapshotError::Version(_)) => "version",
            Self::Snapshot(_) | Self::Compression => "snapshot",
            Self::Catalog => "catalog",
            Self::NotReady => "not_ready",
            Self::Itself => "itself",
            Self::Reader => "reader",
        }
    }
}

/// What became of one peer.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PeerAttempt {
    /// Its base URL, as configured.
    pub peer: String,
    /// `snapshot`, or `dump` for a peer without snapshots; absent when it told nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// Blocks taken from it.
    pub blocks: u64,
    /// Chunks that were asked for again because the connection broke.
    #[serde(skip_serializing_if = "is_zero")]
    pub resumed: u64,
    /// Why it was not used, or not to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Stable word of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl PeerAttempt {
    pub(super) fn of(peer: &str) -> Self {
        Self { peer: peer.to_owned(), kind: None, blocks: 0, resumed: 0, error: None, reason: None }
    }

    pub(super) fn failed(&mut self, error: &RecoveryError) {
        tracing::warn!(peer = self.peer, %error, "recovery peer is not usable");
        (self.error, self.reason) = (Some(error.to_string()), Some(error.reason()));
    }
}

/// How start-up recovery ended.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct RecoveryReport {
    /// Peers that were asked, in order.
    pub attempts: Vec<PeerAttempt>,
    /// Partitions filled.
    pub partitions: u64,
    /// Blocks stored.
    pub blocks: u64,
    /// Ranks whose stream goes on where a peer's snapshot was cut.
    pub resumed_ranks: u64,
    /// Ranks whose snapshot was void: their stream began anew while it was read.
    pub void_ranks: u64,
    /// Workers taken from a peer's catalog.
    pub workers: u64,
    /// Events of dumps that were skipped.
    pub skipped_events: u64,
    /// Seconds from the first question to the end.
    pub seconds: f64,
}
