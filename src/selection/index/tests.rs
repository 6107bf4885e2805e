//! Tests of the index as a whole.

use std::collections::BTreeMap;

use super::*;

#[cfg(not(model_check))]
mod concurrent;
#[cfg(model_check)]
mod loom;
#[cfg(not(model_check))]
mod random;
#[cfg(not(model_check))]
mod semantics;

/// Chained hashes of a prompt.
fn seqs_of(locals: &[u64]) -> Vec<u64> {
    let mut seqs: Vec<u64> = Vec::with_capacity(locals.len());
    for &local in locals {
        seqs.push(seqs.last().map_or(local, |&seq| chain(seq, local)));
    }
    seqs
}

/// A lookup's answer by rank: device, host, disk, external.
fn pairs(index: &PrefixIndex, out: &Matches) -> BTreeMap<WorkerWithDpRank, [u32; 4]> {
    let mut by_rank = BTreeMap::new();
    for class in &out.classes {
        let TierBlocks { device, host, disk, external } = class.blocks;
        class.lanes.for_each(|lane| {
            if let Some(rank) = index.rank_of(lane) {
                assert!(by_rank.insert(rank, [device, host, disk, external]).is_none(), "classes overlap");
            }
        });
    }
    by_rank
}

/// All that an index exports, block by block, sorted: rank, tier, parent, name, local.
fn edges(index: &PrefixIndex) -> Vec<(WorkerWithDpRank, Tier, Option<u64>, u64, u64)> {
    let mut edges = Vec::new();
    index.export(&mut |run| {
        let mut parent = run.parent;
        for block in &run.blocks {
            edges.push((run.rank, run.tier, parent, block.name, block.local));
            parent = Some(block.name);
        }
    });
    edges.sort_unstable();
    edges
}
