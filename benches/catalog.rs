//! The worker side of the core in process: a whole snapshot, the same one again, one change, single upserts, and what a
//! selection beside a large snapshot waits.
//!
//! `cargo bench --bench catalog`. Times are for the whole call; the snapshot's size is in the name.

#![allow(missing_docs, reason = "criterion's macro makes a public function")]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use pointsman::selection::{
    SelectionConfig, SelectionCore,
    catalog::{CatalogDelta, CatalogSnapshot, DesiredWorker, SnapshotVersion},
    request::{PromptInput, SelectRequest},
    worker::{WorkerFields, WorkerRequest, WorkerState},
};

const OWNER: &str = "file.bench";
/// Partitions of the 100,000 workers: one cannot hold them.
const MODELS: u64 = 4;

fn request(worker_id: u64) -> WorkerRequest {
    WorkerRequest {
        worker_id,
        model_name: format!("model-{}", worker_id % MODELS),
        routing_group: "default".to_owned(),
        fields: WorkerFields {
            endpoint: Some(format!("http://10.0.0.1:{worker_id}")),
            kv_events_endpoint: Some(format!("tcp://10.0.0.1:{}", worker_id % 60_000)),
            block_size: Some(16),
            ..WorkerFields::default()
        },
    }
}

fn desired(worker_id: u64) -> DesiredWorker {
    DesiredWorker { state: WorkerState::Active, request: request(worker_id) }
}

fn version(generation: u64) -> SnapshotVersion {
    SnapshotVersion { epoch: 1, generation }
}

fn snapshot(generation: u64, workers: u64) -> CatalogSnapshot {
    let digest = format!("digest-{generation}");
    CatalogSnapshot { version: version(generation), digest, workers: (1..=workers).map(desired).collect() }
}

fn core() -> Arc<SelectionCore> {
    SelectionCore::try_new_local(SelectionConfig::default()).expect("the default settings are valid")
}

fn snapshots(c: &mut Criterion) {
    let mut group = c.benchmark_group("catalog");
    group.sample_size(10);
    for workers in [1_000, 10_000, 100_000] {
        group.bench_function(BenchmarkId::new("first_snapshot", workers), |b| {
            b.iter_batched(
                || (core(), snapshot(1, workers)),
                |(core, snapshot)| {
                    core.apply_catalog(OWNER, snapshot, None).expect("a valid snapshot");
                    core
                },
                BatchSize::PerIteration,
            );
        });
        let core = core();
        core.apply_catalog(OWNER, snapshot(1, workers), None).expect("a valid snapshot");
        let mut generation = 1;
        group.bench_function(BenchmarkId::new("unchanged_snapshot", workers), |b| {
            b.iter_batched(
                || {
                    generation += 1;
                    snapshot(generation, workers)
                },
                |snapshot| core.apply_catalog(OWNER, snapshot, None).expect("a valid snapshot"),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("delta_of_one", workers), |b| {
            b.iter_batched(
                || {
                    let mut changed = desired(1);
                    generation += 1;
                    changed.request.fields.total_kv_blocks = Some(generation);
                    CatalogDelta {
                        version: version(generation),
                        base_digest: format!("digest-{}", generation - 1),
                        digest: format!("digest-{generation}"),
                        upsert: vec![changed],
                        delete: Vec::new(),
                    }
                },
                |delta| core.apply_catalog_delta(OWNER, delta).expect("it starts from the digest in force"),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// The core never waits here: no session is being initialised and nothing queues.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing to wait for"),
    }
}

/// Longest `select` while 100,000 workers are applied, reported as the time.
fn select_beside_a_snapshot(c: &mut Criterion) {
    let mut group = c.benchmark_group("catalog");
    group.sample_size(10);
    group.bench_function("longest_select_beside_100000", |b| {
        b.iter_custom(|iterations| (0..iterations).map(|_| longest_select()).sum());
    });
    group.finish();
}

fn longest_select() -> Duration {
    let core = core();
    let mut first = request(u64::MAX);
    "model-0".clone_into(&mut first.model_name);
    core.upsert_worker(first).expect("a valid worker");
    let snapshot = snapshot(1, 100_000);
    let select = || SelectRequest {
        model_name: "model-0".to_owned(),
        routing_group: "default".to_owned(),
        prompt: PromptInput {
            block_hashes: Some((1..=64).collect()),
            sequence_hashes: Some((1..=64).collect()),
            isl_tokens: Some(64 * 16),
            ..PromptInput::default()
        },
        ..SelectRequest::default()
    };
    let done = AtomicBool::new(false);
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            core.apply_catalog(OWNER, snapshot, None).expect("a valid snapshot");
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let request = select();
            let start = Instant::now();
            now(core.select(request)).expect("a worker is schedulable");
            longest = longest.max(start.elapsed());
        }
    });
    longest
}

criterion_group!(benches, snapshots, select_beside_a_snapshot);
criterion_main!(benches);
