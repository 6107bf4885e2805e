//! The queue between a subscriber's connection and its reader: bounded in messages and bytes, in order, and honest
//! about what it dropped.
//!
//! A message is charged what was read from the connection for it, so that the read buffers its frames point into are
//! paid for. Once something was dropped that no longer holds, so from then until the queue is empty frames are copied.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Message, SubscriberEvent};

/// What the reader takes at a time: its lock is then short and rare, and the bounds stay meaningful.
const TAKE_MESSAGES: usize = 256;
const TAKE_BYTES: usize = 1 << 20;

/// The queue.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    ready: Notify,
    max_messages: usize,
    max_bytes: usize,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<(SubscriberEvent, usize)>,
    messages: usize,
    bytes: usize,
    /// Dropped since the last message that was queued.
    dropped: u64,
    /// Something was dropped since the queue was last empty.
    copying: bool,
}

/// What a message costs beside the bytes of its frames.
fn overhead(message: &Message) -> usize {
    size_of::<(SubscriberEvent, usize)>() + message.len() * size_of::<Bytes>()
}

impl Inbox {
    /// An empty queue for so many messages and bytes.
    pub(super) fn new(max_messages: usize, max_bytes: usize) -> Self {
        let state = Mutex::default();
        Self { state, ready: Notify::new(), max_messages, max_bytes, dropped: AtomicU64::new(0) }
    }

    /// Messages dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Messages that wait.
    pub(super) fn messages(&self) -> usize {
        self.state.lock().messages
    }

    /// Queues messages with what each is charged; drops the newest when the reader is behind.
    pub(super) fn push_messages(&self, batch: &mut Vec<(Message, usize)>) {
        let mut state = self.state.lock();
        let mut dropped = 0;
        let mut total_dropped = 0;
        for (message, consumed) in batch.drain(..) {
            let charge = consumed.saturating_add(overhead(&message));
            let full = state.messages >= self.max_messages || state.bytes.saturating_add(charge) > self.max_bytes;
            // An empty queue takes any message the transport let through.
            if full && state.messages > 0 {
                state.copying = true;
                dropped += 1;
                total_dropped += 1;
                continue;
            }
            state.report_drops(dropped);
            dropped = 0;
            let message = if state.copying { copied(message) } else { message };
            state.messages += 1;
            state.bytes += charge;
            state.events.push_back((SubscriberEvent::Message(message), charge));
        }
        state.dropped += dropped;
        drop(state);
        self.dropped.fetch_add(total_dropped, Ordering::Relaxed);
        self.ready.notify_one();
    }

    /// Queues a change of the connection. Changes without a message between them leave only the newest, so that a
    /// peer that comes and goes cannot fill the queue of a reader that is behind.
    pub(super) fn push_change(&self, event: SubscriberEvent) {
        let mut state = self.state.lock();
        if matches!(event, SubscriberEvent::Disconnected(_)) {
            let events = &mut state.events;
            let before = events.len().checked_sub(2).and_then(|index| events.get(index));
            if matches!(before, Some((SubscriberEvent::Disconnected(_), _)))
                && matches!(events.back(), Some((SubscriberEvent::Connected, _)))
            {
                events.pop_back();
            }
            if matches!(events.back(), Some((SubscriberEvent::Disconnected(_), _))) {
                events.pop_back();
            }
        }
        state.events.push_back((event, 0));
        drop(state);
        self.ready.notify_one();
    }

    /// Moves the oldest events to `out`; `false` when there is none.
    pub(super) fn take(&self, out: &mut VecDeque<SubscriberEvent>) -> bool {
        let mut state = self.state.lock();
        let (mut messages, mut bytes) = (0, 0);
        while messages < TAKE_MESSAGES && bytes < TAKE_BYTES {
            let Some((event, charge)) = state.events.pop_front() else { break };
            messages += usize::from(matches!(event, SubscriberEvent::Message(_)));
            bytes += charge;
            out.push_back(event);
        }
        state.messages -= messages;
        state.bytes -= bytes;
        if state.events.is_empty() {
            if state.dropped > 0 {
                out.push_back(SubscriberEvent::Dropped(std::mem::take(&mut state.dropped)));
            }
            state.copying = false;
        }
        !out.is_empty()
    }

    /// Ends when there may be something to take. Cancel-safe.
    pub(super) async fn ready(&self) {
        self.ready.notified().await;
    }
}

impl State {
    /// Puts the drops before the message that is queued next.
    fn report_drops(&mut self, more: u64) {
        let dropped = std::mem::take(&mut self.dropped) + more;
        if dropped > 0 {
            self.events.push_back((SubscriberEvent::Dropped(dropped), 0));
        }
    }
}

/// The same message in memory of its own.
fn copied(message: Message) -> Message {
    let mut all = BytesMut::with_capacity(message.iter().map(Bytes::len).sum());
    for frame in &message {
        all.extend_from_slice(frame);
    }
    message.iter().map(|frame| all.split_to(frame.len()).freeze()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::transport::TransportError;

    fn message(text: &str) -> (Message, usize) {
        (vec![Bytes::copy_from_slice(text.as_bytes())], text.len())
    }

    fn lost() -> SubscriberEvent {
        SubscriberEvent::Disconnected(TransportError::Timeout("heartbeat"))
    }

    /// Everything in the queue, as words.
    fn drain(inbox: &Inbox) -> Vec<String> {
        let mut out = VecDeque::new();
        while inbox.take(&mut out) {
            if inbox.state.lock().events.is_empty() {
                break;
            }
        }
        out.into_iter()
            .map(|event| match event {
                SubscriberEvent::Connected => "connected".into(),
                SubscriberEvent::Disconnected(_) => "disconnected".into(),
                SubscriberEvent::Dropped(count) => format!("dropped {count}"),
                SubscriberEvent::Message(message) => String::from_utf8(message[0].to_vec()).unwrap(),
            })
            .collect()
    }

    #[test]
    fn the_newest_are_dropped_and_reported_where_they_are_missing() {
        // As many as a reader takes at a time, and one more.
        let inbox = Inbox::new(TAKE_MESSAGES + 1, 1 << 20);
        let names: Vec<String> = (0..TAKE_MESSAGES + 4).map(|number| number.to_string()).collect();
        inbox.push_messages(&mut names.iter().map(|name| message(name)).collect());
        assert_eq!(inbox.dropped(), 3);
        let mut out = VecDeque::new();
        assert!(inbox.take(&mut out));
        assert_eq!(out.len(), TAKE_MESSAGES);
        inbox.push_messages(&mut vec![message("later")]);
        assert_eq!(drain(&inbox), [names[TAKE_MESSAGES].as_str(), "dropped 3", "later"]);
    }

    #[test]
    fn drops_at_the_end_are_reported_when_the_queue_runs_empty() {
        let inbox = Inbox::new(1, 1 << 20);
        inbox.push_messages(&mut ["a", "b"].map(message).into());
        assert_eq!(drain(&inbox), ["a", "dropped 1"]);
        assert_eq!(drain(&inbox), [""; 0]);
        inbox.push_messages(&mut vec![message("c")]);
        assert_eq!(drain(&inbox), ["c"]);
    }

    #[test]
    fn bytes_are_bounded_by_what_was_read_for_a_message() {
        let inbox = Inbox::new(100, 10_000);
        // Small messages among much that is no message pin the buffers all of it was read into.
        inbox.push_messages(&mut vec![(message("a").0, 6_000), (message("b").0, 6_000)]);
        assert_eq!(drain(&inbox), ["a", "dropped 1"]);
        inbox.push_messages(&mut vec![(message("larger than the queue").0, 60_000)]);
        assert_eq!(drain(&inbox), ["larger than the queue"]);
    }

    #[test]
    fn a_connection_that_flaps_leaves_only_its_last_state() {
        let inbox = Inbox::new(10, 1 << 20);
        inbox.push_change(SubscriberEvent::Connected);
        inbox.push_messages(&mut vec![message("a")]);
        for _ in 0..1000 {
            inbox.push_change(lost());
            inbox.push_change(SubscriberEvent::Connected);
        }
        inbox.push_messages(&mut vec![message("b")]);
        for _ in 0..1000 {
            inbox.push_change(lost());
        }
        assert_eq!(drain(&inbox), ["connected", "a", "disconnected", "connected", "b", "disconnected"]);
    }
}
