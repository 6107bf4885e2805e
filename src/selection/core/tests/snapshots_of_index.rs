//! Index snapshots: what goes out comes in, whatever the shape.

use super::*;
use crate::selection::{
    PartitionKey,
    index::ExportedRun,
    snapshot::{Chunk, IndexExport, RankHeader, RecoveringPartition, SnapshotError},
    trust::Trust,
};

fn header(worker_id: u64) -> RankHeader {
    let trust = Trust::Complete;
    RankHeader { worker_id, dp_rank: 0, blocks: 1, endpoint: None, position: Some(3), mark: Some(4), trust }
}

fn place(f: &Fixture) -> RecoveringPartition {
    f.core.recovering_partition(&PartitionKey::new("m", "default"), 4).unwrap()
}

/// All chunks of an export of the ranks of `workers`, pieces of about `blocks` blocks.
fn chunks(f: &Fixture, workers: &[u64], blocks: usize) -> Vec<Vec<u8>> {
    let table: Vec<_> = workers.iter().map(|&id| header(id)).collect();
    let mut export = IndexExport::new("e".to_owned(), f.core.partition("m", "default").unwrap(), &table);
    let mut chunks = vec![export.first(table, &[])];
    while !export.is_done() {
        assert_eq!(export.next(), chunks.len() as u64);
        chunks.push(export.runs(blocks).unwrap());
    }
    chunks.push(export.last(vec![1]));
    chunks
}

fn take(f: &Fixture, chunks: &[Vec<u8>], table: &[Option<WorkerWithDpRank>]) -> u64 {
    let place = place(f);
    chunks.iter().map(|chunk| Chunk::read(chunk).unwrap().store(table, &place).unwrap()).sum()
}

fn held(f: &Fixture) -> Vec<(WorkerWithDpRank, Tier, u64, u64)> {
    let mut held = Vec::new();
    let visit = &mut |run: ExportedRun| {
        held.extend(run.blocks.iter().map(|block| (run.rank, run.tier, block.name, block.local)));
    };
    f.core.partition("m", "default").unwrap().index.primary().export(visit);
    held.sort_unstable();
    held
}

#[test]
fn a_snapshot_brings_all_but_ranks_that_others_bring() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let f = Fixture::new();
        for id in 1..=3 {
            f.upsert(worker(id, 1));
        }
        let mut chains: Vec<Vec<u64>> = Vec::new();
        for _ in 0..200 {
            let id = random.u64(1..=3);
            let sink = f.sources.sink(id, 0);
            let chain: Vec<u64> = match random.usize(0..=chains.len()) {
                at if at < chains.len() => {
                    let known = &chains[at];
                    let kept = random.usize(1..=known.len());
                    known[..kept].iter().copied().chain((0..random.u64(0..90)).map(|_| random.u64(..))).collect()
                }
                _ => (0..random.u64(1..150)).map(|_| random.u64(..)).collect(),
            };
            // Every engine names its blocks in its own way.
            let blocks: Vec<_> = chain.iter().map(|&local| StoredBlock { name: local ^ id << 40, local }).collect();
            sink.store(0, Tier::Device, None, &blocks);
            if random.bool() {
                let gone: Vec<u64> = blocks.iter().map(|b| b.name).filter(|_| random.u8(0..8) == 0).collect();
                sink.remove(0, Tier::Device, &gone);
                sink.store(0, Tier::HostPinned, None, &blocks[..blocks.len().min(3)]);
            }
            chains.push(chain);
        }
        let chunks = chunks(&f, &[1, 2, 3], 100);
        assert!(chunks.len() > 3, "{} chunks", chunks.len());
        let ranks: Vec<_> = (1..=3).map(|id| Some(WorkerWithDpRank::new(id, 0))).collect();
        let g = Fixture::new();
        take(&g, &chunks, &ranks);
        assert_eq!(held(&f), held(&g), "seed {seed}");
        // Applied again it changes nothing, and what is stored again reconnects what hung behind a hole.
        take(&g, &chunks, &ranks);
        for f in [&f, &g] {
            for id in 1..=3 {
                f.upsert(worker(id, 1));
            }
            for chain in &chains {
                let blocks: Vec<_> = chain.iter().map(|&local| StoredBlock { name: local ^ 1 << 40, local }).collect();
                f.sources.sink(1, 0).store(0, Tier::Device, None, &blocks[..1]);
            }
        }
        assert_eq!(held(&f), held(&g), "seed {seed}");
        let h = Fixture::new();
        take(&h, &chunks, &[ranks[0], None, ranks[2]]);
        assert!(held(&h).iter().all(|(rank, ..)| rank.worker_id != 2) && !held(&h).is_empty());
    }
}

#[test]
fn what_is_no_chunk_is_refused() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    store(&f.sources.sink(1, 0), 0, &[1, 2, 3]);
    let chunks = chunks(&f, &[1], 100);
    let g = Fixture::new();
    let place = place(&g);
    let table = [Some(WorkerWithDpRank::new(1, 0))];
    for chunk in &chunks {
        for at in 0..chunk.len() {
            let refused = Chunk::read(&chunk[..at]).and_then(|chunk| chunk.store(&table, &place));
            assert!(matches!(refused, Err(SnapshotError::Malformed(_))), "cut off after {at} bytes");
        }
    }
    let text = String::from_utf8_lossy(&chunks[2]).replace("\"version\":1", "\"version\":2");
    assert_eq!(Chunk::read(text.as_bytes()).unwrap_err(), SnapshotError::Version(2));
    assert_eq!(Chunk::read(&chunks[2]).unwrap().header.void, [1]);
    assert!(held(&g).is_empty());
    assert!(g.core.recovering_partition(&PartitionKey::new("m", "default"), 8).is_err());
    assert!(g.core.recovering_partition(&PartitionKey::new("m", "default"), 0).is_err());
}

#[test]
fn a_snapshot_that_was_given_up_leaves_nothing_and_takes_nothing() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    store(&f.sources.sink(1, 0), 0, &[1, 2, 3]);
    let chunks = chunks(&f, &[1], 100);
    let g = Fixture::new();
    let place = place(&g);
    let rank = WorkerWithDpRank::new(1, 0);
    let runs = Chunk::read(&chunks[1]).unwrap();
    assert_eq!(runs.store(&[Some(rank)], &place), Ok(3));
    assert_eq!(held(&g).len(), 3);
    place.abandon(&[rank]);
    assert_eq!(runs.store(&[Some(rank)], &place), Ok(0));
    assert!(held(&g).is_empty());
    // Ranks that nobody registers are forgotten, and so is a partition that nobody joined.
    let recovered = [(PartitionKey::new("m", "default"), rank)].into();
    g.core.forget_strangers(&recovered);
    assert!(g.core.partition("m", "default").is_none());
    f.core.forget_strangers(&recovered);
    assert_eq!(held(&f).len(), 3, "it is registered there");
}

#[test]
fn a_stale_rank_earns_no_credit_and_keeps_its_blocks() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    let sink = f.sources.sink(1, 0);
    store(&sink, 0, &[1, 2]);
    assert_eq!(f.cached("m", (1, 0), &[1, 2, 3]), Some(2));
    sink.set_trust(Trust::Stale);
    assert_eq!(f.cached("m", (1, 0), &[1, 2, 3]), Some(0));
    let block = StoredBlock { name: 1003, local: 3 };
    sink.store(0, Tier::Device, Some(1002), &[block]);
    assert_eq!((f.cached("m", (1, 0), &[1, 2, 3]), held(&f).len()), (Some(0), 3));
    // A clear gives the rank another lane.
    sink.clear(0);
    store(&sink, 0, &[1, 2, 3]);
    assert_eq!(f.cached("m", (1, 0), &[1, 2, 3]), Some(0));
    sink.set_trust(Trust::Replayed);
    assert_eq!(f.cached("m", (1, 0), &[1, 2, 3]), Some(3));
    // A worker that comes again is no longer what it was.
    sink.set_trust(Trust::Stale);
    f.core.delete_worker(1).unwrap();
    f.upsert(worker(1, 1));
    store(&f.sources.sink(1, 0), 0, &[1]);
    assert_eq!(f.cached("m", (1, 0), &[1, 2, 3]), Some(1));
}
