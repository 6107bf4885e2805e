//! The selection core beside the reference's, in one process: `select_and_reserve` and its release, CPU time of the whole
//! process, rounds of both in turn.
//!
//! ```text
//! cargo run --release --manifest-path benches/reference/Cargo.toml
//! cargo run --release --manifest-path benches/reference/Cargo.toml -- choices [--traces DIR] [WORKLOAD...]
//! ```
//!
//! Prompts have 128 blocks, half of them shared by all; four live bookings a worker stand in the background. The same
//! policy source (`scorers.rs`) is compiled against both crates.
//!
//! The second command times nothing: it says whether both choose the same workers (`choices`).

mod choices;
mod ours;
mod theirs;

use std::{process::ExitCode, time::Duration};

use nix::time::{ClockId, clock_gettime};

pub const BLOCK_SIZE: u32 = 16;
pub const BLOCKS: i64 = 128;
pub const SHARED: i64 = 64;
/// Live bookings a worker while the measured ones come and go.
pub const BACKGROUND: u64 = 4;

const ROUNDS: usize = 7;
const CYCLES: i64 = 3_000;

/// Block hashes of a prompt and their number; the second half is its own.
pub fn hashes(tail: i64) -> Vec<i64> {
    (1..=SHARED).chain((0..BLOCKS - SHARED).map(|at| tail * 1_000 + at)).collect()
}

/// Which policy a core runs.
#[derive(Clone, Copy, PartialEq)]
pub enum Policy {
    Default,
    ThreeScorers,
}

fn spent() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every Linux has this clock").into()
}

/// Microseconds of CPU a cycle.
fn measure(mut cycle: impl FnMut(i64), from: &mut i64) -> f64 {
    let start = spent();
    for _ in 0..CYCLES {
        *from += 1;
        cycle(*from);
    }
    (spent() - start).as_secs_f64() * 1e6 / CYCLES as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|word| word == "choices").is_some() {
        return choices::run(words);
    }
    time(words.filter_map(|word| word.parse().ok()).collect());
    ExitCode::SUCCESS
}

/// Times both cores with fleets of those sizes, or of all.
fn time(only: Vec<u64>) {
    println!(
        "select_and_reserve + release, {BLOCKS} hashes, {SHARED} shared, us of CPU, median of {ROUNDS} rounds of {CYCLES}"
    );
    println!("{:>8}  {:<14} {:>10} {:>10} {:>7}", "workers", "policy", "ours", "reference", "ratio");
    for workers in [8, 64, 512].into_iter().filter(|n| only.is_empty() || only.contains(n)) {
        for (name, policy) in [("default", Policy::Default), ("three scorers", Policy::ThreeScorers)] {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            let ours = ours::Core::new(workers, policy);
            let theirs = theirs::Core::new(&runtime, workers, policy);
            let (mut at, mut rounds) = (1_000_000, [Vec::new(), Vec::new()]);
            measure(|tail| ours.cycle(tail), &mut at);
            measure(|tail| theirs.cycle(&runtime, tail), &mut at);
            for _ in 0..ROUNDS {
                rounds[0].push(measure(|tail| ours.cycle(tail), &mut at));
                rounds[1].push(measure(|tail| theirs.cycle(&runtime, tail), &mut at));
            }
            let [ours, theirs] = rounds.map(median);
            println!("{workers:>8}  {name:<14} {ours:>10.2} {theirs:>10.2} {:>7.3}", ours / theirs);
        }
    }
}
