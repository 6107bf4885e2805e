//! What policies share that price ranks one by one: drawing among equals, and explaining the prices.

use std::borrow::Cow;

use super::super::{
    PickRequest,
    eligibility::{self, Candidates},
    overlap,
};
use crate::selection::{
    explain::{ExplainedCandidate, Explanation},
    load::{LoadTracker, Passed, Slot},
};

/// Draws uniformly among `ties` ranks, of which `chosen` was drawn already, and those members of `pools` that tie with
/// them too. `None` when `draws` draws met no such member.
pub(super) fn draw_tied(
    (chosen, ties): (Option<Slot>, u64),
    pools: &[&[Slot]],
    draws: usize,
    rng: &mut fastrand::Rng,
    mut ties_too: impl FnMut(Slot) -> bool,
) -> Option<Slot> {
    let pooled: usize = pools.iter().map(|pool| pool.len()).sum();
    for _ in 0..if pooled == 0 { 0 } else { draws } {
        let at = rng.u64(0..ties + pooled as u64);
        if at < ties {
            return chosen;
        }
        let mut at = (at - ties) as usize;
        let slot = pools.iter().find_map(|pool| {
            let slot = pool.get(at).copied();
            at = at.wrapping_sub(pool.len());
            slot
        })?;
        if ties_too(slot) {
            return Some(slot);
        }
    }
    None
}

/// Verdict, inputs and cost by term of every rank. `rows` are the candidates with their costs, `terms` those of one of
/// them by its place.
pub(super) fn explanation(
    policy: &str,
    chosen: Slot,
    (request, load, path): (&PickRequest<'_>, &LoadTracker, &[Passed]),
    candidates: &Candidates,
    rows: &[(Slot, f64)],
    terms: impl Fn(usize) -> Vec<(Cow<'static, str>, f64)>,
) -> Explanation {
    let mut by_slot = vec![None; load.rows().len()];
    rows.iter().enumerate().for_each(|(at, row)| by_slot[row.0 as usize] = Some(at));
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
            shared_active_blocks: load.shared_on(path, slot),
            cost_terms: row.map_or_else(Vec::new, &terms),
            cost: row.map(|at| rows[at].1),
        })
    });
    let explained = explained.collect();
    let others = rows.iter().filter(|row| row.0 != chosen);
    let runner_up = others.min_by(|a, b| a.1.total_cmp(&b.1)).and_then(|row| load.rank(row.0));
    let least = rows.iter().map(|row| row.1).fold(f64::INFINITY, f64::min);
    Explanation {
        policy: policy.to_owned(),
        candidates: explained,
        runner_up: runner_up.map(|rank| (rank.worker_id, rank.dp_rank)),
        ties: rows.iter().filter(|row| row.1 == least).count() as u64,
        shadow: None,
    }
}
