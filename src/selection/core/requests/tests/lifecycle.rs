//! What happens to a booking after it was made.

use super::*;

fn unknown(id: &str) -> (&'static str, String) {
    ("not_found", format!("reservation {id} not found"))
}

#[test]
fn unknown_ids() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    bed.reserve(booking("Abc", prompt(1, 1))).expect("booked");
    assert_eq!(text(bed.core.prefill_complete("abc")), unknown("abc"));
    assert_eq!(text(bed.core.add_output_block("abc", None)), unknown("abc"));
    assert_eq!(text(bed.core.free_reservation("abc")), unknown("abc"));
    bed.core.free_reservation("Abc").expect("freed");
    assert_eq!(text(bed.core.free_reservation("Abc")), unknown("Abc"));
    assert_eq!(text(bed.core.prefill_complete("Abc")), unknown("Abc"));
}

#[test]
fn a_booking_through_its_life() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    bed.reserve(booking("a", prompt(1, 3))).expect("booked");
    assert_eq!(bed.loads(), [(1, 0, 12, 3, 1)]);
    bed.core.prefill_complete("a").expect("done");
    bed.core.prefill_complete("a").expect("repeats are fine");
    bed.core.add_output_block("a", None).expect("added");
    assert_eq!(bed.loads(), [(1, 0, 0, 4, 1)]);
    bed.core.add_output_block("a", Some(0.5)).expect("added");
    assert_eq!(bed.loads(), [(1, 0, 0, 3, 1)]);
    for _ in 0..1_000 {
        bed.core.add_output_block("a", Some(0.3)).expect("added");
    }
    bed.core.free_reservation("a").expect("freed");
    bed.assert_idle();
}

#[test]
fn fractions_are_checked_before_the_id() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let refused = ("bad_request", "decay_fraction must be between 0.0 and 1.0".to_owned());
    for fraction in [-0.1, 1.0001, 1e308, -1e308, f64::NAN, f64::INFINITY] {
        assert_eq!(text(bed.core.add_output_block("nobody", Some(fraction))), refused, "{fraction}");
    }
    bed.reserve(booking("a", prompt(1, 1))).expect("booked");
    for fraction in [0.0, -0.0, 1.0] {
        bed.core.add_output_block("a", Some(fraction)).expect("in range");
    }
}

#[test]
fn owners_are_found_in_any_partition() {
    let bed = Bed::new(approximate(|_| {}));
    let models = ["m1", "m2", "m3", "m4", "m5"];
    for (id, model) in (1..).zip(models) {
        bed.worker(id, |worker| worker.model_name = model.to_owned());
    }
    for rotation in 0..models.len() {
        for model in models {
            bed.reserve(SelectRequest { model_name: model.to_owned(), ..booking(model, prompt(1, 2)) })
                .expect("booked");
        }
        for at in 0..models.len() {
            bed.core.prefill_complete(models[(at + rotation) % models.len()]).expect("found");
        }
        assert!(bed.loads().iter().all(|row| (row.2, row.4) == (0, 1)));
        for at in 0..models.len() {
            bed.core.free_reservation(models[(at + rotation) % models.len()]).expect("found");
        }
        bed.assert_idle();
    }
}

#[test]
fn a_late_free_ends_the_booking_that_has_its_id_now() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    bed.reserve(booking_on(1, "x", prompt(1, 2))).expect("booked");
    bed.core.free_reservation("x").expect("freed");
    bed.reserve(booking_on(2, "x", prompt(10, 2))).expect("the id is free");
    bed.reserve(booking_on(2, "y", prompt(20, 2))).expect("booked");
    // The first attempt's client frees once more: an id is all that it tells.
    bed.core.free_reservation("x").expect("freed");
    assert_eq!(bed.loads(), [(1, 0, 0, 0, 0), (2, 0, 8, 2, 1)]);
    assert_eq!(text(bed.core.free_reservation("x")), unknown("x"));
}

#[test]
fn the_id_of_a_worker_that_left_is_free_at_once() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    bed.reserve(booking_on(1, "a", prompt(1, 2))).expect("booked");
    bed.core.delete_worker(1).expect("deleted");
    assert_eq!(bed.core.live_bookings(), 0);
    bed.reserve(booking("a", prompt(10, 1))).expect("booked");
    assert_eq!(bed.loads(), [(2, 0, 4, 1, 1)]);
    bed.core.free_reservation("a").expect("freed");
    assert_eq!(text(bed.core.free_reservation("a")), unknown("a"));
    bed.assert_idle();
}

#[test]
fn expiry_frees_booking_id_and_session_together() {
    let mut config = sessions(1_000);
    config.active_request_expiry = Some(Duration::from_secs(300));
    let bed = Bed::with_workers(config, 2);
    bed.reserve(in_session("s", booking("a", prompt(1, 2)))).expect("booked");
    bed.clock.advance(Duration::from_secs(299));
    bed.core.tick();
    assert_eq!(bed.requests(), 1);
    bed.clock.advance(Duration::from_secs(61));
    bed.core.tick();
    bed.assert_idle();
    assert_eq!(text(bed.core.free_reservation("a")), unknown("a"));
    bed.reserve(booking("a", prompt(1, 2))).expect("the id is free");
    // The lease ended with the booking, so the session ends one TTL later.
    let worker = |bed: &Bed| bed.select(in_session("s", request(prompt(1, 2)))).expect("selected").worker_id;
    let bound = worker(&bed);
    assert!((0..20).all(|_| worker(&bed) == bound));
    bed.clock.advance(Duration::from_secs(1_000));
    bed.core.tick();
    let partition = bed.core.partition("m", "default").expect("exists");
    assert!(partition.sessions.is_empty());
}

#[test]
fn a_booking_expires_when_its_rank_gets_a_new_one() {
    let bed = Bed::with_workers(approximate(|config| config.active_request_expiry = Some(Duration::from_secs(10))), 1);
    bed.reserve(booking("old", prompt(1, 2))).expect("booked");
    bed.clock.advance(Duration::from_secs(31));
    bed.reserve(booking("new", prompt(10, 1))).expect("booked");
    assert_eq!(bed.loads(), [(1, 0, 4, 1, 1)]);
    assert_eq!(bed.core.live_bookings(), 1);
    assert_eq!(text(bed.core.prefill_complete("old")), unknown("old"));
    assert_eq!(bed.core.ended_bookings().expired, 1);
}

#[test]
fn a_draining_worker_keeps_its_bookings_and_takes_no_new_one() {
    use crate::selection::{
        catalog::{CatalogSnapshot, DesiredWorker, SnapshotVersion},
        worker::WorkerState,
    };
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let mut draining = DesiredWorker {
        state: WorkerState::Active,
        request: WorkerRequest {
            worker_id: 2,
            model_name: "m".to_owned(),
            routing_group: "default".to_owned(),
            fields: WorkerFields {
                endpoint: Some("http://w2:8000".to_owned()),
                block_size: Some(4),
                ..WorkerFields::default()
            },
        },
    };
    let apply = |worker: &DesiredWorker, generation| {
        let version = SnapshotVersion { epoch: 1, generation };
        let snapshot = CatalogSnapshot { version, digest: generation.to_string(), workers: vec![worker.clone()] };
        bed.core.apply_catalog("file.test", snapshot, None).expect("applied");
    };
    apply(&draining, 1);
    bed.reserve(booking_on(2, "a", prompt(1, 2))).expect("booked");
    bed.select(booking_on(2, "s", prompt(1, 2))).expect("selected");
    draining.state = WorkerState::Draining;
    apply(&draining, 2);
    assert_eq!(text(bed.reserve(booking_on(2, "b", prompt(1, 2)))).0, "unavailable");
    assert_eq!(text(bed.book(named("b", 2, prompt(1, 2)))).0, "not_found");
    assert_eq!(text(bed.book(replay("s"))).0, "not_found");
    bed.core.add_output_block("a", None).expect("still there");
    bed.core.free_reservation("a").expect("still there");
}

#[test]
fn a_booking_that_ends_before_it_is_installed_fails_and_frees_its_id() {
    use crate::selection::{
        core::bookings::{BookingEnd, Held, NotInstalled},
        replication::{Admission, BookingFacts},
    };
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let partition = bed.core.partition("m", "default").expect("exists");
    let claim = bed.core.bookings.claim("x".into(), &partition).expect("free");
    bed.core.bookings.ended(&[claim.attempt()], BookingEnd::RankLeft, bed.core.clock.now());
    assert_eq!(text(bed.reserve(booking("x", prompt(1, 1)))).0, "conflict", "its request still runs");
    assert_eq!(text(bed.core.free_reservation("x")), unknown("x"), "a claim is not a booking");
    let now = bed.core.clock.now();
    let admission =
        Admission { sequence: [].into(), track_prefill_tokens: true, expected_output_tokens: None, prefill: None };
    let facts = BookingFacts::new("x".into(), WorkerWithDpRank::new(1, 0), None, admission, (now, now), 0);
    let held = Held { facts: facts.into(), lease: None, lifecycle: None };
    assert!(matches!(claim.install(held), Err(NotInstalled::Ended)));
    bed.assert_idle();
    bed.reserve(booking("x", prompt(1, 1))).expect("booked");
}

#[test]
fn a_panic_costs_the_bookings_of_its_partition_and_nobody_else() {
    let bed = Bed::with_workers(sessions(60), 1);
    bed.worker(2, |worker| worker.routing_group = "g".to_owned());
    bed.reserve(in_session("s", booking("lost", prompt(1, 2)))).expect("booked");
    bed.reserve(booking("reused", prompt(10, 1))).expect("booked");
    let elsewhere = SelectRequest { routing_group: "g".to_owned(), ..booking("kept", prompt(1, 2)) };
    bed.reserve(elsewhere).expect("booked");
    let partition = bed.core.partition("m", "default").expect("exists");
    let failed: Result<(), _> = partition.with_state(|_| panic!("injected"));
    assert_eq!(text(failed).0, "internal");
    bed.reserve(booking("reused", prompt(20, 1))).expect("the id of a lost booking is free");
    assert_eq!(text(bed.core.prefill_complete("lost")), unknown("lost"));
    bed.core.tick();
    assert_eq!(bed.loads(), [(1, 0, 4, 1, 1), (2, 0, 8, 2, 1)]);
    assert_eq!(bed.core.live_bookings(), 2);
    bed.core.free_reservation("kept").expect("untouched");
    // The session's lease ended with its booking.
    bed.clock.advance(Duration::from_secs(61));
    bed.core.tick();
    assert!(partition.sessions.is_empty());
}

#[test]
fn the_sweep_finds_bookings_that_nobody_reported() {
    let bed = Bed::with_workers(sessions(1_000), 1);
    bed.reserve(in_session("s", booking("a", prompt(1, 2)))).expect("booked");
    bed.reserve(booking("b", prompt(10, 2))).expect("booked");
    let partition = bed.core.partition("m", "default").expect("exists");
    let attempt = bed.core.bookings.find("a").expect("booked").attempt;
    let now = bed.core.clock.now();
    assert!(partition.with_state(|state| state.load.free(attempt, now)).expect("no panic"));
    bed.core.sweep_bookings(now);
    assert!(bed.core.bookings.find("a").is_none());
    assert_eq!(bed.core.live_bookings(), 1);
    let attempt = bed.core.bookings.find("b").expect("booked").attempt;
    assert!(partition.with_state(|state| state.load.free(attempt, now)).expect("no panic"));
    assert_eq!(text(bed.core.prefill_complete("b")), unknown("b"));
    assert_eq!(bed.core.live_bookings(), 0, "whoever asks finds it too");
    bed.clock.advance(Duration::from_secs(1_000));
    partition.sessions.reap(bed.core.clock.now());
    assert!(partition.sessions.is_empty(), "its lease was released");
}

#[test]
fn a_session_lasts_one_ttl_from_the_expiry_of_its_booking() {
    let mut config = sessions(1_000);
    config.active_request_expiry = Some(Duration::from_secs(300));
    let bed = Bed::with_workers(config, 2);
    bed.reserve(in_session("s", booking("a", prompt(1, 2)))).expect("booked");
    bed.clock.advance(Duration::from_secs(400));
    bed.core.tick();
    bed.assert_idle();
    let partition = bed.core.partition("m", "default").expect("exists");
    let is_bound = || partition.sessions.target("s", bed.core.now()).expect("a short id").is_some();
    bed.clock.advance(Duration::from_secs(999));
    assert!(is_bound());
    bed.clock.advance(Duration::from_secs(1));
    assert!(!is_bound());
}

#[test]
fn a_named_booking_lets_old_ones_of_its_rank_expire() {
    let bed = Bed::with_workers(approximate(|config| config.active_request_expiry = Some(Duration::from_secs(10))), 1);
    bed.reserve(booking("old", prompt(1, 2))).expect("booked");
    bed.clock.advance(Duration::from_secs(31));
    bed.book(named("new", 1, prompt(10, 1))).expect("booked");
    assert_eq!((bed.core.live_bookings(), bed.core.ended_bookings().expired), (1, 1));
}
