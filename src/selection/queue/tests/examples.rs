//! Worked examples of the specification, and what is ours.

use super::*;

fn pinned(worker_id: u64) -> impl FnOnce(&mut Steering) {
    move |steering| steering.pinned_worker = Some(WorkerWithDpRank::new(worker_id, 0))
}

fn tainted(taint: &str) -> impl FnOnce(&mut Steering) {
    move |steering| {
        steering.routing_constraints =
            RoutingConstraints { required_taints: [taint.to_owned()].into(), ..RoutingConstraints::default() };
    }
}

fn rejection(outcome: Result<bool, SelectionError>) -> (&'static str, u64, u64) {
    match outcome {
        Err(SelectionError::QueueRejected(rejection)) => (rejection.limit_kind, rejection.current, rejection.limit),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn half_is_free_and_a_token_more_is_busy() {
    // queue_01: 50 of 100 at 0.5.
    let mut bed = Bed::new(synthetic(0.5));
    bed.worker(1, |_| {});
    let first = bed.book(1, 0, 50);
    assert_eq!(bed.arrive("a", "", 10), Ok(true));
    bed.book(1, 0, 1);
    assert_eq!(bed.arrive("b", "", 10), Ok(false));
    assert_eq!(bed.state("b"), State::Waits);
    bed.complete(first);
    assert_eq!(bed.granted().as_deref(), Some("b"));
}

#[test]
fn the_next_is_judged_after_the_booking_of_the_one_before() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    let busy = bed.book(1, 0, 8);
    for id in ["a", "b", "c"] {
        assert_eq!(bed.arrive(id, "", 8), Ok(false));
    }
    bed.complete(busy);
    assert_eq!(bed.granted().as_deref(), Some("a"), "one goes on one freed rank");
    assert_eq!(bed.arrive("d", "", 8), Ok(false), "who comes meanwhile waits behind");
    let (_, booking) = bed.settle(1, 8);
    assert_eq!(bed.granted(), None);
    bed.complete(booking);
    let (next, _) = bed.settle(1, 0);
    assert_eq!(next, "b");
    // It booked nothing, so the rank is still free.
    assert_eq!(bed.settle(1, 0).0, "c");
    assert_eq!(bed.settle(1, 0).0, "d");
    assert_eq!(bed.queue.totals(), (0, 0));
}

#[test]
fn deficit_round_robin_as_recorded() {
    // queue_07.
    let mut bed = Bed::new(profile(vec![class("gold"), PolicyClass { quantum: 32, ..class("bronze") }]));
    bed.worker(1, |_| {});
    let mut booking = bed.book(1, 0, 60);
    for id in ["g0", "g1", "g2", "g3", "b0", "b1", "b2", "b3"] {
        let class = if id.starts_with('g') { "gold" } else { "bronze" };
        assert_eq!(bed.arrive(id, class, 64), Ok(false));
    }
    let mut order = Vec::new();
    for _ in 0..8 {
        bed.complete(booking);
        let (id, next) = bed.settle(1, 64);
        order.push(id);
        booking = next;
    }
    assert_eq!(order, ["g0", "g1", "b0", "g2", "g3", "b1", "b2", "b3"]);
}

#[test]
fn limits_refuse_as_recorded() {
    // queue_08.
    let mut bed = Bed::new(profile(vec![
        PolicyClass { request_queue_limit_per_worker: Some(1), ..family("c", "std", "small") },
        PolicyClass { raw_isl_token_queue_limit_per_worker: Some(50), ..class("isl") },
        PolicyClass { cached_token_queue_limit_per_worker: Some(8), ..class("cach") },
        PolicyClass { request_queue_limit_per_worker: Some(0), ..class("never") },
    ]));
    bed.worker(1, |_| {});
    bed.worker(2, |_| {});
    assert_eq!(bed.arrive_with("n0", "never", 3, 0, only(1)), Ok(true));
    bed.book(1, 0, 16);
    bed.book(2, 0, 16);
    assert_eq!(bed.arrive("q1", "", 16), Ok(false));
    assert_eq!(bed.arrive("q2", "", 16), Ok(false));
    assert_eq!(rejection(bed.arrive("q3", "", 16)), ("requests", 2, 2));
    assert_eq!(bed.arrive("i1", "isl", 99), Ok(false));
    assert_eq!(bed.arrive("i2", "isl", 7), Ok(false));
    assert_eq!(rejection(bed.arrive("i3", "isl", 16)), ("raw_isl_tokens", 106, 100));
    assert_eq!(bed.arrive_with("c1", "cach", 64, 16, |_| {}), Ok(false));
    assert_eq!(rejection(bed.arrive("c2", "cach", 16)), ("cached_tokens", 16, 16));
    assert_eq!(rejection(bed.arrive("n1", "never", 16)), ("requests", 0, 0));
    assert_eq!(bed.queue.totals(), (5, 16 + 16 + 99 + 7 + 64));
    bed.cancel("q1");
    assert_eq!(bed.arrive("q3", "", 16), Ok(false), "a place that is free can be taken");
}

#[test]
fn the_partition_has_limits_over_all_classes() {
    let limits = QueueLimits { requests: 2, tokens: 1000 };
    let mut bed = Bed::with_limits(profile(vec![class("a"), class("b")]), limits);
    bed.worker(1, |_| {});
    bed.book(1, 0, 1);
    assert_eq!(bed.arrive("1", "a", 1), Ok(false));
    assert_eq!(bed.arrive("2", "b", 2000), Ok(false));
    assert_eq!(rejection(bed.arrive("3", "b", 1)), ("partition_requests", 2, 2));
    bed.cancel("1");
    assert_eq!(rejection(bed.arrive("3", "b", 1)), ("partition_isl_tokens", 2000, 1000));
}

#[test]
fn a_full_partition_refuses_nobody_who_has_an_idle_rank() {
    let limits = QueueLimits { requests: 2, tokens: 1000 };
    let mut bed = Bed::with_limits(profile(vec![class("a"), class("b")]), limits);
    bed.worker(1, |_| {});
    bed.worker(2, |_| {});
    bed.book(1, 0, 1);
    for id in ["1", "2"] {
        assert_eq!(bed.arrive_with(id, "a", 1, 0, only(1)), Ok(false));
    }
    assert_eq!(rejection(bed.arrive_with("3", "a", 1, 0, only(1))), ("partition_requests", 2, 2));
    assert_eq!(bed.arrive("free", "b", 1), Ok(true), "worker 2 is idle");
}

#[test]
fn a_partition_with_a_limit_of_zero_refuses_only_who_would_wait() {
    for limits in [QueueLimits { requests: 0, tokens: 1000 }, QueueLimits { requests: 1000, tokens: 0 }] {
        let mut bed = Bed::with_limits(synthetic(0.0), limits);
        bed.worker(1, |_| {});
        assert_eq!(bed.arrive("goes", "", 1), Ok(true));
        bed.book(1, 0, 1);
        let (_, current, limit) = rejection(bed.arrive("would wait", "", 1));
        assert_eq!((current, limit), (0, 0));
    }
}

#[test]
fn a_partition_without_workers_and_a_request_nobody_can_take_do_not_wait() {
    let mut bed = Bed::new(synthetic(0.0));
    assert_eq!(bed.arrive("a", "", 1), Ok(true));
    bed.worker(1, |_| {});
    bed.book(1, 0, 1);
    assert_eq!(bed.arrive_with("b", "", 1, 0, only(7)), Ok(true));
    assert_eq!(bed.arrive_with("c", "", 1, 0, pinned(7)), Ok(true));
    assert_eq!(bed.arrive_with("d", "", 1, 0, tainted("x")), Ok(true));
    assert_eq!(bed.arrive_with("e", "", 1, 0, |s| s.allowed_worker_ids = Some([].into())), Ok(true));
}

#[test]
fn a_blocked_head_idles_nobody() {
    // queue_10 and queue_13, but for their quirk.
    let mut bed = Bed::new(synthetic(0.5));
    bed.worker(1, |_| {});
    bed.worker(2, |_| {});
    let busy = bed.book(1, 0, 60);
    assert_eq!(bed.arrive_with("pin", "", 8, 0, pinned(1)), Ok(false));
    assert_eq!(bed.arrive("free", "", 8), Ok(true));
    assert_eq!(bed.arrive_with("cons", "", 8, 0, only(1)), Ok(false));
    assert_eq!(bed.arrive("hol", "", 8), Ok(true), "worker 2 is idle");
    let other = bed.book(2, 0, 60);
    assert_eq!(bed.arrive("late", "", 8), Ok(false));
    // The blocked ones come first once their rank is free, in their order.
    bed.complete(busy);
    assert_eq!(bed.settle(1, 8).0, "pin");
    assert_eq!(bed.settle(1, 60).0, "cons");
    assert_eq!(bed.granted(), None);
    bed.complete(other);
    assert_eq!(bed.settle(2, 8).0, "late");
}

#[test]
fn taints_and_drains_decide_who_is_eligible() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |facts| facts.taints = ["gpu".to_owned()].into());
    bed.worker(2, |_| {});
    let first = bed.book(1, 0, 1);
    assert_eq!(bed.arrive_with("t", "", 1, 0, tainted("gpu")), Ok(false));
    bed.book(2, 0, 1);
    assert_eq!(bed.arrive("u", "", 1), Ok(false));
    // Worker 2 gets the taint, and is busy; then worker 3 comes without it.
    bed.worker(2, |facts| facts.taints = ["gpu".to_owned()].into());
    assert_eq!(bed.granted(), None);
    bed.worker(3, |_| {});
    assert_eq!(bed.settle(3, 1).0, "u");
    bed.worker(1, |facts| (facts.draining, facts.taints) = (true, ["gpu".to_owned()].into()));
    bed.complete(first);
    assert_eq!(bed.granted(), None, "a draining worker takes nobody");
    bed.remove_worker(2);
    assert_eq!(bed.granted().as_deref(), Some("t"), "nobody is left who could take it: it is to learn that");
}

#[test]
fn a_capacity_that_grows_lets_requests_go() {
    // queue_15.
    let mut bed = Bed::new(synthetic(0.5));
    bed.worker(1, |_| {});
    bed.book(1, 0, 60);
    assert_eq!(bed.arrive("q", "", 16), Ok(false));
    bed.worker(1, |facts| facts.max_num_batched_tokens = Some(200));
    assert_eq!(bed.settle(1, 16).0, "q");
}

#[test]
fn whoever_waits_learns_that_the_last_worker_left() {
    // queue_14.
    let mut bed = Bed::new(synthetic(0.5));
    bed.worker(1, |_| {});
    bed.book(1, 0, 60);
    assert_eq!(bed.arrive("q", "", 16), Ok(false));
    assert_eq!(bed.arrive_with("p", "", 16, 0, pinned(1)), Ok(false));
    bed.remove_worker(1);
    let first = bed.granted().unwrap();
    bed.cancel(&first);
    assert!(bed.granted().is_some(), "a grant that comes back is passed on");
}

#[test]
fn deadlines_expire_and_due_times_order_too() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    let busy = bed.book(1, 0, 1);
    let due = |secs: u64| move |steering: &mut Steering| steering.due = Some(Moment(secs * 1_000_000_000));
    assert_eq!(bed.arrive("plain", "", 1), Ok(false));
    assert_eq!(bed.arrive_with("deadline", "", 1, 0, |s| s.deadline_ms = Some(500)), Ok(false));
    assert_eq!(bed.arrive_with("due late", "", 1, 0, due(90)), Ok(false));
    assert_eq!(bed.arrive_with("due soon", "", 1, 0, due(50)), Ok(false));
    bed.tick(499);
    assert_eq!(bed.state("deadline"), State::Waits);
    bed.tick(1);
    assert_eq!(bed.state("deadline"), State::Failed(SelectionError::DeadlineExceeded));
    assert_eq!(bed.queue.totals(), (3, 3));
    bed.complete(busy);
    assert_eq!(["", "", ""].map(|_| bed.settle(1, 0).0), ["due soon", "due late", "plain"]);
}

#[test]
fn a_grant_nobody_runs_holds_others_back_for_a_second() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    let busy = bed.book(1, 0, 1);
    bed.arrive("asleep", "", 1).unwrap();
    bed.arrive("awake", "", 1).unwrap();
    bed.complete(busy);
    bed.tick(100);
    bed.tick(999);
    assert_eq!(bed.state("awake"), State::Waits);
    bed.tick(1);
    assert_eq!(bed.state("awake"), State::Granted);
    // The first still decides when it is run, and takes nobody's grant away.
    let asleep = bed.tickets.remove("asleep").unwrap();
    bed.queue.redeem(&asleep);
    bed.arrive("third", "", 1).unwrap();
    assert_eq!(bed.state("third"), State::Waits);
}

#[test]
fn a_profile_change_keeps_who_waits_and_renames() {
    let before = profile(vec![family("chat", "chat", "all"), class("batch"), class("gone")]);
    let mut bed = Bed::new(before);
    bed.worker(1, |_| {});
    bed.book(1, 0, 10);
    for (id, class) in [("c", "chat"), ("b", "batch"), ("g", "gone")] {
        assert_eq!(bed.arrive(id, class, 5), Ok(false));
    }
    let limited = PolicyClass { request_queue_limit_per_worker: Some(1), ..family("talk", "talk", "all") };
    bed.queue.set_profile(profile(vec![limited, class("batch")]), &mut bed.load);
    bed.advance();
    let names = ("m".into(), "g".into());
    let report = bed.queue.report(names, &bed.load, 1, bed.now);
    let waiting: Vec<_> = report.classes.iter().map(|class| (&*class.policy_class, class.waiting)).collect();
    assert_eq!(waiting, [("talk", 2), ("batch", 1)], "the unknown go to the default family, over its limit");
    assert_eq!(bed.granted(), None);
    // The next profile finds ranks of ten tokens free.
    let free = PolicyClass { prefill_busy_threshold: Some(10), ..family("talk", "talk", "all") };
    bed.queue.set_profile(profile(vec![free]), &mut bed.load);
    bed.advance();
    let mut gone = ["", "", ""].map(|_| bed.settle(1, 0).0);
    gone.sort();
    assert_eq!(gone, ["b", "c", "g"]);
}

#[test]
fn a_profile_without_thresholds_lets_everybody_go() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    bed.book(1, 0, 10);
    bed.arrive("a", "", 1).unwrap();
    bed.arrive("b", "", 1).unwrap();
    bed.queue.set_profile(Arc::new(PolicyProfile::synthetic(None, QueuePolicy::Fcfs)), &mut bed.load);
    assert!(!bed.queue.is_on());
    bed.advance();
    assert_eq!(bed.settle(1, 1).0, "a");
    assert_eq!(bed.settle(1, 1).0, "b");
}

#[test]
fn beyond_the_lanes_constraints_wait_behind_one_another() {
    let mut bed = Bed::new(synthetic(0.0));
    let workers = MAX_CONSTRAINT_LANES as u64 + 10;
    (1..=workers).for_each(|id| bed.worker(id, |_| {}));
    let bookings: Vec<_> = (1..=workers).map(|id| bed.book(id, 0, 1)).collect();
    for id in 1..=workers {
        assert_eq!(bed.arrive_with(&id.to_string(), "", 1, 0, only(id)), Ok(false));
    }
    let complete = |bed: &mut Bed, id: u64| bed.complete(bookings[id as usize - 1]);
    complete(&mut bed, MAX_CONSTRAINT_LANES as u64);
    assert_eq!(bed.settle(MAX_CONSTRAINT_LANES as u64, 1).0, MAX_CONSTRAINT_LANES.to_string());
    // The last ones share a lane, and its head is somebody else's.
    complete(&mut bed, workers);
    assert_eq!(bed.granted(), None);
    for id in 1..workers {
        complete(&mut bed, id);
    }
    let mut gone = 1;
    while let Some(id) = bed.granted() {
        bed.settle(id.parse().unwrap(), 1);
        gone += 1;
    }
    assert_eq!((gone, bed.queue.totals()), (workers, (0, 0)), "all of them went in the end");
}

#[test]
fn a_queue_that_failed_tells_those_who_wait_and_goes_on() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    let busy = bed.book(1, 0, 8);
    assert_eq!(bed.arrive_with("a", "", 8, 0, |steering| steering.deadline_ms = Some(1_000)), Ok(false));
    bed.queue.reset(&mut bed.load);
    assert_eq!((bed.queue.totals(), bed.queue.take_told().len()), ((0, 0), 1));
    let class = &bed.queue.classes[0];
    assert_eq!((class.lanes.len(), class.waiting.requests), (0, 0));
    assert!(matches!(bed.state("a"), State::Failed(SelectionError::Internal(_))));
    bed.tick(2_000);
    assert_eq!(bed.arrive("b", "", 8), Ok(false), "it judges as before");
    bed.complete(busy);
    assert_eq!(bed.granted().as_deref(), Some("b"));
    bed.settle(1, 8);
    assert_eq!(bed.arrive("c", "", 8), Ok(false));
}

#[test]
fn a_deadline_goes_with_the_queue_it_was_set_in() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    bed.book(1, 0, 8);
    assert_eq!(bed.arrive_with("a", "", 8, 0, |steering| steering.deadline_ms = Some(1_000)), Ok(false));
    bed.queue.reset(&mut bed.load);
    // It gets the place of the one before, which was to end in a second.
    assert_eq!(bed.arrive("b", "", 8), Ok(false));
    bed.tick(2_000);
    assert_eq!(bed.state("b"), State::Waits);
}

#[test]
fn a_grant_goes_with_the_queue_that_gave_it() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    let busy = bed.book(1, 0, 8);
    assert_eq!(bed.arrive("a", "", 8), Ok(false));
    bed.complete(busy);
    assert_eq!(bed.granted().as_deref(), Some("a"));
    bed.queue.reset(&mut bed.load);
    assert_eq!(bed.arrive("b", "", 8), Ok(true), "nobody is before it");
}

#[test]
fn each_class_counts_who_went_was_refused_and_left() {
    let limits = QueueLimits { requests: 2, tokens: 1000 };
    let mut bed = Bed::with_limits(profile(vec![class("a"), class("b")]), limits);
    bed.worker(1, |_| {});
    assert_eq!(bed.arrive("free", "a", 1), Ok(true));
    assert_eq!(bed.arrive("no threshold", "std", 1), Ok(true));
    bed.book(1, 0, 1);
    for (id, class) in [("1", "a"), ("2", "b")] {
        let hurried = |steering: &mut Steering| steering.deadline_ms = Some(1_000);
        assert_eq!(bed.arrive_with(id, class, 1, 0, hurried), Ok(false));
    }
    rejection(bed.arrive("3", "b", 1));
    bed.cancel("1");
    bed.tick(1_000);
    bed.tick(1_000);
    let counts = bed.queue.counters.read().into_iter();
    let counts: Vec<_> = counts
        .map(|(name, of)| {
            let [went, rejected] = [of.waits.iter().sum(), of.rejected.iter().sum::<u64>()];
            (name.to_string(), went, rejected, of.cancelled, of.expired)
        })
        .collect();
    let expected = [("a", 1, 0, 1, 0), ("b", 0, 1, 0, 1), ("std", 1, 0, 0, 0)];
    assert_eq!(
        counts,
        expected.map(|(name, went, rejected, left, late)| (name.to_owned(), went, rejected, left, late))
    );
}
