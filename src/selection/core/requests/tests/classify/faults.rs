//! What a classifier's faults and limits cost, and whom.

use super::*;

#[test]
fn another_request_handed_back_is_an_error_of_both() {
    let kept: Arc<parking_lot::Mutex<Option<ClassifyRequest>>> = Arc::default();
    let this = Classified::bookings(Probe::with(move |request| {
        let answer = kept.lock().replace(request);
        Box::pin(async move {
            match answer {
                Some(other) => Ok(other),
                None => std::future::pending().await,
            }
        })
    }));
    let mut first = pin!(this.bed.core.select_and_reserve(booking("a")));
    pending!(first);
    let text = "classifier replaced the logical request".to_owned();
    assert_eq!(this.reserve(booking("b")), Err(SelectionError::Classifier(text)));
    assert_eq!(this.counted(ClassifyOutcome::Replaced), 1);
}

#[test]
fn errors_and_panics_cost_their_request_alone() {
    type Fault = fn(ClassifyRequest) -> crate::selection::policy::classifier::ClassifyFuture;
    let faults: [(Fault, &str, ClassifyOutcome); 3] = [
        (|_| Box::pin(async { Err("secret".into()) }), "request classifier failed: secret", ClassifyOutcome::Error),
        (|_| panic!("at once"), "request classifier panicked: at once", ClassifyOutcome::Panic),
        (
            |_| Box::pin(async { panic!("in its future") }),
            "request classifier panicked: in its future",
            ClassifyOutcome::Panic,
        ),
    ];
    for (fault, text, outcome) in faults {
        let this = Classified::bookings(Probe::with(move |request| match request.request_id() {
            Some("bad") => fault(request),
            _ => Box::pin(async { Ok(request) }),
        }));
        assert_eq!(this.reserve(booking("bad")), Err(SelectionError::Classifier(text.to_owned())));
        this.reserve(booking("good")).expect("the classifier goes on");
        assert_eq!(this.counted(outcome), 1);
        assert_eq!(this.notes().iter().filter(|note| note.starts_with("aborted bad -")).count(), 1);
    }
}

#[test]
fn what_fails_at_every_request_is_not_logged_at_every_request() {
    let over_sent = |event: &ClassifyEvent| match event {
        ClassifyEvent::Sent { .. } => panic!("over an event"),
        _ => false,
    };
    let failing = Probe::with(|_| Box::pin(async { Err("always".into()) }));
    for (probe, booked) in [(failing, false), (Probe::passing().stuck_over(over_sent), true)] {
        let this = Classified::bookings(probe);
        let lines = Lines::of(|| {
            for number in 0..100 {
                let reserved = this.reserve(booking(&format!("r{number}")));
                assert_eq!(reserved.is_ok(), booked);
                this.drivers.run();
            }
        });
        assert_eq!(lines, 7, "the 1st, 2nd, 4th .. 64th");
    }
}

#[test]
fn a_panic_over_an_event_costs_that_event_alone() {
    let over_sent = |event: &ClassifyEvent| match event {
        ClassifyEvent::Sent { .. } => panic!("over an event"),
        _ => false,
    };
    let this = Classified::bookings(Probe::passing().stuck_over(over_sent));
    this.reserve(booking("a")).expect("booked");
    this.bed.core.free_reservation("a").expect("live");
    assert_eq!(this.notes().len(), 3, "{:?}", this.notes());
    assert_eq!((this.events(EventOutcome::Panicked), this.events(EventOutcome::Delivered)), (1, 1));
    this.reserve(booking("b")).expect("the classifier goes on");
}

#[test]
fn a_factory_that_panics_is_asked_again() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (probe, is_broken) = (Probe::passing(), Arc::clone(&broken));
    let made = probe.clone();
    let setup = ClassifierSetup {
        factory: Arc::new(move |context| {
            assert_eq!((context.block_size(), context.workers().len()), (4, 1));
            assert!(!is_broken.load(std::sync::atomic::Ordering::SeqCst), "not yet");
            Box::new(made.clone())
        }),
        runtime: Arc::new(Drivers::default()),
        limits: ClassifierLimits::default(),
        owner: LifecycleOwner::Booking,
    };
    assert!(bed.core.install_request_classifier(setup));
    let failed = bed.reserve(booking("a")).expect_err("no classifier");
    assert_eq!(failed, SelectionError::Classifier("request classifier factory panicked: not yet".to_owned()));
    broken.store(false, std::sync::atomic::Ordering::SeqCst);
    bed.reserve(booking("a")).expect("booked");
}

#[test]
fn a_classifier_has_so_much_time() {
    let this = Classified::bookings(Probe::with(|_| Box::pin(std::future::pending())));
    let woken = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waits = pin!(this.bed.core.select_and_reserve(booking("a")));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    this.bed.clock.advance(Duration::from_millis(4_900));
    this.bed.core.tick();
    assert_eq!(woken.wakes(), 0, "nothing is overdue");
    this.bed.clock.advance(Duration::from_millis(100));
    this.bed.core.tick();
    assert_eq!(woken.wakes(), 1);
    let text = "request classifier did not answer within 5 s".to_owned();
    assert_eq!(now!(waits), Err(SelectionError::Unavailable(text)));
    // The request's own deadline comes first.
    let mut hurried = booking("b");
    hurried.steering.deadline_ms = Some(1_000);
    let mut waits = pin!(this.bed.core.select_and_reserve(hurried));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    this.bed.clock.advance(Duration::from_secs(1));
    this.bed.core.tick();
    assert_eq!(now!(waits), Err(SelectionError::DeadlineExceeded));
    assert_eq!((this.counted(ClassifyOutcome::TimedOut), this.counted(ClassifyOutcome::Deadline)), (1, 1));
    this.bed.assert_idle();
}

#[test]
fn a_classifier_stuck_over_an_event_holds_up_nobody_else() {
    let this = Classified::bookings(Probe::passing().stuck_over(|event| matches!(event, ClassifyEvent::Sent { .. })));
    this.reserve(booking("a")).expect("booked");
    this.drivers.run();
    this.bed.select(booking("q")).expect("queries pass");
    let named = named("n", 1, prompt(1, 2));
    this.bed.book(named).expect("named ranks pass");
    this.bed.core.prefill_complete("a").expect("lifecycle calls pass");
    let mut waits = pin!(this.bed.core.select_and_reserve(booking("b")));
    pending!(waits);
    this.bed.clock.advance(Duration::from_secs(4));
    this.bed.core.tick();
    pending!(waits);
    // Another one later, so that it is still waiting when the event's time is over.
    let mut later = pin!(this.bed.core.select_and_reserve(booking("c")));
    this.bed.clock.advance(Duration::from_secs(24));
    this.bed.core.tick();
    assert!(matches!(now!(waits), Err(SelectionError::Unavailable(_))));
    pending!(later);
    this.bed.clock.advance(Duration::from_secs(2));
    this.bed.core.tick();
    this.drivers.run();
    assert_eq!(this.events(EventOutcome::TimedOut), 1);
    assert_eq!(this.events(EventOutcome::Delivered), 2, "the event after it, and the end of b");
    now!(later).expect("booked");
}

#[test]
fn events_beyond_the_limit_are_dropped_and_last_ones_never() {
    let limits = ClassifierLimits { max_events: 2, ..ClassifierLimits::default() };
    let this = Classified::limited(LifecycleOwner::Booking, Probe::passing(), limits);
    for id in ["a", "b", "c", "d"] {
        this.reserve(booking(id)).expect("booked");
        this.bed.core.prefill_complete(id).expect("live");
        this.bed.core.free_reservation(id).expect("live");
    }
    let notes = this.notes();
    let heard = |what: &str| notes.iter().filter(|note| note.starts_with(what)).count();
    assert_eq!((heard("sent"), heard("responding"), heard("completed")), (4, 2, 4), "{notes:?}");
    assert_eq!(this.events(EventOutcome::DroppedFull), 2);
}

#[test]
fn so_many_requests_are_tracked_and_no_more() {
    let limits = ClassifierLimits { max_requests: 2, ..ClassifierLimits::default() };
    let this = Classified::limited(LifecycleOwner::Booking, Probe::passing(), limits);
    this.reserve(booking("a")).expect("booked");
    this.reserve(booking("b")).expect("booked");
    let text = "request classifier tracks 2 requests, as many as it may".to_owned();
    assert_eq!(this.reserve(booking("c")), Err(SelectionError::Unavailable(text)));
    this.bed.core.free_reservation("a").expect("live");
    this.drivers.run();
    this.reserve(booking("c")).expect("there is room again");
    assert_eq!(this.counted(ClassifyOutcome::Full), 1);
}

#[test]
fn shutdown_refuses_who_waits_and_interrupts_what_is_stuck() {
    let this = Classified::bookings(
        Probe::with(|request| match request.request_id() {
            Some("waits") => Box::pin(std::future::pending()),
            _ => Box::pin(async { Ok(request) }),
        })
        .stuck_over(|_| true),
    );
    let mut waits = pin!(this.bed.core.select_and_reserve(booking("waits")));
    pending!(waits);
    this.reserve(booking("a")).expect("booked");
    assert_eq!(this.drivers.run(), 1);
    this.bed.core.begin_shutdown();
    assert_eq!(now!(waits), Err(SelectionError::Unavailable("endpoint subscriber shutdown".to_owned())));
    assert_eq!(this.drivers.run(), 0, "the driver ends");
    this.bed.core.free_reservation("a").expect("live");
    assert_eq!(
        this.events(EventOutcome::DroppedShutdown),
        3,
        "the stuck one, the end of the refused one, the end of a"
    );
    assert_eq!(this.bed.core.classifier_backlog(), (0, 0));
}

#[test]
fn closed_queues_refuse_who_waits_for_an_answer_and_who_would() {
    let this = Classified::bookings(Probe::with(|request| match request.request_id() {
        Some("at_once") => Box::pin(async { Ok(request) }),
        _ => Box::pin(std::future::pending()),
    }));
    let mut waits = pin!(this.bed.core.select_and_reserve(booking("waits")));
    let woken = Arc::new(CountingWaker::default());
    assert!(waits.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    this.bed.core.close_queues();
    assert_eq!(woken.wakes(), 1);
    let refused = Err(SelectionError::Unavailable("endpoint subscriber shutdown".to_owned()));
    assert_eq!(now!(waits), refused);
    assert_eq!(this.reserve(booking("would_wait")), refused);
    this.reserve(booking("at_once")).expect("booked");
    this.bed.core.free_reservation("at_once").expect("live");
    assert_eq!(this.notes().iter().filter(|note| note.starts_with("completed at_once")).count(), 1, "events go on");
    assert_eq!(this.counted(ClassifyOutcome::Shutdown), 2);
    this.bed.assert_idle();
}
