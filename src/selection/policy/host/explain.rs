//! Why a policy of components chose a rank: verdict by filter, raw inputs, contribution of each scorer.

use super::{Chosen, Host};
use crate::selection::{
    explain::{ExplainedCandidate, Explanation},
    load::{LoadTracker, Slot},
    policy::{
        PickRequest,
        eligibility::{self, Candidates},
        overlap,
    },
};

/// What is written down during an explained selection.
#[derive(Debug, Default)]
pub(super) struct Notes {
    wanted: bool,
    /// Slots that a filter dropped, and its place.
    dropped: Vec<(Slot, usize)>,
    /// Costs by scorer and row.
    scores: Vec<Vec<f64>>,
}

impl Notes {
    pub(super) fn start(&mut self, wanted: bool) {
        self.wanted = wanted;
        self.dropped.clear();
        self.scores.clear();
    }

    pub(super) fn dropped(&mut self, slot: Slot, filter: usize) {
        if self.wanted {
            self.dropped.push((slot, filter));
        }
    }

    pub(super) fn scored(&mut self, costs: &[f64]) {
        if self.wanted {
            self.scores.push(costs.to_vec());
        }
    }
}

impl Host {
    /// Verdict, inputs and cost by scorer of every rank. Inputs are those of now.
    pub(super) fn explain(
        &self,
        chosen: &Chosen,
        request: &PickRequest<'_>,
        load: &LoadTracker,
        name: &str,
    ) -> Explanation {
        let mut rows = vec![None; load.rows().len()];
        for (row, &slot) in self.table.columns.slots.iter().enumerate() {
            if let Some(place) = rows.get_mut(slot as usize) {
                *place = Some(row);
            }
        }
        let limited = eligibility::candidates(request, load, self.terms.exclusive_affinity);
        let explained = load.slots().into_iter().filter_map(|slot| {
            let (rank, facts, row) = (load.rank(slot)?, load.facts(slot)?, rows[slot as usize]);
            let filter = self.notes.dropped.iter().find(|(dropped, _)| *dropped == slot).map(|&(_, filter)| filter);
            let verdict = match (row, filter, &limited) {
                (Some(_), ..) => "eligible",
                (None, Some(_), _) => "filtered",
                (None, None, Ok(Candidates::Pinned(_))) => "not_pinned",
                (None, None, Ok(Candidates::Affinity(_))) => {
                    eligibility::excluded(request, facts).unwrap_or("not_affinity_target")
                }
                // A rank that came after the choice was made has no verdict.
                (None, None, _) => eligibility::excluded(request, facts)?,
            };
            let now = load.load(slot, request.now);
            let cached = overlap::cached(&request.matches.classes, request.index, slot);
            let contributions = row.map(|row| {
                let scores = self.notes.scores.iter().enumerate();
                scores.map(|(scorer, costs)| (self.scorer_name(scorer), costs[row])).collect()
            });
            Some(ExplainedCandidate {
                worker_id: rank.worker_id,
                dp_rank: rank.dp_rank,
                verdict,
                rejected_by: filter.map(|filter| self.filter_name(filter)),
                cached_blocks: [cached.device, cached.host, cached.disk, cached.external],
                active_prefill_tokens: now.prefill_tokens,
                active_blocks: now.blocks,
                active_requests: now.requests,
                shared_active_blocks: load.shared_on(&self.path, slot),
                cost_terms: contributions.unwrap_or_default(),
                cost: row.map(|row| self.scored[row].cost),
            })
        });
        let candidates = explained.collect();
        let others = self.scored.iter().enumerate().filter(|(row, _)| *row != chosen.row).map(|(_, other)| other);
        let runner_up = others.min_by(|a, b| a.cost().total_cmp(&b.cost())).map(|other| other.worker());
        let least = self.scored.iter().map(|candidate| candidate.cost()).fold(f64::INFINITY, f64::min);
        Explanation {
            policy: name.to_owned(),
            candidates,
            runner_up: runner_up.map(|rank| (rank.worker_id, rank.dp_rank)),
            ties: self.scored.iter().filter(|candidate| candidate.cost() == least).count() as u64,
            shadow: None,
        }
    }
}
