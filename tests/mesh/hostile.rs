//! Peers that are broken, wrong or hostile: what they say changes nothing but what it names, every drop is counted by
//! reason, and nobody else notices.

use std::{io::Write, net::TcpStream, path::Path, time::Duration};

use serde_json::{Value, json};

use super::{
    fake::{
        self, MESH, Publisher, SESSION, SLOT, Server, live, peer, register, resident, wait_for_live, wait_for_peer,
    },
    program::{Selector, reference::ports, wait_for},
};

const EVENTS_OFF: [(&str, &str); 1] = [("DYN_ROUTER_USE_KV_EVENTS", "false")];

/// A selector with replica sync and a worker of two ranks.
pub fn selector(directory: &Path) -> Selector {
    selector_with(0, directory, &["--replica-sync-port", &ports::free().to_string()])
}

pub fn selector_with(port: u16, directory: &Path, flags: &[&str]) -> Selector {
    let mut words = vec!["--replica-sync-host", "127.0.0.1", "--session-affinity-ttl-secs", "600"];
    words.extend_from_slice(flags);
    let selector = Selector::start_on(port, directory, &words, &EVENTS_OFF);
    add_worker(&selector);
    selector
}

/// Registers the worker of two ranks.
pub fn add_worker(selector: &Selector) {
    let worker =
        json!({"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 16, "data_parallel_size": 2});
    assert_eq!(selector.call("POST", "/workers", Some(&worker)).0, 201);
}

pub fn endpoint_of(selector: &Selector) -> String {
    selector.get("/replica_sync/status")["endpoint"].as_str().unwrap().to_owned()
}

pub fn reserve(selector: &Selector, id: &str) {
    let body = json!({"selection_id": id, "model_name": "m", "worker_id": 1, "dp_rank": 0, "sequence_hashes": [1, 2],
                      "isl_tokens": 32, "effective_prefill_tokens": 32});
    let (status, answer) = selector.call("POST", "/reservations", Some(&body));
    assert_eq!(status, 201, "{answer}");
}

fn is_alive(selector: &Selector) {
    assert_eq!(selector.call("GET", "/livez", None).0, 200);
}

fn dropped(selector: &Selector, endpoint: &str, reason: &str) -> u64 {
    peer(selector, endpoint)["dropped"][reason].as_u64().unwrap_or(0)
}

fn wait_for_drops(selector: &Selector, endpoint: &str, reason: &str, count: u64) {
    let what = format!("{count} drops of {reason}");
    wait_for_peer(selector, endpoint, &what, |peer| peer["dropped"][reason].as_u64() == Some(count));
}

#[test]
fn messages_of_garbage_are_counted_by_reason_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let good = Publisher::new().followed_by(&selector);
    let bad = Publisher::new().followed_by(&selector);
    let endpoint = bad.endpoint.clone();
    let before = resident(&selector);

    bad.frames(&[SLOT.as_bytes()]);
    bad.frames(&[SLOT.as_bytes(), b"a", b"b"]);
    wait_for_drops(&selector, &endpoint, "frames", 2);
    bad.say(&format!("{SLOT}.more"), b"x");
    wait_for_drops(&selector, &endpoint, "topic", 1);

    let lying = [0xdf, 0xff, 0xff, 0xff, 0xff];
    let nested = |byte| vec![byte; 1 << 20];
    let garbage: [Vec<u8>; 6] =
        [Vec::new(), lying.into(), nested(0x91), nested(0x81), vec![0xc1; 64], vec![0; 20 << 20]];
    for topic in [SLOT, SESSION, MESH] {
        garbage.iter().for_each(|bytes| bad.say(topic, bytes));
    }
    // A prompt without end, one byte a block.
    let mut endless = fake::packed(&fake::slot("m", 16, 1, "endless", fake::add(), bad.router_id));
    let at = endless.windows(3).position(|window| window == [0x92, 1, 2]).unwrap();
    endless.splice(at..at + 3, [0xdd, 0, 0xc0, 0, 0].into_iter().chain(std::iter::repeat_n(7, 0xc0_0000)));
    bad.say(SLOT, &endless);
    bad.pack(SESSION, &json!({"model_name": "m", "filler": "x".repeat(2 << 20)}));
    wait_for_drops(&selector, &endpoint, "decode", 3 * 6 + 2);

    for (version, fields) in [(2, json!({"beacon": {}})), (0, json!({})), (u32::MAX, json!({"what": [1, 2, 3]}))] {
        let mut envelope = json!({"version": version, "router_id": 5});
        envelope.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        bad.pack(MESH, &envelope);
    }
    wait_for_drops(&selector, &endpoint, "wire_version", 3);
    // Unknown fields and kinds are nothing to refuse.
    bad.pack(MESH, &json!({"version": 1, "router_id": bad.router_id, "news": {"a": [1]}}));
    bad.beacon(json!({"mood": "good", "http_port": null}));
    wait_for_peer(&selector, &endpoint, "the beacon", |peer| peer["router_id"] == bad.router_id);

    // A name or a number of partitions beyond measure.
    let state = |at: u32| json!({"model_name": at.to_string(), "routing_group": "g", "block_size": 16, "origins": []});
    let partitions = |count| (0..count).map(state).collect::<Vec<_>>();
    bad.beacon(json!({"partitions": partitions(80_000)}));
    bad.beacon(json!({"url": "x".repeat(1 << 20)}));
    wait_for_drops(&selector, &endpoint, "decode", 3 * 6 + 4);
    bad.beacon(json!({"partitions": partitions(30_000), "sequence": u64::MAX, "session_sequence": u64::MAX}));
    bad.beacon(json!({"sequence": 1, "session_sequence": u64::MAX, "sent": u64::MAX}));
    bad.beacon(json!({"sequence": u64::MAX, "session_sequence": 0, "sent": 0}));
    wait_for_peer(&selector, &endpoint, "the last beacon", |peer| peer["gaps"] == u64::MAX);

    // A message that is larger than any may be ends the connection, and the next one is as good as the first.
    bad.beacon(json!({"partitions": partitions(1_000_000)}));
    bad.wait_for_subscriber();
    wait_for_peer(&selector, &endpoint, "a new connection", |peer| peer["disconnects"].as_u64() >= Some(1));

    // It is heard for all that, and so is the other.
    bad.book("of the bad");
    good.book("of the good");
    wait_for_live(&selector, 2);
    is_alive(&selector);
    assert_eq!(peer(&selector, &good.endpoint)["dropped"], json!({}));
    let grown = resident(&selector).saturating_sub(before);
    println!("grew by {} MiB", grown >> 20);
    assert!(grown < 512 << 20, "{} MiB", grown >> 20);
}

#[test]
fn connections_of_garbage_harm_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let good = Publisher::new().followed_by(&selector);
    let greeting = || {
        let mut bytes = vec![0; 64];
        (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
        bytes[12..16].copy_from_slice(b"NULL");
        bytes
    };
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";
    let hello = move || [&greeting()[..], ready].concat();
    let say = |bytes: Vec<u8>| {
        Server::start(move |mut stream| {
            // It may have been closed by then.
            stream.write_all(&bytes).ok();
            fake::read_on(&stream);
        })
    };
    let after_hello = |bytes: &[u8]| say([&hello()[..], bytes].concat());
    let servers = [
        say(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        say(hello()[..40].to_vec()),
        say(vec![0xff; 1 << 20]),
        after_hello(&[2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        after_hello(&[0x80, 1, 2, 3]),
        after_hello(&[1, 0].repeat(1 << 20)),
        after_hello(&[4, 1, 200]),
        Server::start(drop),
    ];
    // Half a frame, and nothing more: of ZMTP 3.0, which has no heartbeats, so it may be slow.
    let half = after_hello(&[2, 0, 0, 0, 0, 1, 0, 0, 0, 7]);
    for server in servers.iter().chain([&half]) {
        register(&selector, &server.endpoint());
    }
    // The other direction: what connects to the publisher.
    let publisher = endpoint_of(&selector);
    let mut guests = Vec::new();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 1 << 16], hello()[..50].to_vec(), hello()] {
        let mut guest = TcpStream::connect(publisher.strip_prefix("tcp://").unwrap()).unwrap();
        guest.write_all(&bytes).ok();
        guests.push(guest);
    }
    for server in &servers {
        wait_for("two attempts at each", || (server.accepted() >= 2).then_some(()));
    }
    for server in &servers {
        wait_for_peer(&selector, &server.endpoint(), "an error", |peer| peer["last_error"].is_string());
    }
    wait_for("the guests to be counted", || {
        (selector.get("/replica_sync/status")["refused_subscribers"].as_u64() >= Some(4)).then_some(())
    });
    good.book("x");
    wait_for_live(&selector, 1);
    is_alive(&selector);
    assert!(resident(&selector) < 512 << 20);
}

#[test]
fn urls_that_hang_stream_for_ever_or_redirect_cost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let good = Publisher::new().followed_by(&selector);
    let elsewhere = Server::start(drop);
    let location = elsewhere.url();
    let before = resident(&selector);
    let frame = |value: &Value| {
        let bytes = fake::packed(value);
        [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
    };
    let head = frame(&json!({"head": {"version": 1, "instance_id": "other", "block_size": 16}}));
    let session =
        |at: u64| json!({"id": format!("s{at}"), "worker_id": 1, "dp_rank": 0, "sequence": 1, "writer_id": 7});
    let sessions = frame(&json!({"sessions": (0..1000).map(session).collect::<Vec<_>>()}));
    let answer = |body: Vec<u8>, again: Vec<u8>| {
        Server::start(move |mut stream| {
            fake::read_request(&stream);
            stream.write_all(&body).ok();
            while !again.is_empty() && stream.write_all(&again).is_ok() {}
            fake::read_on(&stream);
        })
    };
    let ok = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n".to_vec();
    let redirect = format!("HTTP/1.1 307 Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    let servers = [
        answer(Vec::new(), Vec::new()),
        answer(ok.clone(), Vec::new()),
        answer(ok.clone(), vec![0; 1 << 16]),
        answer([&ok[..], &[0xff; 64]].concat(), Vec::new()),
        answer([&ok[..], &head].concat(), head.clone()),
        answer(
            [&ok[..], &frame(&json!({"head": {"version": 1, "instance_id": "", "block_size": 16}}))].concat(),
            sessions,
        ),
        answer(redirect.into_bytes(), Vec::new()),
        answer(b"HTTP/1.1 200 OK\r\n".to_vec(), b"x: y\r\n".repeat(1000)),
    ];
    let urls = servers.iter().map(Server::url).chain(["nonsense", "http://", "file:///etc/passwd"].map(str::to_owned));
    let mut peers: Vec<(Publisher, String)> = urls.map(|url| (Publisher::new().followed_by(&selector), url)).collect();
    peers.iter_mut().for_each(|(peer, _)| peer.router_id = fastrand::u64(1..));
    // The same wrong digest, until each has been asked.
    for (at, (publisher, url)) in peers.iter().enumerate() {
        let instance = if at == 5 { "" } else { "i" };
        wait_for_failure(
            &selector,
            publisher,
            || publisher.claim(3, json!({"url": url, "instance_id": instance})),
            at != 5,
        );
    }
    assert_eq!(elsewhere.accepted(), 0, "redirects are not followed");
    good.book("x");
    wait_for_live(&selector, 1);
    is_alive(&selector);
    let grown = resident(&selector).saturating_sub(before);
    println!("grew by {} MiB", grown >> 20);
    assert!(grown < 512 << 20, "{} MiB", grown >> 20);
}

/// Sends beacons until the peer was asked; waits until that failed where it is to.
fn wait_for_failure(selector: &Selector, publisher: &Publisher, beacon: impl Fn(), fails: bool) {
    let mut last = std::time::Instant::now() - Duration::from_secs(1);
    wait_for(&format!("{} to fail", publisher.endpoint), || {
        if last.elapsed() > Duration::from_millis(300) {
            beacon();
            last = std::time::Instant::now();
        }
        let peer = peer(selector, &publisher.endpoint);
        let asked = peer["failed_repairs"].as_u64() > Some(0) || (!fails && peer["diverged"] != json!([]));
        asked.then_some(())
    });
}

#[test]
fn wrong_digests_for_ever_are_asked_about_ever_more_rarely() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let server = Server::start(|mut stream| {
        fake::read_request(&stream);
        stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok();
    });
    let liar = Publisher::new().followed_by(&selector);
    // Two hundred beacons: always losses, always another digest.
    for at in 0..200 {
        liar.claim(at + 1, json!({"url": server.url(), "sequence": at * 1000}));
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let status = wait_for_peer(&selector, &liar.endpoint, "all beacons", |peer| peer["last_sequence"] == 199_000);
    // Each would be asked about if pauses did not grow; how many are depends on how long the beacons take.
    assert!(status["failed_repairs"].as_u64().unwrap() <= 40, "{status:#}");
    is_alive(&selector);
}

#[test]
fn another_models_selector_is_dropped_by_reason() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let other = Publisher::new().followed_by(&selector);
    other.pack(SLOT, &fake::slot("another", 16, 1, "a", fake::add(), 5));
    other.pack(SLOT, &fake::slot("m", 32, 1, "b", fake::add(), 5));
    other.pack(SLOT, &fake::slot("m", 16, 99, "c", fake::add(), 5));
    other.book("d");
    let session = json!({"model_name": "another", "routing_group": "default", "session_id": "s", "worker_id": 1,
                         "dp_rank": 0, "sequence": 1, "writer_id": 5});
    other.pack(SESSION, &session);
    wait_for_live(&selector, 1);
    for (reason, count) in [("unknown_partition", 2), ("block_size", 1), ("unknown_rank", 1)] {
        wait_for_drops(&selector, &other.endpoint, reason, count);
    }
    let metrics = String::from_utf8(selector.send("GET", "/metrics", None).unwrap().body).unwrap();
    assert!(metrics.contains("pointsman_mesh_dropped_total{reason=\"unknown_partition\"} 2"), "{metrics}");
}

#[test]
fn a_replica_under_two_addresses_and_one_that_follows_itself_count_once() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (selector(directory.path()), selector(directory.path()));
    let address = endpoint_of(&one);
    let other = address.replace("127.0.0.1", "localhost");
    for endpoint in [&address, &other] {
        register(&two, endpoint);
        register(&one, endpoint);
        wait_for_peer(&two, endpoint, "the beacon", |peer| peer["router_id"].is_u64());
        wait_for_peer(&one, endpoint, "its own beacon", |peer| peer["is_self"] == true);
    }
    for at in 0..20 {
        reserve(&one, &format!("x{at}"));
    }
    wait_for_live(&two, 20);
    let drops = |selector: &Selector, reason| dropped(selector, &address, reason) + dropped(selector, &other, reason);
    wait_for("the second address to be dropped", || (drops(&two, "second_endpoint") == 20).then_some(()));
    wait_for("its own messages to be dropped", || (drops(&one, "own") == 40).then_some(()));
    assert_eq!((live(&one), live(&two)), (20, 20));
}
