//! The service in this process as a target.

use tokio::task::spawn_blocking;

use super::{Check, ClientError, PassError, PassReport, Target};
use crate::{
    discovery::{Snapshot, snapshot::next_epoch},
    selection::catalog::{CatalogError, CatalogReport, SnapshotVersion},
    service::SelectionService,
};

/// Applies snapshots to a service by its own verb. The core reconciles by itself what the API changes in between.
#[derive(Debug)]
pub struct InProcessTarget {
    service: SelectionService,
    owner: String,
    /// Raised when the catalog knows a later version than the source's.
    epoch: u64,
}

impl InProcessTarget {
    /// The records of `owner` in `service`.
    pub fn new(service: SelectionService, owner: String) -> Self {
        Self { service, owner, epoch: 0 }
    }

    async fn send(&self, snapshot: Snapshot) -> Result<Result<CatalogReport, CatalogError>, PassError> {
        let (service, owner) = (self.service.clone(), self.owner.clone());
        // Many workers take a while: not on a thread that serves requests.
        spawn_blocking(move || service.apply_catalog(&owner, snapshot.to_catalog(), None))
            .await
            .map_err(|error| PassError::Refused(error.to_string()))
    }
}

impl Target for InProcessTarget {
    fn name(&self) -> &str {
        "in-process"
    }

    async fn apply(&mut self, snapshot: &Snapshot) -> Result<PassReport, PassError> {
        let at = |epoch: u64| {
            let version = SnapshotVersion { epoch: epoch.max(snapshot.version.epoch), ..snapshot.version };
            snapshot.with_version(version)
        };
        let mut outcome = self.send(at(self.epoch)).await?;
        if let Err(CatalogError::Stale { current, .. }) = &outcome {
            self.epoch = next_epoch(*current);
            outcome = self.send(at(self.epoch)).await?;
        }
        match outcome {
            Ok(report) => Ok(PassReport::new(snapshot.workers().len(), 0, report.workers)),
            Err(CatalogError::Stale { current, .. }) => Err(PassError::Superseded(current)),
            Err(error) => Err(PassError::Refused(error.to_string())),
        }
    }

    async fn check(&mut self, snapshot: &Snapshot) -> Result<Check, PassError> {
        let service = self.service.clone();
        let status = spawn_blocking(move || service.catalog()).await;
        let Ok(Ok(status)) = status else { return Err(PassError::Call(ClientError::unavailable("catalog"))) };
        let ours = status.owners.iter().find(|o| o.owner == self.owner);
        match ours {
            None if snapshot.workers().is_empty() => Ok(Check::Same),
            Some(ours) if ours.digest == snapshot.digest() => Ok(Check::Same),
            _ => Ok(Check::Differs("another snapshot is in force")),
        }
    }
}
