//! What a workers file means, and what its errors say.

use super::*;
use crate::selection::worker::{WorkerRole, WorkerState};

fn parse_ok(text: &str) -> Vec<DesiredWorker> {
    parse(text, "workers.yaml").unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn error(text: &str) -> String {
    parse(text, "workers.yaml").expect_err(text).to_string()
}

#[test]
fn defaults_ranks_and_names_become_records() {
    let workers = parse_ok(
        "version: 1
defaults: {model_name: llama, block_size: 16, max_num_batched_tokens: 8192, taints: [spot]}
workers:
  - name: gpu-0
    endpoint: http://127.0.0.1:8000
    kv_events: {endpoint: \"tcp://127.0.0.1:5557\", replay: \"tcp://127.0.0.1:5657\", stride: 2}
    data_parallel_size: 2
    block_size: 32
  - {worker_id: 7, endpoint: \"http://127.0.0.1:8001\", kv_events_endpoints: {0: \"tcp://127.0.0.1:5600\"}, state: draining,
     taints: [], worker_role: prefill}
",
    );
    let first = &workers[0].request;
    assert_eq!((first.model_name.as_str(), first.routing_group.as_str()), ("llama", "default"));
    let id = xxhash_rust::xxh3::xxh3_64(b"llama\0default\0gpu-0") & ((1 << 53) - 1);
    assert_eq!(first.worker_id, id);
    assert_eq!(first.fields.block_size, Some(32));
    assert_eq!(first.fields.max_num_batched_tokens, Some(8192));
    assert!(first.fields.taints.contains("spot"));
    let events: Vec<_> = first.fields.kv_events_endpoints.iter().map(|(r, e)| (*r, e.as_str())).collect();
    assert_eq!(events, [(0, "tcp://127.0.0.1:5557"), (1, "tcp://127.0.0.1:5559")]);
    let replay: Vec<_> = first.fields.replay_endpoints.iter().map(|(r, e)| (*r, e.as_str())).collect();
    assert_eq!(replay, [(0, "tcp://127.0.0.1:5657"), (1, "tcp://127.0.0.1:5659")]);
    assert_eq!(first.fields.replay_endpoint, None);
    let second = &workers[1];
    assert_eq!((second.request.worker_id, second.state), (7, WorkerState::Draining));
    assert_eq!(second.request.fields.block_size, Some(16));
    assert!(second.request.fields.taints.is_empty(), "a worker's own value replaces the default whole");
    assert_eq!(second.request.fields.worker_role, Some(WorkerRole::Prefill));
}

#[test]
fn every_field_of_a_posted_worker_works_by_its_own_name() {
    let workers = parse_ok(
        r#"{"version": 1, "workers": [{"worker_id": 18446744073709551615, "model_name": "m", "routing_group": "g",
        "endpoint": "e", "kv_events_endpoint": "tcp://a:1", "kv_events_endpoints": {"3": "tcp://a:2"},
        "replay_endpoint": "tcp://a:3", "replay_endpoints": {"3": "tcp://a:4"}, "block_size": 4,
        "data_parallel_start_rank": 3, "data_parallel_size": 1, "max_num_batched_tokens": 5, "total_kv_blocks": 6,
        "stable_routing_id": "s", "is_eagle": true, "taints": ["t"], "topology_domains": {"zone": "z"},
        "kv_transfer_domain": "d", "kv_transfer_enforcement": "required", "kv_transfer_preferred_weight": 0.5,
        "router_hint_worker_type": "w", "router_hint_source_control_endpoints": {"3": "c"},
        "kv_event_source_mode": "state_agent_v2", "worker_role": "decode"}]}"#,
    );
    let written = serde_json::to_value(&workers[0].request).unwrap();
    let object = written.as_object().unwrap();
    assert_eq!(object.len(), 24, "{written}");
    assert!(object.values().all(|v| !v.is_null()), "{written}");
    assert_eq!(written["worker_id"], 18_446_744_073_709_551_615_u64);
    assert_eq!(written["kv_events_endpoints"]["3"], "tcp://a:2");
}

#[test]
fn start_rank_counts_in_ports_and_one_rank_replays_by_the_scalar() {
    let workers = parse_ok(
        "version: 1\nworkers:\n- {name: n, data_parallel_start_rank: 8, \
         kv_events: {endpoint: \"tcp://[::1]:5557\", replay: \"tcp://h:5657\"}}\n",
    );
    let fields = &workers[0].request.fields;
    assert_eq!(fields.kv_events_endpoints[&8], "tcp://[::1]:5565");
    assert_eq!(fields.replay_endpoint.as_deref(), Some("tcp://h:5665"));
    assert!(fields.replay_endpoints.is_empty());
}

#[test]
fn a_record_that_a_selector_calls_incomplete_is_no_error() {
    let workers =
        parse_ok("version: 1\nworkers:\n- {worker_id: 2, block_size: 0, data_parallel_size: 0}\n- {name: bare}\n");
    assert_eq!(workers.len(), 2);
    assert_eq!(workers[0].request.fields.block_size, Some(0));
}

#[test]
fn no_workers_must_be_said() {
    assert_eq!(parse_ok("version: 1\nworkers: []\n"), []);
    assert_eq!(parse_ok("{\"version\": 1, \"workers\": []}"), []);
    for text in ["", " \n\n", "\u{feff}", "\u{feff}\r\n"] {
        assert_eq!(parse(text, "f").unwrap_err().reason(), "empty", "{text:?}");
    }
    for text in
        ["# all gone\n", "---\n", "version: 1\n", "version: 1\nworkers:\n", "version: 1\nworkers: null\n", "[]", "{}"]
    {
        assert_eq!(parse(text, "f").unwrap_err().reason(), "syntax", "{text:?}");
    }
}

#[test]
fn tags_that_are_not_yamls_own_refuse_the_file_wherever_they_are() {
    // A tag may stand at each mark, before keys too.
    let marked = "@version: @1\ndefaults: @{@model_name: @m, taints: @[@a]}\nworkers: @\n- @{@name: @a, \
                  kv_events: @{endpoint: @\"tcp://a:1\"}, topology_domains: @{@zone: @z}}\n";
    assert_eq!(parse_ok(&marked.replace('@', "")).len(), 1);
    for tag in ["!!python/object/apply:os.system", "!ruby/object", "!<tag:example.org,2026:x>", "!x"] {
        for (at, _) in marked.match_indices('@') {
            let text = format!("{}{tag} {}", &marked[..at], &marked[at + 1..]).replace('@', "");
            assert!(error(&text).contains("a tag that is none of YAML's own"), "{text}");
        }
        let empty = format!("version: 1\nworkers: {tag}\n");
        let list = format!("version: 1\nworkers: {tag} []\n");
        let map = format!("version: 1\nworkers: {tag} {{}}\n");
        let whole = format!("{tag}\nversion: 1\nworkers: []\n");
        for text in [empty, list, map, whole] {
            assert_eq!(parse(&text, "f").unwrap_err().reason(), "syntax", "{text}");
        }
    }
    for (text, place) in [
        ("version: 1\nworkers: !x []\n", "2:10: workers: "),
        ("version: 1\ndefaults: {taints: [a, !x b]}\nworkers: []\n", "2:24: defaults.taints[1]: "),
        (
            "version: 1\nworkers:\n- {name: a, topology_domains: {zone: z}}\n- name: b\n  kv_events:\n    endpoint: !x e\n",
            "6:15: workers[1].kv_events.endpoint: ",
        ),
        ("version: 1\nworkers:\n- {? [a] : b, name: !x a}\n", "3:21: workers[0].name: "),
        ("version: 1\nworkers:\n- {name: a, !x block_size: 4}\n", "3:13: workers[0]: "),
        ("!x\nversion: 1\nworkers: []\n", "1:1: a tag"),
    ] {
        assert!(error(text).starts_with(&format!("workers.yaml:{place}")), "{}", error(text));
    }
    for tag in ["!!seq", "!!null", "!!str", "!!map", "!!set", "!!omap", "!!binary", "!"] {
        let text = format!("version: 1\nworkers: {tag}\n");
        assert!(parse(&text, "f").is_err(), "{text}");
    }
    let workers = parse_ok("version: 1\nworkers: !!seq\n- {name: !!str 7, block_size: !!int 16}\n");
    assert_eq!(workers[0].request.fields.block_size, Some(16));
}

#[test]
fn a_refusal_says_whether_text_key_or_value_is_wrong() {
    for (text, reason) in [
        ("version: 1\nworkers:\n- {name: a, block_size: foo}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, block_size: -1}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, block_size: [1]}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, is_eagle: yes}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, worker_role: chef}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, taints: 5}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, kv_events: tcp}\n", "value"),
        ("version: 1\nworkers:\n- 7\n", "value"),
        ("version: one\nworkers: []\n", "value"),
        ("version: 1\ndefaults: {block_size: x}\nworkers: []\n", "value"),
        ("version: 1\nworkers:\n- {name: a, blocksize: 16}\n", "unknown_key"),
        ("version: 1\ndefaults: {endpoint: e}\nworkers: []\n", "unknown_key"),
        ("version: 1\nworker: []\nworkers: []\n", "unknown_key"),
        ("version: 1\nworkers:\n- {name: a, kv_events: {endpoint: e, port: 5}}\n", "unknown_key"),
        ("version: 1\nworkers:\n- {name: a, worker_role: [prefill]}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, worker_role: {prefill: 1}}\n", "value"),
        ("version: 1\nworkers:\n- {name: !!int 7}\n", "value"),
        ("version: 1\nworkers:\n- {name: a, <<: 5}\n", "value"),
        ("version: 1\ndefaults: {model_name: &x m}\nworkers:\n- {name: a, block_size: *x}\n", "value"),
        ("version: 1\nworkers:\n- {name: a}\n- *x\n", "syntax"),
        ("version: 1\nworkers:\n- {name: a\n", "syntax"),
        ("version: 1\nversion: 1\nworkers: []\n", "syntax"),
    ] {
        assert_eq!(parse(text, "f").unwrap_err().reason(), reason, "{text}");
    }
}

#[test]
fn byte_order_mark_and_carriage_returns_are_read() {
    let workers = parse_ok("\u{feff}version: 1\r\nworkers:\r\n  - name: a\r\n    endpoint: http://a\r\n");
    assert_eq!(workers[0].request.fields.endpoint.as_deref(), Some("http://a"));
}

#[test]
fn errors_name_file_line_and_field() {
    for (text, expected) in [
        (
            "version: 1\nworkers:\n  - name: a\n    block_size: x\n",
            "workers.yaml:4:17: workers[0].block_size: invalid u32",
        ),
        (
            "version: 1\nworkers:\n  - name: a\n  - name: b\n    is_eagle: yes\n",
            "workers.yaml:5:15: workers[1].is_eagle: invalid boolean (true or false expected)",
        ),
        (
            "version: 1\nworkers:\n  - {worker_id: 18446744073709551616}\n",
            "workers.yaml:3:17: workers[0].worker_id: invalid u64",
        ),
        (
            "version: 1\nworkers:\n  - {name: a, kv_events: {stride: 3}}\n",
            "workers.yaml:3:27: workers[0].kv_events: missing field `endpoint`",
        ),
        (
            "version: 1\nworkers:\n  - {name: a, kv_events_endpoints: {x: y}}\n",
            "workers.yaml:3:37: workers[0].kv_events_endpoints: invalid u32",
        ),
        (
            "version: 1\ndefaults: {model_name: &x m}\nworkers:\n  - {name: a, block_size: *x}\n",
            "workers.yaml:4:27: workers[0].block_size: invalid u32 (defined at line 2, column 27)",
        ),
        ("version: 1\nworkers: [\n  {name: a", "workers.yaml:3:3: workers: unclosed bracket '{'"),
        ("version: 2\nworkers: []\n", "workers.yaml:1:10: version: 2 is not a version this program reads; it reads 1"),
        (
            "version: 1\nworkers:\n  - {endpoint: e}\n",
            "workers.yaml:3:5: workers[0]: a worker needs a name or a worker_id",
        ),
        ("version: 1\nworkers:\n  - {name: ''}\n", "workers.yaml:3:12: workers[0].name: must not be empty"),
        (
            "version: 1\nworkers:\n  - {worker_id: 1, kv_transfer_preferred_weight: .inf}\n",
            "workers.yaml:3:50: workers[0].kv_transfer_preferred_weight: must be finite",
        ),
        (
            "version: 1\nworkers:\n  - {worker_id: 1, data_parallel_size: 4097}\n",
            "workers.yaml:3:5: workers[0].data_parallel_size: 4097 exceeds the maximum 4096",
        ),
        (
            "version: 1\nworkers:\n  - {worker_id: 1, data_parallel_start_rank: 4294967290, data_parallel_size: 10}\n",
            "workers.yaml:3:5: workers[0].data_parallel_start_rank: ranks 4294967290 to 4294967290 + 10 do not fit in 32 bits",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn unknown_keys_are_errors_everywhere() {
    for (text, field) in [
        ("version: 1\nworkerz: []\n", "workerz"),
        ("version: 1\nworkers:\n  - {name: a, blocksize: 3}\n", "workers[0].blocksize"),
        ("version: 1\ndefaults: {endpoint: e}\nworkers: []\n", "defaults.endpoint"),
        (
            "version: 1\nworkers:\n  - {name: a, kv_events: {endpoint: \"tcp://a:1\", strid: 3}}\n",
            "workers[0].kv_events.strid",
        ),
    ] {
        let error = error(text);
        assert!(error.contains(&format!(": {field}: unknown field")), "{error}");
    }
}

#[test]
fn duplicates_name_both_lines() {
    assert_eq!(
        error("version: 1\nworkers:\n  - {worker_id: 1}\n  - {worker_id: 2}\n  - {worker_id: 1, endpoint: other}\n"),
        "workers.yaml:5:17: workers[2].worker_id: worker_id 1 is already taken on line 3"
    );
    assert_eq!(
        error(
            "version: 1\ndefaults: {model_name: m}\nworkers:\n  - {name: a}\n  - {name: a, model_name: n}\n  - {name: a}\n"
        ),
        "workers.yaml:6:12: workers[2].name: name \"a\" in model \"m\", group \"default\" is already taken on line 4"
    );
    assert_eq!(error("version: 1\nworkers:\n  - name: a\n    name: b\n").split(": ").next(), Some("workers.yaml:4:5"));
}

#[test]
fn a_derived_id_steps_aside_for_one_given_by_hand() {
    let derived = parse_ok("version: 1\nworkers: [{name: a}]\n")[0].request.worker_id;
    let workers = parse_ok(&format!("version: 1\nworkers: [{{name: a}}, {{worker_id: {derived}}}]\n"));
    assert_eq!(workers[0].request.worker_id, derived + 1);
    let both = parse_ok("version: 1\nworkers: [{name: a, worker_id: 5}]\n");
    assert_eq!(both[0].request.worker_id, 5);
}

#[test]
fn event_endpoints_that_cannot_be_counted_are_refused() {
    for (events, size, part) in [
        ("tcp://*:5557", 1, "address to bind"),
        ("tcp://a", 1, "tcp://HOST:PORT"),
        ("tcp://:5557", 1, "tcp://HOST:PORT"),
        ("tcp://a:99999", 1, "tcp://HOST:PORT"),
        ("a:5557", 1, "no scheme"),
        ("ipc:///tmp/x", 2, "no port to count"),
        ("tcp://a:65535", 2, "rank 1 would be on port 65536"),
    ] {
        let text = format!(
            "version: 1\nworkers:\n  - name: a\n    data_parallel_size: {size}\n    kv_events: {{endpoint: \"{events}\"}}\n"
        );
        let error = error(&text);
        assert!(
            error.starts_with("workers.yaml:5:16: workers[0].kv_events.endpoint: ") && error.contains(part),
            "{error}"
        );
    }
    let one = parse_ok("version: 1\nworkers: [{name: a, kv_events: {endpoint: \"ipc:///tmp/x\"}}]\n");
    assert_eq!(one[0].request.fields.kv_events_endpoints[&0], "ipc:///tmp/x");
    let beside = error("version: 1\nworkers: [{name: a, replay_endpoint: x, kv_events: {endpoint: \"ipc:///x\"}}]\n");
    assert!(beside.contains("workers[0].replay_endpoint: cannot stand beside kv_events"), "{beside}");
}

#[test]
fn hostile_text_ends_in_an_error() {
    let nested = format!("version: 1\nworkers: {}", "[".repeat(10_000));
    let mut aliases = String::from("version: 1\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let row = vec![format!("*a{}", i - 1); 10].join(", ");
        aliases.push_str(&format!("a{i}: &a{i} [{row}]\n"));
    }
    for text in [nested, aliases, "\0".to_owned(), "version: 1\nworkers: []\n---\nversion: 1\nworkers: []\n".to_owned()]
    {
        assert!(parse(&text, "f").is_err());
    }
}
