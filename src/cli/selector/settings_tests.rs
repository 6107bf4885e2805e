//! What environment and flags make of a selector's settings.

use std::collections::BTreeMap;

use clap::Parser;

use super::*;
use crate::{
    plugins::router_plugin_registry,
    selection::{
        config::{ApproximateCachePolicy, QueuePolicy, TrackingHash},
        worker::WorkerRole,
    },
};

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: SelectorArgs,
}

/// Merges a command line and an environment, both given in full.
fn settings(flags: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
    let line =
        Line::try_parse_from(std::iter::once("selector").chain(flags.iter().copied())).map_err(|e| e.to_string())?;
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    let lookup = |name: &str| variables.get(name).map(|v| (*v).to_owned());
    resolve(&line.args, &Environment::new(&lookup), &router_plugin_registry())
}

fn config(flags: &[&str], variables: &[(&str, &str)]) -> SelectionConfig {
    settings(flags, variables).unwrap().selection
}

fn refusal(variables: &[(&str, &str)]) -> String {
    settings(&[], variables).unwrap_err()
}

#[test]
fn nothing_set_is_the_default() {
    let merged = settings(&[], &[]).unwrap();
    assert_eq!(format!("{:?}", merged.selection), format!("{:?}", SelectionConfig::default()));
    assert!(merged.warnings.is_empty());
}

#[test]
fn flags_win_over_the_environment() {
    let variables = [
        ("DYN_ROUTER_TEMPERATURE", "0.5"),
        ("DYN_ROUTER_USE_KV_EVENTS", "no"),
        ("DYN_ROUTER_ASSUME_KV_REUSE", "true"),
        ("DYN_ROUTER_QUEUE_POLICY", "wspt"),
    ];
    let merged = config(&[], &variables);
    assert_eq!((merged.router_temperature, merged.use_kv_events), (0.5, false));
    assert_eq!(merged.queue_policy, QueuePolicy::Wspt);
    let flags =
        ["--router-temperature=0.1", "--router-kv-events", "--no-router-assume-kv-reuse", "--router-queue-policy=lcfs"];
    let merged = config(&flags, &variables);
    assert_eq!((merged.router_temperature, merged.use_kv_events, merged.assume_kv_reuse), (0.1, true, false));
    assert_eq!(merged.queue_policy, QueuePolicy::Lcfs);
}

#[test]
fn every_number_of_the_environment_reaches_its_setting() {
    let merged = config(
        &[],
        &[
            ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "1.5"),
            ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", "0.25"),
            ("DYN_ROUTER_PREFILL_LOAD_SCALE", "2"),
            ("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", "3"),
            ("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", "0.5"),
            ("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", "0.125"),
            ("DYN_ROUTER_TTL_SECS", "7.5"),
            ("DYN_ROUTER_PREDICTED_TTL_SECS", "1e300"),
            ("DYN_ROUTER_QUEUE_THRESHOLD", "inf"),
            ("DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD", "0.9"),
            ("DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD", "0.8"),
            ("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS", "30"),
        ],
    );
    assert_eq!(merged.overlap_score_credit, 1.5);
    assert_eq!(merged.overlap_score_credit_decay, 0.25);
    assert_eq!(merged.prefill_load_scale, 2.0);
    assert_eq!(merged.decode_active_request_weight, 3.0);
    assert_eq!(merged.host_cache_hit_weight, 0.5);
    assert_eq!(merged.disk_cache_hit_weight, 0.125);
    assert_eq!(merged.ttl, Duration::from_secs_f64(7.5));
    assert_eq!(merged.predicted_ttl, Some(Duration::MAX));
    assert_eq!(merged.queue_threshold, Some(f64::INFINITY));
    assert_eq!(merged.prefill_busy_threshold, Some(0.9));
    assert_eq!(merged.decode_busy_threshold, Some(0.8));
    assert_eq!(merged.active_request_expiry, Some(Duration::from_secs(30)));
}

#[test]
fn what_does_not_parse_keeps_the_default() {
    let merged = settings(
        &[],
        &[
            ("DYN_ROUTER_TEMPERATURE", "x"),
            ("DYN_ROUTER_QUEUE_THRESHOLD", "abc"),
            ("DYN_ROUTER_TTL_SECS", "None"),
            ("DYN_ROUTER_TRACK_PREFILL_TOKENS", "maybe"),
            ("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS", "0"),
        ],
    )
    .unwrap();
    assert_eq!(format!("{:?}", merged.selection), format!("{:?}", SelectionConfig::default()));
    assert_eq!(merged.warnings.len(), 4, "two deprecations, the threshold and the expiry: {:?}", merged.warnings);
}

#[test]
fn a_threshold_that_is_no_number_is_said_aloud() {
    for (text, aloud) in [("abc", true), (" 1", true), ("None", false), ("", false), ("0.5", false), ("inf", false)] {
        let warnings = settings(&[], &[("DYN_ROUTER_QUEUE_THRESHOLD", text)]).unwrap().warnings;
        assert_eq!(warnings.iter().any(|line| line.contains("QUEUEING IS OFF")), aloud, "{text:?}: {warnings:?}");
    }
}

#[test]
fn the_age_of_a_refresh_is_read_as_the_reference_reads_it() {
    let after = |text: &str| {
        let merged = settings(&[], &[("DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS", text)]).unwrap();
        (merged.selection.overlap_refresh_after, merged.warnings.len())
    };
    assert_eq!(after("2.5"), (Some(Duration::from_millis(2500)), 0));
    for off in ["0", "-1", "inf", "NaN", "1e300"] {
        assert_eq!(after(off), (None, 0), "{off}");
    }
    assert_eq!(after("soon"), (Some(Duration::from_secs(10)), 1));
}

#[test]
fn limits_of_the_queue_are_flags() {
    let limits = |flags: &[&str]| config(flags, &[]).queue_limits;
    assert_eq!((limits(&[]).requests, limits(&[]).tokens), (10_000, 134_217_728));
    let given = limits(&["--queue-max-requests", "5", "--queue-max-tokens", "600"]);
    assert_eq!((given.requests, given.tokens), (5, 600));
}

#[test]
fn the_document_is_followed_unless_a_flag_says_no() {
    let watch = |flags: &[&str]| {
        let line = Line::try_parse_from(std::iter::once("selector").chain(flags.iter().copied()));
        line.map(|line| line.args.policy.policy_watch).map_err(|error| error.kind())
    };
    assert_eq!((watch(&[]), watch(&["--policy-watch"])), (Ok(true), Ok(true)));
    assert_eq!((watch(&["--policy-watch=false"]), watch(&["--policy-watch", "false"])), (Ok(false), Ok(false)));
    assert_eq!(watch(&["--policy-watch", "--port", "1"]), Ok(true));
    assert_eq!(watch(&["--policy-watch", "no"]), Err(clap::error::ErrorKind::InvalidValue));
}

#[test]
fn unknown_words_are_refused() {
    for (name, value, text) in [
        ("DYN_ROUTER_QUEUE_POLICY", "lifo", "unknown queue policy: \"lifo\", expected 'fcfs', 'lcfs', or 'wspt'"),
        ("DYN_ROUTER_QUEUE_POLICY", "", "unknown queue policy: \"\", expected 'fcfs', 'lcfs', or 'wspt'"),
        ("DYN_ROUTER_QUEUE_POLICY", "FCFS", "unknown queue policy: \"FCFS\", expected 'fcfs', 'lcfs', or 'wspt'"),
        (
            "DYN_ROUTER_APPROXIMATE_CACHE_POLICY",
            "zz",
            "unknown approximate cache policy \"zz\", expected 'ttl' or 'lru'",
        ),
        ("DYN_SHARED_CACHE_TYPE", "foo", "unknown shared_cache_type: \"foo\", expected 'none' or 'hicache'"),
        ("DYN_ROUTER_PREFILL_LOAD_MODEL", "x", "unknown prefill load model: \"x\", expected 'none' or 'ais'"),
        ("DYN_ROUTER_TRACKING_HASH", "", "router_tracking_hash must be public-xxh3-v1 or keyed-xxh3-v1, got \"\""),
        (
            "DYN_ROUTER_WORKER_SELECTION_POLICY",
            " zzz ",
            "unknown worker-selection instance \"zzz\"; configured instances: <none>",
        ),
    ] {
        assert_eq!(refusal(&[(name, value)]), text);
    }
}

#[test]
fn ranges_outside_the_core_are_checked() {
    for (name, value, text) in [
        ("DYN_ROUTER_TTL_SECS", "-1", "router_ttl_secs must be greater than or equal to 0"),
        ("DYN_ROUTER_TTL_SECS", "nan", "router_ttl_secs must be greater than or equal to 0"),
        ("DYN_ROUTER_PREDICTED_TTL_SECS", "-2", "router_predicted_ttl_secs must be greater than or equal to 0"),
        ("DYN_ROUTER_EVENT_THREADS", "0", "router_event_threads must be at least 1"),
        ("DYN_SHARED_CACHE_MULTIPLIER", "5", "shared_cache_multiplier must be between 0 and 1"),
        (
            "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD",
            "4",
            "conditional_disagg_eff_isl_ratio_threshold must be between 0 and 1",
        ),
    ] {
        assert_eq!(refusal(&[(name, value)]), text);
    }
}

#[test]
fn combinations_of_switches_are_checked() {
    assert_eq!(
        refusal(&[("DYN_ROUTER_TRACK_OUTPUT_BLOCKS", "1"), ("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", "0")]),
        "router_track_output_blocks requires router_track_active_blocks=true"
    );
    assert_eq!(
        refusal(&[("DYN_ROUTER_PREFILL_LOAD_MODEL", "ais"), ("DYN_ROUTER_TRACK_PREFILL_TOKENS", "0")]),
        "router_prefill_load_model requires router_track_prefill_tokens=true"
    );
    let load = [("DYN_ROUTER_CONDITIONAL_DISAGG", "1"), ("DYN_ROUTER_CONDITIONAL_DISAGG_POLICY", "prefill_load")];
    assert!(refusal(&load).contains("needs prefill_busy_threshold"));
    let with_queue = [load[0], load[1], ("DYN_ROUTER_QUEUE_THRESHOLD", "2")];
    assert!(settings(&[], &with_queue).is_ok());
    let unknown = [load[0], ("DYN_ROUTER_CONDITIONAL_DISAGG_POLICY", "zz")];
    assert!(settings(&[], &unknown).is_ok());
}

#[test]
fn the_weight_of_old_sets_the_scale_and_zero_ends_the_credit() {
    let merged = config(&[], &[("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "x"), ("DYN_OVERLAP_SCORE_WEIGHT", "3")]);
    assert_eq!((merged.prefill_load_scale, merged.overlap_score_credit), (3.0, 1.0));
    let merged = config(
        &[],
        &[
            ("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "0"),
            ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "2"),
            ("DYN_ROUTER_PREFILL_LOAD_SCALE", "7"),
        ],
    );
    assert_eq!((merged.prefill_load_scale, merged.overlap_score_credit), (0.0, 0.0));
}

#[test]
fn an_unknown_word_for_kv_events_falls_to_the_second_name() {
    let merged = config(&[], &[("DYN_ROUTER_USE_KV_EVENTS", "maybe"), ("DYN_USE_KV_EVENTS", "no")]);
    assert!(!merged.use_kv_events);
}

/// Settings with a policy document of that text, beside flags and environment.
fn with_document(text: &str, flags: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let mut variables = variables.to_vec();
    variables.push(("DYN_ROUTER_POLICY_CONFIG", file.path().to_str().unwrap()));
    settings(flags, &variables)
}

#[test]
fn a_policy_document_is_read_and_decides_over_flags_and_environment() {
    let missing = refusal(&[("DYN_ROUTER_POLICY_CONFIG", "/nonexistent/policy.yaml")]);
    assert!(missing.starts_with("failed to read router policy config /nonexistent/policy.yaml: "), "{missing}");
    let merged = with_document(
        "router: {host_cache_hit_weight: 0.5, use_kv_events: true, router_ttl_secs: 7, router_predicted_ttl_secs: 3}",
        &["--router-host-cache-hit-weight=0.1", "--no-router-kv-events"],
        &[("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", "0.2")],
    );
    let Settings { selection, policies, .. } = merged.unwrap();
    assert_eq!((selection.host_cache_hit_weight, selection.disk_cache_hit_weight), (0.5, 0.2));
    assert!(selection.use_kv_events);
    assert_eq!((selection.ttl, selection.predicted_ttl), (Duration::from_secs(7), Some(Duration::from_secs(3))));
    assert_eq!(policies.given.host_cache_hit_weight, Some(0.1), "what a document without the setting would leave");
    let null = with_document("router: {router_predicted_ttl_secs: null}", &["--router-predicted-ttl-secs=3"], &[]);
    assert_eq!(null.unwrap().selection.predicted_ttl, None);
}

#[test]
fn a_policy_document_that_cannot_be_meant_is_refused() {
    for (text, variables, part) in [
        ("worker_selection: {aggregated: [", &[][..], "failed to parse router policy config "),
        ("router: {use_kv_events: x}", &[], "router.use_kv_events: invalid type: string \"x\", expected a boolean"),
        (
            "worker_selection: {aggregated: default}",
            &[("DYN_ROUTER_WORKER_SELECTION_POLICY", "ghost")],
            "unknown worker-selection instance \"ghost\"; configured instances: <none>",
        ),
        (
            "worker_selection: {aggregated: a, instances: [{name: a, type: nope}]}",
            &[],
            "unknown worker-selection policy type \"nope\"; linked policy types: ",
        ),
        (
            "router: {router_tracking_hash: public-xxh3-v1}",
            &[("DYN_ROUTER_TRACKING_HASH", "keyed-xxh3-v1"), ("DYN_ROUTER_TRACKING_KEY_ID", "a")],
            "router tracking key options require router_tracking_hash=keyed-xxh3-v1",
        ),
        (
            "router: {router_track_output_blocks: true}",
            &[("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", "false")],
            "router_track_output_blocks requires router_track_active_blocks=true",
        ),
    ] {
        let refused = with_document(text, &[], variables).unwrap_err();
        assert!(refused.contains(part), "{text}: {refused}");
    }
}

#[test]
fn a_request_classifier_is_taken() {
    let policies = with_document("request_classifier: {type: thunderagent}", &[], &[]).unwrap().policies;
    let classifier = policies.document.unwrap().request_classifier.unwrap();
    assert_eq!(classifier.classifier_type(), "thunderagent");
}

#[test]
fn a_classifier_that_cannot_be_is_refused_with_its_place() {
    let refused = |classifier: &str| {
        let document = format!("router: {{use_kv_events: true}}\nrequest_classifier: {classifier}\n");
        with_document(&document, &[], &[]).unwrap_err()
    };
    let unknown = refused("{type: nope}");
    assert!(unknown.contains("unknown request-classifier type \"nope\"") && unknown.contains("line 2"), "{unknown}");
    let wrong = refused("{type: thunderagent, parameters: {pause_target: 2}}");
    assert!(wrong.contains("pause_target") && wrong.contains("line 2"), "{wrong}");
}

#[test]
fn soft_affinity_without_sessions_is_told() {
    let told = |flags: &[&str]| settings(flags, &[]).unwrap().warnings.iter().any(|line| line.contains("soft"));
    assert!(told(&["--session-affinity-mode=soft"]));
    assert!(!told(&["--session-affinity-mode=soft", "--session-affinity-ttl-secs=60"]));
}

#[test]
fn a_role_is_chosen_by_flag_then_environment_then_document() {
    const DOCUMENT: &str = "worker_selection:
  prefill: doc
  encode: doc
  instances: [{name: doc, type: none}, {name: env, type: none}, {name: own, type: none}, {name: flag, type: none}]
";
    let chosen = |flags: &[&str], variables: &[(&str, &str)]| {
        let policies = with_document(DOCUMENT, flags, variables).unwrap().policies;
        let of = |role| policies.composition.of(role).instance.clone().unwrap_or_else(|| "-".to_owned());
        [of(WorkerRole::Prefill), of(WorkerRole::Decode), of(WorkerRole::Encode)].join(" ")
    };
    let prefill = ("DYN_ROUTER_PREFILL_POLICY", "own");
    assert_eq!(chosen(&[], &[]), "doc - doc");
    assert_eq!(chosen(&[], &[prefill]), "own - doc");
    assert_eq!(chosen(&["--router-prefill-policy=flag"], &[prefill]), "flag - doc");
    assert_eq!(chosen(&["--router-prefill-policy= "], &[prefill]), "own - doc");
    assert_eq!(chosen(&["--router-decode-policy=flag"], &[("DYN_ROUTER_PREFILL_POLICY", "default")]), "- flag doc");
    let everywhere = with_document(DOCUMENT, &[], &[("DYN_ROUTER_WORKER_SELECTION_POLICY", "env")]);
    assert!(everywhere.unwrap_err().starts_with("unknown worker-selection policy type \"none\""));
}

#[test]
fn an_index_is_promised_only_where_a_policy_reads_caches() {
    const BLIND: &str = "worker_selection: {aggregated: x, instances: [{name: x, type: random}]}\n";
    const SEEING: &str = "worker_selection: {aggregated: x, instances: [{name: x, type: thunderagent}]}\n";
    for promise in ["serve_indexer", "enable_session_prefix_index"] {
        let router = format!("router: {{{promise}: true}}\n");
        let refused = with_document(&format!("{BLIND}{router}"), &[], &[]).unwrap_err();
        assert!(
            refused.contains(&format!("{promise} requires a worker-selection policy that reads CACHE")),
            "{refused}"
        );
        assert!(refused.contains("line 2"), "{refused}");
        assert!(with_document(&format!("{SEEING}{router}"), &[], &[]).is_ok());
        let shadowed = format!("{BLIND}{router}shadow: {{aggregated: {{instance: default}}}}\n");
        assert!(with_document(&shadowed, &[], &[]).is_ok(), "the shadow reads them");
    }
    assert!(with_document(BLIND, &["--face=indexer"], &[]).unwrap_err().contains("--face indexer requires"));
    assert!(with_document(BLIND, &[], &[]).is_ok());
}

#[test]
fn policies_of_roles_that_may_never_come_are_told_and_do_not_stop_the_start() {
    for name in ["DYN_ROUTER_WORKER_SELECTION_POLICY", "DYN_ROUTER_PREFILL_POLICY", "DYN_ROUTER_DECODE_POLICY"] {
        assert!(settings(&[], &[(name, "default")]).is_ok(), "{name}");
    }
    let other = settings(&[], &[("DYN_ROUTER_DECODE_POLICY", "fast")]).unwrap();
    let told = "requests to decode workers will fail: unknown worker-selection instance \"fast\"; configured instances: \
                <none>";
    assert!(other.warnings.iter().any(|warning| warning == told), "{:?}", other.warnings);
}

#[test]
fn each_tracking_setting_has_its_own_precedence() {
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), [9; 32]).unwrap();
    let path = key.path().to_str().unwrap();
    let variables = [
        ("DYN_ROUTER_TRACKING_HASH", "keyed-xxh3-v1"),
        ("DYN_ROUTER_TRACKING_KEY_FILE", path),
        ("DYN_ROUTER_TRACKING_KEY_ID", "from-env"),
    ];
    let merged = config(&["--router-tracking-key-id", "from-flag"], &variables);
    let TrackingHash::KeyedXxh3V1 { key_id, .. } = &merged.tracking_hash else { panic!("public") };
    assert_eq!(key_id, "from-flag");
    assert!(!format!("{merged:?}").contains("9, 9"), "the key shows in debug output");
    let refused = settings(&["--router-tracking-hash", "public-xxh3-v1"], &variables).unwrap_err();
    assert_eq!(refused, "router tracking key options require router_tracking_hash=keyed-xxh3-v1");
}

#[test]
fn session_time_to_live_has_bounds() {
    let text = "session_affinity_ttl_secs must be between 1 and 31536000";
    for seconds in ["0", "0.5", "-1", "31536001", "nan", "inf"] {
        let flag = format!("--session-affinity-ttl-secs={seconds}");
        assert_eq!(settings(&[&flag], &[]).unwrap_err(), text, "{seconds}");
    }
    let merged = config(&["--session-affinity-ttl-secs", "31536000"], &[]);
    assert_eq!(merged.session_affinity_ttl, Some(Duration::from_secs(31_536_000)));
}

#[test]
fn flags_that_do_not_parse_are_refused() {
    for flags in [
        &["--bogus"][..],
        &["--port", "x"],
        &["--port", "65536"],
        &["--port", "1", "--port", "2"],
        &["--session-affinity-ttl-secs", "x"],
        &["--selection-cache-ttl-secs=-1"],
        &["--selection-cache-ttl-secs=nan"],
        &["--router-assume-kv-reuse", "--no-router-assume-kv-reuse"],
        &["--replica-sync-peers", "tcp://a:1"],
        &["--replica-sync-port", "0"],
        &["--router-tracking-hash", "foo"],
        &["--router-approximate-cache-policy", "zz"],
    ] {
        assert!(Line::try_parse_from(std::iter::once("selector").chain(flags.iter().copied())).is_err(), "{flags:?}");
    }
    assert_eq!(
        config(&["--router-approximate-cache-policy=lru"], &[]).approximate_cache_policy,
        ApproximateCachePolicy::Lru
    );
}
