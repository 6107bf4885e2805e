//! The prefix index: lookups, stores and removals by number of ranks and blocks.
//!
//! `cargo bench --bench index` runs criterion; `cargo bench --bench index -- memory` and `-- latency` print what it does
//! not measure: bytes a block from a counting allocator, and percentiles of single lookups beside ingest.
#![allow(missing_docs)]

mod allocator;
mod report;
mod workload;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use pointsman::selection::{
    Tier,
    index::{Matches, PrefixIndex},
};
use workload::{Churn, PROMPT, Shape, blocks, extend, fleet, rank, store};

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookup 128 blocks");
    for (ranks, shape, name) in [
        (8, Shape::Tree, "tree"),
        (64, Shape::Tree, "tree"),
        (1_000, Shape::Tree, "tree"),
        (10_000, Shape::Tree, "tree"),
        (64, Shape::Staggered, "staggered"),
        (1_000, Shape::Staggered, "staggered"),
    ] {
        let (index, prompts) = fleet(ranks, 4_000_000, shape);
        let (mut rng, mut out) = (fastrand::Rng::with_seed(5), Matches::default());
        group.bench_function(BenchmarkId::new(name, ranks), |b| {
            b.iter(|| {
                let prompt = &prompts[rng.usize(..prompts.len())];
                index.lookup(&prompt.locals[..PROMPT], &prompt.seqs, &mut out);
                black_box(&out);
            });
        });
    }
    group.finish();
}

fn store_blocks(c: &mut Criterion) {
    let mut group = c.benchmark_group("store");
    group.throughput(Throughput::Elements(64));
    for total in [100_000, 1_000_000, 10_000_000] {
        let index = PrefixIndex::new();
        let mut churn = Churn::new(&index, 64, total / 64);
        group.bench_function(BenchmarkId::new("64 blocks new, 64 removed", total), |b| {
            b.iter_custom(|n| {
                let mut spent = Duration::ZERO;
                for _ in 0..n.div_ceil(1024) {
                    churn.prepare(1024);
                    let start = Instant::now();
                    while churn.step(&index) {}
                    spent += start.elapsed();
                }
                spent.mul_f64(n as f64 / (n.div_ceil(1024) * 1024) as f64)
            });
        });
    }
    let known = extend(&[], 64, &mut fastrand::Rng::with_seed(6));
    let index = PrefixIndex::new();
    (0..64).for_each(|k| store(&index, rank(k), &known, 64, 64, 0));
    let (all, names) = (blocks(&known, 0, 64, 0), known.seqs.clone());
    group.bench_function("64 blocks known, 64 removed", |b| {
        b.iter(|| {
            index.store(rank(64), Tier::Device, None, &all);
            index.remove(rank(64), Tier::Device, &names);
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("one block an event, 256 sequences", |b| {
        b.iter_custom(|n| {
            let (index, mut rng, mut spent) = (PrefixIndex::new(), fastrand::Rng::with_seed(9), Duration::ZERO);
            let mut left = n;
            while left > 0 {
                let prompts: Vec<_> = (0..256).map(|_| extend(&[], 256, &mut rng)).collect();
                let events: Vec<_> = (0..256_usize)
                    .flat_map(|k| prompts.iter().enumerate().map(move |(r, prompt)| (k, r, prompt)))
                    .map(|(k, r, prompt)| (r, k.checked_sub(1).map(|k| prompt.seqs[k]), blocks(prompt, k, k + 1, 0)))
                    .take(left as usize)
                    .collect();
                let start = Instant::now();
                for (r, parent, blocks) in &events {
                    index.store(rank(r % 64), Tier::Device, *parent, blocks);
                }
                spent += start.elapsed();
                left -= events.len() as u64;
            }
            spent
        });
    });
    group.finish();
}

fn remove_blocks(c: &mut Criterion) {
    let mut group = c.benchmark_group("remove");
    for (batch, total) in [(64, 1_000_000), (1, 1_000_000)] {
        group.throughput(Throughput::Elements(64));
        group.bench_function(BenchmarkId::new(format!("64 blocks, {batch} an event"), total), |b| {
            b.iter_custom(|n| {
                let (index, mut rng) = (PrefixIndex::new(), fastrand::Rng::with_seed(10));
                let sequences = (n as usize).max(total / 64);
                let prompts: Vec<_> = (0..sequences).map(|_| extend(&[], 64, &mut rng)).collect();
                prompts.iter().enumerate().for_each(|(k, prompt)| store(&index, rank(k % 64), prompt, 64, 64, 0));
                let names: Vec<Vec<u64>> =
                    prompts.iter().map(|prompt| prompt.seqs.iter().rev().copied().collect()).collect();
                let start = Instant::now();
                for (k, names) in names.iter().enumerate().take(n as usize) {
                    for names in names.chunks(batch) {
                        index.remove(rank(k % 64), Tier::Device, names);
                    }
                }
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(3));
    targets = lookup, store_blocks, remove_blocks
}

fn main() {
    let asks = |what: &str| std::env::args().any(|arg| arg == what);
    if asks("memory") || asks("latency") {
        if asks("memory") {
            report::memory();
        }
        if asks("latency") {
            report::latency();
        }
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
