//! The whole table: every candidate with its inputs and cost. Needed by temperatures above 0 and by explanations, and
//! the measure of what the walk must find.

use super::cost::{Formula, Inputs};
use crate::selection::{
    explain::{ExplainedCandidate, Explanation},
    load::{LoadTracker, Slot, WorkerFacts},
    policy::{
        PickRequest,
        eligibility::{self, Candidates},
        overlap,
    },
};

/// One candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) slot: Slot,
    pub(super) inputs: Inputs,
    pub(super) cost: f64,
}

/// All candidates, sorted by (worker, rank), and the formula that priced them.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    pub(super) formula: Formula,
}

/// `exp(-tanh(sum of the weights of the preferred taints the worker has))`; 1 when it has none.
pub(super) fn taint_multiplier(request: &PickRequest<'_>, facts: &WorkerFacts) -> f64 {
    let preferred = &request.constraints.preferred_taints;
    if preferred.is_empty() {
        return 1.0;
    }
    let sum: f64 = preferred
        .iter()
        .filter(|(taint, _)| facts.taints.contains(taint.as_str()))
        .map(|(_, &weight)| f64::from(weight))
        .sum();
    (-sum.tanh()).exp()
}

/// Prices every candidate.
pub(super) fn table(
    mut formula: Formula,
    request: &PickRequest<'_>,
    load: &LoadTracker,
    candidates: &Candidates,
) -> Table {
    let slots = match candidates {
        Candidates::Pinned(slot) => vec![*slot],
        Candidates::Affinity(slots) => slots.clone(),
        Candidates::Open => load.slots().into_iter().filter(|&slot| eligibility::admits(request, load, slot)).collect(),
    };
    let mut shared = Vec::new();
    load.for_each_sharing(request.sequence, |slot, blocks| {
        if slot as usize >= shared.len() {
            shared.resize(slot as usize + 1, 0);
        }
        shared[slot as usize] = blocks;
    });
    let mut rows: Vec<Row> = slots
        .into_iter()
        .map(|slot| {
            let inputs = Inputs {
                load: load.load(slot, request.now),
                cached: overlap::cached_of(request, slot),
                shared: shared.get(slot as usize).copied().unwrap_or(0),
            };
            Row { slot, inputs, cost: 0.0 }
        })
        .collect();
    formula.least_prefill = rows.iter().map(|row| row.inputs.load.prefill_tokens).min().unwrap_or(0);
    let pinned = matches!(candidates, Candidates::Pinned(_));
    for row in &mut rows {
        row.cost = formula.base(&row.inputs);
        if let (false, Some(facts)) = (pinned, load.facts(row.slot)) {
            row.cost = (row.cost * taint_multiplier(request, facts)).min(f64::MAX);
        }
    }
    Table { rows, formula }
}

/// The row with the least cost; equal ones are chosen from uniformly.
pub(super) fn least(rows: &[Row], rng: &mut fastrand::Rng) -> Option<usize> {
    let mut best: Option<usize> = None;
    let mut ties = 0;
    for (at, row) in rows.iter().enumerate() {
        match best {
            Some(found) if row.cost > rows[found].cost => continue,
            Some(found) if row.cost == rows[found].cost => ties += 1,
            _ => {
                ties = 1;
                best = Some(at);
            }
        }
        if ties > 1 && rng.u64(0..ties) == 0 {
            best = Some(at);
        }
    }
    best
}

/// A row drawn with probability proportional to `exp(-(cost - least) / (range * temperature))` (spec scheduling 2.3).
pub(super) fn softmax(rows: &[Row], temperature: f64, rng: &mut fastrand::Rng) -> Option<usize> {
    let least = rows.iter().map(|row| row.cost).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|row| row.cost).fold(f64::NEG_INFINITY, f64::max);
    if rows.is_empty() {
        return None;
    }
    if least == most {
        return Some(rng.usize(0..rows.len()));
    }
    // Costs are finite and not negative, so their range is finite.
    let spread = (most - least) * temperature;
    let weight = |row: &Row| if row.cost == least { 1.0 } else { (-(row.cost - least) / spread).exp() };
    let sum: f64 = rows.iter().map(weight).sum();
    let drawn = rng.f64();
    let mut cumulative = 0.0;
    for (at, row) in rows.iter().enumerate() {
        cumulative += weight(row) / sum;
        if drawn <= cumulative {
            return Some(at);
        }
    }
    Some(rows.len() - 1)
}

/// Verdict, inputs and cost by term of every rank.
pub(super) fn explain(
    policy: &str,
    table: &Table,
    chosen: usize,
    request: &PickRequest<'_>,
    load: &LoadTracker,
    candidates: &Candidates,
) -> Explanation {
    let price = |slot| table.rows.iter().find(|row| row.slot == slot);
    let explained = load.slots().into_iter().filter_map(|slot| {
        let (rank, facts, row) = (load.rank(slot)?, load.facts(slot)?, price(slot));
        let inputs = row.map_or_else(
            || Inputs {
                load: load.load(slot, request.now),
                cached: overlap::cached_of(request, slot),
                shared: load.shared_blocks(slot, request.sequence),
            },
            |row| row.inputs,
        );
        let verdict = match (row, candidates) {
            (Some(_), _) => "eligible",
            (None, Candidates::Open) => eligibility::excluded(request, facts).unwrap_or("eligible"),
            (None, Candidates::Pinned(_)) => "not_pinned",
            (None, Candidates::Affinity(_)) => eligibility::excluded(request, facts).unwrap_or("not_affinity_target"),
        };
        let mut cost_terms = Vec::new();
        if let Some(row) = row {
            let terms = table.formula.terms(&row.inputs);
            cost_terms.extend([
                ("prefill", terms.prefill),
                ("decode", terms.decode),
                ("active_requests", terms.requests),
            ]);
            if !request.constraints.preferred_taints.is_empty() && !matches!(candidates, Candidates::Pinned(_)) {
                cost_terms.push(("preferred_taints", row.cost - table.formula.base(&row.inputs)));
            }
        }
        let cached = inputs.cached;
        Some(ExplainedCandidate {
            worker_id: rank.worker_id,
            dp_rank: rank.dp_rank,
            verdict,
            cached_blocks: [cached.device, cached.host, cached.disk, cached.external],
            active_prefill_tokens: inputs.load.prefill_tokens,
            active_blocks: inputs.load.blocks,
            active_requests: inputs.load.requests,
            shared_active_blocks: inputs.shared,
            cost_terms,
            cost: row.map(|row| row.cost),
        })
    });
    let others = table.rows.iter().enumerate().filter(|(at, _)| *at != chosen).map(|(_, row)| row);
    let runner_up = others.min_by(|a, b| a.cost.total_cmp(&b.cost)).and_then(|row| load.rank(row.slot));
    let least = table.rows.iter().map(|row| row.cost).fold(f64::INFINITY, f64::min);
    Explanation {
        policy: policy.to_owned(),
        candidates: explained.collect(),
        runner_up: runner_up.map(|rank| (rank.worker_id, rank.dp_rank)),
        ties: table.rows.iter().filter(|row| row.cost == least).count() as u64,
    }
}
