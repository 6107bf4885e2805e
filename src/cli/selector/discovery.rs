//! The workers file that a selector follows for itself.

use std::path::PathBuf;

use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::super::CliError;
use crate::{
    discovery::{
        SourceStatus,
        apply::{self, ApplyOptions, InProcessTarget, TargetStatus},
        file::{FollowOptions, WorkersFile},
        metrics,
    },
    service::SelectionService,
};

/// A workers file, followed and applied as long as this lives.
pub(super) struct Discovery {
    _file: WorkersFile,
    tasks: [JoinHandle<()>; 2],
}

impl Discovery {
    /// Follows `path` for `service` until `stop`; its workers are owned by `file.<catalog_name>`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(
        path: PathBuf,
        catalog_name: &str,
        service: &SelectionService,
        stop: &CancellationToken,
    ) -> Result<Self, CliError> {
        let owner = format!("file.{catalog_name}");
        let file = WorkersFile::follow(path, FollowOptions::default()).map_err(CliError::failed)?;
        let status = watch::Sender::new(TargetStatus::default());
        let targets = vec![("in-process".to_owned(), status.subscribe())];
        let applying = status.subscribe();
        metrics::register(service.metrics(), file.status(), file.counters(), targets);
        let target = InProcessTarget::new(service.clone(), owner.clone());
        let applied = apply::run(target, file.status(), ApplyOptions::default(), status, stop.clone());
        let told = tell_source_errors(service.clone(), owner, file.status(), applying, stop.clone());
        Ok(Self { _file: file, tasks: [tokio::spawn(applied), tokio::spawn(told)] })
    }

    /// Waits for the end of what `stop` has ended.
    pub(super) async fn finished(self) {
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "discovery ended badly");
            }
        }
    }
}

/// Shows in the catalog why it is behind the file: the file cannot be used, or the catalog refuses it.
async fn tell_source_errors(
    service: SelectionService,
    owner: String,
    mut source: SourceStatus,
    mut applying: watch::Receiver<TargetStatus>,
    stop: CancellationToken,
) {
    let tell = |error: Option<String>| {
        if let Err(failure) = service.set_source_error(&owner, error) {
            tracing::error!(%failure, "cannot show the state of the workers file");
        }
    };
    let mut told = None;
    loop {
        let refused = applying.borrow_and_update().error.as_ref().map(ToString::to_string);
        let error = source.borrow_and_update().error.as_deref().map(str::to_owned).or(refused);
        // Looks that change nothing come every second.
        if told.as_ref() != Some(&error) {
            tell(error.clone());
            told = Some(error);
        }
        tokio::select! {
            // It ends with the process; until then the file alone is told of.
            Ok(()) = applying.changed() => {}
            changed = source.changed() => if changed.is_err() {
                tracing::error!("the workers file is not followed any more");
                return tell(Some("the workers file is not followed any more: restart".to_owned()));
            },
            () = stop.cancelled() => return,
        }
    }
}
