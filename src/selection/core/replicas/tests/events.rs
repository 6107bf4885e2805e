//! Events of other replicas as they come, and calls that come before them.

use super::*;

#[test]
fn both_sides_of_a_booking_have_one_digest() {
    let (a, b) = (Bed::new(), Bed::new());
    for id in ["x", "y", "z"] {
        a.reserve(id);
    }
    let published: Vec<_> = std::mem::take(&mut *a.published.0.lock());
    for event in published {
        assert_eq!(b.core.mirror_booking(event, OWN + 10), Mirrored::Applied);
    }
    assert_eq!(a.digest(OWN), b.digest(OWN + 10));
    a.core.prefill_complete("x").expect("live");
    assert_ne!(a.digest(OWN), b.digest(OWN + 10));
    a.core.free_reservation("y").expect("live");
    for event in std::mem::take(&mut *a.published.0.lock()) {
        b.core.mirror_booking(event, OWN + 10);
    }
    assert_eq!(a.digest(OWN), b.digest(OWN + 10));
    assert_eq!(a.digest(OWN).bookings, 2);
    a.core.free_reservation("x").expect("live");
    a.core.free_reservation("z").expect("live");
    assert_eq!(a.digest(OWN), LoadDigest::default());
}

#[test]
fn an_end_that_comes_before_its_booking_ends_it() {
    let bed = Bed::new();
    assert_eq!(bed.send("x", BookingChange::Freed), Mirrored::Early);
    assert_eq!(bed.send("x", admitted()), Mirrored::EndedEarly);
    assert_eq!(bed.live(), 0);
    assert_eq!(bed.changes(), [], "its sender told everybody");
    assert_eq!(bed.send("x", admitted()), Mirrored::Applied, "the id may be booked again");
}

#[test]
fn a_clients_early_calls_reach_the_other_replicas() {
    let bed = Bed::new();
    bed.core.free_reservation("x").expect_err("unknown");
    bed.core.prefill_complete("y").expect_err("unknown");
    assert_eq!(bed.send("x", admitted()), Mirrored::EndedEarly);
    assert_eq!(bed.send("y", admitted()), Mirrored::Applied);
    assert_eq!((bed.live(), bed.prefill()), (1, 0));
    let told = [("x".to_owned(), BookingChange::Freed), ("y".to_owned(), BookingChange::PrefillCompleted)];
    assert_eq!(bed.changes(), told);
}

#[test]
fn early_calls_of_a_client_and_of_a_replica_are_both_remembered() {
    let bed = Bed::new();
    bed.core.free_reservation("x").expect_err("unknown");
    assert_eq!(bed.send("x", BookingChange::PrefillCompleted), Mirrored::Early);
    assert_eq!(bed.send("x", admitted()), Mirrored::EndedEarly);
    assert_eq!(bed.changes(), [("x".to_owned(), BookingChange::Freed)]);
}

#[test]
fn early_calls_wait_ten_seconds_and_never_for_a_local_booking() {
    let bed = Bed::new();
    bed.core.free_reservation("x").expect_err("unknown");
    bed.clock.advance(Duration::from_secs(10));
    assert_eq!(bed.send("x", admitted()), Mirrored::Applied);
    bed.core.free_reservation("y").expect_err("unknown");
    bed.reserve("y");
    assert_eq!(bed.live(), 2);
}

#[test]
fn a_call_for_an_id_that_was_live_lately_waits_for_nothing() {
    let bed = Bed::new();
    bed.send("x", admitted());
    bed.core.free_reservation("x").expect("live");
    bed.core.free_reservation("x").expect_err("a retry");
    assert_eq!(bed.send("x", BookingChange::Freed), Mirrored::Early, "the same from a peer");
    assert_eq!(bed.send("x", admitted()), Mirrored::Applied);
}

#[test]
fn what_does_not_fit_is_dropped_with_its_reason() {
    let bed = Bed::new();
    let dropped = |event| match bed.core.mirror_booking(event, PEER) {
        Mirrored::Dropped(drop) => drop,
        other => panic!("{other:?}"),
    };
    assert_eq!(dropped(BookingEvent { block_size: 32, ..event("x", admitted()) }), MirrorDrop::BlockSize);
    let elsewhere = BookingEvent { partition: PartitionKey::new("m", "g"), ..event("x", admitted()) };
    assert_eq!(dropped(elsewhere), MirrorDrop::UnknownPartition);
    let unknown = BookingEvent { rank: WorkerWithDpRank::new(7, 2), ..event("x", admitted()) };
    assert_eq!(dropped(unknown), MirrorDrop::UnknownRank);
    bed.send("x", admitted());
    let other = BookingEvent { rank: WorkerWithDpRank::new(7, 0), ..event("x", BookingChange::Freed) };
    assert_eq!(dropped(other), MirrorDrop::OtherRank);
    assert_eq!(bed.send("x", admitted()), Mirrored::Known);
    assert_eq!(bed.live(), 1);
}

#[test]
fn a_mirror_takes_the_claim_of_a_booking_that_is_being_made() {
    let bed = Bed::new();
    let partition = bed.core.partition("m", "default").expect("exists");
    let claim = bed.core.bookings.claim("x".into(), &partition).expect("free");
    assert_eq!(bed.send("x", admitted()), Mirrored::Applied);
    let now = bed.core.now();
    let facts = BookingFacts::new("x".into(), WorkerWithDpRank::new(7, 0), None, admission(), (now, now), OWN);
    let held = Held { facts: Arc::new(facts), lease: None, lifecycle: None };
    assert!(matches!(claim.install(held), Err(crate::selection::core::bookings::NotInstalled::Replaced)));
    assert_eq!(bed.digest(OWN), LoadDigest::default());
    bed.core.free_reservation("x").expect("the mirrored one is live");
}

#[test]
fn the_same_id_in_two_partitions_is_two_bookings_and_one_by_name() {
    let bed = Bed::new();
    bed.worker(8, "g");
    let other = |change| BookingEvent {
        partition: PartitionKey::new("m", "g"),
        rank: WorkerWithDpRank::new(8, 0),
        ..event("x", change)
    };
    assert_eq!(bed.send("x", admitted()), Mirrored::Applied);
    assert_eq!(bed.core.mirror_booking(other(admitted()), PEER), Mirrored::Applied);
    assert_eq!(bed.live(), 2);
    assert_eq!(bed.send("x", BookingChange::PrefillCompleted), Mirrored::Applied);
    assert_eq!(bed.core.mirror_booking(other(BookingChange::PrefillCompleted), PEER), Mirrored::Applied);
    bed.core.free_reservation("x").expect("the first");
    assert_eq!(bed.live(), 1);
    bed.core.prefill_complete("x").expect_err("the second has no name");
    bed.core.free_reservation("x").expect_err("the second has no name");
    assert_eq!(bed.core.mirror_booking(other(BookingChange::Freed), PEER), Mirrored::Applied);
    assert_eq!(bed.live(), 0);
}

#[test]
fn tokens_beyond_measure_are_bounded() {
    let bed = Bed::new();
    let huge = Admission { prefill: Some(PrefillHint { tokens: u64::MAX, duration: None }), ..admission() };
    bed.send("x", BookingChange::Admitted(huge.clone()));
    bed.send("y", BookingChange::Admitted(huge));
    assert_eq!(bed.prefill(), 2 * MAX_PREFILL_TOKENS);
}

#[test]
fn sessions_follow_the_higher_version_and_a_clamped_clock() {
    let bed = Bed::new();
    let bind = |dp_rank, sequence| {
        bed.core.mirror_session(&SessionEvent {
            partition: key(),
            session_id: "s".into(),
            target: AffinityTarget { worker_id: 7, dp_rank: Some(dp_rank) },
            version: SessionVersion { sequence, writer_id: PEER },
        })
    };
    assert_eq!(bind(0, 5), Mirrored::Applied);
    assert_eq!(bind(1, 4), Mirrored::Known);
    assert_eq!(bind(1, u64::MAX), Mirrored::Applied);
    let [session] = &bed.core.replica_sessions(&key(), Some(PEER))[..] else { panic!("one session") };
    assert_eq!(session.target.dp_rank, Some(1));
    assert_eq!(session.version.sequence, bed.clock.unix_nanos() + 300_000_000_000);
    bed.clock.advance(Duration::from_secs(400));
    bed.core.tick();
    assert_eq!(bed.core.partition_digest(&key()).expect("exists").origins, [], "expired with its digest");
}

#[test]
fn mirrored_bookings_hold_a_bounded_amount() {
    let bed = Bed::new();
    // Names count like hashes, and this one is there once.
    let name: Arc<str> = "x".repeat(256 << 20).into();
    let send = |id: &str, change| {
        let named = BookingEvent { lora_name: Some(Arc::clone(&name)), ..event(id, change) };
        bed.core.mirror_booking(named, PEER)
    };
    let fitting = MAX_MIRRORED_WORDS as usize / (name.len() / 8 + 32);
    for at in 0..fitting {
        assert_eq!(send(&format!("b{at}"), admitted()), Mirrored::Applied);
    }
    assert_eq!(send("more", admitted()), Mirrored::Dropped(MirrorDrop::Full));
    bed.reserve("local");
    for at in 0..fitting {
        assert_eq!(send(&format!("b{at}"), BookingChange::Freed), Mirrored::Applied);
    }
    assert_eq!(send("more", admitted()), Mirrored::Applied, "room comes back");
}

#[test]
fn ids_beyond_measure_are_not_remembered() {
    let bed = Bed::new();
    let id = "x".repeat(1 << 20);
    assert_eq!(bed.send(&id, BookingChange::Freed), Mirrored::Early);
    assert_eq!(bed.send(&id, admitted()), Mirrored::Applied);
}

#[test]
fn a_call_that_comes_while_a_mirror_is_being_made_is_not_lost() {
    let bed = Bed::new();
    let partition = bed.core.partition("m", "default").expect("exists");
    let rank = WorkerWithDpRank::new(7, 0);
    let install = |facts: BookingFacts| {
        let claim = bed.core.bookings.mirror("x".into(), &partition).expect("free");
        // No booking is found yet, though its mirror has been looked for early calls already.
        bed.core.free_reservation("x").expect_err("unknown");
        claim.install(Held { facts: Arc::new(facts), lease: None, lifecycle: None }).expect("installed");
    };
    let now = bed.core.now();
    let facts = || BookingFacts::new("x".into(), rank, None, admission(), (now, now), PEER);
    install(facts().mirrored());
    assert!(bed.core.bookings.take_early("x", rank, now).expect("remembered").freed);
    bed.core.bookings.take("x", now).expect("live");
    install(facts());
    assert_eq!(bed.core.bookings.take_early("x", rank, now), None, "a booking made here has its own calls alone");
}

#[test]
fn a_prefill_that_is_done_after_the_end_changes_no_digest() {
    let bed = Bed::new();
    bed.reserve("x");
    let late = bed.core.bookings.find("x").expect("live");
    bed.core.free_reservation("x").expect("live");
    bed.core.bookings.complete_prefill(&late);
    assert_eq!(bed.digest(OWN), LoadDigest::default());
}

#[test]
fn a_peers_early_prefill_is_not_told_to_others() {
    let bed = Bed::new();
    assert_eq!(bed.send("x", BookingChange::PrefillCompleted), Mirrored::Early);
    assert_eq!(bed.send("x", admitted()), Mirrored::Applied);
    assert_eq!((bed.prefill(), bed.changes()), (0, vec![]));
}

#[test]
fn bookings_that_expire_as_a_mirror_comes_free_their_ids() {
    let bed = Bed::new();
    bed.send("old", admitted());
    bed.clock.advance(Duration::from_secs(400));
    assert_eq!(bed.send("new", admitted()), Mirrored::Applied);
    assert_eq!((bed.live(), bed.core.live_bookings()), (1, 1));
    assert_eq!(bed.core.ended_bookings().expired, 1);
}

/// A booking of session `s`, and its rank.
fn reserve_in_session(bed: &Bed, id: &str) -> WorkerWithDpRank {
    let mut request = crate::selection::request::SelectRequest {
        model_name: "m".to_owned(),
        routing_group: "default".to_owned(),
        selection_id: Some(id.to_owned()),
        session_id: Some("s".to_owned()),
        prompt: PromptInput { sequence_hashes: Some(vec![1, 2]), isl_tokens: Some(32), ..PromptInput::default() },
        ..crate::selection::request::SelectRequest::default()
    };
    request.prompt.block_hashes = request.prompt.sequence_hashes.clone();
    let answer = ready(bed.core.select_and_reserve(request)).expect("booked");
    WorkerWithDpRank::new(answer.worker_id, answer.dp_rank)
}

#[test]
fn a_session_lasts_from_the_end_that_a_replica_tells_of() {
    let bed = Bed::new();
    let rank = reserve_in_session(&bed, "x");
    bed.clock.advance(Duration::from_secs(50));
    let freed = BookingEvent { rank, ..event("x", BookingChange::Freed) };
    assert_eq!(bed.core.mirror_booking(freed, PEER), Mirrored::Applied);
    let partition = bed.core.partition("m", "default").expect("exists");
    let is_bound = || partition.sessions.target("s", bed.core.now()).expect("a short id").is_some();
    bed.clock.advance(Duration::from_secs(59));
    assert!(is_bound());
    bed.clock.advance(Duration::from_secs(1));
    assert!(!is_bound());
}

#[test]
fn a_binding_made_here_is_later_than_any_that_was_heard_of() {
    let bed = Bed::new();
    let heard = bed.clock.unix_nanos() + 1_000_000_000;
    let elsewhere = SessionEvent {
        partition: key(),
        session_id: "other".into(),
        target: AffinityTarget { worker_id: 8, dp_rank: Some(0) },
        version: SessionVersion { sequence: heard, writer_id: PEER },
    };
    assert_eq!(bed.core.mirror_session(&elsewhere), Mirrored::Dropped(MirrorDrop::UnknownRank));
    reserve_in_session(&bed, "x");
    let [session] = &bed.core.replica_sessions(&key(), Some(OWN))[..] else { panic!("one session") };
    assert!(session.version.sequence > heard);
}
