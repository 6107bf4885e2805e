//! Holds on a session: the initialiser, the wait for it, and the lease on a binding.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use hashbrown::HashMap;

use super::{Binding, Entry, SessionVersion, Shared, Waiter};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    moment::{Clock, Moment},
    request::AffinityTarget,
};

/// What a booking holds of its session until it commits. Dropping it undoes it.
#[derive(Debug)]
pub enum Hold {
    /// No session, no table, or no room in it: nothing binds.
    Unbound,
    /// This booking binds the session.
    First(FirstHold),
    /// The session is bound.
    Bound(BoundHold),
}

impl Hold {
    /// Where the booking should go.
    pub fn target(&self) -> Option<AffinityTarget> {
        match self {
            Self::Bound(held) => Some(held.target),
            Self::Unbound | Self::First(_) => None,
        }
    }

    /// The booking stands on `rank`: binds the session there, keeps its binding, or moves it along. `None` = the booking
    /// has no session.
    pub fn commit(self, rank: WorkerWithDpRank, clock: &dyn Clock) -> Option<SessionLease> {
        match self {
            Self::Unbound => None,
            Self::First(first) => Some(first.commit(rank, clock)),
            Self::Bound(bound) if bound.check(rank).is_ok() => Some(bound.commit()),
            Self::Bound(bound) => bound.rebind(rank, clock),
        }
    }
}

pub(super) enum Attempt {
    Held(Hold),
    Initializing { revision: u64 },
}

/// One look at the table; takes what it finds.
pub(super) fn attempt(shared: &Arc<Shared>, id: &str, now: Moment) -> Attempt {
    let mut state = shared.state.lock();
    let (key, is_new): (Arc<str>, bool) = match state.entries.get_key_value(id) {
        Some((_, Entry::Initializing { revision, .. })) => return Attempt::Initializing { revision: *revision },
        Some((key, Entry::Bound(binding))) if !binding.is_expired(now) => {
            let target = binding.target;
            let lease = SessionLease {
                shared: Arc::clone(shared),
                id: Arc::clone(key),
                revision: binding.revision,
                version: binding.version,
                held: true,
            };
            state.entries.change(id, |binding| binding.leases += 1);
            return Attempt::Held(Hold::Bound(BoundHold { target, lease }));
        }
        Some((key, Entry::Bound(_))) => (Arc::clone(key), false),
        None => (id.into(), true),
    };
    if is_new && !state.has_room(shared.capacity, now) {
        return Attempt::Held(Hold::Unbound);
    }
    let revision = state.next_revision();
    state.entries.insert(Arc::clone(&key), Entry::Initializing { revision, waiters: HashMap::new() });
    Attempt::Held(Hold::First(FirstHold { shared: Arc::clone(shared), id: key, revision, open: true }))
}

/// The right to bind a session. Dropped uncommitted, it frees the session and wakes whoever waits.
#[derive(Debug)]
pub struct FirstHold {
    shared: Arc<Shared>,
    id: Arc<str>,
    revision: u64,
    open: bool,
}

impl FirstHold {
    /// Binds the session to the booked rank, with one lease.
    pub fn commit(mut self, rank: WorkerWithDpRank, clock: &dyn Clock) -> SessionLease {
        self.open = false;
        bind(&self.shared, &self.id, rank, clock)
    }
}

impl Drop for FirstHold {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let mut state = self.shared.state.lock();
        let ours = matches!(state.entries.get(&self.id),
            Some(Entry::Initializing { revision, .. }) if *revision == self.revision);
        if ours && let Some(Entry::Initializing { waiters, .. }) = state.entries.remove(&self.id) {
            drop(state);
            wake_all(waiters);
        }
    }
}

/// Replaces whatever stands under `id` by a new binding with one lease.
fn bind(shared: &Arc<Shared>, id: &Arc<str>, rank: WorkerWithDpRank, clock: &dyn Clock) -> SessionLease {
    let (now, unix_nanos) = (clock.now(), clock.unix_nanos());
    let target = AffinityTarget { worker_id: rank.worker_id, dp_rank: Some(rank.dp_rank) };
    let mut state = shared.state.lock();
    let revision = state.next_revision();
    let replaced = match state.entries.get(id) {
        Some(Entry::Bound(binding)) => binding.version.sequence,
        _ => 0,
    };
    let version = state.next_version(replaced, unix_nanos, shared.writer_id());
    let binding = Binding { target, revision, version, leases: 1, idle_deadline: now.after(shared.ttl) };
    let replaced = state.entries.insert(Arc::clone(id), Entry::Bound(binding));
    drop(state);
    if let Some(Entry::Initializing { waiters, .. }) = replaced {
        wake_all(waiters);
    }
    shared.publish(id, target, version);
    SessionLease { shared: Arc::clone(shared), id: Arc::clone(id), revision, version, held: true }
}

fn wake_all(waiters: HashMap<u64, Waiter>) {
    waiters.into_values().for_each(|waiter| waiter.waker.wake());
}

/// A lease on a binding, not yet backed by a booking.
#[derive(Debug)]
pub struct BoundHold {
    target: AffinityTarget,
    lease: SessionLease,
}

impl BoundHold {
    /// Where the session is bound.
    pub fn target(&self) -> AffinityTarget {
        self.target
    }

    /// Whether a booking on `rank` honours the binding.
    ///
    /// # Errors
    /// 400 with both ranks.
    pub fn check(&self, rank: WorkerWithDpRank) -> Result<(), SelectionError> {
        let id = &self.lease.id;
        if self.target.worker_id != rank.worker_id {
            let (bound, chosen) = (self.target.worker_id, rank.worker_id);
            return Err(SelectionError::BadRequest(format!("session {id} is bound to worker {bound}, not {chosen}")));
        }
        match self.target.dp_rank {
            Some(bound) if bound != rank.dp_rank => Err(SelectionError::BadRequest(format!(
                "session {id} is bound to DP rank {bound}, not {}",
                rank.dp_rank
            ))),
            _ => Ok(()),
        }
    }

    /// The lease, now backed by a booking on the bound rank.
    pub fn commit(self) -> SessionLease {
        self.lease.shared.publish(&self.lease.id, self.target, self.lease.version);
        self.lease
    }

    /// Binds the session to the booked rank, since the bound one left after the hold or was passed over, unless others
    /// have resolved it since.
    /// `None` = the booking stays without a session.
    pub fn rebind(mut self, rank: WorkerWithDpRank, clock: &dyn Clock) -> Option<SessionLease> {
        let shared = Arc::clone(&self.lease.shared);
        let now = clock.now();
        let mut state = shared.state.lock();
        match state.entries.get(&self.lease.id) {
            Some(Entry::Initializing { .. }) => return None,
            Some(Entry::Bound(binding)) if binding.revision != self.lease.revision && !binding.is_expired(now) => {
                let chosen = AffinityTarget { worker_id: rank.worker_id, dp_rank: Some(rank.dp_rank) };
                if binding.target != chosen {
                    return None;
                }
                let (revision, version) = (binding.revision, binding.version);
                state.entries.change(&self.lease.id, |binding| binding.leases += 1);
                drop(state);
                shared.publish(&self.lease.id, chosen, version);
                return Some(SessionLease { shared, id: Arc::clone(&self.lease.id), revision, version, held: true });
            }
            Some(Entry::Bound(_)) => {}
            None => {
                if !state.has_room(shared.capacity, now) {
                    return None;
                }
            }
        }
        drop(state);
        // The old binding goes as a whole, so its leases need no release.
        self.lease.held = false;
        Some(bind(&shared, &self.lease.id, rank, clock))
    }

    /// The bound rank takes no bookings any more: forgets the binding, unless it is another one by now.
    pub(super) fn invalidate(mut self) {
        self.lease.held = false;
        let mut state = self.lease.shared.state.lock();
        if matches!(state.entries.get(&self.lease.id), Some(Entry::Bound(b)) if b.revision == self.lease.revision) {
            state.entries.remove(&self.lease.id);
        }
    }
}

/// Keeps a binding alive while its booking lives.
#[derive(Debug)]
pub struct SessionLease {
    shared: Arc<Shared>,
    id: Arc<str>,
    revision: u64,
    /// A binding another replica moved since keeps its leases and is not refreshed by them.
    version: SessionVersion,
    held: bool,
}

impl SessionLease {
    /// The booking ended: the idle time of the session starts anew.
    pub fn release(mut self, now: Moment) {
        self.give_back(Some(now));
    }

    fn give_back(&mut self, refreshed: Option<Moment>) {
        if !std::mem::take(&mut self.held) {
            return;
        }
        let mut state = self.shared.state.lock();
        let published = state.entries.change(&self.id, |binding| {
            if binding.revision != self.revision {
                return None;
            }
            binding.leases -= 1;
            let now = refreshed.filter(|_| binding.version == self.version)?;
            binding.idle_deadline = now.after(self.shared.ttl);
            Some(binding.target)
        });
        drop(state);
        if let Some(Some(target)) = published {
            self.shared.publish(&self.id, target, self.version);
        }
    }
}

impl Drop for SessionLease {
    /// A hold that came to nothing: counts down, and leaves the idle deadline as it was.
    fn drop(&mut self) {
        self.give_back(None);
    }
}

/// Waits until the initialisation `revision` of a session is resolved either way.
pub(super) struct Resolved<'a> {
    shared: &'a Arc<Shared>,
    id: &'a str,
    revision: u64,
    deadline: Option<Moment>,
    clock: &'a dyn Clock,
    key: Option<u64>,
}

impl<'a> Resolved<'a> {
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        id: &'a str,
        revision: u64,
        deadline: Option<Moment>,
        clock: &'a dyn Clock,
    ) -> Self {
        if deadline.is_some() {
            shared.timed_waiters.fetch_add(1, Ordering::Relaxed);
        }
        Self { shared, id, revision, deadline, clock, key: None }
    }
}

impl Future for Resolved<'_> {
    type Output = Result<(), SelectionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let overdue = this.deadline.is_some_and(|deadline| this.clock.now() >= deadline);
        let mut state = this.shared.state.lock();
        state.last_waiter += 1;
        let fresh_key = state.last_waiter;
        let Some(waiters) = state.entries.waiters(this.id, this.revision) else { return Poll::Ready(Ok(())) };
        if overdue {
            return Poll::Ready(Err(SelectionError::DeadlineExceeded));
        }
        match this.key.and_then(|key| waiters.get_mut(&key)) {
            Some(waiter) => waiter.waker.clone_from(cx.waker()),
            None => {
                this.key = Some(fresh_key);
                waiters.insert(fresh_key, Waiter { deadline: this.deadline, waker: cx.waker().clone() });
            }
        }
        Poll::Pending
    }
}

impl Drop for Resolved<'_> {
    fn drop(&mut self) {
        if self.deadline.is_some() {
            self.shared.timed_waiters.fetch_sub(1, Ordering::Relaxed);
        }
        let Some(key) = self.key else { return };
        let mut state = self.shared.state.lock();
        if let Some(waiters) = state.entries.waiters(self.id, self.revision) {
            waiters.remove(&key);
        }
    }
}
