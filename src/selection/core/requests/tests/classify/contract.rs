//! The classifier cases of the plugin contract, by their names.

use super::*;

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
