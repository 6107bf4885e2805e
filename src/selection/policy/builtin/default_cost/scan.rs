//! The whole table: every candidate with its inputs and cost. Needed by temperatures above 0 and by explanations, and
//! the measure of what the search must find.

use super::cost::{Formula, Inputs};
use crate::selection::{
    explain::Explanation,
    load::{LoadTracker, Passed, Slot},
    policy::{PickRequest, builtin::priced, eligibility::Candidates, overlap},
};

/// One candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Priced {
    pub(super) slot: Slot,
    pub(super) inputs: Inputs,
    pub(super) cost: f64,
}

/// All candidates, and the formula that priced them.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) rows: Vec<Priced>,
    formula: Formula,
    path: Vec<Passed>,
}

/// What one rank contributes to its cost.
pub(super) fn inputs(request: &PickRequest<'_>, load: &LoadTracker, path: &[Passed], slot: Slot) -> Inputs {
    Inputs {
        load: load.load(slot, request.now),
        cached: overlap::cached(&request.matches.classes, request.index, slot),
        shared: load.shared_on(path, slot),
    }
}

/// Prices every candidate.
pub(super) fn table(
    mut formula: Formula,
    request: &PickRequest<'_>,
    load: &LoadTracker,
    candidates: &Candidates,
) -> Table {
    let mut path = Vec::new();
    load.walk(request.sequence, &mut path);
    let mut rows = Vec::new();
    candidates.for_each(request, load, |slot, multiplier| {
        // The multiplier waits in the place of the cost until the least prefill load is known.
        rows.push(Priced { slot, inputs: inputs(request, load, &path, slot), cost: multiplier });
    });
    formula.least_prefill = rows.iter().map(|row| row.inputs.load.prefill_tokens).min().unwrap_or(0);
    for row in &mut rows {
        row.cost = formula.cost(&row.inputs, row.cost);
    }
    Table { rows, formula, path }
}

/// A row with the least cost; equal ones are chosen from uniformly.
pub(super) fn least(rows: &[Priced], rng: &mut fastrand::Rng) -> Option<usize> {
    let mut best: Option<usize> = None;
    let mut ties = 0;
    for (at, row) in rows.iter().enumerate() {
        match best {
            Some(found) if row.cost > rows[found].cost => continue,
            Some(found) if row.cost == rows[found].cost => ties += 1,
            _ => ties = 1,
        }
        if ties == 1 || rng.u64(0..ties) == 0 {
            best = Some(at);
        }
    }
    best
}

/// A row drawn with probability proportional to `exp(-(cost - least) / (range * temperature))` (spec scheduling 2.3).
pub(super) fn softmax(rows: &[Priced], temperature: f64, rng: &mut fastrand::Rng) -> Option<usize> {
    if rows.is_empty() {
        return None;
    }
    let least = rows.iter().map(|row| row.cost).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|row| row.cost).fold(f64::NEG_INFINITY, f64::max);
    if least == most {
        return Some(rng.usize(0..rows.len()));
    }
    // Costs are finite and not negative, so their range is finite; position in it, then temperature, cannot overflow.
    let range = most - least;
    let weight = |row: &Priced| (-((row.cost - least) / range) / temperature).exp();
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
    let multiplied = !request.constraints.preferred_taints.is_empty() && !matches!(candidates, Candidates::Pinned(_));
    let costs: Vec<(Slot, f64)> = table.rows.iter().map(|row| (row.slot, row.cost)).collect();
    let terms = |at: usize| {
        let row = &table.rows[at];
        let terms = table.formula.terms(&row.inputs);
        let mut named = vec![
            ("prefill".into(), terms.prefill),
            ("decode".into(), terms.decode),
            ("active_requests".into(), terms.requests),
        ];
        if multiplied {
            named.push(("preferred_taints".into(), row.cost - table.formula.cost(&row.inputs, 1.0)));
        }
        named
    };
    let asked = (request, load, &table.path[..]);
    priced::explanation(policy, table.rows[chosen].slot, asked, candidates, &costs, terms)
}
