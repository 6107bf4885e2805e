//! Pending selections: what a query decided, kept for a later booking (spec http 7).
//!
//! One cache for all partitions with three limits: age, entries and estimated bytes. The newest selection of an id
//! wins; a booking consumes exactly the entry it looked at, by generation, so a late clean-up never takes a newer one.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use hashbrown::{Equivalent, HashMap};
use parking_lot::Mutex;

use super::{
    config::SelectionConfig,
    identity::{PartitionKey, WorkerWithDpRank},
    moment::Moment,
};

/// What a later booking needs of a selection.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingSelection {
    /// The decision.
    pub rank: WorkerWithDpRank,
    /// Tracking hashes.
    pub sequence: Arc<[u64]>,
    /// Prompt length in tokens.
    pub isl_tokens: u64,
    /// Prompt tokens the rank must compute.
    pub effective_prefill_tokens: u64,
    /// Expected length of the output, in tokens.
    pub expected_output_tokens: Option<u32>,
    /// Whether prefill is counted.
    pub track_prefill_tokens: bool,
    /// LoRA adapter.
    pub lora_name: Option<Box<str>>,
    /// Session, when the selection used it.
    pub session_id: Option<Box<str>>,
    /// Content hashes, when the partition records its decisions.
    pub block_hashes: Option<Box<[u64]>>,
}

/// Names one insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    partition: PartitionKey,
    selection_id: Arc<str>,
}

/// Looks a key up without building one. Hashes like [`Key`].
#[derive(Hash)]
struct KeyRef<'a> {
    partition: &'a PartitionKey,
    selection_id: &'a str,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.selection_id == &*key.selection_id && *self.partition == key.partition
    }
}

#[derive(Debug)]
struct Entry {
    generation: Generation,
    selected_at: Moment,
    bytes: usize,
    selection: Arc<PendingSelection>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// Oldest first.
    order: BTreeMap<Generation, Key>,
    bytes: usize,
    last_generation: u64,
}

impl State {
    /// Takes the oldest entry out while `excess` says so.
    fn evict(&mut self, gone: &mut Vec<Entry>, excess: impl Fn(&Self, &Entry) -> bool) {
        while let Some((_, key)) = self.order.first_key_value() {
            let oldest = self.entries.get(key).expect("every generation has its entry");
            if !excess(self, oldest) {
                return;
            }
            let (_, key) = self.order.pop_first().expect("not empty");
            gone.extend(self.take(&key));
        }
    }

    fn take(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.generation);
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

/// The cache of pending selections, one for all partitions.
#[derive(Debug)]
pub struct PendingSelections {
    ttl: Duration,
    max_entries: usize,
    max_bytes: usize,
    state: Mutex<State>,
}

impl PendingSelections {
    /// An empty cache with the limits of `config`.
    pub fn new(config: &SelectionConfig) -> Self {
        Self {
            ttl: config.selection_cache_ttl,
            max_entries: config.selection_cache_max_entries,
            max_bytes: config.selection_cache_max_bytes,
            state: Mutex::default(),
        }
    }

    /// Keeps `selection` under its id as the youngest entry, in place of an older one of that id. The oldest entries
    /// go while a limit is exceeded; an entry larger than the budget takes all others and itself with it.
    pub fn insert(
        &self,
        partition: &PartitionKey,
        selection_id: Arc<str>,
        selection: PendingSelection,
        now: Moment,
    ) -> Generation {
        let bytes = estimated_bytes(partition, &selection_id, &selection);
        let key = Key { partition: partition.clone(), selection_id };
        let selection = Arc::new(selection);
        // What goes is dropped after the lock.
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        state.evict(&mut gone, |_, oldest| now.since(oldest.selected_at) > self.ttl);
        state.last_generation += 1;
        let generation = Generation(state.last_generation);
        gone.extend(state.take(&key));
        state.bytes += bytes;
        state.order.insert(generation, key.clone());
        state.entries.insert(key, Entry { generation, selected_at: now, bytes, selection });
        state.evict(&mut gone, |state, _| state.entries.len() > self.max_entries || state.bytes > self.max_bytes);
        drop(state);
        generation
    }

    /// The selection under an id, unless it is older than the TTL; it stays.
    pub fn peek(
        &self,
        partition: &PartitionKey,
        selection_id: &str,
        now: Moment,
    ) -> Option<(Generation, Arc<PendingSelection>)> {
        let state = self.state.lock();
        let entry = state.entries.get(&KeyRef { partition, selection_id })?;
        (now.since(entry.selected_at) <= self.ttl).then(|| (entry.generation, Arc::clone(&entry.selection)))
    }

    /// Removes the entry a booking looked at; a newer one of the same id stays.
    pub fn consume(&self, partition: &PartitionKey, selection_id: &str, generation: Generation) -> bool {
        self.remove(partition, selection_id, |entry| entry.generation == generation)
    }

    /// Removes whatever is under an id.
    pub fn discard(&self, partition: &PartitionKey, selection_id: &str) -> bool {
        self.remove(partition, selection_id, |_| true)
    }

    fn remove(&self, partition: &PartitionKey, selection_id: &str, which: impl Fn(&Entry) -> bool) -> bool {
        let mut state = self.state.lock();
        let Some((key, entry)) = state.entries.get_key_value(&KeyRef { partition, selection_id }) else { return false };
        if !which(entry) {
            return false;
        }
        let key = key.clone();
        let gone = state.take(&key);
        drop(state);
        gone.is_some()
    }

    /// Drops entries older than the TTL.
    pub fn sweep(&self, now: Moment) {
        let mut gone = Vec::new();
        self.state.lock().evict(&mut gone, |_, oldest| now.since(oldest.selected_at) > self.ttl);
    }

    /// Entries and their estimated bytes, expired ones that wait for a sweep included.
    pub fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.entries.len(), state.bytes)
    }
}

/// The reference's estimate: eight bytes a hash, and the texts.
fn estimated_bytes(partition: &PartitionKey, selection_id: &str, selection: &PendingSelection) -> usize {
    let hashes = selection.sequence.len() + selection.block_hashes.as_ref().map_or(0, |hashes| hashes.len());
    let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
    hashes * mem::size_of::<u64>()
        + selection_id.len()
        + partition.model_name.len()
        + partition.routing_group.len()
        + text(&selection.lora_name)
        + text(&selection.session_id)
}

#[cfg(test)]
mod tests;
