//! Peers that break the protocol, stall, or ask for too much.

use std::time::Duration;

use pointsman::events::transport::{Dealer, Publisher, Subscriber, SubscriberEvent, TransportConfig, TransportError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    connected, handshake, message, next_message, opening, quick, read_opening, subscribed, until, within,
};

/// A listener and a subscriber that connects to it.
async fn victim(config: TransportConfig) -> (TcpListener, Subscriber) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, Subscriber::connect(&endpoint, &[b""], config).unwrap())
}

async fn accept(listener: &TcpListener) -> TcpStream {
    within("a connection", listener.accept()).await.unwrap().0
}

/// Waits for the end of the connection and why it ended.
async fn ended(subscriber: &mut Subscriber) -> TransportError {
    within("the end of the connection", async {
        loop {
            if let SubscriberEvent::Disconnected(error) = subscriber.recv().await {
                return error;
            }
        }
    })
    .await
}

/// After the attack a well-behaved publisher at the same address is heard.
async fn still_works(listener: &TcpListener, subscriber: &mut Subscriber) {
    let mut stream = accept(listener).await;
    handshake(&mut stream, 1, "PUB").await;
    stream.write_all(b"\x00\x02ok").await.unwrap();
    assert_eq!(next_message(subscriber).await, message(&[b"ok"]));
}

#[tokio::test]
async fn garbage_instead_of_a_greeting_is_refused_at_once() {
    let (listener, mut subscriber) = victim(quick()).await;
    for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 64], &[0xff; 9], &opening(1, "REQ")] {
        let mut stream = accept(&listener).await;
        stream.write_all(garbage).await.unwrap();
        if garbage == [0xff; 9] {
            // A signature begun and never finished: the peer goes away.
            drop(stream);
            assert_eq!(ended(&mut subscriber).await.reason(), "io");
        } else {
            let error = ended(&mut subscriber).await;
            assert_eq!(error.reason(), "protocol", "{error}");
        }
    }
    still_works(&listener, &mut subscriber).await;
}

#[tokio::test]
async fn a_claimed_frame_of_2_63_bytes_costs_nothing() {
    let (listener, mut subscriber) = victim(quick()).await;
    for claimed in [1u64 << 63, u64::MAX, 1 << 38, (64 << 20) + 1] {
        let mut stream = accept(&listener).await;
        handshake(&mut stream, 1, "PUB").await;
        stream.write_all(&[&[2][..], &claimed.to_be_bytes(), b"some"].concat()).await.unwrap();
        let error = ended(&mut subscriber).await;
        assert!(error.to_string().contains(&format!("frame of {claimed} bytes")), "{error}");
    }
    still_works(&listener, &mut subscriber).await;
}

#[tokio::test]
async fn garbage_after_the_handshake_ends_that_connection_only() {
    let (listener, mut subscriber) = victim(quick()).await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20 {
        let mut stream = accept(&listener).await;
        handshake(&mut stream, 1, "PUB").await;
        let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(4096).collect();
        stream.write_all(&[&[0xf8][..], &noise].concat()).await.unwrap();
        assert_eq!(ended(&mut subscriber).await.reason(), "protocol", "seed {seed}");
    }
    still_works(&listener, &mut subscriber).await;
}

#[tokio::test]
async fn what_came_before_a_violation_is_delivered() {
    let (listener, mut subscriber) = victim(quick()).await;
    let mut stream = accept(&listener).await;
    handshake(&mut stream, 1, "PUB").await;
    stream.write_all(b"\x01\x01a\x00\x01b\x80").await.unwrap();
    connected(&mut subscriber).await;
    assert_eq!(next_message(&mut subscriber).await, message(&[b"a", b"b"]));
    assert_eq!(ended(&mut subscriber).await.reason(), "protocol");
}

#[tokio::test]
async fn a_peer_that_never_greets_is_given_up_and_tried_again() {
    let config = TransportConfig { connect_timeout: Duration::from_millis(100), ..quick() };
    let (listener, mut subscriber) = victim(config.clone()).await;
    let silent = accept(&listener).await;
    assert_eq!(ended(&mut subscriber).await.to_string(), "timed out: handshake");
    drop(silent);
    // One byte at a time is no way around the deadline.
    let mut slow = accept(&listener).await;
    let drip = tokio::spawn(async move {
        for byte in opening(1, "PUB").into_iter().cycle() {
            if slow.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    });
    assert_eq!(ended(&mut subscriber).await.reason(), "timeout");
    within("the slow peer to be cut off", drip).await.unwrap();

    let (listener, _keep) = victim(config.clone()).await;
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let error = within("the deadline", Dealer::connect(&endpoint, config)).await.unwrap_err();
    assert_eq!(error.reason(), "timeout");
}

#[tokio::test]
async fn a_silent_3_1_peer_is_noticed_and_a_3_0_peer_may_be_silent() {
    let config = TransportConfig {
        heartbeat_interval: Duration::from_millis(20),
        heartbeat_timeout: Duration::from_millis(200),
        ..quick()
    };
    let (listener, mut subscriber) = victim(config).await;
    let mut silent = accept(&listener).await;
    handshake(&mut silent, 1, "PUB").await;
    let error = ended(&mut subscriber).await;
    assert_eq!(error.to_string(), "timed out: heartbeat");
    let mut seen = Vec::new();
    within("the end", silent.read_to_end(&mut seen)).await.unwrap();
    assert!(seen.windows(5).any(|window| window == b"\x04PING"), "{seen:?}");

    let mut old = accept(&listener).await;
    handshake(&mut old, 0, "PUB").await;
    connected(&mut subscriber).await;
    let mut subscription = [0; 3];
    within("the subscription", old.read_exact(&mut subscription)).await.unwrap();
    assert_eq!(&subscription, b"\x00\x01\x01");
    assert!(
        tokio::time::timeout(Duration::from_millis(600), subscriber.recv()).await.is_err(),
        "three timeouts of silence are no fault of a peer that knows no PING"
    );
    old.write_all(b"\x00\x02ok").await.unwrap();
    assert_eq!(next_message(&mut subscriber).await, message(&[b"ok"]));
}

#[tokio::test]
async fn a_peers_ttl_ends_a_connection_it_left() {
    let config = TransportConfig { heartbeat_interval: Duration::from_millis(50), ..quick() };
    let (listener, mut subscriber) = victim(config).await;
    let mut stream = accept(&listener).await;
    handshake(&mut stream, 0, "PUB").await;
    stream.write_all(b"\x04\x07\x04PING\x00\x02").await.unwrap();
    assert_eq!(ended(&mut subscriber).await.to_string(), "timed out: heartbeat");
}

#[tokio::test]
async fn a_reader_that_is_behind_loses_the_newest_and_is_told_how_many() {
    let config = TransportConfig { queue_messages: 1000, ..quick() };
    let (listener, mut subscriber) = victim(config).await;
    let mut stream = accept(&listener).await;
    handshake(&mut stream, 1, "PUB").await;
    for number in 0..50_000u32 {
        stream.write_all(&[&[0, 4][..], &number.to_be_bytes()].concat()).await.unwrap();
    }
    until("the drops", || subscriber.dropped() == 49_000).await;
    connected(&mut subscriber).await;
    for number in 0..1000u32 {
        assert_eq!(next_message(&mut subscriber).await, message(&[&number.to_be_bytes()]));
    }
    let event = within("the report", subscriber.recv()).await;
    assert!(matches!(event, SubscriberEvent::Dropped(49_000)), "{event:?}");
    stream.write_all(b"\x00\x02ok").await.unwrap();
    assert_eq!(next_message(&mut subscriber).await, message(&[b"ok"]));
}

#[tokio::test]
async fn a_request_to_reconnect_makes_a_new_connection() {
    let (listener, mut subscriber) = victim(quick()).await;
    let mut first = accept(&listener).await;
    handshake(&mut first, 1, "PUB").await;
    connected(&mut subscriber).await;
    subscriber.reconnect();
    assert_eq!(ended(&mut subscriber).await.reason(), "closed");
    still_works(&listener, &mut subscriber).await;
}

#[tokio::test]
async fn pub_outlives_bad_subscribers_and_bounds_what_they_may_ask() {
    let config = TransportConfig { connect_timeout: Duration::from_millis(500), ..quick() };
    let publisher = Publisher::bind("tcp://127.0.0.1:0", config).await.unwrap();
    let connect = || async { TcpStream::connect(publisher.local_addr()).await.unwrap() };

    let mut garbage = connect().await;
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let silent = connect().await;
    let mut claims = connect().await;
    handshake(&mut claims, 1, "SUB").await;
    claims.write_all(&[&[2][..], &(1u64 << 63).to_be_bytes()].concat()).await.unwrap();
    let mut greedy = connect().await;
    handshake(&mut greedy, 1, "SUB").await;
    for number in 0..1025u16 {
        greedy.write_all(&[&b"\x00\x03\x01"[..], &number.to_be_bytes()].concat()).await.unwrap();
    }
    until("four refusals", || publisher.stats().refused == 4).await;
    drop(silent);

    let mut good = connect().await;
    handshake(&mut good, 0, "SUB").await;
    good.write_all(b"\x00\x01\x01").await.unwrap();
    subscribed(&publisher, 1).await;
    publisher.publish(message(&[b"hello"]));
    let mut wire = [0; 7];
    within("the message", good.read_exact(&mut wire)).await.unwrap();
    assert_eq!(&wire, b"\x00\x05hello");
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_loses_the_newest_and_slows_nobody() {
    let config = TransportConfig { queue_messages: 100, ..quick() };
    let publisher = Publisher::bind("tcp://127.0.0.1:0", config).await.unwrap();
    let mut stuck = TcpStream::connect(publisher.local_addr()).await.unwrap();
    stuck.write_all(&[opening(0, "SUB"), b"\x00\x01\x01".to_vec()].concat()).await.unwrap();
    read_opening(&mut stuck).await;
    subscribed(&publisher, 1).await;
    // More than any kernel buffer takes.
    let frame = vec![0u8; 1 << 20];
    for _ in 0..200 {
        publisher.publish(message(&[&frame]));
    }
    until("drops", || publisher.dropped() > 0).await;

    let mut reader = Subscriber::connect(publisher.endpoint(), &[b"quick"], quick()).unwrap();
    subscribed(&publisher, 2).await;
    publisher.publish(message(&[b"quick"]));
    assert_eq!(next_message(&mut reader).await, message(&[b"quick"]));
    drop(stuck);
    subscribed(&publisher, 1).await;
    assert!(publisher.stats().lost_at_disconnect > 0);
}

#[tokio::test]
async fn a_drained_publisher_can_be_dropped_without_loss() {
    let publisher = Publisher::bind("tcp://127.0.0.1:0", quick()).await.unwrap();
    let mut subscriber = Subscriber::connect(publisher.endpoint(), &[b""], quick()).unwrap();
    subscribed(&publisher, 1).await;
    let frame = vec![7u8; 4096];
    for _ in 0..2000 {
        publisher.publish(message(&[&frame]));
    }
    assert!(publisher.drain(Duration::from_secs(60)).await);
    drop(publisher);
    for _ in 0..2000 {
        assert_eq!(next_message(&mut subscriber).await, message(&[&frame]));
    }
    assert_eq!(ended(&mut subscriber).await.reason(), "io");
}

/// A peer that sends greeting and READY in one piece leaves our READY unsent when its own is read: no message may
/// overtake it.
#[tokio::test]
async fn ready_comes_before_the_first_message() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let dealer = tokio::spawn(async move {
        let mut dealer = Dealer::connect(&endpoint, quick()).await.unwrap();
        dealer.send(message(&[b"first"])).await.unwrap();
        dealer
    });
    let mut stream = accept(&listener).await;
    stream.write_all(&opening(1, "ROUTER")).await.unwrap();
    read_opening(&mut stream).await;
    let mut wire = [0; 7];
    within("the message", stream.read_exact(&mut wire)).await.unwrap();
    assert_eq!(&wire, b"\x00\x05first");
    drop(dealer.await.unwrap());
}
