//! Taking over what other replicas have.

use super::*;

/// Makes `to` equal to what `from` made, as a repair does.
fn repair(to: &Bed, from: &Bed, origin: RouterId, asked: Moment) -> MergeReport {
    let mut report = MergeReport::default();
    let bookings = from.all(Some(OWN)).into_iter().map(|b| BookingSnapshot { origin, ..b }).collect::<Vec<_>>();
    let live: HashSet<Arc<str>> = bookings.iter().map(|booking| Arc::clone(&booking.selection_id)).collect();
    to.core.merge_bookings(&key(), origin, asked, bookings, &mut report);
    to.core.end_absent(&key(), origin, asked, &live, &mut report);
    report
}

#[test]
fn taking_over_adds_completes_and_ends() {
    let (a, b) = (Bed::new(), Bed::new());
    a.reserve("kept");
    a.reserve("gone");
    for event in std::mem::take(&mut *a.published.0.lock()) {
        b.core.mirror_booking(event, PEER);
    }
    a.reserve("new");
    a.reserve("done");
    a.core.prefill_complete("done").expect("live");
    a.core.prefill_complete("kept").expect("live");
    a.core.free_reservation("gone").expect("live");
    b.clock.advance(Duration::from_secs(1));
    let report = repair(&b, &a, PEER, b.core.now());
    assert_eq!((report.added, report.completed, report.ended), (2, 1, 1));
    assert_eq!(a.digest(OWN), b.digest(PEER));
    assert!(!repair(&b, &a, PEER, b.core.now()).changed(), "twice is once");
}

#[test]
fn what_came_after_the_question_is_left_alone() {
    let (a, b) = (Bed::new(), Bed::new());
    b.send("young", admitted());
    let report = repair(&b, &a, PEER, b.core.now());
    assert_eq!(report.ended, 0);
    b.clock.advance(Duration::from_nanos(1));
    assert_eq!(repair(&b, &a, PEER, b.core.now()).ended, 1);
}

#[test]
fn what_a_call_ended_here_is_not_booked_again_and_its_maker_is_told() {
    let (a, b) = (Bed::new(), Bed::new());
    a.reserve("x");
    for event in std::mem::take(&mut *a.published.0.lock()) {
        b.core.mirror_booking(event, PEER);
    }
    a.clock.advance(Duration::from_secs(2));
    b.clock.advance(Duration::from_secs(2));
    b.core.free_reservation("x").expect("live");
    let report = repair(&b, &a, PEER, b.core.now());
    assert_eq!(report.added, 0);
    let [missed] = &report.missed[..] else { panic!("{report:?}") };
    // What PEER made for b, a made itself.
    let missed = MissedCall { origin: OWN, ..missed.clone() };
    assert!(a.core.catch_up(&missed));
    assert_eq!((a.live(), b.live()), (0, 0));
    // Booked again since: younger than that end.
    a.reserve("x");
    assert!(!a.core.catch_up(&missed));
    assert_eq!(a.live(), 1);
}

#[test]
fn an_age_counts_towards_expiry() {
    let bed = Bed::new();
    let old = |id: &str, secs| BookingSnapshot {
        selection_id: id.into(),
        rank: WorkerWithDpRank::new(7, 0),
        lora_name: None,
        admission: admission(),
        prefill_completed: false,
        origin: PEER,
        age: Duration::from_secs(secs),
    };
    let mut report = MergeReport::default();
    let asked = bed.core.now();
    bed.core.merge_bookings(&key(), PEER, asked, [old("over", 301), old("old", 250), old("young", 1)], &mut report);
    assert_eq!(bed.live(), 2);
    bed.clock.advance(Duration::from_secs(61));
    bed.core.tick();
    let left: Vec<_> = bed.all(Some(PEER)).iter().map(|booking| Arc::clone(&booking.selection_id)).collect();
    assert_eq!((bed.live(), left), (1, vec!["young".into()]), "its maker booked it more than five minutes ago");
    assert_eq!(bed.digest(PEER).bookings, 1);
    assert_eq!(bed.core.ended_bookings().expired, 1);
}

#[test]
fn a_booking_whose_rank_left_comes_back_from_its_maker_alone() {
    let bed = Bed::new();
    bed.send("x", admitted());
    let snapshot = bed.all(Some(PEER));
    bed.core.delete_worker(7).expect("deleted");
    bed.worker(8, "default");
    bed.worker(7, "default");
    assert_eq!(bed.live(), 0);
    let mut report = MergeReport::default();
    bed.core.merge_bookings(&key(), PEER + 1, bed.core.now(), snapshot.clone(), &mut report);
    assert_eq!((report.added, report.missed.len()), (0, 1), "it is told that the rank left");
    bed.core.merge_bookings(&key(), PEER, bed.core.now(), snapshot, &mut report);
    assert_eq!((report.added, bed.live()), (1, 1));
}

/// What `from` shows to a question of `to`, whose answer takes `delay`.
fn ask(to: &Bed, from: &Bed, (from_id, origin): (RouterId, RouterId), delay: Duration) -> MergeReport {
    let (asked, shown) = (to.core.now(), from.all(Some(origin)));
    [to, from].into_iter().for_each(|bed| bed.clock.advance(delay));
    let mut report = MergeReport::default();
    to.core.merge_bookings(&key(), from_id, asked, shown, &mut report);
    report
}

#[test]
fn a_booking_of_a_replica_that_only_sends_events_does_not_outlive_its_end() {
    // A late joiner takes a booking of the reference from a peer, and the reference's end passed it by. The answer took
    // longer than the booking lived.
    const REFERENCE: RouterId = 9;
    let (known, late) = (Bed::new(), Bed::new());
    let both = |by| [&known, &late].into_iter().for_each(|bed| bed.clock.advance(by));
    known.core.mirror_booking(event("x", admitted()), REFERENCE);
    both(Duration::from_millis(5));
    let (asked, shown) = (late.core.now(), known.all(Some(REFERENCE)));
    both(Duration::from_millis(5));
    known.core.mirror_booking(event("x", BookingChange::Freed), REFERENCE);
    both(Duration::from_millis(400));
    let mut report = MergeReport::default();
    late.core.merge_bookings(&key(), PEER, asked, shown, &mut report);
    assert_eq!((report.added, late.live(), known.live()), (1, 1, 0));
    // Beacons show that they differ.
    both(Duration::from_secs(20));
    let report = ask(&known, &late, (PEER, REFERENCE), Duration::from_millis(300));
    assert_eq!((report.added, known.live()), (0, 0), "it is not booked again");
    let [missed] = &report.missed[..] else { panic!("{report:?}") };
    assert!(late.core.catch_up(missed));
    assert_eq!(late.live(), 0);
    assert_eq!(ask(&late, &known, (PEER, REFERENCE), Duration::ZERO), MergeReport::default());
}

#[test]
fn an_end_heard_of_alone_ends_what_another_still_has() {
    // This one's subscription came up between a booking and its end; the other's broke in between.
    const REFERENCE: RouterId = 9;
    let (ends, has) = (Bed::new(), Bed::new());
    let both = |by| [&ends, &has].into_iter().for_each(|bed| bed.clock.advance(by));
    has.core.mirror_booking(event("x", admitted()), REFERENCE);
    both(Duration::from_millis(3));
    assert_eq!(ends.core.mirror_booking(event("x", BookingChange::Freed), REFERENCE), Mirrored::Early);
    both(Duration::from_secs(30));
    let report = ask(&ends, &has, (PEER, REFERENCE), Duration::from_millis(2));
    assert_eq!((report.added, ends.live()), (0, 0));
    assert!(has.core.catch_up(&report.missed[0]));
    assert_eq!(has.live(), 0);
}

#[test]
fn a_reordered_pair_is_not_brought_back_by_an_answer_on_its_way() {
    const REFERENCE: RouterId = 9;
    let (a, b) = (Bed::new(), Bed::new());
    b.core.mirror_booking(event("x", admitted()), REFERENCE);
    let (asked, shown) = (a.core.now(), b.all(None));
    a.clock.advance(Duration::from_millis(1));
    a.core.mirror_booking(event("x", BookingChange::Freed), REFERENCE);
    assert_eq!(a.core.mirror_booking(event("x", admitted()), REFERENCE), Mirrored::EndedEarly);
    let mut report = MergeReport::default();
    a.core.merge_bookings(&key(), PEER, asked, shown, &mut report);
    assert_eq!((report.added, a.live()), (0, 0));
}

#[test]
fn an_id_booked_again_survives_a_late_word_of_its_first_end() {
    let (a, b) = (Bed::new(), Bed::new());
    let both = |by| [&a, &b].into_iter().for_each(|bed| bed.clock.advance(by));
    b.send("x", admitted());
    both(Duration::from_secs(1));
    b.send("x", BookingChange::Freed);
    both(Duration::from_secs(10));
    // PEER books it again, and only this one hears of it.
    a.send("x", admitted());
    both(Duration::from_secs(1));
    let told = MissedCall {
        partition: key(),
        selection_id: "x".into(),
        rank: WorkerWithDpRank::new(7, 1),
        origin: PEER,
        freed: true,
        age: Duration::from_secs(11),
    };
    assert!(!a.core.catch_up(&told), "it is younger");
    let report = ask(&b, &a, (OWN, PEER), Duration::from_millis(5));
    assert_eq!((report.added, report.missed), (1, Vec::new()));
}

#[test]
fn a_slow_answer_does_not_bring_back_what_ended_soon_after_it_was_made() {
    let bed = Bed::new();
    bed.send("x", admitted());
    let (made, snapshot) = (bed.core.now(), |age| BookingSnapshot { age, ..bed.all(Some(PEER))[0].clone() });
    bed.clock.advance(Duration::from_millis(10));
    let asked = bed.core.now();
    let told = snapshot(asked.since(made));
    bed.core.free_reservation("x").expect("live");
    // The answer takes longer than the booking lived.
    bed.clock.advance(Duration::from_millis(500));
    let mut report = MergeReport::default();
    bed.core.merge_bookings(&key(), PEER, asked, vec![told], &mut report);
    assert_eq!((report.added, report.missed.len(), bed.live()), (0, 1, 0));
}

#[test]
fn what_an_early_call_ended_is_not_brought_back_by_a_replica_that_has_it() {
    let (a, b) = (Bed::new(), Bed::new());
    a.reserve("x");
    b.core.free_reservation("x").expect_err("unknown yet");
    for event in std::mem::take(&mut *a.published.0.lock()) {
        assert_eq!(b.core.mirror_booking(event, PEER), Mirrored::EndedEarly);
    }
    let report = repair(&b, &a, PEER, b.core.now());
    assert_eq!((report.added, report.missed.len(), b.live()), (0, 1, 0));
    a.clock.advance(Duration::from_millis(1));
    assert!(a.core.catch_up(&MissedCall { origin: OWN, ..report.missed[0].clone() }));
}

#[test]
fn a_booking_that_passes_through_slow_replicas_does_not_look_younger() {
    let (a, b, c) = (Bed::new(), Bed::new(), Bed::new());
    let wait = |time| [&a, &b, &c].iter().for_each(|bed| bed.clock.advance(Duration::from_millis(time)));
    a.send("x", admitted());
    c.send("x", admitted());
    wait(50);
    c.core.free_reservation("x").expect("live");
    // From a to b, and from b to c, with slow answers.
    for (from, to) in [(&a, &b), (&b, &c)] {
        let (asked, told) = (to.core.now(), from.all(Some(PEER)));
        wait(500);
        to.core.merge_bookings(&key(), PEER + 1, asked, told, &mut MergeReport::default());
    }
    assert_eq!((b.live(), c.live()), (1, 0));
}

#[test]
fn a_call_for_a_booking_whose_rank_left_ends_it_for_good() {
    let bed = Bed::new();
    bed.send("x", admitted());
    let snapshot = bed.all(Some(PEER));
    bed.core.delete_worker(7).expect("deleted");
    bed.worker(8, "default");
    bed.worker(7, "default");
    bed.core.free_reservation("x").expect_err("its rank left");
    let mut report = MergeReport::default();
    bed.core.merge_bookings(&key(), PEER, bed.core.now(), snapshot, &mut report);
    assert_eq!((report.added, report.missed.len()), (0, 1), "its maker is told");
}

#[test]
fn a_message_that_came_late_does_not_make_a_booking_young() {
    let (late, other) = (Bed::new(), Bed::new());
    other.send("x", admitted());
    other.core.free_reservation("x").expect("live");
    [&late, &other].iter().for_each(|bed| bed.clock.advance(Duration::from_secs(2)));
    // Its maker is gone; one replica hears of the booking only now.
    late.send("x", admitted());
    let mut report = MergeReport::default();
    other.core.merge_bookings(&key(), PEER + 1, other.core.now(), late.all(Some(PEER)), &mut report);
    assert_eq!((report.added, report.missed.len()), (0, 1));
    assert!(late.core.catch_up(&report.missed[0]), "and is told that it is over");
}

/// `x` of PEER on rank 1, which the other replica alone has heard of; PEER is gone.
fn heard_of_by_one() -> (Bed, Bed) {
    let (a, b) = (Bed::new(), Bed::new());
    b.send("x", admitted());
    [&a, &b].iter().for_each(|bed| bed.clock.advance(Duration::from_millis(50)));
    (a, b)
}

#[test]
fn a_booking_a_client_repeated_elsewhere_ends_with_the_repetition() {
    let (a, b) = heard_of_by_one();
    // The client had no answer from PEER, which is gone. Here the id gets rank 0.
    a.reserve("x");
    [&a, &b].iter().for_each(|bed| bed.clock.advance(Duration::from_millis(400)));
    a.core.free_reservation("x").expect("live");
    for event in std::mem::take(&mut *a.published.0.lock()) {
        b.core.mirror_booking(event, PEER + 1);
    }
    assert_eq!((a.live(), b.live()), (0, 1), "it has another rank there");
    [&a, &b].iter().for_each(|bed| bed.clock.advance(Duration::from_secs(5)));
    let report = ask(&a, &b, (PEER + 2, PEER), Duration::from_millis(5));
    assert_eq!((report.added, a.live()), (0, 0));
    assert!(b.core.catch_up(&report.missed[0]));
    assert_eq!(b.live(), 0);
}

#[test]
fn a_booking_a_client_repeated_elsewhere_ends_while_the_repetition_lives() {
    let (a, b) = heard_of_by_one();
    a.reserve("x");
    [&a, &b].iter().for_each(|bed| bed.clock.advance(Duration::from_secs(5)));
    let report = ask(&a, &b, (PEER + 2, PEER), Duration::from_millis(5));
    assert!(b.core.catch_up(&report.missed[0]));
    assert_eq!((a.live(), b.live()), (1, 0));
    // A maker that lives knows its own bookings.
    let (a, b) = heard_of_by_one();
    a.reserve("x");
    assert_eq!(ask(&a, &b, (PEER, PEER), Duration::ZERO), MergeReport::default());
}

#[test]
fn an_id_booked_anew_by_another_replica_outlives_the_end_of_its_first_booking() {
    let (a, b) = (Bed::new(), Bed::new());
    a.reserve("x");
    a.core.free_reservation("x").expect("live");
    [&a, &b].iter().for_each(|bed| bed.clock.advance(Duration::from_secs(1)));
    b.send("x", admitted());
    [&a, &b].iter().for_each(|bed| bed.clock.advance(Duration::from_secs(5)));
    let report = ask(&a, &b, (PEER + 2, PEER), Duration::from_millis(5));
    assert_eq!((report.added, report.missed.len()), (1, 0));
}

#[test]
fn a_prefill_that_is_done_here_alone_is_told_to_its_maker() {
    let (a, b) = (Bed::new(), Bed::new());
    a.reserve("x");
    // Its message takes a while.
    a.clock.advance(Duration::from_millis(1));
    for event in std::mem::take(&mut *a.published.0.lock()) {
        b.core.mirror_booking(event, PEER);
    }
    [&a, &b].iter().for_each(|bed| bed.clock.advance(Duration::from_secs(1)));
    b.core.prefill_complete("x").expect("live");
    let report = repair(&b, &a, PEER, b.core.now());
    let [missed] = &report.missed[..] else { panic!("{report:?}") };
    assert!(!missed.freed && a.prefill() > 0);
    assert!(a.core.catch_up(&MissedCall { origin: OWN, ..missed.clone() }));
    assert_eq!((a.prefill(), a.live()), (0, 1));
    assert_eq!(repair(&b, &a, PEER, b.core.now()), MergeReport::default());
}

#[test]
fn bookings_are_shown_by_partition_maker_and_number() {
    let bed = Bed::new();
    bed.worker(8, "g");
    bed.reserve("first");
    bed.reserve("second");
    bed.send("mirrored", admitted());
    let group = PartitionKey::new("m", "g");
    let elsewhere =
        BookingEvent { partition: group.clone(), rank: WorkerWithDpRank::new(8, 0), ..event("elsewhere", admitted()) };
    assert_eq!(bed.core.mirror_booking(elsewhere, PEER), Mirrored::Applied);
    let shown = |key: &PartitionKey, origin, since| -> Vec<String> {
        let parts = (0..).map_while(|part| bed.core.replica_bookings(key, origin, since, part));
        let mut ids: Vec<_> = parts.flatten().map(|booking| booking.selection_id.to_string()).collect();
        ids.sort();
        ids
    };
    assert_eq!(shown(&key(), None, None), ["first", "mirrored", "second"]);
    assert_eq!(shown(&key(), Some(OWN), None), ["first", "second"]);
    assert_eq!(shown(&key(), Some(OWN), Some(1)), ["second"]);
    assert_eq!(shown(&key(), Some(PEER), None), ["mirrored"]);
    assert_eq!(shown(&group, None, None), ["elsewhere"]);
    assert_eq!(shown(&group, Some(OWN), None), [""; 0]);
}

#[test]
fn every_partition_has_digests_of_what_each_replica_made() {
    let bed = Bed::new();
    bed.worker(8, "g");
    bed.send("x", admitted());
    let session = SessionEvent {
        partition: PartitionKey::new("m", "g"),
        session_id: "s".into(),
        target: AffinityTarget { worker_id: 8, dp_rank: Some(0) },
        version: SessionVersion { sequence: 5, writer_id: PEER },
    };
    assert_eq!(bed.core.mirror_session(&session), Mirrored::Applied);
    let [default, group] = &bed.core.partition_digests()[..] else { panic!("two partitions") };
    assert_eq!((&default.partition, &group.partition), (&key(), &PartitionKey::new("m", "g")));
    let [of_default, of_group] = [&default.origins, &group.origins].map(|origins| {
        let [one] = origins[..] else { panic!("{origins:?}") };
        assert_eq!(one.origin, PEER);
        (one.load.bookings, one.sessions != 0)
    });
    assert_eq!((of_default, of_group), ((1, false), (0, true)));
}

#[test]
fn a_report_tells_whether_anything_changed() {
    let report = MergeReport::default;
    assert!(!report().changed());
    assert!(!MergeReport { refused: 1, ..report() }.changed());
    assert!(MergeReport { added: 1, ..report() }.changed());
    assert!(MergeReport { completed: 1, ..report() }.changed());
    assert!(MergeReport { ended: 1, ..report() }.changed());
    assert!(MergeReport { sessions: 1, ..report() }.changed());
    let missed = MissedCall {
        partition: key(),
        selection_id: "x".into(),
        rank: WorkerWithDpRank::new(7, 1),
        origin: PEER,
        freed: true,
        age: Duration::ZERO,
    };
    assert!(MergeReport { missed: vec![missed], ..report() }.changed());
}
