//! libzmq as the peer of SUB, PUB and DEALER, both ways.

use std::time::{Duration, Instant};

use pointsman::events::transport::{Dealer, Publisher, Subscriber, SubscriberEvent, TransportConfig};
use tokio::task::spawn_blocking;

use crate::support::{DEADLINE, connected, message, next_message, quick, subscribed, within};

/// A libzmq socket with the reference's options.
fn socket(context: &zmq::Context, kind: zmq::SocketType) -> zmq::Socket {
    let socket = context.socket(kind).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_ipv6(true).unwrap();
    socket.set_rcvtimeo(DEADLINE.as_millis() as i32).unwrap();
    socket.set_sndtimeo(DEADLINE.as_millis() as i32).unwrap();
    socket
}

/// The endpoint a libzmq socket was bound to.
fn bound(socket: &zmq::Socket) -> String {
    socket.get_last_endpoint().unwrap().unwrap()
}

/// Sends a first batch again and again until the subscriber has it, so that what follows is not lost to a slow joiner.
async fn joined(publisher: &zmq::Socket, subscriber: &mut Subscriber) {
    connected(subscriber).await;
    within("the first message", async {
        loop {
            publisher.send_multipart([&b"join"[..], b""], 0).unwrap();
            let event = tokio::time::timeout(Duration::from_millis(20), subscriber.recv()).await;
            if matches!(event, Ok(SubscriberEvent::Message(_))) {
                return;
            }
        }
    })
    .await;
}

/// The next message that is not a left-over of [`joined`].
async fn next_after_join(subscriber: &mut Subscriber) -> Vec<Vec<u8>> {
    loop {
        let frames = next_message(subscriber).await;
        if frames[0] != "join" {
            return frames.into_iter().map(|frame| frame.to_vec()).collect();
        }
    }
}

#[tokio::test]
async fn sub_takes_everything_a_libzmq_pub_sends_in_order() {
    let context = zmq::Context::new();
    let publisher = socket(&context, zmq::PUB);
    publisher.set_sndhwm(0).unwrap();
    publisher.bind("tcp://127.0.0.1:*").unwrap();
    let mut subscriber = Subscriber::connect(&bound(&publisher), &[b""], quick()).unwrap();
    joined(&publisher, &mut subscriber).await;
    let sender = spawn_blocking(move || {
        for number in 0..20_000u64 {
            let payload = vec![number as u8; (number % 700) as usize];
            publisher.send_multipart([&b"kv-events"[..], &number.to_be_bytes(), &payload], 0).unwrap();
        }
        publisher
    });
    for number in 0..20_000u64 {
        let frames = next_after_join(&mut subscriber).await;
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0], b"kv-events");
        assert_eq!(frames[1], number.to_be_bytes());
        assert_eq!(frames[2], vec![number as u8; (number % 700) as usize]);
    }
    drop(sender.await.unwrap());
}

#[tokio::test]
async fn sub_takes_large_messages_and_many_frames() {
    let context = zmq::Context::new();
    let publisher = socket(&context, zmq::PUB);
    publisher.bind("tcp://127.0.0.1:*").unwrap();
    let mut subscriber = Subscriber::connect(&bound(&publisher), &[b""], quick()).unwrap();
    joined(&publisher, &mut subscriber).await;
    for size in [0, 255, 256, 8191, 8192, 65_535, 1 << 20, 40 << 20] {
        let payload: Vec<u8> = (0..size).map(|index: usize| (index % 251) as u8).collect();
        publisher.send_multipart([&b""[..], &payload], 0).unwrap();
        let frames = next_after_join(&mut subscriber).await;
        assert!(frames[1] == payload, "{size} bytes changed on the way");
    }
    publisher.send_multipart((0..200).map(|index| vec![index as u8; index]), 0).unwrap();
    let frames = next_after_join(&mut subscriber).await;
    assert_eq!(frames.len(), 200);
    assert_eq!(frames[199], vec![199; 199]);
}

#[tokio::test]
async fn sub_receives_only_the_prefixes_it_asked_for() {
    let context = zmq::Context::new();
    let publisher = socket(&context, zmq::PUB);
    publisher.bind("tcp://127.0.0.1:*").unwrap();
    let mut subscriber = Subscriber::connect(&bound(&publisher), &[b"join", b"kv@", b"load"], quick()).unwrap();
    joined(&publisher, &mut subscriber).await;
    for topic in ["other", "kv", "kv@pod", "load", "loa", "loading"] {
        publisher.send_multipart([topic], 0).unwrap();
    }
    for topic in ["kv@pod", "load", "loading"] {
        assert_eq!(next_after_join(&mut subscriber).await, [topic.as_bytes()]);
    }
}

#[tokio::test]
async fn sub_connects_before_the_publisher_exists_and_survives_its_restarts() {
    let context = zmq::Context::new();
    let port = {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        probe.local_addr().unwrap().port()
    };
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let mut subscriber = Subscriber::connect(&endpoint, &[b""], quick()).unwrap();
    let first = within("a failed attempt", subscriber.recv()).await;
    assert!(matches!(first, SubscriberEvent::Disconnected(_)), "{first:?}");
    for round in 0..10u8 {
        let publisher = socket(&context, zmq::PUB);
        let start = Instant::now();
        while let Err(error) = publisher.bind(&endpoint) {
            assert!(start.elapsed() < DEADLINE, "{error}");
            tokio::task::yield_now().await;
        }
        joined(&publisher, &mut subscriber).await;
        publisher.send_multipart([&[round][..]], 0).unwrap();
        assert_eq!(next_after_join(&mut subscriber).await, [[round]]);
        drop(publisher);
        within("the end of the connection", async {
            while !matches!(subscriber.recv().await, SubscriberEvent::Disconnected(_)) {}
        })
        .await;
    }
}

#[tokio::test]
async fn sub_speaks_ipv6_and_ipc() {
    let context = zmq::Context::new();
    let folder = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}/kv.sock", folder.path().display());
    for endpoint in ["tcp://[::1]:*", ipc.as_str(), "ipc://@pointsman-transport-test"] {
        let publisher = socket(&context, zmq::PUB);
        publisher.bind(endpoint).unwrap();
        let mut subscriber = Subscriber::connect(&bound(&publisher), &[b""], quick()).unwrap();
        joined(&publisher, &mut subscriber).await;
        publisher.send_multipart(["over", endpoint], 0).unwrap();
        assert_eq!(next_after_join(&mut subscriber).await, [b"over", endpoint.as_bytes()]);
    }
}

/// Heartbeats in both directions for many times their timeouts; a peer that mishandles PING loses the link.
#[tokio::test]
async fn links_with_heartbeats_on_both_sides_stay_up() {
    let config = TransportConfig {
        heartbeat_interval: Duration::from_millis(50),
        heartbeat_timeout: Duration::from_secs(20),
        ..quick()
    };
    let context = zmq::Context::new();
    let beating = |kind| {
        let socket = socket(&context, kind);
        socket.set_heartbeat_ivl(50).unwrap();
        socket.set_heartbeat_timeout(20_000).unwrap();
        socket.set_heartbeat_ttl(20_000).unwrap();
        socket
    };
    let theirs = beating(zmq::PUB);
    theirs.bind("tcp://127.0.0.1:*").unwrap();
    let mut subscriber = Subscriber::connect(&bound(&theirs), &[b""], config.clone()).unwrap();
    joined(&theirs, &mut subscriber).await;

    let ours = Publisher::bind("tcp://127.0.0.1:0", config).await.unwrap();
    let their_sub = beating(zmq::SUB);
    their_sub.connect(ours.endpoint()).unwrap();
    their_sub.set_subscribe(b"").unwrap();
    subscribed(&ours, 1).await;

    // 30 intervals; the condition is the passing of time itself.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        let event = tokio::time::timeout(Duration::from_millis(50), subscriber.recv()).await;
        assert!(!matches!(event, Ok(SubscriberEvent::Disconnected(_))), "{event:?}");
        assert_eq!(ours.subscribers(), 1);
    }
    theirs.send_multipart(["still here"], 0).unwrap();
    assert_eq!(next_after_join(&mut subscriber).await, [b"still here"]);
    ours.publish(message(&[b"still here"]));
    let received = spawn_blocking(move || their_sub.recv_multipart(0).unwrap()).await.unwrap();
    assert_eq!(received, [b"still here"]);
    assert_eq!(ours.stats().refused, 0);
}

#[tokio::test]
async fn pub_serves_libzmq_subscribers_by_prefix_and_hears_cancel() {
    let publisher = Publisher::bind("tcp://*:0", quick()).await.unwrap();
    let port = publisher.local_addr().port();
    let context = zmq::Context::new();
    let (all, some) = (socket(&context, zmq::SUB), socket(&context, zmq::SUB));
    all.connect(&format!("tcp://[::1]:{port}")).unwrap();
    all.set_subscribe(b"").unwrap();
    some.connect(&format!("tcp://127.0.0.1:{port}")).unwrap();
    some.set_subscribe(b"kv").unwrap();
    subscribed(&publisher, 2).await;
    let large = vec![5u8; 3 << 20];
    publisher.publish(message(&[b"kv-events", b"1"]));
    publisher.publish(message(&[b"other", &large]));
    publisher.publish(message(&[b"kv", &large, b""]));
    let (all, some) = spawn_blocking(move || {
        assert_eq!(some.recv_multipart(0).unwrap(), [&b"kv-events"[..], b"1"]);
        assert!(some.recv_multipart(0).unwrap() == [&b"kv"[..], &[5u8; 3 << 20], b""]);
        assert_eq!(all.recv_multipart(0).unwrap(), [&b"kv-events"[..], b"1"]);
        assert!(all.recv_multipart(0).unwrap() == [&b"other"[..], &[5u8; 3 << 20]]);
        assert_eq!(all.recv_multipart(0).unwrap().len(), 3);
        some.set_unsubscribe(b"kv").unwrap();
        (all, some)
    })
    .await
    .unwrap();
    subscribed(&publisher, 1).await;
    drop(all);
    subscribed(&publisher, 0).await;
    drop(some);
    assert_eq!(publisher.dropped(), 0);
}

#[tokio::test]
async fn pub_delivers_all_in_order_and_a_restart_finds_its_subscriber_again() {
    let context = zmq::Context::new();
    let their_sub = socket(&context, zmq::SUB);
    their_sub.set_rcvhwm(0).unwrap();
    their_sub.set_reconnect_ivl(20).unwrap();
    their_sub.set_subscribe(b"").unwrap();
    let mut publisher = Publisher::bind("tcp://127.0.0.1:0", quick()).await.unwrap();
    let endpoint = publisher.endpoint().to_owned();
    their_sub.connect(&endpoint).unwrap();
    // libzmq subscribes again only while somebody reads its socket.
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || while sender.send(their_sub.recv_multipart(0).unwrap()).is_ok() {});
    for round in 0..3u64 {
        subscribed(&publisher, 1).await;
        for number in 0..5_000u64 {
            publisher.publish(message(&[&round.to_be_bytes(), &number.to_be_bytes()]));
        }
        for number in 0..5_000u64 {
            let frames = within("a message", received.recv()).await.unwrap();
            assert_eq!(frames, [round.to_be_bytes(), number.to_be_bytes()]);
        }
        drop(publisher);
        publisher = within("the port to be free", async {
            loop {
                match Publisher::bind(&endpoint, quick()).await {
                    Ok(publisher) => return publisher,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        })
        .await;
    }
    subscribed(&publisher, 1).await;
    drop(received);
    publisher.publish(message(&[b"the reader may end"]));
}

#[tokio::test]
async fn ipc_pub_serves_a_libzmq_subscriber() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}/kv.sock", folder.path().display());
    let publisher = Publisher::bind(&endpoint, quick()).await.unwrap();
    let context = zmq::Context::new();
    let their_sub = socket(&context, zmq::SUB);
    their_sub.set_subscribe(b"").unwrap();
    their_sub.connect(publisher.endpoint()).unwrap();
    subscribed(&publisher, 1).await;
    publisher.publish(message(&[b"a", b"b"]));
    let received = spawn_blocking(move || their_sub.recv_multipart(0).unwrap()).await.unwrap();
    assert_eq!(received, [b"a", b"b"]);
}

#[tokio::test]
async fn dealer_exchanges_with_a_libzmq_router() {
    let context = zmq::Context::new();
    let router = socket(&context, zmq::ROUTER);
    router.set_sndhwm(0).unwrap();
    router.set_heartbeat_ivl(30).unwrap();
    router.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = bound(&router);
    let served = spawn_blocking(move || {
        let request = router.recv_multipart(0).unwrap();
        assert_eq!(request.len(), 3, "identity, delimiter, start");
        assert_eq!(request[1], b"");
        let start = u64::from_be_bytes(request[2][..].try_into().unwrap());
        for number in start..start + 5_000 {
            router.send_multipart([&request[0][..], b"", b"topic", &number.to_be_bytes(), &[9; 300]], 0).unwrap();
        }
        router.send_multipart([&request[0][..], b"", b"", &u64::MAX.to_be_bytes(), b""], 0).unwrap();
        router
    });
    let mut dealer = Dealer::connect(&endpoint, quick()).await.unwrap();
    dealer.send(message(&[b"", &(1u64 << 40).to_be_bytes()])).await.unwrap();
    for number in (1u64 << 40)..(1 << 40) + 5_000 {
        let reply = within("a reply", dealer.recv()).await.unwrap();
        assert_eq!(reply, message(&[b"", b"topic", &number.to_be_bytes(), &[9; 300]]));
    }
    let end = within("the end", dealer.recv()).await.unwrap();
    assert_eq!(end, message(&[b"", b"", &[0xff; 8], b""]));
    drop(served.await.unwrap());
    let error = within("the end of the connection", dealer.recv()).await.unwrap_err();
    assert_eq!(error.reason(), "io");
}

#[tokio::test]
async fn sockets_of_the_wrong_type_are_refused_with_a_reason() {
    let context = zmq::Context::new();
    let router = socket(&context, zmq::ROUTER);
    router.bind("tcp://127.0.0.1:*").unwrap();
    let mut subscriber = Subscriber::connect(&bound(&router), &[b""], quick()).unwrap();
    let event = within("a refusal", subscriber.recv()).await;
    let SubscriberEvent::Disconnected(error) = event else { panic!("{event:?}") };
    // libzmq may close before its READY is read; both say that the link cannot be.
    assert!(matches!(error.reason(), "protocol" | "io"), "{error}");
    let error = within("a refusal", Dealer::connect("tcp://127.0.0.1:1", quick())).await.unwrap_err();
    assert_eq!(error.reason(), "io");
}
