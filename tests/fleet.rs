//! A fleet as users run one: the systemd units as they are written, and a move from the reference under traffic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod program;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use program::{
    PATIENCE, Program, Selector,
    client::{self, Request, Response},
    command,
    reference::{Reference, ports},
    wait_for,
};
use serde_json::{Value, json};

/// Time one booking has to reach another selector and end there.
const ATTEMPT: Duration = Duration::from_secs(10);
const EVENTS_OFF: [(&str, &str); 1] = [("DYN_ROUTER_USE_KV_EVENTS", "false")];
const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/systemd");

fn call(port: u16, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<Response> {
    client::send(port, &Request::json(method, path, body), PATIENCE)
}

fn get(port: u16, path: &str) -> Option<Value> {
    call(port, "GET", path, None).ok()?.json()
}

fn is_ready(port: u16) -> bool {
    call(port, "GET", "/readyz", None).is_ok_and(|answer| answer.status == 200)
}

/// Waits until `discover`'s state on `port` says that all agree, with `peers` peers each.
fn wait_for_agreement(port: u16, peers: usize) {
    let last = Mutex::new(Value::Null);
    let agreed = || {
        let status = get(port, "/status")?;
        let full = |t: &Value| t["peers"]["registered"].as_array().is_some_and(|r| r.len() == peers);
        let agreed = status["agreed"] == true && status["targets"].as_array().unwrap().iter().all(full);
        *last.lock() = status;
        agreed.then_some(())
    };
    let deadline = Instant::now() + PATIENCE;
    while agreed().is_none() {
        assert!(Instant::now() < deadline, "no agreement: {:#}", last.lock());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A unit of `examples/systemd` on this machine: what systemd would put in is put in, paths lie below `root`.
struct Unit {
    root: PathBuf,
    words: Vec<String>,
    environment: BTreeMap<String, String>,
}

impl Unit {
    fn load(name: &str, root: &Path) -> Self {
        let text = fs::read_to_string(Path::new(UNITS).join(name)).unwrap();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("no {key} in {name}")).to_owned()
        };
        let credential = value("LoadCredential");
        let (credential, source) = credential.split_once(':').unwrap();
        let source = source.replace("/etc/pointsman", root.join("etc").to_str().unwrap());
        fs::create_dir_all(root.join("credentials")).unwrap();
        let credential = root.join("credentials").join(credential);
        if !credential.exists() {
            fs::copy(source, credential).unwrap();
        }
        let place = |text: &str| {
            text.replace("%d", root.join("credentials").to_str().unwrap())
                .replace("%S", root.join("state").to_str().unwrap())
                .replace("/etc/pointsman", root.join("etc").to_str().unwrap())
        };
        let start = place(&value("ExecStart"));
        let mut words = start.split_whitespace().map(str::to_owned);
        assert_eq!(words.next().unwrap(), "/usr/local/bin/pointsman");
        let file = value("EnvironmentFile").replace("/etc/pointsman", UNITS);
        let lines = fs::read_to_string(file).unwrap();
        let environment = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_owned(), place(value.trim_matches('"')))
        });
        Self { root: root.to_owned(), words: words.collect(), environment: environment.collect() }
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        let known = self.environment.insert(name.to_owned(), value.to_string());
        assert!(known.is_some(), "{name} is not in the unit's environment file");
    }

    fn start(&self) -> Program {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let variables: Vec<(&str, &str)> = self.environment.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        Program::spawn(&self.root, &mut command(&words, &variables))
    }
}

#[test]
fn the_systemd_units_make_a_fleet_that_mends_itself() {
    let root = tempfile::tempdir().unwrap();
    let etc = root.path().join("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("admin-token"), "s3cret\n").unwrap();
    let worker = "- {name: gpu-0, model_name: m, endpoint: 'http://10.0.1.1:8000', block_size: 16, \
                  kv_events: {endpoint: 'tcp://127.0.0.1:1'}}\n";
    fs::write(etc.join("workers.yaml"), format!("version: 1\nworkers:\n{worker}")).unwrap();
    let publishers = [(); 3].map(|()| ports::free());
    let selectors = publishers.map(|publisher| {
        let mut unit = Unit::load("pointsman-selector.service", root.path());
        let port = ports::free();
        assert_eq!(unit.environment["POINTSMAN_REPLICA_SYNC_PEERS"].split(',').count(), 3);
        unit.set("POINTSMAN_REPLICA_SYNC_PEERS", publishers.map(|port| format!("tcp://127.0.0.1:{port}")).join(","));
        unit.set("POINTSMAN_LISTEN_PORT", port);
        unit.set("POINTSMAN_HOST", "127.0.0.1");
        unit.set("POINTSMAN_REPLICA_SYNC_LISTEN_PORT", publisher);
        unit.set("POINTSMAN_SHUTDOWN_DELAY", 0);
        (port, unit)
    });
    let mut running = selectors.each_ref().map(|(_, unit)| unit.start());
    let mut unit = Unit::load("pointsman-discover.service", root.path());
    assert_eq!(unit.environment["POINTSMAN_SELECTORS"].split(' ').count(), 3);
    unit.set("POINTSMAN_SELECTORS", selectors.each_ref().map(|(port, _)| format!("http://127.0.0.1:{port}")).join(" "));
    let state = ports::free();
    unit.set("POINTSMAN_DISCOVER_PORT", state);
    let mut discover = unit.start();
    for program in &mut running {
        wait_for("a selector to listen", || {
            assert!(program.ended().is_none(), "{}", program.log());
            program.log().contains("listening").then_some(())
        });
    }
    wait_for_agreement(state, 2);
    for (port, _) in &selectors {
        wait_for("readiness", || is_ready(*port).then_some(()));
        let refused = call(*port, "POST", "/replica_sync/register_peer", Some(&json!({"endpoint": "tcp://a:1"})));
        assert_eq!(refused.unwrap().status, 401, "the token does not guard");
    }
    let prompt = json!({"model_name": "m", "selection_id": "kept", "token_ids": [1, 2, 3]});
    assert_eq!(call(selectors[0].0, "POST", "/select_and_reserve", Some(&prompt)).unwrap().status, 200);
    // As systemd would after a crash.
    running[1].signal(Signal::SIGKILL);
    running[1].exit();
    running[1] = selectors[1].1.start();
    wait_for("the restarted one to be asked", || get(selectors[1].0, "/catalog")?["owners"].get(0).map(|_| ()));
    wait_for_agreement(state, 2);
    wait_for("readiness", || is_ready(selectors[1].0).then_some(()));
    let loads = get(selectors[1].0, "/loads").unwrap();
    assert_eq!(loads[0]["loads"][0]["active_requests"], 1, "it is ready and does not know the others' bookings");
    for program in running.iter_mut().chain([&mut discover]) {
        program.signal(Signal::SIGTERM);
        assert!(program.exit().success(), "{}", program.log());
    }
}

/// Requests that go through their whole life at one of several selectors, one after the other, until dropped.
struct Traffic {
    rotation: Arc<Mutex<Vec<u16>>>,
    served: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn reserve(port: u16, id: &str) -> std::io::Result<Response> {
    // A prompt of its own, so that no two bookings share a block.
    let first = fastrand::u32(..1 << 30);
    let tokens: Vec<u32> = (first..first + 16).collect();
    let body = json!({"model_name": "m", "routing_group": "g", "selection_id": id, "token_ids": tokens});
    call(port, "POST", "/select_and_reserve", Some(&body))
}

impl Traffic {
    fn start(rotation: &[u16]) -> Self {
        let rotation = Arc::new(Mutex::new(rotation.to_vec()));
        let (served, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (ports, count, ended) = (rotation.clone(), served.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                // Held through the request's life: who takes a selector out waits for what runs there.
                let ports = ports.lock();
                let port = ports[fastrand::usize(..ports.len())];
                let id = format!("traffic-{}", count.load(Ordering::Relaxed));
                for (method, path, expected) in [
                    ("POST", "/select_and_reserve".to_owned(), 200),
                    ("POST", format!("/reservations/{id}/prefill_complete"), 200),
                    ("DELETE", format!("/reservations/{id}"), 200),
                ] {
                    let answer = if path == "/select_and_reserve" {
                        reserve(port, &id)
                    } else {
                        call(port, method, &path, None)
                    };
                    let answer = answer.unwrap_or_else(|e| panic!("{method} {path} at {port}: {e}"));
                    let text = String::from_utf8_lossy(&answer.body).into_owned();
                    assert_eq!(answer.status, expected, "{method} {path} at {port}: {text}");
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { rotation, served, stop, thread: Some(thread) }
    }

    /// Takes a selector out of the rotation, once its requests have ended.
    fn without(&self, port: u16) {
        self.rotation.lock().retain(|p| *p != port);
    }

    fn with(&self, port: u16) {
        self.rotation.lock().push(port);
        let before = self.served.load(Ordering::Relaxed);
        wait_for("more traffic", || {
            assert!(!self.thread.as_ref().unwrap().is_finished(), "a request failed");
            (self.served.load(Ordering::Relaxed) > before + 20).then_some(())
        });
    }

    fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.served.load(Ordering::Relaxed)
    }
}

/// Blocks of all bookings that a selector knows.
fn blocks(port: u16) -> u64 {
    let partitions = get(port, "/loads").unwrap();
    let rows = partitions.as_array().unwrap().iter().flat_map(|p| p["loads"].as_array().unwrap().clone());
    rows.filter_map(|row| row["potential_decode_blocks"].as_u64()).sum()
}

/// A booking made at one selector is seen at the other, and ends there.
fn book_and_free(at: u16, freed_at: u16, id: &str) {
    // A booking whose end passed while a selector was exchanged may be left; it stays until it expires.
    let (before, before_there) = (blocks(at), blocks(freed_at));
    assert_eq!(reserve(at, id).unwrap().status, 200);
    wait_for("the booking at the other selector", || (blocks(freed_at) > before_there).then_some(()));
    assert_eq!(call(freed_at, "DELETE", &format!("/reservations/{id}"), None).unwrap().status, 200);
    wait_for("the end of the booking where it was made", || (blocks(at) <= before).then_some(()));
}

/// The same where one of both is the reference. It repairs nothing, and nothing tells when its subscriptions are up, so
/// what is published before that is lost to it: another booking is tried then.
fn book_and_free_with_the_reference(at: u16, freed_at: u16, id: &str) {
    let mut attempt = 0;
    wait_for("a booking that ends on both", || {
        attempt += 1;
        let (id, before, before_there) = (format!("{id}-{attempt}"), blocks(at), blocks(freed_at));
        assert_eq!(reserve(at, &id).unwrap().status, 200);
        let soon = |done: &dyn Fn() -> bool| {
            let deadline = Instant::now() + ATTEMPT;
            while !done() && Instant::now() < deadline {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            done()
        };
        if !soon(&|| blocks(freed_at) > before_there) {
            return None;
        }
        assert_eq!(call(freed_at, "DELETE", &format!("/reservations/{id}"), None).unwrap().status, 200);
        soon(&|| blocks(at) <= before).then_some(())
    });
}

#[test]
fn three_of_ours_are_one_fleet_after_one_call() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("workers.yaml");
    let worker = "- {worker_id: 1, model_name: m, routing_group: g, endpoint: 'http://w1', block_size: 4}\n";
    fs::write(&file, format!("version: 1\nworkers:\n{worker}")).unwrap();
    let selectors = [(); 3]
        .map(|()| Selector::start(directory.path(), &["--replica-sync-port", &ports::free().to_string()], &EVENTS_OFF));
    let once = |urls: &[String]| {
        let mut words = vec!["discover", "--workers-file", file.to_str().unwrap(), "--once"];
        words.extend(urls.iter().flat_map(|url| ["--selector", url.as_str()]));
        let output = command(&words, &[]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    // The second address of the first: nobody is told twice, and it is not told of itself.
    let port = |at: usize| selectors[at].address.port();
    let mut urls: Vec<String> = selectors.iter().map(Selector::url).collect();
    urls.push(format!("http://localhost:{}", port(0)));
    let (code, text) = once(&urls);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("wired, 2 of 2").count(), 4, "{text}");
    for selector in &selectors {
        assert_eq!(selector.get("/replica_sync/peers").as_array().unwrap().len(), 2, "{text}");
    }
    for selector in &selectors {
        let status = || selector.get("/replica_sync/status");
        wait_for("both peers to be connected", || {
            let peers = status()["peers"].as_array().unwrap().clone();
            let good = |p: &Value| p["state"] == "connected" && p["is_self"] == false;
            (peers.len() == 2 && peers.iter().all(good)).then_some(())
        });
    }
    for (at, freed_at) in [(0, 1), (1, 2), (2, 0)] {
        book_and_free(port(at), port(freed_at), &format!("made-at-{at}"));
    }
    // Again: nothing to do, nothing done.
    let (code, text) = once(&urls);
    assert_eq!((code, text.matches("wired, 2 of 2").count()), (0, 4), "{text}");
}

#[test]
fn a_fleet_moves_from_the_reference_and_back_under_traffic() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("workers.yaml");
    let rows: String = (1..5)
        .map(|id| {
            format!("- {{worker_id: {id}, model_name: m, routing_group: g, endpoint: 'http://w{id}', block_size: 4}}\n")
        })
        .collect();
    fs::write(&file, format!("version: 1\nworkers:\n{rows}")).unwrap();
    let mut references = [(); 3].map(|()| Some(Reference::start(directory.path(), true)));
    let addresses = references.each_ref().map(|r| {
        let reference = r.as_ref().unwrap();
        (reference.port, reference.publisher_port().unwrap())
    });
    let state = ports::free();
    let mut words: Vec<String> =
        ["discover", "--workers-file", file.to_str().unwrap(), "--http-port", &state.to_string()]
            .map(str::to_owned)
            .into();
    words.extend(["--host", "127.0.0.1", "--state-dir"].map(str::to_owned));
    words.push(directory.path().join("state").to_str().unwrap().to_owned());
    for (port, publisher) in addresses {
        words.extend(["--selector".to_owned(), format!("http://127.0.0.1:{port},tcp://127.0.0.1:{publisher}")]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // The workers are there already, and the file says the same.
    for (port, _) in addresses {
        for id in 1..5 {
            let worker = json!({"worker_id": id, "model_name": "m", "routing_group": "g", "endpoint": format!("http://w{id}"),
                                "block_size": 4});
            assert_eq!(call(port, "POST", "/workers", Some(&worker)).unwrap().status, 201);
        }
    }
    let preview = command(&[words.as_slice(), &["--dry-run"]].concat(), &[]).output().unwrap();
    let text = String::from_utf8(preview.stdout).unwrap();
    assert_eq!(text.matches("0 to add, 0 to change, 0 to remove").count(), 3, "{text}");
    assert_eq!(text.matches("peers: 2 to register, 0 to remove").count(), 3, "{text}");
    let _discover = Program::start(directory.path(), &words, &[]);
    wait_for_agreement(state, 2);
    let traffic = Traffic::start(&addresses.map(|(port, _)| port));
    let mut ours: Vec<Selector> = Vec::new();
    let start = |(port, publisher): (u16, u16), other: u16| {
        let other = format!("http://127.0.0.1:{other}");
        let flags = ["--replica-sync-port", &publisher.to_string(), "--indexer-peers", &other];
        Selector::start_on(port, directory.path(), &flags, &EVENTS_OFF)
    };
    for (at, address) in addresses.into_iter().enumerate() {
        traffic.without(address.0);
        let mut reference = references[at].take().unwrap();
        reference.program.signal(Signal::SIGINT);
        reference.program.exit();
        ours.push(start(address, addresses[(at + 1) % 3].0));
        wait_for("the catalog", || get(address.0, "/catalog")?["owners"].get(0).map(|_| ()));
        wait_for_agreement(state, 2);
        wait_for("readiness", || is_ready(address.0).then_some(()));
        traffic.with(address.0);
    }
    // And one back.
    traffic.without(addresses[0].0);
    let mut first = ours.remove(0);
    first.program.signal(Signal::SIGTERM);
    assert!(first.program.exit().success(), "{}", first.program.log());
    let back = Reference::start_on(directory.path(), addresses[0].0, Some(addresses[0].1)).unwrap();
    wait_for("the workers", || (get(back.port, "/workers")?.as_array()?.len() == 4).then_some(()));
    wait_for_agreement(state, 2);
    traffic.with(back.port);
    println!("{} requests served meanwhile", traffic.finish());
    // Nothing runs now, and nothing is left on ours; the reference repairs nothing.
    for selector in &ours {
        wait_for("the end of all bookings on ours", || (blocks(selector.address.port()) == 0).then_some(()));
    }
    // Bookings of one kind end at the other, both ways.
    book_and_free_with_the_reference(back.port, ours[0].address.port(), "from-the-reference");
    book_and_free_with_the_reference(ours[0].address.port(), back.port, "from-ours");
    book_and_free(ours[1].address.port(), ours[0].address.port(), "between-ours");
}
