//! One connection, from its first frame to its end.

use super::*;
use crate::events::transport::codec::encode_message;

/// Moves everything both sides have to say until both are silent; returns what each saw.
fn exchange(a: &mut Session, b: &mut Session) -> (Vec<Incoming>, Vec<Incoming>) {
    let (mut seen_a, mut seen_b) = (Vec::new(), Vec::new());
    loop {
        let mut moved = false;
        if let Some(bytes) = a.take_control() {
            b.feed(&bytes);
            moved = true;
        }
        if let Some(bytes) = b.take_control() {
            a.feed(&bytes);
            moved = true;
        }
        while let Some(event) = a.next().unwrap() {
            seen_a.push(event);
        }
        while let Some(event) = b.next().unwrap() {
            seen_b.push(event);
        }
        if !moved {
            return (seen_a, seen_b);
        }
    }
}

fn subscriber() -> Session {
    Session::new(SocketKind::Sub, 1 << 20, 1 << 20)
}

/// Greeting and READY of a 3.x peer of type `kind`.
fn peer_opening(kind: SocketKind, minor: u8) -> Vec<u8> {
    let mut bytes = greeting();
    bytes[11] = minor;
    let mut out = BytesMut::from(&bytes[..]);
    put_ready(&mut out, kind);
    out.to_vec()
}

/// A subscriber past its handshake with a publisher of ZMTP 3.`minor`; its output so far is dropped.
fn connected(minor: u8) -> Session {
    let mut session = subscriber();
    session.feed(&peer_opening(SocketKind::Pub, minor));
    assert_eq!(session.next(), Ok(Some(Incoming::Ready)));
    session.take_control();
    session
}

fn message(frames: &[&'static str]) -> Message {
    frames.iter().map(|frame| Bytes::from_static(frame.as_bytes())).collect()
}

#[test]
fn both_sides_reach_ready_and_subscriptions_arrive() {
    let (mut sub, mut publisher) = (subscriber(), Session::for_publisher());
    assert_eq!(exchange(&mut sub, &mut publisher), (vec![Incoming::Ready], vec![Incoming::Ready]));
    sub.subscribe(b"kv");
    assert_eq!(exchange(&mut sub, &mut publisher), (vec![], vec![Incoming::Subscribe(Bytes::from("kv"))]));
}

#[test]
fn a_3_0_peer_gets_the_message_form_and_a_3_1_peer_the_command() {
    for (minor, expected) in [(0, &b"\x00\x03\x01kv"[..]), (1, b"\x04\x0c\x09SUBSCRIBEkv")] {
        let mut session = connected(minor);
        session.subscribe(b"kv");
        assert_eq!(session.take_control().unwrap(), expected);
        assert_eq!(session.peer_has_commands(), minor == 1);
    }
}

#[test]
fn a_publisher_understands_both_forms_of_subscribe_and_cancel() {
    let mut session = Session::for_publisher();
    session.feed(&peer_opening(SocketKind::Sub, 0));
    assert_eq!(session.next(), Ok(Some(Incoming::Ready)));
    let mut wire = BytesMut::new();
    put_short_message(&mut wire, 1, b"a");
    put_command(&mut wire, "SUBSCRIBE", b"b");
    put_short_message(&mut wire, 0, b"a");
    put_command(&mut wire, "CANCEL", b"b");
    put_short_message(&mut wire, 7, b"not a subscription");
    session.feed(&wire);
    assert_eq!(session.next(), Ok(Some(Incoming::Subscribe(Bytes::from("a")))));
    assert_eq!(session.next(), Ok(Some(Incoming::Subscribe(Bytes::from("b")))));
    assert_eq!(session.next(), Ok(Some(Incoming::Cancel(Bytes::from("a")))));
    assert_eq!(session.next(), Ok(Some(Incoming::Cancel(Bytes::from("b")))));
    assert!(matches!(session.next(), Ok(Some(Incoming::Message(..)))));
}

#[test]
fn ping_is_answered_with_its_context_even_between_the_frames_of_a_message() {
    let mut session = connected(1);
    let wire = encode_message(&message(&["topic", "payload"]));
    session.feed(&wire[..7]);
    let mut ping = BytesMut::new();
    put_command(&mut ping, "PING", b"\x00\x96context");
    session.feed(&ping);
    session.feed(&wire[7..]);
    let Ok(Some(Incoming::Message(received, consumed))) = session.next() else { panic!("no message") };
    assert_eq!(received, message(&["topic", "payload"]));
    assert_eq!(consumed, wire.len() + ping.len() + ready_size(), "every byte since the last message is charged");
    assert_eq!(session.take_control().unwrap(), &b"\x04\x0c\x04PONGcontext"[..]);
    assert_eq!(session.peer_ttl(), Some(Duration::from_secs(15)));
}

/// Bytes of the publisher's READY.
fn ready_size() -> usize {
    peer_opening(SocketKind::Pub, 1).len() - GREETING_SIZE
}

#[test]
fn a_flood_of_pings_does_not_grow_the_output() {
    let mut session = connected(1);
    let mut ping = BytesMut::new();
    put_command(&mut ping, "PING", &[0; 18]);
    for _ in 0..10_000 {
        session.feed(&ping);
        assert_eq!(session.next(), Ok(None));
    }
    assert!(session.take_control().unwrap().len() < 2 * CONTROL_LIMIT);
}

#[test]
fn limits_on_frames_and_bytes_of_a_message_hold() {
    let mut session = Session::new(SocketKind::Sub, 1000, 1500);
    session.feed(&peer_opening(SocketKind::Pub, 1));
    assert_eq!(session.next(), Ok(Some(Incoming::Ready)));
    session.feed(&encode_message(&vec![Bytes::from(vec![0; 800]); 2]));
    assert_eq!(session.next(), Err(ProtocolError::MessageSize(1500)));

    let mut session = connected(1);
    session.feed(&encode_message(&vec![Bytes::new(); FRAMES_LIMIT]));
    assert!(matches!(session.next(), Ok(Some(Incoming::Message(..)))));
    session.feed(&encode_message(&vec![Bytes::new(); FRAMES_LIMIT + 1]));
    assert_eq!(session.next(), Err(ProtocolError::Frames));
}

#[test]
fn a_message_before_ready_is_refused() {
    let mut session = subscriber();
    session.feed(&greeting());
    session.feed(&encode_message(&message(&["early"])));
    assert_eq!(session.next(), Err(ProtocolError::NotReady));
}

#[test]
fn unknown_commands_are_passed_over() {
    let mut session = connected(1);
    let mut wire = BytesMut::new();
    put_command(&mut wire, "FUTURE", b"anything");
    put_command(&mut wire, "PONG", b"");
    put_command(&mut wire, "SUBSCRIBE", b"a subscriber is no publisher");
    session.feed(&wire);
    session.feed(&encode_message(&message(&["after"])));
    assert!(matches!(session.next(), Ok(Some(Incoming::Message(received, _))) if received == message(&["after"])));
}
