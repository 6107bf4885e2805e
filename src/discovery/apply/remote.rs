//! A selector behind HTTP: by `PUT /catalog/{owner}` where it offers that, by its `/workers` routes where it does not.

use std::{collections::HashMap, path::PathBuf};

use reqwest::Method;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{Check, ClientError, PassError, PassReport, Preview, RemoteClient, Target, reference::WorkersRoutes};
use crate::{
    discovery::{Snapshot, snapshot::next_epoch},
    selection::catalog::{CatalogReport, CatalogStatus, DesiredWorker, OwnerStatus, SnapshotVersion},
};

/// A delta is sent when it has at most this share of the records.
const DELTA_SHARE: usize = 2;

/// How a remote selector is driven.
#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// Owner of the records, `file.<name>`.
    pub owner: String,
    /// Bearer token.
    pub token: Option<Zeroizing<String>>,
    /// Where the ids sent to a selector without `/catalog` are remembered over restarts.
    pub state_dir: Option<PathBuf>,
    /// Delete workers that somebody else registered at a selector without `/catalog`.
    pub prune: bool,
    /// Epochs are given from outside: one that a selector finds too small is not raised here, the pass fails as
    /// [`PassError::Superseded`].
    pub epochs_are_given: bool,
}

/// A remote selector.
#[derive(Debug)]
pub struct RemoteTarget {
    client: RemoteClient,
    owner: String,
    /// Raised when the selector knows a later version than the source's.
    epoch: u64,
    epochs_are_given: bool,
    /// Schedulable workers that the first look after a pass found.
    schedulable: Option<u64>,
    face: Face,
    /// Of the run of the selector that was last applied to.
    instance_id: String,
    routes: WorkersRoutes,
}

/// A record in `GET /catalog?workers=true`.
#[derive(Debug, Deserialize)]
struct OwnedRecord {
    owner: String,
    #[serde(flatten)]
    worker: DesiredWorker,
}

#[derive(Debug, Deserialize)]
struct OwnedRecords {
    workers: Vec<OwnedRecord>,
}

/// What the selector offers.
#[derive(Debug)]
enum Face {
    /// Not asked yet, or answering differently than before.
    Unknown,
    /// `/catalog`, with what this process applied there last.
    Catalog(Option<Snapshot>),
    /// `/workers` alone.
    Workers,
}

impl RemoteTarget {
    /// The selector at `address`.
    ///
    /// # Errors
    /// An address that is none.
    pub fn new(address: &str, options: RemoteOptions) -> Result<Self, String> {
        let client = RemoteClient::new(address, options.token)?;
        let routes = WorkersRoutes::new(client.clone(), &options.owner, options.state_dir, options.prune);
        Ok(Self {
            client,
            owner: options.owner,
            epoch: 0,
            epochs_are_given: options.epochs_are_given,
            schedulable: None,
            face: Face::Unknown,
            instance_id: String::new(),
            routes,
        })
    }

    /// What applying `snapshot` would change.
    ///
    /// # Errors
    /// The selector cannot be asked.
    pub async fn preview(&mut self, snapshot: &Snapshot) -> Result<Preview, PassError> {
        if self.catalog().await?.is_none() {
            return self.routes.preview(snapshot).await;
        }
        let answer = self.client.call(Method::GET, &["catalog"], &[("workers", "true")], None).await?;
        let records: OwnedRecords = self.client.decode("GET /catalog?workers=true", &answer)?;
        let there: HashMap<u64, OwnedRecord> =
            records.workers.into_iter().map(|r| (r.worker.request.worker_id, r)).collect();
        let mut preview = Preview::default();
        for desired in snapshot.workers() {
            let id = desired.request.worker_id;
            match there.get(&id) {
                None => preview.added.push(id),
                Some(record) if record.owner != self.owner => preview.foreign.push((id, record.owner.clone())),
                Some(record) if record.worker != *desired => preview.changed.push(id),
                Some(_) => {}
            }
        }
        let left = |(id, record): (&u64, &OwnedRecord)| {
            (record.owner == self.owner && snapshot.get(*id).is_none()).then_some(*id)
        };
        preview.removed = there.iter().filter_map(left).collect();
        preview.removed.sort_unstable();
        Ok(preview)
    }

    /// Asks for the catalog; `None` where there is no such route.
    async fn catalog(&self) -> Result<Option<CatalogStatus>, ClientError> {
        match self.client.call(Method::GET, &["catalog"], &[], None).await {
            Ok(answer) => self.client.decode("GET /catalog", &answer).map(Some),
            Err(error) if matches!(error.status(), Some(404 | 405)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ours<'a>(&self, status: &'a CatalogStatus) -> Option<&'a OwnerStatus> {
        status.owners.iter().find(|o| o.owner == self.owner)
    }

    fn at_epoch(&self, snapshot: &Snapshot) -> Snapshot {
        let epoch = self.epoch.max(snapshot.version.epoch);
        snapshot.with_version(SnapshotVersion { epoch, ..snapshot.version })
    }

    async fn apply_catalog(&mut self, snapshot: &Snapshot) -> Result<PassReport, PassError> {
        if let Some(report) = self.try_delta(snapshot).await? {
            return Ok(report);
        }
        // Refused as old: go above what is in force. Only the refusal tells that of an owner without workers.
        let error = match self.send_whole(snapshot).await {
            Err(PassError::Call(error)) if error.status() == Some(409) => error,
            done => return done,
        };
        let current = match error.current() {
            Some(current) => current,
            None => {
                let now = self.catalog().await?.unwrap_or_default();
                self.ours(&now).map(|o| o.version).ok_or(error)?
            }
        };
        if self.epochs_are_given {
            return Err(PassError::Superseded(current));
        }
        tracing::warn!(
            selector = self.client.address(),
            owner = self.owner,
            epoch = current.epoch,
            generation = current.generation,
            "the selector has a later version of these workers: another source may be running"
        );
        self.epoch = next_epoch(current);
        match self.send_whole(snapshot).await {
            Err(PassError::Call(error)) if error.status() == Some(409) => {
                Err(PassError::Superseded(error.current().unwrap_or(current)))
            }
            done => done,
        }
    }

    /// Sends what changed since the last pass. The selector refuses it if it has something else by now.
    async fn try_delta(&mut self, snapshot: &Snapshot) -> Result<Option<PassReport>, PassError> {
        let Face::Catalog(Some(applied)) = &self.face else { return Ok(None) };
        let delta = self.at_epoch(snapshot).delta_from(applied);
        let (upserted, deleted) = (delta.upsert.len(), delta.delete.len());
        if (upserted + deleted) * DELTA_SHARE > snapshot.workers().len() {
            return Ok(None);
        }
        let body = serde_json::to_vec(&delta).map_err(|e| PassError::Refused(e.to_string()))?;
        match self.client.send_catalog(&["catalog", &self.owner], body).await {
            Ok(answer) => self.accepted(snapshot, &answer, upserted, deleted).map(Some),
            Err(error) if error.status() == Some(409) => Ok(None),
            Err(error) => Err(self.refusal(error)),
        }
    }

    async fn send_whole(&mut self, snapshot: &Snapshot) -> Result<PassReport, PassError> {
        let whole = self.at_epoch(snapshot).to_catalog();
        let body = serde_json::to_vec(&whole).map_err(|e| PassError::Refused(e.to_string()))?;
        match self.client.send_catalog(&["catalog", &self.owner], body).await {
            Ok(answer) => self.accepted(snapshot, &answer, snapshot.workers().len(), 0),
            Err(error) => Err(self.refusal(error)),
        }
    }

    fn accepted(
        &mut self,
        snapshot: &Snapshot,
        answer: &[u8],
        upserted: usize,
        deleted: usize,
    ) -> Result<PassReport, PassError> {
        let report: CatalogReport = self.client.decode("PUT /catalog", answer)?;
        self.face = Face::Catalog(Some(snapshot.clone()));
        self.instance_id = report.instance_id;
        self.schedulable = None;
        Ok(PassReport::new(upserted, deleted, report.workers))
    }

    /// Some statuses are about the snapshot, the others about the call.
    fn refusal(&mut self, error: ClientError) -> PassError {
        match error {
            ClientError::Status { status: 400 | 413 | 422, text, .. } => PassError::Refused(text),
            other => {
                if matches!(other.status(), Some(404 | 405)) {
                    self.face = Face::Unknown;
                }
                PassError::Call(other)
            }
        }
    }
}

impl Target for RemoteTarget {
    fn name(&self) -> &str {
        self.client.address()
    }

    async fn apply(&mut self, snapshot: &Snapshot) -> Result<PassReport, PassError> {
        if matches!(self.face, Face::Unknown) {
            self.face = match self.catalog().await? {
                Some(_) => Face::Catalog(None),
                None => {
                    tracing::info!(selector = self.client.address(), "no /catalog here: using the /workers routes");
                    Face::Workers
                }
            };
        }
        match self.face {
            Face::Workers => self.routes.apply(snapshot).await,
            Face::Catalog(_) | Face::Unknown => self.apply_catalog(snapshot).await,
        }
    }

    async fn check(&mut self, snapshot: &Snapshot) -> Result<Check, PassError> {
        if matches!(self.face, Face::Workers) {
            // It may have been replaced by one that has the same workers from a peer: those are the catalog's then.
            if self.catalog().await?.is_some() {
                self.face = Face::Unknown;
                return Ok(Check::Differs("the selector offers /catalog now"));
            }
            let found = self.routes.check(snapshot).await;
            // A selector that lost its workers was restarted, perhaps as another program.
            if !matches!(found, Ok(Check::Same)) {
                self.face = Face::Unknown;
            }
            return found;
        }
        let Some(status) = self.catalog().await? else {
            self.face = Face::Unknown;
            return Ok(Check::Differs("the selector answers differently"));
        };
        let ours = self.ours(&status);
        let digest = ours.map(|o| o.digest.as_str());
        if digest == Some(snapshot.digest()) || (digest.is_none() && snapshot.workers().is_empty()) {
            // Workers become schedulable, or cease to be, without a change of the catalog: a pass tells which.
            let now = ours.map(|o| o.schedulable);
            let before = std::mem::replace(&mut self.schedulable, now);
            let moved = before.is_some() && before != now;
            return Ok(if moved { Check::Differs("workers changed their states") } else { Check::Same });
        }
        let restarted = status.instance_id != self.instance_id;
        Ok(Check::Differs(if restarted { "the selector was restarted" } else { "another snapshot is in force" }))
    }
}
