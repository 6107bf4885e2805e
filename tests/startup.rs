//! What starts a selector, what is refused, and with which exit code and words.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod program;

use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::Signal;
use program::{Program, Selector, command};
use serde_json::Value;

/// Exit code and standard error of a command that must end by itself.
fn refused(flags: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let mut words = vec!["selector", "--host", "127.0.0.1", "--port", "0"];
    words.extend_from_slice(flags);
    let mut program = Program::start(directory.path(), &words, variables);
    let status = program.exit();
    (status.code(), program.log())
}

#[track_caller]
fn assert_refused(flags: &[&str], variables: &[(&str, &str)], code: i32, part: &str) {
    let (status, text) = refused(flags, variables);
    assert_eq!(status, Some(code), "{flags:?} {variables:?}\n{text}");
    assert!(text.contains(part), "{flags:?} {variables:?}: no {part:?} in\n{text}");
}

#[test]
fn flags_that_cannot_be_parsed_exit_with_two() {
    for (flags, part) in [
        (&["--bogus"][..], "unexpected argument '--bogus'"),
        (&["--runtime-threads", "x"], "invalid value 'x'"),
        (&["--threads", "-1"], "unexpected argument"),
        (&["--replica-sync-port", "0"], "port must be greater than zero"),
        (&["--replica-sync-peers", "tcp://a:1"], "--replica-sync-port"),
        (&["--router-assume-kv-reuse", "--no-router-assume-kv-reuse"], "cannot be used with"),
        (&["--selection-cache-max-entries=-1"], "invalid digit found in string"),
        (
            &["--router-tracking-hash", "foo"],
            "router_tracking_hash must be public-xxh3-v1 or keyed-xxh3-v1, got \"foo\"",
        ),
        (&["--catalog-name", "a/b"], "catalog name"),
        (&["--ready-requires", "luck"], "`luck`"),
    ] {
        assert_refused(flags, &[], 2, part);
    }
}

#[test]
fn settings_that_are_refused_exit_with_one() {
    for (variable, value, part) in [
        ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "-1", "overlap_score_credit must be a finite, non-negative number"),
        ("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", "2", "host_cache_hit_weight must be between 0 and 1"),
        ("DYN_ROUTER_QUEUE_THRESHOLD", "nan", "router_queue_threshold must be greater than or equal to 0"),
        ("DYN_ROUTER_TEMPERATURE", "-0.5", "router_temperature must be finite and non-negative"),
        ("DYN_ROUTER_APPROXIMATE_CACHE_POLICY", "lru", "lru requires use_kv_events=false"),
        ("DYN_ROUTER_TRACKING_HASH", "foo", "got \"foo\""),
        (
            "DYN_ROUTER_POLICY_CONFIG",
            "/nonexistent/p.yaml",
            "failed to read router policy config /nonexistent/p.yaml: ",
        ),
        ("DYN_ROUTER_POLICY_CONFIG", "/dev/null", "router policy config must define router settings"),
    ] {
        assert_refused(&[], &[(variable, value)], 1, part);
    }
    assert_refused(
        &["--router-predicted-ttl-secs", "1", "--no-router-kv-events"],
        &[],
        1,
        "router_predicted_ttl_secs requires use_kv_events=true",
    );
    let peers = ["--replica-sync-port", "9092", "--replica-sync-peers", "nonsense"];
    assert_refused(&peers, &[], 1, "invalid replica peer endpoint `nonsense`");
    assert_refused(&["--session-affinity-ttl-secs", "31536001"], &[], 1, "between 1 and 31536000");
    assert_refused(&["--admin-token-file", "/nonexistent/token"], &[], 1, "admin token file /nonexistent/token");
}

#[test]
fn a_port_that_is_taken_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let first = Selector::start(directory.path(), &[], &[]);
    let port = first.address.port().to_string();
    let mut second = Program::start(directory.path(), &["selector", "--host", "127.0.0.1", "--port", &port], &[]);
    assert_eq!(second.exit().code(), Some(1));
    assert!(second.log().contains(&format!("cannot listen on 127.0.0.1:{port}: ")), "{}", second.log());
}

#[test]
fn deprecated_names_act_and_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let selector = Selector::start(directory.path(), &[], &[("DYN_ROUTER_TEMPERATURE", "0.25")]);
    let log = selector.program.log();
    assert!(log.contains("DYN_ROUTER_TEMPERATURE is deprecated"), "{log}");
    assert!(log.contains("router_temperature: 0.25"), "{log}");
}

#[test]
fn a_tracking_key_never_reaches_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key-file-name");
    std::fs::write(&key, [0x41; 32]).unwrap();
    let flags = [
        "--router-tracking-hash",
        "keyed-xxh3-v1",
        "--router-tracking-key-id",
        "epoch-7",
        "--router-tracking-key-file",
    ];
    let mut flags = flags.to_vec();
    flags.push(key.to_str().unwrap());
    let selector = Selector::start(directory.path(), &flags, &[]);
    let log = selector.program.log();
    assert!(log.contains("epoch-7"), "{log}");
    for secret in ["key-file-name", "AAAA", "65, 65", "4141"] {
        assert!(!log.contains(secret), "{secret} in\n{log}");
    }
}

#[test]
fn both_signals_end_it_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("workers.yaml");
        std::fs::write(&file, "version: 1\nworkers: []\n").unwrap();
        let mut selector = Selector::start(directory.path(), &["--workers-file", file.to_str().unwrap()], &[]);
        selector.program.signal(signal);
        let status = selector.program.exit();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{}", selector.program.log());
        assert!(!program::is_open(selector.address.port()));
    }
}

#[test]
fn logs_can_be_json_lines() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["selector", "--host", "127.0.0.1", "--port", "0", "--log-format", "json"];
    let program = Program::start(directory.path(), &words, &[]);
    let line = program::wait_for("the line that tells the address", || {
        let log = program.log();
        log.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()).find(|l| l["message"] == "listening")
    });
    assert!(line["address"].as_str().is_some_and(|a| a.starts_with("127.0.0.1:")), "{line}");
}

#[test]
fn a_log_filter_that_cannot_be_read_is_refused_and_an_inherited_one_is_not() {
    assert_refused(&["--log", "a=b=c"], &[], 1, "invalid log filter");
    let directory = tempfile::tempdir().unwrap();
    Selector::start(directory.path(), &[], &[("DYN_LOG", "a=b=c")]);
}

#[test]
fn help_names_every_subcommand_and_groups_its_flags() {
    let output = command(&["--help"], &[]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for subcommand in ["selector", "discover", "bench", "openapi"] {
        assert!(text.contains(subcommand), "{text}");
    }
    let output = command(&["selector", "--help"], &[]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for heading in ["HTTP:", "Workers:", "Tracking hashes:", "Other selectors:", "Logging:", "Examples:"] {
        assert!(text.contains(heading), "no {heading} in\n{text}");
    }
    assert_eq!(command(&[], &[]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_benchmark_of_a_server_that_follows_events_says_at_once_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let selector = Selector::start(directory.path(), &[], &[]);
    let output = command(&["bench", "--url", &selector.url(), "--workers", "3"], &[]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("--kv-events-base-port") && text.contains("DYN_ROUTER_USE_KV_EVENTS=false"), "{text}");
    assert_eq!(selector.get("/workers"), serde_json::json!([]), "what it registered is gone");
}

#[test]
fn a_changed_catalog_is_a_line_in_the_log_and_an_unchanged_one_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let selector = Selector::start(directory.path(), &[], &[("DYN_ROUTER_USE_KV_EVENTS", "false")]);
    let worker = |id: u64| serde_json::json!({"worker_id": id, "endpoint": "http://w", "block_size": 16});
    assert_eq!(selector.call("POST", "/workers", Some(&worker(9))).0, 201);
    let put = |body: Value| assert_eq!(selector.call("PUT", "/catalog/file.x", Some(&body)).0, 200);
    let whole = serde_json::json!({"epoch": 5, "generation": 1, "digest": "a",
        "workers": [worker(1), worker(2), worker(9), {"worker_id": 3, "block_size": 16}]});
    put(whole.clone());
    put(whole.clone());
    let mut again = whole;
    (again["generation"], again["digest"]) = (2.into(), "other bytes".into());
    put(again);
    put(serde_json::json!({"epoch": 5, "generation": 3, "base_digest": "other bytes", "digest": "b",
        "upsert": [{"worker_id": 1, "endpoint": "http://new", "block_size": 16}], "delete": [2, 77]}));
    put(serde_json::json!({"epoch": 5, "generation": 4, "digest": "", "workers": []}));
    let lines = || -> Vec<String> {
        let log = selector.program.log();
        log.lines().filter(|line| line.contains("catalog changed")).map(str::to_owned).collect()
    };
    program::wait_for("the last line", || (lines().len() >= 3).then_some(()));
    let counts = |line: &String| {
        ["epoch", "generation", "upserted", "deleted", "incomplete", "rejected"].map(|name| -> u64 {
            let (_, value) = line.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("{line}"));
            value.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"))
        })
    };
    let told: Vec<_> = lines().iter().map(counts).collect();
    assert_eq!(told, [[5, 1, 4, 0, 1, 1], [5, 3, 1, 1, 0, 0], [5, 4, 0, 3, 0, 0]]);
    assert!(lines().iter().all(|line| line.contains("owner=\"file.x\"")), "{:?}", lines());
}

#[test]
fn a_second_worker_at_one_event_endpoint_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let selector = Selector::start(directory.path(), &[], &[]);
    let worker = |id: u64| {
        serde_json::json!({"worker_id": id, "endpoint": "http://w", "block_size": 16,
                           "kv_events_endpoint": "tcp://127.0.0.1:1"})
    };
    let warnings = || selector.program.log().matches("event endpoint serves another rank already").count();
    for (id, expected) in [(1, 0), (1, 0), (2, 1)] {
        let (status, record) = selector.call("POST", "/workers", Some(&worker(id)));
        assert_eq!((status, &record["lifecycle"]), (201, &Value::from("schedulable")), "{record}");
        program::wait_for("the log", || (warnings() == expected).then_some(()));
    }
}
