//! Policies of users: the same three components as CEL expressions, as built-in components and in Rust, over 512 workers.
//!
//! `select` is the whole selection; `picker alone` is what it costs without the components, so that the difference by 512 is
//! a row of the three. `cargo bench --bench policies`. Times are CPU times of the one thread that works.

#![allow(missing_docs, reason = "criterion's macro makes a public function")]

#[path = "measure/cpu_time.rs"]
mod cpu_time;

use std::{
    collections::HashMap,
    future::Future,
    hint::black_box,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use cpu_time::CpuTime;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pointsman::{
    WorkerCandidate, WorkerCandidates, WorkerFilter, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
    plugins::WorkerSelectionPolicyParameters,
    selection::{
        SelectionConfig, SelectionCore, Tier,
        core::Plugins,
        hash,
        index::StoredBlock,
        ingest::{EventSink, EventSource, EventSources, Trust},
        moment::SystemClock,
        policy::{
            expression::{Expression, Input, Purpose, Rows},
            pipeline,
        },
        request::{PromptInput, SelectRequest},
        worker::{WorkerFields, WorkerRequest},
    },
};

const WORKERS: u64 = 512;
const BLOCK_SIZE: u32 = 16;
const BLOCKS: i64 = 128;
const SHARED: i64 = 64;
/// Live bookings a worker.
const BACKGROUND: u64 = 4;

const EXPRESSIONS: &str = r#"
filters:
  - cel: "load.active_requests < 32"
scorers:
  - cel: "double(load.active_prefill_tokens + math.greatest(0, request.prompt_tokens - cache.cached_tokens)) / 16.0"
  - cel: "load.decode_blocks + 2.0 * double(load.active_requests)"
"#;

const SCORERS: &str = r#"
scorers:
  - cel: "double(load.active_prefill_tokens) / 16.0"
  - cel: "double(math.greatest(0, request.prompt_tokens - cache.cached_tokens)) / 16.0"
  - cel: "load.decode_blocks + 2.0 * double(load.active_requests)"
"#;

const BUILTINS: &str = r#"
filters:
  - {type: max-active-requests, parameters: {max: 31}}
scorers:
  - {type: uncached-prefill-tokens, weight: 0.0625}
  - {type: decode-blocks}
"#;

struct Room;

impl WorkerFilter for Room {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn keep(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError> {
        Ok(candidate.load().is_some_and(|load| load.active_requests() < 32))
    }
}

/// What the scorers of `SCORERS` compute, by number; 3 = the first two in one, as in `EXPRESSIONS`.
struct Cost(u8);

impl WorkerScorer for Cost {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE | WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let prompt = context.prompt_tokens();
        for (cost, candidate) in costs.iter_mut().zip(candidates.iter()) {
            let missing = || WorkerSelectionPolicyError::failed("not declared");
            let load = candidate.load().ok_or_else(missing)?;
            let uncached = |candidate: WorkerCandidate<'_>| {
                let cache = candidate.cache().ok_or_else(missing)?;
                Ok(prompt.saturating_sub(cache.accounting_cache_estimate().1))
            };
            *cost = match self.0 {
                0 => load.active_prefill_tokens() as f64 / 16.0,
                1 => uncached(candidate)? as f64 / 16.0,
                2 => load.decode_cost_blocks() + 2.0 * load.active_requests() as f64,
                _ => (load.active_prefill_tokens() + uncached(candidate)?) as f64 / 16.0,
            };
        }
        Ok(())
    }
}

struct Lowest;

impl WorkerPicker for Lowest {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE | WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let rows = input.candidates().iter().enumerate();
        let least = rows.min_by(|(_, a), (_, b)| a.cost().total_cmp(&b.cost()));
        least.map(|(row, _)| row).ok_or_else(|| WorkerSelectionPolicyError::failed("nobody"))
    }
}

/// A policy of Rust: which filters and scorers.
fn compiled(filters: bool, scorers: &'static [u8]) -> WorkerSelectionPolicyFactory {
    Arc::new(move |config, role, _| {
        let filters: Vec<Box<dyn WorkerFilter>> = if filters { vec![Box::new(Room)] } else { Vec::new() };
        let scorers = scorers.iter().map(|&number| Box::new(Cost(number)) as Box<dyn WorkerScorer>).collect();
        WorkerSelectionPolicy::new_with_filters(config.clone(), role.as_str(), filters, scorers, Box::new(Lowest))
    })
}

fn composed(yaml: &str) -> WorkerSelectionPolicyFactory {
    let value = serde_saphyr::from_str(yaml).expect("YAML");
    pipeline::provider()(&WorkerSelectionPolicyParameters::from_value(value)).expect("a pipeline")
}

#[derive(Default)]
struct Sinks(Mutex<HashMap<u64, EventSink>>);

impl EventSources for Sinks {
    fn attach(&self, source: EventSource, sink: EventSink) {
        self.0.lock().expect("no panic under the lock").insert(source.worker_id, sink);
    }

    fn detach(&self, _worker_id: u64, _dp_rank: u32) {}
}

/// The core never waits here: no session is being initialised and nothing queues.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing to wait for"),
    }
}

/// Half of each prompt is shared, and cached by a quarter of the workers.
fn request(tail: i64) -> SelectRequest {
    let blocks = (1..=SHARED).chain((0..BLOCKS - SHARED).map(|at| tail * 1_000 + at));
    let block_hashes: Vec<i64> = blocks.collect();
    let locals: Vec<u64> = block_hashes.iter().map(|hash| hash.cast_unsigned()).collect();
    let mut seqs = Vec::new();
    hash::sequence_hashes(&locals, &mut seqs);
    SelectRequest {
        model_name: "llama-3.1-70b".to_owned(),
        routing_group: "default".to_owned(),
        prompt: PromptInput {
            block_hashes: Some(block_hashes),
            sequence_hashes: Some(seqs.iter().map(|hash| hash.cast_signed()).collect()),
            isl_tokens: Some(BLOCKS.unsigned_abs() * u64::from(BLOCK_SIZE)),
            ..PromptInput::default()
        },
        ..SelectRequest::default()
    }
}

fn core(factory: WorkerSelectionPolicyFactory) -> Arc<SelectionCore> {
    let sinks = Arc::new(Sinks::default());
    let sources = Arc::clone(&sinks) as Arc<dyn EventSources>;
    let clock = Arc::new(SystemClock::default());
    let core =
        SelectionCore::try_new_with_plugins(SelectionConfig::default(), clock, sources, Plugins::Factory(factory))
            .expect("default settings are valid");
    let shared: Vec<u64> = (1..=SHARED.unsigned_abs()).collect();
    let mut seqs = Vec::new();
    hash::sequence_hashes(&shared, &mut seqs);
    let blocks: Vec<_> = shared.iter().zip(&seqs).map(|(&local, &name)| StoredBlock { name, local }).collect();
    for worker_id in 1..=WORKERS {
        let fields = WorkerFields {
            endpoint: Some(format!("http://10.0.0.{worker_id}:8000")),
            kv_events_endpoint: Some(format!("tcp://10.0.0.{worker_id}:5557")),
            block_size: Some(BLOCK_SIZE),
            ..WorkerFields::default()
        };
        let record = core.upsert_worker(WorkerRequest {
            worker_id,
            model_name: "llama-3.1-70b".to_owned(),
            routing_group: "default".to_owned(),
            fields,
        });
        record.expect("accepted");
        if worker_id % 4 == 0 {
            sinks.0.lock().expect("no panic under the lock")[&worker_id].store(0, Tier::Device, None, &blocks);
        }
    }
    for booking in 0..(WORKERS * BACKGROUND).cast_signed() {
        now(core.select_and_reserve(request(1_000_000 + booking))).expect("booked");
    }
    core
}

fn bench_select(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("select, 512 workers");
    group.throughput(Throughput::Elements(WORKERS));
    let policies: [(&str, &dyn Fn() -> WorkerSelectionPolicyFactory); 6] = [
        ("picker alone", &|| compiled(false, &[])),
        ("filter and 2 scorers, Rust", &|| compiled(true, &[3, 2])),
        ("filter and 2 scorers, CEL", &|| composed(EXPRESSIONS)),
        ("filter and 2 scorers, built-in", &|| composed(BUILTINS)),
        ("3 scorers, Rust", &|| compiled(false, &[0, 1, 2])),
        ("3 scorers, CEL", &|| composed(SCORERS)),
    ];
    for (name, factory) in policies {
        // Built only when wanted.
        let core = std::cell::LazyCell::new(|| core(factory()));
        let mut tail = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            let core = &*core;
            b.iter_batched(
                || {
                    tail += 1;
                    request(tail)
                },
                |request| black_box(now(core.select(request)).expect("selected")),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// Columns without views: the evaluator alone.
struct Columns {
    tokens: Vec<i64>,
    blocks: Vec<f64>,
}

impl Rows for Columns {
    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn bools(&self, _: Input, _: usize, values: &mut [bool]) {
        values.fill(true);
    }

    fn ints(&self, _: Input, from: usize, values: &mut [i64]) {
        values.copy_from_slice(&self.tokens[from..from + values.len()]);
    }

    fn uints(&self, _: Input, _: usize, values: &mut [u64]) {
        values.fill(1);
    }

    fn doubles(&self, _: Input, from: usize, values: &mut [f64]) {
        values.copy_from_slice(&self.blocks[from..from + values.len()]);
    }

    fn present(&self, _: Input, _: usize, present: &mut [bool]) {
        present.fill(true);
    }

    fn trusts(&self, _: usize, values: &mut [Trust]) {
        values.fill(Trust::Complete);
    }

    fn text(&self, _: Input) -> Option<&str> {
        Some("session")
    }

    fn header(&self, _: &str) -> Option<&str> {
        None
    }
}

fn bench_expression(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("expression alone, 512 rows");
    group.throughput(Throughput::Elements(WORKERS));
    let rows = Columns {
        tokens: (0..WORKERS.cast_signed()).map(|row| row * 37 % 4_096).collect(),
        blocks: (0..WORKERS).map(|row| (row * 13 % 64) as f64).collect(),
    };
    for text in [
        "load.decode_blocks + 2.0 * double(load.active_requests)",
        "double(load.active_prefill_tokens + math.greatest(0, request.prompt_tokens - cache.cached_tokens)) / 16.0",
        "load.active_requests < 32 && cache.trust == 'complete' ? load.active_prefill_tokens / 16 : 4096",
    ] {
        let mut expression = Expression::compile(text, Purpose::Scorer).expect("an expression");
        let mut costs = vec![0.0; rows.len()];
        group.bench_function(BenchmarkId::from_parameter(text), |b| {
            b.iter(|| expression.score(black_box(&rows), black_box(&mut costs)).expect("no fault"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = bench_select, bench_expression
}
criterion_main!(benches);
