//! `pointsman policy check` and `pointsman policy try`: what they print, and how they exit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod program;

use std::path::Path;

use program::command;
use serde_json::{Value, json};

const DOCUMENT: &str = "default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
- {name: chat, policy_family: chat2, cache_bucket: all, quantum: 64, prefill_busy_threshold_frac: 2.0}
worker_selection:
  aggregated: tiers
  decode: plain
  instances:
  - {name: tiers, type: dynamo-two-tier-cost-fn, parameters: {cache_threshold: 0.25}}
  - {name: plain, type: dynamo-default-cost-fn, parameters: {overlap_score_credit: 2}}
  - {name: spare, type: thunderagent}
shadow:
  aggregated: {instance: plain, share: 5%}
";

fn document() -> String {
    DOCUMENT.replace("chat2", "chat").replace("name: chat,", "name: chat_all,")
}

/// Exit code, standard output and standard error of a command.
fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let output = command(words, &[]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_prints_what_a_document_comes_to() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "policy.yaml", &document());
    let (code, out, err) = run(&["policy", "check", &file]);
    assert_eq!(code, Some(0), "{err}");
    for part in [
        "aggregated: tiers (dynamo-two-tier-cost-fn)\n",
        "  cache_threshold: 0.25\n",
        "  shadow plain, which decides 5% of the requests\n",
        "decode: plain (dynamo-default-cost-fn)\n",
        "prefill: default\n",
        "unused instances: spare\n",
        "  chat_all (chat, all: from 0 uncached tokens): fcfs, quantum 64, prefill_busy_threshold_frac 2\n",
    ] {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
    let (code, out, _) = run(&["policy", "check", "--json", &file]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["valid"]), (Some(0), &json!(true)));
    let roles = report["effective"]["roles"].as_array().unwrap();
    let aggregated = roles.iter().find(|role| role["role"] == "aggregated").unwrap();
    assert_eq!(aggregated["shadow"], json!({"instance": "plain", "share": 0.05}));
    let picker = aggregated["components"].as_array().unwrap().last().unwrap();
    assert_eq!(picker["stage"], "picker");
    assert_eq!(report["effective"]["profiles"][0]["classes"][0]["limits"]["prefill_busy_threshold_frac"], 2.0);
}

#[test]
fn check_refuses_what_a_selector_would_and_what_no_role_uses_yet() {
    let directory = tempfile::tempdir().unwrap();
    for (from, to, part) in [
        ("  aggregated: tiers", "  aggregated: [", "failed to parse router policy config "),
        ("quantum: 64", "quantum: 0", "policy class \"chat_all\" quantum must be greater than zero"),
        ("cache_threshold: 0.25", "cache_threshold: 7", "cache_threshold must be"),
        ("type: thunderagent", "type: nope", "unknown worker-selection policy type \"nope\""),
    ] {
        let text = document().replace(from, to);
        assert_ne!(text, document());
        let file = write(directory.path(), "policy.yaml", &text);
        let (code, out, err) = run(&["policy", "check", &file]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{to}");
        assert!(err.contains(part) && err.contains("line "), "{to}: {err}");
        let (code, out, _) = run(&["policy", "check", "--json", &file]);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &report["valid"]), (Some(1), &json!(false)));
        assert!(report["error"].as_str().unwrap().contains(part), "{report}");
    }
    let (code, _, err) = run(&["policy", "check", "/nonexistent/p.yaml"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("failed to read router policy config /nonexistent/p.yaml: "), "{err}");
    assert_eq!(run(&["policy", "check"]).0, Some(2));
}

const WORKERS: &str = "version: 1
defaults: {model_name: m, block_size: 4}
workers:
- {name: warm, endpoint: 'http://a'}
- {name: cold, endpoint: 'http://b'}
- {name: busy, endpoint: 'http://c'}
";

#[test]
fn try_shows_the_choice_and_why() {
    let directory = tempfile::tempdir().unwrap();
    let text = "worker_selection: {aggregated: a, decode: b, instances: [{name: a, type: dynamo-default-cost-fn}, \
                {name: b, type: dynamo-two-tier-cost-fn}]}";
    let file = write(directory.path(), "policy.yaml", text);
    let workers = write(directory.path(), "workers.yaml", WORKERS);
    let request = json!({"model_name": "m", "token_ids": (0..40).collect::<Vec<u32>>()}).to_string();
    let request = write(directory.path(), "r.json", &request);
    let state = write(
        directory.path(),
        "state.yaml",
        "workers:
- {worker: warm, cached: {device: 6, host: 2}}
- {worker: busy, cached: {device: 10}, load: {requests: 3, prefill_tokens: 100, decode_blocks: 50}}
",
    );
    let common = ["policy", "try", &file, "--request", &request, "--workers", &workers];
    let with = |more: &[&str]| run(&common.iter().chain(more).copied().collect::<Vec<_>>());

    let (code, out, err) = with(&["--state", &state]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("warm rank 0 of model m, group default: 10 prompt tokens to compute there\n"), "{out}");
    assert!(out.contains("policy a (dynamo-default-cost-fn)\n"), "{out}");
    assert!(out.contains("device 6, host 2, disk 0"), "{out}");
    assert!(out.contains("3 requests, 100 prefill tokens, 50 blocks active"), "{out}");

    let (code, out, _) = with(&["--state", &state, "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, answer["endpoint"].as_str()), (Some(0), Some("http://a")));
    assert_eq!(answer["explain"]["candidates"].as_array().unwrap().len(), 3);

    let (_, out, _) = with(&["--role", "decode"]);
    assert!(out.contains("policy b (dynamo-two-tier-cost-fn)\n"), "{out}");

    let late = json!({"model_name": "m", "token_ids": [1, 2, 3, 4], "deadline_ms": 0}).to_string();
    let late = write(directory.path(), "late.json", &late);
    let (code, out, err) = run(&["policy", "try", &file, "--request", &late, "--workers", &workers]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("request deadline exceeded"), "{err}");

    let wrong = write(directory.path(), "wrong.yaml", "workers: [{worker: nobody}]\n");
    let (code, _, err) = with(&["--state", &wrong]);
    assert_eq!(code, Some(1));
    assert!(err.contains("no worker in the workers file is called \"nobody\""), "{err}");
    assert_eq!(with(&["--role", "driver"]).0, Some(2));
}

#[test]
fn try_refuses_a_state_that_cannot_be_and_warns_of_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "policy.yaml", "worker_selection: {aggregated: default}");
    let workers = "version: 1
defaults: {model_name: m, block_size: 4}
workers:
- {name: a, endpoint: 'http://a', data_parallel_start_rank: 2, data_parallel_size: 2}
- {worker_id: 7, endpoint: 'http://b'}
";
    let workers = write(directory.path(), "workers.yaml", workers);
    let request = json!({"model_name": "m", "token_ids": (0..40).collect::<Vec<u32>>()}).to_string();
    let request = write(directory.path(), "r.json", &request);
    let tried = |entry: &str| {
        let state = write(directory.path(), "state.yaml", &format!("workers: [{entry}]"));
        run(&["policy", "try", &file, "--request", &request, "--workers", &workers, "--state", &state])
    };
    for (entry, part) in [
        ("{worker: 8}", "worker 8 has no rank 0"),
        ("{worker: 7, rank: 1}", "worker 7 has no rank 1"),
        ("{worker: a, rank: 1, load: {requests: 1}}", "worker \"a\" has no rank 1"),
        ("{worker: a, rank: 4}", "worker \"a\" has no rank 4"),
        ("{worker: 7, load: {requests: 4294967295}}", "worker 7 has more than 100000 requests"),
        ("{worker: 7, load: {decode_blocks: 4000000000000}}", "worker 7 has more than 4000000 decode_blocks"),
    ] {
        let (code, out, err) = tried(entry);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{entry}: {err}");
        assert!(err.contains(part), "{entry}: {err}");
    }
    let whole = "cached: {device: 18446744073709551615, host: 18446744073709551615}";
    let (code, out, err) = tried(&format!("{{worker: a, rank: 3, {whole}}}"));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("a rank 3: ") && out.contains("device 10, host 0"), "{out}");
}
