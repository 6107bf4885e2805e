//! The workers that a selector finds for itself: in a workers file, or in the cluster.

use std::sync::Arc;

use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{super::CliError, flags::SelectorArgs};
#[cfg(feature = "controller")]
use crate::{
    discovery::epoch_now,
    kubernetes::{
        connection,
        standalone::{Settings, Standalone, wire_peers},
    },
};
use crate::{
    discovery::{
        SourceStatus,
        apply::{self, ApplyOptions, InProcessTarget, TargetStatus},
        file::{FollowOptions, WorkersFile},
        metrics,
        source::SourceCounters,
    },
    service::SelectionService,
};

/// Where workers are found; followed as long as this lives.
#[allow(dead_code, reason = "it is held, not read")]
enum Source {
    File(WorkersFile),
    #[cfg(feature = "controller")]
    Cluster(Standalone),
}

/// A source, followed and applied as long as this lives.
pub(super) struct Discovery {
    _source: Source,
    tasks: Vec<JoinHandle<()>>,
}

impl Discovery {
    /// Starts what the flags ask for; none when they ask for nothing.
    ///
    /// # Errors
    /// The system gives no thread; settings that cannot be used; no cluster.
    pub(super) async fn start(
        args: &SelectorArgs,
        service: &SelectionService,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, CliError> {
        #[cfg(feature = "controller")]
        if let Some(name) = &args.kubernetes.kubernetes_service {
            return Self::in_cluster(name, args, service, stop).await.map(Some);
        }
        let Some(path) = args.workers.workers_file.clone() else { return Ok(None) };
        let file = WorkersFile::follow(path, FollowOptions::default()).map_err(CliError::failed)?;
        let owner = format!("file.{}", args.workers.catalog_name);
        let tasks = apply(service, owner, file.status(), file.counters(), "the workers file", stop);
        Ok(Some(Self { _source: Source::File(file), tasks }))
    }

    #[cfg(feature = "controller")]
    async fn in_cluster(
        name: &str,
        args: &SelectorArgs,
        service: &SelectionService,
        stop: &CancellationToken,
    ) -> Result<Self, CliError> {
        let flags = &args.kubernetes;
        let pool_file = flags.kubernetes_pool_file.as_deref();
        let settings = Settings::new(name, pool_file, flags.kubernetes_namespace.clone()).map_err(CliError::failed)?;
        let config = connection::config().await.map_err(CliError::failed)?;
        let client = connection::plain_client(config).map_err(CliError::failed)?;
        let epoch = epoch_now();
        tracing::info!(owner = settings.owner(), epoch, pool = ?settings.pool, "discovering in the cluster");
        let found = Standalone::start(client.clone(), &settings, epoch, stop);
        let mut tasks = apply(service, settings.owner(), found.status(), found.counters(), "the cluster", stop);
        if let (Some(peers), Some(port)) = (&flags.kubernetes_peer_service, args.peers.replica_sync_port) {
            tasks.push(wire_peers(client, &settings.namespace, peers, port, service.clone(), stop));
        }
        Ok(Self { _source: Source::Cluster(found), tasks })
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

/// Applies a source to `service` until `stop`, and shows both in its metrics and its catalog.
fn apply(
    service: &SelectionService,
    owner: String,
    source: SourceStatus,
    counters: Arc<SourceCounters>,
    name: &'static str,
    stop: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    let status = watch::Sender::new(TargetStatus::default());
    let targets = vec![("in-process".to_owned(), status.subscribe())];
    let applying = status.subscribe();
    metrics::register(service.metrics(), source.clone(), counters, targets);
    let target = InProcessTarget::new(service.clone(), owner.clone());
    let applied = apply::run(target, source.clone(), ApplyOptions::default(), status, stop.clone());
    let told = tell_source_errors(service.clone(), owner, name, source, applying, stop.clone());
    vec![tokio::spawn(applied), tokio::spawn(told)]
}

/// Shows in the catalog why it is behind the source: that cannot be used, or the catalog refuses it.
async fn tell_source_errors(
    service: SelectionService,
    owner: String,
    name: &'static str,
    mut source: SourceStatus,
    mut applying: watch::Receiver<TargetStatus>,
    stop: CancellationToken,
) {
    let tell = |error: Option<String>| {
        if let Err(failure) = service.set_source_error(&owner, error) {
            tracing::error!(%failure, "cannot show the state of {name}");
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
                tracing::error!("{name} is not followed any more");
                return tell(Some(format!("{name} is not followed any more: restart")));
            },
            () = stop.cancelled() => return,
        }
    }
}
