//! Readers beside a writer that changes the same chunks all the time.
//!
//! `POINTSMAN_LOOKUPS` sets how many lookups each reader makes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Blocks of the prompt all ranks share.
const LENGTH: usize = 300;

fn rank(worker: u64) -> WorkerWithDpRank {
    WorkerWithDpRank::new(worker, 0)
}

fn lookups() -> u64 {
    std::env::var("POINTSMAN_LOOKUPS").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000)
}

/// A prompt, and the name of each block for ranks of one scheme.
struct Prompt {
    locals: Vec<u64>,
    seqs: Vec<u64>,
}

impl Prompt {
    fn new(first: u64, length: usize) -> Self {
        let locals: Vec<u64> = (0..length as u64).map(|k| first << 32 | k).collect();
        Self { seqs: seqs_of(&locals), locals }
    }

    fn name(&self, scheme: u64, k: usize) -> u64 {
        chain(scheme, self.seqs[k])
    }

    fn store(&self, index: &PrefixIndex, rank: WorkerWithDpRank, scheme: u64, tier: Tier, from: usize, to: usize) {
        let blocks: Vec<StoredBlock> =
            (from..to).map(|k| StoredBlock { name: self.name(scheme, k), local: self.locals[k] }).collect();
        index.store(rank, tier, from.checked_sub(1).map(|k| self.name(scheme, k)), &blocks);
    }

    fn remove(&self, index: &PrefixIndex, rank: WorkerWithDpRank, scheme: u64, from: usize, to: usize) {
        let names: Vec<u64> = (from..to).rev().map(|k| self.name(scheme, k)).collect();
        index.remove(rank, Tier::Device, &names);
    }
}

/// Runs `write` over and over until every reader has made its lookups.
fn beside_a_writer(
    index: &PrefixIndex,
    mut write: impl FnMut(&mut fastrand::Rng),
    read: impl Fn(&mut fastrand::Rng, &mut Matches) + Sync,
) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (read, failed) = (&read, &failed);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed ^ reader);
                    let mut out = Matches::default();
                    for _ in 0..lookups() {
                        if failed.load(Ordering::Relaxed) {
                            return;
                        }
                        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(&mut rng, &mut out)));
                        if let Err(panic) = ok {
                            failed.store(true, Ordering::Relaxed);
                            std::panic::resume_unwind(panic);
                        }
                    }
                })
            })
            .collect();
        let mut rng = fastrand::Rng::with_seed(!seed);
        while !readers.iter().all(|reader| reader.is_finished()) {
            write(&mut rng);
        }
    });
    index.check();
}

#[test]
fn readers_see_steady_ranks_while_others_come_and_go() {
    let index = PrefixIndex::new();
    let (prompt, branch) = (Prompt::new(1, LENGTH), Prompt::new(2, 90));
    // What never changes: ranks at several depths, in several tiers, with names of their own.
    let steady: Vec<(u64, usize, usize)> =
        vec![(1, 300, 0), (2, 64, 0), (3, 65, 130), (4, 0, 70), (5, 1, 0), (6, 200, 300)];
    for &(worker, device, host) in &steady {
        prompt.store(&index, rank(worker), worker % 2, Tier::Device, 0, device);
        prompt.store(&index, rank(worker), worker % 2, Tier::HostPinned, 0, host);
    }
    beside_a_writer(
        &index,
        |rng| {
            let worker = rng.u64(100..176);
            let scheme = worker % 3;
            match rng.u8(..10) {
                0..4 => {
                    let to = rng.usize(1..=LENGTH);
                    let from = if rng.bool() { 0 } else { rng.usize(..to) };
                    let tier = if rng.u8(..4) == 0 { Tier::HostPinned } else { Tier::Device };
                    prompt.store(&index, rank(worker), scheme, tier, from, to);
                }
                4..7 => {
                    let to = rng.usize(1..=LENGTH);
                    prompt.remove(&index, rank(worker), scheme, rng.usize(..to), to);
                }
                7 => branch.store(&index, rank(worker), scheme, Tier::Device, 0, rng.usize(1..90)),
                8 => branch.remove(&index, rank(worker), scheme, 0, 90),
                _ => {
                    index.clear(rank(worker));
                    index.sweep(50);
                }
            }
        },
        |rng, out| {
            let n = rng.usize(1..=LENGTH);
            index.lookup(&prompt.locals[..n], &prompt.seqs[..n], out);
            let got = pairs(&index, out);
            for &(worker, device, host) in &steady {
                let device = device.min(n) as u32;
                let host = (host.min(n) as u32).saturating_sub(device);
                assert_eq!(got.get(&rank(worker)), Some(&[device, host, 0, 0]), "worker {worker} at {n} blocks");
            }
            for (rank, blocks) in got {
                let known = steady.iter().any(|&(worker, ..)| worker == rank.worker_id);
                assert!(known || (100..176).contains(&rank.worker_id), "{rank:?}");
                assert!(blocks.iter().sum::<u32>() <= n as u32);
            }
            index.lookup(&branch.locals, &branch.seqs, out);
            assert!(pairs(&index, out).keys().all(|rank| rank.worker_id >= 100));
        },
    );
}

#[test]
fn readers_see_one_state_of_the_whole_path() {
    // One block is missing at any time, now here, now there: nobody ever holds the whole prompt.
    let index = PrefixIndex::new();
    let prompt = Prompt::new(3, 200);
    prompt.store(&index, rank(1), 0, Tier::Device, 0, 200);
    prompt.store(&index, rank(2), 0, Tier::Device, 0, 200);
    let mut hole = 10;
    prompt.remove(&index, rank(1), 0, hole, hole + 1);
    beside_a_writer(
        &index,
        |rng| {
            let next = rng.usize(1..200);
            if next != hole {
                prompt.remove(&index, rank(1), 0, next, next + 1);
                prompt.store(&index, rank(1), 0, Tier::Device, hole, hole + 1);
                hole = next;
            }
        },
        |_, out| {
            index.lookup(&prompt.locals, &prompt.seqs, out);
            let got = pairs(&index, out);
            assert_eq!(got[&rank(2)], [200, 0, 0, 0]);
            assert!((1..200).contains(&got[&rank(1)][0]), "{:?}", got[&rank(1)]);
        },
    );
}

#[test]
fn readers_find_what_is_divided_emptied_and_filled_again() {
    // The steady rank holds two islands' ends; the chunk between is torn apart and grown together around it.
    let index = PrefixIndex::new();
    let prompt = Prompt::new(4, 64);
    prompt.store(&index, rank(1), 0, Tier::Device, 0, 20);
    beside_a_writer(
        &index,
        |rng| {
            prompt.store(&index, rank(9), 0, Tier::Device, 0, 64);
            let (from, to) = (rng.usize(..30), rng.usize(30..60));
            prompt.remove(&index, rank(9), 0, from, to);
            if rng.bool() {
                prompt.remove(&index, rank(9), 0, 0, 64);
            }
        },
        |_, out| {
            index.lookup(&prompt.locals, &prompt.seqs, out);
            assert_eq!(pairs(&index, out).get(&rank(1)), Some(&[20, 0, 0, 0]));
        },
    );
}

#[test]
fn slots_and_ranks_of_lanes_are_read_whole() {
    let index = PrefixIndex::new();
    let prompt = Prompt::new(5, 8);
    for worker in 0..50 {
        assert!(index.bind_slot(rank(worker), worker as u32));
    }
    beside_a_writer(
        &index,
        |rng| {
            let worker = rng.u64(..50);
            prompt.store(&index, rank(worker), 0, Tier::Device, 0, 8);
            if rng.bool() {
                index.clear(rank(worker));
            }
            index.sweep(10);
        },
        |rng, _| {
            let slot = rng.u32(..50);
            if let Some(lane) = index.lane_of_slot(slot)
                && let Some(rank) = index.rank_of(lane)
            {
                assert!(rank.worker_id < 50 && rank.dp_rank == 0);
            }
        },
    );
    for worker in 0..50 {
        let lane = index.lane_of_slot(worker).expect("bound");
        assert_eq!((index.rank_of(lane), index.slot_of(lane)), (Some(rank(worker.into())), Some(worker)));
    }
}

#[test]
fn an_export_beside_a_writer_has_all_that_stays() {
    let index = PrefixIndex::new();
    let (prompt, branch) = (Prompt::new(6, LENGTH), Prompt::new(7, LENGTH));
    prompt.store(&index, rank(1), 0, Tier::Device, 0, LENGTH);
    prompt.store(&index, rank(1), 0, Tier::Disk, 0, 100);
    let exports = lookups() / 30;
    let made = std::sync::atomic::AtomicU64::new(0);
    beside_a_writer(
        &index,
        |rng| {
            let (worker, scheme) = (rng.u64(100..110), rng.u64(..2));
            let prompt = if rng.bool() { &prompt } else { &branch };
            let to = rng.usize(1..=LENGTH);
            match rng.u8(..5) {
                0..3 => prompt.store(&index, rank(worker), scheme, Tier::Device, 0, to),
                3 => prompt.remove(&index, rank(worker), scheme, rng.usize(..to), to),
                _ => {
                    index.clear(rank(worker));
                    index.sweep(20);
                }
            }
        },
        |_, _| {
            if made.fetch_add(1, Ordering::Relaxed) > exports {
                return;
            }
            let mut names: [std::collections::HashSet<u64>; 4] = Default::default();
            index.export(&mut |run| {
                if run.rank == rank(1) {
                    names[run.tier as usize].extend(run.blocks.iter().map(|block| block.name));
                }
            });
            assert_eq!(names.map(|names| names.len()), [LENGTH, 0, 100, 0]);
        },
    );
}
