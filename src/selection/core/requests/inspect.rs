//! Loads and overlap (spec http 13). A listing takes a partition's lock for a few hundred ranks at a time, so that it
//! never holds up selections; a row is consistent in itself, the rows among each other need not be.

use std::collections::BTreeMap;

use super::{
    answer::cumulative,
    lookup::{Scratch, blocks_of},
};
use crate::selection::{
    core::{PartitionFilter, SelectionCore},
    error::SelectionError,
    identity::WorkerWithDpRank,
    index::TierBlocks,
    load::{LoadTracker, Slot},
    partition::{Partition, PartitionRef},
    policy::CacheWeights,
    prompt::Purpose,
    request::{LoadQuery, OverlapRow, OverlapScores, PartitionLoads, RankLoadRow, SharedCacheReport},
};

/// Ranks read under one hold of the lock.
const RANKS_A_HOLD: usize = 256;

impl SelectionCore {
    /// Load of every rank, sorted by partition, worker and rank.
    pub fn loads(&self, filter: &PartitionFilter) -> Vec<PartitionLoads> {
        let now = self.clock.now();
        let of = |partition: PartitionRef| {
            let rows = for_each_rank(&partition, |load, slot, rank| row(rank, load, slot, now));
            let (pending_count, pending_isl_tokens) = partition.waiting();
            PartitionLoads {
                model_name: partition.key.model_name.clone(),
                routing_group: partition.key.routing_group.clone(),
                loads: rows.unwrap_or_default(),
                pending_count,
                pending_isl_tokens,
            }
        };
        self.partitions(filter).into_iter().map(of).collect()
    }

    /// Load of every rank of one partition if it took the prompt.
    ///
    /// # Errors
    /// 503 not ready; 400 prompt.
    pub fn potential_loads(&self, query: &LoadQuery) -> Result<Vec<RankLoadRow>, SelectionError> {
        let (partition, scratch) = self.look_up_query(query)?;
        let track = self.tracks_prefill(query.router_config_override.as_ref());
        let weights = CacheWeights { host: self.config.host_cache_hit_weight, disk: self.config.disk_cache_hit_weight };
        let (isl_tokens, sequence) = (scratch.prompt.isl_tokens(), scratch.prompt.sequence());
        let now = self.clock.now();
        for_each_rank(&partition, |load, slot, rank| {
            let mut row = row(rank, load, slot, now);
            if track {
                let cached = weights.cached_tokens(matched(&partition, &scratch, slot), partition.block_size);
                row.potential_prefill_tokens =
                    row.potential_prefill_tokens.saturating_add(isl_tokens.saturating_sub(cached));
            }
            let fresh = (sequence.len() as u64).saturating_sub(load.shared_blocks(slot, sequence));
            row.potential_decode_blocks = row.potential_decode_blocks.saturating_add(fresh);
            row
        })
    }

    /// What every rank of one partition has cached of the prompt; ranks that nobody registered show when they match.
    ///
    /// # Errors
    /// 503 not ready; 400 prompt.
    pub fn overlap_scores(&self, query: &LoadQuery) -> Result<OverlapScores, SelectionError> {
        let (partition, scratch) = self.look_up_query(query)?;
        let mut rows = BTreeMap::new();
        for class in &scratch.matches.classes {
            class.lanes.for_each(|lane| {
                if let Some(rank) = partition.index.primary().rank_of(lane) {
                    rows.insert(rank, class.blocks);
                }
            });
        }
        let registered = for_each_rank(&partition, |load, slot, rank| {
            load.facts(slot).is_some_and(|facts| !facts.draining).then_some(rank)
        })?;
        for rank in registered.into_iter().flatten() {
            rows.entry(rank).or_default();
        }
        Ok(OverlapScores {
            block_size: partition.block_size,
            num_blocks: scratch.prompt.locals().len() as u64,
            workers: rows.into_iter().map(|(rank, blocks)| overlap_row(rank, blocks)).collect(),
            shared_cache: SharedCacheReport::default(),
        })
    }

    fn look_up_query(&self, query: &LoadQuery) -> Result<(PartitionRef, Scratch), SelectionError> {
        let partition = self.ready_partition(&query.model_name, &query.routing_group)?;
        let mut scratch = Scratch::take();
        let scope = self.hashing_scope(&partition, &query.prompt, query.router_config_override.as_ref())?;
        scratch.prompt.prepare(&query.prompt, &scope, Purpose::Select)?;
        scratch.look_up(&partition)?;
        Ok((partition, scratch))
    }
}

/// Visits the registered ranks in order, the lock released in between; ranks that leave meanwhile are left out.
fn for_each_rank<R>(
    partition: &Partition,
    visit: impl Fn(&LoadTracker, Slot, WorkerWithDpRank) -> R,
) -> Result<Vec<R>, SelectionError> {
    let ranks: Vec<_> = partition.with_state(|state| {
        let load = &state.load;
        load.slots().into_iter().filter_map(|slot| load.rank(slot)).collect()
    })?;
    let mut rows = Vec::with_capacity(ranks.len());
    for some in ranks.chunks(RANKS_A_HOLD) {
        partition.with_state(|state| {
            let present = some.iter().filter_map(|&rank| Some((state.load.slot(rank)?, rank)));
            rows.extend(present.map(|(slot, rank)| visit(&state.load, slot, rank)));
        })?;
    }
    Ok(rows)
}

fn row(rank: WorkerWithDpRank, load: &LoadTracker, slot: Slot, now: crate::selection::Moment) -> RankLoadRow {
    let current = load.load(slot, now);
    RankLoadRow {
        worker_id: rank.worker_id,
        dp_rank: rank.dp_rank,
        potential_prefill_tokens: current.prefill_tokens,
        potential_decode_blocks: current.blocks,
        active_requests: current.requests,
    }
}

fn matched(partition: &Partition, scratch: &Scratch, slot: Slot) -> TierBlocks {
    let lane = partition.index.primary().lane_of_slot(slot);
    lane.map_or_else(TierBlocks::default, |lane| blocks_of(&scratch.matches, lane.0))
}

fn overlap_row(rank: WorkerWithDpRank, blocks: TierBlocks) -> OverlapRow {
    let [device_blocks, host_pinned_blocks, disk_blocks] = cumulative(blocks);
    OverlapRow {
        worker_id: rank.worker_id,
        dp_rank: rank.dp_rank,
        device_blocks,
        host_pinned_blocks,
        disk_blocks,
        host_pinned_extension_blocks: blocks.host,
        disk_extension_blocks: blocks.disk.saturating_add(blocks.external),
        shared_beyond_device_blocks: None,
    }
}
