//! Waiting and peers that the transport tests share.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use pointsman::events::transport::{Message, Publisher, Subscriber, SubscriberEvent, TransportConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Longest wait for anything; a loaded machine may need much of it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Timings that make failures visible soon.
pub fn quick() -> TransportConfig {
    TransportConfig {
        connect_timeout: Duration::from_secs(20),
        reconnect_min: Duration::from_millis(20),
        reconnect_max: Duration::from_millis(100),
        ..TransportConfig::default()
    }
}

/// Awaits `future` within [`DEADLINE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// Waits until `condition` holds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// A message of these frames.
pub fn message(frames: &[&[u8]]) -> Message {
    frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
}

/// The next message, passing over changes of the connection.
pub async fn next_message(subscriber: &mut Subscriber) -> Message {
    within("a message", async {
        loop {
            if let SubscriberEvent::Message(message) = subscriber.recv().await {
                return message;
            }
        }
    })
    .await
}

/// Waits for a connection of the subscriber.
pub async fn connected(subscriber: &mut Subscriber) {
    within("a connection", async { while !matches!(subscriber.recv().await, SubscriberEvent::Connected) {} }).await;
}

/// Waits until the publisher has `count` subscribers.
pub async fn subscribed(publisher: &Publisher, count: usize) {
    until("subscribers", || publisher.subscribers() == count).await;
}

/// The greeting and READY of a ZMTP 3.`minor` peer.
pub fn opening(minor: u8, socket_type: &str) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, minor);
    bytes[12..16].copy_from_slice(b"NULL");
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    ready.push(socket_type.len() as u8);
    ready.extend_from_slice(socket_type.as_bytes());
    bytes.extend_from_slice(&[4, ready.len() as u8]);
    bytes.extend_from_slice(&ready);
    bytes
}

/// Reads what a peer of ours sends at first: its greeting and READY.
pub async fn read_opening(stream: &mut TcpStream) {
    let mut head = [0; 66];
    within("a greeting", stream.read_exact(&mut head)).await.unwrap();
    let mut ready = vec![0; usize::from(head[65])];
    within("READY", stream.read_exact(&mut ready)).await.unwrap();
}

/// Plays the whole handshake of a ZMTP 3.`minor` peer by hand.
pub async fn handshake(stream: &mut TcpStream, minor: u8, socket_type: &str) {
    stream.write_all(&opening(minor, socket_type)).await.unwrap();
    read_opening(stream).await;
}
