//! Fleets of a few engines, with requests made by hand.

use super::*;
use crate::{
    selection::policy::builtin::router_plugin_registry,
    simulation::{MILLISECOND, SECOND},
};

fn config() -> FleetConfig {
    FleetConfig {
        workers: 4,
        engine: EngineConfig::default(),
        speeds: Vec::new(),
        event_delay: Some(50 * MILLISECOND),
        replicas: 1,
        mesh_lag: None,
        seed: 1,
    }
}

/// A turn of `blocks` whole blocks, the first `shared` of them those of every prompt with that `prefix`.
fn turn(prefix: u64, shared: u64, blocks: u64, think: Nanos) -> Turn {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1 << 40);
    let first = NEXT.fetch_add(blocks, std::sync::atomic::Ordering::Relaxed);
    let ids = (0..shared).map(|at| prefix << 20 | at).chain(first..first + blocks - shared);
    Turn { think, prompt_tokens: blocks as u32 * 512 + 1, output_tokens: 20, blocks: ids.collect() }
}

fn single(id: u64, start: Nanos, turn: Turn) -> Session {
    Session { id, start, turns: vec![turn] }
}

fn run(config: FleetConfig, policy: &str, sessions: Vec<Session>) -> Outcome {
    let candidate = Candidate::named(policy, &router_plugin_registry()).expect("a known policy");
    let fleet = Fleet::new(config, &candidate).expect("a fleet");
    fleet.run(sessions.into_iter().map(Ok)).expect("a run")
}

/// The longest prefill of a worker as a multiple of the mean.
fn imbalance(outcome: &Outcome) -> f64 {
    let tokens = || outcome.engines.iter().map(|engine| engine.computed_prefill_tokens);
    let mean = tokens().sum::<u64>() as f64 / outcome.engines.len() as f64;
    tokens().max().unwrap_or(0) as f64 / mean
}

#[test]
fn one_request_takes_what_an_idle_engine_takes() {
    let outcome = run(config(), "default", vec![single(1, SECOND, turn(0, 0, 20, 0))]);
    let [record] = &outcome.requests[..] else { panic!("one request") };
    let expected = EngineConfig::default().idle_ttft(20 * 512 + 1, 0);
    assert_eq!(record.first_token.map(|at| at - record.arrived), Some(expected));
    assert_eq!(outcome.engines.iter().filter(|engine| engine.steps > 0).count(), 1);
}

#[test]
fn a_turn_begins_a_think_time_after_the_one_before_ended() {
    let turns = vec![turn(7, 10, 10, 0), turn(7, 10, 12, 3 * SECOND), turn(7, 10, 14, SECOND)];
    let outcome = run(config(), "sticky", vec![Session { id: 1, start: 0, turns }]);
    let [first, second, third] = &outcome.requests[..] else { panic!("three requests") };
    assert_eq!(Some(second.arrived), first.finished.map(|at| at + 3 * SECOND));
    assert_eq!(Some(third.arrived), second.finished.map(|at| at + SECOND));
    // Bound to one worker, the shared prefix is found there.
    assert_eq!(outcome.engines.iter().map(|engine| engine.hit_blocks).max(), Some(20));
}

#[test]
fn caches_are_known_by_events_alone() {
    let sessions = || (0..40).map(|at| single(at, at * 2 * SECOND, turn(at % 4, 16, 17, 0))).collect::<Vec<_>>();
    let hits = |event_delay| {
        let outcome = run(FleetConfig { event_delay, ..config() }, "default", sessions());
        outcome.engines.iter().map(|engine| engine.hit_blocks).sum::<u64>()
    };
    // Each of four prefixes is computed once, and found by nine later requests.
    assert_eq!(hits(Some(50 * MILLISECOND)), 4 * 9 * 16);
    assert!(hits(None) < 4 * 9 * 16);
}

#[test]
fn evicted_blocks_are_forgotten() {
    let engine = EngineConfig { kv_blocks: 40, ..EngineConfig::default() };
    let config = FleetConfig { workers: 2, engine, ..config() };
    // Two prompts of one prefix; in between, enough others to evict it everywhere.
    let mut sessions = vec![single(0, 0, turn(1, 20, 21, 0))];
    sessions.extend((1..9).map(|at| single(at, at * 3 * SECOND, turn(0, 0, 30, 0))));
    sessions.push(single(9, 60 * SECOND, turn(1, 20, 21, 0)));
    let outcome = run(config, "default", sessions);
    assert!(outcome.engines.iter().all(|engine| engine.evictions > 0));
    assert_eq!(outcome.engines.iter().map(|engine| engine.hit_blocks).sum::<u64>(), 0);
}

#[test]
fn a_router_queue_holds_requests_until_workers_have_room() {
    let sessions = || (0..30).map(|at| single(at, at * MILLISECOND, turn(0, 0, 16, 0))).collect::<Vec<_>>();
    let outcome = run(config(), "default:queue=0", sessions());
    assert!(outcome.requests.iter().all(|record| record.finished.is_some()));
    // Every request that had to wait was polled again.
    assert!(outcome.decisions > 30, "{} decisions", outcome.decisions);
    let waited = outcome.engines.iter().map(|engine| engine.peak_waiting).max();
    let alone = run(config(), "default", sessions());
    assert!(waited < alone.engines.iter().map(|engine| engine.peak_waiting).max(), "{waited:?} waited at an engine");
}

#[test]
fn selectors_know_of_each_others_bookings_after_the_lag() {
    let sessions = || (0..80).map(|at| single(at, at * 20 * MILLISECOND, turn(0, 0, 16, 0))).collect::<Vec<_>>();
    let with = |mesh_lag| {
        let config = FleetConfig { workers: 8, replicas: 4, mesh_lag, ..config() };
        imbalance(&run(config, "default", sessions()))
    };
    let (synced, apart) = (with(Some(5 * MILLISECOND)), with(None));
    assert!(synced < 1.05 && apart > 1.05, "{synced} with sync, {apart} without");
}

#[test]
fn requests_no_engine_can_hold_are_refused_and_freed() {
    let engine = EngineConfig { kv_blocks: 10, ..EngineConfig::default() };
    let sessions = vec![single(1, 0, turn(0, 0, 20, 0)), single(2, SECOND, turn(0, 0, 5, 0))];
    let outcome = run(FleetConfig { engine, ..config() }, "default", sessions);
    assert_eq!(outcome.refused, 1);
    assert!(outcome.refusal.as_deref().is_some_and(|reason| reason.contains("KV blocks")), "{:?}", outcome.refusal);
    assert_eq!(outcome.requests.iter().filter(|record| record.finished.is_some()).count(), 1);
}

#[test]
fn work_without_end_ends_the_run() {
    let candidate = Candidate::named("work-ahead", &router_plugin_registry()).expect("a known policy");
    let fails = |config: FleetConfig, session: Session| {
        let fleet = Fleet::new(config, &candidate).expect("a fleet");
        fleet.run([Ok(session)].into_iter()).expect_err("no end").to_string()
    };
    // Steps of a minute and more, as slow as engines may be.
    let engine = EngineConfig { step_base: 60 * SECOND, per_token: 1e7, attention: 1e7, ..EngineConfig::default() };
    let slow = FleetConfig { engine, speeds: vec![1e-3], ..config() };
    let answer = Turn { output_tokens: 500_000, ..turn(0, 0, 900, 0) };
    let text = "what was asked of the engines takes more than 200 days";
    assert_eq!(fails(slow.clone(), single(1, 0, answer)), text);
    assert_eq!(fails(slow, single(1, 0, turn(0, 0, 1500, 0))), text);
    // As long as a file may have it between turns, more than once.
    let wait = 99 * 86_400 * SECOND;
    let turns = (0..4).map(|_| turn(0, 0, 2, wait)).collect();
    assert_eq!(fails(config(), Session { id: 1, start: wait, turns }), text);
}

#[test]
fn engines_that_cannot_be_are_refused() {
    let candidate = Candidate::named("default", &router_plugin_registry()).expect("a known policy");
    for (field, config) in [
        ("speed", FleetConfig { speeds: vec![1.0, 1e-9], ..config() }),
        ("per_token", FleetConfig { engine: EngineConfig { per_token: 1e300, ..EngineConfig::default() }, ..config() }),
    ] {
        let error = Fleet::new(config, &candidate).err().map(|error| error.to_string());
        assert_eq!(error, Some(format!("{field} of the engine is out of range")));
    }
}

/// Turns of many sessions in turn: what ends makes room for what comes.
#[test]
fn sessions_that_ended_do_not_mix_with_others() {
    let session = |id: u64| Session {
        id,
        start: id * SECOND / 4,
        turns: (0..id % 4 + 1).map(|_| turn(id, 2, 3, SECOND / 2 + id)).collect(),
    };
    let sessions: Vec<Session> = (0..60).map(session).collect();
    let turns: usize = sessions.iter().map(|session| session.turns.len()).sum();
    let mut thinks: Vec<Nanos> =
        sessions.iter().flat_map(|session| &session.turns[1..]).map(|turn| turn.think).collect();
    let outcome = run(config(), "round-robin", sessions);
    assert_eq!(outcome.requests.len(), turns);
    // Each later turn came its own think time after some request ended.
    let ends: std::collections::BTreeSet<Nanos> =
        outcome.requests.iter().filter_map(|record| record.finished).collect();
    for record in &outcome.requests {
        if let Some(at) = thinks.iter().position(|think| ends.contains(&(record.arrived.saturating_sub(*think)))) {
            thinks.swap_remove(at);
        }
    }
    assert!(thinks.is_empty(), "{thinks:?}");
}

#[test]
fn slow_engines_take_longer() {
    let slow = FleetConfig { workers: 1, speeds: vec![0.5], ..config() };
    let outcome = run(slow, "default", vec![single(1, 0, turn(0, 0, 20, 0))]);
    let expected = 2 * EngineConfig::default().idle_ttft(20 * 512 + 1, 0);
    let first = outcome.requests[0].first_token.expect("a token");
    assert!(first.abs_diff(expected) <= 10, "{first} is not {expected}");
}

#[test]
fn an_observer_hears_what_happens_to_the_selectors() {
    let engine = EngineConfig { kv_blocks: 60, ..EngineConfig::default() };
    let config = FleetConfig { workers: 1, engine, ..config() };
    let first = turn(3, 20, 21, 0);
    let contents: Vec<u64> = first.blocks.iter().map(|&id| content(id)).collect();
    // The second evicts blocks of the first.
    let sessions = vec![single(1, 0, first), single(2, 10 * SECOND, turn(0, 0, 50, 0))];
    let (mut calls, mut stored, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    let mut observe = |event: FleetEvent<'_>| match event {
        FleetEvent::Joined(worker) => calls.push(format!("joined {}", worker.worker_id)),
        FleetEvent::Stored { parent, blocks, .. } => {
            assert_eq!(parent, stored.last().map(|block: &StoredBlock| block.name).filter(|_| stored.len() != 21));
            stored.extend(blocks);
        }
        FleetEvent::Removed { names, .. } => removed.extend_from_slice(names),
        FleetEvent::Asked { request, .. } => {
            let hashes = request.prompt.block_hashes.as_ref().map(Vec::len);
            calls.push(format!("asked {:?} {hashes:?}", request.selection_id));
        }
        FleetEvent::Chosen { answer, .. } => {
            calls.push(format!("chosen {:?} {}", answer.selection_id, answer.worker_id))
        }
        FleetEvent::PrefillComplete { selection_id, booked, .. } => {
            calls.push(format!("{selection_id} began {booked}"))
        }
        FleetEvent::Freed { selection_id, booked, .. } => calls.push(format!("{selection_id} ended {booked}")),
    };
    let candidate = Candidate::named("default", &router_plugin_registry()).expect("a known policy");
    let fleet = Fleet::new(config, &candidate).expect("a fleet").observed_by(&mut observe);
    fleet.run(sessions.into_iter().map(Ok)).expect("a run");
    let request = |number: u32, blocks: u32| {
        let id = format!("r{number}");
        [
            format!("asked Some({id:?}) Some({blocks})"),
            format!("chosen Some({id:?}) 1"),
            format!("{id} began true"),
            format!("{id} ended true"),
        ]
    };
    assert_eq!(calls, [vec!["joined 1".to_owned()], request(0, 21).to_vec(), request(1, 50).to_vec()].concat());
    // What was cached is what prompts consist of, in order.
    assert!(stored.iter().take(21).map(|block| block.local).eq(contents));
    assert!(!removed.is_empty() && removed.iter().all(|name| stored[..21].iter().any(|block| block.name == *name)));
}
