//! The candidate table of a policy: columns copied out of the partition, aligned by row.
//!
//! Rows are sorted by (worker, rank). Columns that no component declared stay empty. Memory is kept between selections;
//! what depends on registered ranks alone is read again only when those changed.

use std::sync::Arc;

use super::{
    CacheWeights, PickRequest,
    eligibility::{self, Candidates, Filter},
    inputs::{SharedCacheHits, WorkerInputs, WorkerLoadInput},
};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    index::TierBlocks,
    load::{LoadTracker, Passed, Slot, WorkerFacts},
    trust::{Trust, TrustTable},
};

/// What one rank has cached of the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CacheRow {
    /// By tier, unweighted.
    pub(super) blocks: TierBlocks,
    /// What is booked with, in blocks.
    pub(super) weighted_blocks: f64,
    /// What is booked with, in tokens.
    pub(super) tokens: usize,
}

/// The columns.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) workers: Vec<WorkerWithDpRank>,
    pub(super) slots: Vec<Slot>,
    /// Empty unless declared.
    pub(super) loads: Vec<WorkerLoadInput>,
    /// Empty unless declared.
    pub(super) caches: Vec<CacheRow>,
    /// Empty unless caches are declared.
    pub(super) trusts: Vec<Trust>,
    /// Empty unless declared and the request has preferences and no pin.
    pub(super) multipliers: Vec<f64>,
    pub(super) has_tier_matches: bool,
    pub(super) shared_hits: Option<SharedCacheHits>,
}

impl Columns {
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    #[inline]
    pub(super) fn trust(&self, row: usize) -> Trust {
        self.trusts.get(row).copied().unwrap_or_default()
    }

    fn clear(&mut self) {
        self.workers.clear();
        self.slots.clear();
        self.loads.clear();
        self.caches.clear();
        self.trusts.clear();
        self.multipliers.clear();
    }

    /// Moves a row to a place before it. The rows between are lost.
    pub(super) fn keep(&mut self, row: usize, place: usize) {
        fn moved<T: Copy>(column: &mut [T], from: usize, to: usize) {
            if from < column.len() {
                column[to] = column[from];
            }
        }
        if row != place {
            moved(&mut self.workers, row, place);
            moved(&mut self.slots, row, place);
            moved(&mut self.loads, row, place);
            moved(&mut self.caches, row, place);
            moved(&mut self.trusts, row, place);
            moved(&mut self.multipliers, row, place);
        }
    }

    /// Drops all rows from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.workers.truncate(len);
        self.slots.truncate(len);
        self.loads.truncate(len);
        self.caches.truncate(len);
        self.trusts.truncate(len);
        self.multipliers.truncate(len);
    }
}

/// The registered ranks as of one membership of the load tracker, sorted.
#[derive(Debug, Default)]
pub(super) struct Members {
    membership: Option<u64>,
    ranks: Vec<WorkerWithDpRank>,
    slots: Vec<Slot>,
    facts: Vec<Arc<WorkerFacts>>,
    /// Version of the trusts read last.
    trusts_at: Option<u64>,
    /// Of `ranks`; empty = nothing is known of anybody.
    trusts: Vec<Trust>,
    trusts_by_slot: Vec<Trust>,
}

impl Members {
    fn refresh(&mut self, load: &LoadTracker) {
        if self.membership == Some(load.membership()) {
            return;
        }
        self.ranks.clear();
        self.slots.clear();
        self.facts.clear();
        for slot in load.slots() {
            if let (Some(rank), Some(facts)) = (load.rank(slot), load.facts(slot)) {
                self.ranks.push(rank);
                self.slots.push(slot);
                self.facts.push(Arc::clone(facts));
            }
        }
        self.membership = Some(load.membership());
        self.trusts_at = None;
    }

    fn refresh_trusts(&mut self, table: &TrustTable) {
        // Read before the trusts: a change in between is seen next time.
        let version = table.version();
        if self.trusts_at == Some(version) {
            return;
        }
        table.read(&self.ranks, &mut self.trusts);
        self.trusts_by_slot.clear();
        self.trusts_by_slot.resize(self.slots.iter().max().map_or(0, |&most| most as usize + 1), Trust::default());
        for (&slot, &trust) in self.slots.iter().zip(&self.trusts) {
            self.trusts_by_slot[slot as usize] = trust;
        }
        self.trusts_at = Some(version);
    }

    /// What the worker of a registered rank stated.
    pub(super) fn facts_of(&self, rank: WorkerWithDpRank) -> Option<&WorkerFacts> {
        let at = self.ranks.binary_search(&rank).ok()?;
        self.facts.get(at).map(|facts| &**facts)
    }
}

/// The table of one policy.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) columns: Columns,
    pub(super) members: Members,
    /// By slot: its row, or [`NO_ROW`].
    rows: Vec<u32>,
    path: Vec<Passed>,
    /// The tracker's count of changes when the rows were copied.
    pub(super) copied_at: u64,
}

/// Of a slot that is no candidate.
const NO_ROW: u32 = u32::MAX;

impl Table {
    /// Copies the eligible ranks and their loads. Call it under the partition's lock.
    ///
    /// # Errors
    /// Eligibility errors (spec scheduling 2.1).
    pub(super) fn copy(
        &mut self,
        request: &PickRequest<'_>,
        load: &LoadTracker,
        inputs: WorkerInputs,
        exclusive_affinity: bool,
    ) -> Result<(), SelectionError> {
        self.columns.clear();
        self.members.refresh(load);
        self.copied_at = load.changes();
        let candidates = eligibility::candidates(request, load, exclusive_affinity)?;
        let preferred = inputs.contains(WorkerInputs::PREFERRED_TAINT)
            && !request.constraints.preferred_taints.is_empty()
            && request.pinned_worker.is_none();
        let mut filter = Filter::new(request, load);
        let (rows, columns) = (load.rows(), &mut self.columns);
        let mut add = |slot: Slot, rank: WorkerWithDpRank, multiplier: f64| {
            columns.workers.push(rank);
            columns.slots.push(slot);
            if preferred {
                columns.multipliers.push(multiplier);
            }
        };
        match &candidates {
            Candidates::Open if filter.admits_all() && load.takes_all() => {
                columns.workers.extend_from_slice(&self.members.ranks);
                columns.slots.extend_from_slice(&self.members.slots);
            }
            Candidates::Open => {
                for (&slot, &rank) in self.members.slots.iter().zip(&self.members.ranks) {
                    if let Some(multiplier) = rows.get(slot as usize).and_then(|row| filter.admits(row)) {
                        add(slot, rank, multiplier);
                    }
                }
            }
            Candidates::Pinned(slot) => {
                if let Some(rank) = load.rank(*slot) {
                    add(*slot, rank, 1.0);
                }
            }
            Candidates::Affinity(slots) => {
                for &slot in slots {
                    if let (Some(rank), Some(row)) = (load.rank(slot), rows.get(slot as usize)) {
                        add(slot, rank, filter.admits(row).unwrap_or(1.0));
                    }
                }
            }
        }
        if self.columns.len() == 0 {
            return Err(eligibility::nobody());
        }
        self.number_rows(rows.len());
        if inputs.contains(WorkerInputs::LOAD) {
            self.copy_loads(request, load);
        }
        Ok(())
    }

    fn number_rows(&mut self, slots: usize) {
        self.rows.clear();
        self.rows.resize(slots, NO_ROW);
        for (row, &slot) in self.columns.slots.iter().enumerate() {
            self.rows[slot as usize] = row as u32;
        }
    }

    fn copy_loads(&mut self, request: &PickRequest<'_>, load: &LoadTracker) {
        let rows = load.rows();
        let prompt_blocks = request.sequence.len() as u64;
        self.columns.loads.extend(self.columns.slots.iter().map(|&slot| {
            let row = &rows[slot as usize];
            let now = if row.decays { load.load(slot, request.now) } else { row.load };
            WorkerLoadInput {
                is_available: true,
                active_prefill_tokens: now.prefill_tokens,
                decode_cost_blocks: now.blocks.saturating_add(prompt_blocks) as f64,
                active_requests: now.requests,
            }
        }));
        load.walk(request.sequence, &mut self.path);
        let Some(first) = self.path.first() else { return };
        // Owners of later runs are among those of the first.
        load.owners(*first).for_each(|slot| {
            if let Some(row) = self.rows.get(slot as usize).filter(|&&row| row != NO_ROW) {
                let shared = load.shared_on(&self.path, slot);
                let blocks = rows[slot as usize].load.blocks.saturating_add(prompt_blocks - shared.min(prompt_blocks));
                self.columns.loads[*row as usize].decode_cost_blocks = blocks as f64;
            }
        });
    }

    /// Reads how far the index can be believed about each row. Needs no lock.
    pub(super) fn fill_trusts(&mut self, table: &TrustTable) {
        self.members.refresh_trusts(table);
        if !self.members.trusts.is_empty() {
            let by_slot = &self.members.trusts_by_slot;
            let trust = |&slot: &Slot| by_slot.get(slot as usize).copied().unwrap_or_default();
            self.columns.trusts.extend(self.columns.slots.iter().map(trust));
        }
    }

    /// Looks up what each row has cached. Needs no lock.
    pub(super) fn fill_caches(&mut self, request: &PickRequest<'_>, weights: CacheWeights, block_size: u32) {
        let columns = &mut self.columns;
        columns.caches.resize(columns.workers.len(), CacheRow::default());
        columns.has_tier_matches = !request.matches.classes.is_empty();
        columns.shared_hits = request.facts.shared_hits.cloned();
        for class in &request.matches.classes {
            let weighted_blocks = weights.weighted_blocks(class.blocks);
            let tokens = usize::try_from(weights.cached_tokens(class.blocks, block_size)).unwrap_or(usize::MAX);
            let held = CacheRow { blocks: class.blocks, weighted_blocks, tokens };
            class.lanes.for_each(|lane| {
                let slot = request.index.slot_of(lane);
                let row = slot.and_then(|slot| self.rows.get(slot as usize)).filter(|&&row| row != NO_ROW);
                if let Some(&row) = row {
                    columns.caches[row as usize] = held;
                }
            });
        }
    }
}
