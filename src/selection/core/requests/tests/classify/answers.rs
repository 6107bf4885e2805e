//! What a classifier sees, and what its answers do.

use super::*;

#[test]
fn what_a_classifier_sees() {
    let this = Classified::bookings(Probe::with(|request| {
        assert_eq!(request.request_id(), Some("b"));
        assert_eq!((request.input_tokens(), request.progress().context_tokens()), (12, 12));
        // Two blocks of the prompt are cached since the booking before.
        assert_eq!(request.scheduling_cost_tokens(), 4);
        assert_eq!((request.policy_class(), request.due_at()), (Some("default"), None));
        assert_eq!(request.sequence_hashes().map(<[u64]>::len), Some(3));
        assert_eq!(request.session_context().map(SessionContext::session_id), Some("s"));
        assert_eq!(request.pinned_worker(), Some(WorkerWithDpRank::new(1, 0)));
        Box::pin(async { Ok(request) })
    }));
    // Unclassified, since a named rank is asked for.
    let named = named("a", 1, prompt(1, 2));
    this.bed.book(named).expect("booked");
    let mut seen = booking("b");
    seen.session_id = Some("s".to_owned());
    seen.steering.policy_class = Some("default".to_owned());
    seen.steering.pinned_worker = Some(WorkerWithDpRank::new(1, 0));
    this.reserve(seen).expect("booked");
}

#[test]
fn the_cost_is_what_the_best_rank_that_may_take_the_request_must_compute() {
    let costs = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&costs);
    let this = Classified::bookings(Probe::with(move |request| {
        seen.lock().expect("no panic").push(request.scheduling_cost_tokens());
        Box::pin(async { Ok(request) })
    }));
    for (from, id) in [(1, "pinned"), (50, "free")] {
        this.bed.book(named(&format!("{id} one"), 1, prompt(from, 1))).expect("booked");
        this.bed.book(named(&format!("{id} two"), 2, prompt(from, 2))).expect("booked");
    }
    for (id, from, worker) in [("a", 1, Some(1)), ("b", 1, Some(2)), ("c", 50, None)] {
        let mut request = super::super::booking(id, prompt(from, 3));
        request.steering.pinned_worker = worker.map(|worker| WorkerWithDpRank::new(worker, 0));
        this.reserve(request).expect("booked");
    }
    assert_eq!(*costs.lock().expect("no panic"), [8, 4, 4]);
}

#[test]
fn a_target_moves_no_pin_and_can_be_taken_away() {
    let at = WorkerWithDpRank::new(2, 0);
    let this = Classified::bookings(Probe::changing(move |r| r.set_worker_selection_target(at)));
    let mut pinned = booking("a");
    pinned.steering.pinned_worker = Some(WorkerWithDpRank::new(1, 0));
    assert_eq!(this.reserve(pinned).expect("booked").worker_id, 1);

    let this = Classified::bookings(Probe::changing(ClassifyRequest::clear_worker_selection_target));
    let named = named("load", 1, prompt(50, 40));
    this.bed.book(named).expect("booked");
    let mut wishing = booking("a");
    wishing.steering.affinity_target = Some(super::super::AffinityTarget::new(1, None));
    assert_eq!(this.reserve(wishing).expect("booked").worker_id, 2, "the other one is idle");
}

#[test]
fn a_bound_session_stays_where_it_is() {
    let bed = Bed::with_workers(super::super::sessions(60), 2);
    let probe = Probe::changing(|request| {
        let at = if request.request_id() == Some("a") { 1 } else { 2 };
        request.set_worker_selection_target(WorkerWithDpRank::new(at, 0));
    });
    let setup = ClassifierSetup {
        factory: probe.factory(),
        runtime: Arc::new(Drivers::default()),
        limits: ClassifierLimits::default(),
        owner: LifecycleOwner::Booking,
    };
    assert!(bed.core.install_request_classifier(setup));
    for id in ["a", "b"] {
        let request = SelectRequest { session_id: Some("s".to_owned()), ..booking(id) };
        assert_eq!(bed.reserve(request).expect("booked").worker_id, 1);
    }
}

type Change = fn(&mut ClassifyRequest);

#[test]
fn what_cannot_be_is_an_error_of_the_request() {
    let cases: [(Change, &str); 2] = [
        (|r| r.set_policy_class("x"), "invalid request classification metadata: unknown policy class \"x\""),
        (
            |r| r.set_scheduling_cost_tokens(0),
            "invalid request classification metadata: scheduling cost must be greater than zero",
        ),
    ];
    for (change, text) in cases {
        let this = Classified::bookings(Probe::changing(change));
        assert_eq!(this.reserve(booking("a")), Err(SelectionError::Classifier(text.to_owned())));
        assert_eq!(this.counted(ClassifyOutcome::Invalid), 1);
        assert_eq!(this.notes()[1], format!("aborted a - {text}"));
        this.bed.assert_idle();
    }
}

#[test]
fn classes_of_the_models_profile_may_be_set() {
    let profile = PolicyProfile { default_family: "chat".into(), ..PolicyProfile::synthetic(None, Default::default()) };
    let profiles = PolicyProfiles { root: Some(Arc::new(profile)), ..PolicyProfiles::default() };
    let bed = Bed::with_workers(approximate(|config| config.profiles = profiles), 1);
    let probe = Probe::changing(|request| request.set_policy_class("default"));
    let setup = ClassifierSetup {
        factory: probe.factory(),
        runtime: Arc::new(Drivers::default()),
        limits: ClassifierLimits::default(),
        owner: LifecycleOwner::Booking,
    };
    assert!(bed.core.install_request_classifier(setup));
    bed.reserve(booking("a")).expect("the class is there");
}

/// A core of one rank whose class `tight` has a threshold, with a classifier.
fn with_tight_class(probe: &Probe) -> Bed {
    use crate::selection::queue::profile::PolicyClass;
    let mut profile = PolicyProfile::synthetic(None, Default::default());
    let synthetic = profile.classes[0].clone();
    profile.classes.push(PolicyClass {
        name: "tight".into(),
        cell: None,
        prefill_busy_threshold: Some(0),
        ..synthetic
    });
    let profiles = PolicyProfiles { root: Some(Arc::new(profile)), ..PolicyProfiles::default() };
    let bed = Bed::new(approximate(|config| config.profiles = profiles));
    bed.worker(1, |worker| worker.fields.max_num_batched_tokens = Some(100));
    let setup = ClassifierSetup {
        factory: probe.factory(),
        runtime: Arc::new(Drivers::default()),
        limits: ClassifierLimits::default(),
        owner: LifecycleOwner::Booking,
    };
    assert!(bed.core.install_request_classifier(setup));
    bed
}

#[test]
fn a_request_queues_in_the_class_it_is_given() {
    let bed = with_tight_class(&Probe::changing(|request| {
        if request.request_id() == Some("given") {
            request.set_policy_class("tight");
        }
    }));
    bed.reserve(booking("busy")).expect("its class has no threshold");
    let mut given = pin!(bed.core.select_and_reserve(booking("given")));
    pending!(given);
    let mut named = booking("named");
    named.steering.policy_class = Some("tight".to_owned());
    let mut named = pin!(bed.core.select_and_reserve(named));
    pending!(named);
}

#[test]
fn a_request_that_is_due_when_it_comes_is_late() {
    let bed = with_tight_class(&Probe::changing(|request| request.set_due_at(request.ingress_at())));
    assert_eq!(bed.reserve(booking("a")), Err(SelectionError::DeadlineExceeded));
    bed.assert_idle();
}

/// One worker of 40 tokens, and programs of 12 each.
#[test]
fn programs_wait_while_their_workers_are_full() {
    let bed = Bed::new(approximate(|_| {}));
    bed.worker(1, |worker| worker.fields.total_kv_blocks = Some(10));
    let parameters = serde_value::to_value(std::collections::BTreeMap::from([("buffer_per_program", 0)]));
    let classifier = RequestClassifierConfig {
        classifier_type: "thunderagent".to_owned(),
        parameters: RequestClassifierParameters::from_value(parameters.expect("a mapping")),
    };
    let mut registry = RouterPluginRegistry::default();
    register_classifiers(&mut registry).expect("the name is free");
    let configured = approximate(|config| config.request_classifier = Some(Arc::new(classifier)));
    let drivers = Arc::new(Drivers::default());
    let setup = ClassifierSetup {
        factory: registry.resolve_request_classifier(&configured).expect("linked").expect("configured"),
        runtime: drivers.clone(),
        limits: ClassifierLimits::default(),
        owner: LifecycleOwner::Booking,
    };
    assert!(bed.core.install_request_classifier(setup));
    let turn = |id: &str| SelectRequest { session_id: Some(format!("of {id}")), ..booking(id) };
    for id in ["a", "b", "c"] {
        bed.reserve(turn(id)).expect("there is room");
        drivers.run();
        bed.clock.advance(Duration::from_millis(200));
    }
    bed.reserve(booking("no program")).expect("it has no session");
    let mut waits = pin!(bed.core.select_and_reserve(turn("d")));
    pending!(waits);
    let mut hurried = turn("e");
    hurried.steering.deadline_ms = Some(60_000);
    let mut hurried = pin!(bed.core.select_and_reserve(hurried));
    pending!(hurried);
    {
        let mut leaves = pin!(bed.core.select_and_reserve(turn("f")));
        pending!(leaves);
    }
    // Longer than other classifiers may take.
    bed.clock.advance(Duration::from_secs(60));
    bed.core.tick();
    pending!(waits);
    assert_eq!(now!(hurried), Err(SelectionError::DeadlineExceeded));
    bed.core.free_reservation("a").expect("live");
    drivers.run();
    bed.clock.advance(Duration::from_secs(10));
    bed.core.tick();
    assert_eq!(now!(waits).expect("a is done").worker_id, 1);
    for id in ["b", "c", "d", "no program"] {
        bed.core.free_reservation(id).expect("live");
    }
    drivers.run();
    assert_eq!(bed.core.classifier_backlog(), (0, 0));
}

#[test]
fn due_times_order_the_queue_and_waiting_for_a_classifier_costs_no_place() {
    let opened = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_open = Arc::clone(&opened);
    let probe = Probe::with(move |mut request| {
        if request.request_id() == Some("due") {
            request.set_due_at(request.ingress_at() + Duration::from_secs(60));
        }
        let (held, is_open) = (request.request_id() == Some("first"), Arc::clone(&is_open));
        Box::pin(async move {
            let opens = |_: &mut Context<'_>| match held && !is_open.load(std::sync::atomic::Ordering::SeqCst) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            };
            std::future::poll_fn(opens).await;
            Ok(request)
        })
    });
    // One rank, busy with a single prefill.
    let bed = Bed::new(approximate(|config| config.queue_threshold = Some(0.0)));
    bed.worker(1, |worker| worker.fields.max_num_batched_tokens = Some(100));
    let setup = ClassifierSetup {
        factory: probe.factory(),
        runtime: Arc::new(Drivers::default()),
        limits: ClassifierLimits::default(),
        owner: LifecycleOwner::Booking,
    };
    assert!(bed.core.install_request_classifier(setup));
    bed.reserve(booking("busy")).expect("booked");
    let mut first = pin!(bed.core.select_and_reserve(booking("first")));
    pending!(first);
    bed.clock.advance(Duration::from_secs(1));
    let mut second = pin!(bed.core.select_and_reserve(super::super::booking("second", prompt(100, 3))));
    pending!(second);
    let mut due = pin!(bed.core.select_and_reserve(super::super::booking("due", prompt(200, 3))));
    pending!(due);
    // It queues last, and came first.
    opened.store(true, std::sync::atomic::Ordering::SeqCst);
    pending!(first);
    bed.core.prefill_complete("busy").expect("live");
    pending!(first);
    pending!(second);
    now!(due).expect("it is due");
    bed.core.prefill_complete("due").expect("live");
    pending!(second);
    now!(first).expect("it came before the other one");
    bed.core.prefill_complete("first").expect("live");
    now!(second).expect("nobody else waits");
}
