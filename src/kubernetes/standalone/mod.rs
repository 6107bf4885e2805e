//! A selector that discovers for itself in a cluster, without operator: one Service is its workers, another its peers.
//!
//! It reads EndpointSlices, and Pods where it may. Its SelectorSet is made up: named after the Service, in no cluster.

mod peers;
mod settings;

use std::sync::Arc;

use kube::Client;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use peers::wire_peers;
pub use settings::{Settings, SettingsError};

use super::{
    api::{ModelPool, SelectorSet, model_pool::Rejection},
    source::{ClusterSource, Given, SetKey, SetState, SourceOptions},
};
use crate::{
    discovery::{SourceState, SourceStatus, source::SourceCounters},
    selection::catalog::SnapshotVersion,
};

/// The running discovery. It ends when it is dropped.
#[derive(Debug)]
pub struct Standalone {
    _source: ClusterSource,
    status: SourceStatus,
    counters: Arc<SourceCounters>,
    task: JoinHandle<()>,
}

impl Standalone {
    /// Starts to read the cluster. `epoch` orders this process's snapshots among those of its predecessors: the time of
    /// its start in ms.
    pub fn start(client: Client, settings: &Settings, epoch: u64, stop: &CancellationToken) -> Self {
        let name = &settings.service;
        let mut set = SelectorSet::new(name, Default::default());
        set.metadata.namespace = Some(settings.namespace.clone());
        let mut pool = ModelPool::new(name, settings.pool.clone());
        pool.metadata.namespace = Some(settings.namespace.clone());
        let given = Given { set, pools: vec![pool], services: vec![name.clone()] };
        let options = SourceOptions {
            pods_are_optional: true,
            given: Some(given),
            ..SourceOptions::new(Some(settings.namespace.clone()), false)
        };
        let source = ClusterSource::start(client, options, stop);
        let (publish, status) = watch::channel(SourceState::default());
        let counters = Arc::<SourceCounters>::default();
        let key = SetKey::new(&settings.namespace, name);
        let mut sets = source.sets();
        let counted = counters.clone();
        let task = tokio::spawn(async move {
            let mut told = Vec::new();
            loop {
                let state = sets.borrow_and_update().get(&key).cloned();
                if let Some(state) = state {
                    tell_rejections(&state, &mut told);
                    take(&state, epoch, &publish, &counted);
                }
                if sets.changed().await.is_err() {
                    return;
                }
            }
        });
        Self { _source: source, status, counters, task }
    }

    /// The snapshots. Their end is the end of discovery.
    pub fn status(&self) -> SourceStatus {
        self.status.clone()
    }

    /// What was counted.
    pub fn counters(&self) -> Arc<SourceCounters> {
        self.counters.clone()
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Publishes the snapshot of `state`, when it is another.
fn take(state: &SetState, epoch: u64, publish: &watch::Sender<SourceState>, counters: &SourceCounters) {
    let snapshot = state
        .snapshot
        .as_ref()
        .map(|snapshot| snapshot.with_version(SnapshotVersion { epoch, generation: snapshot.version.generation }));
    let refused = state.pools.values().find_map(|pool| pool.accepted.as_ref().err());
    let error = refused.map(|(reason, message)| format!("{reason}: {message}").into());
    publish.send_if_modified(|before| {
        let version = |state: &SourceState| state.snapshot.as_ref().map(|s| s.version);
        let next = SourceState { snapshot: snapshot.clone(), error: error.clone() };
        let is_new = version(before) != version(&next);
        if is_new {
            counters.count_snapshot();
        }
        let is_news = is_new || before.error != next.error;
        *before = next;
        is_news
    });
}

/// Logs what is no worker, each once: there is no status that could say so.
fn tell_rejections(state: &SetState, told: &mut Vec<Rejection>) {
    let now: Vec<Rejection> = state.pools.values().flat_map(|pool| pool.rejections.iter().cloned()).collect();
    for new in now.iter().filter(|rejection| !told.contains(rejection)) {
        tracing::warn!(endpoint = new.name, reason = new.reason, "no worker: {}", new.message);
    }
    *told = now;
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::{Duration, timeout};

    use super::*;
    use crate::kubernetes::source::tests::apiserver::{Fault, cluster};

    #[tokio::test(start_paused = true)]
    async fn a_service_and_a_spec_are_a_catalog_of_this_process() {
        for reads_pods in [true, false] {
            let server = cluster();
            if !reads_pods {
                server.fault("pods", Fault::List(403));
            }
            let pool = json!({"selectorRef": {"name": "llm-workers"}, "modelName": "m", "workers": {"service": {"name": "llm-workers"}},
                "endpoint": {"port": "http"}, "blockSize": 16, "kvEvents": {"port": 5557}});
            let settings = Settings {
                namespace: "demo".to_owned(),
                service: "llm-workers".to_owned(),
                pool: serde_json::from_value(pool).unwrap(),
            };
            let found = Standalone::start(server.client(), &settings, 77, &CancellationToken::new());
            let mut status = found.status();
            let state = timeout(Duration::from_secs(300), status.wait_for(|state| state.snapshot.is_some())).await;
            let snapshot = state.unwrap().unwrap().snapshot.clone().unwrap();
            assert_eq!(snapshot.version, SnapshotVersion { epoch: 77, generation: 1 });
            assert_eq!(snapshot.workers().len(), 5, "the first is whole");
            assert_eq!(found.counters().snapshots(), 1);
            assert!(server.requests("modelpools").is_empty());
        }
    }
}
