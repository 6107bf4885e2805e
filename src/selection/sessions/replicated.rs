//! Bindings that other replicas made, and what they are told of ours (spec sequences 3.3 to 3.5).
//!
//! The higher version wins. A sequence stamped far ahead of this machine's clock is clamped, so that one wrong clock
//! does not win for ever.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use super::{Binding, Entry, MAX_SESSION_ID_BYTES, SessionTable, SessionVersion, Shared};
use crate::selection::{
    moment::{Clock, Moment},
    replication::SessionEvent,
    request::AffinityTarget,
};

/// How far ahead of this machine's clock a sequence may be.
const AHEAD: Duration = Duration::from_secs(300);

/// What became of a binding another replica told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOutcome {
    /// It is bound so now.
    Applied,
    /// What is bound here is newer, or is just being decided.
    Older,
    /// The id is longer than 256 bytes.
    TooLong,
    /// No room for another session.
    Full,
    /// Sessions are off.
    Disabled,
}

/// One binding, for a replica that has none.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSnapshot {
    /// The session.
    pub session_id: Arc<str>,
    /// Where it is bound.
    pub target: AffinityTarget,
    /// Order of the binding.
    pub version: SessionVersion,
}

impl Shared {
    /// Tells other replicas of a binding.
    pub(super) fn publish(&self, id: &Arc<str>, target: AffinityTarget, version: SessionVersion) {
        if let Some(replication) = self.replication.get() {
            let (partition, session_id) = (self.partition.clone(), Arc::clone(id));
            replication.outlet.session(SessionEvent { partition, session_id, target, version });
        }
    }

    pub(super) fn writer_id(&self) -> u64 {
        self.replication.get().map_or(0, |replication| replication.router_id)
    }
}

impl SessionTable {
    /// Raises the table's own sequence above one seen; call it for every binding another replica tells of.
    pub(in crate::selection) fn observe(&self, sequence: u64, clock: &dyn Clock) {
        let Some(shared) = &self.shared else { return };
        let unix_nanos = clock.unix_nanos();
        let mut state = shared.state.lock();
        if state.last_sequence == 0 {
            state.last_sequence = unix_nanos;
        }
        state.last_sequence = state.last_sequence.max(clamp(sequence, unix_nanos));
    }

    /// Takes over a binding another replica made. The caller has checked that its worker is here.
    pub(in crate::selection) fn apply(
        &self,
        id: &str,
        target: AffinityTarget,
        version: SessionVersion,
        clock: &dyn Clock,
    ) -> SessionOutcome {
        let Some(shared) = &self.shared else { return SessionOutcome::Disabled };
        if id.len() > MAX_SESSION_ID_BYTES {
            return SessionOutcome::TooLong;
        }
        let now = clock.now();
        let version = SessionVersion { sequence: clamp(version.sequence, clock.unix_nanos()), ..version };
        let idle_deadline = now.after(shared.ttl);
        let mut state = shared.state.lock();
        let known = match state.entries.get(id) {
            Some(Entry::Initializing { .. }) => return SessionOutcome::Older,
            Some(Entry::Bound(binding)) => Some(binding.is_expired(now)),
            None => None,
        };
        if known != Some(false) {
            if known.is_none() && !state.has_room(shared.capacity, now) {
                return SessionOutcome::Full;
            }
            let revision = state.next_revision();
            let binding = Binding { target, revision, version, leases: 0, idle_deadline };
            state.entries.insert(id.into(), Entry::Bound(binding));
            return SessionOutcome::Applied;
        }
        let applied = state.entries.change(id, |binding| {
            let newer = version > binding.version || (version == binding.version && target == binding.target);
            if newer {
                binding.target = target;
                binding.version = version;
                binding.idle_deadline = idle_deadline;
            }
            newer
        });
        if applied == Some(true) { SessionOutcome::Applied } else { SessionOutcome::Older }
    }

    /// Digests of the bindings each replica made.
    pub(in crate::selection) fn digests(&self) -> Vec<(u64, u64)> {
        self.shared.as_ref().map_or_else(Vec::new, |shared| shared.state.lock().entries.digests())
    }

    /// The bindings that live, those of one writer or all, sorted by id.
    pub(in crate::selection) fn snapshot(&self, writer_id: Option<u64>, now: Moment) -> Vec<SessionSnapshot> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let state = shared.state.lock();
        let wanted = state.entries.bindings().filter(|(_, binding)| {
            !binding.is_expired(now) && writer_id.is_none_or(|writer_id| writer_id == binding.version.writer_id)
        });
        let mut found: Vec<_> = wanted
            .map(|(id, binding)| SessionSnapshot {
                session_id: Arc::clone(id),
                target: binding.target,
                version: binding.version,
            })
            .collect();
        drop(state);
        found.sort_by(|a, b| a.session_id.cmp(&b.session_id));
        found
    }
}

fn clamp(sequence: u64, unix_nanos: u64) -> u64 {
    sequence.min(unix_nanos.saturating_add(u64::try_from(AHEAD.as_nanos()).unwrap_or(u64::MAX)))
}
