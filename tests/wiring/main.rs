//! `pointsman discover` wires selectors to each other: fakes of both kinds, the reference itself, and ours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fake;
#[path = "../program/mod.rs"]
mod program;

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    time::{Duration, Instant},
};

use fake::Fake;
use program::{
    Program, Selector,
    client::{self, Request as Call},
    command,
    reference::Reference,
    wait_for,
};
use serde_json::json;

const EVENTS_OFF: [(&str, &str); 1] = [("DYN_ROUTER_USE_KV_EVENTS", "false")];

struct Discover {
    directory: tempfile::TempDir,
    file: PathBuf,
    program: Option<Program>,
}

impl Discover {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("workers.yaml");
        fs::write(&file, "version: 1\nworkers: []\n").unwrap();
        Self { directory, file, program: None }
    }

    fn words<'a>(&'a self, selectors: &'a [String], flags: &[&'a str]) -> Vec<&'a str> {
        let mut words = vec!["discover", "--workers-file", self.file.to_str().unwrap()];
        words.extend(selectors.iter().flat_map(|s| ["--selector", s.as_str()]));
        words.extend_from_slice(flags);
        words
    }

    fn start(&mut self, selectors: &[String], flags: &[&str]) {
        self.program = Some(Program::start(self.directory.path(), &self.words(selectors, flags), &[]));
    }

    /// Runs to the end; its exit code and output.
    fn run(&self, selectors: &[String], flags: &[&str]) -> (i32, String) {
        let output = command(&self.words(selectors, flags), &[]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    }

    /// The port of its state server.
    fn state_port(&self) -> u16 {
        let program = self.program.as_ref().unwrap();
        wait_for("the line that tells the state's address", || {
            let log = program.log();
            let (_, rest) = log.split_once("state is told address=")?;
            rest.split_once(['\n', ' '])?.0.rsplit_once(':')?.1.parse().ok()
        })
    }
}

fn get(port: u16, path: &str) -> client::Response {
    client::send(port, &Call::json("GET", path, None), program::PATIENCE).unwrap()
}

fn dead() -> String {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", closed.local_addr().unwrap())
}

#[test]
fn each_gets_all_others_and_one_that_restarted_or_lost_a_peer_gets_them_again() {
    let ours = [Fake::telling("a", "tcp://10.0.0.1:9092"), Fake::telling("b", "tcp://10.0.0.2:9092")];
    let plain = Fake::plain();
    let selectors = [ours[0].url(), ours[1].url(), plain.named("tcp://10.0.0.3:9192")];
    let mut discover = Discover::new();
    discover.start(&selectors, &[]);
    let wired = || {
        ours[0].wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://10.0.0.3:9192"]);
        ours[1].wait_for_peers(&["tcp://10.0.0.1:9092", "tcp://10.0.0.3:9192"]);
        plain.wait_for_peers(&["tcp://10.0.0.1:9092", "tcp://10.0.0.2:9092"]);
    };
    wired();
    plain.memory.lock().peers.remove("tcp://10.0.0.1:9092");
    {
        let mut memory = ours[1].memory.lock();
        memory.peers.clear();
        memory.instance = Some("b, restarted");
    }
    wired();
    let registered = ours[0].log().len() + ours[1].log().len() + plain.log().len();
    assert_eq!(registered, 6 + 3, "something was registered twice");
}

#[test]
fn a_publisher_that_moves_is_replaced_everywhere() {
    let moving = Fake::telling("a", "tcp://10.0.0.1:9092");
    let others = [Fake::telling("b", "tcp://10.0.0.2:9092"), Fake::plain()];
    others[1].memory.lock().peers.insert("tcp://by-hand:1".to_owned());
    let mut discover = Discover::new();
    discover.start(&[moving.url(), others[0].url(), others[1].named("tcp://10.0.0.3:9092")], &[]);
    others[1].wait_for_peers(&["tcp://10.0.0.1:9092", "tcp://10.0.0.2:9092", "tcp://by-hand:1"]);
    moving.memory.lock().endpoint = Some("tcp://10.0.0.9:9092".to_owned());
    others[0].wait_for_peers(&["tcp://10.0.0.3:9092", "tcp://10.0.0.9:9092"]);
    others[1].wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://10.0.0.9:9092", "tcp://by-hand:1"]);
    // Where it listens itself nothing changed.
    moving.wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092"]);
    assert!(!moving.log().iter().any(|line| line.starts_with("deregister")), "{:?}", moving.log());
}

#[test]
fn one_process_under_two_addresses_is_not_wired_to_itself() {
    let twice = Fake::telling("same", "tcp://10.0.0.1:9092");
    let second = twice.serve(TcpListener::bind("127.0.0.1:0").unwrap());
    let other = Fake::plain();
    let discover = Discover::new();
    let selectors = [twice.url(), format!("http://127.0.0.1:{second}"), other.named("tcp://10.0.0.2:9092")];
    let (code, text) = discover.run(&selectors, &["--once"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("the same selector as"), "{text}");
    twice.wait_for_peers(&["tcp://10.0.0.2:9092"]);
    other.wait_for_peers(&["tcp://10.0.0.1:9092"]);
    assert_eq!(other.log(), ["register tcp://10.0.0.1:9092"]);
}

#[test]
fn names_of_one_address_are_one_selector_though_it_tells_no_identity() {
    let plain = Fake::plain();
    let discover = Discover::new();
    let (code, text) = discover.run(&[plain.url(), format!("http://localhost:{}", plain.port)], &["--once"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("the same selector as").count(), 2, "{text}");
    plain.wait_for_peers(&[]);
    assert!(plain.log().is_empty());
}

#[test]
fn two_selectors_with_one_publisher_are_an_error_with_a_way_out() {
    let fakes = [Fake::plain(), Fake::plain()];
    let discover = Discover::new();
    let (code, text) = discover.run(&fakes.each_ref().map(Fake::url), &["--once"]);
    assert_eq!(code, 1, "{text}");
    assert_eq!(text.matches("name the right ones after a comma in --selector").count(), 2, "{text}");
    assert!(fakes.iter().all(|f| f.log().is_empty()));
}

#[test]
fn selectors_without_replica_sync_are_told_and_no_failure() {
    let on = Fake::telling("a", "tcp://10.0.0.1:9092");
    let off = [Fake::telling("b", "tcp://10.0.0.2:9092"), Fake::plain()];
    for fake in &off {
        fake.memory.lock().disabled = true;
    }
    let discover = Discover::new();
    let selectors = [on.url(), off[0].url(), off[1].named("tcp://10.0.0.3:9092")];
    let (code, text) = discover.run(&selectors, &["--once"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("replica sync is off there").count(), 2, "{text}");
    assert!(on.log().is_empty(), "{:?}", on.log());
}

#[test]
fn a_dead_a_silent_and_a_broken_selector_keep_nobody_from_being_wired() {
    let well = [Fake::telling("a", "tcp://10.0.0.1:9092"), Fake::telling("b", "tcp://10.0.0.2:9092")];
    let broken = Fake::telling("c", "tcp://10.0.0.3:9092");
    broken.memory.lock().broken = Some(500);
    // Connections are accepted by the system and nobody ever answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{},tcp://10.0.0.4:9092", silent.local_addr().unwrap());
    let selectors = [dead() + ",tcp://10.0.0.5:9092", silent_url, broken.url(), well[0].url(), well[1].url()];
    let mut discover = Discover::new();
    discover.start(&selectors, &[]);
    // Nobody is told of those that never answered.
    well[0].wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092"]);
    well[1].wait_for_peers(&["tcp://10.0.0.1:9092", "tcp://10.0.0.3:9092"]);
    wait_for("a second attempt at the broken one", || (broken.log().len() >= 4).then_some(()));
    broken.memory.lock().broken = None;
    broken.wait_for_peers(&["tcp://10.0.0.1:9092", "tcp://10.0.0.2:9092"]);
}

#[test]
fn a_failed_registration_is_tried_again_after_five_seconds_and_not_before() {
    let fakes = [Fake::telling("a", "tcp://10.0.0.1:9092"), Fake::telling("b", "tcp://10.0.0.2:9092")];
    fakes[0].memory.lock().broken = Some(503);
    let mut discover = Discover::new();
    discover.start(&fakes.each_ref().map(Fake::url), &[]);
    wait_for("a first attempt", || (!fakes[0].log().is_empty()).then_some(()));
    let first = Instant::now();
    wait_for("a second attempt", || (fakes[0].log().len() > 1).then_some(()));
    assert!(first.elapsed() > Duration::from_secs(4), "{:?}", first.elapsed());
}

#[test]
fn departed_selectors_are_forgotten_over_a_restart_and_strangers_stay_but_for_prune() {
    let fakes = [Fake::plain(), Fake::plain(), Fake::plain()];
    let publishers = ["tcp://10.0.0.1:9092", "tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092"];
    let selectors: Vec<String> = fakes.iter().zip(publishers).map(|(f, p)| f.named(p)).collect();
    fakes[0].memory.lock().peers.insert("tcp://by-hand:1".to_owned());
    let discover = Discover::new();
    let state = discover.directory.path().join("state");
    let remembered = ["--once", "--state-dir", state.to_str().unwrap()];
    assert_eq!(discover.run(&selectors, &remembered).0, 0);
    fakes[0].wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092", "tcp://by-hand:1"]);
    // Without a memory nobody can tell whose the third is.
    assert_eq!(discover.run(&selectors[..2], &["--once"]).0, 0);
    fakes[0].wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092", "tcp://by-hand:1"]);
    // One that does not answer has not left, and whose a stranger is cannot be told meanwhile.
    fakes[2].memory.lock().down = true;
    let with_prune = [remembered.as_slice(), &["--prune"]].concat();
    let (code, text) = discover.run(&selectors, &with_prune);
    assert_eq!(code, 1, "{text}");
    fakes[0].wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092", "tcp://by-hand:1"]);
    assert_eq!(discover.run(&selectors[..2], &remembered).0, 0);
    fakes[0].wait_for_peers(&["tcp://10.0.0.2:9092", "tcp://by-hand:1"]);
    fakes[1].wait_for_peers(&["tcp://10.0.0.1:9092"]);
    assert_eq!(discover.run(&selectors[..2], &with_prune).0, 0);
    fakes[0].wait_for_peers(&["tcp://10.0.0.2:9092"]);
}

#[test]
fn the_token_goes_along() {
    let fakes = [Fake::telling("a", "tcp://10.0.0.1:9092"), Fake::telling("b", "tcp://10.0.0.2:9092")];
    fakes[0].memory.lock().token = Some("s3cret");
    let discover = Discover::new();
    let token = discover.directory.path().join("token");
    fs::write(&token, "s3cret\n").unwrap();
    let selectors = fakes.each_ref().map(Fake::url);
    let (code, text) = discover.run(&selectors, &["--once"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("tcp://10.0.0.2:9092 is missing") && text.contains("401"), "{text}");
    let (code, text) = discover.run(&selectors, &["--once", "--admin-token-file", token.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("wired, 1 of 1") && text.contains("all selectors agree"), "{text}");
}

#[test]
fn a_dry_run_tells_peers_and_changes_none() {
    let fakes = [Fake::telling("a", "tcp://10.0.0.1:9092"), Fake::telling("b", "tcp://10.0.0.2:9092")];
    fakes[0].memory.lock().peers.insert("tcp://by-hand:1".to_owned());
    let discover = Discover::new();
    let selectors = fakes.each_ref().map(Fake::url);
    let (code, text) = discover.run(&selectors, &["--dry-run"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("peers: 1 to register, 0 to remove").count(), 2, "{text}");
    assert!(text.contains(&format!("  + tcp://10.0.0.2:9092  of {}", fakes[1].url())), "{text}");
    assert!(text.contains("! tcp://by-hand:1 is none of these selectors"), "{text}");
    let (_, text) = discover.run(&selectors, &["--dry-run", "--prune"]);
    assert!(text.contains("peers: 1 to register, 1 to remove") && text.contains("  - tcp://by-hand:1"), "{text}");
    assert!(fakes.iter().all(|f| f.log().is_empty()));
}

#[test]
fn a_dry_run_fails_on_a_clash() {
    let fakes = [Fake::telling("a", "tcp://10.0.0.1:9092"), Fake::telling("b", "tcp://10.0.0.1:9092")];
    let discover = Discover::new();
    let (code, text) = discover.run(&fakes.each_ref().map(Fake::url), &["--dry-run"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("publishes at tcp://10.0.0.1:9092, as"), "{text}");
    assert!(fakes.iter().all(|f| f.log().is_empty()));
}

#[test]
fn the_state_of_every_target_is_told_by_http() {
    let fakes = [Fake::telling("a", "tcp://10.0.0.1:9092"), Fake::telling("b", "tcp://10.0.0.2:9092")];
    fakes[1].memory.lock().broken = Some(503);
    let dead = dead();
    let mut discover = Discover::new();
    let selectors = [fakes[0].url(), fakes[1].url(), dead.clone()];
    discover.start(&selectors, &["--http-port", "0", "--host", "127.0.0.1"]);
    let port = discover.state_port();
    let status = || get(port, "/status").json().unwrap();
    let state = |at: usize, part: &str| status()["targets"][at][part]["state"].as_str().unwrap().to_owned();
    wait_for("the first to be wired", || {
        let connected = status()["targets"][0]["peers"]["connected"].as_u64();
        (state(0, "peers") == "wired" && connected == Some(1)).then_some(())
    });
    wait_for("the second to be incomplete", || (state(1, "peers") == "incomplete").then_some(()));
    wait_for("the third to be unreachable", || (state(2, "catalog") == "unreachable").then_some(()));
    let told = status();
    assert_eq!(told["agreed"], false);
    assert_eq!(told["source"]["generation"], 1, "{told}");
    let (first, second, third) = (&told["targets"][0], &told["targets"][1], &told["targets"][2]);
    assert_eq!((&first["selector"], &third["selector"]), (&json!(fakes[0].url()), &json!(dead)));
    assert_eq!(first["catalog"]["digest"], told["source"]["digest"]);
    assert!(first["catalog"]["last_success_seconds"].as_f64().unwrap() < 60.0, "{told}");
    assert_eq!(first["peers"]["registered"], json!(["tcp://10.0.0.2:9092"]));
    assert_eq!(first["peers"]["connected"], 1);
    assert_eq!(second["peers"]["missing"][0]["endpoint"], "tcp://10.0.0.1:9092");
    assert!(second["peers"]["missing"][0]["reason"].as_str().unwrap().contains("503"), "{told}");
    assert!(third["catalog"]["last_error"].as_str().unwrap().contains("refused"), "{told}");
    assert_eq!(third["peers"]["state"], "unreachable");
    assert_eq!(first["peers"]["awaited"], json!([dead]));
    let metrics = String::from_utf8(get(port, "/metrics").body).unwrap();
    for part in [
        format!("pointsman_discovery_peers{{target=\"{}\",state=\"missing\"}} 1", fakes[1].url()),
        format!("pointsman_discovery_wired{{target=\"{}\"}} 1", fakes[0].url()),
        "pointsman_source_workers 0".to_owned(),
    ] {
        assert!(metrics.contains(&part), "no {part} in\n{metrics}");
    }
    assert_eq!((get(port, "/livez").status, get(port, "/elsewhere").status), (200, 404));
    let log = discover.program.as_ref().unwrap().log();
    assert!(log.contains("catalog 1 applied; peers wired, 1 of 1"), "{log}");
    fakes[1].memory.lock().broken = None;
    wait_for("the second to be wired", || (state(1, "peers") == "wired").then_some(()));
}

#[test]
fn selectors_of_ours_without_replica_sync_are_told() {
    let logs = tempfile::tempdir().unwrap();
    let ours = [(); 2].map(|()| Selector::start(logs.path(), &[], &EVENTS_OFF));
    let discover = Discover::new();
    let selectors = [ours[0].url() + ",tcp://127.0.0.1:1", ours[1].url() + ",tcp://127.0.0.1:2"];
    let (code, text) = discover.run(&selectors, &["--once"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("replica sync is off there").count(), 2, "{text}");
}

#[test]
fn the_reference_is_wired_kept_wired_and_told_when_its_sync_is_off() {
    let logs = tempfile::tempdir().unwrap();
    let mut references = [(); 2].map(|()| Reference::start(logs.path(), true));
    let off = Reference::start(logs.path(), false);
    let selectors = |references: &[Reference; 2]| {
        let mut selectors: Vec<String> =
            references.iter().map(|r| format!("{},{}", r.url(), r.publisher().unwrap())).collect();
        selectors.push(format!("{},tcp://127.0.0.1:9", off.url()));
        selectors
    };
    let mut discover = Discover::new();
    let (code, text) = discover.run(&selectors(&references), &["--once"]);
    assert_eq!(code, 0, "{text}\n{}", references[0].program.log());
    assert_eq!(text.matches("wired, 1 of 1").count(), 2, "{text}");
    assert!(text.contains("replica sync is off there"), "{text}");
    discover.start(&selectors(&references), &[]);
    // The same ports, no peers: no change of the file is needed.
    references[0].restart(logs.path());
    wait_for("the restarted one to be wired again", || {
        let peers = get(references[0].port, "/replica_sync/peers").json()?;
        (peers == json!([references[1].publisher().unwrap()])).then_some(())
    });
}
