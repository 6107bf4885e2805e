//! What pipelines choose.

use std::collections::{BTreeMap, BTreeSet};

use super::{super::PIPELINE, *};
use crate::selection::policy::inputs::WorkerInputs;

const NOBODY: &str = "worker selection policy failed: all were rejected";

#[test]
fn filters_drop_whom_they_say() {
    let fleet = Fleet::of(3).cached(2, 4).busy(1, 3, 100).busy(3, 1, 900);
    let only = |worker: u64, filter: &str| {
        assert_eq!(
            fleet.chosen(&format!("filters: [{filter}]\nscorers: [{{cel: '-double(worker.id)'}}]")),
            Ok(worker),
            "{filter}"
        );
    };
    only(2, "{type: min-overlap, parameters: {device_blocks: 4}}");
    only(3, "{type: min-overlap, parameters: {device_blocks: 0}}");
    only(3, "{type: max-active-requests, parameters: {max: 1}}");
    only(2, "{type: max-active-requests, parameters: {max: 0}}");
    only(2, "{type: max-prefill-tokens, parameters: {max: 300}}");
    only(2, "{cel: 'cache.device_blocks >= 4'}");
    only(1, "{cel: 'load.active_requests == 3'}");
    only(2, "{cel: 'load.active_requests < 3'}, {cel: 'load.active_prefill_tokens < 900'}");
    assert_eq!(fleet.chosen("filters: [{type: min-overlap, parameters: {device_blocks: 5}}]").unwrap_err(), NOBODY);
}

#[test]
fn capacity_limits_and_is_no_limit_when_unknown() {
    let facts = |worker_id, total_kv_blocks| WorkerFacts { worker_id, total_kv_blocks, ..WorkerFacts::default() };
    let fleet = Fleet::new([facts(1, Some(10)), facts(2, Some(100)), facts(3, None)]);
    let filter = "filters: [{type: max-kv-utilisation, parameters: {max: 0.5}}]";
    let last = "scorers: [{cel: '-double(worker.id)'}]";
    assert_eq!(fleet.chosen(&format!("{filter}\n{last}")), Ok(3));
    assert_eq!(fleet.chosen("scorers: [{type: kv-utilisation}]"), Ok(2));
    assert_eq!(fleet.chosen("scorers: [{type: kv-utilisation, parameters: {when_unknown: 0}}]"), Ok(3));
    let absent = "filters: [{name: room, cel: 'load.decode_blocks < double(capacity.total_kv_blocks)'}]";
    let error = fleet.chosen(absent).unwrap_err();
    let says = "worker selection policy failed: filter \"room\" for worker 3 rank 0: `capacity.total_kv_blocks` is absent; \
                test it with has() at line 1, column 29 of `load.decode_blocks < double(capacity.total_kv_blocks)`";
    assert_eq!(error, says);
    let guarded = "filters: [{cel: '!has(capacity.total_kv_blocks) || capacity.total_kv_blocks > 50'}]";
    assert_eq!(fleet.chosen(&format!("{guarded}\n{last}")), Ok(3));
}

#[test]
fn trust_is_ordered() {
    let mut fleet = Fleet::of(5);
    let trusts = [Trust::Unknown, Trust::Stale, Trust::Partial, Trust::Replayed, Trust::Complete];
    fleet.trust = (1..=5).zip(trusts).collect();
    for (least, worker) in [("partial", 3), ("replayed", 4), ("complete", 5)] {
        let yaml =
            format!("filters: [{{type: min-trust, parameters: {{at_least: {least}}}}}]\nscorers: [{{cel: worker.id}}]");
        assert_eq!(fleet.chosen(&yaml), Ok(worker), "{least}");
    }
    assert_eq!(fleet.chosen("filters: [{cel: \"cache.trust == 'stale'\"}]"), Ok(2));
}

#[test]
fn scorers_measure_what_their_names_say() {
    let fleet = Fleet::of(3).cached(2, 6).busy(1, 1, 500).busy(2, 4, 0).busy(3, 2, 100);
    for (scorer, worker) in [
        ("{type: uncached-prefill-tokens}", 2),
        ("{type: missing-overlap-share}", 2),
        ("{type: active-prefill-tokens}", 2),
        ("{type: active-requests}", 1),
        ("{type: decode-blocks}", 1),
        ("{type: active-requests, weight: -1}", 2),
        // 2: 32 tokens and 4 requests; 1: 128 and 1; 3: 128 and 2.
        ("{type: uncached-prefill-tokens}, {type: active-requests, weight: 31}", 2),
        ("{type: uncached-prefill-tokens}, {type: active-requests, weight: 33}", 1),
        ("{cel: load.active_requests, weight: -2.5}", 2),
        (
            "{cel: 'load.active_requests > candidates.min_active_requests ? 0.0 : 1.0'}, {type: decode-blocks, weight: 0.01}",
            3,
        ),
    ] {
        assert_eq!(fleet.chosen(&format!("scorers: [{scorer}]")), Ok(worker), "{scorer}");
    }
}

#[test]
fn preferred_taints_pull() {
    let facts = |worker_id, taint: &str| WorkerFacts {
        worker_id,
        taints: BTreeSet::from([taint.to_owned()]),
        ..WorkerFacts::default()
    };
    let mut fleet = Fleet::new([facts(1, "slow"), facts(2, "fast"), facts(3, "other")]);
    fleet.constraints.preferred_taints = BTreeMap::from([("fast".to_owned(), 1.0), ("slow".to_owned(), -1.0)]);
    assert_eq!(fleet.chosen("scorers: [{type: preferred-taints}]"), Ok(2));
    assert_eq!(fleet.chosen("scorers: [{type: preferred-taints, weight: -1}]"), Ok(1));
    assert_eq!(fleet.chosen("scorers: [{cel: taint_multiplier}]"), Ok(2));
}

#[test]
fn sessions_and_affinity_reach_expressions() {
    let mut fleet = Fleet::of(3);
    let yaml = "scorers: [{cel: 'has(affinity.worker_id) && worker.id == affinity.worker_id ? 0 : 1'}]\n\
                picker: {type: lowest-cost, parameters: {ties: lowest-id}}";
    assert_eq!(fleet.chosen(yaml), Ok(1));
    fleet.affinity = Some(AffinityTarget { worker_id: 3, dp_rank: None });
    assert_eq!(fleet.chosen(yaml), Ok(3));
    let away = "scorers: [{cel: 'worker.id == 3u ? 1 : 0'}]\nexclusive_affinity: true";
    assert_eq!(fleet.chosen(away), Ok(3), "an exclusive target is the only candidate");
    let headers = BTreeMap::from([("X-Tier".to_owned(), vec!["gold".to_owned()])]);
    let mut session = SessionContext::new("agent-7".to_owned(), None, None, None);
    session.agent_headers = Some(headers);
    fleet.session = Some(session);
    let yaml = "scorers: [{cel: \"session.headers['x-tier'] == 'gold' && session.id.startsWith('agent-') ? worker.id : 0u\", weight: -1}]\n\
                picker: {type: lowest-cost, parameters: {ties: lowest-id}}";
    assert_eq!(fleet.chosen(yaml), Ok(3));
}

#[test]
fn ties_are_broken_as_asked() {
    let fleet = Fleet::of(3).busy(2, 1, 0);
    let chosen = |parameters: &str, count: usize| {
        let yaml =
            format!("scorers: [{{type: active-requests}}]\npicker: {{type: lowest-cost, parameters: {parameters}}}");
        fleet.choose(policy(&yaml).expect("a pipeline"), count).expect("somebody")
    };
    assert_eq!(chosen("{ties: lowest-id}", 3), [1, 1, 1]);
    assert_eq!(chosen("{ties: rotate}", 4), [1, 3, 1, 3]);
    let random = chosen("{ties: random, seed: 1}", 200);
    assert_eq!(random, chosen("{seed: 1}", 200), "random is the default, and a seed repeats");
    let firsts = random.iter().filter(|&&worker| worker == 1).count();
    assert!(!random.contains(&2) && (60..140).contains(&firsts), "{firsts}");
}

#[test]
fn temperature_draws_by_cost() {
    let fleet = Fleet::of(3).busy(2, 1, 0).busy(3, 2, 0);
    let yaml =
        "scorers: [{type: active-requests}]\npicker: {type: lowest-cost, parameters: {temperature: 0.5, seed: 3}}";
    let chosen = fleet.choose(policy(yaml).expect("a pipeline"), 4_000).expect("somebody");
    // exp(0), exp(-1), exp(-2) over their sum.
    for (worker, share) in [(1, 0.665), (2, 0.245), (3, 0.090)] {
        let seen = chosen.iter().filter(|&&chosen| chosen == worker).count() as f64 / 4_000.0;
        assert!((seen - share).abs() < 0.03, "worker {worker}: {seen}");
    }
    let far = "scorers: [{cel: 'worker.id == 1u ? -1.7e308 : 1.7e308'}]\n\
               picker: {type: lowest-cost, parameters: {temperature: 0.001}}";
    assert_eq!(fleet.chosen(far), Ok(1));
}

#[test]
fn faults_fail_the_request_with_name_worker_and_place() {
    let fleet = Fleet::of(2).busy(1, 1, 0);
    let error =
        fleet.chosen("scorers: [{type: decode-blocks}, {name: inverse, cel: '8 / load.active_requests'}]").unwrap_err();
    let says = "worker selection policy failed: scorer \"inverse\" for worker 2 rank 0: division by zero at line 1, column 3 \
                of `8 / load.active_requests`";
    assert_eq!(error, says);
}

#[test]
fn components_ask_only_for_what_they_read() {
    let yaml = "filters: [{cel: \"worker.dp_rank == 0\"}, {name: warm, type: min-overlap, parameters: {device_blocks: 1}}]\n\
                scorers: [{cel: 'has(session.id) ? load.active_requests : 0'}, {type: preferred-taints}]";
    let policy = policy(yaml).expect("a pipeline");
    let components = policy.components();
    let seen: Vec<_> = components.iter().map(|part| (part.stage, part.name.as_str(), part.inputs)).collect();
    let expected = [
        ("filter", "filters[0]", WorkerInputs::NONE),
        ("filter", "warm", WorkerInputs::CACHE),
        ("scorer", "scorers[0]", WorkerInputs::LOAD),
        ("scorer", "preferred-taints", WorkerInputs::PREFERRED_TAINT),
        ("picker", "lowest-cost", WorkerInputs::NONE),
    ];
    assert_eq!(seen, expected);
    assert_eq!(PIPELINE, "pipeline");
}
