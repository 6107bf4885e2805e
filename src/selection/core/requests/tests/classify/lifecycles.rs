//! What a classifier hears of bookings and of lifecycles that hosts manage.

use super::*;

#[test]
fn queries_and_advisory_requests_are_not_classified() {
    let this = Classified::bookings(Probe::passing());
    this.bed.select(booking("a")).expect("decided");
    this.bed.select(SelectRequest { advisory: true, ..request(prompt(1, 3)) }).expect("decided");
    assert!(this.notes().is_empty());
}

#[test]
fn a_booking_is_a_lifecycle() {
    let this = Classified::bookings(Probe::passing());
    let worker = this.reserve(booking("a")).expect("booked").worker_id;
    assert_eq!(this.notes(), ["classify a".to_owned(), format!("sent a {worker}.0")]);
    this.bed.core.prefill_complete("a").expect("live");
    this.bed.core.prefill_complete("a").expect("live");
    this.bed.core.add_output_block("a", None).expect("live");
    this.bed.core.add_output_block("a", None).expect("live");
    this.bed.core.free_reservation("a").expect("live");
    // 12 tokens of prompt and two blocks of 4.
    let rest = [format!("responding a {worker}.0"), format!("completed a {worker}.0 20")];
    assert_eq!(this.notes()[2..], rest);
    assert_eq!(this.bed.core.classifier_backlog(), (0, 0));
    assert_eq!(this.events(EventOutcome::Delivered), 3);
}

#[test]
fn bookings_that_end_by_themselves_are_aborted() {
    let this = Classified::bookings(Probe::passing());
    let worker = this.reserve(booking("a")).expect("booked").worker_id;
    this.bed.clock.advance(Duration::from_secs(400));
    this.bed.core.tick();
    assert_eq!(this.notes().last(), Some(&format!("aborted a {worker}.0 booking expired")));
    let worker = this.reserve(booking("b")).expect("booked").worker_id;
    this.bed.core.delete_worker(worker).expect("known");
    assert_eq!(this.notes().last(), Some(&format!("aborted b {worker}.0 worker left")));
}

#[test]
fn bookings_that_fail_or_are_dropped_are_aborted() {
    let this = Classified::bookings(Probe::with(|_| Box::pin(std::future::pending())));
    let mut refused = booking("a");
    refused.steering.allowed_worker_ids = Some([9].into());
    refused.steering.pinned_worker = Some(WorkerWithDpRank::new(1, 0));
    this.reserve(refused).expect_err("contradicts itself");
    assert_eq!(this.notes(), ["aborted a - pinned worker 1 is not in allowed worker set"]);
    {
        let mut waits = pin!(this.bed.core.select_and_reserve(booking("b")));
        pending!(waits);
    }
    assert_eq!(this.notes()[1..], ["classify b", "aborted b - -"]);
    assert_eq!(this.counted(ClassifyOutcome::Cancelled), 1);
    this.bed.assert_idle();
}

#[test]
fn another_replicas_calls_are_heard_of_too() {
    let this = Classified::bookings(Probe::passing());
    let answer = this.reserve(booking("a")).expect("booked");
    let rank = WorkerWithDpRank::new(answer.worker_id, answer.dp_rank);
    for change in [BookingChange::PrefillCompleted, BookingChange::Freed] {
        let event = BookingEvent {
            partition: PartitionKey::new("m", "default"),
            block_size: 4,
            selection_id: "a".into(),
            rank,
            lora_name: None,
            change,
        };
        this.bed.core.mirror_booking(event, 7);
    }
    let worker = answer.worker_id;
    assert_eq!(this.notes()[2..], [format!("responding a {worker}.0"), format!("completed a {worker}.0 12")]);
}

#[test]
fn a_retry_of_a_lifecycle_is_not_classified_again() {
    let this = Classified::new(
        LifecycleOwner::Host,
        Probe::changing(|request| request.set_worker_selection_target(WorkerWithDpRank::new(2, 0))),
    );
    let mut lifecycle = this.begin("a");
    assert_eq!(this.reserve(booking("a")).expect("booked").worker_id, 2);
    lifecycle.sent(WorkerWithDpRank::new(2, 0));
    lifecycle.responding();
    this.bed.core.free_reservation("a").expect("live");
    lifecycle.prepare_retry();
    assert_eq!(this.reserve(booking("a")).expect("booked").worker_id, 2);
    lifecycle.sent(WorkerWithDpRank::new(2, 0));
    lifecycle.observe_context_tokens(30);
    lifecycle.observe_output_tokens(5);
    lifecycle.complete();
    lifecycle.abort(None);
    drop(lifecycle);
    let heard = ["classify a", "sent a 2.0", "responding a 2.0", "sent a 2.0", "completed a 2.0 35"];
    assert_eq!(this.notes(), heard);
    assert_eq!(this.counted(ClassifyOutcome::Reused), 1);
}

#[test]
fn a_classification_that_failed_or_was_given_up_is_asked_for_again() {
    let times = std::sync::atomic::AtomicU8::new(0);
    let this = Classified::new(
        LifecycleOwner::Host,
        Probe::with(move |request| {
            let time = times.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Box::pin(async move {
                match time {
                    0 => Err("not yet".into()),
                    1 => std::future::pending().await,
                    _ => Ok(request),
                }
            })
        }),
    );
    let _lifecycle = this.begin("a");
    this.reserve(booking("a")).expect_err("not yet");
    {
        let mut waits = pin!(this.bed.core.select_and_reserve(booking("a")));
        pending!(waits);
    }
    this.reserve(booking("a")).expect("booked");
}

#[test]
fn a_live_id_is_refused_and_a_lifecycle_that_ends_meanwhile_too() {
    let this = Classified::new(LifecycleOwner::Host, Probe::with(|_| Box::pin(std::future::pending())));
    let mut first = this.begin("a");
    let refused = this.bed.core.begin_request_lifecycle("m", "default", "a").expect_err("live");
    let text = "request classifier is already tracking request ID \"a\"";
    assert_eq!(refused, SelectionError::Conflict(text.to_owned()));
    let woken = Arc::new(CountingWaker::default());
    let mut waits = pin!(this.bed.core.select_and_reserve(booking("a")));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    first.abort(None);
    assert!(woken.wakes() > 0, "whoever waits hears of it at once");
    // Registered again meanwhile: it is another lifecycle.
    let _second = this.begin("a");
    let text = "request lifecycle for request ID \"a\" ended before classification completed";
    assert_eq!(now!(waits), Err(SelectionError::Conflict(text.to_owned())));
    assert_eq!(this.counted(ClassifyOutcome::Ended), 1);
}

#[test]
fn an_id_is_not_classified_again_before_its_end_was_heard_of() {
    let this = Classified::bookings(Probe::passing());
    this.reserve(booking("a")).expect("booked");
    this.bed.core.free_reservation("a").expect("live");
    let mut again = pin!(this.bed.core.select_and_reserve(booking("a")));
    pending!(again);
    assert_eq!(this.probe.notes().len(), 1, "only the first one was classified");
    this.drivers.run();
    let worker = now!(again).expect("booked").worker_id;
    let notes = this.notes();
    assert!(notes[2].starts_with("completed a"), "{notes:?}");
    assert_eq!(notes[3..], ["classify a".to_owned(), format!("sent a {worker}.0")]);
}

#[test]
fn a_classifier_goes_with_its_partition_once_all_was_heard() {
    let this = Classified::bookings(Probe::passing());
    this.reserve(booking("a")).expect("booked");
    assert_eq!(this.drivers.run(), 1);
    for worker in [1, 2] {
        this.bed.core.delete_worker(worker).expect("known");
    }
    assert_eq!(this.drivers.run(), 0);
    assert!(this.probe.notes().last().expect("heard").ends_with("worker left"));
}

#[test]
fn the_backlog_is_that_of_all_partitions() {
    let this = Classified::new(LifecycleOwner::Host, Probe::with(|request| Box::pin(async { Ok(request) })));
    this.bed.worker(3, |worker| worker.routing_group = "g".to_owned());
    let _first = this.begin("a");
    let begun = this.bed.core.begin_request_lifecycle("m", "g", "b").expect("accepted").expect("classified");
    assert_eq!(this.bed.core.classifier_backlog().0, 2);
    drop(begun);
    assert!(this.bed.core.classifier_backlog().1 > 0, "its end waits to be heard of");
    this.drivers.run();
    assert_eq!(this.bed.core.classifier_backlog(), (1, 0));
}
