//! Bindings, holds and leases of sessions.

use std::task::{Context, Poll};

use super::*;
use crate::selection::{
    identity::WorkerWithDpRank,
    testing::{CountingWaker, ManualClock, block_on},
};

fn sized(ttl: Option<Duration>, capacity: usize) -> SessionTable {
    SessionTable::with_capacity(ttl, capacity, PartitionKey::new("m", "g"), ReplicationCell::default())
}

fn table() -> SessionTable {
    sized(Some(Duration::from_secs(10)), 4)
}

fn rank(worker_id: u64) -> WorkerWithDpRank {
    WorkerWithDpRank::new(worker_id, 0)
}

/// A hold that needs no wait.
fn hold(table: &SessionTable, id: &str, clock: &ManualClock) -> Hold {
    let mut future = std::pin::pin!(table.hold(id, None, clock, |_| true));
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(held) => held.expect("held"),
        Poll::Pending => panic!("session {id} is being initialised"),
    }
}

fn bind_to(table: &SessionTable, id: &str, worker_id: u64, clock: &ManualClock) -> SessionLease {
    match hold(table, id, clock) {
        Hold::First(first) => first.commit(rank(worker_id), clock),
        other => panic!("not the first: {other:?}"),
    }
}

fn bound_worker(table: &SessionTable, id: &str, clock: &ManualClock) -> Option<u64> {
    table.target(id, clock.now()).expect("valid id").map(|target| target.worker_id)
}

#[test]
fn a_commit_binds_and_a_query_does_not() {
    let (table, clock) = (table(), ManualClock::default());
    assert_eq!(bound_worker(&table, "s", &clock), None);
    let _lease = bind_to(&table, "s", 2, &clock);
    assert_eq!(bound_worker(&table, "s", &clock), Some(2));
    assert_eq!(bound_worker(&table, "other", &clock), None);
    assert_eq!(table.len(), 1);
}

#[test]
fn without_a_ttl_nothing_binds_and_ids_are_not_checked() {
    let (table, clock) = (sized(None, 4), ManualClock::default());
    assert!(matches!(hold(&table, &"x".repeat(300), &clock), Hold::Unbound));
    assert_eq!(table.target(&"x".repeat(300), clock.now()), Ok(None));
}

#[test]
fn idle_time_starts_with_the_last_release() {
    let (table, clock) = (table(), ManualClock::default());
    let first = bind_to(&table, "s", 2, &clock);
    let Hold::Bound(second) = hold(&table, "s", &clock) else { panic!("not bound") };
    let second = second.commit();
    clock.advance(Duration::from_secs(60));
    first.release(clock.now());
    clock.advance(Duration::from_secs(60));
    assert_eq!(bound_worker(&table, "s", &clock), Some(2), "a lease keeps the binding");
    second.release(clock.now());
    clock.advance(Duration::from_millis(9_999));
    assert_eq!(bound_worker(&table, "s", &clock), Some(2));
    clock.advance(Duration::from_millis(1));
    assert_eq!(bound_worker(&table, "s", &clock), None);
    table.reap(clock.now());
    assert!(table.is_empty());
}

#[test]
fn an_abandoned_hold_leaves_the_table_as_it_was() {
    let (table, clock) = (table(), ManualClock::default());
    drop(hold(&table, "s", &clock));
    assert!(table.is_empty());
    bind_to(&table, "s", 2, &clock).release(clock.now());
    clock.advance(Duration::from_secs(9));
    drop(hold(&table, "s", &clock));
    clock.advance(Duration::from_secs(1));
    assert_eq!(bound_worker(&table, "s", &clock), None, "an abandoned hold does not extend the binding");
}

#[test]
fn waiters_get_the_binding_or_take_over() {
    let (table, clock) = (table(), ManualClock::default());
    let first = hold(&table, "s", &clock);
    let wakes = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    let mut second = Box::pin(table.hold("s", None, &clock, |_| true));
    let mut third = Box::pin(table.hold("s", None, &clock, |_| true));
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(third.as_mut().poll(&mut cx).is_pending());
    assert!(second.as_mut().poll(&mut cx).is_pending(), "polling again registers once");
    drop(first);
    assert_eq!(wakes.wakes(), 2);
    let Poll::Ready(Ok(Hold::First(second))) = second.as_mut().poll(&mut cx) else { panic!("no takeover") };
    assert!(third.as_mut().poll(&mut cx).is_pending());
    let _lease = second.commit(rank(7), &clock);
    assert_eq!(wakes.wakes(), 3);
    let Poll::Ready(Ok(Hold::Bound(third))) = third.as_mut().poll(&mut cx) else { panic!("not bound") };
    assert_eq!(third.target().worker_id, 7);
}

#[test]
fn a_waiter_that_goes_away_is_forgotten() {
    let (table, clock) = (table(), ManualClock::default());
    let _first = hold(&table, "s", &clock);
    for _ in 0..100 {
        let mut waiter = Box::pin(table.hold("s", None, &clock, |_| true));
        assert!(waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let state = table.shared.as_ref().expect("enabled").state.lock();
    let Some(Entry::Initializing { waiters, .. }) = state.entries.get("s") else { panic!("not initialising") };
    assert!(waiters.is_empty());
}

#[test]
fn a_deadline_ends_the_wait() {
    let (table, clock) = (table(), ManualClock::default());
    let _first = hold(&table, "s", &clock);
    let wakes = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    let deadline = clock.now().after(Duration::from_millis(50));
    let mut waiter = Box::pin(table.hold("s", Some(deadline), &clock, |_| true));
    assert!(waiter.as_mut().poll(&mut cx).is_pending());
    table.wake_overdue(clock.now());
    assert_eq!(wakes.wakes(), 0);
    clock.advance(Duration::from_millis(50));
    table.wake_overdue(clock.now());
    assert_eq!(wakes.wakes(), 1);
    assert!(matches!(waiter.as_mut().poll(&mut cx), Poll::Ready(Err(SelectionError::DeadlineExceeded))));
    drop(waiter);
    assert_eq!(table.shared.as_ref().expect("enabled").timed_waiters.load(Ordering::SeqCst), 0);
}

#[test]
fn a_binding_to_a_departed_rank_starts_over() {
    let (table, clock) = (table(), ManualClock::default());
    let old = bind_to(&table, "s", 2, &clock);
    let mut future = std::pin::pin!(table.hold("s", None, &clock, |target| target.worker_id != 2));
    let Poll::Ready(Ok(Hold::First(first))) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("not started over")
    };
    let new = first.commit(rank(3), &clock);
    // Leases of the old binding end without touching the new one.
    old.release(clock.now());
    new.release(clock.now());
    clock.advance(Duration::from_secs(9));
    assert_eq!(bound_worker(&table, "s", &clock), Some(3));
}

#[test]
fn a_mismatch_names_both_ranks_and_keeps_the_binding() {
    let (table, clock) = (table(), ManualClock::default());
    let _lease = bind_to(&table, "s", 1, &clock);
    let Hold::Bound(held) = hold(&table, "s", &clock) else { panic!("not bound") };
    let text = |rank| held.check(rank).expect_err("mismatch").to_string();
    assert_eq!(text(rank(2)), "session s is bound to worker 1, not 2");
    assert_eq!(text(WorkerWithDpRank::new(1, 3)), "session s is bound to DP rank 0, not 3");
    assert_eq!(held.check(rank(1)), Ok(()));
    drop(held);
    assert_eq!(bound_worker(&table, "s", &clock), Some(1));
}

#[test]
fn rebinding_after_the_rank_left_between_hold_and_commit() {
    let (table, clock) = (table(), ManualClock::default());
    let _old = bind_to(&table, "s", 1, &clock);
    let bound = |table: &SessionTable| match hold(table, "s", &clock) {
        Hold::Bound(held) => held,
        other => panic!("not bound: {other:?}"),
    };
    let (held, late, other) = (bound(&table), bound(&table), bound(&table));
    let _new = held.rebind(rank(2), &clock).expect("rebound");
    assert_eq!(bound_worker(&table, "s", &clock), Some(2));
    assert!(late.rebind(rank(2), &clock).is_some(), "joins the binding it agrees with");
    assert!(other.rebind(rank(3), &clock).is_none(), "does not move it again");
    assert_eq!(bound_worker(&table, "s", &clock), Some(2));
}

#[test]
fn a_full_table_serves_without_affinity() {
    let (table, clock) = (table(), ManualClock::default());
    for worker in 0..4 {
        bind_to(&table, &format!("s{worker}"), worker, &clock).release(clock.now());
    }
    assert!(matches!(hold(&table, "new", &clock), Hold::Unbound));
    assert!(matches!(hold(&table, "s1", &clock), Hold::Bound(_)), "known sessions keep their binding");
    clock.advance(Duration::from_secs(10));
    assert!(matches!(hold(&table, "new", &clock), Hold::First(_)), "expired sessions make room");
}

#[test]
fn seventy_thousand_sessions_are_served_and_the_first_65_536_bound() {
    let clock = ManualClock::default();
    let config = SelectionConfig { session_affinity_ttl: Some(Duration::from_secs(10)), ..SelectionConfig::default() };
    let table = SessionTable::new(&config, &PartitionKey::new("m", "g"), &ReplicationCell::default());
    for at in 0..70_000 {
        match hold(&table, &at.to_string(), &clock) {
            Hold::First(first) if at < 65_536 => first.commit(rank(1), &clock).release(clock.now()),
            Hold::Unbound if at >= 65_536 => {}
            other => panic!("{at}: {other:?}"),
        }
    }
    assert_eq!(table.len(), 65_536);
}

#[test]
fn ids_are_bounded_in_bytes() {
    let (table, clock) = (table(), ManualClock::default());
    let too_long = Err(SelectionError::BadRequest("session affinity ID must not exceed 256 bytes".to_owned()));
    assert_eq!(table.target(&"ü".repeat(128), clock.now()), Ok(None));
    assert_eq!(table.target(&"ü".repeat(129), clock.now()), too_long);
    assert!(matches!(hold(&table, "", &clock), Hold::First(_)), "the empty id is an id");
}

#[test]
fn versions_grow_from_the_wall_clock() {
    let (table, clock) = (table(), ManualClock::default());
    let version = |id: &str| {
        bind_to(&table, id, 1, &clock);
        table.version(id).expect("bound")
    };
    let (a, b) = (version("a"), version("b"));
    assert_eq!(a, SessionVersion { sequence: 1_000, writer_id: 0 });
    assert_eq!(b, SessionVersion { sequence: 1_001, writer_id: 0 });
}

#[test]
fn digests_tell_ids_workers_and_ranks_apart() {
    let clock = ManualClock::default();
    let digest = |id: &str, worker_id: u64, dp_rank: u32| {
        let table = table();
        let Hold::First(first) = hold(&table, id, &clock) else { panic!("nobody else asks") };
        drop(first.commit(WorkerWithDpRank::new(worker_id, dp_rank), &clock));
        let [(_, digest)] = table.digests()[..] else { panic!("one writer") };
        digest
    };
    let digests = [digest("a", 1, 0), digest("b", 1, 0), digest("a", 2, 0), digest("a", 1, 1)];
    assert!((0..4).all(|at| !digests[..at].contains(&digests[at])), "{digests:?}");
    assert_eq!(digest("a", 1, 0), digests[0]);
}

/// Random interleavings on threads: one binding a session, every lease given back.
#[test]
fn concurrent_first_requests_agree_on_one_rank() {
    let table = Arc::new(sized(Some(Duration::from_secs(10)), 64));
    let clock = Arc::new(ManualClock::default());
    for round in 0..50 {
        let id = format!("session-{}", round % 8);
        let workers: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8_u64)
                .map(|worker| {
                    let (table, clock, id) = (&table, &clock, &id);
                    scope.spawn(move || {
                        let held = block_on(table.hold(id, None, clock.as_ref(), |_| true)).expect("held");
                        if worker == 0 && !matches!(held, Hold::Bound(_)) {
                            // The first one may fail; somebody else takes over.
                            drop(held);
                            return None;
                        }
                        let (target, lease) = match held {
                            Hold::First(first) => (worker, first.commit(rank(worker), clock.as_ref())),
                            Hold::Bound(bound) => (bound.target().worker_id, bound.commit()),
                            Hold::Unbound => panic!("table is not full"),
                        };
                        lease.release(clock.now());
                        Some(target)
                    })
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(workers.windows(2).all(|pair| pair[0] == pair[1]), "{workers:?}");
        clock.advance(Duration::from_secs(10));
    }
    table.reap(clock.now());
    assert!(table.is_empty());
}
