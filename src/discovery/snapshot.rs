//! A complete desired set of workers, and its digest.
//!
//! Records are sorted by id and ids are unique: [`Snapshot::new`] is the only way to make one.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use xxhash_rust::xxh3::Xxh3;

use crate::selection::catalog::{CatalogDelta, CatalogSnapshot, DesiredWorker, SnapshotVersion};

/// Two records share an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("duplicate worker_id {0} in snapshot")]
pub struct DuplicateId(pub u64);

/// One owner's complete desired set. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Order among the owner's snapshots.
    pub version: SnapshotVersion,
    digest: Arc<str>,
    workers: Arc<[DesiredWorker]>,
}

impl Snapshot {
    /// A snapshot of `workers`, in any order.
    ///
    /// # Errors
    /// An id that is there twice.
    pub fn new(version: SnapshotVersion, mut workers: Vec<DesiredWorker>) -> Result<Self, DuplicateId> {
        workers.sort_unstable_by_key(|w| w.request.worker_id);
        if let Some(pair) = workers.windows(2).find(|pair| pair[0].request.worker_id == pair[1].request.worker_id) {
            return Err(DuplicateId(pair[0].request.worker_id));
        }
        Ok(Self { version, digest: digest(&workers).into(), workers: workers.into() })
    }

    /// The same set under another version.
    pub fn with_version(&self, version: SnapshotVersion) -> Self {
        Self { version, ..self.clone() }
    }

    /// XXH3-128 over the records, 32 hex digits. Equal digests mean equal sets, states included.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The records, sorted by id.
    pub fn workers(&self) -> &[DesiredWorker] {
        &self.workers
    }

    /// The record of `worker_id`.
    pub fn get(&self, worker_id: u64) -> Option<&DesiredWorker> {
        let at = self.workers.binary_search_by_key(&worker_id, |w| w.request.worker_id).ok()?;
        self.workers.get(at)
    }

    /// The form a target takes whole.
    pub fn to_catalog(&self) -> CatalogSnapshot {
        CatalogSnapshot { version: self.version, digest: self.digest.to_string(), workers: self.workers.to_vec() }
    }

    /// What turns `base` into this snapshot.
    pub fn delta_from(&self, base: &Self) -> CatalogDelta {
        let before: HashMap<u64, &DesiredWorker> = base.workers.iter().map(|w| (w.request.worker_id, w)).collect();
        let changed = |w: &&DesiredWorker| before.get(&w.request.worker_id) != Some(w);
        let upsert = self.workers.iter().filter(changed).cloned().collect();
        let gone = base.workers.iter().map(|w| w.request.worker_id).filter(|id| self.get(*id).is_none());
        CatalogDelta {
            version: self.version,
            base_digest: base.digest.to_string(),
            digest: self.digest.to_string(),
            upsert,
            delete: gone.collect(),
        }
    }
}

/// Epoch of a source that starts now: milliseconds since 1970, so that a later start has a larger one.
pub fn epoch_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// An epoch above `current`, if there is one: the time, unless that is behind.
pub(super) fn next_epoch(current: SnapshotVersion) -> u64 {
    epoch_now().max(current.epoch.saturating_add(1)).min(SnapshotVersion::MAX_PART)
}

/// XXH3-128 over the canonical JSON of each record and a newline. The records must be sorted.
fn digest(workers: &[DesiredWorker]) -> String {
    let mut hash = Xxh3::new();
    let mut line = Vec::with_capacity(512);
    for worker in workers {
        line.clear();
        // Fields are written in declaration order and maps are sorted, so equal records are equal bytes.
        serde_json::to_writer(&mut line, worker).expect("a record has string keys and writes to memory");
        line.push(b'\n');
        hash.update(&line);
    }
    format!("{:032x}", hash.digest128())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::worker::{WorkerFields, WorkerRequest, WorkerState};

    fn worker(id: u64, endpoint: &str) -> DesiredWorker {
        DesiredWorker {
            state: WorkerState::Active,
            request: WorkerRequest {
                worker_id: id,
                model_name: "m".to_owned(),
                routing_group: "g".to_owned(),
                fields: WorkerFields { endpoint: Some(endpoint.to_owned()), ..WorkerFields::default() },
            },
        }
    }

    fn snapshot(workers: Vec<DesiredWorker>) -> Snapshot {
        Snapshot::new(SnapshotVersion { epoch: 1, generation: 1 }, workers).unwrap()
    }

    #[test]
    fn digest_depends_on_records_and_not_on_order_or_version() {
        let one = snapshot(vec![worker(1, "a"), worker(u64::MAX, "b")]);
        let other = snapshot(vec![worker(u64::MAX, "b"), worker(1, "a")]);
        assert_eq!(one.digest(), other.digest());
        assert_eq!(one.digest().len(), 32);
        assert_eq!(one.digest(), one.with_version(SnapshotVersion { epoch: 9, generation: 9 }).digest());
        assert_ne!(one.digest(), snapshot(vec![worker(1, "a"), worker(u64::MAX, "c")]).digest());
        let mut draining = worker(1, "a");
        draining.state = WorkerState::Draining;
        assert_ne!(snapshot(vec![worker(1, "a")]).digest(), snapshot(vec![draining]).digest());
    }

    #[test]
    fn digest_is_stable_across_releases() {
        // Selectors and sources of different releases compare these: a change here is a change of the protocol.
        assert_eq!(snapshot(Vec::new()).digest(), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn records_survive_the_wire() {
        let mut record = worker(u64::MAX, "a");
        record.request.fields.kv_events_endpoints.insert(3, "tcp://a:1".to_owned());
        record.request.fields.kv_transfer_preferred_weight = Some(0.1);
        let sent = snapshot(vec![record]).to_catalog();
        let received: CatalogSnapshot = serde_json::from_slice(&serde_json::to_vec(&sent).unwrap()).unwrap();
        assert_eq!(received, sent);
        let again = Snapshot::new(received.version, received.workers).unwrap();
        assert_eq!(again.digest(), sent.digest);
    }

    #[test]
    fn an_id_twice_is_refused() {
        let twice = Snapshot::new(SnapshotVersion::default(), vec![worker(7, "a"), worker(1, "a"), worker(7, "b")]);
        assert_eq!(twice, Err(DuplicateId(7)));
    }

    #[test]
    fn delta_names_what_changed_and_what_left() {
        let base = snapshot(vec![worker(1, "a"), worker(2, "b"), worker(3, "c")]);
        let next = snapshot(vec![worker(1, "a"), worker(2, "x"), worker(4, "d")]);
        let delta = next.delta_from(&base);
        assert_eq!(delta.base_digest, base.digest());
        assert_eq!(delta.digest, next.digest());
        assert_eq!(delta.upsert, vec![worker(2, "x"), worker(4, "d")]);
        assert_eq!(delta.delete, vec![3]);
    }
}
