//! Live events set aside while a replay runs, in order and bounded.

use std::collections::VecDeque;

use super::super::transport::{Message, SubscriberEvent};

/// A bounded queue; its owner asks for room before it reads on.
#[derive(Debug)]
pub(super) struct Backlog {
    events: VecDeque<SubscriberEvent>,
    bytes: usize,
    max_messages: usize,
    max_bytes: usize,
}

impl Backlog {
    pub fn new(max_messages: usize, max_bytes: usize) -> Self {
        Self { events: VecDeque::new(), bytes: 0, max_messages, max_bytes }
    }

    pub fn has_room(&self) -> bool {
        self.events.len() < self.max_messages && self.bytes < self.max_bytes
    }

    pub fn push(&mut self, event: SubscriberEvent) {
        self.bytes += bytes(&event);
        self.events.push_back(event);
    }

    pub fn pop(&mut self) -> Option<SubscriberEvent> {
        let event = self.events.pop_front();
        self.bytes -= event.as_ref().map_or(0, bytes);
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
        event
    }

    pub fn clear(&mut self) {
        self.events = VecDeque::new();
        self.bytes = 0;
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// The messages, oldest first.
    pub fn messages(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.events.iter().filter_map(|event| match event {
            SubscriberEvent::Message(message) => Some(message),
            _ => None,
        })
    }
}

fn bytes(event: &SubscriberEvent) -> usize {
    match event {
        SubscriberEvent::Message(message) => message.iter().map(|frame| frame.len()).sum(),
        _ => 0,
    }
}
