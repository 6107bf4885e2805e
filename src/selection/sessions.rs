//! Session affinity: which rank a session is bound to (spec http 10, spec sequences 3).
//!
//! One table a partition. A booking *holds* its session before it is decided and *commits* it once booked: the first
//! booking of a session initialises it while others wait, later ones take a lease and are steered to the binding.
//!
//! Invariants: a binding is removed only when it is idle past its deadline or its rank is gone; dropping a hold leaves
//! the table as it was; a lease touches only the binding it was taken from, never a later one of the same id; ids and
//! entries are bounded, and a full table serves requests without affinity.

mod entries;
mod hold;
mod replicated;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use parking_lot::Mutex;

use self::entries::{Binding, Entries, Entry, Waiter};
pub use self::{
    hold::{BoundHold, FirstHold, Hold, SessionLease},
    replicated::{SessionOutcome, SessionSnapshot},
};
pub use super::replication::SessionVersion;
use super::{
    config::SelectionConfig,
    error::SelectionError,
    identity::PartitionKey,
    moment::{Clock, Moment},
    replication::ReplicationCell,
    request::AffinityTarget,
};

/// Longest session id, in bytes of UTF-8.
pub const MAX_SESSION_ID_BYTES: usize = 256;
/// Most sessions of one partition.
pub const MAX_SESSIONS: usize = 65_536;
/// A full table looks for expired entries at most this often.
const REAP_WHEN_FULL: Duration = Duration::from_secs(1);

/// Sessions of one partition; absent without a TTL.
#[derive(Debug)]
pub struct SessionTable {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    ttl: Duration,
    capacity: usize,
    partition: PartitionKey,
    replication: ReplicationCell,
    state: Mutex<State>,
    /// Waiters that have a deadline; lets the frequent look at them cost nothing.
    timed_waiters: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    entries: Entries,
    last_revision: u64,
    last_sequence: u64,
    last_waiter: u64,
    next_full_reap: Moment,
}

impl State {
    fn next_revision(&mut self) -> u64 {
        self.last_revision += 1;
        self.last_revision
    }

    /// The version of a new binding that takes the place of one with `replaced`.
    fn next_version(&mut self, replaced: u64, unix_nanos: u64, writer_id: u64) -> SessionVersion {
        self.last_sequence = match self.last_sequence {
            0 => unix_nanos,
            last => last.saturating_add(1),
        };
        self.last_sequence = self.last_sequence.max(replaced.saturating_add(1));
        SessionVersion { sequence: self.last_sequence, writer_id }
    }

    fn reap(&mut self, now: Moment) {
        self.entries.reap(now);
    }

    /// Whether a new entry fits, after a look for expired ones.
    fn has_room(&mut self, capacity: usize, now: Moment) -> bool {
        if self.entries.len() >= capacity && now >= self.next_full_reap {
            self.next_full_reap = now.after(REAP_WHEN_FULL);
            self.reap(now);
        }
        self.entries.len() < capacity
    }
}

impl SessionTable {
    /// An empty table with the TTL of `config`.
    pub(in crate::selection) fn new(
        config: &SelectionConfig,
        partition: &PartitionKey,
        replication: &ReplicationCell,
    ) -> Self {
        Self::with_capacity(config.session_affinity_ttl, MAX_SESSIONS, partition.clone(), Arc::clone(replication))
    }

    fn with_capacity(
        ttl: Option<Duration>,
        capacity: usize,
        partition: PartitionKey,
        replication: ReplicationCell,
    ) -> Self {
        let shared = |ttl| {
            let (state, timed_waiters) = (Mutex::default(), AtomicU64::new(0));
            Arc::new(Shared { ttl, capacity, partition, replication, state, timed_waiters })
        };
        Self { shared: ttl.map(shared) }
    }

    /// Whether sessions bind at all.
    pub fn is_enabled(&self) -> bool {
        self.shared.is_some()
    }

    /// Sessions with an entry, expired ones that wait for the reaper included.
    pub fn len(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.state.lock().entries.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the session is bound; nothing is held or refreshed. A session that is being initialised is not bound.
    ///
    /// # Errors
    /// 400 when the id is too long.
    pub fn target(&self, id: &str, now: Moment) -> Result<Option<AffinityTarget>, SelectionError> {
        let Some(shared) = &self.shared else { return Ok(None) };
        check_id(id)?;
        Ok(match shared.state.lock().entries.get(id) {
            Some(Entry::Bound(binding)) if !binding.is_expired(now) => Some(binding.target),
            _ => None,
        })
    }

    /// Version of the session's binding, as replicas compare it; expired ones included until they are reaped.
    pub fn version(&self, id: &str) -> Option<SessionVersion> {
        match self.shared.as_ref()?.state.lock().entries.get(id)? {
            Entry::Bound(binding) => Some(binding.version),
            Entry::Initializing { .. } => None,
        }
    }

    /// Holds the session for a booking. Waits while another booking initialises it; `schedulable` says whether a bound
    /// target still takes bookings, otherwise the binding is dropped and the session starts over.
    ///
    /// # Errors
    /// 400 when the id is too long; 429 when `deadline` passes while waiting.
    pub async fn hold(
        &self,
        id: &str,
        deadline: Option<Moment>,
        clock: &dyn Clock,
        schedulable: impl Fn(AffinityTarget) -> bool,
    ) -> Result<Hold, SelectionError> {
        let Some(shared) = &self.shared else { return Ok(Hold::Unbound) };
        check_id(id)?;
        loop {
            match hold::attempt(shared, id, clock.now()) {
                hold::Attempt::Held(Hold::Bound(held)) if !schedulable(held.target()) => held.invalidate(),
                hold::Attempt::Held(held) => return Ok(held),
                hold::Attempt::Initializing { revision } => {
                    hold::Resolved::new(shared, id, revision, deadline, clock).await?;
                }
            }
        }
    }

    /// Removes bindings that are idle past their deadline. Called every min(TTL, 30 s).
    pub fn reap(&self, now: Moment) {
        if let Some(shared) = &self.shared {
            shared.state.lock().reap(now);
        }
    }

    /// Wakes waiters whose deadline has passed. Called about every 100 ms; free while nobody waits with a deadline.
    pub fn wake_overdue(&self, now: Moment) {
        let Some(shared) = &self.shared else { return };
        if shared.timed_waiters.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut overdue = Vec::new();
        for entry in shared.state.lock().entries.values() {
            if let Entry::Initializing { waiters, .. } = entry {
                let late = |waiter: &Waiter| waiter.deadline.is_some_and(|deadline| now >= deadline);
                overdue.extend(waiters.values().filter(|waiter| late(waiter)).map(|waiter| waiter.waker.clone()));
            }
        }
        overdue.into_iter().for_each(Waker::wake);
    }
}

fn check_id(id: &str) -> Result<(), SelectionError> {
    if id.len() > MAX_SESSION_ID_BYTES {
        return Err(SelectionError::BadRequest("session affinity ID must not exceed 256 bytes".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
