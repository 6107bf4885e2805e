//! The search against the whole table: equal costs to the last bit, a choice out of the tie set, the same errors.

use super::*;
use crate::selection::policy::{
    builtin::default_cost::{cost::Formula, scan},
    eligibility,
};

fn random_parameters(rng: &mut fastrand::Rng) -> DefaultCostParameters {
    if rng.u32(0..4) == 0 {
        return DEFAULTS;
    }
    DefaultCostParameters {
        overlap_score_credit: one_of(rng, &[0.0, 0.5, 0.9, 1.0, 1.0, 1.5]),
        overlap_score_credit_decay: one_of(rng, &[0.0, 0.0, 0.5, 3.0]),
        prefill_load_scale: one_of(rng, &[0.0, 0.7, 1.0, 1.0, 2.0, 1e300]),
        // 1e-7 keeps apart what the order's slices take to be equal.
        decode_active_request_weight: one_of(rng, &[0.0, 0.0, 1e-7, 0.3, 3.0]),
        host_cache_hit_weight: one_of(rng, &[0.0, 0.75, 1.0]),
        disk_cache_hit_weight: one_of(rng, &[0.0, 0.25, 0.6]),
        router_temperature: 0.0,
        decode_label: rng.bool(),
    }
}

fn random_policy(rng: &mut fastrand::Rng, block_size: u32) -> DefaultCost {
    let accounting = CacheWeights { host: 0.75, disk: 0.25 };
    DefaultCost::new(random_parameters(rng), accounting, block_size, true)
}

/// The least cost, its ranks and the inputs of all, from the whole table.
fn expected(fleet: &Fleet, request: &PickRequest<'_>) -> Result<Vec<scan::Priced>, SelectionError> {
    let candidates = eligibility::candidates(request, &fleet.load, true)?;
    let formula = Formula::new(fleet.policy.weights(request), request);
    let rows = scan::table(formula, request, &fleet.load, &candidates).rows;
    let least = rows.iter().map(|row| row.cost).fold(f64::INFINITY, f64::min);
    let ties: Vec<scan::Priced> = rows.into_iter().filter(|row| row.cost == least).collect();
    if ties.is_empty() { Err(eligibility::nobody()) } else { Ok(ties) }
}

#[test]
fn picks_equal_the_whole_table() {
    for seed in seeds(400) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut world = World::new(rng, random_policy);
        for step in 0..60 {
            for _ in 0..rng.u32(0..6) {
                world.work(rng);
            }
            let ask = world.random_ask(rng);
            world.random_matches(rng, ask.sequence.len() as u32);
            let at = world.now;
            let fleet = &mut world.fleet;
            let matches = std::mem::take(&mut fleet.matches);
            let request = ask.request(&matches, at);
            let wanted = expected(fleet, &request);
            let got = fleet.policy.pick(&request, &mut fleet.load, rng);
            match (wanted, got) {
                (Err(wanted), Err(got)) => assert_eq!(got, wanted, "seed {seed} step {step}"),
                (Ok(ties), Ok(got)) => {
                    let row = ties.iter().find(|row| row.slot == got.slot);
                    let row = row.unwrap_or_else(|| panic!("seed {seed} step {step}: {got:?} is none of {ties:?}"));
                    let tied: BTreeSet<Slot> = ties.iter().map(|row| row.slot).collect();
                    assert_eq!(fleet.policy.scratch.trace.tied, tied, "seed {seed} step {step}");
                    assert_eq!(got.cost.to_bits(), row.cost.to_bits(), "seed {seed} step {step}");
                    assert_eq!(got.overlap, row.inputs.cached, "seed {seed} step {step}");
                    assert_eq!(got.active_prefill_tokens, row.inputs.load.prefill_tokens, "seed {seed} step {step}");
                    let unshared = ask.sequence.len() as u64 - row.inputs.shared;
                    assert_eq!(
                        got.decode_blocks,
                        row.inputs.load.blocks.saturating_add(unshared),
                        "seed {seed} step {step}"
                    );
                }
                (wanted, got) => panic!("seed {seed} step {step}: {got:?} instead of {wanted:?}"),
            }
        }
        world.fleet.load.check();
    }
}
