//! What documents are taken for, and how each mistake is told.

use super::*;
use crate::selection::{config::QueuePolicy, worker::WorkerRole};

fn parse(text: &str) -> Result<PolicyDocument, DocumentError> {
    PolicyDocument::parse(text, "p.yaml")
}

#[track_caller]
fn refused(text: &str) -> DocumentError {
    parse(text).expect_err(text)
}

#[track_caller]
fn assert_invalid(text: &str, reason: &str) {
    let error = refused(text);
    assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
    assert_eq!(error.reason, reason, "{text}");
    assert!(error.place.line > 0, "{error:?}");
    assert!(error.to_string().starts_with(&format!("invalid router policy config: {reason}")), "{error}");
}

/// A root profile with one class, and what is put over it.
fn profile(changes: &str) -> String {
    let class = |text: &str| format!("{{name: c, policy_family: std, cache_bucket: all, quantum: 1{text}}}");
    let (family, buckets, classes) = match changes.split_once(' ').unwrap_or((changes, "")) {
        ("family", family) => (family.to_owned(), "[{min_tokens: 0, bucket: all}]".to_owned(), class("")),
        ("buckets", buckets) => ("std".to_owned(), buckets.to_owned(), class("")),
        ("class", rest) => ("std".to_owned(), "[{min_tokens: 0, bucket: all}]".to_owned(), class(rest)),
        ("classes", classes) => ("std".to_owned(), "[{min_tokens: 0, bucket: all}]".to_owned(), classes.to_owned()),
        other => panic!("{other:?}"),
    };
    format!("default_policy_family: {family}\nuncached_isl_buckets: {buckets}\npolicy_classes: [{classes}]\n")
}

#[test]
fn the_whole_document_is_read() {
    let document = parse(include_str!("tests/whole.yaml")).unwrap();
    assert_eq!(document.router.host_cache_hit_weight, Some(0.6));
    assert_eq!(document.router.use_kv_events, Some(true));
    assert_eq!(document.router.router_predicted_ttl_secs, Some(None));
    assert_eq!(
        document.router.set().iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        ["host_cache_hit_weight=0.6", "use_kv_events=true", "router_predicted_ttl_secs=null"]
    );

    let root = document.profiles.root.as_ref().unwrap();
    assert_eq!(&*root.default_family, "chat");
    let names: Vec<&str> = root.classes.iter().map(|class| &*class.name).collect();
    assert_eq!(names, ["chat_warm", "chat_cold", "ops"]);
    assert_eq!((root.classes[0].queue_policy, root.classes[0].quantum), (QueuePolicy::Wspt, 2048));
    assert_eq!(root.classes[0].prefill_busy_threshold_frac, Some(2.0));
    assert_eq!(root.classes[0].request_queue_limit_per_worker, Some(256));
    assert_eq!(root.classes[1].queue_policy, QueuePolicy::Fcfs);
    assert_eq!(root.classes[1].prefill_busy_threshold, Some(16_000));
    assert_eq!(root.classes[1].raw_isl_token_queue_limit_per_worker, Some(500_000));
    assert_eq!(root.classes[1].cached_token_queue_limit_per_worker, Some(100_000));
    assert_eq!(root.classes[2].cell, None);
    assert_eq!(root.resolve(None, 5000), 1);
    assert_eq!(&*document.profiles.of("org/big-model").unwrap().classes[0].name, "one");

    let selection = document.worker_selection.as_ref().unwrap();
    assert_eq!(selection.selected(WorkerRole::Aggregated), Some("tuned"));
    assert_eq!(selection.selected(WorkerRole::Prefill), Some("default"));
    assert_eq!(selection.selected(WorkerRole::Decode), None);
    let tuned = selection.instance("tuned").unwrap();
    assert_eq!(tuned.policy_type(), "dynamo-default-cost-fn");
    assert_eq!(tuned.location.as_deref(), Some("p.yaml:29"));
    let parameters: serde_json::Value = tuned.parameters().deserialize().unwrap();
    assert_eq!(parameters, serde_json::json!({"overlap_score_credit": 1.2}));
    assert_eq!(document.request_classifier.as_ref().unwrap().classifier_type(), "thunderagent");

    let shadow = document.shadow.of(WorkerRole::Aggregated).unwrap();
    assert_eq!((&*shadow.instance, shadow.share.to_string().as_str()), ("other", "5%"));
    assert_eq!(document.shadow.of(WorkerRole::Decode), None);
    assert_eq!(document.digest().len(), 32);
}

#[test]
fn mistakes_in_profiles_have_their_texts() {
    for (text, reason) in [
        (
            "default_policy_family: std\n".to_owned(),
            "root profile must specify default_policy_family, uncached_isl_buckets, and policy_classes when any root \
             profile field is present",
        ),
        (
            profile("classes {name: c, policy_family: std, cache_bucket: all, quantum: 0}"),
            "root policy class \"c\" quantum must be greater than zero",
        ),
        (profile("class , queue_policy: lcfs"), "root policy class \"c\" queue_policy must be fcfs or wspt"),
        (
            profile("class , prefill_busy_threshold_frac: -1"),
            "root policy class \"c\" prefill_busy_threshold_frac must be finite and non-negative",
        ),
        (
            profile("class , prefill_busy_threshold_frac: .inf"),
            "root policy class \"c\" prefill_busy_threshold_frac must be finite and non-negative",
        ),
        (
            profile("classes {name: c, policy_family: std, cache_bucket: all, quantum: 1}, {name: c, quantum: 1}"),
            "root contains duplicate policy class \"c\"",
        ),
        (
            profile("classes {name: c, policy_family: std, quantum: 1}"),
            "root policy class \"c\" must specify both policy_family and cache_bucket or neither for an explicit class",
        ),
        (
            profile("classes {name: c, policy_family: std, cache_bucket: zz, quantum: 1}"),
            "root policy class \"c\" references unknown cache bucket \"zz\"",
        ),
        (profile("family other"), "root default_policy_family \"other\" does not name a configured family"),
        (profile("classes "), "root policy_classes must not be empty"),
        (profile("buckets []"), "root uncached_isl_buckets must not be empty"),
        (profile("buckets [{min_tokens: 1, bucket: all}]"), "root uncached_isl_buckets must start at min_tokens 0"),
        (
            profile("buckets [{min_tokens: 0, bucket: all}, {min_tokens: 0, bucket: b}]"),
            "root uncached_isl_buckets min_tokens must be strictly increasing",
        ),
        (
            profile("buckets [{min_tokens: 0, bucket: all}, {min_tokens: 9, bucket: all}]"),
            "root contains duplicate cache bucket \"all\"",
        ),
        (
            profile("buckets [{min_tokens: 0, bucket: all}, {min_tokens: 9, bucket: b}]"),
            "root is missing a policy class for family \"std\" and bucket \"b\"",
        ),
        (
            profile(
                "classes {name: c, policy_family: std, cache_bucket: all, quantum: 1}, \
                 {name: d, policy_family: std, cache_bucket: all, quantum: 1}",
            ),
            "root contains duplicate policy classes for family \"std\" and bucket \"all\"",
        ),
        (
            profile("classes {name: c, policy_family: std, cache_bucket: all, quantum: 1}, {name: std, quantum: 1}"),
            "root explicit policy class \"std\" collides with a policy family",
        ),
        (
            profile("classes {name: a b, policy_family: std, cache_bucket: all, quantum: 1}"),
            "root policy class name \"a b\" must match [A-Za-z0-9_.-]+",
        ),
        (profile("family é"), "root policy family name \"é\" must match [A-Za-z0-9_.-]+"),
        (profile("buckets [{min_tokens: 0, bucket: ''}]"), "root cache bucket name \"\" must match [A-Za-z0-9_.-]+"),
        ("models: {'': {}}\n".to_owned(), "model profile name must not be empty"),
        (
            "models: {m: {default_policy_family: f, uncached_isl_buckets: [], policy_classes: []}}\n".to_owned(),
            "model \"m\" uncached_isl_buckets must not be empty",
        ),
    ] {
        assert_invalid(&text, reason);
    }
}

#[test]
fn mistakes_in_plugins_have_their_texts() {
    for (text, reason) in [
        (
            "worker_selection: {}",
            "worker_selection must define an instance or an aggregated, prefill, decode, or encode selection",
        ),
        ("worker_selection: {aggregated: t}", "worker_selection aggregated \"t\" does not name a configured instance"),
        (
            "worker_selection: {encode: '', instances: [{name: a, type: t}]}",
            "worker_selection encode \"\" does not name a configured instance",
        ),
        (
            "worker_selection: {instances: [{name: default, type: t}]}",
            "worker_selection instance name 'default' is reserved for Dynamo's built-in selector",
        ),
        (
            "worker_selection: {instances: [{name: a, type: t, parameters: null}]}",
            "worker_selection instance \"a\" parameters must be a YAML mapping",
        ),
        (
            "worker_selection: {instances: [{name: a, type: t, parameters: [1]}]}",
            "worker_selection instance \"a\" parameters must be a YAML mapping",
        ),
        (
            "worker_selection: {instances: [{name: a, type: t}, {name: a, type: u}]}",
            "worker_selection contains duplicate instance \"a\"",
        ),
        (
            "worker_selection: {instances: [{name: a, type: 't/u'}]}",
            "worker_selection policy type name \"t/u\" must match [A-Za-z0-9_.-]+",
        ),
        (
            "request_classifier: {type: default}",
            "request_classifier type 'default' is reserved; omit request_classifier to use Dynamo's pass-through \
             classifier",
        ),
        ("request_classifier: {type: t, parameters: 1}", "request_classifier parameters must be a YAML mapping"),
        (
            "{}",
            "router policy config must define router settings, a root profile, at least one model profile, \
             worker_selection, or request_classifier",
        ),
        ("shadow: {}", "shadow must name an instance for aggregated, prefill, decode, or encode"),
        ("shadow: {decode: {instance: a}}", "shadow decode \"a\" does not name a configured instance"),
        (
            "shadow: {decode: {instance: default, share: 101%}}",
            "share must be a percentage from 0% to 100%, or a fraction from 0 to 1",
        ),
        ("router: {overlap_score_credit: 1}", "unknown router setting: overlap_score_credit"),
    ] {
        assert_invalid(text, reason);
    }
}

#[test]
fn what_cannot_be_read_is_told_with_field_line_and_column() {
    for (text, shown) in [
        (
            "zzz: 1\n",
            "failed to parse router policy config p.yaml: unknown field `zzz`, expected one of `router`, \
             `default_policy_family`, `policy_classes`, `uncached_isl_buckets`, `models`, `worker_selection`, \
             `request_classifier`, `shadow` (line 1, column 1)",
        ),
        (
            "router:\n  use_kv_events: 'x'\n",
            "failed to parse router policy config p.yaml: router.use_kv_events: invalid type: string \"x\", expected a \
             boolean (line 2, column 18)",
        ),
        (
            "router: {router_event_threads: -1}\n",
            "failed to parse router policy config p.yaml: router.router_event_threads: invalid type: integer `-1`, \
             expected an integer that is not negative (line 1, column 32)",
        ),
        (
            "worker_selection:\n  instances:\n  - {name: a, type: t, note: x}\n",
            "failed to parse router policy config p.yaml: worker_selection.instances[0]: unknown field `note`, expected \
             one of `name`, `type`, `parameters` (line 3, column 24)",
        ),
        (
            "worker_selection:\n  instances:\n  - {name: a}\n",
            "failed to parse router policy config p.yaml: worker_selection.instances[0]: missing field `type` (line 3, \
             column 5)",
        ),
    ] {
        assert_eq!(refused(text).in_file("p.yaml"), shown);
    }
    let error = refused("policy_classes: [\n");
    assert_eq!(error.kind, ErrorKind::Parse);
    assert!(error.place.line > 0, "{error:?}");
    assert_eq!(
        refused("worker_selection:\n  aggregated: t\n").in_file("p.yaml"),
        "invalid router policy config: worker_selection aggregated \"t\" does not name a configured instance (p.yaml, \
         line 2, column 15, worker_selection.aggregated)"
    );
}

#[test]
fn words_keep_the_types_of_yaml_1_2() {
    let error = refused("router: {use_kv_events: yes}");
    assert!(error.reason.contains("string \"yes\""), "{error}");
    assert!(refused("router: {use_kv_events: true, use_kv_events: true}").reason.contains("duplicate"));
    let parameters = |text: &str| {
        let document = parse(&format!("worker_selection: {{instances: [{{name: a, type: t, parameters: {text}}}]}}"));
        document.unwrap().worker_selection.unwrap().instances.remove(0).parameters
    };
    let scale: std::collections::BTreeMap<String, f64> = parameters("{x: .nan, y: -.inf, z: 3}").deserialize().unwrap();
    assert!(scale["x"].is_nan());
    assert_eq!((scale["y"], scale["z"]), (f64::NEG_INFINITY, 3.0));
    let text: std::collections::BTreeMap<String, String> = parameters("{x: '8080'}").deserialize().unwrap();
    assert_eq!(text["x"], "8080");
}

#[test]
fn size_depth_and_aliases_are_bounded() {
    let long = format!("router: {{}} # {}", "x".repeat(1 << 20));
    assert_eq!(refused(&long).reason, "longer than 1048576 bytes");
    let deep = format!("router: {}{}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(refused(&deep).kind, ErrorKind::Parse);
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [before.as_str(); 9].join(", ")));
    }
    assert_eq!(refused(&bomb).kind, ErrorKind::Parse);
}

#[test]
fn a_policy_that_cannot_be_made_is_placed() {
    let document = parse(
        "worker_selection:\n  instances:\n  - name: a\n    type: nope\n    parameters:\n      credit: 1\n      other: 2\n",
    )
    .unwrap();
    let place = |reason: &str| {
        let Place { line, column, field } = document.refuse_instance("a", reason.to_owned()).place;
        (line, column, field)
    };
    let of = |text: &str| format!("invalid parameters for worker-selection policy type \"nope\": {text}");
    let instance = |rest: &str| format!("worker_selection.instances[0].{rest}");
    assert_eq!(place(&of("other: must be less")), (7, 14, instance("parameters.other")));
    assert_eq!(place(&of("other must be less")), (7, 14, instance("parameters.other")));
    assert_eq!(place(&of("missing field `x`")), (6, 7, instance("parameters")));
    let unknown = "unknown worker-selection policy type \"nope\"; linked policy types: <none>";
    assert_eq!(place(unknown), (4, 11, instance("type")));
    assert_eq!(document.refuse_instance("b", "gone".to_owned()).place, Place::default());
}

#[test]
fn settings_of_the_process_are_compared_by_what_is_in_force() {
    let router = |text: &str| parse(&format!("router: {{{text}}}")).unwrap().router;
    let base = router("use_kv_events: true, host_cache_hit_weight: 0.75");
    let first = router("use_kv_events: true").or(&base);
    assert_eq!(first.first_difference(&router("host_cache_hit_weight: 0.75").or(&base)), None);
    assert_eq!(
        first.first_difference(&router("use_kv_events: false").or(&base)),
        Some(("use_kv_events", "true".to_owned(), "false".to_owned()))
    );
    for (text, reason) in [
        (
            "use_remote_indexer: true, serve_indexer: true",
            "use_remote_indexer and serve_indexer are mutually exclusive",
        ),
        ("router_event_threads: 0", "router_event_threads must be at least 1"),
        ("shared_cache_type: foo", "unknown shared_cache_type: \"foo\", expected 'none' or 'hicache'"),
        (
            "router_prefill_load_model: ais, router_track_prefill_tokens: false",
            "router_prefill_load_model requires router_track_prefill_tokens=true",
        ),
    ] {
        assert_eq!(check_combination(&router(text)), Err(reason.to_owned()));
    }
    assert_eq!(check_combination(&base), Ok(()));
}
