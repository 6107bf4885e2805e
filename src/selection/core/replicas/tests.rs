//! Events of other replicas, and taking over their state.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::*;
use crate::selection::{
    Clock, Moment, PartitionKey, SelectionConfig,
    core::PartitionFilter,
    ingest::NoEventSources,
    replication::{LoadDigest, MAX_MIRRORED_WORDS, ReplicaOutlet, Replication},
    request::{AffinityTarget, PromptInput, ReservationRequest},
    sessions::SessionVersion,
    testing::{ManualClock, ready},
    worker::{WorkerFields, WorkerRequest},
};

/// Keeps what is published.
#[derive(Default)]
struct Published(Mutex<Vec<BookingEvent>>);

impl ReplicaOutlet for Published {
    fn booking(&self, event: BookingEvent) -> u64 {
        let mut events = self.0.lock();
        events.push(event);
        events.len() as u64
    }

    fn session(&self, _: SessionEvent) {}
}

struct Bed {
    core: Arc<SelectionCore>,
    clock: Arc<ManualClock>,
    published: Arc<Published>,
}

const OWN: RouterId = 1;
const PEER: RouterId = 2;

fn key() -> PartitionKey {
    PartitionKey::new("m", "default")
}

impl Bed {
    fn new() -> Self {
        let config = SelectionConfig {
            session_affinity_ttl: Some(Duration::from_secs(60)),
            use_kv_events: false,
            ..SelectionConfig::default()
        };
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000));
        let core = SelectionCore::try_new(config, clock.clone(), Arc::new(NoEventSources)).expect("valid");
        let published = Arc::new(Published::default());
        assert!(core.replicate(Replication { router_id: OWN, outlet: published.clone() }));
        let bed = Self { core, clock, published };
        bed.worker(7, "default");
        bed
    }

    /// A worker of two ranks.
    fn worker(&self, worker_id: u64, routing_group: &str) {
        let fields = WorkerFields {
            endpoint: Some("http://w".to_owned()),
            block_size: Some(16),
            data_parallel_size: Some(2),
            ..WorkerFields::default()
        };
        let (model_name, routing_group) = ("m".to_owned(), routing_group.to_owned());
        self.core.upsert_worker(WorkerRequest { worker_id, model_name, routing_group, fields }).expect("valid");
    }

    fn send(&self, id: &str, change: BookingChange) -> Mirrored {
        self.core.mirror_booking(event(id, change), PEER)
    }

    fn live(&self) -> u64 {
        self.core.loads(&PartitionFilter::default()).iter().flat_map(|p| &p.loads).map(|r| r.active_requests).sum()
    }

    fn prefill(&self) -> u64 {
        let loads = self.core.loads(&PartitionFilter::default());
        loads.iter().flat_map(|p| &p.loads).map(|r| r.potential_prefill_tokens).sum()
    }

    fn reserve(&self, id: &str) {
        let request = ReservationRequest {
            model_name: "m".to_owned(),
            routing_group: "default".to_owned(),
            selection_id: id.to_owned(),
            worker_id: Some(7),
            prompt: PromptInput { sequence_hashes: Some(vec![1, 2]), isl_tokens: Some(32), ..PromptInput::default() },
            effective_prefill_tokens: Some(32),
            ..ReservationRequest::default()
        };
        ready(self.core.create_reservation(request)).expect("booked");
    }

    fn digest(&self, origin: RouterId) -> LoadDigest {
        let digests = self.core.partition_digest(&key()).expect("exists");
        digests.origins.iter().find(|digest| digest.origin == origin).map(|d| d.load).unwrap_or_default()
    }

    fn all(&self, origin: Option<RouterId>) -> Vec<BookingSnapshot> {
        (0..).map_while(|part| self.core.replica_bookings(&key(), origin, None, part)).flatten().collect()
    }

    fn changes(&self) -> Vec<(String, BookingChange)> {
        let events = self.published.0.lock();
        let plain = |event: &BookingEvent| (event.selection_id.to_string(), event.change.clone());
        events.iter().map(plain).filter(|(_, change)| !matches!(change, BookingChange::Admitted(_))).collect()
    }
}

fn admission() -> Admission {
    Admission {
        sequence: [1, 2].into(),
        track_prefill_tokens: true,
        expected_output_tokens: None,
        prefill: Some(PrefillHint { tokens: 32, duration: None }),
    }
}

fn admitted() -> BookingChange {
    BookingChange::Admitted(admission())
}

fn event(id: &str, change: BookingChange) -> BookingEvent {
    BookingEvent {
        partition: key(),
        block_size: 16,
        selection_id: id.into(),
        rank: WorkerWithDpRank::new(7, 1),
        lora_name: None,
        change,
    }
}

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
    let held = Held { facts: Arc::new(facts), lease: None };
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
    bed.core.free_reservation("x").expect("the first");
    assert_eq!(bed.live(), 1);
    bed.core.free_reservation("x").expect_err("the second has no name");
    assert_eq!(bed.core.mirror_booking(other(BookingChange::Freed), PEER), Mirrored::Applied);
    assert_eq!(bed.live(), 0);
}

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
    a.core.prefill_complete("kept").expect("live");
    a.core.free_reservation("gone").expect("live");
    b.clock.advance(Duration::from_secs(1));
    let report = repair(&b, &a, PEER, b.core.now());
    assert_eq!((report.added, report.completed, report.ended), (1, 1, 1));
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
    assert_eq!(bed.live(), 1, "its maker booked it more than five minutes ago");
    assert_eq!(bed.digest(PEER).bookings, 1);
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

#[test]
fn a_call_that_comes_while_a_mirror_is_being_made_is_not_lost() {
    let bed = Bed::new();
    let partition = bed.core.partition("m", "default").expect("exists");
    let rank = WorkerWithDpRank::new(7, 0);
    let install = |facts: BookingFacts| {
        let claim = bed.core.bookings.mirror("x".into(), &partition).expect("free");
        // No booking is found yet, though its mirror has been looked for early calls already.
        bed.core.free_reservation("x").expect_err("unknown");
        claim.install(Held { facts: Arc::new(facts), lease: None }).expect("installed");
    };
    let now = bed.core.now();
    let facts = || BookingFacts::new("x".into(), rank, None, admission(), (now, now), PEER);
    install(facts().mirrored());
    assert!(bed.core.bookings.take_early("x", rank, now).expect("remembered").freed);
    bed.core.bookings.take("x", now).expect("live");
    install(facts());
    assert_eq!(bed.core.bookings.take_early("x", rank, now), None, "a booking made here has its own calls alone");
}
