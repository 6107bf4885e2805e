//! Verbs of owners: snapshots, deltas, and what is in force (design section 6).
//!
//! An owner's desired records and the live workers are kept apart: a snapshot replaces the former and reconciles the
//! latter. Applying holds its own lock from start to end and the catalog's in slices, so that other worker verbs go on.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use parking_lot::MutexGuard;

use super::{SelectionCore, reconcile::RECORDS_AT_ONCE};
use crate::selection::{
    catalog::{
        API_OWNER, Catalog, CatalogChanges, CatalogDelta, CatalogError, CatalogReport, CatalogSnapshot, CatalogStatus,
        Desired, DesiredWorker, OwnerSource, OwnerStatus, SnapshotVersion, WorkerOutcome,
    },
    worker::{Lifecycle, WorkerState},
};

/// Longest owner name and digest, in bytes.
const MAX_NAME_BYTES: usize = 256;

impl SelectionCore {
    /// One owner's complete desired set; reconciled in one pass, one failing record does not stop the others. An equal
    /// digest means that the records are known already: only what others changed is restored.
    /// `adopt`: take over the records of that owner.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn apply_catalog(
        &self,
        owner: &str,
        snapshot: CatalogSnapshot,
        adopt: Option<&str>,
    ) -> Result<CatalogReport, CatalogError> {
        check_names(owner, &snapshot.digest)?;
        let CatalogSnapshot { version, digest, workers } = snapshot;
        version.check()?;
        let workers = desired(workers)?;
        let _applying = self.applying.lock();
        let mut catalog = self.catalog.lock();
        check_version(&catalog, owner, version)?;
        let adopted = match adopt.filter(|&from| from != owner) {
            Some(from) => self.adopt(&mut catalog, from, owner)?,
            None => false,
        };
        let (name, state) = catalog.owner_mut(owner)?;
        let from_peer = std::mem::take(&mut state.from_peer);
        let known = !digest.is_empty() && state.digest == digest && !state.desired.is_empty() && !adopted && !from_peer;
        (state.version, state.digest) = (version, digest);
        let mut changes = CatalogChanges { adopted, ..CatalogChanges::default() };
        let mut removed = BTreeSet::new();
        let mut look_at: Vec<u64> = Vec::new();
        if known {
            look_at.extend(&state.dirty);
        } else {
            removed.extend(state.desired.keys().filter(|id| !workers.contains_key(id)));
            removed.extend(state.dirty.iter().filter(|id| !workers.contains_key(id)));
            look_at.extend(workers.keys());
            changes.upserted = replace_desired(&mut state.desired, workers);
            changes.deleted = removed.len();
        }
        state.dirty.clear();
        self.reconcile(&mut catalog, &name, &look_at, &removed);
        Ok(CatalogReport { changes, ..self.report(catalog, &name, None) })
    }

    /// A change to an owner's desired set. The answer has a line for each record it names.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn apply_catalog_delta(&self, owner: &str, delta: CatalogDelta) -> Result<CatalogReport, CatalogError> {
        check_names(owner, &delta.digest)?;
        let CatalogDelta { version, base_digest, digest, upsert, delete } = delta;
        version.check()?;
        let upsert = desired(upsert)?;
        if let Some(id) = delete.iter().find(|id| upsert.contains_key(id)) {
            return Err(CatalogError::Invalid(format!("worker_id {id} is both upserted and deleted")));
        }
        let _applying = self.applying.lock();
        let mut catalog = self.catalog.lock();
        check_version(&catalog, owner, version)?;
        let word_of_peer = catalog.owners.get(owner).is_some_and(|state| state.from_peer);
        let current = catalog.in_force(owner).map_or("", |(_, digest)| digest);
        // A peer's live records need not be all that its owner wants.
        let current = if word_of_peer { "" } else { current };
        if current != base_digest || current.is_empty() {
            return Err(CatalogError::BaseMismatch { base: base_digest, current: current.to_owned() });
        }
        let (name, state) = catalog.owner_mut(owner)?;
        (state.version, state.digest) = (version, digest);
        let removed: BTreeSet<u64> = delete.into_iter().filter(|id| state.desired.remove(id).is_some()).collect();
        let named: Vec<u64> = upsert.keys().copied().collect();
        let upserted = upsert.iter().filter(|(id, wanted)| state.desired.get(*id) != Some(*wanted)).count();
        let changes = CatalogChanges { upserted, deleted: removed.len(), adopted: false };
        state.desired.extend(upsert);
        let look_at: BTreeSet<u64> =
            std::mem::take(&mut state.dirty).into_iter().chain(named.iter().copied()).collect();
        let look_at: Vec<u64> = look_at.into_iter().filter(|id| state.desired.contains_key(id)).collect();
        self.reconcile(&mut catalog, &name, &look_at, &removed);
        Ok(CatalogReport { changes, ..self.report(catalog, &name, Some(&named)) })
    }

    /// All owners.
    pub fn catalog(&self) -> CatalogStatus {
        let catalog = self.catalog.lock();
        let mut owners: BTreeMap<&str, OwnerStatus> = BTreeMap::new();
        for (name, owner) in &catalog.owners {
            let status = owners.entry(name).or_default();
            status.version = owner.version;
            status.digest.clone_from(&owner.digest);
            status.source_error.clone_from(&owner.source_error);
            status.source = owner.from_peer.then_some(OwnerSource::Peer);
        }
        for entry in catalog.workers.values() {
            let status = owners.entry(&entry.record.owner).or_default();
            status.workers += 1;
            status.schedulable += u64::from(entry.record.is_schedulable());
        }
        if let Some(api) = owners.get_mut(API_OWNER) {
            api.source = catalog.api_from_peer.then_some(OwnerSource::Peer);
        }
        let owners = owners.into_iter().map(|(name, status)| OwnerStatus { owner: name.to_owned(), ..status });
        CatalogStatus { instance_id: self.instance_id.clone(), owners: owners.collect() }
    }

    /// Changes on every start of the process.
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// Whether any snapshot was applied since the start, an empty one included.
    pub fn catalog_applied(&self) -> bool {
        self.catalog_applied.load(Ordering::Relaxed)
    }

    /// Says why an owner's source is behind, or that it no longer is. Names that no owner can have are ignored.
    pub fn set_source_error(&self, owner: &str, error: Option<String>) {
        let mut catalog = self.catalog.lock();
        if check_names(owner, "").is_err() || (error.is_none() && !catalog.owners.contains_key(owner)) {
            return;
        }
        if let Ok((_, state)) = catalog.owner_mut(owner) {
            state.source_error = error;
        }
        catalog.forget_idle_owner(owner);
    }

    /// Restores what others changed of owned workers. Called by `tick`.
    pub(super) fn reconcile_dirty(&self) {
        let Some(_applying) = self.applying.try_lock() else { return };
        let Some(mut catalog) = self.catalog.try_lock() else { return };
        let dirty: Vec<_> = catalog
            .owners
            .iter_mut()
            .filter(|(_, owner)| !owner.dirty.is_empty())
            .map(|(name, owner)| (Arc::clone(name), std::mem::take(&mut owner.dirty)))
            .collect();
        for (name, ids) in dirty {
            let ids: Vec<u64> = ids.into_iter().collect();
            self.reconcile(&mut catalog, &name, &ids, &BTreeSet::new());
        }
    }

    /// Tries workers that other workers kept out again. Called by `tick` every 60 s.
    pub(super) fn reconcile_blocked(&self) {
        let Some(_applying) = self.applying.try_lock() else { return };
        let Some(mut catalog) = self.catalog.try_lock() else { return };
        let blocked = catalog.blocked.all();
        self.retry_blocked(&mut catalog, &blocked, |_| true);
        self.retry_freed(&mut catalog);
    }

    /// Brings `look_at` to what `owner` wants and takes `removed` away: new and changed records first, so that a pool
    /// that is replaced never stands empty, then those that left, then what these had kept out.
    fn reconcile(
        &self,
        catalog: &mut MutexGuard<'_, Catalog>,
        owner: &Arc<str>,
        look_at: &[u64],
        removed: &BTreeSet<u64>,
    ) {
        for ids in look_at.chunks(RECORDS_AT_ONCE) {
            ids.iter().for_each(|&id| self.reconcile_record(catalog, owner, id));
            MutexGuard::bump(catalog);
        }
        for (count, id) in removed.iter().enumerate() {
            if catalog.workers.get(id).is_some_and(|entry| entry.record.owner == *owner) {
                self.remove(catalog, *id);
            }
            if count % RECORDS_AT_ONCE == 0 {
                MutexGuard::bump(catalog);
            }
        }
        if !removed.is_empty() {
            let blocked = catalog.blocked.all();
            self.retry_blocked(catalog, &blocked, |record| record.owner == *owner);
        }
        self.retry_freed(catalog);
    }

    /// Makes one live worker what its owner wants, if it is not.
    fn reconcile_record(&self, catalog: &mut Catalog, owner: &Arc<str>, worker_id: u64) {
        let Some(wanted) = catalog.owners.get(owner).and_then(|state| state.desired.get(&worker_id)) else { return };
        let settled = match catalog.workers.get(&worker_id) {
            // Somebody else's, or as wanted already. What keeps an incomplete one out is looked at elsewhere.
            Some(entry) => {
                let record = &entry.record;
                record.owner != *owner
                    || (record.state == wanted.state
                        && (Arc::ptr_eq(&record.request, &wanted.request) || record.request == wanted.request))
            }
            // A draining worker that is gone has ended its last booking: it stays gone.
            None => wanted.state == WorkerState::Draining,
        };
        if settled || wanted.request.check_limits().is_err() {
            return;
        }
        let (request, state) = (Arc::clone(&wanted.request), wanted.state);
        self.put(catalog, request, state, Arc::clone(owner));
    }

    /// Makes the live workers of `from` `to`'s, to be reconciled as such, and forgets what `from` wanted.
    fn adopt(&self, catalog: &mut Catalog, from: &str, to: &str) -> Result<bool, CatalogError> {
        let (to, _) = catalog.owner_mut(to)?;
        let mut adopted = BTreeSet::new();
        for (&id, entry) in &mut catalog.workers {
            if &*entry.record.owner == from {
                Arc::make_mut(&mut entry.record).owner = Arc::clone(&to);
                self.publish(None, Some(&entry.record));
                adopted.insert(id);
            }
        }
        if let Some(owner) = catalog.owners.get_mut(from) {
            owner.desired.clear();
            owner.dirty.clear();
            owner.source_error = None;
        }
        catalog.forget_idle_owner(from);
        let any = !adopted.is_empty();
        if let Some(owner) = catalog.owners.get_mut(&to) {
            owner.dirty.extend(adopted);
        }
        Ok(any)
    }

    fn report(&self, mut catalog: MutexGuard<'_, Catalog>, owner: &Arc<str>, only: Option<&[u64]>) -> CatalogReport {
        let mut report = CatalogReport { instance_id: self.instance_id.clone(), ..CatalogReport::default() };
        if let Some(state) = catalog.owners.get(owner) {
            report.version = state.version;
            report.digest.clone_from(&state.digest);
            report.workers = match only {
                Some(ids) => {
                    ids.iter().filter_map(|id| Some(outcome(&catalog, owner, *id, state.desired.get(id)?))).collect()
                }
                None => state.desired.iter().map(|(id, wanted)| outcome(&catalog, owner, *id, wanted)).collect(),
            };
        }
        catalog.forget_idle_owner(owner);
        self.catalog_applied.store(true, Ordering::Relaxed);
        report
    }
}

/// What became of one record.
fn outcome(catalog: &Catalog, owner: &Arc<str>, worker_id: u64, wanted: &Desired) -> WorkerOutcome {
    let (lifecycle, reasons) = match catalog.workers.get(&worker_id) {
        Some(entry) if entry.record.owner != *owner => {
            (None, vec![format!("rejected: owned by {}", entry.record.owner)])
        }
        entry => match (wanted.request.check_limits(), entry) {
            (Err(reason), _) => (None, vec![format!("rejected: {reason}")]),
            (Ok(()), Some(entry)) => (Some(entry.record.lifecycle), entry.record.not_schedulable_reasons.clone()),
            (Ok(()), None) => (Some(Lifecycle::Unschedulable), Vec::new()),
        },
    };
    WorkerOutcome { worker_id, lifecycle, reasons }
}

pub(super) fn check_names(owner: &str, digest: &str) -> Result<(), CatalogError> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if owner.is_empty() || owner.len() > MAX_NAME_BYTES || !owner.bytes().all(valid) {
        let rule = "an owner's name is 1 to 256 letters, digits, `.`, `_` and `-`";
        return Err(CatalogError::Invalid(rule.to_owned()));
    }
    if owner == API_OWNER {
        return Err(CatalogError::Invalid(format!(
            "`{API_OWNER}` owns the workers of POST /workers and takes no snapshot"
        )));
    }
    if digest.len() > MAX_NAME_BYTES {
        return Err(CatalogError::Invalid("a digest has at most 256 bytes".to_owned()));
    }
    Ok(())
}

fn check_version(catalog: &Catalog, owner: &str, offered: SnapshotVersion) -> Result<(), CatalogError> {
    match catalog.in_force(owner) {
        Some((current, digest)) if offered < current => {
            Err(CatalogError::Stale { offered, current, digest: digest.to_owned() })
        }
        _ => Ok(()),
    }
}

fn desired(workers: Vec<DesiredWorker>) -> Result<BTreeMap<u64, Desired>, CatalogError> {
    let mut desired = BTreeMap::new();
    for worker in workers {
        let id = worker.request.worker_id;
        if desired.insert(id, Desired::from(worker)).is_some() {
            return Err(CatalogError::Invalid(format!("duplicate worker_id {id}")));
        }
    }
    Ok(desired)
}

/// Takes the new records, sharing those that did not change with the live workers; how many are new or another.
fn replace_desired(current: &mut BTreeMap<u64, Desired>, mut new: BTreeMap<u64, Desired>) -> usize {
    let mut changed = 0;
    for (id, wanted) in &mut new {
        let same = current.get(id).filter(|known| known.request == wanted.request);
        if let Some(known) = same {
            wanted.request = Arc::clone(&known.request);
        }
        changed += usize::from(same.is_none_or(|known| known.state != wanted.state));
    }
    *current = new;
    changed
}
