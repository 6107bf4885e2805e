//! The standalone indexer's verbs (spec index 9): instances as they are registered and listed, queries of the index.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use serde::Serialize;

use super::{
    SelectionService, Shared,
    metrics::{Family, count},
};
use crate::{
    events::{
        counts::{Count, DropReason},
        status::{ListenerState, ListenerStatus},
    },
    selection::{
        SelectionError,
        core::PartitionFilter,
        instance::{IndexQuery, IndexScores, InstanceRank, InstanceRemoval},
    },
};

/// What a listener is doing, in the indexer's words; of several, the first of these counts for the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum InstanceStatus {
    /// It cannot work, or failed and will be started again.
    Failed,
    /// Held back until start-up recovery is over.
    Pending,
    /// Following the stream, or trying to reach it.
    Active,
    /// Told to stand still.
    Paused,
}

impl InstanceStatus {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Failed, Self::Pending, Self::Active, Self::Paused];

    /// The word in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Paused => "paused",
        }
    }
}

impl From<ListenerState> for InstanceStatus {
    fn from(state: ListenerState) -> Self {
        match state {
            ListenerState::Waiting => Self::Pending,
            ListenerState::Connecting | ListenerState::Replaying | ListenerState::Live => Self::Active,
            ListenerState::Restarting | ListenerState::Failed => Self::Failed,
            ListenerState::Paused => Self::Paused,
        }
    }
}

/// The listener of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct InstanceListener {
    /// ZMQ endpoint of the publisher.
    pub endpoint: String,
    /// What it is doing.
    pub status: InstanceStatus,
    /// Why it failed; absent while it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// An instance, or a worker with event streams, as the indexer's `GET /workers` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct InstanceRecord {
    /// Its id.
    pub instance_id: u64,
    /// `zmq`.
    pub source: &'static str,
    /// Of all its listeners: failed, else pending, else active, else paused.
    pub status: InstanceStatus,
    /// Model name.
    pub model_name: String,
    /// Routing group.
    pub routing_group: String,
    /// Tokens a block.
    pub block_size: u32,
    /// Publisher by rank.
    pub endpoints: BTreeMap<u32, String>,
    /// Listener by rank.
    pub listeners: BTreeMap<u32, InstanceListener>,
}

impl SelectionService {
    /// Starts to index one rank of an instance.
    ///
    /// # Errors
    /// 400 and 409 as the core says.
    pub fn register_instance(&self, rank: InstanceRank) -> Result<(), SelectionError> {
        self.shared.contain("register_instance", || self.shared.core.register_instance(rank))?
    }

    /// Forgets an instance or one rank of it; its blocks are gone when this returns.
    ///
    /// # Errors
    /// 404 not registered so; 409 a worker.
    pub fn unregister_instance(&self, removal: &InstanceRemoval) -> Result<(), SelectionError> {
        self.shared.contain("unregister_instance", || self.shared.core.unregister_instance(removal))?
    }

    /// What everybody in a partition holds of a prompt.
    ///
    /// # Errors
    /// 404 no such partition; 503 until start-up recovery is over.
    pub fn query_index(
        &self,
        model_name: &str,
        routing_group: &str,
        query: &IndexQuery,
    ) -> Result<IndexScores, SelectionError> {
        self.require_recovered()?;
        self.shared.contain("query_index", || self.shared.core.query_index(model_name, routing_group, query))?
    }

    /// Everything with an event stream, sorted by model, group and id.
    ///
    /// # Errors
    /// 500 only.
    pub fn instances(&self, filter: &PartitionFilter) -> Result<Vec<InstanceRecord>, SelectionError> {
        let mut listeners: BTreeMap<u64, Vec<ListenerStatus>> = BTreeMap::new();
        for status in self.listeners() {
            listeners.entry(status.worker_id).or_default().push(status);
        }
        let records = self.workers(filter)?;
        let listed = records.into_iter().filter_map(|record| {
            let request = &record.request;
            let statuses = listeners.remove(&request.worker_id)?;
            let status = statuses.iter().map(|status| status.state.into()).min()?;
            Some(InstanceRecord {
                instance_id: request.worker_id,
                source: "zmq",
                status,
                model_name: request.model_name.clone(),
                routing_group: request.routing_group.clone(),
                block_size: request.fields.block_size.unwrap_or_default(),
                endpoints: statuses.iter().map(|status| (status.dp_rank, status.endpoint.clone())).collect(),
                listeners: statuses.into_iter().map(listener).collect(),
            })
        });
        Ok(listed.collect())
    }

    /// Makes the listener of a rank stand still, or go on; rank 0 when none is named.
    ///
    /// # Errors
    /// 404 no such listener; 409 it is in another state.
    pub fn pause_instance(&self, instance_id: u64, dp_rank: Option<u32>, paused: bool) -> Result<(), SelectionError> {
        let mut statuses = self.listeners();
        statuses.retain(|status| status.worker_id == instance_id);
        if statuses.is_empty() {
            return Err(SelectionError::NotFound(format!("instance {instance_id} not found")));
        }
        // Without a rank it is the first, as in the reference.
        let dp_rank = dp_rank.unwrap_or(0);
        let Some(status) = statuses.into_iter().find(|status| status.dp_rank == dp_rank) else {
            return Err(SelectionError::NotFound(format!("instance {instance_id} dp_rank {dp_rank} not found")));
        };
        if self.shared.sources.set_paused(instance_id, dp_rank, paused) {
            return Ok(());
        }
        let state = if paused { InstanceStatus::Paused } else { status.state.into() };
        let (verb, state) = (if paused { "paused" } else { "resumed" }, state.as_str());
        Err(SelectionError::Conflict(format!(
            "instance {instance_id} dp_rank {dp_rank} cannot be {verb} from status {state}"
        )))
    }
}

impl SelectionService {
    /// Adds the standalone indexer's metrics under its own names.
    pub fn register_instance_metrics(&self) {
        let collector = Box::new(InstanceCollector(Arc::downgrade(&self.shared)));
        self.metrics().register_named(|registry| registry.register_collector(collector));
    }
}

/// Reads instances and event counts at each scrape.
struct InstanceCollector(Weak<Shared>);

impl fmt::Debug for InstanceCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InstanceCollector")
    }
}

impl Collector for InstanceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(shared) = self.0.upgrade() else { return Ok(()) };
        let statuses = shared.sources.statuses();
        let mut listeners =
            Family::gauge("dynamo_kvindexer_listeners", "Number of ZMQ listeners by status", ["status"]);
        InstanceStatus::ALL.into_iter().for_each(|status| listeners.add([status.as_str()], 0.0));
        statuses.iter().for_each(|status| listeners.add([InstanceStatus::from(status.state).as_str()], 1.0));
        listeners.encode(&mut encoder)?;
        let mut workers = Family::gauge("dynamo_kvindexer_workers", "Number of registered worker instances", []);
        // Sorted by worker.
        let instances = statuses.chunk_by(|a, b| a.worker_id == b.worker_id).count();
        workers.add([], count(instances as u64));
        workers.encode(&mut encoder)?;
        let help = "Number of active model+routing-group indexers";
        let mut models = Family::gauge("dynamo_kvindexer_models", help, []);
        models.add([], count(shared.core.partitions(&PartitionFilter::default()).len() as u64));
        models.encode(&mut encoder)?;
        let help = "Total number of KV cache events applied to index";
        let labels = ["event_type", "status"];
        let mut events = Family::untyped("dynamo_kvrouter_kv_cache_events_applied", help, labels);
        if let Some(totals) = shared.sources.totals() {
            events.add(["stored", "ok"], count(totals.count(Count::StoredEvents)));
            events.add(["removed", "ok"], count(totals.count(Count::RemovedEvents)));
            events.add(["cleared", "ok"], count(totals.count(Count::Clears)));
            for (reason, status) in [
                (DropReason::ParentUnknown, "parent_block_not_found"),
                (DropReason::IndexFull, "capacity_exhausted"),
                (DropReason::NoBlock, "invalid_block"),
            ] {
                events.add(["stored", status], count(totals.dropped(reason)));
            }
        }
        events.encode(&mut encoder)
    }
}

fn listener(status: ListenerStatus) -> (u32, InstanceListener) {
    let state = InstanceStatus::from(status.state);
    let last_error = status.last_error.filter(|_| state == InstanceStatus::Failed);
    (status.dp_rank, InstanceListener { endpoint: status.endpoint, status: state, last_error })
}
