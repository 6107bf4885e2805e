//! Behaviour of the request verbs, driven through the core as an edge drives it.

mod affinity;
mod classify;
mod hints;
mod inspection;
mod lifecycle;
mod model;
mod queueing;
mod races;
mod reservations;
mod selections;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::selection::{
    config::SelectionConfig,
    core::{PartitionFilter, SelectionCore},
    error::SelectionError,
    identity::{Tier, WorkerWithDpRank},
    request::{
        AffinityTarget, LoadQuery, PromptInput, ReservationRequest, ReservationResponse, RouterConfigOverride,
        SelectRequest, SelectResponse,
    },
    testing::{ManualClock, Sinks, block_on, ready},
    worker::{Lifecycle, WorkerFields, WorkerRequest},
};

/// A core on standing time, blocks of 4 tokens, model `m`.
struct Bed {
    core: Arc<SelectionCore>,
    clock: Arc<ManualClock>,
    sinks: Arc<Sinks>,
}

/// Settings of most tests: decisions are recorded, no engine events.
fn approximate(change: impl FnOnce(&mut SelectionConfig)) -> SelectionConfig {
    let mut config = SelectionConfig { use_kv_events: false, seed: Some(7), ..SelectionConfig::default() };
    change(&mut config);
    config
}

fn with_events(change: impl FnOnce(&mut SelectionConfig)) -> SelectionConfig {
    approximate(|config| {
        config.use_kv_events = true;
        change(config);
    })
}

fn sessions(ttl_secs: u64) -> SelectionConfig {
    approximate(|config| config.session_affinity_ttl = Some(Duration::from_secs(ttl_secs)))
}

impl Bed {
    fn new(config: SelectionConfig) -> Self {
        let (clock, sinks) = (Arc::new(ManualClock::default()), Arc::new(Sinks::default()));
        let core = SelectionCore::try_new(config, clock.clone(), sinks.clone()).expect("valid settings");
        Self { core, clock, sinks }
    }

    /// A bed with workers `1..=count` of one rank each.
    fn with_workers(config: SelectionConfig, count: u64) -> Self {
        let bed = Self::new(config);
        (1..=count).for_each(|id| bed.worker(id, |_| {}));
        bed
    }

    fn worker(&self, worker_id: u64, change: impl FnOnce(&mut WorkerRequest)) {
        let mut request = WorkerRequest {
            worker_id,
            model_name: "m".to_owned(),
            routing_group: "default".to_owned(),
            fields: WorkerFields {
                endpoint: Some(format!("http://w{worker_id}:8000")),
                block_size: Some(4),
                ..WorkerFields::default()
            },
        };
        change(&mut request);
        let start = request.fields.data_parallel_start_rank.unwrap_or(0);
        let ranks = start..start + request.fields.data_parallel_size.unwrap_or(1);
        request.fields.kv_events_endpoints = ranks.map(|rank| (rank, format!("tcp://w{worker_id}:{rank}"))).collect();
        let record = self.core.upsert_worker(request).expect("accepted");
        assert_eq!(record.lifecycle, Lifecycle::Schedulable, "{:?}", record.not_schedulable_reasons);
    }

    fn select(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        ready(self.core.select(request))
    }

    fn reserve(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        ready(self.core.select_and_reserve(request))
    }

    fn book(&self, request: ReservationRequest) -> Result<ReservationResponse, SelectionError> {
        ready(self.core.create_reservation(request))
    }

    /// (worker, rank, prefill tokens, blocks, requests) of every rank of every partition.
    fn loads(&self) -> Vec<(u64, u32, u64, u64, u64)> {
        let partitions = self.core.loads(&PartitionFilter::default());
        let rows = partitions.iter().flat_map(|partition| &partition.loads);
        rows.map(|row| {
            (row.worker_id, row.dp_rank, row.potential_prefill_tokens, row.potential_decode_blocks, row.active_requests)
        })
        .collect()
    }

    fn requests(&self) -> u64 {
        self.loads().iter().map(|row| row.4).sum()
    }

    fn assert_idle(&self) {
        assert!(self.loads().iter().all(|row| (row.2, row.3, row.4) == (0, 0, 0)), "{:?}", self.loads());
        assert_eq!(self.core.live_bookings(), 0);
    }
}

/// `blocks` full blocks from `first` on; sequence hashes differ from the block hashes.
fn prompt(first: i64, blocks: i64) -> PromptInput {
    PromptInput {
        block_hashes: Some((first..first + blocks).collect()),
        sequence_hashes: Some((first..first + blocks).map(|hash| hash * 100).collect()),
        isl_tokens: Some(blocks.unsigned_abs() * 4),
        ..PromptInput::default()
    }
}

fn tokens(tokens: impl IntoIterator<Item = u32>) -> PromptInput {
    PromptInput { token_ids: Some(tokens.into_iter().collect()), ..PromptInput::default() }
}

fn request(prompt: PromptInput) -> SelectRequest {
    SelectRequest {
        model_name: "m".to_owned(),
        routing_group: "default".to_owned(),
        prompt,
        ..SelectRequest::default()
    }
}

fn booking(id: &str, prompt: PromptInput) -> SelectRequest {
    SelectRequest { selection_id: Some(id.to_owned()), ..request(prompt) }
}

/// A booking that may only go to one worker.
fn booking_on(worker: u64, id: &str, prompt: PromptInput) -> SelectRequest {
    let mut request = booking(id, prompt);
    request.steering.allowed_worker_ids = Some([worker].into());
    request
}

fn in_session(session: &str, mut request: SelectRequest) -> SelectRequest {
    request.session_id = Some(session.to_owned());
    request
}

fn replay(id: &str) -> ReservationRequest {
    ReservationRequest {
        model_name: "m".to_owned(),
        routing_group: "default".to_owned(),
        selection_id: id.to_owned(),
        ..ReservationRequest::default()
    }
}

fn named(id: &str, worker_id: u64, prompt: PromptInput) -> ReservationRequest {
    ReservationRequest { worker_id: Some(worker_id), prompt, ..replay(id) }
}

fn text<T: std::fmt::Debug>(outcome: Result<T, SelectionError>) -> (&'static str, String) {
    let error = outcome.expect_err("an error");
    (error.reason(), error.to_string())
}
