//! A policy of three scorers and a picker in a whole selection, beside the default one, at 8 to 4,096 workers.
//!
//! `cargo bench --bench plugins`; the cost of a row is the difference between two sizes over the difference of their rows.
//! Queries, so that fleets stay as they are.

#![allow(missing_docs, reason = "the group that criterion's macro makes has none")]

use std::{
    collections::HashMap,
    hint::black_box,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use pointsman::{
    KvRouterConfig, WorkerCandidates, WorkerInputView, WorkerInputs, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
    plugins::router_plugin_registry,
    selection::{
        SelectionCore, Tier,
        core::Plugins,
        hash,
        index::StoredBlock,
        ingest::{EventSink, EventSource, EventSources},
        moment::SystemClock,
        request::{PromptInput, SelectRequest},
    },
};
use serde_json::json;

const WORKERS: [u64; 4] = [8, 64, 512, 4096];
const PROMPT_BLOCKS: i64 = 128;

#[derive(Debug, Default)]
struct Sinks(Mutex<HashMap<u64, EventSink>>);

impl EventSources for Sinks {
    fn attach(&self, source: EventSource, sink: EventSink) {
        self.0.lock().expect("not poisoned").insert(source.worker_id, sink);
    }

    fn detach(&self, _: u64, _: u32) {}
}

/// Uncached blocks of the prompt.
struct Uncached;

/// Tokens in progress.
struct Tokens;

/// Live bookings.
struct Requests;

impl WorkerScorer for Uncached {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let blocks = context.request_blocks() as f64;
        for (candidate, cost) in candidates.iter().zip(costs) {
            let cache = candidate.cache().ok_or_else(|| WorkerSelectionPolicyError::failed("no cache"))?;
            *cost = blocks - cache.device_overlap_blocks();
        }
        Ok(())
    }
}

impl WorkerScorer for Tokens {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let block = f64::from(context.block_size());
        for (candidate, cost) in candidates.iter().zip(costs) {
            let load = candidate.load().ok_or_else(|| WorkerSelectionPolicyError::failed("no load"))?;
            *cost = load.active_prefill_tokens() as f64 / block + load.decode_cost_blocks();
        }
        Ok(())
    }
}

impl WorkerScorer for Requests {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        for (candidate, cost) in candidates.iter().zip(costs) {
            let load = candidate.load().ok_or_else(|| WorkerSelectionPolicyError::failed("no load"))?;
            *cost = load.active_requests() as f64;
        }
        Ok(())
    }
}

struct Lowest;

impl WorkerPicker for Lowest {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let mut best = (0, f64::INFINITY);
        for (row, candidate) in input.candidates().iter().enumerate() {
            if candidate.cost() < best.1 {
                best = (row, candidate.cost());
            }
        }
        Ok(best.0)
    }
}

fn custom() -> WorkerSelectionPolicyFactory {
    Arc::new(|config, role, _| {
        let scorers: Vec<Box<dyn WorkerScorer>> = vec![Box::new(Uncached), Box::new(Tokens), Box::new(Requests)];
        WorkerSelectionPolicy::new(config.clone(), role.as_str(), scorers, Box::new(Lowest))
    })
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing is awaited"),
    }
}

/// A fleet at work: every eighth worker has half of the prompt, each has bookings.
fn core(workers: u64, plugins: Plugins<'_>) -> Arc<SelectionCore> {
    let sinks = Arc::new(Sinks::default());
    let clock = Arc::new(SystemClock::default());
    let core = SelectionCore::try_new_with_plugins(KvRouterConfig::default(), clock, sinks.clone(), plugins)
        .expect("the settings are valid");
    for worker_id in 0..workers {
        let worker = json!({
            "worker_id": worker_id, "endpoint": "http://w:1", "block_size": 16,
            "kv_events_endpoint": format!("tcp://w{worker_id}:1"),
        });
        core.upsert_worker(serde_json::from_value(worker).expect("a worker")).expect("it fits");
    }
    let locals: Vec<u64> = (0..PROMPT_BLOCKS as u64 / 2).collect();
    let mut seqs = Vec::new();
    hash::sequence_hashes(&locals, &mut seqs);
    let blocks: Vec<_> = locals.iter().zip(&seqs).map(|(&local, &name)| StoredBlock { name, local }).collect();
    for (_, sink) in sinks.0.lock().expect("not poisoned").iter().filter(|(worker, _)| *worker % 8 == 0) {
        sink.store(0, Tier::Device, None, &blocks);
    }
    for k in 0..workers as i64 * 3 {
        ready(core.select_and_reserve(request(1000 * (k + 1)))).expect("somebody takes it");
    }
    core
}

fn request(first: i64) -> SelectRequest {
    let hashes: Vec<i64> = (first..first + PROMPT_BLOCKS).collect();
    SelectRequest {
        model_name: "default".into(),
        routing_group: "default".into(),
        prompt: PromptInput {
            block_hashes: Some(hashes.clone()),
            sequence_hashes: Some(hashes),
            isl_tokens: Some(PROMPT_BLOCKS as u64 * 16),
            ..PromptInput::default()
        },
        ..SelectRequest::default()
    }
}

fn selections(criterion: &mut Criterion) {
    let registry = router_plugin_registry();
    for (name, is_custom) in [("select: three scorers", true), ("select: default policy", false)] {
        let mut group = criterion.benchmark_group(name);
        for workers in WORKERS {
            let plugins = if is_custom {
                Plugins::Factory(custom())
            } else {
                Plugins::Registry { registry: &registry, role: Default::default() }
            };
            let core = core(workers, plugins);
            let ask = request(0);
            group.bench_function(BenchmarkId::from_parameter(workers), |bench| {
                bench.iter(|| black_box(ready(core.select(ask.clone()))));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(300));
    targets = selections
}
criterion_main!(benches);
