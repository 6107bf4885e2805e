//! Sessions and what overrules them.

use super::*;

/// Worker 2 carries 20 blocks, so that a free choice goes to worker 1.
fn bed_with_busy_worker() -> Bed {
    let bed = Bed::with_workers(sessions(60), 2);
    bed.reserve(booking_on(2, "load2", prompt(9_000, 20))).expect("booked");
    bed
}

/// Binds a session to worker 2.
fn bind(bed: &Bed, session: &str, id: &str) {
    bed.reserve(in_session(session, booking_on(2, id, prompt(100, 1)))).expect("booked");
}

fn goes_to(bed: &Bed, session: &str) -> u64 {
    bed.select(in_session(session, request(prompt(5_000, 1)))).expect("selected").worker_id
}

#[test]
fn a_booking_binds_and_later_requests_follow_in_spite_of_load() {
    let bed = bed_with_busy_worker();
    assert_eq!(goes_to(&bed, "s"), 1);
    assert_eq!(goes_to(&bed, "s"), 1, "a query binds nothing");
    bind(&bed, "s", "r1");
    assert_eq!(goes_to(&bed, "s"), 2);
    assert_eq!(bed.reserve(in_session("s", booking("r2", prompt(200, 1)))).expect("booked").worker_id, 2);
    assert_eq!(goes_to(&bed, "other"), 1);
    bed.core.free_reservation("r1").expect("freed");
    bed.core.free_reservation("r2").expect("freed");
    assert_eq!(goes_to(&bed, "s"), 2);
    bed.clock.advance(Duration::from_secs(60));
    assert_eq!(goes_to(&bed, "s"), 1);
}

#[test]
fn the_context_wins_over_the_flat_id() {
    let bed = bed_with_busy_worker();
    let context = |id: &str| crate::selection::request::SessionContext {
        session_id: id.to_owned(),
        parent_session_id: None,
        session_final: None,
        input_trigger: None,
        agent_headers: None,
    };
    let mut both = in_session("flat", booking_on(2, "r", prompt(100, 1)));
    both.session_context = Some(context("ctx"));
    bed.reserve(both).expect("booked");
    assert_eq!((goes_to(&bed, "ctx"), goes_to(&bed, "flat")), (2, 1));
}

#[test]
fn explicit_steering_wins_and_leaves_the_binding_alone() {
    let bed = bed_with_busy_worker();
    bind(&bed, "s", "r1");
    let mut pinned = in_session("s", booking("p", prompt(200, 1)));
    pinned.steering.pinned_worker = Some(WorkerWithDpRank::new(1, 0));
    assert_eq!(bed.reserve(pinned.clone()).expect("booked").worker_id, 1);
    pinned.steering.pinned_worker = Some(WorkerWithDpRank::new(9, 0));
    pinned.selection_id = Some("q".to_owned());
    assert_eq!(text(bed.reserve(pinned)).0, "unavailable");
    let mut aimed = in_session("s", booking("t", prompt(300, 1)));
    aimed.steering.affinity_target = Some(AffinityTarget { worker_id: 1, dp_rank: None });
    assert_eq!(bed.reserve(aimed.clone()).expect("booked").worker_id, 1);
    assert_eq!(goes_to(&bed, "s"), 2);
    aimed = in_session("new", booking("u", prompt(400, 1)));
    aimed.steering.affinity_target = Some(AffinityTarget { worker_id: 2, dp_rank: None });
    bed.reserve(aimed).expect("booked");
    assert_eq!(goes_to(&bed, "new"), 1, "steered bookings bind nothing");
}

/// The reference destroys the binding that the 400 is about; here it stays (design deviation 9).
#[test]
fn a_constraint_conflict_fails_alone() {
    let bed = bed_with_busy_worker();
    bind(&bed, "s", "r1");
    let query = SelectRequest { selection_id: None, ..in_session("s", booking_on(1, "", prompt(200, 1))) };
    assert_eq!(bed.select(query).expect("selected").worker_id, 1, "a query outside the binding is served");
    let moved = ("bad_request", "session s is bound to worker 2, not 1".to_owned());
    let before = bed.loads();
    assert_eq!(text(bed.reserve(in_session("s", booking_on(1, "r2", prompt(200, 1))))), moved);
    assert_eq!(bed.loads(), before);
    assert_eq!(bed.core.live_bookings(), 2);
    assert_eq!(goes_to(&bed, "s"), 2, "the binding is untouched");
    bed.core.free_reservation("r1").expect("freed");
    assert_eq!(goes_to(&bed, "s"), 2);
}

#[test]
fn a_replay_binds_the_session_its_selection_carried() {
    let bed = bed_with_busy_worker();
    bed.select(in_session("s", booking_on(2, "p", prompt(100, 1)))).expect("selected");
    assert_eq!(goes_to(&bed, "s"), 1);
    bed.book(replay("p")).expect("booked");
    assert_eq!(goes_to(&bed, "s"), 2);
    let mut pinned = in_session("t", booking("q", prompt(200, 1)));
    pinned.steering.pinned_worker = Some(WorkerWithDpRank::new(2, 0));
    bed.select(pinned).expect("selected");
    bed.book(replay("q")).expect("booked");
    assert_eq!(goes_to(&bed, "t"), 1, "a steered selection does not use its session");
    bed.book(named("e", 2, prompt(300, 1))).expect("booked");
    assert_eq!(goes_to(&bed, "u"), 1);
}

#[test]
fn a_replay_against_a_session_bound_elsewhere_is_refused_for_good() {
    let bed = Bed::with_workers(sessions(60), 2);
    bed.select(in_session("s", booking_on(2, "p", prompt(100, 1)))).expect("selected");
    bed.reserve(in_session("s", booking_on(1, "mv", prompt(200, 1)))).expect("booked");
    let moved = ("bad_request", "session s is bound to worker 1, not 2".to_owned());
    assert_eq!(text(bed.book(replay("p"))), moved);
    assert_eq!(bed.loads(), [(1, 0, 4, 1, 1), (2, 0, 0, 0, 0)]);
    assert_eq!(text(bed.book(replay("p"))).0, "not_found");
    assert_eq!(goes_to(&bed, "s"), 1);
}

#[test]
fn a_binding_to_a_rank_that_left_starts_over() {
    let bed = Bed::with_workers(sessions(60), 2);
    bind(&bed, "s", "r1");
    bed.core.delete_worker(2).expect("deleted");
    assert_eq!(goes_to(&bed, "s"), 1);
    bed.reserve(in_session("s", booking("r2", prompt(300, 1)))).expect("booked");
    bed.worker(2, |_| {});
    bed.reserve(booking_on(1, "x", prompt(400, 30))).expect("booked");
    assert_eq!(goes_to(&bed, "s"), 1, "bound anew");

    let bed = Bed::new(sessions(60));
    bed.worker(1, |worker| worker.fields.data_parallel_size = Some(2));
    let mut on_rank_1 = booking("load", prompt(9_000, 20));
    on_rank_1.steering.pinned_worker = Some(WorkerWithDpRank::new(1, 1));
    bed.reserve(on_rank_1).expect("booked");
    assert_eq!(bed.reserve(in_session("s", booking("r0", prompt(1, 1)))).expect("booked").dp_rank, 0);
    let mut other_rank = in_session("s", booking("r1", prompt(2, 1)));
    other_rank.steering.allowed_worker_ids = Some([1].into());
    assert_eq!(bed.reserve(other_rank).expect("booked").dp_rank, 0, "bindings name the rank");
    bed.worker(1, |worker| {
        worker.fields.data_parallel_start_rank = Some(1);
        worker.fields.data_parallel_size = Some(1);
    });
    assert_eq!(bed.reserve(in_session("s", booking("r2", prompt(3, 1)))).expect("booked").dp_rank, 1);
}

#[test]
fn leases_count_by_binding() {
    let bed = Bed::with_workers(sessions(2), 2);
    for id in ["a", "b", "c"] {
        bind(&bed, "s", id);
    }
    for id in ["a", "b"] {
        bed.core.free_reservation(id).expect("freed");
    }
    bed.clock.advance(Duration::from_secs(10));
    bed.reserve(booking_on(2, "load", prompt(9_000, 20))).expect("booked");
    assert_eq!(goes_to(&bed, "s"), 2, "one lease is enough");
    bed.core.free_reservation("c").expect("freed");
    bed.clock.advance(Duration::from_millis(1_999));
    assert_eq!(goes_to(&bed, "s"), 2);
    bed.clock.advance(Duration::from_millis(1));
    assert_eq!(goes_to(&bed, "s"), 1);
}

#[test]
fn leases_of_a_worker_that_left_do_not_touch_the_new_binding() {
    let bed = Bed::with_workers(sessions(2), 2);
    bind(&bed, "s", "old");
    bed.core.delete_worker(2).expect("deleted");
    bed.reserve(in_session("s", booking_on(1, "new", prompt(300, 1)))).expect("booked");
    bed.worker(2, |_| {});
    bed.reserve(booking_on(1, "load", prompt(9_000, 20))).expect("booked");
    assert_eq!(text(bed.core.free_reservation("old")).0, "not_found");
    bed.clock.advance(Duration::from_secs(10));
    assert_eq!(goes_to(&bed, "s"), 1);
}

#[test]
fn long_ids_are_refused_only_where_sessions_are_used() {
    let bed = Bed::with_workers(sessions(60), 1);
    let long = "x".repeat(257);
    let refused = ("bad_request", "session affinity ID must not exceed 256 bytes".to_owned());
    assert_eq!(text(bed.select(in_session(&long, request(prompt(1, 1))))), refused);
    assert_eq!(text(bed.reserve(in_session(&long, booking("a", prompt(1, 1))))), refused);
    let mut pinned = in_session(&long, booking("a", prompt(1, 1)));
    pinned.steering.pinned_worker = Some(WorkerWithDpRank::new(1, 0));
    bed.reserve(pinned).expect("booked");
    let off = Bed::with_workers(approximate(|_| {}), 1);
    off.select(in_session(&long, request(prompt(1, 1)))).expect("selected");
}

#[test]
fn sessions_belong_to_their_partition() {
    let bed = bed_with_busy_worker();
    bed.worker(3, |worker| worker.routing_group = "g".to_owned());
    bind(&bed, "s", "r1");
    let mut elsewhere = in_session("s", booking("r2", prompt(1, 1)));
    elsewhere.routing_group = "g".to_owned();
    assert_eq!(bed.reserve(elsewhere).expect("booked").worker_id, 3);
    assert_eq!(goes_to(&bed, "s"), 2);
}

#[test]
fn a_failed_booking_binds_nothing() {
    let bed = bed_with_busy_worker();
    assert_eq!(text(bed.reserve(in_session("s", booking_on(9, "r1", prompt(1, 1))))).0, "unavailable");
    assert_eq!(text(bed.reserve(in_session("s", booking_on(2, "load2", prompt(1, 1))))).0, "conflict");
    assert_eq!(goes_to(&bed, "s"), 1);
    let partition = bed.core.partition("m", "default").expect("exists");
    assert!(partition.sessions.is_empty());
}

fn soft() -> SelectionConfig {
    let mode = crate::selection::config::SessionAffinityMode::Soft;
    SelectionConfig { session_affinity_mode: mode, ..sessions(60) }
}

#[test]
fn a_soft_binding_follows_the_bookings() {
    let bed = Bed::with_workers(soft(), 2);
    bed.reserve(booking_on(2, "load2", prompt(9_000, 20))).expect("booked");
    bind(&bed, "s", "r1");
    assert_eq!(goes_to(&bed, "s"), 2, "the default policy keeps an eligible target");
    let query = SelectRequest { selection_id: None, ..in_session("s", booking_on(1, "", prompt(200, 1))) };
    assert_eq!(bed.select(query).expect("selected").worker_id, 1);
    assert_eq!(goes_to(&bed, "s"), 2, "a query moves nothing");
    bed.reserve(in_session("s", booking_on(1, "r2", prompt(200, 1)))).expect("booked");
    assert_eq!(goes_to(&bed, "s"), 1, "bound anew");
    bed.core.free_reservation("r1").expect("freed");
    bed.clock.advance(Duration::from_secs(61));
    assert_eq!(goes_to(&bed, "s"), 1, "the booking that moved it holds the lease");
    bed.core.free_reservation("r2").expect("freed");
    bed.clock.advance(Duration::from_secs(60));
    bed.reserve(booking_on(1, "load1", prompt(8_000, 40))).expect("booked");
    assert_eq!(goes_to(&bed, "s"), 2, "the idle time ran from the end of that booking");
}

#[test]
fn a_soft_binding_stays_where_it_is_when_a_booking_elsewhere_fails() {
    let bed = Bed::with_workers(soft(), 2);
    bed.reserve(booking_on(2, "load2", prompt(9_000, 20))).expect("booked");
    bind(&bed, "s", "r1");
    assert_eq!(text(bed.reserve(in_session("s", booking_on(9, "r2", prompt(1, 1))))).0, "unavailable");
    assert_eq!(text(bed.reserve(in_session("s", booking_on(1, "r1", prompt(1, 1))))).0, "conflict");
    assert_eq!(goes_to(&bed, "s"), 2);
}

#[test]
fn a_replay_moves_a_soft_binding() {
    let bed = Bed::with_workers(soft(), 2);
    bed.select(in_session("s", booking_on(2, "p", prompt(100, 1)))).expect("selected");
    bed.reserve(in_session("s", booking_on(1, "mv", prompt(200, 1)))).expect("booked");
    bed.book(replay("p")).expect("booked");
    assert_eq!(goes_to(&bed, "s"), 2);
}

#[test]
fn a_replayed_booking_keeps_its_session_as_long_as_it_lives() {
    let bed = Bed::with_workers(sessions(60), 2);
    let selected = bed.select(in_session("s", booking("x", prompt(1, 1)))).expect("selected");
    assert_eq!(selected.selection_id.as_deref(), Some("x"));
    bed.book(replay("x")).expect("booked");
    let partition = bed.core.partition("m", "default").expect("exists");
    let is_bound = || partition.sessions.target("s", bed.core.now()).expect("a short id").is_some();
    bed.clock.advance(Duration::from_secs(100));
    assert!(is_bound());
    bed.core.free_reservation("x").expect("live");
    bed.clock.advance(Duration::from_secs(60));
    assert!(!is_bound());
}

#[test]
fn a_binding_to_a_worker_that_drains_starts_over() {
    use crate::selection::{
        catalog::{CatalogSnapshot, DesiredWorker, SnapshotVersion},
        worker::WorkerState,
    };
    let bed = Bed::with_workers(sessions(60), 2);
    bind(&bed, "s", "a");
    let wanted = |(id, state)| {
        let request = (*bed.core.worker(id).expect("registered").request).clone();
        DesiredWorker { state, request }
    };
    let snapshot = CatalogSnapshot {
        version: SnapshotVersion { epoch: 1, generation: 1 },
        digest: "d".to_owned(),
        workers: [(1, WorkerState::Active), (2, WorkerState::Draining)].map(wanted).into(),
    };
    bed.core.apply_catalog("file.test", snapshot, Some("api")).expect("applied");
    assert_eq!(goes_to(&bed, "s"), 1);
    bed.core.free_reservation("a").expect("it stays until it ends");
}
