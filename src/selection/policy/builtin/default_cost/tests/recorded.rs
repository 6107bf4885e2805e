//! Costs and choices recorded from the reference (spec scheduling 6).

use super::*;

/// The three workers of cost_02: 2 device; 1 device and 2 host; 1 device and 2 disk blocks.
fn tiers(parameters: DefaultCostParameters) -> Fleet {
    let mut fleet = Fleet::new(parameters, 16, 3);
    fleet.cached(1, 2, 0, 0, 0);
    fleet.cached(2, 1, 2, 0, 0);
    fleet.cached(3, 1, 0, 2, 0);
    fleet
}

#[test]
fn costs_of_the_recorded_tier_cases() {
    let expect = |parameters, ask: &Ask, costs: [f64; 3]| assert_eq!(tiers(parameters).costs(ask), costs);
    let prompt = ask(64);
    expect(DEFAULTS, &prompt, [6.0, 5.5, 6.5]);
    expect(DefaultCostParameters { overlap_score_credit: 0.0, ..DEFAULTS }, &prompt, [8.0, 8.0, 8.0]);
    expect(DefaultCostParameters { prefill_load_scale: 0.5, ..DEFAULTS }, &prompt, [5.0, 4.75, 5.25]);
    let weights = DefaultCostParameters { host_cache_hit_weight: 1.0, disk_cache_hit_weight: 0.5, ..DEFAULTS };
    expect(weights, &prompt, [6.0, 5.0, 6.0]);
    expect(DefaultCostParameters { prefill_load_scale: 2.0, ..DEFAULTS }, &prompt, [8.0, 7.0, 9.0]);
    let untracked = Ask { untracked: true, ..prompt.clone() };
    expect(DEFAULTS, &untracked, [2.0, 1.5, 2.5]);
    expect(DefaultCostParameters { overlap_score_credit: 0.0, ..DEFAULTS }, &untracked, [4.0, 4.0, 4.0]);
    let overridden = |by| Ask { overrides: Some(by), ..ask(64) };
    expect(
        DEFAULTS,
        &overridden(RouterConfigOverride { overlap_score_weight: Some(0.0), ..Default::default() }),
        [4.0; 3],
    );
    let scaled = RouterConfigOverride { prefill_load_scale: Some(0.5), ..Default::default() };
    expect(DEFAULTS, &overridden(scaled), [5.0, 4.75, 5.25]);
    assert_eq!(tiers(DEFAULTS).winner(&prompt), 2);
}
