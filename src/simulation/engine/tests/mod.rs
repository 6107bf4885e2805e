//! The engine against an obvious one, against its closed form, and rule by rule.

mod naive;

use std::{collections::HashMap, sync::Arc};

use fastrand::Rng;

use self::naive::Naive;
use super::{Engine, EngineConfig, EngineError, EngineEvent, EngineRequest};
use crate::simulation::{MILLISECOND, Nanos, SECOND};

fn request(id: u32, prompt_tokens: u32, output_tokens: u32, blocks: &[u64]) -> EngineRequest {
    EngineRequest { id, prompt_tokens, output_tokens, blocks: blocks.into() }
}

/// Blocks of one token budget's size, in a cache of ten.
fn small() -> EngineConfig {
    EngineConfig { kv_blocks: 10, ..EngineConfig::default() }
}

fn run_to_end(engine: &mut Engine) -> Vec<EngineEvent> {
    let mut events = Vec::new();
    while let Some(next) = engine.next() {
        engine.run(next, &mut events);
    }
    events
}

fn first_token(events: &[EngineEvent], id: u32) -> Nanos {
    let found = events.iter().find(|event| matches!(event, EngineEvent::FirstToken { request, .. } if *request == id));
    found.expect("it has a first token").at()
}

fn removed(events: &[EngineEvent]) -> Vec<u64> {
    let blocks = events.iter().map(|event| match event {
        EngineEvent::Removed { blocks, .. } => blocks.clone(),
        _ => Vec::new(),
    });
    blocks.collect::<Vec<_>>().concat()
}

/// A tree of prompts: an id stands for its block and the ids before it.
#[derive(Default)]
struct Tree {
    ids: HashMap<(u64, u32), u64>,
}

impl Tree {
    fn chain(&mut self, rng: &mut Rng, blocks: u32, branches: u32) -> Arc<[u64]> {
        let mut parent = 0;
        let chain = (0..blocks).map(|_| {
            let next = self.ids.len() as u64 + 1;
            parent = *self.ids.entry((parent, rng.u32(..branches))).or_insert(next);
            parent
        });
        chain.collect()
    }
}

#[test]
fn steps_are_those_of_an_obvious_engine() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for _ in 0..300 {
        compare(&mut rng);
    }
}

fn compare(rng: &mut Rng) {
    let block_size = rng.u32(1..6);
    let token_budget = rng.u32(4..40);
    let config = EngineConfig {
        token_budget,
        block_size,
        kv_blocks: rng.u32(20..60),
        max_sequences: rng.u32(1..=token_budget.min(9)),
        step_base: rng.u64(1..5000),
        step_floor: rng.u64(1..5000),
        per_token: rng.f64() * 500.0,
        attention: rng.f64() * 3.0,
        decode_context: rng.f64() * 3.0,
        speed: if rng.bool() { 1.0 } else { 0.25 + rng.f64() * 3.0 },
    };
    let (mut engine, mut naive, mut tree) = (Engine::new(&config), Naive::new(&config), Tree::default());
    let (mut events, mut expected) = (Vec::new(), Vec::new());
    let mut now = 0;
    let pace = rng.u64(10..200_000);
    let branches = rng.u32(1..4);
    for id in 0..rng.u32(1..60) {
        // Often several in a row, sometimes after a pause in which all ends.
        now += if rng.u32(..3) == 0 { 0 } else { rng.u64(..pace) };
        for _ in 0..rng.u32(..3) {
            let Some(next) = engine.next() else { break };
            if next >= now {
                break;
            }
            let heard = events.len();
            engine.run(next - 1, &mut events);
            assert_eq!(events.len(), heard, "nothing is heard before the time that was told");
            engine.run(next, &mut events);
        }
        engine.run(now, &mut events);
        naive.run(now, &mut expected);
        let blocks = rng.u32(..8);
        let prompt = (blocks * block_size + rng.u32(..block_size)).max(1);
        let output_tokens = rng.u32(1..40);
        let answer = if rng.bool() { output_tokens - 1 } else { 0 };
        let blocks = tree.chain(rng, (prompt + answer) / block_size, branches);
        let request = EngineRequest { id, prompt_tokens: prompt, output_tokens, blocks };
        let fits = (prompt + request.output_tokens).div_ceil(block_size) <= config.kv_blocks;
        assert_eq!(engine.submit(request.clone(), now).is_ok(), fits);
        if fits {
            naive.submit(request, now);
        }
    }
    events.extend(run_to_end(&mut engine));
    naive.run(Nanos::MAX, &mut expected);
    assert_eq!(events, expected, "{config:?}");
    assert_eq!(engine.stats(), naive.stats, "{config:?}");
    assert_eq!((engine.running(), engine.waiting()), (0, 0));
}

#[test]
fn nearly_idle_engines_answer_in_the_closed_form() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let config = EngineConfig { kv_blocks: u32::MAX, ..EngineConfig::default() };
    let mut engine = Engine::new(&config);
    let (mut events, mut tree) = (Vec::new(), Tree::default());
    let (mut arrivals, mut idle) = (Vec::new(), Vec::new());
    let mut now = 0;
    let mut seen = std::collections::HashSet::new();
    // 8,000 tokens every 32 s are 2 % of 12,500 a second, and an answer of 100 tokens takes 1.5 s.
    for id in 0..1500 {
        now += (-(1.0 - rng.f64()).ln() * 32.0 * SECOND as f64) as Nanos;
        let prompt = rng.u32(1..16_000);
        let blocks = tree.chain(&mut rng, prompt / config.block_size, 2);
        let cached = blocks.iter().take_while(|id| seen.contains(*id)).count() as u32 * config.block_size;
        seen.extend(blocks.iter().copied());
        arrivals.push(now);
        idle.push(config.idle_ttft(prompt, cached));
        engine.run(now, &mut events);
        engine.submit(EngineRequest { id, prompt_tokens: prompt, output_tokens: 100, blocks }, now).unwrap();
    }
    events.extend(run_to_end(&mut engine));
    let late = |id: u32| first_token(&events, id).abs_diff(arrivals[id as usize] + idle[id as usize]);
    let mut late: Vec<Nanos> = (0..1500).map(late).collect();
    late.sort_unstable();
    // Most meet nobody. The others wait for the end of a step that decodes, or for a prefill.
    assert!(late[750] <= 1 && late[1350] <= 20 * MILLISECOND, "{} and {} ns off", late[750], late[1350]);
}

#[test]
fn idle_ttft_is_the_sum_of_its_chunks() {
    let config = EngineConfig::default();
    // 3 ms + 15 us of tokens below the floor of 12 ms, and a pair of attention is nothing to speak of.
    assert_eq!(config.idle_ttft(1, 0), 15 * MILLISECOND + 1);
    // Two chunks of 2,048 with mean contexts of 1,024 and 3,072.
    let attention = (2048 * 1024 + 2048 * 3072) * 3 / 2;
    assert_eq!(config.idle_ttft(4096, 0), 2 * (3 * MILLISECOND + 2048 * 75_000) + attention);
    // A prompt that is cached whole computes its last token, after a context of 1,023.5.
    assert_eq!(config.idle_ttft(1024, 1024), 15 * MILLISECOND + 1536);
    let slow = EngineConfig { speed: 0.5, ..config.clone() };
    assert_eq!(slow.idle_ttft(4096, 0), 2 * config.idle_ttft(4096, 0));
}

#[test]
fn blocks_can_be_hit_after_the_step_that_computed_them() {
    let mut engine = Engine::new(&EngineConfig::default());
    engine.submit(request(0, 100, 1, &[]), 0).unwrap();
    // Both wait for the step under way, share the next, and compute the same block twice.
    engine.submit(request(1, 600, 50, &[7]), 0).unwrap();
    engine.submit(request(2, 600, 50, &[7]), 0).unwrap();
    let mut events = run_to_end(&mut engine);
    assert_eq!(engine.stats().hit_blocks, 0);
    let stored = events.iter().filter(|event| matches!(event, EngineEvent::Stored { .. })).count();
    assert_eq!(stored, 1, "the second copy is not announced");
    let now = events.last().unwrap().at();
    engine.submit(request(3, 1100, 1, &[7, 8]), now).unwrap();
    events = run_to_end(&mut engine);
    assert_eq!(engine.stats().hit_blocks, 1);
    let at = events[0].at();
    assert_eq!(events[0], EngineEvent::Stored { at, parent: Some(7), blocks: vec![8] });
}

#[test]
fn pinned_blocks_stay_and_tails_go_first() {
    let mut engine = Engine::new(&small());
    engine.submit(request(0, 4 * 512, 1, &[1, 2, 3, 4]), 0).unwrap();
    let now = run_to_end(&mut engine).last().unwrap().at();
    // Hits and pins the head of the chain, and runs for long.
    engine.submit(request(1, 2 * 512 + 1, 500, &[1, 2]), now).unwrap();
    let mut events = Vec::new();
    engine.run(now + 100 * MILLISECOND, &mut events);
    assert_eq!(engine.running(), 1);
    // Needs 6 of the 7 that are left, 5 of which are free.
    engine.submit(request(2, 6 * 512 - 1, 1, &[11, 12, 13, 14, 15]), now + 100 * MILLISECOND).unwrap();
    engine.run(now + 2 * SECOND, &mut events);
    assert_eq!(removed(&events), [4]);
    // Nothing but what is pinned is left to it: it waits until the other ends.
    engine.submit(request(3, 9 * 512, 1, &[]), now + 2 * SECOND).unwrap();
    engine.run(now + 3 * SECOND, &mut events);
    assert_eq!((engine.running(), engine.waiting()), (1, 1));
    events.extend(run_to_end(&mut engine));
    assert_eq!(removed(&events), [4, 3, 15, 14, 13, 12, 11, 2, 1]);
}

#[test]
fn nobody_overtakes_the_first_that_waits() {
    let mut engine = Engine::new(&small());
    engine.submit(request(0, 6 * 512, 512, &[]), 0).unwrap();
    // 5 blocks do not fit beside 7, 1 would.
    engine.submit(request(1, 4 * 512, 512, &[]), 0).unwrap();
    engine.submit(request(2, 100, 1, &[]), 0).unwrap();
    let mut events = Vec::new();
    engine.run(2 * SECOND, &mut events);
    assert_eq!((engine.running(), engine.waiting()), (1, 2));
    events.extend(run_to_end(&mut engine));
    let end = events.iter().find(|event| matches!(event, EngineEvent::Finished { request: 0, .. })).unwrap().at();
    assert!(first_token(&events, 1) > end);
    assert!(first_token(&events, 2) > end);
}

#[test]
fn prefills_take_what_decodes_leave_in_order() {
    let config = EngineConfig { token_budget: 100, ..EngineConfig::default() };
    let mut engine = Engine::new(&config);
    engine.submit(request(0, 100, 50, &[]), 0).unwrap();
    engine.submit(request(1, 150, 2, &[]), 0).unwrap();
    engine.submit(request(2, 40, 2, &[]), 0).unwrap();
    let events = run_to_end(&mut engine);
    // Steps: 100 of the first; 99 of the second; its other 51, 40 of the third; 3 that decode.
    let starts: Vec<Nanos> = (0..3).map(|id| first_token(&events, id)).collect();
    assert!(starts[0] < starts[1] && starts[1] == starts[2], "{starts:?}");
    assert_eq!(engine.stats().computed_prefill_tokens, 290);
    assert_eq!(engine.stats().steps, 50);
}

#[test]
fn an_answer_completes_blocks_for_the_next_turn() {
    let mut engine = Engine::new(&small());
    // The last of 25 tokens is not computed: 1,024 are there.
    engine.submit(request(0, 1000, 25, &[7, 8]), 0).unwrap();
    let events = run_to_end(&mut engine);
    let stored = events.iter().filter_map(|event| match event {
        EngineEvent::Stored { at, parent, blocks } => Some((*at, *parent, blocks.clone())),
        _ => None,
    });
    let stored: Vec<_> = stored.collect();
    let end = events.last().unwrap().at();
    assert_eq!((engine.stats().prompt_blocks, stored.len()), (1, 2));
    assert_eq!(stored[1], (end, Some(7), vec![8]));
    engine.submit(request(1, 1100, 1, &[7, 8]), end).unwrap();
    run_to_end(&mut engine);
    assert_eq!(engine.stats().hit_blocks, 2);
    let error = engine.submit(request(2, 1000, 24, &[1, 2]), end).unwrap_err();
    assert_eq!(error, EngineError::Blocks { tokens: 1023, blocks: 2 });
}

#[test]
fn what_could_never_run_is_refused() {
    let mut engine = Engine::new(&small());
    let error = engine.submit(request(0, 10 * 512, 1, &[]), 0).unwrap_err();
    assert_eq!(error, EngineError::TooLarge { needed: 11, available: 10 });
    assert_eq!(error.to_string(), "request needs 11 KV blocks, the engine has 10");
    let error = engine.submit(request(0, 1023, 1, &[1, 2]), 0).unwrap_err();
    assert_eq!(error, EngineError::Blocks { tokens: 1023, blocks: 2 });
    assert_eq!(engine.next(), None);
    engine.submit(request(0, 10 * 512 - 1, 1, &[]), 0).unwrap();
}

#[test]
fn configurations_out_of_range_are_named() {
    let good = EngineConfig::default();
    assert_eq!(good.check(), Ok(()));
    let cases = [
        ("token_budget", EngineConfig { token_budget: 0, ..good.clone() }),
        ("step_base", EngineConfig { step_base: 61 * SECOND, ..good.clone() }),
        ("per_token", EngineConfig { per_token: f64::NAN, ..good.clone() }),
        ("attention", EngineConfig { attention: -1.0, ..good.clone() }),
        ("kv_blocks", EngineConfig { kv_blocks: 0, ..good.clone() }),
        ("block_size", EngineConfig { block_size: 0, ..good.clone() }),
        ("speed", EngineConfig { speed: 0.0, ..good.clone() }),
    ];
    for (field, config) in cases {
        assert_eq!(config.check(), Err(EngineError::Config { field }));
    }
}
