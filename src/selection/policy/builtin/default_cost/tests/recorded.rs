//! Costs and choices recorded from the reference (spec scheduling 5 and 6).

use super::*;

/// Parameters that differ from the defaults.
fn with(change: impl FnOnce(&mut DefaultCostParameters)) -> DefaultCostParameters {
    let mut parameters = DEFAULTS;
    change(&mut parameters);
    parameters
}

/// The three workers of cost_02: 2 device; 1 device and 2 host; 1 device and 2 disk blocks.
fn tiers(parameters: DefaultCostParameters) -> Fleet {
    let mut fleet = Fleet::new(parameters, 16, 3);
    fleet.cached(1, 2, 0, 0, 0);
    fleet.cached(2, 1, 2, 0, 0);
    fleet.cached(3, 1, 0, 2, 0);
    fleet
}

#[test]
fn tiers_and_weights() {
    let prompt = ask(64);
    let untracked = Ask { untracked: true, ..ask(64) };
    let cases = [
        ("cost_02", DEFAULTS, &prompt, [6.0, 5.5, 6.5]),
        ("cost_05", with(|own| own.overlap_score_credit = 0.0), &prompt, [8.0, 8.0, 8.0]),
        ("cost_06", with(|own| own.prefill_load_scale = 0.5), &prompt, [5.0, 4.75, 5.25]),
        (
            "cost_07",
            with(|own| (own.host_cache_hit_weight, own.disk_cache_hit_weight) = (1.0, 0.5)),
            &prompt,
            [6.0, 5.0, 6.0],
        ),
        ("cost_08", with(|own| own.prefill_load_scale = 2.0), &prompt, [8.0, 7.0, 9.0]),
        ("cost_14", DEFAULTS, &untracked, [2.0, 1.5, 2.5]),
        ("cost_15", with(|own| own.overlap_score_credit = 0.0), &untracked, [4.0, 4.0, 4.0]),
        ("prefill pool", with(|own| own.decode_label = false), &untracked, [4.0, 4.0, 4.0]),
    ];
    for (name, parameters, ask, costs) in cases {
        assert_eq!(tiers(parameters).costs(ask), costs, "{name}");
    }
    let mut fleet = tiers(DEFAULTS);
    assert_eq!(fleet.winner(&prompt), 2);
    // The estimate that is booked: 2 device blocks; 1 and 1.5; 1 and 0.5. A credit of 0 leaves it alone.
    for parameters in [DEFAULTS, with(|own| own.overlap_score_credit = 0.0)] {
        let mut fleet = tiers(parameters);
        let estimates = [1, 2, 3].map(|worker| fleet.pick_of(&prompt, worker).unwrap().cached_tokens);
        assert_eq!(estimates, [32, 40, 24]);
    }
    let mut fleet = Fleet::new(DEFAULTS, 16, 2);
    fleet.cached(1, 1, 0, 0, 2);
    assert_eq!(fleet.costs(&prompt), [6.5, 8.0], "cost_03: external counts as disk");
}

#[test]
fn credit_over_one_cannot_push_prefill_below_zero() {
    let mut fleet = Fleet::new(with(|own| own.overlap_score_credit = 1.5), 16, 3);
    fleet.cached(1, 2, 0, 0, 0);
    fleet.cached(2, 4, 0, 0, 0);
    assert_eq!(fleet.costs(&ask(64)), [5.0, 4.0, 8.0], "cost_04");
}

#[test]
fn active_load() {
    let mut fleet = Fleet::new(DEFAULTS, 16, 2);
    let prompt = ask(80);
    let first = fleet.book(1, &[prompt.sequence[..4].to_vec(), vec![7, 8]].concat(), 96);
    fleet.book(2, &[1, 2], 40);
    assert_eq!(
        fleet.costs(&Ask { sequence: [prompt.sequence[..4].to_vec(), vec![9]].concat(), ..prompt.clone() }),
        [18.0, 14.5]
    );
    fleet.load.prefill_complete(first, Moment(0));
    assert_eq!(fleet.cost(&prompt, 1), 12.0, "cost_10 after the prefill");
    let picked = fleet.pick_of(&prompt, 2).unwrap();
    assert_eq!((picked.decode_blocks, picked.active_prefill_tokens), (7, 40));

    let mut fleet = Fleet::new(with(|own| own.decode_active_request_weight = 3.0), 16, 2);
    for prompt in 0..2 {
        fleet.book(1, &[prompt * 10, prompt * 10 + 1], 32);
    }
    fleet.book(2, &[1, 2, 3, 4, 5, 6, 7], 112);
    assert_eq!(fleet.costs(&ask(64)), [8.0 + 8.0 + 6.0, 11.0 + 11.0 + 3.0], "cost_13");
}

#[test]
fn device_credit_decays_with_excess_prefill_load() {
    // cost_11: an excess of one request halves the device credit: 8 - 4/2 + 8.
    let mut fleet = Fleet::new(with(|own| own.overlap_score_credit_decay = 1.0), 16, 2);
    fleet.cached(1, 4, 0, 0, 0);
    fleet.book(1, &[1, 2, 3, 4], 64);
    let picked = fleet.winner(&ask(64));
    assert_eq!(picked, 2, "8 against 14");
    let explained = fleet.pick(&Ask { explain: true, ..ask(64) }).unwrap().explanation.unwrap();
    let costs: Vec<Option<f64>> = explained.candidates.iter().map(|candidate| candidate.cost).collect();
    assert_eq!(costs, [Some(14.0), Some(8.0)]);
    assert_eq!(fleet.cost(&ask(64), 1), 12.0, "alone it is its own floor");
    // cost_12: 0.5 a request of excess, 3 blocks over a request of 5.
    let mut fleet = Fleet::new(with(|own| own.overlap_score_credit_decay = 0.5), 16, 2);
    fleet.cached(1, 5, 0, 0, 0);
    fleet.book(1, &[1, 2, 3], 48);
    let explained = fleet.pick(&Ask { explain: true, ..ask(80) }).unwrap().explanation.unwrap();
    assert_eq!(explained.candidates[0].cost, Some(8.0 - 5.0 / 1.3 + 8.0));
    // An empty prompt has nothing to decay and no 0/0.
    assert_eq!(fleet.cost(&ask(0), 2), 0.0);
}

#[test]
fn partial_blocks_and_other_block_sizes() {
    let mut fleet = Fleet::new(DEFAULTS, 16, 1);
    fleet.cached(1, 3, 0, 0, 0);
    assert_eq!(fleet.costs(&ask(70)), [5.375], "cost_17");
    let mut fleet = Fleet::new(DEFAULTS, 24, 2);
    fleet.cached(1, 2, 0, 0, 0);
    let prompt = Ask { sequence: vec![1, 2, 3, 4], ..ask(100) };
    assert_eq!(fleet.costs(&prompt), [100.0 / 24.0 - 2.0 + 4.0, 100.0 / 24.0 + 4.0], "cost_18");
    let mut fleet = Fleet::new(DEFAULTS, 16, 1);
    let prompt = Ask { sequence: vec![1, 2, 3], ..ask(100) };
    assert_eq!(fleet.costs(&prompt), [9.25], "cost_19");
    fleet.book(1, &prompt.sequence, 100);
    assert_eq!(fleet.costs(&Ask { sequence: vec![1, 2, 3], ..ask(100) }), [15.5], "cost_19 after the booking");
    let mut fleet = Fleet::new(DEFAULTS, 16, 1);
    assert_eq!(fleet.costs(&ask(5)), [0.3125], "cost_20");
    // eagle_01: 64 tokens make 3 blocks, 65 make 4.
    assert_eq!(fleet.costs(&Ask { sequence: vec![1, 2, 3], ..ask(64) }), [7.0]);
    assert_eq!(fleet.costs(&Ask { sequence: vec![1, 2, 3, 4], ..ask(65) }), [8.0625]);
}

#[test]
fn preferred_taints_multiply() {
    let mut fleet = Fleet::new(DEFAULTS, 16, 3);
    let taints = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    fleet.facts(1, |facts| facts.taints = taints(&["zone=a"]));
    fleet.facts(2, |facts| facts.taints = taints(&["zone=b", "fast"]));
    let preferred = [("zone=a", 0.5), ("zone=b", -0.25), ("fast", 1.0)];
    let preferred_taints = preferred.into_iter().map(|(taint, weight)| (taint.to_owned(), weight)).collect();
    let constraints = RoutingConstraints { preferred_taints, ..Default::default() };
    let prompt = Ask { constraints, ..ask(64) };
    assert_eq!(fleet.costs(&prompt), [5.039588260595509, 4.238852472319787, 8.0], "elig_01");
    assert_eq!(fleet.winner(&prompt), 2);
    let pin = Some(WorkerWithDpRank::new(1, 0));
    assert_eq!(fleet.pick(&Ask { pin, ..prompt.clone() }).unwrap().cost, 8.0, "a pin knows no preferences");
    fleet.book(2, &[1, 2, 3, 4], 64);
    assert_eq!(fleet.winner(&prompt), 1);
}

/// The reference validates these and ignores them (design 9.4).
#[test]
fn request_overrides_of_scores_act() {
    type Change = fn(&mut RouterConfigOverride);
    let cases: [(Change, [f64; 3]); 5] = [
        (|by| by.overlap_score_credit = Some(0.0), [8.0, 8.0, 8.0]),
        (|by| by.prefill_load_scale = Some(3.0), [10.0, 8.5, 11.5]),
        (|by| by.overlap_score_weight = Some(2.0), [8.0, 7.0, 9.0]),
        (|by| by.overlap_score_weight = Some(0.0), [4.0, 4.0, 4.0]),
        // The deprecated weight wins over the scale.
        (|by| (by.prefill_load_scale, by.overlap_score_weight) = (Some(9.0), Some(2.0)), [8.0, 7.0, 9.0]),
    ];
    for (case, (change, costs)) in cases.into_iter().enumerate() {
        let mut by = RouterConfigOverride::default();
        change(&mut by);
        let prompt = Ask { overrides: Some(by), ..ask(64) };
        let mut fleet = tiers(DEFAULTS);
        assert_eq!(fleet.costs(&prompt), costs, "case {case}");
        // A named instance keeps its own parameters.
        fleet.policy = DefaultCost::new(DEFAULTS, CacheWeights { host: 0.75, disk: 0.25 }, 16, false);
        assert_eq!(fleet.costs(&prompt), [6.0, 5.5, 6.5], "case {case}");
    }
}

#[test]
fn greedy_choices_follow_the_load() {
    // A miss never goes to a busy rank because its cache is small.
    let mut fleet = Fleet::new(DEFAULTS, 16, 4);
    for prompt in 0..50 {
        fleet.book(1, &[prompt * 4, prompt * 4 + 1], 0);
    }
    for _ in 0..100 {
        assert_ne!(fleet.winner(&ask(64)), 1);
    }
}

#[test]
fn huge_numbers_saturate() {
    let mut fleet = Fleet::new(with(|own| own.prefill_load_scale = f64::MAX), 16, 3);
    for _ in 0..3 {
        fleet.book(1, &[], u64::MAX);
    }
    let prompt = Ask { tokens: u64::MAX, ..ask(64) };
    assert_eq!(fleet.costs(&prompt), [f64::MAX; 3]);
    assert!(fleet.pick(&prompt).is_ok());
    let mut fleet = Fleet::new(DEFAULTS, 16, 2);
    for _ in 0..3 {
        fleet.book(1, &[], u64::MAX);
    }
    assert_eq!(fleet.winner(&prompt), 2);
    assert_eq!(fleet.pick_of(&prompt, 1).unwrap().active_prefill_tokens, u64::MAX);
}
