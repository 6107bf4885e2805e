//! A core with workers, engines that say what they hold, and components made of closures.

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use pointsman::{
    KvRouterConfig, WorkerCandidate, WorkerCandidates, WorkerFilter, WorkerInputView, WorkerInputs, WorkerPicker,
    WorkerScorer, WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
    WorkerSelectionPolicyFactory,
    selection::{
        SelectionCore, SelectionError, Tier, WorkerWithDpRank,
        core::{PartitionFilter, Plugins},
        hash,
        index::StoredBlock,
        ingest::{EventSink, EventSource, EventSources, Trust},
        moment::SystemClock,
        request::{PromptInput, ReservationRequest, SelectRequest, SelectResponse},
    },
};
use serde_json::{Value, json};

/// Tokens a block.
pub const BLOCK: u64 = 16;

/// Sinks of the ranks that are listened to.
#[derive(Debug, Default)]
pub struct Sinks(Mutex<HashMap<(u64, u32), EventSink>>);

impl EventSources for Sinks {
    fn attach(&self, source: EventSource, sink: EventSink) {
        self.0.lock().unwrap().insert((source.worker_id, source.dp_rank), sink);
    }

    fn detach(&self, worker_id: u64, dp_rank: u32) {
        self.0.lock().unwrap().remove(&(worker_id, dp_rank));
    }
}

/// A core and its engines.
pub struct Fleet {
    pub core: Arc<SelectionCore>,
    sinks: Arc<Sinks>,
}

/// Makes a policy for each partition with `make`.
pub fn factory(make: impl Fn() -> WorkerSelectionPolicy + Send + Sync + 'static) -> WorkerSelectionPolicyFactory {
    Arc::new(move |_, _, _| make())
}

/// A policy of components.
pub fn policy(
    filters: Vec<Box<dyn WorkerFilter>>,
    scorers: Vec<Box<dyn WorkerScorer>>,
    picker: Box<dyn WorkerPicker>,
) -> WorkerSelectionPolicy {
    WorkerSelectionPolicy::new_with_filters(KvRouterConfig::default(), "aggregated", filters, scorers, picker)
}

impl Fleet {
    /// With policies from `make`, and these workers of one rank each.
    pub fn new(workers: &[u64], make: impl Fn() -> WorkerSelectionPolicy + Send + Sync + 'static) -> Self {
        let fleet = Self::with(KvRouterConfig::default(), Plugins::Factory(factory(make)));
        workers.iter().for_each(|&id| fleet.worker(id, json!({})));
        fleet
    }

    pub fn with(config: KvRouterConfig, plugins: Plugins<'_>) -> Self {
        let sinks = Arc::new(Sinks::default());
        let clock = Arc::new(SystemClock::default());
        let core = SelectionCore::try_new_with_plugins(config, clock, sinks.clone(), plugins).unwrap();
        Self { core, sinks }
    }

    /// Registers a worker of model `m` with one rank, and what `change` says.
    pub fn worker(&self, id: u64, change: Value) {
        let ranks = change["data_parallel_size"].as_u64().unwrap_or(1);
        let endpoints: BTreeMap<u64, String> = (0..ranks).map(|rank| (rank, format!("tcp://w{id}:{rank}"))).collect();
        let mut request = json!({
            "worker_id": id, "model_name": "m", "endpoint": format!("http://w{id}:8000"), "block_size": BLOCK,
            "kv_events_endpoints": endpoints, "total_kv_blocks": 1000 + id,
        });
        request.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let record = self.core.upsert_worker(serde_json::from_value(request).unwrap()).unwrap();
        assert!(record.is_schedulable(), "{:?}", record.not_schedulable_reasons);
    }

    /// Ranks that are listened to, sorted.
    pub fn listened(&self) -> Vec<(u64, u32)> {
        let mut ranks: Vec<_> = self.sinks.0.lock().unwrap().keys().copied().collect();
        ranks.sort_unstable();
        ranks
    }

    /// Rank 0 of a worker holds these blocks in a tier, after the first `from` of them.
    pub fn store(&self, worker: u64, tier: Tier, locals: &[u64], from: usize) {
        let mut seqs = Vec::new();
        hash::sequence_hashes(locals, &mut seqs);
        let blocks: Vec<_> = (from..locals.len()).map(|at| StoredBlock { name: seqs[at], local: locals[at] }).collect();
        let sinks = self.sinks.0.lock().unwrap();
        sinks[&(worker, 0)].store(0, tier, from.checked_sub(1).map(|at| seqs[at]), &blocks);
    }

    /// The listener of a worker's rank 0 says how far it can be believed.
    pub fn say(&self, worker: u64, trust: Trust) {
        self.sinks.0.lock().unwrap()[&(worker, 0)].set_trust(trust);
    }

    pub fn select(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        block_on(self.core.select(request))
    }

    pub fn reserve(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        block_on(self.core.select_and_reserve(request))
    }

    /// Books a rank by name: `blocks` blocks of its own and these prefill tokens.
    pub fn book(&self, id: &str, worker: u64, blocks: std::ops::Range<i64>, prefill: u64) {
        let hashes: Vec<i64> = blocks.collect();
        let request = ReservationRequest {
            model_name: "m".into(),
            routing_group: "default".into(),
            selection_id: id.into(),
            worker_id: Some(worker),
            prompt: PromptInput {
                isl_tokens: Some((hashes.len() as u64 * BLOCK).max(1000)),
                block_hashes: Some(hashes.clone()),
                sequence_hashes: Some(hashes),
                ..PromptInput::default()
            },
            effective_prefill_tokens: Some(prefill),
            track_prefill_tokens: Some(prefill > 0),
            ..ReservationRequest::default()
        };
        block_on(self.core.create_reservation(request)).unwrap();
    }

    /// Live bookings by worker and rank.
    pub fn bookings(&self) -> Vec<(u64, u32, u64)> {
        let loads = self.core.loads(&PartitionFilter { model_name: Some("m".into()), routing_group: None });
        let rows = loads.iter().flat_map(|partition| &partition.loads);
        rows.map(|row| (row.worker_id, row.dp_rank, row.active_requests)).collect()
    }
}

/// A request of `blocks` blocks that nobody else has.
pub fn request(blocks: u64) -> SelectRequest {
    let hashes: Vec<i64> = (0..blocks as i64).map(|block| 9_000_000 + block).collect();
    request_of(&hashes)
}

/// A request whose blocks have these contents.
pub fn request_of(locals: &[i64]) -> SelectRequest {
    SelectRequest {
        model_name: "m".into(),
        routing_group: "default".into(),
        prompt: PromptInput {
            isl_tokens: Some(locals.len() as u64 * BLOCK),
            block_hashes: Some(locals.to_vec()),
            sequence_hashes: Some(locals.to_vec()),
            ..PromptInput::default()
        },
        ..SelectRequest::default()
    }
}

/// Drives a future that nothing outside needs to wake.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}

type Keep = Result<bool, WorkerSelectionPolicyError>;
type Score = Result<(), WorkerSelectionPolicyError>;
type Row = Result<usize, WorkerSelectionPolicyError>;

struct Filter<F>(WorkerInputs, F);
struct Scorer<F>(WorkerInputs, F);
struct Picker<F>(WorkerInputs, F);

impl<F> WorkerFilter for Filter<F>
where
    F: FnMut(&WorkerSelectionContext<'_>, WorkerCandidate<'_>) -> Keep + Send,
{
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.0
    }

    fn keep(&mut self, context: &WorkerSelectionContext<'_>, candidate: WorkerCandidate<'_>) -> Keep {
        (self.1)(context, candidate)
    }
}

impl<F> WorkerScorer for Scorer<F>
where
    F: FnMut(&WorkerSelectionContext<'_>, WorkerCandidates<'_>, &mut [f64]) -> Score + Send,
{
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.0
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Score {
        (self.1)(context, candidates, costs)
    }
}

impl<F> WorkerPicker for Picker<F>
where
    F: FnMut(&WorkerSelectionContext<'_>, WorkerInputView<'_>) -> Row + Send,
{
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.0
    }

    fn pick(&mut self, context: &WorkerSelectionContext<'_>, input: WorkerInputView<'_>) -> Row {
        (self.1)(context, input)
    }
}

pub fn filter<F>(inputs: WorkerInputs, keep: F) -> Box<dyn WorkerFilter>
where
    F: FnMut(&WorkerSelectionContext<'_>, WorkerCandidate<'_>) -> Keep + Send + 'static,
{
    Box::new(Filter(inputs, keep))
}

pub fn scorer<F>(inputs: WorkerInputs, score: F) -> Box<dyn WorkerScorer>
where
    F: FnMut(&WorkerSelectionContext<'_>, WorkerCandidates<'_>, &mut [f64]) -> Score + Send + 'static,
{
    Box::new(Scorer(inputs, score))
}

pub fn picker<F>(inputs: WorkerInputs, pick: F) -> Box<dyn WorkerPicker>
where
    F: FnMut(&WorkerSelectionContext<'_>, WorkerInputView<'_>) -> Row + Send + 'static,
{
    Box::new(Picker(inputs, pick))
}

/// The row with the lowest cost, the first of equal ones.
pub fn lowest() -> Box<dyn WorkerPicker> {
    picker(WorkerInputs::NONE, |_, input| {
        let rows = input.candidates().iter().enumerate();
        Ok(rows.min_by(|a, b| a.1.cost().total_cmp(&b.1.cost())).expect("there is a row").0)
    })
}

/// Costs each rank its active requests.
pub fn active_requests() -> Box<dyn WorkerScorer> {
    scorer(WorkerInputs::LOAD, |_, candidates, costs| {
        for (candidate, cost) in candidates.iter().zip(costs) {
            *cost = candidate.load().expect("declared").active_requests() as f64;
        }
        Ok(())
    })
}

/// What components write down, in order.
#[derive(Clone, Default)]
pub struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Seen<T> {
    pub fn new() -> Self {
        Self(Arc::default())
    }

    pub fn push(&self, value: T) {
        self.0.lock().unwrap().push(value);
    }

    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub fn rank(worker: u64, dp_rank: u32) -> WorkerWithDpRank {
    WorkerWithDpRank::new(worker, dp_rank)
}
