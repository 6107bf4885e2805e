//! What the catalog's lock guards: live workers, and apart from them what every owner wants.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use super::{CatalogError, DesiredWorker, SnapshotVersion};
use crate::selection::{
    identity::PartitionKey,
    ingest::{EventSink, WorkerRanks},
    partition::PartitionRef,
    worker::{RankSource, WorkerRecord, WorkerRequest, WorkerState},
};

/// Owners that removed themselves and whose version is still known.
const MAX_GONE_OWNERS: usize = 1024;
/// Owners with records.
pub(super) const MAX_OWNERS: usize = 4096;

/// Live workers and desired records.
#[derive(Default)]
pub(in crate::selection) struct Catalog {
    /// Live workers.
    pub(in crate::selection) workers: HashMap<u64, Entry>,
    /// What every owner but `api` wants.
    pub(in crate::selection) owners: BTreeMap<Arc<str>, Owner>,
    /// Workers that may be schedulable once something else changes: their own metadata is complete.
    pub(in crate::selection) blocked: Blocked,
    /// Workers that drain.
    pub(in crate::selection) draining: BTreeSet<u64>,
    /// Partitions that went away since the last look at `blocked`.
    pub(in crate::selection) freed: BTreeSet<PartitionKey>,
    /// Workers of the API came from a peer, and none was registered here since.
    pub(in crate::selection) api_from_peer: bool,
    /// Ranks that listen to each event endpoint.
    streams: HashMap<String, u32>,
    gone: VecDeque<(Arc<str>, SnapshotVersion, String)>,
}

/// Workers that others keep out of their partitions. They are found by partition: many partitions may go at once while
/// many workers are blocked elsewhere.
#[derive(Default)]
pub(in crate::selection) struct Blocked {
    partitions: BTreeMap<u64, PartitionKey>,
    /// The same by partition; no set is empty.
    ids: BTreeMap<PartitionKey, BTreeSet<u64>>,
    /// Ids handed out so far.
    #[cfg(test)]
    pub(in crate::selection) handed_out: usize,
}

impl Blocked {
    /// Notes that a worker is kept out of `partition`, or out of none.
    pub(in crate::selection) fn set(&mut self, worker_id: u64, partition: Option<PartitionKey>) {
        let before = match &partition {
            Some(partition) => self.partitions.insert(worker_id, partition.clone()),
            None => self.partitions.remove(&worker_id),
        };
        if before == partition {
            return;
        }
        if let Some(before) = before
            && let Some(ids) = self.ids.get_mut(&before)
        {
            ids.remove(&worker_id);
            if ids.is_empty() {
                self.ids.remove(&before);
            }
        }
        if let Some(partition) = partition {
            self.ids.entry(partition).or_default().insert(worker_id);
        }
    }

    /// Whether others keep the worker out.
    pub(in crate::selection) fn contains(&self, worker_id: u64) -> bool {
        self.partitions.contains_key(&worker_id)
    }

    /// All ids, sorted.
    pub(in crate::selection) fn all(&mut self) -> Vec<u64> {
        let ids: Vec<u64> = self.partitions.keys().copied().collect();
        self.hand_out(ids)
    }

    /// Ids that are kept out of `partition`, sorted.
    pub(in crate::selection) fn of(&mut self, partition: &PartitionKey) -> Vec<u64> {
        let ids = self.ids.get(partition).map(|ids| ids.iter().copied().collect()).unwrap_or_default();
        self.hand_out(ids)
    }

    #[cfg_attr(not(test), allow(clippy::unused_self, reason = "tests count"))]
    fn hand_out(&mut self, ids: Vec<u64>) -> Vec<u64> {
        #[cfg(test)]
        {
            self.handed_out += ids.len();
        }
        ids
    }
}

/// A live worker.
pub(in crate::selection) struct Entry {
    /// As answers show it.
    pub(in crate::selection) record: Arc<WorkerRecord>,
    /// Its place in a partition; absent while incomplete.
    pub(in crate::selection) attached: Option<Attached>,
}

/// A worker's place in a partition.
pub(in crate::selection) struct Attached {
    /// The partition.
    pub(in crate::selection) partition: PartitionRef,
    /// Ranks, shared with its sinks.
    pub(in crate::selection) ranks: Arc<WorkerRanks>,
    /// Listeners by rank.
    pub(in crate::selection) streams: BTreeMap<u32, Stream>,
}

/// One listener.
pub(in crate::selection) struct Stream {
    /// What it listens to.
    pub(in crate::selection) source: RankSource,
    /// Where it writes.
    pub(in crate::selection) sink: EventSink,
}

/// What an owner wants.
#[derive(Default)]
pub(in crate::selection) struct Owner {
    /// In force.
    pub(in crate::selection) version: SnapshotVersion,
    /// In force.
    pub(in crate::selection) digest: String,
    /// Records.
    pub(in crate::selection) desired: BTreeMap<u64, Desired>,
    /// Records whose live worker was changed by others.
    pub(in crate::selection) dirty: BTreeSet<u64>,
    /// Why its source is behind.
    pub(in crate::selection) source_error: Option<String>,
    /// The records are a peer's word: the next snapshot replaces them whatever its digest.
    pub(in crate::selection) from_peer: bool,
}

/// One desired record.
#[derive(Clone, PartialEq)]
pub(in crate::selection) struct Desired {
    /// The record.
    pub(in crate::selection) request: Arc<WorkerRequest>,
    /// Active or draining.
    pub(in crate::selection) state: WorkerState,
}

impl From<DesiredWorker> for Desired {
    fn from(worker: DesiredWorker) -> Self {
        Self { request: Arc::new(worker.request), state: worker.state }
    }
}

impl Owner {
    /// Whether nothing needs to be shown of it.
    pub(in crate::selection) fn is_idle(&self) -> bool {
        self.desired.is_empty() && self.source_error.is_none()
    }
}

impl Catalog {
    /// The owner's version and digest in force, also after it removed itself.
    pub(in crate::selection) fn in_force(&self, owner: &str) -> Option<(SnapshotVersion, &str)> {
        match self.owners.get(owner) {
            Some(owner) => Some((owner.version, &owner.digest)),
            None => {
                let (_, version, digest) = self.gone.iter().find(|(name, ..)| &**name == owner)?;
                Some((*version, digest))
            }
        }
    }

    /// The owner's state, made from what is remembered of it.
    ///
    /// # Errors
    /// Too many owners.
    pub(in crate::selection) fn owner_mut(&mut self, name: &str) -> Result<(Arc<str>, &mut Owner), CatalogError> {
        let known = self.owners.get_key_value(name).map(|(name, _)| Arc::clone(name));
        let name = match known {
            Some(name) => name,
            None if self.owners.len() >= MAX_OWNERS => {
                return Err(CatalogError::Invalid(format!("more than {MAX_OWNERS} owners")));
            }
            None => Arc::from(name),
        };
        let gone = self.gone.iter().position(|(gone, ..)| *gone == name).and_then(|at| self.gone.remove(at));
        let owner = self.owners.entry(Arc::clone(&name)).or_default();
        if let Some((_, version, digest)) = gone {
            (owner.version, owner.digest) = (version, digest);
        }
        Ok((name, owner))
    }

    /// Forgets an owner that wants nothing, but for its version.
    pub(in crate::selection) fn forget_idle_owner(&mut self, name: &str) {
        let Some((name, owner)) = self.owners.remove_entry(name) else { return };
        if !owner.is_idle() {
            self.owners.insert(name, owner);
            return;
        }
        if self.gone.len() >= MAX_GONE_OWNERS {
            self.gone.pop_front();
        }
        self.gone.push_back((name, owner.version, owner.digest));
    }

    /// The id is free: owners that want it look again.
    pub(in crate::selection) fn mark_wanted(&mut self, worker_id: u64) {
        for owner in self.owners.values_mut().filter(|owner| owner.desired.contains_key(&worker_id)) {
            owner.dirty.insert(worker_id);
        }
    }

    /// Notes a listener; `true` when another rank listens to the same endpoint.
    pub(in crate::selection) fn add_stream(&mut self, endpoint: &str) -> bool {
        match self.streams.get_mut(endpoint) {
            Some(ranks) => {
                *ranks += 1;
                true
            }
            None => {
                self.streams.insert(endpoint.to_owned(), 1);
                false
            }
        }
    }

    /// Forgets a listener.
    pub(in crate::selection) fn remove_stream(&mut self, endpoint: &str) {
        if let Some(ranks) = self.streams.get_mut(endpoint) {
            *ranks -= 1;
            if *ranks == 0 {
                self.streams.remove(endpoint);
            }
        }
    }
}
