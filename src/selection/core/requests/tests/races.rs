//! Requests that meet each other, and requests that go away.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Waker},
    thread,
};

use super::*;
use crate::selection::replication::{Admission, PrefillHint};

/// Runs `work` on `threads` threads at once and collects what they return.
fn on_threads<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = std::sync::Barrier::new(threads);
    thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let spawn = |at| {
            scope.spawn(move || {
                start.wait();
                work(at)
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn one_of_many_replays_books() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    for round in 0..50 {
        bed.select(booking("x", prompt(round * 10, 2))).expect("selected");
        let outcomes = on_threads(8, |_| block_on(bed.core.create_reservation(replay("x"))));
        let booked = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(booked, 1, "round {round}");
        let others = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        assert!(others.map(SelectionError::reason).all(|reason| ["conflict", "not_found"].contains(&reason)));
        assert_eq!(bed.loads(), [(1, 0, 8, 2, 1)]);
        bed.core.free_reservation("x").expect("freed");
    }
    bed.assert_idle();
}

#[test]
fn one_of_many_bookings_of_an_id_wins_and_one_of_many_frees() {
    let bed = Bed::with_workers(approximate(|_| {}), 3);
    bed.worker(9, |worker| worker.routing_group = "g".to_owned());
    for round in 0..50 {
        let outcomes = on_threads(9, |at| match at % 3 {
            0 => block_on(bed.core.select_and_reserve(booking("x", prompt(round, 2)))).map(|_| ()),
            1 => block_on(bed.core.create_reservation(named("x", 1, prompt(round, 2)))).map(|_| ()),
            _ => {
                let elsewhere = SelectRequest { routing_group: "g".to_owned(), ..booking("x", prompt(round, 2)) };
                block_on(bed.core.select_and_reserve(elsewhere)).map(|_| ())
            }
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "round {round}");
        assert_eq!(bed.requests(), 1);
        let freed = on_threads(6, |_| bed.core.free_reservation("x"));
        assert_eq!(freed.iter().filter(|outcome| outcome.is_ok()).count(), 1, "round {round}");
        bed.assert_idle();
    }
}

/// A replay that fails late must not take the newer selection of its id along.
#[test]
fn a_failing_replay_leaves_the_newer_selection() {
    let bed = Bed::with_workers(sessions(60), 2);
    bed.reserve(in_session("s", booking_on(1, "bind", prompt(1, 1)))).expect("booked");
    for round in 0..200 {
        bed.select(in_session("s", SelectRequest { session_id: None, ..booking_on(2, "x", prompt(10, 1)) }))
            .expect("selected");
        let mut moved = booking_on(2, "x", prompt(10, 1));
        moved.session_id = Some("s".to_owned());
        bed.select(moved).expect("selected");
        thread::scope(|scope| {
            let old = scope.spawn(|| block_on(bed.core.create_reservation(replay("x"))));
            bed.select(booking_on(2, "x", prompt(20, 1))).expect("selected");
            // The old one may have been refused, or have found the new selection already.
            let booked = old.join().expect("no panic").is_ok();
            let again = block_on(bed.core.create_reservation(replay("x")));
            assert!(booked || again.is_ok(), "round {round}: {again:?}");
        });
        bed.core.free_reservation("x").expect("booked once");
    }
}

#[test]
fn first_requests_of_a_session_agree() {
    let bed = Bed::with_workers(sessions(60), 8);
    for round in 0..20 {
        let session = round.to_string();
        let workers = on_threads(8, |at| {
            let request = in_session(&session, booking(&format!("{round}-{at}"), prompt(1_000 * (at as i64 + 1), 3)));
            block_on(bed.core.select_and_reserve(request)).expect("booked").worker_id
        });
        assert!(workers.windows(2).all(|pair| pair[0] == pair[1]), "{workers:?}");
        for at in 0..8 {
            bed.core.free_reservation(&format!("{round}-{at}")).expect("freed");
        }
    }
    bed.assert_idle();
}

#[test]
fn requests_that_wait_for_a_session_and_go_away_leave_nothing() {
    let bed = Bed::with_workers(sessions(60), 4);
    let partition = bed.core.partition("m", "default").expect("exists");
    let first = ready(partition.sessions.hold("s", None, &*bed.clock, |_| true)).expect("held");
    let mut waiting: Vec<_> = (0..50)
        .map(|at| {
            let request = in_session("s", booking(&at.to_string(), prompt(at * 10, 2)));
            let mut future = Box::pin(bed.core.select_and_reserve(request));
            let mut context = Context::from_waker(Waker::noop());
            assert!(future.as_mut().poll(&mut context).is_pending());
            future
        })
        .collect();
    assert_eq!((bed.requests(), bed.core.live_bookings()), (0, 50), "ids are claimed, nothing is booked");
    waiting.truncate(25);
    assert_eq!(bed.core.live_bookings(), 25, "the ids of those who left are free");
    drop(first);
    let workers: Vec<_> = waiting.into_iter().map(|future| block_on(future).expect("booked").worker_id).collect();
    assert!(workers.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(bed.requests(), 25, "no late booking");
}

#[test]
fn every_wait_can_be_abandoned() {
    let bed = Bed::with_workers(sessions(60), 2);
    let partition = bed.core.partition("m", "default").expect("exists");
    let first = ready(partition.sessions.hold("s", None, &*bed.clock, |_| true)).expect("held");
    bed.select(in_session("s", booking("p", prompt(1, 1)))).expect("selected");
    let mut replayed = Box::pin(bed.core.create_reservation(replay("p")));
    assert!(replayed.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(replayed);
    drop(first);
    bed.assert_idle();
    assert!(partition.sessions.is_empty());
    bed.book(replay("p")).expect("the selection is still there");
}

/// Workers come and go under load; what was booked on one that left is gone, and nothing else stays behind.
#[test]
fn bookings_survive_workers_that_come_and_go() {
    for config in [sessions(60), with_events(|_| {})] {
        let bed = Bed::with_workers(config, 2);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let churn = scope.spawn(|| {
                for _ in 0..200 {
                    bed.core.delete_worker(2).expect("deleted");
                    bed.worker(2, |_| {});
                }
                stop.store(true, Ordering::SeqCst);
            });
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let (bed, stop) = (&bed, &stop);
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(client);
                        let mut held: Vec<Arc<str>> = Vec::new();
                        while !stop.load(Ordering::SeqCst) {
                            let mut request = request(prompt(rng.i64(1..50), 4));
                            request.session_id = Some(rng.u8(0..8).to_string());
                            match block_on(bed.core.select_and_reserve(request)) {
                                Ok(answer) => held.extend(answer.selection_id),
                                Err(error) => assert!(
                                    ["internal", "bad_request", "unavailable"].contains(&error.reason()),
                                    "{error}"
                                ),
                            }
                            if held.len() > 20 {
                                let id = held.swap_remove(rng.usize(0..held.len()));
                                // Gone when its worker has left.
                                drop(bed.core.free_reservation(&id));
                            }
                        }
                        held.into_iter().for_each(|id| drop(bed.core.free_reservation(&id)));
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().expect("no panic"));
            churn.join().expect("no panic");
        });
        bed.assert_idle();
        bed.core.delete_worker(2).expect("deleted");
        let after = bed.core.overlap_scores(&LoadQuery {
            model_name: "m".to_owned(),
            routing_group: "default".to_owned(),
            prompt: prompt(1, 4),
            router_config_override: None,
        });
        let workers: Vec<_> = after.expect("ready").workers.iter().map(|row| row.worker_id).collect();
        assert_eq!(workers, [1], "nothing recorded outlives its worker");
    }
}

#[test]
fn a_late_call_never_reaches_a_later_booking_of_its_id() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    for round in 0..100 {
        bed.reserve(booking("x", prompt(round, 2))).expect("booked");
        // Two clients free; whoever books again in between must keep its booking.
        let outcomes = on_threads(3, |at| match at {
            0 | 1 => bed.core.free_reservation("x"),
            _ => block_on(bed.core.select_and_reserve(booking("x", prompt(round + 500, 3)))).map(|_| ()),
        });
        let freed = outcomes[..2].iter().filter(|outcome| outcome.is_ok()).count();
        let booked = usize::from(outcomes[2].is_ok());
        assert_eq!(bed.requests() as usize, 1 + booked - freed, "round {round}");
        drop(bed.core.free_reservation("x"));
        bed.assert_idle();
    }
}

fn admission() -> Admission {
    Admission {
        sequence: [1, 2, 3].into(),
        track_prefill_tokens: true,
        expected_output_tokens: None,
        prefill: Some(PrefillHint { tokens: 12, duration: None }),
    }
}

/// A booking on worker 2 as a request makes it, not yet installed.
fn booked_on_2<'a>(
    bed: &Bed,
    partition: &'a crate::selection::partition::PartitionRef,
) -> (crate::selection::core::bookings::Claim, super::super::booked::Booked<'a>) {
    use super::super::booked::{Booked, book};
    let claim = bed.core.bookings.claim("x".into(), partition).expect("free");
    let now = bed.core.clock.now();
    let rank = WorkerWithDpRank::new(2, 0);
    let booked = partition.with_state(|state| {
        let slot = state.load.slot(rank).expect("registered");
        book(&admission(), &mut state.load, claim.attempt(), slot, now)
    });
    booked.expect("no panic").expect("booked");
    let booked = Booked::new(partition, rank, claim.attempt(), now);
    (claim, booked)
}

#[test]
fn a_booking_that_is_not_installed_is_undone() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    let partition = bed.core.partition("m", "default").expect("exists");
    let (claim, booked) = booked_on_2(&bed, &partition);
    assert_eq!(bed.loads()[1], (2, 0, 12, 3, 1));
    drop(booked);
    drop(claim);
    bed.assert_idle();
}

#[test]
fn what_is_recorded_for_a_worker_that_just_left_does_not_stay() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    let partition = bed.core.partition("m", "default").expect("exists");
    let (claim, booked) = booked_on_2(&bed, &partition);
    bed.core.delete_worker(2).expect("deleted");
    let mut seqs = Vec::new();
    crate::selection::hash::sequence_hashes(&[1, 2, 3], &mut seqs);
    booked.record(&[1, 2, 3], &seqs).expect("recorded");
    let gone = ("internal", "selected worker 2 is no longer schedulable".to_owned());
    assert_eq!(text(booked.install(claim, admission(), None).map(drop)), gone);
    let query = LoadQuery {
        model_name: "m".to_owned(),
        routing_group: "default".to_owned(),
        prompt: prompt(1, 3),
        router_config_override: None,
    };
    let workers: Vec<_> = bed.core.overlap_scores(&query).expect("ready").workers.iter().map(|r| r.worker_id).collect();
    assert_eq!(workers, [1]);
    bed.assert_idle();
}

#[test]
fn a_replay_that_is_refused_late_consumes_only_what_it_looked_at() {
    let bed = Bed::with_workers(sessions(60), 2);
    let partition = bed.core.partition("m", "default").expect("exists");
    bed.select(in_session("s", booking_on(2, "x", prompt(1, 1)))).expect("selected");
    let Ok(crate::selection::sessions::Hold::First(first)) =
        ready(partition.sessions.hold("s", None, &*bed.clock, |_| true))
    else {
        panic!("not the first")
    };
    let mut old = Box::pin(bed.core.create_reservation(replay("x")));
    assert!(old.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // While it waits the session is bound elsewhere, and the id is selected anew.
    let lease = first.commit(WorkerWithDpRank::new(1, 0), &*bed.clock);
    bed.select(booking_on(2, "x", prompt(10, 2))).expect("selected");
    let moved = ("bad_request", "session s is bound to worker 1, not 2".to_owned());
    assert_eq!(text(block_on(old)), moved);
    bed.book(replay("x")).expect("the newer selection is still there");
    assert_eq!(bed.loads()[1], (2, 0, 8, 2, 1));
    lease.release(bed.core.clock.now());
}

#[test]
fn a_booking_that_fails_late_moves_no_session() {
    let mode = crate::selection::config::SessionAffinityMode::Soft;
    let bed = Bed::with_workers(SelectionConfig { session_affinity_mode: mode, ..sessions(60) }, 3);
    bed.reserve(in_session("s", booking_on(1, "first", prompt(1, 1)))).expect("booked");
    let partition = bed.core.partition("m", "default").expect("exists");
    let hold = ready(partition.sessions.hold("s", None, &*bed.clock, |_| true)).expect("held");
    let (claim, booked) = booked_on_2(&bed, &partition);
    bed.core.delete_worker(2).expect("deleted");
    assert_eq!(text(booked.install(claim, admission(), None).map(drop)).0, "internal");
    drop(hold);
    let target = partition.sessions.target("s", bed.core.clock.now()).expect("a short id");
    assert_eq!(target.map(|target| target.worker_id), Some(1));
}

#[test]
fn a_session_given_to_a_booking_that_just_ended_is_released() {
    let bed = Bed::with_workers(sessions(60), 2);
    let partition = bed.core.partition("m", "default").expect("exists");
    let hold = ready(partition.sessions.hold("s", None, &*bed.clock, |_| true)).expect("held");
    let (claim, booked) = booked_on_2(&bed, &partition);
    let installed = booked.install(claim, admission(), None).expect("installed");
    let lease = hold.commit(WorkerWithDpRank::new(2, 0), &*bed.clock).expect("a session");
    bed.core.free_reservation("x").expect("freed");
    bed.clock.advance(Duration::from_secs(30));
    installed.attach(lease, bed.core.clock.now());
    bed.clock.advance(Duration::from_secs(59));
    let bound = |bed: &Bed| partition.sessions.target("s", bed.core.clock.now()).expect("a short id").is_some();
    assert!(bound(&bed));
    bed.clock.advance(Duration::from_secs(1));
    assert!(!bound(&bed), "no lease keeps it");
}
