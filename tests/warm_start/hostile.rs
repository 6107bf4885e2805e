//! Peers that mean harm, or are broken: the selector starts all the same, empty and small.

use serde_json::{Value, json};

use super::{
    peer::{Action, Peer, http},
    program::Selector,
    rig::{self, blocking, join},
};

const CHUNK: &str = "/replica_sync/index/chunk";

/// A summary of one rank with a million blocks.
fn summary(version: u32) -> Vec<u8> {
    let rank = json!({"worker_id": 1, "dp_rank": 0, "blocks": 1_000_000, "position": 7, "mark": 7, "trust": "complete",
                      "a_field_of_later_versions": {"x": [1]}});
    let partition = json!({"model_name": "m", "routing_group": "default", "block_size": 4, "ranks": [rank]});
    let summary = json!({"version": version, "instance_id": "other", "ready": true, "partitions": [partition],
                         "later": null});
    http(summary.to_string().as_bytes())
}

/// A chunk as it goes over the wire.
fn chunk(header: &Value, body: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut content = (header.len() as u32).to_le_bytes().to_vec();
    content.extend_from_slice(header.as_bytes());
    content.extend_from_slice(body);
    http(&zstd::bulk::compress(&content, 1).unwrap())
}

fn first(version: u32) -> Vec<u8> {
    let rank = json!({"worker_id": 1, "dp_rank": 0, "blocks": 1, "position": 7, "mark": 7, "trust": "complete"});
    let partition = json!({"model_name": "m", "routing_group": "default", "block_size": 4});
    let header = json!({"version": version, "export": "e", "chunk": 0, "partition": partition, "ranks": [rank],
                        "later": 1, "sections": [{"kind": "later", "bytes": 3}]});
    chunk(&header, b"abc")
}

/// A chunk of runs.
fn runs(number: u64, last: bool, body: &[u8], named: usize) -> Vec<u8> {
    let sections = json!([{"kind": "runs", "bytes": named}]);
    let header = json!({"version": 1, "export": "e", "chunk": number, "last": last, "sections": sections});
    chunk(&header, body)
}

/// One block at the root of a rank.
fn run(rank: u32, tier: u8, blocks: u16) -> Vec<u8> {
    let mut run = rank.to_le_bytes().to_vec();
    run.extend_from_slice(&[tier, 0]);
    run.extend_from_slice(&blocks.to_le_bytes());
    run.extend_from_slice(&[0; 8]);
    run.extend_from_slice(&[1; 16]);
    run
}

/// A peer whose summary is good, with answers to the chunks in order.
async fn peer(answers: Vec<Action>) -> Peer {
    Peer::start("", move |path, before| match path {
        "/replica_sync/index" => Action::Answer(summary(1)),
        _ if path.starts_with(CHUNK) && path.contains("model_name") => {
            if before == 0 {
                answers[0].clone()
            } else {
                Action::Close
            }
        }
        _ => match path.strip_prefix(CHUNK).and_then(|query| query.strip_prefix("?chunk=")) {
            Some(number) => answers.get(number.parse::<usize>().unwrap()).cloned().unwrap_or(Action::Close),
            None => Action::Answer(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()),
        },
    })
    .await
}

/// Resident memory in MiB.
fn resident(selector: &Selector) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", selector.program.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_row_of_chunks_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let body = run(0, 0, 1);
    let rows = vec![
        Action::Answer(first(1)),
        Action::Answer(runs(1, false, &body, body.len())),
        Action::Answer(runs(2, true, &[], 0)),
    ];
    let peer = peer(rows).await;
    let (new, report) = join(directory.path(), &[&peer.url], &[]).await;
    assert_eq!((&report["blocks"], &report["resumed_ranks"]), (&json!(1), &json!(1)), "{report}");
    assert_eq!(blocking(move || rig::held(&new).len()).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_chunks_cost_nothing_but_their_peer() {
    let body = run(0, 0, 1);
    let bomb = http(&zstd::bulk::compress(&vec![0; 200 << 20], 1).unwrap());
    let huge = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000000\r\n\r\n".to_vec();
    let cases: Vec<(&str, Vec<Action>, &str)> = vec![
        ("garbage", vec![Action::Answer(http(b"garbage"))], "snapshot"),
        ("garbage later", vec![Action::Answer(first(1)), Action::Answer(http(&[0xff; 4096]))], "snapshot"),
        ("wrong version", vec![Action::Answer(first(2))], "version"),
        ("a bomb", vec![Action::Answer(first(1)), Action::Answer(bomb)], "too_large"),
        ("an endless stream", vec![Action::Endless(huge)], "too_large"),
        (
            "a run that is longer than its section",
            vec![Action::Answer(first(1)), Action::Answer(runs(1, false, &run(0, 0, u16::MAX), body.len()))],
            "snapshot",
        ),
        (
            "a section that is longer than the chunk",
            vec![Action::Answer(first(1)), Action::Answer(runs(1, false, &body, usize::MAX >> 1))],
            "snapshot",
        ),
        (
            "a rank out of the table",
            vec![Action::Answer(first(1)), Action::Answer(runs(1, false, &run(u32::MAX, 0, 1), body.len()))],
            "snapshot",
        ),
        (
            "a tier that is none",
            vec![Action::Answer(first(1)), Action::Answer(runs(1, false, &run(0, 9, 1), body.len()))],
            "snapshot",
        ),
        (
            "half, then garbage",
            vec![
                Action::Answer(first(1)),
                Action::Answer(runs(1, false, &body, body.len())),
                Action::Answer(http(b"x")),
            ],
            "snapshot",
        ),
        (
            "the same chunk for ever",
            vec![
                Action::Answer(first(1)),
                Action::Answer(runs(1, false, &body, body.len())),
                Action::Answer(runs(1, false, &body, body.len())),
            ],
            "snapshot",
        ),
    ];
    for (name, answers, reason) in cases {
        let directory = tempfile::tempdir().unwrap();
        let peer = peer(answers).await;
        let (new, report) = join(directory.path(), &[&peer.url], &[]).await;
        assert_eq!(report["attempts"][0]["reason"], reason, "{name}: {report}");
        let (held, memory, live) =
            blocking(move || (rig::held(&new), resident(&new), new.call("GET", "/livez", None).0)).await;
        assert!(held.is_empty(), "{name}: {held:?}");
        assert_eq!(live, 200, "{name}");
        assert!(memory < 600, "{name}: {memory} MiB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_refused_aloud_and_the_dump_taken() {
    let directory = tempfile::tempdir().unwrap();
    let dump = json!({"m:default": {"block_size": 4, "events": [{"worker_id": 1, "event": {"data": {"stored": {
        "parent_hash": null, "blocks": [{"block_hash": 1, "tokens_hash": 2}]}}}}]}});
    let peer = Peer::start("", move |path, _| match path {
        "/replica_sync/index" => Action::Answer(summary(2)),
        "/dump" => Action::Answer(http(dump.to_string().as_bytes())),
        _ => Action::Close,
    })
    .await;
    let (new, report) = join(directory.path(), &[&peer.url], &[]).await;
    assert_eq!((&report["attempts"][0]["kind"], &report["blocks"]), (&json!("dump"), &json!(1)), "{report}");
    let log = new.program.log();
    assert!(log.contains("has version 2, this selector reads version 1"), "{log}");
    assert_eq!(blocking(move || rig::held(&new).len()).await, 1);
}

/// Two that list each other and themselves: both start empty, and quickly.
#[tokio::test(flavor = "multi_thread")]
async fn a_selector_leaves_itself_out() {
    let directory = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let report = blocking(move || {
        let selector = Selector::start_on(port, directory.path(), &[&rig::from_peers(&[&url])], &[]);
        rig::ready(&selector)
    })
    .await;
    assert_eq!(report["attempts"][0]["reason"], "itself", "{report}");
}
