//! Start-up recovery: the index is filled from the first peer with a usable dump (spec index 7).
//!
//! Peers are asked one after the other. Every wait has a limit, a document that breaks off changes nothing, and when no
//! peer helps the service starts empty: selectors that start together never wait for each other.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Serialize;
use tokio::{sync::mpsc, time::timeout};

use super::config::RecoveryConfig;
use crate::selection::{
    SelectionCore,
    dump::{DumpError, DumpImport, ImportReport},
};

/// Pieces of a dump between the socket and the parser.
const PIECES_IN_FLIGHT: usize = 32;

/// Why a peer's dump was not used.
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
    /// The parser failed.
    #[error("reading the dump failed")]
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
    /// Why it was not used; absent for the one that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Stable word of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
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
    /// Events that were skipped.
    pub skipped_events: u64,
}

/// Asks the peers and fills `core`.
pub(super) async fn recover(core: Arc<SelectionCore>, config: RecoveryConfig) -> RecoveryReport {
    let mut report = RecoveryReport::default();
    if config.peers.is_empty() {
        return report;
    }
    tokio::time::sleep(config.wait).await;
    for peer in &config.peers {
        let outcome = match timeout(config.peer_deadline, fetch(&core, peer, &config)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(RecoveryError::Timeout("before the whole answer was read")),
        };
        let (error, reason) = match &outcome {
            Ok(_) => (None, None),
            Err(error) => (Some(error.to_string()), Some(error.reason())),
        };
        report.attempts.push(PeerAttempt { peer: peer.clone(), error, reason });
        match outcome {
            // A peer that is empty itself is no reason to start empty when another one is not.
            Ok(import) if import.blocks == 0 && import.partitions == 0 => {
                tracing::info!(peer, "recovery peer has nothing cached");
            }
            Ok(import) => {
                tracing::info!(peer, partitions = import.partitions, blocks = import.blocks, "recovered from peer");
                for (partition, reason) in &import.skipped_partitions {
                    tracing::warn!(peer, partition, reason, "skipped a partition of the peer's dump");
                }
                report.partitions = import.partitions;
                report.blocks = import.blocks;
                report.skipped_events = import.skipped_events;
                return report;
            }
            Err(error) => tracing::warn!(peer, %error, "recovery peer is not usable"),
        }
    }
    tracing::warn!("no peer had anything to recover from, starting empty");
    report
}

async fn fetch(core: &Arc<SelectionCore>, peer: &str, config: &RecoveryConfig) -> Result<ImportReport, RecoveryError> {
    let limit = config.timeout;
    // Peers are inside the cluster: a proxy of the environment is not asked.
    let client =
        reqwest::Client::builder().no_proxy().connect_timeout(limit).build().map_err(RecoveryError::Request)?;
    let request = client.get(format!("{}/dump", peer.trim_end_matches('/'))).send();
    let mut response = within(limit, "waiting for an answer", request).await?.map_err(RecoveryError::Request)?;
    if !response.status().is_success() {
        return Err(RecoveryError::Status(response.status().as_u16()));
    }
    if let Some(encoding) = response.headers().get(reqwest::header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(RecoveryError::Encoding(String::from_utf8_lossy(encoding.as_bytes()).into_owned()));
    }
    let (pieces, received) = mpsc::channel(PIECES_IN_FLIGHT);
    let reader = tokio::task::spawn_blocking(move || read(received));
    let mut total = 0u64;
    while let Some(piece) =
        within(limit, "between two pieces", response.chunk()).await?.map_err(RecoveryError::Request)?
    {
        total = total.saturating_add(piece.len() as u64);
        if total > config.max_bytes {
            return Err(RecoveryError::TooLarge(config.max_bytes));
        }
        if pieces.send(piece).await.is_err() {
            break;
        }
    }
    drop(pieces);
    let import = reader.await.map_err(|_| RecoveryError::Reader)??;
    let core = core.clone();
    let report =
        tokio::task::spawn_blocking(move || import.finish(&core)).await.map_err(|_| RecoveryError::Reader)??;
    Ok(report)
}

/// Feeds what is received to the parser, off the async threads.
fn read(mut received: mpsc::Receiver<Bytes>) -> Result<DumpImport, DumpError> {
    let mut import = DumpImport::default();
    while let Some(piece) = received.blocking_recv() {
        import.push(&piece)?;
    }
    Ok(import)
}

async fn within<T>(limit: Duration, what: &'static str, work: impl Future<Output = T>) -> Result<T, RecoveryError> {
    timeout(limit, work).await.map_err(|_| RecoveryError::Timeout(what))
}
