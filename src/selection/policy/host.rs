//! One selection by a policy of filters, scorers and a picker (spec plugins 3).
//!
//! The table is copied under the partition's lock and judged outside of it. Memory is kept from selection to selection:
//! one without constraints and explanation allocates nothing. Who is running is noted before each call, so that a panic
//! can be laid at a component's door.

mod explain;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use self::explain::Notes;
use super::{
    CacheWeights, PickRequest, Picked,
    context::WorkerSelectionContext,
    failures::PluginComponent,
    inputs::{ScoredWorkerCandidate, WorkerCandidate, WorkerCandidates, WorkerInputView, WorkerInputs},
    overlap,
    stages::{PolicyComponent, Stages, WorkerSelectionPolicyError},
    table::Table,
};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::{LoadTracker, Passed, Slot},
    trust::TrustTable,
};

/// Settings of the host that are the same for all selections of a partition.
#[derive(Clone, Copy, Debug)]
pub(in crate::selection) struct Terms {
    pub(in crate::selection) accounting: CacheWeights,
    pub(in crate::selection) block_size: u32,
    pub(in crate::selection) exclusive_affinity: bool,
}

/// Why a selection failed.
#[derive(Debug)]
pub(in crate::selection) enum Failure {
    /// Nobody to choose from, or a wrong request.
    Host(SelectionError),
    /// A component failed.
    Policy(PluginComponent, WorkerSelectionPolicyError),
}

/// A chosen row.
#[derive(Clone, Copy, Debug)]
pub(in crate::selection) struct Chosen {
    row: usize,
    pub(in crate::selection) slot: Slot,
    rank: WorkerWithDpRank,
    cost: f64,
}

/// A policy at work, with its memory.
pub(in crate::selection) struct Host {
    stages: Box<Stages>,
    inputs: WorkerInputs,
    terms: Terms,
    table: Table,
    /// Of the scorer that runs.
    costs: Vec<f64>,
    scored: Vec<ScoredWorkerCandidate>,
    path: Vec<Passed>,
    notes: Notes,
    running: (PluginComponent, usize),
}

impl Host {
    pub(in crate::selection) fn new(stages: Box<Stages>, terms: Terms) -> Self {
        Self {
            inputs: stages.inputs(),
            stages,
            terms,
            table: Table::default(),
            costs: Vec::new(),
            scored: Vec::new(),
            path: Vec::new(),
            notes: Notes::default(),
            running: (PluginComponent::Factory, 0),
        }
    }

    /// What any component reads.
    pub(in crate::selection) fn inputs(&self) -> WorkerInputs {
        self.inputs
    }

    /// Its components.
    pub(in crate::selection) fn components(&self) -> Vec<PolicyComponent> {
        self.stages.components()
    }

    /// Who ran last, and his place among those of his kind.
    pub(in crate::selection) fn running(&self) -> (PluginComponent, usize) {
        self.running
    }

    /// Copies what the policy reads out of the partition. Call it under the partition's lock.
    ///
    /// # Errors
    /// Eligibility errors.
    pub(in crate::selection) fn copy(
        &mut self,
        request: &PickRequest<'_>,
        load: &LoadTracker,
    ) -> Result<(), SelectionError> {
        self.table.copy(request, load, self.inputs, self.terms.exclusive_affinity)
    }

    /// Lets the components decide about what was copied. Needs no lock but the policy's own.
    ///
    /// # Errors
    /// The first component that fails.
    pub(in crate::selection) fn decide(
        &mut self,
        request: &PickRequest<'_>,
        trusts: &TrustTable,
    ) -> Result<Chosen, Failure> {
        if self.inputs.contains(WorkerInputs::CACHE) {
            self.table.fill_caches(request, self.terms.accounting, self.terms.block_size);
            self.table.fill_trusts(trusts);
        }
        self.notes.start(request.explain);
        self.filter(request)?;
        self.score(request)?;
        self.pick(request)
    }

    fn filter(&mut self, request: &PickRequest<'_>) -> Result<(), Failure> {
        if self.stages.filters.is_empty() {
            return Ok(());
        }
        let Table { columns, members, .. } = &mut self.table;
        let context = WorkerSelectionContext::new(request, members, self.terms.block_size);
        let mut kept = 0;
        for row in 0..columns.len() {
            let mut dropped = None;
            for (at, filter) in self.stages.filters.iter_mut().enumerate() {
                self.running = (PluginComponent::Filter, at);
                let candidate = WorkerCandidate::new(columns, row, filter.inputs);
                let keep = filter.part.keep(&context.with_inputs(filter.inputs), candidate);
                if !keep.map_err(|error| Failure::Policy(PluginComponent::Filter, error))? {
                    dropped = Some(at);
                    break;
                }
            }
            match dropped {
                None => {
                    columns.keep(row, kept);
                    kept += 1;
                }
                Some(filter) => self.notes.dropped(columns.slots[row], filter),
            }
        }
        columns.truncate(kept);
        if kept == 0 {
            let text = "all eligible workers were rejected by policy filters";
            return Err(Failure::Host(SelectionError::Unavailable(text.to_owned())));
        }
        Ok(())
    }

    fn score(&mut self, request: &PickRequest<'_>) -> Result<(), Failure> {
        let Table { columns, members, .. } = &self.table;
        let context = WorkerSelectionContext::new(request, members, self.terms.block_size);
        let multiplier = |row: usize| {
            let asked = self.stages.picker.inputs.contains(WorkerInputs::PREFERRED_TAINT);
            if asked { columns.multipliers.get(row).copied() } else { None }
        };
        self.scored.clear();
        self.scored.extend(columns.workers.iter().enumerate().map(|(row, &worker)| ScoredWorkerCandidate {
            worker,
            cost: 0.0,
            multiplier: multiplier(row),
        }));
        for (at, scorer) in self.stages.scorers.iter_mut().enumerate() {
            self.running = (PluginComponent::Scorer, at);
            self.costs.clear();
            self.costs.resize(columns.len(), f64::NAN);
            let candidates = WorkerCandidates::new(columns, scorer.inputs);
            let scored = scorer.part.score(&context.with_inputs(scorer.inputs), candidates, &mut self.costs);
            scored.map_err(|error| Failure::Policy(PluginComponent::Scorer, error))?;
            let mut all_finite = true;
            for (candidate, &cost) in self.scored.iter_mut().zip(&self.costs) {
                candidate.cost += cost;
                // A cost that is not finite makes the sum so, too.
                all_finite &= candidate.cost.is_finite();
            }
            if !all_finite {
                let row = self.scored.iter().position(|candidate| !candidate.cost.is_finite()).unwrap_or(0);
                let error = WorkerSelectionPolicyError::NonFiniteCost { scorer_index: at, row };
                return Err(Failure::Policy(PluginComponent::Scorer, error));
            }
            self.notes.scored(&self.costs);
        }
        Ok(())
    }

    fn pick(&mut self, request: &PickRequest<'_>) -> Result<Chosen, Failure> {
        self.running = (PluginComponent::Picker, 0);
        let Table { columns, members, .. } = &self.table;
        let picker = &mut self.stages.picker;
        let context = WorkerSelectionContext::new(request, members, self.terms.block_size).with_inputs(picker.inputs);
        let view = WorkerInputView::new(&self.scored, columns, picker.inputs);
        let row = picker.part.pick(&context, view).map_err(|error| Failure::Policy(PluginComponent::Picker, error))?;
        let Some(chosen) = self.scored.get(row) else {
            let error = WorkerSelectionPolicyError::InvalidPickerRow { row, candidate_count: self.scored.len() };
            return Err(Failure::Policy(PluginComponent::Picker, error));
        };
        Ok(Chosen { row, slot: columns.slots[row], rank: chosen.worker, cost: chosen.cost })
    }

    /// Whether nothing happened to the chosen rank since its row was copied.
    pub(in crate::selection) fn is_current(&self, chosen: &Chosen, load: &LoadTracker) -> bool {
        load.is_unchanged_since(chosen.slot, self.table.copied_at)
    }

    /// The choice with what is known of the rank now; `None` when it takes no bookings any more. Call it under the
    /// partition's lock.
    pub(in crate::selection) fn picked(
        &mut self,
        chosen: &Chosen,
        request: &PickRequest<'_>,
        load: &LoadTracker,
        name: &str,
    ) -> Option<Picked> {
        let slot = chosen.slot;
        // The slot may belong to another rank by now.
        let here = load.rank(slot) == Some(chosen.rank);
        if !here || !load.rows().get(slot as usize).is_some_and(|row| row.takes_bookings) {
            return None;
        }
        let now = load.load(slot, request.now);
        let overlap = overlap::cached(&request.matches.classes, request.index, slot);
        load.walk(request.sequence, &mut self.path);
        let shared = load.shared_on(&self.path, slot);
        let explanation = request.explain.then(|| self.explain(chosen, request, load, name));
        Some(Picked {
            slot,
            cost: chosen.cost,
            overlap,
            cached_tokens: self.terms.accounting.cached_tokens(overlap, self.terms.block_size),
            decode_blocks: now.blocks.saturating_add(request.sequence.len() as u64 - shared),
            active_prefill_tokens: now.prefill_tokens,
            explanation,
        })
    }

    fn scorer_name(&self, at: usize) -> Cow<'static, str> {
        Cow::Owned(format!("{at}:{}", self.stages.scorers[at].part.component_name()))
    }

    fn filter_name(&self, at: usize) -> String {
        format!("{at}:{}", self.stages.filters[at].part.component_name())
    }
}
