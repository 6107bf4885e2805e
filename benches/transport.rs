//! CPU of receiving KV event messages: our SUB beside the `zeromq` crate's, each on one thread, fed with the same
//! bytes by a peer on another thread.
//!
//! `cargo bench --bench transport [-- MESSAGES]` prints microseconds of the receiving thread's CPU for each message.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use pointsman::events::transport::{Subscriber, SubscriberEvent, TransportConfig};
use zeromq::{Socket, SocketRecv};

/// Greeting and READY of a ZMTP 3.0 publisher.
fn opening() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
    bytes
}

/// Frames of a KV event batch of `size` bytes in all.
fn wire(size: usize) -> Vec<u8> {
    let payload = vec![7; size - 17];
    let mut bytes = b"\x01\x09kv-events\x01\x08\0\0\0\0\0\0\0\0".to_vec();
    if payload.len() < 256 {
        bytes.extend_from_slice(&[0, payload.len() as u8]);
    } else {
        bytes.push(2);
        bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    }
    bytes.extend_from_slice(&payload);
    bytes
}

/// Sends `count` messages of `size` bytes to the first subscriber, then waits for it to leave.
fn feed(listener: TcpListener, size: usize, count: usize) {
    let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
    stream.write_all(&opening()).unwrap();
    // Its greeting, READY and subscription, of whatever length, end with the topic's empty frame.
    let mut seen = Vec::new();
    while !seen.ends_with(&[0, 1, 1]) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let one = wire(size);
    let many = one.repeat(256 * 1024 / one.len() + 1);
    let a_block = many.len() / one.len();
    for _ in 0..count / a_block {
        stream.write_all(&many).unwrap();
    }
    stream.write_all(&one.repeat(count % a_block)).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap_or_default();
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// Receives `count` messages with `receive` on a thread of its own; CPU and wall time for each.
fn measure<F>(size: usize, count: usize, receive: F) -> (f64, f64)
where
    F: AsyncFnOnce(String, usize) + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let feeder = thread::spawn(move || feed(listener, size, count));
    let receiver = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (start_cpu, start) = (cpu(), Instant::now());
        runtime.block_on(receive(endpoint, count));
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        (micros(cpu() - start_cpu), micros(start.elapsed()))
    });
    let result = receiver.join().unwrap();
    feeder.join().unwrap();
    result
}

async fn ours(endpoint: String, count: usize) {
    let mut subscriber = Subscriber::connect(&endpoint, &[b""], TransportConfig::default()).unwrap();
    let mut seen = 0;
    while seen < count {
        match subscriber.recv().await {
            SubscriberEvent::Message(message) => {
                assert_eq!(message.len(), 3);
                seen += 1;
            }
            SubscriberEvent::Dropped(number) => seen += number as usize,
            _ => {}
        }
    }
}

async fn theirs(endpoint: String, count: usize) {
    let mut subscriber = zeromq::SubSocket::new();
    subscriber.connect(&endpoint).await.unwrap();
    subscriber.subscribe("").await.unwrap();
    for _ in 0..count {
        assert_eq!(subscriber.recv().await.unwrap().len(), 3);
    }
}

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(200_000);
    println!("{:>8} {:>8} {:>16} {:>16}   us CPU (wall) a message", "bytes", "messages", "pointsman", "zeromq 0.7");
    for (size, count) in [(250, count), (5_000, count / 2), (100_000, count / 20)] {
        for _ in 0..3 {
            let (our_cpu, our_wall) = measure(size, count, ours);
            let (their_cpu, their_wall) = measure(size, count, theirs);
            println!("{size:>8} {count:>8} {our_cpu:>8.2} ({our_wall:.2}) {their_cpu:>9.2} ({their_wall:.2})");
        }
    }
}
