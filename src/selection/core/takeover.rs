//! Verb of start-up: the records of an owner as a peer has them (design section 6).
//!
//! They stand in until a source applies its own: version and owner are kept, so its snapshots are ordered against the
//! peer's, and its first one replaces everything, whatever its digest.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{SelectionCore, reconcile::RECORDS_AT_ONCE, snapshots::check_names};
use crate::selection::catalog::{API_OWNER, Desired, DesiredWorker, PeerCatalog};

impl SelectionCore {
    /// Takes one owner's records from a peer, unless a snapshot of that owner was applied here. Ids that are in use stay
    /// as they are. Returns how many workers came.
    pub fn take_catalog(&self, taken: PeerCatalog) -> u64 {
        let PeerCatalog { owner, version, digest, workers } = taken;
        let _applying = self.applying.lock();
        let mut catalog = self.catalog.lock();
        let owner: Arc<str> = if owner == API_OWNER {
            Arc::from(API_OWNER)
        } else {
            let valid = check_names(&owner, &digest).is_ok() && version.check().is_ok();
            if !valid || catalog.in_force(&owner).is_some() {
                return 0;
            }
            let Ok((name, state)) = catalog.owner_mut(&owner) else { return 0 };
            (state.version, state.digest, state.from_peer) = (version, digest, true);
            state.desired =
                workers.iter().map(|worker| (worker.request.worker_id, Desired::from(worker.clone()))).collect();
            name
        };
        let mut came = 0;
        for (count, DesiredWorker { request, state }) in workers.into_iter().enumerate() {
            if !catalog.workers.contains_key(&request.worker_id) && request.check_limits().is_ok() {
                self.put(&mut catalog, Arc::new(request), state, Arc::clone(&owner));
                came += 1;
            }
            if count % RECORDS_AT_ONCE == 0 {
                MutexGuard::bump(&mut catalog);
            }
        }
        if &*owner == API_OWNER {
            catalog.api_from_peer |= came > 0;
        } else {
            catalog.forget_idle_owner(&owner);
        }
        self.retry_freed(&mut catalog);
        came
    }
}
