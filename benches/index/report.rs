//! What criterion does not measure: bytes a block, and percentiles of single calls, alone and beside ingest.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use pointsman::selection::index::{Matches, PrefixIndex};

use crate::{
    allocator,
    workload::{Churn, PROMPT, Shape, blocks, extend, fleet, rank, store},
};

/// Bytes that building with `fill` added, by `blocks` held.
fn bytes(what: &str, blocks: usize, fill: impl FnOnce(&PrefixIndex)) {
    let before = allocator::live();
    let index = PrefixIndex::new();
    let start = Instant::now();
    fill(&index);
    let spent = start.elapsed();
    // What waits for readers to leave is not held.
    (0..64).for_each(|_| _ = index.sweep(1));
    let held: u64 = index.stats().held.iter().sum();
    assert_eq!(held as usize, blocks);
    let bytes = (allocator::live() - before) as f64 / blocks as f64;
    let rate = blocks as f64 / spent.as_secs_f64() / 1e6;
    println!("memory   {what:44} {bytes:7.2} B a held block   filled at {rate:6.1} M/s, making the events included");
}

/// Bytes a block for shapes of use.
pub fn memory() {
    for total in [100_000, 1_000_000, 10_000_000] {
        bytes(&format!("one holder, events of 64, {total} blocks"), total / 256 * 256, |index| {
            let mut rng = fastrand::Rng::with_seed(1);
            (0..total / 256).for_each(|k| store(index, rank(k % 64), &extend(&[], 256, &mut rng), 256, 64, 0));
        });
    }
    bytes("one holder, one block an event, 256 interleaved", 256 * 4096, |index| {
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..16 {
            let prompts: Vec<_> = (0..256).map(|_| extend(&[], 256, &mut rng)).collect();
            for k in 0..256_usize {
                for (r, prompt) in prompts.iter().enumerate() {
                    let parent = k.checked_sub(1).map(|k| prompt.seqs[k]);
                    index.store(rank(r % 64), pointsman::selection::Tier::Device, parent, &blocks(prompt, k, k + 1, 0));
                }
            }
        }
    });
    for length in [16, 4, 1] {
        bytes(&format!("one holder, chains of {length}"), 1 << 20, |index| {
            let mut rng = fastrand::Rng::with_seed(3);
            (0..(1 << 20) / length)
                .for_each(|k| store(index, rank(k % 64), &extend(&[], length, &mut rng), length, 64, 0));
        });
    }
    for (what, batch, own) in [
        ("64 holders, equal names, events of 64", 64, false),
        ("64 holders, equal names, one block an event", 1, false),
        ("64 holders, names of their own, events of 64", 64, true),
    ] {
        bytes(what, 64 * 100 * 256, |index| {
            let mut rng = fastrand::Rng::with_seed(4);
            for _ in 0..100 {
                let prompt = extend(&[], 256, &mut rng);
                (0..64).for_each(|k| store(index, rank(k), &prompt, 256, batch, if own { k as u64 + 1 } else { 0 }));
            }
        });
    }
    let before = allocator::live();
    let index = PrefixIndex::new();
    drop(Churn::new(&index, 64, 10_000));
    (0..64).for_each(|k| index.remove_rank(rank(k)));
    while index.sweep(4096) {}
    (0..64).for_each(|_| _ = index.sweep(1));
    println!("memory   left after 640,000 blocks came and went: {} B", allocator::live() - before);
}

/// Percentiles of sampled times.
fn percentiles(what: &str, mut samples: Vec<u64>, rest: &str) {
    samples.sort_unstable();
    let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    println!("latency  {what:44} p50 {:6.2} us  p99 {:6.2} us  p99.9 {:7.2} us{rest}", at(0.5), at(0.99), at(0.999));
}

/// Times single lookups of 128 blocks for `span`.
fn lookups(index: &PrefixIndex, prompts: &[crate::workload::Prompt], span: Duration) -> Vec<u64> {
    let (mut rng, mut out, mut samples) = (fastrand::Rng::with_seed(5), Matches::default(), Vec::new());
    let end = Instant::now() + span;
    while Instant::now() < end {
        for _ in 0..64 {
            let prompt = &prompts[rng.usize(..prompts.len())];
            let start = Instant::now();
            index.lookup(&prompt.locals[..PROMPT], &prompt.seqs, &mut out);
            samples.push(start.elapsed().as_nanos() as u64);
            black_box(&out);
        }
    }
    samples
}

/// Latency of lookups, alone, beside a core that only spins, and beside ingest.
pub fn latency() {
    let span = Duration::from_secs(3);
    for (ranks, shape, name) in [
        (8, Shape::Tree, "tree"),
        (64, Shape::Tree, "tree"),
        (64, Shape::Staggered, "staggered"),
        (1_000, Shape::Tree, "tree"),
        (1_000, Shape::Staggered, "staggered"),
        (10_000, Shape::Tree, "tree"),
    ] {
        let (index, prompts) = fleet(ranks, 4_000_000, shape);
        let what = format!("{ranks} ranks, {name}");
        percentiles(&format!("{what}, alone"), lookups(&index, &prompts, span), "");
        beside(&index, &prompts, ranks, &what, span, 0);
        if shape == Shape::Tree {
            beside(&index, &prompts, ranks, &what, span, 1_000_000);
            beside(&index, &prompts, ranks, &what, span, u64::MAX);
        }
    }
}

/// Lookups beside a writer at `rate` stored blocks a second; 0 only spins.
fn beside(
    index: &PrefixIndex,
    prompts: &[crate::workload::Prompt],
    ranks: usize,
    what: &str,
    span: Duration,
    rate: u64,
) {
    let (stop, stored, busy) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut churn = (rate > 0).then(|| Churn::new(index, ranks, 2_000));
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                let Some(churn) = &mut churn else {
                    std::hint::spin_loop();
                    continue;
                };
                if start.elapsed().as_secs_f64() * (rate as f64) < stored.load(Ordering::Relaxed) as f64 {
                    std::hint::spin_loop();
                    continue;
                }
                churn.prepare(256);
                let start = Instant::now();
                while churn.step(index) {
                    stored.fetch_add(64, Ordering::Relaxed);
                }
                busy.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        });
        let samples = lookups(index, prompts, span);
        stop.store(true, Ordering::Relaxed);
        let (stored, busy) = (stored.load(Ordering::Relaxed), busy.load(Ordering::Relaxed));
        let (beside, rest) = match rate {
            0 => ("a core that spins".to_owned(), String::new()),
            _ => (
                if rate == u64::MAX { "ingest".to_owned() } else { format!("{rate} blocks/s") },
                format!("  writer: {:.1} M stored and removed a second of its own", stored as f64 * 1e3 / busy as f64),
            ),
        };
        percentiles(&format!("{what}, beside {beside}"), samples, &rest);
    });
}
