//! Models of readers beside the writer: every interleaving with at most two preemptions, and every value an atomic
//! load may see, of the real index.
//!
//! `RUSTFLAGS="--cfg model_check" cargo test --no-default-features --lib --release loom`; the flag makes other crates of the
//! default features expect loom too. Memory is never reused in these models (see `sync::defer`); that readers hold no
//! freed memory is the epoch's promise, and AddressSanitizer's to watch.

use ::loom::{model::Builder, sync::Arc, thread};

use super::*;

const STEADY: WorkerWithDpRank = WorkerWithDpRank { worker_id: 1, dp_rank: 0 };
const OTHER: WorkerWithDpRank = WorkerWithDpRank { worker_id: 2, dp_rank: 0 };
const THIRD: WorkerWithDpRank = WorkerWithDpRank { worker_id: 3, dp_rank: 0 };

/// Blocks with contents `from..to`; each is named by its content.
fn blocks(from: u64, to: u64) -> Vec<StoredBlock> {
    (from..to).map(|k| StoredBlock { name: 100 + k, local: k }).collect()
}

fn names(from: u64, to: u64) -> Vec<u64> {
    (from..to).map(|k| 100 + k).collect()
}

/// Device blocks of a prompt with contents `1..=n` that the two ranks match.
fn matched(index: &PrefixIndex, n: u64) -> (u32, u32) {
    let locals: Vec<u64> = (1..=n).collect();
    let mut out = Matches::default();
    index.lookup(&locals, &seqs_of(&locals), &mut out);
    let by_rank = pairs(index, &out);
    let device = |rank| by_rank.get(&rank).map_or(0, |blocks| blocks[0]);
    (device(STEADY), device(OTHER))
}

/// Explores `write` beside `read` on an index that `prepare` made.
fn model(
    prepare: impl Fn(&PrefixIndex) + Send + Sync + 'static,
    write: impl Fn(&PrefixIndex) + Send + Sync + Copy + 'static,
    read: impl Fn(&PrefixIndex) + Send + Sync + 'static,
) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 100_000;
    builder.check(move || {
        let index = Arc::new(PrefixIndex::new());
        prepare(&index);
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || write(&index))
        };
        read(&index);
        writer.join().expect("the writer ends");
        read(&index);
    });
}

fn store(index: &PrefixIndex, rank: WorkerWithDpRank, from: u64, to: u64) {
    let parent = (from > 1).then(|| 100 + from - 1);
    assert_eq!(index.store(rank, Tier::Device, parent, &blocks(from, to)), StoreOutcome::Applied);
}

fn remove(index: &PrefixIndex, rank: WorkerWithDpRank, from: u64, to: u64) {
    index.remove(rank, Tier::Device, &names(from, to));
}

#[test]
fn loom_a_holder_comes_and_goes() {
    model(
        |index| store(index, STEADY, 1, 3),
        |index| {
            store(index, OTHER, 1, 3);
            remove(index, OTHER, 2, 3);
        },
        |index| {
            let (steady, other) = matched(index, 2);
            assert!(steady == 2 && other <= 2, "{steady} {other}");
        },
    );
}

#[test]
fn loom_a_set_is_freed_and_its_id_reused() {
    model(
        |index| {
            store(index, STEADY, 1, 3);
            store(index, THIRD, 1, 3);
        },
        |index| {
            // {steady, third} goes, {steady, other} takes its place, and its id.
            remove(index, THIRD, 1, 3);
            store(index, OTHER, 1, 3);
        },
        |index| {
            let (steady, other) = matched(index, 2);
            assert!(steady == 2 && (other == 0 || other == 2), "{steady} {other}");
        },
    );
}

#[test]
fn loom_a_chunk_grows() {
    model(
        |index| store(index, STEADY, 1, 2),
        |index| {
            store(index, STEADY, 2, 3);
            store(index, STEADY, 3, 4);
        },
        |index| assert!((1..=3).contains(&matched(index, 3).0)),
    );
}

#[test]
fn loom_a_chunk_is_divided() {
    model(
        |index| {
            store(index, STEADY, 1, 2);
            store(index, OTHER, 1, 6);
        },
        |index| remove(index, OTHER, 2, 5),
        |index| {
            let (steady, other) = matched(index, 5);
            assert!(steady == 1 && (other == 5 || other == 1), "{steady} {other}");
        },
    );
}

#[test]
fn loom_a_chunk_is_emptied_and_filled_again() {
    model(
        |index| {
            store(index, OTHER, 1, 2);
            // Another prompt keeps the page.
            index.store(STEADY, Tier::Device, None, &blocks(50, 51));
        },
        |index| {
            remove(index, OTHER, 1, 2);
            store(index, OTHER, 1, 3);
        },
        |index| assert!(matched(index, 2).1 <= 2),
    );
}

#[test]
fn loom_a_table_of_heads_grows() {
    model(
        |index| store(index, STEADY, 1, 2),
        |index| {
            for k in 0..4 {
                index.store(OTHER, Tier::Device, None, &blocks(60 + k, 61 + k));
            }
        },
        |index| assert_eq!(matched(index, 1).0, 1),
    );
}

#[test]
fn loom_an_answer_is_one_state_of_the_path() {
    model(
        |index| {
            // Two chunks: the second begins where another prompt ended the first.
            store(index, STEADY, 1, 2);
            index.store(STEADY, Tier::Device, Some(101), &[StoredBlock { name: 999, local: 99 }]);
            store(index, OTHER, 1, 3);
            remove(index, OTHER, 1, 2);
        },
        |index| {
            // The hole moves from the first chunk to the second: never are both blocks there.
            remove(index, OTHER, 2, 3);
            index.store(OTHER, Tier::Device, None, &blocks(1, 2));
        },
        |index| {
            let (_, other) = matched(index, 2);
            assert!(other < 2, "{other}");
        },
    );
}

#[test]
fn loom_a_lane_is_read_whole() {
    model(
        |index| assert!(index.bind_slot(STEADY, 0)),
        |index| {
            index.remove_rank(STEADY);
            assert!(index.bind_slot(OTHER, 0));
        },
        |index| {
            if let Some(rank) = index.lane_of_slot(0).and_then(|lane| index.rank_of(lane)) {
                assert!(rank == STEADY || rank == OTHER, "{rank:?}");
            }
        },
    );
}
