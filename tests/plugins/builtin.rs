//! The policies that ship, by what they choose.

use std::collections::BTreeMap;

use pointsman::{
    KvRouterConfig,
    plugins::router_plugin_registry,
    selection::{
        Tier,
        core::Plugins,
        request::{AffinityTarget, RouterConfigOverride, SelectRequest},
    },
};
use serde_json::{Value, json};

use super::{
    registry::{configured, instance},
    support::{BLOCK, Fleet, request, request_of},
};

fn fleet(workers: &[u64], kind: &str, parameters: Value) -> Fleet {
    let config = KvRouterConfig { seed: Some(7), ..configured("x", [instance("x", kind, parameters)]) };
    let registry = router_plugin_registry();
    let fleet = Fleet::with(config, Plugins::Registry { registry: &registry, role: Default::default() });
    workers.iter().for_each(|&id| fleet.worker(id, json!({})));
    fleet
}

fn refusal(kind: &str, parameters: Value) -> String {
    let config = configured("x", [instance("x", kind, parameters)]);
    let error = router_plugin_registry().resolve(&config).err().unwrap().to_string();
    let prefix = format!("invalid parameters for worker-selection policy type \"{kind}\": ");
    let text = error.strip_prefix(&prefix).unwrap_or_else(|| panic!("{error}"));
    text.strip_suffix(" (instance at p.yaml:3)").unwrap().to_owned()
}

fn book(fleet: &Fleet, worker: u64, requests: u64) {
    let already = fleet.bookings().iter().map(|row| row.2).sum::<u64>();
    (0..requests).for_each(|k| fleet.book(&format!("{worker}-{}", already + k), worker, 0..0, 0));
}

fn select(fleet: &Fleet, request: SelectRequest) -> u64 {
    fleet.select(request).unwrap().worker_id
}

fn reserve(fleet: &Fleet, request: SelectRequest) -> u64 {
    fleet.reserve(request).unwrap().worker_id
}

fn session(id: &str) -> SelectRequest {
    SelectRequest { session_id: Some(id.into()), ..request(1) }
}

#[test]
fn a_named_default_cost_keeps_its_parameters() {
    let kind = "dynamo-default-cost-fn";
    assert_eq!(refusal(kind, json!({"prefill_load_scale": -1})), "prefill_load_scale must be finite and non-negative");
    assert_eq!(
        refusal(kind, json!({"overlap_score_credit": "x"})),
        "overlap_score_credit: invalid type: string \"x\", expected f64"
    );
    assert!(refusal(kind, json!({"seed": 1})).starts_with("seed: unknown field `seed`, expected one of"));
    let cost = |parameters: Value, overrides: Option<RouterConfigOverride>| {
        let fleet = fleet(&[1], kind, parameters);
        fleet.store(1, Tier::Device, &[1, 2], 0);
        let mut ask = request_of(&[1, 2, 3, 4]);
        ask.explain = true;
        ask.router_config_override = overrides;
        let explained = fleet.select(ask).unwrap().explain.unwrap();
        assert_eq!(explained.policy, "x (dynamo-default-cost-fn)");
        explained.candidates[0].cost.unwrap()
    };
    // 4 blocks of prefill less credit, and 4 of decode.
    assert_eq!(cost(json!({}), None), 4.0 - 2.0 + 4.0);
    assert_eq!(cost(json!({"overlap_score_credit": null, "prefill_load_scale": 2}), None), 2.0 * 2.0 + 4.0);
    assert_eq!(cost(json!({"overlap_score_credit": 1.5}), None), 1.0 + 4.0);
    let overrides = RouterConfigOverride { overlap_score_credit: Some(0.0), ..RouterConfigOverride::default() };
    assert_eq!(cost(json!({"overlap_score_credit": 1.5}), Some(overrides)), 1.0 + 4.0, "requests override nothing");
}

#[test]
fn two_tier_balances_then_follows_the_cache() {
    let kind = "dynamo-two-tier-cost-fn";
    assert_eq!(
        refusal(kind, json!({"cache_threshold": 1.1})),
        "cache_threshold must be a finite number between 0.0 and 1.0"
    );
    assert_eq!(
        refusal(kind, json!({"balance_rel_threshold": 0.9})),
        "balance_rel_threshold must be a finite number greater than or equal to 1.0"
    );
    let fleet = fleet(&[1, 2, 3], kind, json!({"balance_abs_threshold": 2}));
    fleet.store(3, Tier::Device, &[1, 2, 3], 0);
    fleet.store(2, Tier::Device, &[1, 2, 3], 0);
    assert_eq!(select(&fleet, request_of(&[1, 2, 3, 4])), 2, "the first of the deepest holders");
    book(&fleet, 2, 1);
    assert_eq!(select(&fleet, request_of(&[1, 2, 3, 4])), 3, "the less busy one");
    assert_eq!(select(&fleet, request_of(&[1, 2, 8, 9])), 1, "half of the prompt is not more than half");
    book(&fleet, 3, 2);
    assert_eq!(select(&fleet, request_of(&[1, 2, 3, 4])), 2, "a spread of 2 is even");
    book(&fleet, 2, 2);
    assert_eq!(select(&fleet, request_of(&[1, 2, 3, 4])), 1, "3 is not");
}

#[test]
fn thunderagent_counts_tokens_and_keeps_to_a_target() {
    let fleet = fleet(&[1, 2, 3], "thunderagent", json!({}));
    assert_eq!(select(&fleet, request(1)), 1);
    fleet.book("a", 1, 100..102, 0); // 32 tokens
    fleet.book("b", 2, 200..201, 17); // 33 tokens
    fleet.book("c", 3, 300..303, 0);
    assert_eq!(select(&fleet, request(1)), 1);
    fleet.book("d", 1, 110..111, 0);
    assert_eq!(select(&fleet, request(1)), 2);
    let mut ask = request(1);
    ask.steering.affinity_target = Some(AffinityTarget::new(3, None));
    assert_eq!(select(&fleet, ask), 3);
    assert_eq!(refusal("thunderagent", json!({"x": 1})), "x: unknown field `x`, there are no fields");
}

#[test]
fn least_loaded_goes_by_its_measure() {
    let by = |measure: Value| {
        let fleet = fleet(&[1, 2, 3], "least-loaded", measure);
        fleet.book("a", 1, 0..1, 90);
        fleet.book("b", 2, 10..14, 10);
        fleet.book("c", 3, 20..22, 20);
        fleet.book("d", 3, 30..31, 0);
        select(&fleet, request(1))
    };
    assert_eq!(by(json!({})), 2, "one request each, fewer prefill tokens");
    assert_eq!(by(json!({"measure": "prefill_tokens"})), 2);
    assert_eq!(by(json!({"measure": "blocks"})), 1);
    assert!(refusal("least-loaded", json!({"measure": "x"})).starts_with("measure: unknown variant `x`, expected"));
    let idle = fleet(&[1, 2, 3], "least-loaded", json!({}));
    let mut hits = BTreeMap::new();
    (0..300).for_each(|_| *hits.entry(select(&idle, request(1))).or_insert(0) += 1);
    assert!(hits.len() == 3 && hits.values().all(|&n| n > 60), "idle ranks are equal: {hits:?}");
}

#[test]
fn round_robin_goes_round_and_queries_take_no_turn() {
    let fleet = fleet(&[1, 3, 5], "round-robin", json!({}));
    let next = || reserve(&fleet, request(1));
    assert_eq!([next(), next()], [1, 3]);
    assert_eq!([select(&fleet, request(1)), select(&fleet, request(1))], [5, 5]);
    assert_eq!([next(), next(), next()], [5, 1, 3]);
    // Nobody's turn shifts when ranks come or go.
    fleet.worker(4, json!({"data_parallel_size": 2}));
    fleet.core.delete_worker(5).unwrap();
    assert_eq!([next(), next(), next(), next()], [4, 4, 1, 3]);
    let mut ask = request(1);
    ask.steering.affinity_target = Some(AffinityTarget::new(1, None));
    assert_eq!(reserve(&fleet, ask), 1, "a session's binding is kept to");
    assert!(refusal("round-robin", json!({"x": 1})).contains("unknown field"));
}

#[test]
fn random_is_even_and_repeatable() {
    let draws = || {
        let fleet = fleet(&[1, 2, 3, 4], "random", json!({}));
        (0..400).map(|_| select(&fleet, request(1))).collect::<Vec<_>>()
    };
    let first = draws();
    assert_eq!(first, draws(), "the core's seed decides");
    (1..=4).for_each(|id| assert!(first.iter().filter(|&&got| got == id).count() > 60, "{first:?}"));
}

#[test]
fn power_of_two_choices_never_takes_the_busiest() {
    let fleet = fleet(&[1, 2, 3], "power-of-two-choices", json!({}));
    book(&fleet, 2, 5);
    let mut hits = BTreeMap::new();
    (0..300).for_each(|_| *hits.entry(select(&fleet, request(1))).or_insert(0) += 1);
    // Two distinct ones of three: the busiest always has a rival.
    assert!(!hits.contains_key(&2) && hits.values().all(|&n| n > 90), "{hits:?}");
    let one = self::fleet(&[1, 2], "power-of-two-choices", json!({"choices": 1}));
    book(&one, 2, 5);
    assert!((0..100).any(|_| select(&one, request(1)) == 2), "a single choice is random");
    let all = self::fleet(&[1, 2, 3, 4], "power-of-two-choices", json!({"choices": 16}));
    [1, 2, 4].into_iter().for_each(|id| book(&all, id, 1));
    assert!((0..50).all(|_| select(&all, request(1)) == 3), "all of them are drawn");
    assert_eq!(refusal("power-of-two-choices", json!({"choices": 0})), "choices must be between 1 and 16");
}

#[test]
fn consistent_hashing_moves_few_keys_and_keeps_the_bound() {
    let kind = "consistent-hashing";
    let homes = |fleet: &Fleet| -> Vec<u64> { (0..200).map(|k| select(fleet, request_of(&[1000 + k, 5]))).collect() };
    let fleet = fleet(&[1, 2, 3, 4], kind, json!({"prefix_tokens": BLOCK}));
    let before = homes(&fleet);
    assert_eq!(before, homes(&fleet));
    (1..=4).for_each(|id| assert!(before.iter().filter(|&&got| got == id).count() > 25, "{before:?}"));
    assert_eq!(select(&fleet, request_of(&[1000, 5])), select(&fleet, request_of(&[1000, 77, 78])), "equal beginnings");
    fleet.core.delete_worker(4).unwrap();
    let after = homes(&fleet);
    assert!(before.iter().zip(&after).all(|(before, after)| before == after || *before == 4));
    // The owner of a hot key takes no more than its bound: 1.25 * (n + 1) / 3.
    for k in 0..30_u64 {
        reserve(&fleet, request_of(&[1000, 5]));
        let most = fleet.bookings().iter().map(|row| row.2).max().unwrap();
        assert!(most as f64 <= 1.25 * (k as f64 + 1.0) / 3.0 + 1.0, "{most} of {}", k + 1);
    }
    let by_session = self::fleet(&[1, 2, 3, 4], kind, json!({"key": "session"}));
    let home = |id: &str, first: i64| {
        select(&by_session, SelectRequest { session_id: Some(id.into()), ..request_of(&[first]) })
    };
    assert!((0..20).all(|first| home("a", first) == home("a", 99)));
    assert!((0..20).any(|k| home(&format!("s{k}"), 1) != home("a", 1)));
    // Less than a block has no key.
    book(&by_session, 1, 1);
    let mut short = request_of(&[]);
    short.prompt.isl_tokens = Some(3);
    assert_eq!(select(&by_session, short), 2);
    assert_eq!(refusal(kind, json!({"load_factor": 0.5})), "load_factor must be finite and at least 1");
    assert_eq!(refusal(kind, json!({"prefix_tokens": 0})), "prefix_tokens must be greater than zero");
}

#[test]
fn session_sticky_keeps_sessions_where_they_began() {
    let kind = "session-sticky";
    let fleet = fleet(&[1, 2, 3], kind, json!({}));
    let home = reserve(&fleet, session("a"));
    book(&fleet, home, 10);
    assert!((0..5).all(|_| reserve(&fleet, session("a")) == home), "whatever its load");
    assert_ne!(reserve(&fleet, session("b")), home);
    // A query binds nothing.
    let asked = select(&fleet, session("c"));
    book(&fleet, asked, 10);
    assert_ne!(reserve(&fleet, session("c")), asked);
    // Its rank left: it begins anew, and stays there.
    fleet.core.delete_worker(home).unwrap();
    let next = reserve(&fleet, session("a"));
    assert_ne!(next, home);
    book(&fleet, next, 50);
    assert_eq!(reserve(&fleet, session("a")), next);
    let bounded = self::fleet(&[1, 2], kind, json!({"load_factor": 1.5}));
    let home = reserve(&bounded, session("a"));
    assert_eq!(reserve(&bounded, session("a")), home);
    book(&bounded, home, 4);
    assert_ne!(reserve(&bounded, session("a")), home, "6 of 6 are above 1.5 times the mean");
    assert_eq!(refusal(kind, json!({"max_sessions": 0})), "max_sessions must be greater than zero");
    assert_eq!(refusal(kind, json!({"load_factor": 0})), "load_factor must be finite and at least 1");
}

#[test]
fn a_guarded_session_moves_only_to_a_clearly_lighter_rank() {
    for kind in ["soft-affinity-load-guard", "dynamo-soft-affinity-load-guard"] {
        let fleet = fleet(&[1, 2], kind, json!({"max_active_requests": 3, "move_margin": 2}));
        let mut ask = request(1);
        ask.steering.affinity_target = Some(AffinityTarget::new(1, None));
        book(&fleet, 1, 3);
        assert_eq!(select(&fleet, ask.clone()), 1, "3 are not too many");
        book(&fleet, 2, 3);
        book(&fleet, 1, 1);
        assert_eq!(select(&fleet, ask.clone()), 1, "4 are, but 3 are not clearly fewer");
        book(&fleet, 1, 1);
        assert_eq!(select(&fleet, ask), 2);
        assert_eq!(select(&fleet, request(1)), 2, "without a target the least busy one");
        assert_eq!(refusal(kind, json!({"move_margin": 0})), "move_margin must be at least 1");
    }
}
