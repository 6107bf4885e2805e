//! Bindings that replicas tell each other of.

use parking_lot::Mutex;

use super::*;
use crate::selection::{
    identity::{PartitionKey, WorkerWithDpRank},
    replication::{BookingEvent, ReplicaOutlet, Replication, ReplicationCell},
    sessions::Hold,
    testing::{ManualClock, ready},
};

const OWN: u64 = 1;
const PEER: u64 = 2;
const TTL: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Told(Mutex<Vec<SessionEvent>>);

impl ReplicaOutlet for Told {
    fn booking(&self, _: BookingEvent) -> u64 {
        0
    }

    fn session(&self, event: SessionEvent) {
        self.0.lock().push(event);
    }
}

impl Told {
    /// (session, worker) of what was told since the last look.
    fn take(&self) -> Vec<(String, u64)> {
        let events = std::mem::take(&mut *self.0.lock());
        events.into_iter().map(|event| (event.session_id.to_string(), event.target.worker_id)).collect()
    }
}

struct Bed {
    table: SessionTable,
    told: Arc<Told>,
    clock: ManualClock,
}

impl Bed {
    /// A table for four sessions.
    fn new() -> Self {
        let (cell, told) = (ReplicationCell::default(), Arc::new(Told::default()));
        assert!(cell.set(Replication { router_id: OWN, outlet: told.clone() }).is_ok());
        let table = SessionTable::with_capacity(Some(TTL), 4, PartitionKey::new("m", "g"), cell);
        Self { table, told, clock: ManualClock::default() }
    }

    fn hold(&self, id: &str) -> Hold {
        ready(self.table.hold(id, None, &self.clock, |_| true)).expect("held")
    }

    /// Binds a session here, without a booking that keeps it.
    fn bind(&self, id: &str, worker_id: u64) {
        let Hold::First(first) = self.hold(id) else { panic!("bound already") };
        first.commit(WorkerWithDpRank::new(worker_id, 0), &self.clock).release(self.clock.now());
    }

    fn apply(&self, id: &str, worker_id: u64, sequence: u64, writer_id: u64) -> SessionOutcome {
        self.table.apply(id, at(worker_id), SessionVersion { sequence, writer_id }, &self.clock)
    }

    fn bound(&self, id: &str) -> Option<u64> {
        self.table.target(id, self.clock.now()).expect("a short id").map(|target| target.worker_id)
    }

    fn digests(&self) -> Vec<(u64, u64)> {
        let mut digests = self.table.digests();
        digests.sort_unstable();
        digests
    }
}

fn at(worker_id: u64) -> AffinityTarget {
    AffinityTarget { worker_id, dp_rank: Some(0) }
}

#[test]
fn every_use_of_a_binding_is_told() {
    let bed = Bed::new();
    let Hold::First(first) = bed.hold("s") else { panic!("nobody else asks") };
    let lease = first.commit(WorkerWithDpRank::new(1, 0), &bed.clock);
    assert_eq!(bed.told.0.lock()[0].version.writer_id, OWN);
    assert_eq!(bed.told.take(), [("s".to_owned(), 1)]);
    lease.release(bed.clock.now());
    assert_eq!(bed.told.take(), [("s".to_owned(), 1)]);
    drop(bed.hold("s"));
    assert_eq!(bed.told.take(), [], "nothing was booked");
    let Hold::Bound(bound) = bed.hold("s") else { panic!("bound") };
    let lease = bound.commit();
    assert_eq!(bed.told.take(), [("s".to_owned(), 1)]);
    drop(lease);
    bed.apply("s", 2, u64::MAX, PEER);
    assert_eq!(bed.told.take(), [], "its maker told everybody");
}

#[test]
fn the_later_version_of_a_binding_wins_and_the_same_one_is_a_use_of_it() {
    let bed = Bed::new();
    assert_eq!(bed.apply("s", 1, 5, PEER), SessionOutcome::Applied);
    bed.clock.advance(TTL / 2);
    assert_eq!(bed.apply("s", 1, 5, PEER), SessionOutcome::Applied);
    bed.clock.advance(TTL - Duration::from_nanos(1));
    assert_eq!(bed.bound("s"), Some(1), "it was used");
    assert_eq!(bed.apply("s", 2, 5, PEER), SessionOutcome::Older, "of one version there is one target");
    assert_eq!(bed.apply("s", 1, 4, PEER), SessionOutcome::Older);
    assert_eq!(bed.apply("s", 3, 5, PEER + 1), SessionOutcome::Applied, "writers break ties");
    assert_eq!(bed.bound("s"), Some(3));
    bed.clock.advance(TTL);
    assert_eq!(bed.apply("s", 4, 1, PEER), SessionOutcome::Applied, "a binding that is over yields to any");
}

#[test]
fn bindings_of_others_are_bounded_like_own_ones() {
    let bed = Bed::new();
    assert_eq!(bed.apply(&"x".repeat(MAX_SESSION_ID_BYTES + 1), 1, 1, PEER), SessionOutcome::TooLong);
    assert_eq!(bed.apply(&"x".repeat(MAX_SESSION_ID_BYTES), 1, 1, PEER), SessionOutcome::Applied);
    for id in ["a", "b", "c"] {
        assert_eq!(bed.apply(id, 1, 1, PEER), SessionOutcome::Applied);
    }
    assert_eq!(bed.apply("d", 1, 1, PEER), SessionOutcome::Full);
    assert_eq!(bed.apply("a", 2, 2, PEER), SessionOutcome::Applied, "a known one needs no room");
}

#[test]
fn what_is_shown_is_what_lives_by_writer_and_in_order() {
    let bed = Bed::new();
    bed.apply("old", 1, 1, PEER);
    bed.clock.advance(TTL);
    for (id, writer_id) in [("c", PEER), ("a", PEER), ("b", OWN)] {
        bed.apply(id, 1, 1, writer_id);
    }
    let shown = |writer| -> Vec<String> {
        let found = bed.table.snapshot(writer, bed.clock.now());
        found.iter().map(|session| session.session_id.to_string()).collect()
    };
    assert_eq!(shown(None), ["a", "b", "c"]);
    assert_eq!(shown(Some(PEER)), ["a", "c"]);
    assert_eq!(shown(Some(OWN)), ["b"]);
}

#[test]
fn a_version_made_here_is_above_all_that_were_heard_of() {
    let bed = Bed::new();
    bed.table.observe(bed.clock.unix_nanos() + 5_000, &bed.clock);
    bed.bind("a", 1);
    assert_eq!(bed.table.version("a").expect("bound").sequence, bed.clock.unix_nanos() + 5_001);
    bed.table.observe(u64::MAX, &bed.clock);
    bed.bind("b", 1);
    let ahead = u64::try_from(AHEAD.as_nanos()).expect("minutes");
    assert_eq!(bed.table.version("b").expect("bound").sequence, bed.clock.unix_nanos() + ahead + 1);
}

#[test]
fn digests_follow_the_bindings() {
    let fresh = |worker_id| {
        let bed = Bed::new();
        bed.bind("s", worker_id);
        bed.digests()[0].1
    };
    let bed = Bed::new();
    bed.bind("s", 1);
    assert_eq!(bed.digests(), [(OWN, fresh(1))]);
    // Taken over by another writer, first as it is, then moved.
    assert_eq!(bed.apply("s", 1, bed.clock.unix_nanos() + 1_000, PEER), SessionOutcome::Applied);
    assert_eq!(bed.digests(), [(PEER, fresh(1))]);
    assert_eq!(bed.apply("s", 2, bed.clock.unix_nanos() + 2_000, PEER), SessionOutcome::Applied);
    assert_eq!(bed.digests(), [(PEER, fresh(2))]);
    // Bound anew after it was over.
    bed.clock.advance(TTL);
    bed.bind("s", 1);
    assert_eq!(bed.digests(), [(OWN, fresh(1))]);
    // Its rank left, and nobody binds it again.
    drop(ready(bed.table.hold("s", None, &bed.clock, |_| false)).expect("held"));
    assert_eq!((bed.digests(), bed.table.len()), (vec![], 0));
}

#[test]
fn a_late_booking_of_a_session_that_is_gone_binds_it_where_there_is_room() {
    let bed = Bed::new();
    bed.bind("s", 1);
    let late = || match bed.hold("s") {
        Hold::Bound(bound) => bound,
        other => panic!("not bound: {other:?}"),
    };
    let (first, second) = (late(), late());
    drop(ready(bed.table.hold("s", None, &bed.clock, |_| false)).expect("held"));
    ["a", "b", "c"].into_iter().for_each(|id| bed.bind(id, 1));
    bed.bind("d", 1);
    assert!(first.rebind(WorkerWithDpRank::new(2, 0), &bed.clock).is_none());
    assert_eq!(bed.bound("s"), None);
    drop(ready(bed.table.hold("d", None, &bed.clock, |_| false)).expect("held"));
    assert!(second.rebind(WorkerWithDpRank::new(2, 0), &bed.clock).is_some());
    assert_eq!(bed.bound("s"), Some(2));
}
