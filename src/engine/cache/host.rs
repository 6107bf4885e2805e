//! The second tier: blocks that the device evicted, in least recently used order.

use std::collections::{BTreeMap, HashMap};

use super::Content;
use crate::engine::event::{KvEvent, Medium};

/// Evicted blocks by hash.
#[derive(Debug)]
pub(super) struct HostTier {
    capacity: usize,
    /// Number of the last use of each hash held.
    last_use: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    next_use: u64,
}

impl HostTier {
    /// Room for `capacity` blocks; none switches the tier off.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, last_use: HashMap::new(), by_use: BTreeMap::new(), next_use: 0 }
    }

    /// Whether `hash` is held.
    pub(super) fn holds(&self, hash: u64) -> bool {
        self.last_use.contains_key(&hash)
    }

    /// Marks `hash` as used.
    pub(super) fn touch(&mut self, hash: u64) {
        if let Some(last) = self.last_use.get_mut(&hash) {
            self.by_use.remove(last);
            *last = self.next_use;
            self.by_use.insert(self.next_use, hash);
            self.next_use += 1;
        }
    }

    /// Takes a block in, giving up the least recently used one when full, and tells both.
    pub(super) fn insert(&mut self, content: Content, events: &mut Vec<KvEvent>) {
        if self.capacity == 0 {
            return;
        }
        if self.holds(content.hash) {
            return self.touch(content.hash);
        }
        if self.last_use.len() == self.capacity
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.last_use.remove(&oldest);
            events.push(KvEvent::Removed { hashes: vec![oldest], medium: Medium::Host });
        }
        self.last_use.insert(content.hash, self.next_use);
        self.by_use.insert(self.next_use, content.hash);
        self.next_use += 1;
        events.push(KvEvent::Stored {
            hashes: vec![content.hash],
            parent: content.parent,
            tokens: content.tokens.into_vec(),
            namespace: content.namespace,
            medium: Medium::Host,
        });
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.last_use.clear();
        self.by_use.clear();
    }
}
