//! Request classifiers at work in a core: what they see and set, what they hear, and what their faults cost. Tests that
//! begin with `classifier_` are the classifier cases of the plugin contract.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{Bed, approximate, named, prompt, request};
use crate::selection::{
    core::{ClassifierSetup, LifecycleOwner},
    error::SelectionError,
    identity::{PartitionKey, WorkerWithDpRank},
    policy::classifier::{
        ClassifierLimits, ClassifyEvent, ClassifyRequest,
        config::{RequestClassifierConfig, RequestClassifierParameters},
        counts::{ClassifyOutcome, EventOutcome},
        lifecycle::RequestLifecycle,
        testing::{Drivers, Probe},
    },
    policy::{builtin::register_classifiers, registry::RouterPluginRegistry},
    queue::profile::{PolicyProfile, PolicyProfiles},
    replication::{BookingChange, BookingEvent},
    request::{SelectRequest, SelectResponse, SessionContext},
    testing::CountingWaker,
};

/// A bed with two workers whose requests a probe classifies.
struct Classified {
    bed: Bed,
    probe: Probe,
    drivers: Arc<Drivers>,
}

impl Classified {
    fn new(owner: LifecycleOwner, probe: Probe) -> Self {
        Self::limited(owner, probe, ClassifierLimits::default())
    }

    fn limited(owner: LifecycleOwner, probe: Probe, limits: ClassifierLimits) -> Self {
        let bed = Bed::with_workers(approximate(|_| {}), 2);
        let drivers = Arc::new(Drivers::default());
        let setup = ClassifierSetup { factory: probe.factory(), runtime: drivers.clone(), limits, owner };
        assert!(bed.core.install_request_classifier(setup));
        Self { bed, probe, drivers }
    }

    fn bookings(probe: Probe) -> Self {
        Self::new(LifecycleOwner::Booking, probe)
    }

    fn begin(&self, id: &str) -> RequestLifecycle {
        self.bed.core.begin_request_lifecycle("m", "default", id).expect("accepted").expect("classified")
    }

    fn reserve(&self, request: SelectRequest) -> Result<SelectResponse, SelectionError> {
        self.bed.reserve(request)
    }

    /// Events are delivered; then what was noted.
    fn notes(&self) -> Vec<String> {
        self.drivers.run();
        self.probe.notes()
    }

    fn counted(&self, outcome: ClassifyOutcome) -> u64 {
        self.bed.core.classifier_counts().expect("installed").classifications(outcome)
    }

    fn events(&self, outcome: EventOutcome) -> u64 {
        self.bed.core.classifier_counts().expect("installed").events(outcome)
    }
}

/// A booking of three blocks of four.
fn booking(id: &str) -> SelectRequest {
    super::booking(id, prompt(1, 3))
}

/// A future polled once, which must wait.
macro_rules! pending {
    ($future:expr) => {
        assert!($future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it must wait")
    };
}

macro_rules! now {
    ($future:expr) => {
        match $future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it must not wait"),
        }
    };
}

#[test]
fn classifier_install_twice() {
    let this = Classified::bookings(Probe::passing());
    let setup = ClassifierSetup {
        factory: this.probe.factory(),
        runtime: Arc::new(Drivers::default()),
        limits: ClassifierLimits::default(),
        owner: LifecycleOwner::Host,
    };
    assert!(!this.bed.core.install_request_classifier(setup));
}

#[test]
fn classifier_past_deadline() {
    let past = |request: &mut ClassifyRequest| request.set_due_at(request.ingress_at() - Duration::from_millis(1));
    let this = Classified::new(LifecycleOwner::Host, Probe::changing(past));
    this.bed.clock.advance(Duration::from_secs(1));
    let _lifecycle = this.begin("a");
    let refused = this.reserve(booking("a")).expect_err("late");
    assert_eq!(refused.to_string(), "request deadline exceeded");
    assert_eq!(refused, SelectionError::DeadlineExceeded);
    this.bed.assert_idle();
}

#[test]
fn classifier_target() {
    let at = WorkerWithDpRank::new(2, 1);
    let this = Classified::new(LifecycleOwner::Host, Probe::changing(move |r| r.set_worker_selection_target(at)));
    this.bed.worker(2, |worker| worker.fields.data_parallel_size = Some(2));
    for id in ["a", "b", "c"] {
        let _lifecycle = this.begin(id);
        let answer = this.reserve(booking(id)).expect("booked");
        assert_eq!((answer.worker_id, answer.dp_rank), (2, 1));
    }
}

#[test]
fn classifier_unregistered() {
    let this = Classified::new(LifecycleOwner::Host, Probe::passing());
    this.reserve(booking("a")).expect("booked");
    let _other = this.begin("other");
    this.reserve(booking("b")).expect("booked");
    this.bed.select(booking("c")).expect("decided");
    assert!(this.notes().is_empty(), "{:?}", this.notes());
}

#[test]
fn classifier_drop() {
    let this = Classified::new(LifecycleOwner::Host, Probe::passing());
    drop(this.begin("a"));
    assert_eq!(this.notes(), ["aborted a - -"]);
}

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
    wishing.steering.affinity_target = Some(super::AffinityTarget::new(1, None));
    assert_eq!(this.reserve(wishing).expect("booked").worker_id, 2, "the other one is idle");
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
fn what_cannot_be_is_an_error_of_the_request() {
    let cases: [(fn(&mut ClassifyRequest), &str); 2] = [
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
fn a_bound_session_stays_where_it_is() {
    let bed = Bed::with_workers(super::sessions(60), 2);
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
