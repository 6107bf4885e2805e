//! Tests of the worker side, with recorded event sources and a clock that stands still.

mod dumps;
mod instances;
mod panics;
mod partitions;
mod snapshots;
mod snapshots_of_index;
mod streams;
mod takeover;
mod upkeep;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{PartitionFilter, SelectionCore};
use crate::selection::{
    config::SelectionConfig,
    identity::{Tier, WorkerWithDpRank},
    index::StoredBlock,
    ingest::{EventSink, EventSource, EventSources},
    moment::{Clock, Moment},
    partition::PolicyFactory,
    policy::builtin,
    request::{LoadQuery, PromptInput, SelectRequest, SelectResponse},
    worker::{Lifecycle, WorkerRecord},
};

/// A clock that moves when told.
#[derive(Debug, Default)]
pub(crate) struct ManualClock(AtomicU64);

impl ManualClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }

    fn unix_nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the core asked its event sources for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attach(u64, u32, String, Option<String>),
    Detach(u64, u32),
}

/// Records calls, keeps the sinks, and checks the order the core promises.
#[derive(Default)]
pub(crate) struct RecordedSources {
    calls: Mutex<Vec<Call>>,
    sinks: Mutex<BTreeMap<(u64, u32), EventSink>>,
    core: Mutex<Weak<SelectionCore>>,
}

impl RecordedSources {
    fn sink(&self, worker_id: u64, dp_rank: u32) -> EventSink {
        self.sinks.lock()[&(worker_id, dp_rank)].clone()
    }

    /// Calls since the last look.
    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock())
    }

    fn is_selectable(&self, worker_id: u64, dp_rank: u32) -> bool {
        let Some(core) = self.core.lock().upgrade() else { return false };
        let rank = WorkerWithDpRank::new(worker_id, dp_rank);
        core.partitions(&PartitionFilter::default())
            .iter()
            .any(|partition| partition.with_state(|state| state.load.slot(rank).is_some()).unwrap())
    }
}

impl EventSources for RecordedSources {
    fn attach(&self, source: EventSource, sink: EventSink) {
        let EventSource { worker_id, dp_rank, endpoint, replay_endpoint } = source;
        assert!(!sink.is_closed());
        assert_eq!((sink.worker_id(), sink.registered_rank()), (worker_id, dp_rank));
        self.calls.lock().push(Call::Attach(worker_id, dp_rank, endpoint, replay_endpoint));
        let replaced = self.sinks.lock().insert((worker_id, dp_rank), sink);
        assert!(replaced.is_none_or(|old| old.is_closed()), "two listeners for one rank");
    }

    fn detach(&self, worker_id: u64, dp_rank: u32) {
        let sink = self.sink(worker_id, dp_rank);
        assert!(sink.is_closed(), "detached before its sink was closed");
        self.calls.lock().push(Call::Detach(worker_id, dp_rank));
    }
}

/// A core with its surroundings.
pub(crate) struct Fixture {
    pub(crate) core: Arc<SelectionCore>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) sources: Arc<RecordedSources>,
}

impl Fixture {
    fn new() -> Self {
        Self::with(SelectionConfig::default())
    }

    /// No events: workers need no event endpoints.
    fn approximate() -> Self {
        Self::with(SelectionConfig { use_kv_events: false, ..SelectionConfig::default() })
    }

    fn with(config: SelectionConfig) -> Self {
        Self::with_policies(config, Arc::new(|config, scope| builtin::default_policy(config, scope).into()))
    }

    fn with_policies(config: SelectionConfig, policies: Arc<PolicyFactory>) -> Self {
        let (clock, sources) = (Arc::new(ManualClock::default()), Arc::new(RecordedSources::default()));
        let core = SelectionCore::try_new_with_policies(config, clock.clone(), sources.clone(), policies).unwrap();
        *sources.core.lock() = Arc::downgrade(&core);
        Self { core, clock, sources }
    }

    fn upsert(&self, request: Value) -> Arc<WorkerRecord> {
        self.core.upsert_worker(serde_json::from_value(request).unwrap()).unwrap()
    }

    fn patch(&self, worker_id: u64, patch: Value) -> Arc<WorkerRecord> {
        self.core.patch_worker(worker_id, serde_json::from_value(patch).unwrap()).unwrap()
    }

    /// Device blocks of the prompt made of `locals` that a rank holds; `None` when no row names the rank.
    fn cached(&self, model: &str, rank: (u64, u32), locals: &[i64]) -> Option<u32> {
        let block_size = self.core.partitions(&PartitionFilter::default())[0].block_size;
        let query = LoadQuery {
            model_name: model.to_owned(),
            routing_group: "default".to_owned(),
            prompt: prompt(locals, block_size),
            router_config_override: None,
        };
        let scores = self.core.overlap_scores(&query).unwrap();
        scores.workers.iter().find(|row| (row.worker_id, row.dp_rank) == rank).map(|row| row.device_blocks)
    }

    fn reserve(
        &self,
        model: &str,
        id: &str,
        locals: &[i64],
    ) -> Result<SelectResponse, crate::selection::SelectionError> {
        block_on(
            self.core.select_and_reserve(SelectRequest {
                selection_id: Some(id.to_owned()),
                ..select_request(model, locals)
            }),
        )
    }

    /// The rows of `/loads` as (worker, rank, bookings).
    fn loads(&self, model: &str) -> Vec<(u64, u32, u64)> {
        let filter = PartitionFilter { model_name: Some(model.to_owned()), routing_group: None };
        let loads = self.core.loads(&filter);
        let rows = loads.iter().flat_map(|partition| &partition.loads);
        rows.map(|row| (row.worker_id, row.dp_rank, row.active_requests)).collect()
    }

    fn dump(&self) -> Value {
        let mut out = Vec::new();
        self.core.write_dump(&mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    fn has_partition(&self, model: &str) -> bool {
        self.core.partition(model, "default").is_some()
    }
}

fn prompt(locals: &[i64], block_size: u32) -> PromptInput {
    PromptInput {
        block_hashes: Some(locals.to_vec()),
        sequence_hashes: Some(locals.to_vec()),
        isl_tokens: Some(u64::from(block_size) * locals.len() as u64),
        ..PromptInput::default()
    }
}

fn select_request(model: &str, locals: &[i64]) -> SelectRequest {
    SelectRequest {
        model_name: model.to_owned(),
        routing_group: "default".to_owned(),
        prompt: prompt(locals, 4),
        ..SelectRequest::default()
    }
}

/// A worker of model `m` with an event endpoint a rank.
fn worker(worker_id: u64, ranks: u32) -> Value {
    let endpoints: BTreeMap<u32, String> =
        (0..ranks).map(|rank| (rank, format!("tcp://w{worker_id}:{rank}"))).collect();
    json!({
        "worker_id": worker_id, "model_name": "m", "endpoint": format!("http://w{worker_id}:8000"), "block_size": 4,
        "data_parallel_size": ranks, "kv_events_endpoints": endpoints,
    })
}

/// `base` with the fields of `change`.
fn with(mut base: Value, change: Value) -> Value {
    base.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    base
}

/// Stores one chain whose names and contents are `locals`.
fn store(sink: &EventSink, dp_rank: u32, locals: &[u64]) {
    let blocks: Vec<_> = locals.iter().map(|&local| StoredBlock { name: local.wrapping_add(1000), local }).collect();
    sink.store(dp_rank, Tier::Device, None, &blocks);
}

fn attach(worker_id: u64, dp_rank: u32) -> Call {
    Call::Attach(worker_id, dp_rank, format!("tcp://w{worker_id}:{dp_rank}"), None)
}

/// Polls a future that nothing outside needs to wake.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}
