//! The table itself, with a digest of what each replica bound.
//!
//! Invariant: the digest of a writer is the sum over the bindings of its versions, expired ones that wait for the
//! reaper included.

use std::{sync::Arc, task::Waker};

use hashbrown::HashMap;
use xxhash_rust::xxh3::Xxh3;

use super::SessionVersion;
use crate::selection::{moment::Moment, request::AffinityTarget};

#[derive(Debug)]
pub(super) enum Entry {
    /// One booking chooses; the others wait for it.
    Initializing { revision: u64, waiters: HashMap<u64, Waiter> },
    /// Bound to a rank.
    Bound(Binding),
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) deadline: Option<Moment>,
    pub(super) waker: Waker,
}

#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) target: AffinityTarget,
    /// Names this binding; leases of another one do not count here.
    pub(super) revision: u64,
    pub(super) version: SessionVersion,
    pub(super) leases: u64,
    pub(super) idle_deadline: Moment,
}

impl Binding {
    pub(super) fn is_expired(&self, now: Moment) -> bool {
        self.leases == 0 && now >= self.idle_deadline
    }
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    map: HashMap<Arc<str>, Entry>,
    digests: HashMap<u64, u64>,
}

/// What a binding adds to the digest of its writer.
fn part(id: &str, target: AffinityTarget) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&target.worker_id.to_le_bytes());
    hasher.update(&target.dp_rank.map_or(u64::MAX, u64::from).to_le_bytes());
    hasher.update(id.as_bytes());
    hasher.digest()
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Entry> {
        self.map.get(id)
    }

    pub(super) fn get_key_value(&self, id: &str) -> Option<(&Arc<str>, &Entry)> {
        self.map.get_key_value(id)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Entry> {
        self.map.values()
    }

    /// All bindings.
    pub(super) fn bindings(&self) -> impl Iterator<Item = (&Arc<str>, &Binding)> {
        self.map.iter().filter_map(|(id, entry)| match entry {
            Entry::Bound(binding) => Some((id, binding)),
            Entry::Initializing { .. } => None,
        })
    }

    /// The waiters of a session that is being initialised.
    pub(super) fn waiters(&mut self, id: &str, of: u64) -> Option<&mut HashMap<u64, Waiter>> {
        match self.map.get_mut(id) {
            Some(Entry::Initializing { revision, waiters }) if *revision == of => Some(waiters),
            _ => None,
        }
    }

    pub(super) fn insert(&mut self, id: Arc<str>, entry: Entry) -> Option<Entry> {
        if let Entry::Bound(binding) = &entry {
            let part = part(&id, binding.target);
            let digest = self.digests.entry(binding.version.writer_id).or_default();
            *digest = digest.wrapping_add(part);
        }
        let replaced = self.map.insert(Arc::clone(&id), entry);
        if let Some(Entry::Bound(old)) = &replaced {
            self.subtract(&id, old.target, old.version);
        }
        replaced
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Entry> {
        let removed = self.map.remove(id);
        if let Some(Entry::Bound(binding)) = &removed {
            self.subtract(id, binding.target, binding.version);
        }
        removed
    }

    /// Changes a binding in place; `None` when the session is not bound.
    pub(super) fn change<R>(&mut self, id: &str, change: impl FnOnce(&mut Binding) -> R) -> Option<R> {
        let Some(Entry::Bound(binding)) = self.map.get_mut(id) else { return None };
        let (target, version) = (binding.target, binding.version);
        let result = change(binding);
        let (new_target, writer_id) = (binding.target, binding.version.writer_id);
        if new_target != target || writer_id != version.writer_id {
            self.subtract(id, target, version);
            let digest = self.digests.entry(writer_id).or_default();
            *digest = digest.wrapping_add(part(id, new_target));
        }
        Some(result)
    }

    fn subtract(&mut self, id: &str, target: AffinityTarget, version: SessionVersion) {
        let digest = self.digests.entry(version.writer_id).or_default();
        *digest = digest.wrapping_sub(part(id, target));
        if *digest == 0 {
            self.digests.remove(&version.writer_id);
        }
    }

    /// Removes bindings that are idle past their deadline.
    pub(super) fn reap(&mut self, now: Moment) {
        let Self { map, digests } = self;
        map.retain(|id, entry| match entry {
            Entry::Bound(binding) if binding.is_expired(now) => {
                let digest = digests.entry(binding.version.writer_id).or_default();
                *digest = digest.wrapping_sub(part(id, binding.target));
                false
            }
            _ => true,
        });
        digests.retain(|_, digest| *digest != 0);
    }

    /// Digests of the bindings, by writer.
    pub(super) fn digests(&self) -> Vec<(u64, u64)> {
        self.digests.iter().map(|(&writer_id, &digest)| (writer_id, digest)).collect()
    }
}
