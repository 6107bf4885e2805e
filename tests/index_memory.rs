//! The prefix index gives its memory back: counted by the allocator, not by the index itself.
#![allow(unsafe_code, reason = "a counting allocator")]

#[path = "../benches/index/allocator.rs"]
mod allocator;

use pointsman::selection::{
    Tier, WorkerWithDpRank,
    index::{PrefixIndex, StoredBlock},
};

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

/// Blocks `from..to` of sequence `k`, named and filled by number.
fn blocks(k: u64, from: u64, to: u64) -> Vec<StoredBlock> {
    (from..to).map(|o| StoredBlock { name: (k << 20) | (o + 1), local: (k << 32) | (o + 1) }).collect()
}

/// Frees what waits for readers to leave; there are none.
fn settle(index: &PrefixIndex) {
    while index.sweep(10_000) {}
    (0..1_000).for_each(|_| _ = index.sweep(1));
}

// One test: the allocator counts for the whole process.
#[test]
fn memory_is_bounded_by_what_is_held() {
    let rank = |k: u64| WorkerWithDpRank::new(k, 0);
    let empty = allocator::live();
    let index = PrefixIndex::new();

    // Held by one rank each: at most 32 bytes a block.
    for k in 0..800 {
        for from in (0..256).step_by(64) {
            let parent = (from > 0).then_some((k << 20) | from);
            index.store(rank(k % 8), Tier::Device, parent, &blocks(k, from, from + 64));
        }
    }
    settle(&index);
    let held: u64 = index.stats().held.iter().sum();
    assert_eq!(held, 800 * 256);
    let bytes = allocator::live() - empty;
    assert!(bytes < 32 * held as usize, "{} bytes a block", bytes as f64 / held as f64);
    let estimate = index.stats().bytes as usize;
    assert!(estimate > bytes / 2 && estimate < bytes * 2, "the index takes {bytes} for {estimate}");

    // Shared by 64 more: at most a byte for each holder.
    for holder in 100..164 {
        for k in 0..800 {
            index.store(rank(holder), Tier::Device, None, &blocks(k, 0, 256));
        }
    }
    settle(&index);
    let more = allocator::live() - empty - bytes;
    assert!(more < 64 * 800 * 256, "{more} bytes for {} holders", 64 * 800 * 256);

    // Half goes by removals in an order that tears chunks apart, half by a sweep; nothing stays.
    for k in 0..800 {
        for holder in (100..164).chain([k % 8]) {
            let mut names: Vec<u64> = blocks(k, 0, 256).iter().map(|block| block.name).collect();
            names.rotate_left((k as usize * 37) % 256);
            names.sort_by_key(|name| name % 3);
            names.truncate(if holder % 2 == 0 { 256 } else { 100 });
            index.remove(rank(holder), Tier::Device, &names);
        }
    }
    (0..200).for_each(|k| index.remove_worker(k));
    settle(&index);
    let stats = index.stats();
    assert_eq!((stats.held, stats.chunks, stats.names, stats.lanes), ([0; 4], 0, 0, 0));
    let left = allocator::live() - empty;
    assert!(left < 100_000, "{left} bytes left");

    // And all of it with the index.
    drop(index);
    let guard_rounds = 1_000;
    let other = PrefixIndex::new();
    (0..guard_rounds).for_each(|_| _ = other.sweep(1));
    drop(other);
    let left = allocator::live().saturating_sub(empty);
    assert!(left < 20_000, "{left} bytes left after the index");
}
