//! One rank's event stream: sequence numbers, the replay ring, and the PUB socket.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::events::transport::Publisher;

/// Batches kept for replay, oldest first, numbered without holes.
#[derive(Debug)]
pub(super) struct Ring {
    capacity: usize,
    batches: VecDeque<Bytes>,
    /// Number of the next batch.
    next: u64,
}

impl Ring {
    /// An empty ring for `capacity` batches; numbers start at 0.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, batches: VecDeque::new(), next: 0 }
    }

    /// Keeps `payload`, giving up the oldest when full; its number.
    fn push(&mut self, payload: Bytes) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.batches.len() == self.capacity {
            self.batches.pop_front();
        }
        if self.capacity > 0 {
            self.batches.push_back(payload);
        }
        number
    }

    /// Batches from number `start` on that are still here, with their numbers.
    pub(super) fn since(&self, start: u64) -> Vec<(u64, Bytes)> {
        let first = self.next - self.batches.len() as u64;
        let skip = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
        (first..).zip(self.batches.iter().cloned()).skip(skip).collect()
    }

    /// Number of the next batch.
    pub(super) fn next(&self) -> u64 {
        self.next
    }
}

/// The stream. Clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct EventStream {
    publisher: Publisher,
    ring: Arc<Mutex<Ring>>,
    topic: Bytes,
    /// Batches that will not be published live.
    to_lose: Arc<Mutex<u64>>,
}

impl EventStream {
    /// A stream at number 0.
    pub(super) fn new(publisher: Publisher, topic: &str, replay_batches: usize) -> Self {
        let ring = Arc::new(Mutex::new(Ring::new(replay_batches)));
        Self { publisher, ring, topic: Bytes::copy_from_slice(topic.as_bytes()), to_lose: Arc::default() }
    }

    /// Gives `payload` its number and publishes it.
    pub(super) fn publish(&self, payload: Vec<u8>) {
        let payload = Bytes::from(payload);
        let number = self.ring.lock().push(payload.clone());
        {
            let mut to_lose = self.to_lose.lock();
            if *to_lose > 0 {
                *to_lose -= 1;
                return;
            }
        }
        let number = Bytes::copy_from_slice(&number.to_be_bytes());
        self.publisher.publish(vec![self.topic.clone(), number, payload]);
    }

    /// Leaves the next `count` batches out of the live stream: a gap that replay can fill.
    pub(super) fn lose(&self, count: u64) {
        *self.to_lose.lock() += count;
    }

    /// The PUB socket.
    pub(super) fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// What replay answers from.
    pub(super) fn ring(&self) -> &Arc<Mutex<Ring>> {
        &self.ring
    }

    /// The topic of its messages.
    pub(super) fn topic(&self) -> &Bytes {
        &self.topic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_under_their_own_numbers() {
        let mut ring = Ring::new(3);
        assert_eq!(ring.since(0), []);
        for number in 0..5u8 {
            assert_eq!(ring.push(Bytes::copy_from_slice(&[number])), u64::from(number));
        }
        let numbers =
            |start| ring.since(start).into_iter().map(|(number, batch)| (number, batch[0])).collect::<Vec<_>>();
        assert_eq!(numbers(0), [(2, 2), (3, 3), (4, 4)]);
        assert_eq!(numbers(4), [(4, 4)]);
        assert_eq!(numbers(5), []);
        assert_eq!(numbers(u64::MAX), []);
        assert_eq!(ring.next(), 5);
    }

    #[test]
    fn without_room_only_numbers_are_kept() {
        let mut ring = Ring::new(0);
        ring.push(Bytes::from_static(b"a"));
        assert_eq!((ring.next(), ring.since(0)), (1, vec![]));
    }
}
