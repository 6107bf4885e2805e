//! The reference's core, fed in process: a host of its service may bring the source of cache events, and the index of a
//! partition is open to it.

use std::{collections::HashSet, sync::Arc};

use dynamo_kv_router::{
    KvRouterConfig, RoutingPartitionId, WorkerSelectionPolicy, WorkerType,
    multi_worker_sequence::ReplicaRequestLeaseObserver,
    plugins::RouterPluginRegistry,
    protocols::{
        ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
        KvCacheStoredBlockData, LocalBlockHash, RouterEvent, RoutingConstraints,
    },
    queue::SchedulerBookingDescriptor,
    services::{
        indexer::{backend::Indexer, registry::WorkerRegistry},
        selection::{
            HostCache, HostReplication, KvEventIngress, KvIndexSource, PromptRequest, SelectAndReserveRequest,
            SelectRequest, SelectionHost, SelectionService, SelectionServiceBuilder, WorkerLifecycle, WorkerRequest,
        },
    },
};
use pointsman::selection::{index::StoredBlock, request, worker};
use tokio::runtime::Runtime;

use super::{PARTITION, logits};

/// Threads of an index, as many as the service has unless told otherwise.
const INDEXER_THREADS: usize = 4;

/// Cache events come from the follower, not from sockets.
struct FromFollower;

impl KvEventIngress for FromFollower {
    fn open(&self, registry: &WorkerRegistry, key: &RoutingPartitionId, block_size: u32) -> Indexer {
        registry.get_or_create_indexer(key.clone(), block_size)
    }
}

/// A host that answers for the end of bookings; otherwise they expire, by the machine's clock.
struct KeepsBookings;

impl ReplicaRequestLeaseObserver for KeepsBookings {
    fn admitted(&self, _booking: SchedulerBookingDescriptor) {}

    fn progressed(&self, _booking: &SchedulerBookingDescriptor) {}

    fn completed(&self, _booking: &SchedulerBookingDescriptor) {}
}

/// The core in the state of the simulated selector.
pub struct Follower {
    runtime: Runtime,
    service: SelectionService,
    /// Of the partition, once there is a worker.
    indexer: Option<Indexer>,
    events: u64,
    /// There are events that the index may not have applied.
    dirty: bool,
}

impl Follower {
    pub fn new() -> Self {
        // One thread: what the core logs is heard on the thread that asks.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let index = KvIndexSource::Owned(Arc::new(FromFollower));
        let request_leases = Some(Arc::new(KeepsBookings) as _);
        let host = SelectionHost {
            cache: HostCache { index, ..HostCache::default() },
            replication: HostReplication { request_leases, ..HostReplication::default() },
            ..SelectionHost::default()
        };
        let builder = SelectionServiceBuilder::new(
            KvRouterConfig::default(),
            WorkerType::Aggregated,
            RouterPluginRegistry::default(),
        )
        .indexer_threads(INDEXER_THREADS)
        .host(host)
        .worker_selection_policy_factory(Arc::new(|config, role, _partition| {
            WorkerSelectionPolicy::reference(config.clone(), role.default_selector_label())
        }));
        let service = runtime.block_on(builder.build()).expect("default settings are valid");
        Self { runtime, service, indexer: None, events: 0, dirty: false }
    }

    pub fn join(&mut self, worker: &worker::WorkerRequest) {
        let fields = &worker.fields;
        let request = WorkerRequest {
            worker_id: worker.worker_id,
            model_name: worker.model_name.clone(),
            routing_group: worker.routing_group.clone(),
            endpoint: fields.endpoint.clone(),
            kv_events_endpoint: fields.kv_events_endpoint.clone(),
            block_size: fields.block_size,
            max_num_batched_tokens: fields.max_num_batched_tokens,
            total_kv_blocks: fields.total_kv_blocks,
            ..WorkerRequest::default()
        };
        let record = self.runtime.block_on(self.service.upsert_worker(request)).expect("accepted");
        assert_eq!(record.lifecycle, WorkerLifecycle::Schedulable, "{:?}", record.not_schedulable_reasons);
        let key = RoutingPartitionId::new(PARTITION.0, PARTITION.1);
        self.indexer = self.service.core().partition(&key).map(|partition| partition.indexer().clone());
        // A task of its own takes workers into the load picture; until then they cost as if nothing were known of them.
        while !self.has_load_of(worker.worker_id) {
            self.runtime.block_on(tokio::task::yield_now());
        }
    }

    fn has_load_of(&self, worker_id: u64) -> bool {
        let partitions = self.service.loads(Some(PARTITION.0), Some(PARTITION.1));
        partitions.iter().flat_map(|partition| &partition.loads).any(|load| load.worker_id == worker_id)
    }

    pub fn store(&mut self, worker_id: u64, parent: Option<u64>, blocks: &[StoredBlock]) {
        let blocks = blocks.iter().map(|block| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(block.name),
            tokens_hash: LocalBlockHash(block.local),
            mm_extra_info: None,
        });
        let parent_hash = parent.map(ExternalSequenceBlockHash);
        let stored = KvCacheStoreData { parent_hash, start_position: None, blocks: blocks.collect() };
        self.apply(worker_id, KvCacheEventData::Stored(stored));
    }

    pub fn remove(&mut self, worker_id: u64, names: &[u64]) {
        let block_hashes = names.iter().copied().map(ExternalSequenceBlockHash).collect();
        self.apply(worker_id, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }));
    }

    fn apply(&mut self, worker_id: u64, data: KvCacheEventData) {
        let event = RouterEvent::new(worker_id, KvCacheEvent { event_id: self.events, data, dp_rank: 0 });
        self.events += 1;
        self.dirty = true;
        let indexer = self.indexer.as_ref().expect("workers come first");
        self.runtime.block_on(indexer.apply_event_routed(event)).expect("the index runs");
    }

    /// Waits until the index has applied every event.
    fn settle(&mut self) {
        if std::mem::take(&mut self.dirty) {
            match self.indexer.as_ref().expect("workers come first") {
                Indexer::Single { primary, .. } => {
                    self.runtime.block_on(primary.flush_and_wait()).expect("the index runs");
                }
                Indexer::Concurrent { primary, .. } => {
                    self.runtime.block_on(primary.flush_and_wait()).expect("the index runs");
                }
                Indexer::Remote { .. } | Indexer::None => unreachable!("the index is in this process"),
            }
        }
    }

    /// Whom it would choose, and for what cost.
    pub fn choice(&mut self, request: &request::SelectRequest) -> (u64, f64) {
        self.select(request, None)
    }

    /// What `worker_id` would cost.
    pub fn cost(&mut self, request: &request::SelectRequest, worker_id: u64) -> f64 {
        self.select(request, Some(HashSet::from([worker_id]))).1
    }

    fn select(&mut self, request: &request::SelectRequest, allowed_worker_ids: Option<HashSet<u64>>) -> (u64, f64) {
        self.settle();
        logits::take();
        let select = SelectRequest {
            model_name: request.model_name.clone(),
            routing_group: request.routing_group.clone(),
            selection_id: None,
            prompt: prompt(&request.prompt),
            router_config_override: None,
            expected_output_tokens: None,
            priority_jump: None,
            strict_priority: None,
            session_id: request.session_id.clone(),
            session_context: None,
            affinity_target: None,
            pinned_worker: None,
            allowed_worker_ids,
            routing_constraints: RoutingConstraints::default(),
            advisory: false,
        };
        let answer = self.runtime.block_on(self.service.select(select)).expect("there are workers");
        (answer.worker_id, logits::take().expect("every selection is logged"))
    }

    /// Books it on `worker_id`; answers what that costs.
    pub fn book(&mut self, request: &request::SelectRequest, worker_id: u64) -> f64 {
        self.settle();
        logits::take();
        let reserve = SelectAndReserveRequest {
            model_name: request.model_name.clone(),
            routing_group: request.routing_group.clone(),
            selection_id: request.selection_id.clone(),
            prompt: prompt(&request.prompt),
            router_config_override: None,
            expected_output_tokens: None,
            priority_jump: None,
            strict_priority: None,
            session_id: request.session_id.clone(),
            session_context: None,
            affinity_target: None,
            pinned_worker: None,
            allowed_worker_ids: Some(HashSet::from([worker_id])),
            routing_constraints: RoutingConstraints::default(),
        };
        self.runtime.block_on(self.service.select_and_reserve(reserve)).expect("the worker is there");
        logits::take().expect("every selection is logged")
    }

    pub fn prefill_complete(&self, selection_id: &str) {
        self.runtime.block_on(self.service.prefill_complete(selection_id)).expect("booked");
    }

    pub fn free(&self, selection_id: &str) {
        self.runtime.block_on(self.service.free_reservation(selection_id)).expect("booked");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.runtime.block_on(self.service.shutdown());
    }
}

fn prompt(prompt: &request::PromptInput) -> PromptRequest {
    PromptRequest {
        block_hashes: prompt.block_hashes.clone(),
        sequence_hashes: prompt.sequence_hashes.clone(),
        isl_tokens: prompt.isl_tokens.map(|tokens| tokens as usize),
        ..PromptRequest::default()
    }
}
