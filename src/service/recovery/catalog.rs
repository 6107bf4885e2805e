//! The workers, from a peer, for a selector that starts while nobody applies a catalog: an absent operator never empties
//! a Service (design section 6).
//!
//! "Nobody applies" means: no workers file is configured, and no snapshot came before the peers told what they have.
//! Owners keep their names, epochs and generations, so a source that applies later is refused if its pair is lower and
//! wins if it is equal or higher, as everywhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures_util::future::join_all;
use serde::Deserialize;

use super::{super::Shared, RecoveryConfig, RecoveryError, client::Client};
use crate::{
    selection::catalog::{API_OWNER, CatalogStatus, DesiredWorker, OwnerStatus, PeerCatalog},
    telemetry::readiness::Condition,
};

/// Longest catalog read.
const MAX_BYTES: u64 = 512 << 20;

/// `GET /catalog?workers=true`.
#[derive(Debug, Deserialize)]
struct Body {
    #[serde(flatten)]
    status: CatalogStatus,
    #[serde(default)]
    workers: Vec<Owned>,
}

#[derive(Debug, Deserialize)]
struct Owned {
    owner: String,
    #[serde(flatten)]
    worker: DesiredWorker,
}

/// Takes the workers that `peers` know: each owner's from the one with the newest snapshot of it, those of the API from
/// all. Returns their number.
pub(super) async fn take(shared: &Arc<Shared>, peers: &[String], config: &RecoveryConfig) -> u64 {
    if peers.is_empty() || shared.core.catalog_applied() {
        return 0;
    }
    let answers = join_all(peers.iter().map(|peer| fetch(peer, config))).await;
    let mut owners: BTreeMap<String, (OwnerStatus, Vec<DesiredWorker>)> = BTreeMap::new();
    for (peer, answer) in peers.iter().zip(answers) {
        let Body { status, workers } = match answer {
            Ok(body) => body,
            Err(error) => {
                tracing::warn!(peer, %error, "cannot take the peer's catalog");
                continue;
            }
        };
        let mut by_owner: BTreeMap<String, Vec<DesiredWorker>> = BTreeMap::new();
        for Owned { owner, worker } in workers {
            by_owner.entry(owner).or_default().push(worker);
        }
        for status in status.owners {
            let workers = by_owner.remove(&status.owner).unwrap_or_default();
            if workers.is_empty() {
                continue;
            }
            match owners.get_mut(&status.owner) {
                // Each was told by itself, and to some of the peers only. An id that is known already stays as it is.
                Some((known, all)) if known.owner == API_OWNER => all.extend(workers),
                Some((known, _)) if known.version >= status.version => {}
                _ => drop(owners.insert(status.owner.clone(), (status, workers))),
            }
        }
    }
    // A snapshot that came meanwhile is somebody who applies.
    if owners.is_empty() || shared.core.catalog_applied() {
        return 0;
    }
    let names: BTreeSet<_> = owners.keys().cloned().collect();
    let taken: Vec<_> = owners
        .into_values()
        .map(|(status, workers)| PeerCatalog {
            owner: status.owner,
            version: status.version,
            digest: status.digest,
            workers,
        })
        .collect();
    let core = Arc::clone(&shared.core);
    let applied = tokio::task::spawn_blocking(move || taken.into_iter().map(|owner| core.take_catalog(owner)).sum());
    let workers: u64 = applied.await.unwrap_or(0);
    if names.iter().any(|name| name != API_OWNER) {
        shared.readiness.set(Condition::Catalog);
    }
    tracing::info!(workers, owners = ?names, "nobody applies a catalog: took it from peers");
    workers
}

async fn fetch(peer: &str, config: &RecoveryConfig) -> Result<Body, RecoveryError> {
    let client = Client::new(peer, config)?;
    let answer = client.get_whole("/catalog", &[("workers", "true")], MAX_BYTES).await?;
    let read = tokio::task::spawn_blocking(move || serde_json::from_slice(&answer));
    read.await.map_err(|_| RecoveryError::Reader)?.map_err(|_| RecoveryError::Catalog)
}
