//! Answers: from a decision to what the caller reads (spec http 5.3).

use std::{collections::BTreeMap, sync::Arc};

use super::lookup::{Buffers, blocks_of};
use crate::selection::{
    config::SelectionConfig,
    identity::WorkerWithDpRank,
    index::TierBlocks,
    load::WorkerFacts,
    partition::{Partition, PartitionState},
    policy::Picked,
    request::{OverlapTokens, SelectResponse, WorkerLoad},
};

/// Prefill capacity of a worker that states none.
const DEFAULT_PREFILL_CAPACITY: u64 = 10_000_000;

/// A chosen rank and what is known about its worker.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) rank: WorkerWithDpRank,
    pub(super) facts: Arc<WorkerFacts>,
    pub(super) picked: Picked,
    /// What the worker's ranks match, when it has several.
    ranks: Option<Vec<(u32, TierBlocks)>>,
}

impl Decision {
    /// Puts together what an answer needs while the state is locked. `None` when the policy named no rank.
    pub(super) fn of(partition: &Partition, state: &PartitionState, buffers: &Buffers, picked: Picked) -> Option<Self> {
        let rank = state.load.rank(picked.slot)?;
        let facts = Arc::clone(state.load.facts(picked.slot)?);
        let index = partition.index.primary();
        let ranks = (facts.ranks.len() > 1).then(|| {
            let of = |slot| {
                let lane = index.lane_of_slot(slot);
                lane.map_or_else(TierBlocks::default, |lane| blocks_of(&buffers.matches, lane.0))
            };
            let slots = state.load.slots_of(rank.worker_id);
            slots.filter_map(|slot| Some((state.load.rank(slot)?.dp_rank, of(slot)))).collect()
        });
        Some(Self { rank, facts, picked, ranks })
    }

    /// Prompt tokens the rank must compute.
    pub(super) fn effective_prefill_tokens(&self, isl_tokens: u64) -> u64 {
        isl_tokens.saturating_sub(self.picked.cached_tokens)
    }

    /// The answer to a query; bookings add to it.
    pub(super) fn answer(self, config: &SelectionConfig, partition: &Partition, buffers: &Buffers) -> SelectResponse {
        let isl_tokens = buffers.prompt.isl_tokens();
        let partial =
            buffers.prompt.request_blocks(partition.block_size).saturating_sub(buffers.prompt.sequence().len() as u64);
        let potential_decode_blocks = self.picked.decode_blocks.saturating_add(partial);
        let decode_busy = config
            .decode_busy_threshold
            .zip(self.facts.total_kv_blocks)
            .map(|(threshold, capacity)| potential_decode_blocks as f64 > threshold * capacity as f64);
        SelectResponse {
            selection_id: None,
            sequence_hashes: None,
            isl_tokens: None,
            track_prefill_tokens: None,
            model_name: Arc::clone(&partition.key.model_name),
            routing_group: Arc::clone(&partition.key.routing_group),
            worker_id: self.rank.worker_id,
            dp_rank: self.rank.dp_rank,
            endpoint: Arc::clone(&self.facts.endpoint),
            block_size: partition.block_size,
            effective_prefill_tokens: self.effective_prefill_tokens(isl_tokens),
            potential_decode_blocks,
            decode_busy,
            overlap: match &self.ranks {
                Some(ranks) => overlap_tokens(ranks, partition.block_size),
                None => overlap_tokens(&[(self.rank.dp_rank, self.picked.overlap)], partition.block_size),
            },
            worker_load: None,
            kv_hint: None,
            explain: self.picked.explanation,
        }
    }

    /// Load of the rank before this request.
    pub(super) fn worker_load(&self, config: &SelectionConfig) -> WorkerLoad {
        let active_prefill_tokens = self.picked.active_prefill_tokens;
        let capacity = self.facts.max_num_batched_tokens.unwrap_or(DEFAULT_PREFILL_CAPACITY);
        let busy = |threshold: f64| active_prefill_tokens as f64 > threshold * capacity as f64;
        WorkerLoad {
            active_prefill_tokens,
            prefill_token_capacity: capacity,
            total_kv_blocks: self.facts.total_kv_blocks,
            prefill_busy: config.prefill_busy_threshold.map(busy),
        }
    }
}

/// Cached tokens of a worker: maxima over its ranks, cumulative through the tiers.
fn overlap_tokens(ranks: &[(u32, TierBlocks)], block_size: u32) -> OverlapTokens {
    let tokens = |blocks: u32| blocks.saturating_mul(block_size);
    let mut overlap = OverlapTokens { dp: BTreeMap::new(), ..OverlapTokens::default() };
    for &(dp_rank, blocks) in ranks {
        let [device, host, disk] = cumulative(blocks);
        overlap.dp.insert(dp_rank, tokens(device));
        overlap.gpu = overlap.gpu.max(tokens(device));
        overlap.cpu = overlap.cpu.max(tokens(host));
        overlap.disk = overlap.disk.max(tokens(disk));
    }
    overlap.longest_matched = overlap.gpu.max(overlap.cpu).max(overlap.disk);
    overlap
}

/// Blocks matched through the device, through host memory, and through disk and external storage.
pub(super) fn cumulative(blocks: TierBlocks) -> [u32; 3] {
    let host = blocks.device.saturating_add(blocks.host);
    [blocks.device, host, host.saturating_add(blocks.disk).saturating_add(blocks.external)]
}
