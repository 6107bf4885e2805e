//! Request verbs of the core in process: `select`, and `select_and_reserve` with its release, by number of workers.
//!
//! Prompts have 128 blocks; half of them are a prefix that a quarter of the workers hold and live bookings share. With
//! events off, the blocks of the last second's bookings are held instead, and expire. Under `work-ahead` a cycle
//! has its first token told too.
//! `cargo bench --bench core -- reserve` runs one group. Times are CPU times of the one thread that works.

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
    time::Duration,
};

use cpu_time::CpuTime;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use pointsman::selection::{
    SelectionConfig, SelectionCore, Tier, hash,
    index::StoredBlock,
    ingest::{EventSink, EventSource, EventSources, Trust},
    moment::SystemClock,
    policy::instances::{WorkerSelectionConfig, WorkerSelectionInstance},
    request::{PromptInput, SelectRequest},
    worker::{WorkerFields, WorkerRequest},
};

const WORKERS: [u64; 4] = [8, 64, 512, 10_000];
const BLOCK_SIZE: u32 = 16;
const SHARED: i64 = 64;
const BLOCKS: i64 = 128;
/// Live bookings a worker while the measured ones come and go.
const BACKGROUND: u64 = 4;

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

fn prompt(tail: i64) -> PromptInput {
    let blocks = (1..=SHARED).chain((0..BLOCKS - SHARED).map(|at| tail * 1_000 + at));
    let block_hashes: Vec<i64> = blocks.collect();
    let locals: Vec<u64> = block_hashes.iter().map(|hash| hash.cast_unsigned()).collect();
    let mut seqs = Vec::new();
    hash::sequence_hashes(&locals, &mut seqs);
    PromptInput {
        block_hashes: Some(block_hashes),
        sequence_hashes: Some(seqs.iter().map(|hash| hash.cast_signed()).collect()),
        isl_tokens: Some(BLOCKS.unsigned_abs() * u64::from(BLOCK_SIZE)),
        ..PromptInput::default()
    }
}

fn tokens(tail: u32) -> PromptInput {
    let shared = 0..4_000_u32;
    let tokens = shared.chain((0..4_000).map(|at| tail.wrapping_mul(7_919).wrapping_add(at)));
    PromptInput { token_ids: Some(tokens.collect()), ..PromptInput::default() }
}

fn request(prompt: PromptInput) -> SelectRequest {
    SelectRequest {
        model_name: "llama-3.1-70b".to_owned(),
        routing_group: "default".to_owned(),
        prompt,
        ..SelectRequest::default()
    }
}

fn core_with(workers: u64, config: SelectionConfig) -> Arc<SelectionCore> {
    let sinks = Arc::new(Sinks::default());
    let events = config.use_kv_events;
    let core =
        SelectionCore::try_new(config, Arc::new(SystemClock::default()), Arc::clone(&sinks) as Arc<dyn EventSources>)
            .expect("default settings are valid");
    let shared: Vec<u64> = (1..=SHARED.unsigned_abs()).collect();
    let mut seqs = Vec::new();
    hash::sequence_hashes(&shared, &mut seqs);
    let blocks: Vec<_> = shared.iter().zip(&seqs).map(|(&local, &name)| StoredBlock { name, local }).collect();
    for worker_id in 1..=workers {
        let fields = WorkerFields {
            endpoint: Some(format!("http://10.0.0.{worker_id}:8000")),
            kv_events_endpoint: events.then(|| format!("tcp://10.0.0.{worker_id}:5557")),
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
        if events {
            let sinks = sinks.0.lock().expect("no panic under the lock");
            sinks[&worker_id].set_trust(Trust::Complete);
            if worker_id % 4 == 0 {
                sinks[&worker_id].store(0, Tier::Device, None, &blocks);
            }
        }
    }
    for booking in 0..(workers * BACKGROUND).cast_signed() {
        now(core.select_and_reserve(request(prompt(1_000_000 + booking)))).expect("booked");
    }
    core
}

fn bench(c: &mut Criterion<CpuTime>) {
    for workers in WORKERS {
        // Built only when a benchmark of this size is wanted.
        let core = std::cell::LazyCell::new(|| core_with(workers, SelectionConfig::default()));
        let mut group = c.benchmark_group("select");
        let mut tail = 0;
        group.bench_function(BenchmarkId::new("128 hashes", workers), |b| {
            let core = &*core;
            b.iter_batched(
                || {
                    tail += 1;
                    request(prompt(tail))
                },
                |request| black_box(now(core.select(request)).expect("selected")),
                BatchSize::SmallInput,
            );
        });
        group.finish();
        let mut group = c.benchmark_group("reserve and free");
        for (name, make) in [
            ("128 hashes", prompt as fn(i64) -> PromptInput),
            ("8,000 tokens", |tail| tokens(u32::try_from(tail).unwrap_or(0))),
        ] {
            group.bench_function(BenchmarkId::new(name, workers), |b| {
                let core = &*core;
                b.iter_batched(
                    || {
                        tail += 1;
                        request(make(tail))
                    },
                    |request| {
                        let answer = now(core.select_and_reserve(request)).expect("booked");
                        let id = answer.selection_id.as_deref().expect("generated");
                        core.free_reservation(id).expect("freed");
                        black_box(answer)
                    },
                    BatchSize::SmallInput,
                );
            });
        }
        group.finish();
    }
}

/// Each cycle records its prompt in the index of own decisions.
fn bench_events_off(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("reserve and free, events off");
    for workers in [64, 512] {
        let config =
            SelectionConfig { use_kv_events: false, ttl: Duration::from_secs(1), ..SelectionConfig::default() };
        let core = std::cell::LazyCell::new(|| core_with(workers, config.clone()));
        let mut tail = 0;
        group.bench_function(BenchmarkId::new("128 hashes", workers), |b| {
            let core = &*core;
            b.iter_batched(
                || {
                    tail += 1;
                    (tail, request(prompt(tail)))
                },
                |(tail, request)| {
                    let answer = now(core.select_and_reserve(request)).expect("booked");
                    core.free_reservation(answer.selection_id.as_deref().expect("generated")).expect("freed");
                    if tail % 256 == 0 {
                        core.tick();
                    }
                    black_box(answer)
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// By prefill work ahead.
fn bench_work_ahead(c: &mut Criterion<CpuTime>) {
    let instance = WorkerSelectionInstance {
        name: "instance".into(),
        policy_type: "work-ahead".into(),
        parameters: Default::default(),
        location: None,
    };
    let section = WorkerSelectionConfig {
        aggregated: Some("instance".into()),
        instances: vec![instance],
        ..WorkerSelectionConfig::default()
    };
    let config = SelectionConfig { worker_selection: Some(Arc::new(section)), ..SelectionConfig::default() };
    let mut group = c.benchmark_group("reserve, first token and free, work-ahead");
    for workers in WORKERS {
        let core = std::cell::LazyCell::new(|| core_with(workers, config.clone()));
        let mut tail = 0;
        group.bench_function(BenchmarkId::new("128 hashes", workers), |b| {
            let core = &*core;
            b.iter_batched(
                || {
                    tail += 1;
                    request(prompt(tail))
                },
                |request| {
                    let answer = now(core.select_and_reserve(request)).expect("booked");
                    let id = answer.selection_id.as_deref().expect("generated");
                    core.prefill_complete(id).expect("booked");
                    core.free_reservation(id).expect("freed");
                    black_box(answer)
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = bench, bench_events_off, bench_work_ahead
}
criterion_main!(benches);
