//! Traces, written here and refused or read; generated workloads; and what both are made of.

use std::{collections::HashSet, fmt::Write as _, io::Write as _, path::Path, sync::Arc};

use fastrand::Rng;
use tempfile::NamedTempFile;

use super::{BLOCK_SIZE, Demand, Generator, Load, Profile, Session, Trace, Workload, WorkloadError, blocks::BlockSet};
use crate::simulation::{
    MILLISECOND, Nanos, SECOND,
    engine::{Engine, EngineConfig, EngineRequest},
};

fn demand(load: Load, seed: u64) -> Demand {
    Demand { workers: 8, load, seed, jitter: None }
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn open(file: &NamedTempFile) -> Result<Trace, WorkloadError> {
    Trace::open("trace", file.path(), Trace::CONVERSATION_LEVELS)
}

fn all(trace: &Trace, demand: &Demand) -> Vec<Session> {
    trace.sessions(demand).unwrap().map(|session| session.unwrap()).collect()
}

/// Requests at `times`, in milliseconds, of two blocks each that nobody shares.
fn strangers(times: impl IntoIterator<Item = u64>) -> NamedTempFile {
    let mut text = String::new();
    for (place, time) in times.into_iter().enumerate() {
        let (first, second) = (2 * place, 2 * place + 1);
        let line = format!(r#""input_length": 1000, "output_length": 5, "hash_ids": [{first}, {second}]"#);
        writeln!(text, r#"{{"timestamp": {time}, {line}}}"#).unwrap();
    }
    file(&text)
}

#[test]
fn lines_become_requests() {
    let text = r#"{"timestamp": 50, "input_length": 1536, "output_length": 3, "hash_ids": [4, 5, 6]}

        {"hash_ids": [4, 5, 6, 7], "chat": "x", "timestamp": 60.0, "input_length": 1537, "output_length": 1}
        {"timestamp": 1050, "input_length": 1024, "output_length": 1, "hash_ids": [4, 5]}"#;
    let trace = open(&file(text)).unwrap();
    // The second has all but a token cached, the third all, and computes its last token.
    assert_eq!(trace.summary().uncached_tokens, 1536 + 1 + 1);
    assert_eq!((trace.summary().requests, trace.summary().span), (3, SECOND));
    assert_eq!(trace.summary().quantum, None);
    // As many tokens as eight workers compute in a second of full load are 8 times 12,500.
    let share = 1538.0 / (8.0 * 12_500.0);
    let file = file(text);
    let sessions = all(&open(&file).unwrap(), &demand(Load::Share(share), 1));
    let starts: Vec<Nanos> = sessions.iter().map(|session| session.start).collect();
    assert_eq!(starts, [0, 10 * MILLISECOND, SECOND]);
    let prompts: Vec<_> = sessions.iter().map(|session| session.turns[0].blocks.to_vec()).collect();
    assert_eq!(prompts, [vec![4, 5, 6], vec![4, 5, 6], vec![4, 5]], "what is not full is dropped");
    assert_eq!(sessions[1].turns[0].prompt_tokens, 1537);
    assert_eq!(sessions[0].turns[0].output_tokens, 3);
    assert_eq!(sessions[0].id, sessions[1].id, "three shared blocks are a session");
    assert_ne!(sessions[0].id, sessions[2].id, "two are not");
}

#[test]
fn cached_blocks_end_where_the_first_is_new() {
    let mut seen = BlockSet::default();
    assert_eq!(seen.extend(&[1, 2, 700, 3]), 0);
    assert_eq!(seen.extend(&[1, 2, 9, 3]), 2);
    assert_eq!(seen.extend(&[700, u64::MAX]), 1);
    assert_eq!(seen.extend(&[u64::MAX, 9]), 2);
}

#[test]
fn bad_lines_are_refused_with_their_number() {
    let good = r#"{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}"#;
    let long = format!(r#"{{"timestamp": 5, "pad": "{}"}}"#, " ".repeat(1 << 20));
    let cases = [
        (r#"{"timestamp": 5, "input_length": 600"#, "EOF while parsing an object, column 36"),
        (r#"{"timestamp": 5, "input_length": 600, "output_length": 3}"#, "missing field `hash_ids`, column 57"),
        (
            r#"{"timestamp": 5, "input_length": -1, "output_length": 3, "hash_ids": []}"#,
            "invalid value: integer `-1`, expected u32, column 35",
        ),
        (
            r#"{"timestamp": 4, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}"#,
            "timestamp 4 is negative, too large or earlier than the one before",
        ),
        (
            r#"{"timestamp": 1e15, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}"#,
            "timestamp 1000000000000000 is negative, too large or earlier than the one before",
        ),
        (r#"{"timestamp": 5, "input_length": 0, "output_length": 3, "hash_ids": []}"#, "input_length is 0"),
        (r#"{"timestamp": 5, "input_length": 600, "output_length": 0, "hash_ids": [1, 2]}"#, "output_length is 0"),
        (
            r#"{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1]}"#,
            "1 hash_ids for an input_length of 600, which has 2 blocks of 512",
        ),
        (&long, "longer than 1048576 bytes"),
    ];
    for (line, expected) in cases {
        let file = file(&format!("\n{good}\n{line}\n{good}\n"));
        let WorkloadError::Line { line, source, .. } = open(&file).unwrap_err() else { panic!("{expected}") };
        assert_eq!((line, source.to_string().as_str()), (3, expected));
    }
    assert!(matches!(open(&file("\n \n")), Err(WorkloadError::Empty { .. })));
    let nowhere = Trace::open("trace", Path::new("/nowhere/at/all"), Trace::CONVERSATION_LEVELS);
    assert!(matches!(nowhere, Err(WorkloadError::Io { .. })));
}

#[test]
fn rounded_timestamps_are_found_out() {
    // Three a step of 3 s, by a clock that is a little off, and steps without any.
    let rounded = (0..300).filter(|place| place / 3 % 7 != 0).map(|place| place / 3 * 3000 - u64::from(place > 20));
    assert_eq!(open(&strangers(rounded)).unwrap().summary().quantum, Some(3 * SECOND));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let mut time = 0;
    let free = (0..300).map(|_| {
        time += rng.u64(..3000);
        time
    });
    assert_eq!(open(&strangers(free)).unwrap().summary().quantum, None);
    assert_eq!(open(&strangers([7; 10])).unwrap().summary().quantum, None);
}

#[test]
fn jitter_spreads_requests_over_the_step_and_keeps_their_order_of_time() {
    let file = strangers((0..900).map(|place| place / 9 * 3000));
    let trace = open(&file).unwrap();
    // 900,000 tokens in 300 s, which is what the timestamps span with the last step: time as it is.
    let load = Load::Rate(3.0);
    let sessions = all(&trace, &demand(load, 1));
    assert!(sessions.is_sorted_by_key(|session| session.start));
    let place = |session: &Session| session.turns[0].blocks[0] / 2;
    let places: HashSet<u64> = sessions.iter().map(place).collect();
    assert_eq!(places.len(), 900);
    let late: Vec<f64> =
        sessions.iter().map(|session| session.start as f64 / SECOND as f64 - (place(session) / 9 * 3) as f64).collect();
    assert!(late.iter().all(|&late| (-0.001..3.001).contains(&late)));
    let mean = late.iter().sum::<f64>() / 900.0;
    assert!((1.3..1.7).contains(&mean), "{mean}");
    assert_eq!(all(&trace, &demand(load, 1)), sessions, "a seed says all");
    assert_ne!(all(&trace, &demand(load, 2)), sessions);
    let plain = all(&trace, &Demand { jitter: Some(0), ..demand(load, 1) });
    assert!(plain.iter().map(place).eq(0..900), "without jitter the order is that of the file");
    // Beyond the step, requests pass those of later steps.
    let wild = all(&trace, &Demand { jitter: Some(100 * SECOND), ..demand(load, 1) });
    assert!(wild.is_sorted_by_key(|session| session.start) && !wild.iter().map(place).is_sorted());
}

#[test]
fn traces_are_brought_to_a_load() {
    let file = strangers((0..500).map(|place| place * 77));
    let trace = open(&file).unwrap();
    let end = |demand: &Demand| all(&trace, demand).last().unwrap().start as f64 / SECOND as f64;
    // 1,000 tokens each, none of them cached.
    let level = end(&demand(Load::Level(1), 1));
    assert!((level - 500_000.0 / (0.28 * 8.0 * 12_500.0)).abs() < 0.01, "{level}");
    let more = end(&Demand { workers: 32, ..demand(Load::Level(1), 1) });
    assert!((level / more - 4.0).abs() < 1e-6);
    assert!((end(&demand(Load::Rate(20.0), 1)) - 25.0).abs() < 0.01);
    let refused = |load| trace.sessions(&demand(load, 1)).err().unwrap();
    assert!(matches!(refused(Load::Level(0)), WorkloadError::Level { level: 0 }));
    assert!(matches!(refused(Load::Level(5)), WorkloadError::Level { level: 5 }));
    assert!(matches!(refused(Load::Share(0.0)), WorkloadError::Load));
    assert!(matches!(refused(Load::Rate(f64::NAN)), WorkloadError::Load));
    assert!(matches!(refused(Load::Rate(1e-5)), WorkloadError::Span { .. }));
}

#[test]
fn a_trace_that_changes_is_an_error_and_the_end() {
    let trace = strangers(0..5);
    let opened = open(&trace).unwrap();
    std::fs::write(trace.path(), "{}\n{}\n").unwrap();
    let mut sessions = opened.sessions(&demand(Load::Level(1), 1)).unwrap();
    assert!(matches!(sessions.next(), Some(Err(WorkloadError::Line { line: 1, .. }))));
    assert!(sessions.next().is_none());
}

/// What each generated workload would give an idle fleet with a shared cache without bound: time to the first token at
/// p50, p90 and p99 in seconds.
const IDLE: [(Generator, [f64; 3]); 4] = [
    (Generator::Tenants, [0.08, 0.30, 0.84]),
    (Generator::Agentic, [0.20, 0.29, 0.42]),
    (Generator::Hot, [0.08, 0.36, 1.18]),
    (Generator::Decode, [0.07, 0.27, 0.76]),
];

/// A file that lost or gained lines between two complete ones ends too early or too late.
#[test]
fn a_trace_of_another_length_is_no_trace() {
    for (before, now) in [(4, 3), (3, 4), (2, 0)] {
        let file = strangers(0..before);
        let trace = open(&file).unwrap();
        std::fs::copy(strangers(0..now).path(), file.path()).unwrap();
        let sessions: Vec<_> = trace.sessions(&demand(Load::Share(0.1), 1)).unwrap().collect();
        let error = sessions.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(error.ends_with(&format!("it had {before} requests, and now {now}")), "{error}");
        assert_eq!(sessions.iter().filter(|session| session.is_err()).count(), 1);
    }
    let folder = tempfile::tempdir().unwrap();
    let error = Trace::open("trace", folder.path(), Trace::CONVERSATION_LEVELS).unwrap_err();
    assert!(matches!(error, WorkloadError::NoFile { .. }), "{error}");
}

#[test]
fn files_of_other_systems_are_read() {
    let text = "\u{feff}{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [1, 2]}\r\n\r\n\
                {\"timestamp\": 6, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [1, 2]}\r\n";
    assert_eq!(open(&file(text)).unwrap().summary().requests, 2);
    let error = open(&file(&text.replace("600", "0"))).unwrap_err();
    assert!(matches!(error, WorkloadError::Line { line: 1, .. }), "{error}");
}

#[test]
fn equal_timestamps_with_fractions_are_equal() {
    // Milliseconds since 1970, as a clock with microseconds has them.
    for fraction in 0..40 {
        let time = 1_700_000_000_000.0 + f64::from(fraction) * 0.037;
        let line =
            |time: f64| format!(r#"{{"timestamp": {time}, "input_length": 9, "output_length": 3, "hash_ids": [1]}}"#);
        let text = format!("{}\n{}\n{}\n", line(1_700_000_000_000.0), line(time), line(time));
        assert!(open(&file(&text)).is_ok(), "{text}");
    }
}

#[test]
fn loads_that_no_run_can_have_are_refused() {
    for generator in Generator::ALL {
        let refused = |load| generator.sessions(&demand(load, 1)).err().map(|error| error.to_string());
        let text = refused(Load::Rate(1e6)).expect("refused");
        assert!(text.contains("are more than 50000000 a run"), "{text}");
        assert!(refused(Load::Share(f64::MAX)).is_some_and(|text| text.contains("are more than")));
        for rare in [Load::Rate(1e-7), Load::Rate(f64::MIN_POSITIVE), Load::Share(1e-300)] {
            assert_eq!(refused(rare).as_deref(), Some("requests would arrive over more than 100 days at this load"));
        }
        assert_eq!(generator.sessions(&demand(Load::Rate(1e-2), 1)).unwrap().count().min(1), 1);
    }
}

fn seconds(profile: &Profile) -> [f64; 3] {
    [0.5, 0.9, 0.99].map(|quantile| profile.ttft(quantile) as f64 / SECOND as f64)
}

#[test]
fn generated_workloads_have_their_idle_times() {
    for (generator, expected) in IDLE {
        for seed in 1..=3 {
            let sessions = generator.sessions(&demand(Load::Level(2), seed)).unwrap();
            let found = seconds(&Profile::of(sessions, &EngineConfig::default()).unwrap());
            println!("{} seed {seed}: {found:.3?}", generator.name());
            for ((found, expected), tolerance) in found.into_iter().zip(expected).zip([0.1, 0.1, 0.15]) {
                assert!((found / expected - 1.0).abs() < tolerance, "{found} for {expected}");
            }
        }
    }
}

#[test]
fn generated_workloads_have_their_rate_and_are_of_one_seed() {
    for generator in Generator::ALL {
        let workload = Workload::Generated(generator);
        let of = |demand: &Demand| -> Vec<Session> {
            workload.sessions(demand).unwrap().map(|session| session.unwrap()).collect()
        };
        let asked = demand(Load::Share(0.5), 7);
        let sessions = of(&asked);
        assert!(sessions.is_sorted_by_key(|session| session.start));
        assert_eq!(of(&asked), sessions, "{generator:?}");
        assert_ne!(of(&Demand { seed: 8, ..asked }), sessions, "{generator:?}");
        let requests: usize = sessions.iter().map(|session| session.turns.len()).sum();
        let expected = workload.expected_requests(&asked).unwrap();
        assert!((requests as f64 / expected as f64 - 1.0).abs() < 0.05, "{generator:?}: {requests} of {expected}");
        // Bursts bring those of the hot prefix a little faster.
        let seconds = sessions.last().unwrap().start as f64 / SECOND as f64;
        assert!((0.8..1.1).contains(&(seconds / generator.duration())), "{generator:?}: {seconds} s");
        let rate = requests as f64 / seconds;
        let relative = rate / (0.5 * generator.base_rate() * 8.0);
        assert!((0.9..1.25).contains(&relative), "{generator:?}: {relative}");
        let four = of(&Demand { workers: 32, ..asked });
        assert!((four.len() as f64 / sessions.len() as f64 - 4.0).abs() < 0.01, "{generator:?}");
        for turn in sessions.iter().flat_map(|session| &session.turns) {
            assert_eq!(turn.blocks.len() as u32, turn.prompt_tokens / BLOCK_SIZE);
            assert!(turn.output_tokens > 0);
        }
    }
}

#[test]
fn turns_of_a_session_extend_the_one_before() {
    let sessions = Generator::Agentic.sessions(&demand(Load::Level(1), 1)).unwrap();
    for session in sessions.take(50).map(|session| session.unwrap()) {
        assert_eq!(session.turns[0].think, 0);
        for pair in session.turns.windows(2) {
            assert!(pair[1].blocks.starts_with(&pair[0].blocks));
            let new = pair[1].prompt_tokens - pair[0].prompt_tokens - pair[0].output_tokens;
            assert!((800..=2000).contains(&new), "{new}");
        }
    }
}

/// The published traces are not part of the repository; `POINTSMAN_TRACES` names a folder that has them.
#[test]
fn published_traces_have_their_idle_times_and_hits() {
    let Some(folder) = std::env::var_os("POINTSMAN_TRACES") else {
        println!("skipped: POINTSMAN_TRACES is not set");
        return;
    };
    let open = |file: &str, levels| Trace::open(file, Path::new(&folder).join(file), levels).unwrap();
    let conversation = open("conversation_trace.jsonl", Trace::CONVERSATION_LEVELS);
    let synthetic = open("synthetic_trace.jsonl", Trace::SYNTHETIC_LEVELS);
    assert_eq!(conversation.summary().quantum, Some(3 * SECOND));
    assert_eq!(synthetic.summary().quantum, None);
    for (trace, expected) in [(&conversation, [0.21, 1.78, 9.41]), (&synthetic, [0.04, 1.74, 5.66])] {
        let file_order = Demand { jitter: Some(0), ..demand(Load::Level(1), 1) };
        let profile = Profile::of(trace.sessions(&file_order).unwrap(), &EngineConfig::default()).unwrap();
        assert_eq!(profile.uncached_tokens, trace.summary().uncached_tokens);
        let found = seconds(&profile);
        println!("{}: {found:.3?}", trace.name());
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found - expected).abs() < 0.005 + expected * 0.005, "{found} for {expected}");
        }
    }
    let rate = unbounded_hit_rate(&conversation);
    println!("hit rate of eight workers {rate:.4}");
    // One cache for all would have 0.382.
    assert!((0.35..0.382).contains(&rate), "{rate}");
}

/// Share of the complete blocks that eight workers find in caches without bound, each session on one of them.
fn unbounded_hit_rate(trace: &Trace) -> f64 {
    let config = EngineConfig { kv_blocks: u32::MAX, ..EngineConfig::default() };
    let mut engines: Vec<Engine> = (0..8).map(|_| Engine::new(&config)).collect();
    let mut events = Vec::new();
    for (id, session) in all(trace, &demand(Load::Level(1), 1)).into_iter().enumerate() {
        let engine = &mut engines[(session.id % 8) as usize];
        engine.run(session.start, &mut events);
        events.clear();
        let turn = &session.turns[0];
        let request = EngineRequest {
            id: id as u32,
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            blocks: Arc::clone(&turn.blocks),
        };
        engine.submit(request, session.start).unwrap();
    }
    let (mut hits, mut blocks) = (0, 0);
    for engine in &mut engines {
        engine.run(Nanos::MAX, &mut events);
        assert_eq!(engine.next(), None);
        hits += engine.stats().hit_blocks;
        blocks += engine.stats().prompt_blocks;
    }
    hits as f64 / blocks as f64
}
