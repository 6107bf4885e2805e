//! Peers that are slow, gone without a word, far away in time, many, or out of order.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    fake::{self, Publisher, SESSION, live, peer, register, resident, wait_for_live, wait_for_peer},
    hostile::{endpoint_of, reserve, selector},
    link::{Faults, Link},
    program::{Selector, wait_for},
};

/// What the mesh promises after a cause went away. Machines are slow and busy: printed, not asserted.
const PROMISE: Duration = Duration::from_secs(5);

/// Bookings over one connection that stays.
struct Client {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Client {
    fn new(selector: &Selector) -> Self {
        let stream = TcpStream::connect(selector.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { answers: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    fn send(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        self.stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
    }

    fn answer(&mut self) -> u16 {
        let (mut line, mut status, mut length) = (String::new(), 0, 0);
        loop {
            line.clear();
            self.answers.read_line(&mut line).unwrap();
            let lower = line.to_lowercase();
            if let Some(rest) = lower.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = lower.strip_prefix("content-length:") {
                length = rest.trim().parse().unwrap();
            } else if line == "\r\n" {
                break;
            }
        }
        self.answers.read_exact(&mut vec![0; length]).unwrap();
        status
    }
}

/// Books `count` and ends all but every hundredth, at full speed; what is left is live.
fn run_bookings(selector: &Selector, count: usize) -> u64 {
    std::thread::scope(|scope| {
        let part = |worker: usize| {
            let mut client = Client::new(selector);
            for at in (worker..count).step_by(4) {
                let hashes: Vec<u64> = (0..100).map(|k| (at as u64) << 32 | k).collect();
                let body = json!({"selection_id": format!("f{at}"), "model_name": "m", "worker_id": 1, "dp_rank": 0,
                                  "sequence_hashes": hashes, "isl_tokens": 1600, "effective_prefill_tokens": 16});
                client.send("POST", "/reservations", &body.to_string());
                assert_eq!(client.answer(), 201);
                if at % 100 != 0 {
                    client.send("DELETE", &format!("/reservations/f{at}"), "");
                    assert_eq!(client.answer(), 200);
                }
            }
        };
        for worker in 0..4 {
            scope.spawn(move || part(worker));
        }
    });
    count.div_ceil(100) as u64
}

#[test]
fn subscribers_that_do_not_read_cost_bounded_memory_and_are_whole_again() {
    let directory = tempfile::tempdir().unwrap();
    let [busy, stuck, other] = [(); 3].map(|()| selector(directory.path()));
    let endpoint = endpoint_of(&busy);
    for follower in [&stuck, &other] {
        register(follower, &endpoint);
        wait_for_peer(follower, &endpoint, "the beacon", |peer| peer["router_id"].is_u64());
    }
    // One of libzmq that never reads, and one that says hello and no more.
    let context = zmq::Context::new();
    let lazy = context.socket(zmq::SUB).unwrap();
    lazy.set_rcvhwm(10).unwrap();
    lazy.set_linger(0).unwrap();
    lazy.set_subscribe(b"").unwrap();
    lazy.connect(&endpoint).unwrap();
    let mut mute = TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap();
    let mut hello = vec![0; 64];
    (hello[0], hello[9], hello[10]) = (0xff, 0x7f, 3);
    hello[12..16].copy_from_slice(b"NULL");
    hello.extend(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x00\x01\x01");
    mute.write_all(&hello).unwrap();
    wait_for("four subscribers", || (busy.get("/replica_sync/status")["subscribers"] == 4).then_some(()));

    stuck.program.signal(Signal::SIGSTOP);
    let before = resident(&busy);
    let start = Instant::now();
    let left = run_bookings(&busy, 40_000);
    println!("40,000 bookings took {:?}", start.elapsed());
    wait_for_live(&other, left);
    println!("the one that reads had them after {:?}", start.elapsed());
    let grown = resident(&busy).saturating_sub(before);
    println!("grew by {} MiB", grown >> 20);
    assert!(grown < 768 << 20, "{} MiB", grown >> 20);
    let lost = wait_for("losses to be counted", || {
        let status = busy.get("/replica_sync/status");
        let count = |name: &str| status[name].as_u64().unwrap();
        let lost = count("dropped_for_subscribers") + count("lost_at_disconnect");
        (lost > 0).then_some(lost)
    });
    println!("{lost} messages lost");
    stuck.program.signal(Signal::SIGCONT);
    let start = Instant::now();
    wait_for_live(&stuck, left);
    println!("whole after {:?} of the promised {PROMISE:?}", start.elapsed());
    let status = wait_for_peer(&stuck, &endpoint, "agreement", |peer| peer["diverged"] == json!([]));
    assert!(status["gaps"].as_u64() > Some(0), "{status:#}");
    let peers = other.get("/replica_sync/status")["peers"].clone();
    assert_eq!((&peers[0]["gaps"], &peers[0]["dropped"]), (&json!(0), &json!({})), "the one that reads lost nothing");
    for selector in [&busy, &stuck, &other] {
        assert_eq!(selector.call("GET", "/livez", None).0, 200);
    }
    drop(mute);
}

/// A runtime for links.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_silent_cut_is_noticed_and_heals() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (selector(directory.path()), selector(directory.path()));
    // What follows ours, and what follows the reference, which sends no beacons: heartbeats alone tell.
    let reference = Publisher::new();
    let runtime = runtime();
    let address = endpoint_of(&one).strip_prefix("tcp://").unwrap().parse().unwrap();
    let to_ours = runtime.block_on(Link::new(address, 1));
    let to_reference = runtime.block_on(Link::new(reference.address(), 2));
    register(&two, &to_ours.endpoint());
    register(&two, &to_reference.endpoint());
    reference.wait_for_subscriber();
    wait_for_peer(&two, &to_ours.endpoint(), "the beacon", |peer| peer["router_id"].is_u64());
    let swallow = Faults { swallows: true, ..Faults::default() };
    let start = Instant::now();
    [&to_ours, &to_reference].iter().for_each(|link| link.set_faults(swallow));
    reserve(&one, "x");
    reference.book("y");
    wait_for_peer(&two, &to_ours.endpoint(), "a silent peer", |peer| peer["state"] != "connected");
    println!("silence of ours noticed after {:?}", start.elapsed());
    wait_for_peer(&two, &to_reference.endpoint(), "a silent reference", |peer| peer["state"] == "connecting");
    println!("silence of the reference noticed after {:?}", start.elapsed());
    assert_eq!(live(&two), 0);
    [&to_ours, &to_reference].iter().for_each(|link| link.heal());
    let start = Instant::now();
    wait_for_live(&two, 1);
    println!("whole after {:?} of the promised {PROMISE:?}", start.elapsed());
    reference.wait_for_subscriber();
    println!("the reference is heard after {:?}", start.elapsed());
    reference.book("z");
    wait_for_live(&two, 2);
}

#[test]
fn clocks_an_hour_apart_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let hour = 3_600_000_000_000;
    for offset in [hour, 0u64.wrapping_sub(hour)] {
        let peer = Publisher::new().followed_by(&selector);
        for _ in 0..5 {
            peer.beacon(json!({"sent": fake::now().wrapping_add(offset)}));
        }
        let session = json!({"model_name": "m", "routing_group": "default", "session_id": "s", "worker_id": 1,
            "dp_rank": 1, "sequence": fake::now().wrapping_add(offset), "writer_id": peer.router_id});
        peer.pack(SESSION, &session);
        peer.book(&peer.router_id.to_string());
        let status = wait_for_peer(&selector, &peer.endpoint, "all messages", |peer| {
            peer["lag_ms"].is_f64() && peer["applied"].as_u64() >= Some(1)
        });
        assert!(status["lag_ms"].as_f64() < Some(60_000.0), "{status:#}");
    }
    wait_for_live(&selector, 2);
    // A session bound here now wins over one stamped an hour ahead, within the five minutes it is taken for.
    let body = json!({"model_name": "m", "selection_id": "local", "token_ids": [1, 2, 3], "session_id": "s"});
    let (status, answer) = selector.call("POST", "/select_and_reserve", Some(&body));
    assert_eq!((status, &answer["dp_rank"]), (200, &json!(1)), "bound by the peer: {answer}");
}

#[test]
fn messages_in_reverse_order_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let peer = Publisher::new().followed_by(&selector);
    let ids: Vec<String> = (0..500).map(|at| format!("r{at}")).collect();
    ids.iter().for_each(|id| peer.free(id));
    ids.iter().for_each(|id| peer.slot(id, json!("MarkPrefillCompleted")));
    ids.iter().rev().for_each(|id| peer.book(id));
    peer.book("last");
    wait_for_live(&selector, 1);
    peer.free("last");
    wait_for_live(&selector, 0);
    // Done before made: it is made without a prefill.
    peer.slot("done", json!("MarkPrefillCompleted"));
    peer.book("done");
    wait_for_live(&selector, 1);
    let loads = selector.get("/loads").to_string();
    assert!(!loads.contains("\"potential_prefill_tokens\":32"), "{loads}");
}

#[test]
fn thirty_two_peers_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let peers: Vec<Publisher> = (0..32).map(|_| Publisher::new().followed_by(&selector)).collect();
    for at in 0..100 {
        peers.iter().for_each(|peer| peer.book(&format!("{}-{at}", peer.router_id)));
    }
    wait_for_live(&selector, 3_200);
    for at in 0..100 {
        peers.iter().for_each(|peer| peer.free(&format!("{}-{at}", peer.router_id)));
    }
    wait_for_live(&selector, 0);
    let status = selector.get("/replica_sync/status");
    assert!(
        status["peers"].as_array().unwrap().iter().all(|peer| peer["applied"] == 200 && peer["dropped"] == json!({}))
    );
}

#[test]
fn a_publisher_that_comes_back_at_its_name_is_found_wherever_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let first = Publisher::new();
    let port = first.address().port();
    // A name of two addresses: it is looked up anew each time.
    let endpoint = format!("tcp://localhost:{port}");
    register(&selector, &endpoint);
    first.wait_for_subscriber();
    first.book("a");
    wait_for_live(&selector, 1);
    drop(first);
    let addresses: Vec<_> = format!("localhost:{port}").to_socket_addrs().unwrap().collect();
    for (at, address) in addresses.iter().chain(&addresses).enumerate() {
        let again = Publisher::on(&address.to_string());
        again.wait_for_subscriber();
        again.book(&format!("b{at}"));
        wait_for_live(&selector, at as u64 + 2);
    }
    wait_for_peer(&selector, &endpoint, "the end of the last", |peer| peer["state"] == "connecting");
    assert_eq!(peer(&selector, &endpoint)["endpoint"], endpoint.as_str());
}
