//! The whole table, for explanations, and as the measure of what the search must find.

use super::cost::Pricing;
use crate::selection::{
    explain::{ExplainedCandidate, Explanation},
    load::Slot,
    policy::{
        eligibility::{self, Candidates, Filter},
        overlap,
    },
};

/// One candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Priced {
    pub(super) slot: Slot,
    pub(super) own: f64,
    pub(super) multiplier: f64,
    pub(super) cost: f64,
}

/// Prices every candidate.
pub(super) fn table(pricing: &Pricing<'_>, candidates: &Candidates) -> Vec<Priced> {
    let load = pricing.load;
    let mut filter = Filter::new(pricing.request, load);
    let mut rows = Vec::new();
    let mut price = |slot: Slot, multiplier: f64| {
        let Some(line) = pricing.line(slot) else { return };
        let own = pricing.own_tokens(pricing.cached(slot));
        rows.push(Priced { slot, own, multiplier, cost: line.cost(own) * multiplier });
    };
    match candidates {
        Candidates::Pinned(slot) => price(*slot, 1.0),
        Candidates::Affinity(slots) => {
            for &slot in slots {
                price(slot, filter.admits(&load.rows()[slot as usize]).unwrap_or(1.0));
            }
        }
        Candidates::Open => {
            for (slot, row) in load.rows().iter().enumerate() {
                if let Some(multiplier) = filter.admits(row) {
                    price(slot as Slot, multiplier);
                }
            }
        }
    }
    rows
}

/// The cheapest rank with verdict, inputs and cost by term of every one.
pub(super) fn explained(
    pricing: &Pricing<'_>,
    candidates: &Candidates,
    policy: &str,
    rng: &mut fastrand::Rng,
) -> Option<(Slot, f64, Option<Explanation>)> {
    let (request, load) = (pricing.request, pricing.load);
    let rows = table(pricing, candidates);
    let least = rows.iter().map(|row| row.cost).fold(f64::INFINITY, f64::min);
    let tied: Vec<&Priced> = rows.iter().filter(|row| row.cost == least).collect();
    let chosen = **tied.get(rng.usize(0..tied.len().max(1)))?;
    let mut by_slot = vec![None; load.rows().len()];
    rows.iter().for_each(|row| by_slot[row.slot as usize] = Some(row));
    let explained = load.slots().into_iter().filter_map(|slot| {
        let (rank, facts, row) = (load.rank(slot)?, load.facts(slot)?, by_slot[slot as usize]);
        let verdict = match (row, candidates) {
            (Some(_), _) => "eligible",
            (None, Candidates::Pinned(_)) => "not_pinned",
            (None, Candidates::Affinity(_)) => eligibility::excluded(request, facts).unwrap_or("not_affinity_target"),
            (None, Candidates::Open) => eligibility::excluded(request, facts)?,
        };
        let cached = overlap::cached(&request.matches.classes, request.index, slot);
        let now = load.load(slot, request.now);
        Some(ExplainedCandidate {
            worker_id: rank.worker_id,
            dp_rank: rank.dp_rank,
            verdict,
            rejected_by: None,
            cached_blocks: [cached.device, cached.host, cached.disk, cached.external],
            active_prefill_tokens: now.prefill_tokens,
            active_blocks: now.blocks,
            active_requests: now.requests,
            shared_active_blocks: load.shared_on(pricing.path, slot),
            cost_terms: row.map_or_else(Vec::new, |row| terms(pricing, row)),
            cost: row.map(|row| row.cost),
        })
    });
    let explained: Vec<_> = explained.collect();
    let others = rows.iter().filter(|row| row.slot != chosen.slot);
    let runner_up = others.min_by(|a, b| a.cost.total_cmp(&b.cost)).and_then(|row| load.rank(row.slot));
    let explanation = Explanation {
        policy: policy.to_owned(),
        candidates: explained,
        runner_up: runner_up.map(|rank| (rank.worker_id, rank.dp_rank)),
        ties: tied.len() as u64,
        shadow: None,
    };
    Some((chosen.slot, chosen.cost, Some(explanation)))
}

/// In tokens, in the order they are added: what is ahead, named after how that is known; the prompt's uncached tokens;
/// the price of the decodes they delay; that of memory in use and of a speed other than 1; that of preferred taints.
fn terms(pricing: &Pricing<'_>, row: &Priced) -> Vec<(std::borrow::Cow<'static, str>, f64)> {
    let (ahead, form) = pricing.work.ahead(row.slot);
    let gamma = pricing.work.gamma();
    let requests = pricing.load.rows()[row.slot as usize].load.requests as f64;
    let delayed = row.own * gamma * requests;
    let unpriced = ahead as f64 + row.own + delayed;
    let line = pricing.line(row.slot).unwrap_or_default().cost(row.own);
    let mut terms = vec![
        (format!("ahead_by_{}", form.as_str()).into(), ahead as f64),
        ("uncached".into(), row.own),
        ("decodes_delayed".into(), delayed),
        ("memory_and_speed".into(), line - unpriced),
    ];
    if row.multiplier != 1.0 {
        terms.push(("preferred_taints".into(), row.cost - line));
    }
    terms
}
