//! `pointsman discover`: a workers file applied to selectors elsewhere, ours and those that know `/workers` alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod program;

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use program::{Program, Selector, command, replace, wait_for};
use serde_json::{Value, json};

const EVENTS_OFF: [(&str, &str); 1] = [("DYN_ROUTER_USE_KV_EVENTS", "false")];

fn file_of(ids: &[u64]) -> String {
    let rows: String =
        ids.iter().map(|id| format!("- {{worker_id: {id}, endpoint: 'http://w{id}', block_size: 4}}\n")).collect();
    if ids.is_empty() { "version: 1\nworkers: []\n".to_owned() } else { format!("version: 1\nworkers:\n{rows}") }
}

struct Discover {
    directory: tempfile::TempDir,
    path: PathBuf,
    program: Option<Program>,
}

impl Discover {
    fn new(ids: &[u64]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("workers.yaml");
        fs::write(&path, file_of(ids)).unwrap();
        Self { directory, path, program: None }
    }

    fn words<'a>(&'a self, selectors: &'a [String], flags: &[&'a str]) -> Vec<&'a str> {
        let mut words = vec!["discover", "--workers-file", self.path.to_str().unwrap()];
        words.extend(selectors.iter().flat_map(|s| ["--selector", s.as_str()]));
        words.extend_from_slice(flags);
        words
    }

    fn start(&mut self, selectors: &[String], flags: &[&str]) {
        let program = Program::start(self.directory.path(), &self.words(selectors, flags), &[]);
        self.program = Some(program);
    }

    /// Runs to the end; its exit code and output.
    fn run(&self, selectors: &[String], flags: &[&str]) -> (i32, String) {
        let output = command(&self.words(selectors, flags), &[]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    }

    fn set(&self, ids: &[u64]) {
        replace(&self.path, &file_of(ids));
    }
}

/// A selector of the reference's kind: workers and loads, nothing else, every request written down.
#[derive(Default)]
struct Memory {
    log: Vec<String>,
    workers: BTreeMap<u64, Value>,
    /// Every request is answered with this status.
    broken: Option<u16>,
}

struct Fake {
    memory: Arc<Mutex<Memory>>,
    url: String,
    _runtime: tokio::runtime::Runtime,
}

impl Fake {
    fn start() -> Self {
        async fn answer(State(memory): State<Arc<Mutex<Memory>>>, request: Request) -> Response {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            let mut memory = memory.lock();
            let path = parts.uri.path().to_owned();
            memory.log.push(format!("{} {path}", parts.method));
            if let Some(status) = memory.broken {
                return StatusCode::from_u16(status).unwrap().into_response();
            }
            match (parts.method, path.as_str()) {
                (Method::GET, "/workers") => Json(memory.workers.values().cloned().collect::<Vec<_>>()).into_response(),
                (Method::POST, "/workers") => {
                    let mut record: Value = serde_json::from_slice(&body).unwrap();
                    record["lifecycle"] = json!("schedulable");
                    memory.workers.insert(record["worker_id"].as_u64().unwrap(), record.clone());
                    (StatusCode::CREATED, Json(record)).into_response()
                }
                (Method::DELETE, path) if path.starts_with("/workers/") => {
                    let id = path.trim_start_matches("/workers/").parse().unwrap();
                    memory
                        .workers
                        .remove(&id)
                        .map_or(StatusCode::NOT_FOUND.into_response(), |r| Json(r).into_response())
                }
                (Method::GET, "/loads") => Json(json!([])).into_response(),
                _ => (StatusCode::NOT_FOUND, Json(json!({"error": "route not found"}))).into_response(),
            }
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let memory = Arc::new(Mutex::new(Memory::default()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(Arc::clone(&memory));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        Self { memory, url, _runtime: runtime }
    }

    fn wait_for_workers(&self, ids: &[u64]) {
        wait_for(&format!("workers {ids:?}"), || self.memory.lock().workers.keys().eq(ids.iter()).then_some(()));
    }

    fn count(&self, part: &str) -> usize {
        self.memory.lock().log.iter().filter(|l| l.contains(part)).count()
    }
}

#[test]
fn two_selectors_follow_one_file_and_a_restarted_one_is_filled_again() {
    let logs = tempfile::tempdir().unwrap();
    let first = Selector::start(logs.path(), &[], &EVENTS_OFF);
    let second = Selector::start(logs.path(), &[], &EVENTS_OFF);
    let mut discover = Discover::new(&[1, 2, 3]);
    discover.start(&[first.url(), second.url()], &["--catalog-name", "rack-1"]);
    first.wait_for_workers(&[1, 2, 3]);
    second.wait_for_workers(&[1, 2, 3]);
    discover.set(&[1, 2, 4]);
    first.wait_for_workers(&[1, 2, 4]);
    second.wait_for_workers(&[1, 2, 4]);
    let digests = [&first, &second].map(|s| s.owner("file.rack-1").unwrap()["digest"].clone());
    assert_eq!(digests[0], digests[1]);
    // The same port, an empty catalog: no edit is needed.
    let port = first.address.port();
    drop(first);
    let again = Selector::start_on(port, logs.path(), &[], &EVENTS_OFF);
    let back = Instant::now();
    again.wait_for_workers(&[1, 2, 4]);
    println!("filled again {:?} after it was back", back.elapsed());
}

#[test]
fn a_dead_and_a_silent_selector_delay_nobody() {
    let logs = tempfile::tempdir().unwrap();
    let live = Selector::start(logs.path(), &[], &EVENTS_OFF);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    // Connections are accepted by the system and nobody ever answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let mut discover = Discover::new(&[1]);
    discover.start(&[dead, silent_url, live.url()], &[]);
    live.wait_for_workers(&[1]);
    for round in 2..6 {
        discover.set(&[1, round]);
        live.wait_for_workers(&[1, round]);
    }
}

#[test]
fn half_written_files_reach_nobody_and_equal_content_sends_nothing() {
    let fake = Fake::start();
    let mut discover = Discover::new(&[1, 2, 3]);
    discover.start(std::slice::from_ref(&fake.url), &[]);
    fake.wait_for_workers(&[1, 2, 3]);
    let good = file_of(&[1, 2, 3]);
    let refusals = || discover.program.as_ref().unwrap().log().matches("workers file refused").count();
    // Empty for a while, then written: the reader sees it empty.
    fs::write(&discover.path, "").unwrap();
    wait_for("the first refusal", || (refusals() == 1).then_some(()));
    fs::write(&discover.path, &good[..50]).unwrap();
    wait_for("the second refusal", || (refusals() == 2).then_some(()));
    fs::write(&discover.path, &good).unwrap();
    for _ in 0..50 {
        replace(&discover.path, &good);
    }
    assert_eq!((fake.count("POST"), fake.count("DELETE")), (3, 0));
    discover.set(&[1, 2]);
    fake.wait_for_workers(&[1, 2]);
    assert_eq!((fake.count("POST"), fake.count("DELETE")), (3, 1));
}

#[test]
fn a_selector_that_fails_gets_the_file_when_it_is_well() {
    let fake = Fake::start();
    fake.memory.lock().broken = Some(503);
    let mut discover = Discover::new(&[1]);
    discover.start(std::slice::from_ref(&fake.url), &[]);
    wait_for("a first attempt", || (!fake.memory.lock().log.is_empty()).then_some(()));
    fake.memory.lock().broken = None;
    fake.wait_for_workers(&[1]);
}

#[test]
fn state_is_kept_over_restarts_and_strangers_are_left_alone() {
    let fake = Fake::start();
    fake.memory
        .lock()
        .workers
        .insert(100, json!({"worker_id": 100, "lifecycle": "schedulable", "endpoint": "by hand"}));
    let mut discover = Discover::new(&[1, 2]);
    let state = discover.directory.path().join("state");
    let flags = ["--state-dir", state.to_str().unwrap()];
    discover.start(std::slice::from_ref(&fake.url), &flags);
    fake.wait_for_workers(&[1, 2, 100]);
    discover.program = None;
    discover.set(&[2]);
    discover.start(std::slice::from_ref(&fake.url), &flags);
    fake.wait_for_workers(&[2, 100]);
    discover.program = None;
    let (code, _) = discover.run(std::slice::from_ref(&fake.url), &["--once", "--prune"]);
    assert_eq!(code, 0);
    fake.wait_for_workers(&[2]);
}

#[test]
fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let logs = tempfile::tempdir().unwrap();
    let ours = Selector::start(logs.path(), &[], &EVENTS_OFF);
    let fake = Fake::start();
    let by_hand = json!({"worker_id": 4, "endpoint": "http://by-hand", "block_size": 4});
    ours.call("POST", "/workers", Some(&by_hand));
    let discover = Discover::new(&[1, 2]);
    let selectors = [ours.url(), fake.url.clone()];
    let (code, text) = discover.run(&selectors, &["--dry-run"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("2 to add, 0 to change, 0 to remove").count(), 2, "{text}");
    assert!(text.contains("  + 1  http://w1"), "{text}");
    assert_eq!((ours.workers().len(), fake.memory.lock().workers.len()), (1, 0));
    assert_eq!(discover.run(&selectors, &["--once"]).0, 0);
    replace(&discover.path, &file_of(&[1, 3, 4]).replace("http://w1", "http://elsewhere"));
    let (_, text) = discover.run(&selectors[..1], &["--dry-run"]);
    assert!(text.contains("1 to add, 1 to change, 1 to remove"), "{text}");
    assert!(text.contains("! 4 belongs to api"), "{text}");
    assert_eq!(discover.run(&selectors[..1], &["--once"]).0, 0);
    assert_eq!(ours.workers()[&4], "http://by-hand");
    assert_eq!(ours.workers().keys().copied().collect::<Vec<_>>(), [1, 3, 4]);
}

#[test]
fn once_tells_who_did_not_take_the_file() {
    let fake = Fake::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let discover = Discover::new(&[1]);
    let (code, text) = discover.run(&[fake.url.clone(), dead.clone()], &["--once"]);
    assert_eq!(code, 1);
    let row = |selector: &str| text.lines().find(|line| line.starts_with(selector)).unwrap_or_default().to_owned();
    assert!(row(&fake.url).contains("applied, 1 sent"), "{text}");
    assert!(row(&dead).contains("failed") && text.contains(&format!("{dead}: catalog: ")), "{text}");
    fs::write(&discover.path, "version: 1\n").unwrap();
    assert_eq!(discover.run(std::slice::from_ref(&fake.url), &["--once"]).0, 1);
    assert_eq!(discover.run(&["ftp://x".to_owned()], &["--once"]).0, 2);
    assert_eq!(discover.run(&[fake.url.clone(), fake.url.clone()], &["--once"]).0, 2);
}

#[test]
fn a_guarded_selector_wants_the_token() {
    let logs = tempfile::tempdir().unwrap();
    let token = logs.path().join("token");
    fs::write(&token, "s3cret\n").unwrap();
    let token = token.to_str().unwrap();
    let selector = Selector::start(logs.path(), &["--admin-token-file", token], &EVENTS_OFF);
    let discover = Discover::new(&[1]);
    let selectors = [selector.url()];
    assert_eq!(discover.run(&selectors, &["--once"]).0, 1);
    assert!(selector.workers().is_empty());
    assert_eq!(discover.run(&selectors, &["--once", "--admin-token-file", token]).0, 0);
    assert_eq!(selector.workers().len(), 1);
}

#[test]
fn one_change_reaches_every_selector_quickly() {
    let logs = tempfile::tempdir().unwrap();
    let selectors: Vec<Selector> = (0..3).map(|_| Selector::start(logs.path(), &[], &EVENTS_OFF)).collect();
    let mut discover = Discover::new(&[1]);
    discover.start(&selectors.iter().map(Selector::url).collect::<Vec<_>>(), &[]);
    for selector in &selectors {
        selector.wait_for_workers(&[1]);
    }
    let began = Instant::now();
    discover.set(&[1, 2]);
    for selector in &selectors {
        selector.wait_for_workers(&[1, 2]);
    }
    // Told, not judged: speed is for benchmarks.
    println!("one change reached three selectors in {:?}", began.elapsed());
    assert!(Path::new(&discover.path).exists());
}
