//! The catalog: every worker record, who owns it, and where it stands (design sections 5 and 6).

mod state;

use serde::{Deserialize, Serialize};

pub(super) use self::state::{Attached, Catalog, Desired, Entry, Stream};
use super::worker::{Lifecycle, WorkerRequest, WorkerState};

/// One desired record of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct DesiredWorker {
    /// Active or draining.
    #[serde(default)]
    pub state: WorkerState,
    /// The record.
    #[serde(flatten)]
    pub request: WorkerRequest,
}

/// Order of an owner's snapshots; a smaller one is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct SnapshotVersion {
    /// Lease transitions of the operator, or start time in ms of a file source; at most 2^63 - 1.
    pub epoch: u64,
    /// Counts snapshots within an epoch; at most 2^63 - 1.
    pub generation: u64,
}

impl SnapshotVersion {
    /// Largest epoch and generation.
    pub const MAX_PART: u64 = i64::MAX.unsigned_abs();

    /// # Errors
    /// Why the pair cannot be in force.
    pub(super) fn check(self) -> Result<(), CatalogError> {
        for (name, part) in [("epoch", self.epoch), ("generation", self.generation)] {
            if part > Self::MAX_PART {
                let largest = Self::MAX_PART;
                return Err(CatalogError::Invalid(format!("{name} {part} is too large: at most {largest} (2^63 - 1)")));
            }
        }
        Ok(())
    }
}

/// One owner's complete desired set (`PUT /catalog/{owner}`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct CatalogSnapshot {
    /// Order.
    #[serde(flatten)]
    pub version: SnapshotVersion,
    /// XXH3-128 over the records sorted by id, state included, as the source computed it; opaque here.
    pub digest: String,
    /// Every record; an empty list removes the owner, whose version stays known.
    pub workers: Vec<DesiredWorker>,
}

/// A change against a digest the target is known to have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct CatalogDelta {
    /// Order.
    #[serde(flatten)]
    pub version: SnapshotVersion,
    /// Digest the delta starts from; anything else is 409 and the whole must be sent.
    pub base_digest: String,
    /// Resulting digest.
    pub digest: String,
    /// New and changed records.
    #[serde(default)]
    pub upsert: Vec<DesiredWorker>,
    /// Ids that left.
    #[serde(default)]
    pub delete: Vec<u64>,
}

/// The owner of workers that `POST /workers` registered.
pub const API_OWNER: &str = "api";

/// What became of one record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct WorkerOutcome {
    /// Worker.
    pub worker_id: u64,
    /// Where it stands; absent when rejected. `unschedulable` is a draining worker whose last booking has ended.
    pub lifecycle: Option<Lifecycle>,
    /// Why it is not schedulable, or `rejected: owned by X`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// The answer to a snapshot or delta.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct CatalogReport {
    /// Now in force.
    #[serde(flatten)]
    pub version: SnapshotVersion,
    /// Now in force.
    pub digest: String,
    /// Changes on restart of the selector.
    pub instance_id: String,
    /// A line a record, sorted by id.
    pub workers: Vec<WorkerOutcome>,
    /// Against what the owner wanted before; not told, logged.
    #[serde(skip)]
    pub changes: CatalogChanges,
}

/// What a snapshot or delta changed of an owner's desired set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogChanges {
    /// Records that are new, or another than before.
    pub upserted: usize,
    /// Records that left.
    pub deleted: usize,
    /// Records of another owner were taken over.
    pub adopted: bool,
}

impl CatalogChanges {
    /// Whether anything changed.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// One owner in `GET /catalog`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct OwnerStatus {
    /// `api`, `file.<name>`, `k8s.<namespace>.<set>`.
    pub owner: String,
    /// In force; zero for `api`.
    #[serde(flatten)]
    pub version: SnapshotVersion,
    /// In force; empty for `api`.
    pub digest: String,
    /// Records it owns.
    pub workers: u64,
    /// Of those, schedulable.
    pub schedulable: u64,
    /// Why its source is behind, e.g. an invalid workers file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_error: Option<String>,
    /// `peer` while the records are as a peer told them at start, and no source has applied any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<OwnerSource>,
}

/// Who told the records of an owner, when that was not the owner's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OwnerSource {
    /// A peer, at start.
    Peer,
}

/// One owner's records as a peer has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerCatalog {
    /// The owner, `api` included.
    pub owner: String,
    /// In force there; kept.
    pub version: SnapshotVersion,
    /// In force there.
    pub digest: String,
    /// Its live records.
    pub workers: Vec<DesiredWorker>,
}

/// `GET /catalog`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct CatalogStatus {
    /// Changes on restart.
    pub instance_id: String,
    /// Sorted by name.
    pub owners: Vec<OwnerStatus>,
}

/// Why a snapshot was refused whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// Older than what is in force (409; the answer carries the current pair and digest).
    #[error("snapshot ({}, {}) is older than the current ({}, {})", .offered.epoch, .offered.generation, .current.epoch, .current.generation)]
    Stale {
        /// What was sent.
        offered: SnapshotVersion,
        /// What is in force.
        current: SnapshotVersion,
        /// Digest in force.
        digest: String,
    },
    /// A delta against another digest (409; send the whole).
    #[error("delta starts from digest {base} but {current} is in force")]
    BaseMismatch {
        /// The delta's.
        base: String,
        /// In force.
        current: String,
    },
    /// Two records with one id, an owner name that is not valid, or the like (400).
    #[error("{0}")]
    Invalid(String),
    /// The service failed (500).
    #[error("{0}")]
    Internal(String),
}

impl CatalogError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Stale { .. } => "stale",
            Self::BaseMismatch { .. } => "base_mismatch",
            Self::Invalid(_) => "invalid",
            Self::Internal(_) => "internal",
        }
    }
}
