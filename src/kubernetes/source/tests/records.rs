//! What a record says, and who says it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::{
    engine::{Answer, EngineFacts, Publisher, Socket},
    testing::{Bed, POOL, pod, slice, with},
};
use crate::selection::worker::{KvTransferEnforcement, WorkerFields, WorkerRole};

fn bed(spec: &str, annotations: Value) -> Bed {
    let mut bed = Bed::with_pods(spec);
    bed.slice(slice("a", &[("w-0", "u-0", "10.0.0.1", true)]));
    bed.pod(with(pod("w-0", "u-0", "10.0.0.1"), "/metadata/annotations", annotations));
    bed
}

fn fields(bed: &mut Bed) -> WorkerFields {
    bed.records().remove("w-0").unwrap().request.fields
}

#[test]
fn everything_of_a_pool_is_in_the_record() {
    let spec = "
      selectorRef: {name: fleet}
      modelName: m
      role: Prefill
      workers: {service: {name: llm-workers}}
      endpoint: {scheme: https, port: 8443, path: /v1}
      blockSize: 64
      dataParallel: {size: 2, startRank: 4}
      kvEvents: {port: 5000, stride: 10, replayPort: 6000}
      capacity: {maxNumBatchedTokens: 8192, totalKvBlocks: 20000}
      taints: [b, a]
      topology: {zone: topology.kubernetes.io/zone, rack: example.com/rack}
      kvTransfer: {domain: zone, enforcement: Required, preferredWeight: 0.5}
      routerHint: {workerType: w, sourceControlPort: 7000}
      eagle: true
    ";
    let mut bed = bed(spec, Value::Null);
    bed.node("node-a", &[("topology.kubernetes.io/zone", "z1"), ("example.com/rack", "r1"), ("x", "y")]);
    let record = bed.records().remove("w-0").unwrap();
    assert_eq!((&*record.request.model_name, &*record.request.routing_group), ("m", "prefill"));
    let by_rank = |ports: [u16; 2]| [4, 5].into_iter().zip(ports.map(|p| format!("tcp://10.0.0.1:{p}"))).collect();
    assert_eq!(
        record.request.fields,
        WorkerFields {
            endpoint: Some("https://10.0.0.1:8443/v1".to_owned()),
            kv_events_endpoint: None,
            kv_events_endpoints: by_rank([5040, 5050]),
            replay_endpoint: None,
            block_size: Some(64),
            data_parallel_start_rank: Some(4),
            data_parallel_size: Some(2),
            max_num_batched_tokens: Some(8192),
            total_kv_blocks: Some(20_000),
            stable_routing_id: None,
            is_eagle: Some(true),
            taints: BTreeSet::from(["a".to_owned(), "b".to_owned()]),
            topology_domains: [("rack", "r1"), ("zone", "z1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            kv_transfer_domain: Some("zone".to_owned()),
            kv_transfer_enforcement: Some(KvTransferEnforcement::Required),
            kv_transfer_preferred_weight: Some(0.5),
            router_hint_worker_type: Some("w".to_owned()),
            router_hint_source_control_endpoints: by_rank([7040, 7050]),
            kv_event_source_mode: None,
            replay_endpoints: by_rank([6040, 6050]),
            worker_role: Some(WorkerRole::Prefill),
        }
    );
    bed.node("node-a", &[("topology.kubernetes.io/zone", "z2")]);
    assert_eq!(fields(&mut bed).topology_domains, [("zone".to_owned(), "z2".to_owned())].into());
}

#[test]
fn one_rank_has_its_replay_where_the_reference_looks_for_it() {
    let mut bed = bed(&POOL.replace("{port: 5557}", "{port: 5557, replayPort: 5657}"), Value::Null);
    let fields = fields(&mut bed);
    assert_eq!(fields.replay_endpoint.as_deref(), Some("tcp://10.0.0.1:5657"));
    assert!(fields.replay_endpoints.is_empty());
    assert_eq!((fields.data_parallel_size, fields.worker_role), (None, None));
}

#[test]
fn without_nodes_zones_come_from_slices() {
    let spec = format!("{POOL}  topology: {{zone: topology.kubernetes.io/zone, rack: example.com/rack}}\n");
    let mut bed = Bed::without_pods(&spec);
    bed.slice(with(slice("a", &[("w-0", "u-0", "10.0.0.1", true)]), "/endpoints/0/zone", json!("z9")));
    assert_eq!(fields(&mut bed).topology_domains, [("zone".to_owned(), "z9".to_owned())].into());
}

#[test]
fn a_rank_past_the_last_port_rejects_the_worker() {
    let mut bed = bed(&format!("{POOL}  dataParallel: {{size: 2}}\n").replace("5557", "65535"), Value::Null);
    assert_eq!(bed.rejections(), ["w-0 PortOutOfRange"]);
}

#[test]
fn annotations_of_a_pod_win() {
    let annotations = json!({
        "pointsman.dev/block-size": "32", "pointsman.dev/endpoint-port": "9000",
        "pointsman.dev/kv-events-port": "1000", "pointsman.dev/replay-port": " 2000 ",
        "pointsman.dev/data-parallel-size": "2", "pointsman.dev/data-parallel-start-rank": "1",
        "pointsman.dev/max-num-batched-tokens": "7", "pointsman.dev/total-kv-blocks": "8",
        "pointsman.dev/taints": "x, y,", "pointsman.dev/stable-routing-id": "s",
        "pointsman.dev/exclude": "false", "pointsman.dev/unheard-of": "1", "example.com/other": "1",
    });
    let mut bed = bed(&format!("{POOL}  taints: [a]\n"), annotations);
    let fields = fields(&mut bed);
    assert_eq!(fields.endpoint.as_deref(), Some("http://10.0.0.1:9000"));
    assert_eq!(
        (fields.block_size, fields.data_parallel_size, fields.data_parallel_start_rank),
        (Some(32), Some(2), Some(1))
    );
    assert_eq!(fields.kv_events_endpoints.values().collect::<Vec<_>>(), ["tcp://10.0.0.1:1001", "tcp://10.0.0.1:1002"]);
    assert_eq!(fields.replay_endpoints.values().collect::<Vec<_>>(), ["tcp://10.0.0.1:2001", "tcp://10.0.0.1:2002"]);
    assert_eq!((fields.max_num_batched_tokens, fields.total_kv_blocks), (Some(7), Some(8)));
    assert_eq!(fields.taints.into_iter().collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(fields.stable_routing_id.as_deref(), Some("s"));
    let warnings = bed.outcome("llama").warnings.clone();
    assert!(matches!(&warnings[..], [one] if one.contains("pointsman.dev/unheard-of")), "{warnings:?}");
}

#[test]
fn an_annotation_that_is_nonsense_rejects_its_pod_alone() {
    for (name, value) in [
        ("block-size", "0"),
        ("block-size", "nonsense"),
        ("endpoint-port", "70000"),
        ("data-parallel-size", "4097"),
        ("data-parallel-start-rank", "-1"),
        ("total-kv-blocks", "9007199254740992"),
        ("stable-routing-id", " "),
        ("exclude", "perhaps"),
    ] {
        let mut bed = bed(POOL, json!({format!("pointsman.dev/{name}"): value}));
        bed.slice(slice("b", &[("w-1", "u-1", "10.0.0.2", true)]));
        bed.pod(pod("w-1", "u-1", "10.0.0.2"));
        assert_eq!(bed.lines(), ["w-1 http://10.0.0.2:8000"], "{name}");
        assert_eq!(bed.rejections(), ["w-0 BadAnnotation"], "{name}");
        let outcome = bed.outcome("llama");
        assert!(outcome.rejections[0].message.contains(name) && outcome.rejections[0].message.contains(value.trim()));
    }
    let mut bed = bed(POOL, json!({"pointsman.dev/exclude": "true"}));
    assert_eq!(bed.rejections(), ["w-0 Excluded"]);
}

const ASKED: &str = "
  selectorRef: {name: fleet}
  modelName: m
  workers: {service: {name: llm-workers}}
  endpoint: {port: http}
  kvEvents: {source: Engine}
";

fn facts(block_size: Option<u32>) -> EngineFacts {
    let socket = |port| Socket { host: None, port };
    let publisher =
        |rank: u16| (u32::from(rank), Publisher { events: socket(5557 + rank), replay: Some(socket(5657 + rank)) });
    EngineFacts {
        route: "GET /kv_event_sources",
        block_size,
        block_size_route: block_size.map(|_| "GET /metrics"),
        total_kv_blocks: None,
        publishers: [publisher(0), publisher(1)].into(),
    }
}

fn answer(bed: &mut Bed, answer: Answer) {
    bed.settle();
    let (key, url) = bed.world.asks().pop_first().expect("one engine is to be asked");
    assert_eq!(url, "http://10.0.0.1:8000");
    bed.world.answer(key, answer);
}

#[test]
fn an_engine_is_asked_and_until_it_answers_there_is_no_worker() {
    let mut bed = bed(ASKED, Value::Null);
    assert_eq!(bed.rejections(), ["w-0 EngineUnreachable"]);
    answer(&mut bed, Answer::Failed("connection refused".to_owned()));
    assert!(bed.outcome("llama").rejections[0].message.contains("connection refused"));
    answer(&mut bed, Answer::Facts(facts(Some(32))));
    let told = fields(&mut bed);
    assert_eq!((told.block_size, told.data_parallel_size), (Some(32), Some(2)));
    assert_eq!(told.kv_events_endpoints[&1], "tcp://10.0.0.1:5558");
    assert_eq!(told.replay_endpoints[&1], "tcp://10.0.0.1:5658");
    assert!(bed.world.asks().is_empty(), "what was answered is not asked again");
    let sources: Vec<String> =
        bed.outcome("llama").sources.iter().map(|s| format!("{} {} {}", s.field, s.value, s.source)).collect();
    assert_eq!(
        sources,
        [
            "blockSize 32 GET /metrics",
            "dataParallel.size 2 GET /kv_event_sources",
            "kvEvents.port 5557 GET /kv_event_sources",
            "kvEvents.replayPort 5657 GET /kv_event_sources",
        ]
    );
    // Another container is another engine.
    bed.pod(with(
        pod("w-0", "u-0", "10.0.0.1"),
        "/status/containerStatuses",
        json!([super::super::testing::container("containerd://new", 50)]),
    ));
    assert_eq!(bed.rejections(), ["w-0 EngineUnreachable"]);
    answer(&mut bed, Answer::Facts(facts(None)));
    assert_eq!(bed.rejections(), ["w-0 EngineMismatch"]);
}

#[test]
fn what_the_pool_or_the_pod_says_wins_over_the_engine() {
    let spec = ASKED.replace("{source: Engine}", "{source: Engine, port: 7000}\n  blockSize: 16");
    let mut bed = bed(&spec, json!({"pointsman.dev/block-size": "8"}));
    answer(&mut bed, Answer::Facts(facts(Some(32))));
    let fields = fields(&mut bed);
    assert_eq!((fields.block_size, fields.data_parallel_size), (Some(8), Some(2)));
    assert_eq!(fields.kv_events_endpoints[&1], "tcp://10.0.0.1:7001");
    let outcome = bed.outcome("llama");
    let sources: Vec<&str> = outcome.sources.iter().map(|s| s.source.as_str()).collect();
    assert_eq!(sources, ["Annotation", "GET /kv_event_sources", "Spec"]);
}

#[test]
fn an_engine_that_is_left_nothing_to_say_is_not_asked() {
    let spec =
        ASKED.replace("{source: Engine}", "{source: Engine, port: 7000}\n  blockSize: 16\n  dataParallel: {size: 1}");
    let mut bed = bed(&spec, Value::Null);
    assert_eq!(bed.lines(), ["w-0 http://10.0.0.1:8000"]);
    assert!(bed.world.asks().is_empty());
}
