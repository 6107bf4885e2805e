//! The whole table, for explanations, and as the measure of what the search must find.

use super::cost::Pricing;
use crate::selection::{
    explain::Explanation,
    load::Slot,
    policy::{builtin::priced, eligibility::Candidates},
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
    let mut rows = Vec::new();
    candidates.for_each(pricing.request, pricing.load, |slot, multiplier| {
        let Some(line) = pricing.line(slot) else { return };
        let own = pricing.own_tokens(pricing.cached(slot));
        rows.push(Priced { slot, own, multiplier, cost: line.cost(own) * multiplier });
    });
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
    let costs: Vec<(Slot, f64)> = rows.iter().map(|row| (row.slot, row.cost)).collect();
    let asked = (request, load, pricing.path);
    let explanation =
        priced::explanation(policy, chosen.slot, asked, candidates, &costs, |at| terms(pricing, &rows[at]));
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
