//! Requests that wait: who goes when, and what becomes of those that leave.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::selection::{
    config::QueuePolicy,
    queue::profile::{PolicyClass, PolicyProfile, PolicyProfiles},
    testing::CountingWaker,
};

/// Ranks with a prefill token in progress are busy.
fn queueing(change: impl FnOnce(&mut SelectionConfig)) -> SelectionConfig {
    approximate(|config| {
        config.queue_threshold = Some(0.0);
        change(config);
    })
}

fn with_workers(config: SelectionConfig, count: u64) -> Bed {
    let bed = Bed::new(config);
    (1..=count).for_each(|id| capable(&bed, id));
    bed
}

fn capable(bed: &Bed, worker_id: u64) {
    bed.worker(worker_id, |request| request.fields.max_num_batched_tokens = Some(100));
}

type Answer = Result<SelectResponse, SelectionError>;

/// A request that is in progress.
struct Running {
    future: Pin<Box<dyn Future<Output = Answer> + Send>>,
    waker: Arc<CountingWaker>,
}

impl Running {
    fn new(future: impl Future<Output = Answer> + Send + 'static) -> Self {
        Self { future: Box::pin(future), waker: Arc::default() }
    }

    fn booking(bed: &Bed, request: SelectRequest) -> Self {
        let core = Arc::clone(&bed.core);
        Self::new(async move { core.select_and_reserve(request).await })
    }

    fn selection(bed: &Bed, request: SelectRequest) -> Self {
        let core = Arc::clone(&bed.core);
        Self::new(async move { core.select(request).await })
    }

    /// Polls it once.
    fn poll(&mut self) -> Option<Answer> {
        let waker = Waker::from(Arc::clone(&self.waker));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    fn waits(mut self) -> Self {
        assert!(self.poll().is_none(), "it should wait");
        self
    }

    fn wakes(&self) -> usize {
        self.waker.wakes()
    }

    /// Its worker, after it was woken.
    fn went(&mut self) -> u64 {
        assert!(self.wakes() > 0, "it was not woken");
        self.poll().expect("it is its turn").expect("it is served").worker_id
    }
}

fn pending(bed: &Bed) -> (u64, u64) {
    let partitions = bed.core.loads(&PartitionFilter::default());
    (partitions[0].pending_count, partitions[0].pending_isl_tokens)
}

#[test]
fn bookings_wait_until_a_prefill_is_done() {
    let bed = with_workers(queueing(|_| {}), 1);
    bed.reserve(booking("a", prompt(1, 2))).unwrap();
    let mut b = Running::booking(&bed, booking("b", prompt(100, 3))).waits();
    assert_eq!((pending(&bed), b.wakes()), ((1, 12), 0));
    assert_eq!(text(bed.reserve(booking("b", prompt(1, 1)))).0, "conflict", "its id is taken while it waits");
    bed.core.prefill_complete("a").unwrap();
    assert_eq!(b.wakes(), 1);
    assert_eq!(pending(&bed), (0, 0));
    assert_eq!(b.went(), 1);
    assert_eq!(bed.loads(), [(1, 0, 12, 5, 2)]);
}

#[test]
fn selections_wait_and_advisory_ones_and_named_bookings_do_not() {
    let bed = with_workers(queueing(|_| {}), 1);
    bed.select(SelectRequest { selection_id: Some("s".to_owned()), ..request(prompt(7, 1)) }).unwrap();
    bed.reserve(booking("a", prompt(1, 2))).unwrap();
    let mut query = Running::selection(&bed, request(prompt(100, 1))).waits();
    bed.select(SelectRequest { advisory: true, ..request(prompt(200, 1)) }).unwrap();
    bed.book(named("e", 1, prompt(300, 1))).unwrap();
    bed.book(replay("s")).unwrap();
    for id in ["a", "s"] {
        bed.core.free_reservation(id).unwrap();
    }
    bed.core.free_reservation("e").unwrap();
    assert_eq!(query.went(), 1);
}

#[test]
fn one_freed_rank_wakes_one_of_many() {
    let bed = with_workers(queueing(|_| {}), 1);
    bed.reserve(booking("first", prompt(1, 1))).unwrap();
    let waiting = |at: i64| Running::booking(&bed, booking(&at.to_string(), prompt(100 * at, 1))).waits();
    let mut all: Vec<Running> = (1..=10).map(waiting).collect();
    let mut last = "first".to_owned();
    for at in 0..10 {
        bed.core.prefill_complete(&last).unwrap();
        let woken: Vec<usize> = all.iter().map(Running::wakes).collect();
        assert_eq!(woken.iter().sum::<usize>(), at + 1, "{woken:?}");
        assert_eq!(all[at].went(), 1);
        last = (at + 1).to_string();
    }
}

#[test]
fn whoever_leaves_gives_its_place_or_its_turn_back() {
    let bed = with_workers(queueing(|_| {}), 1);
    bed.reserve(booking("a", prompt(1, 1))).unwrap();
    let mut all: Vec<Running> =
        (0..10).map(|at| Running::booking(&bed, booking(&at.to_string(), prompt(100 + at, 1))).waits()).collect();
    let mut survivor = all.pop().unwrap();
    let woken = all.remove(0);
    all.clear();
    assert_eq!(pending(&bed).0, 2);
    bed.core.prefill_complete("a").unwrap();
    assert_eq!((woken.wakes(), survivor.wakes()), (1, 0));
    drop(woken);
    assert_eq!(survivor.went(), 1, "it was the turn of somebody who had left");
    assert_eq!((bed.requests(), bed.core.live_bookings()), (2, 2));
    assert_eq!(text(bed.book(replay("3"))).0, "not_found");
    let mut again = Running::booking(&bed, booking("3", prompt(1, 1))).waits();
    bed.core.prefill_complete("9").unwrap();
    assert_eq!(again.went(), 1, "the id of one who left is free");
    let counts = &bed.core.queue_counts()[0].classes[0].1;
    assert_eq!((counts.cancelled, counts.expired, counts.waits.iter().sum::<u64>()), (9, 0, 3));
}

#[test]
fn deadlines_pass_before_in_and_after_the_queue() {
    let bed = with_workers(queueing(|_| {}), 1);
    bed.reserve(booking("a", prompt(1, 1))).unwrap();
    let with_deadline = |id: &str, ms| {
        let mut request = booking(id, prompt(100, 1));
        request.steering.deadline_ms = Some(ms);
        request
    };
    assert_eq!(text(bed.reserve(with_deadline("0", 0))), ("deadline_exceeded", "request deadline exceeded".to_owned()));
    let mut inside = Running::booking(&bed, with_deadline("1", 100)).waits();
    let mut after = Running::booking(&bed, with_deadline("2", 500)).waits();
    let mut behind = Running::booking(&bed, booking("3", prompt(9, 1))).waits();
    bed.clock.advance(Duration::from_millis(99));
    bed.core.tick();
    assert_eq!((inside.wakes(), pending(&bed).0), (0, 3));
    bed.clock.advance(Duration::from_millis(1));
    bed.core.tick();
    assert_eq!((inside.wakes(), pending(&bed).0), (1, 2), "late at its deadline");
    assert_eq!(text(inside.poll().unwrap()).0, "deadline_exceeded");
    // It is its turn, and it is late when it is run.
    bed.core.prefill_complete("a").unwrap();
    bed.clock.advance(Duration::from_millis(400));
    assert_eq!(after.wakes(), 1);
    assert_eq!(text(after.poll().unwrap()).0, "deadline_exceeded");
    assert_eq!(behind.went(), 1);
    // Without a tick the poll itself finds out.
    let mut polled = Running::booking(&bed, with_deadline("4", 10)).waits();
    bed.clock.advance(Duration::from_millis(10));
    assert_eq!(text(polled.poll().unwrap()).0, "deadline_exceeded");
    assert_eq!((pending(&bed).0, bed.core.queue_counts()[0].classes[0].1.expired), (0, 3));
}

#[test]
fn whatever_frees_a_rank_lets_requests_go() {
    let expiry = Duration::from_secs(300);
    let bed = with_workers(queueing(|config| config.active_request_expiry = Some(expiry)), 1);
    let mut next = 0;
    let mut blocked = || {
        next += 1;
        bed.reserve(booking(&format!("busy {next}"), prompt(next * 1000, 1))).unwrap();
        Running::selection(&bed, request(prompt(1, 1))).waits()
    };
    let mut freed = blocked();
    bed.core.free_reservation("busy 1").unwrap();
    assert_eq!(freed.went(), 1);

    let mut joined = blocked();
    capable(&bed, 2);
    assert_eq!(joined.went(), 2);
    bed.core.delete_worker(2).unwrap();
    bed.core.free_reservation("busy 2").unwrap();

    let mut expired = blocked();
    bed.clock.advance(expiry + Duration::from_secs(61));
    bed.core.tick();
    assert_eq!(expired.went(), 1, "the reference lets it wait up to a minute more");

    let mut left = blocked();
    bed.core.delete_worker(1).unwrap();
    assert_eq!(text(left.poll().unwrap()), ("unavailable", "no endpoints available to route work".to_owned()));
}

#[test]
fn a_patched_capacity_lets_requests_go() {
    let bed = with_workers(queueing(|config| config.queue_threshold = Some(0.5)), 1);
    bed.reserve(booking("a", prompt(1, 15))).unwrap();
    let mut waiting = Running::booking(&bed, booking("b", prompt(100, 1))).waits();
    let patch = serde_json::from_value(serde_json::json!({"max_num_batched_tokens": 200})).unwrap();
    bed.core.patch_worker(1, patch).unwrap();
    assert_eq!(waiting.went(), 1);
}

#[test]
fn closed_queues_answer_whoever_waits() {
    let bed = with_workers(queueing(|_| {}), 1);
    bed.reserve(booking("a", prompt(1, 1))).unwrap();
    let mut waiting = Running::booking(&bed, booking("b", prompt(100, 1))).waits();
    bed.core.close_queues();
    assert_eq!(waiting.wakes(), 1);
    let told = ("unavailable", "endpoint subscriber shutdown".to_owned());
    assert_eq!(text(waiting.poll().unwrap()), told);
    assert_eq!(text(bed.reserve(booking("c", prompt(100, 1)))), told, "who would wait is told too");
    bed.core.prefill_complete("a").unwrap();
    bed.reserve(booking("d", prompt(200, 1))).expect("who need not wait is served");
}

#[test]
fn shutting_down_answers_whoever_waits() {
    let bed = with_workers(queueing(|_| {}), 1);
    bed.reserve(booking("a", prompt(1, 1))).unwrap();
    let mut waiting = Running::booking(&bed, booking("b", prompt(100, 1))).waits();
    bed.core.begin_shutdown();
    assert_eq!(waiting.wakes(), 1);
    assert_eq!(text(waiting.poll().unwrap()).0, "unavailable");
    bed.core.free_reservation("a").expect("lifecycle calls still work");
}

#[test]
fn what_is_cached_is_looked_up_again_after_a_long_wait() {
    for (age, wait, cached) in
        [(Some(Duration::from_secs(10)), 10_000, 8), (Some(Duration::from_secs(10)), 9_999, 0), (None, 100_000, 0)]
    {
        let bed = Bed::new(with_events(|config| {
            config.queue_threshold = Some(0.0);
            config.overlap_refresh_after = age;
        }));
        capable(&bed, 1);
        bed.reserve(booking("a", prompt(1000, 1))).unwrap();
        let mut waiting = Running::booking(&bed, booking("b", prompt(1, 3))).waits();
        bed.sinks.store(1, 0, Tier::Device, &[1, 2], 0);
        bed.clock.advance(Duration::from_millis(wait));
        bed.core.prefill_complete("a").unwrap();
        let answer = waiting.poll().unwrap().unwrap();
        assert_eq!((answer.overlap.gpu, answer.effective_prefill_tokens), (cached, 12 - u64::from(cached)), "{wait}");
    }
}

#[test]
fn a_bound_session_goes_while_another_worker_is_free() {
    // affinity_19: the target is a wish, for the queue.
    let bed = with_workers(queueing(|config| config.session_affinity_ttl = Some(Duration::from_secs(60))), 2);
    bed.reserve(in_session("s", booking_on(2, "r1", prompt(1, 2)))).unwrap();
    assert_eq!(bed.reserve(in_session("s", booking("r2", prompt(9, 1)))).unwrap().worker_id, 2);
}

#[test]
fn a_waiting_initialiser_that_leaves_hands_its_session_over() {
    let bed = with_workers(queueing(|config| config.session_affinity_ttl = Some(Duration::from_secs(60))), 1);
    bed.reserve(booking("busy", prompt(1000, 1))).unwrap();
    let first = Running::booking(&bed, in_session("s", booking("1", prompt(1, 1)))).waits();
    let mut second = Running::booking(&bed, in_session("s", booking("2", prompt(2, 1)))).waits();
    assert_eq!(pending(&bed).0, 1, "the second waits for the session");
    drop(first);
    assert!(second.poll().is_none());
    assert_eq!(pending(&bed).0, 1, "the second waits in the queue");
    bed.core.prefill_complete("busy").unwrap();
    assert_eq!(second.went(), 1);
}

#[test]
fn a_deadline_passes_while_another_request_decides_for_the_session() {
    let bed = with_workers(queueing(|config| config.session_affinity_ttl = Some(Duration::from_secs(60))), 1);
    bed.reserve(booking("busy", prompt(1000, 1))).unwrap();
    let _first = Running::booking(&bed, in_session("s", booking("1", prompt(1, 1)))).waits();
    let mut hurried = in_session("s", booking("2", prompt(2, 1)));
    hurried.steering.deadline_ms = Some(1_000);
    let mut second = Running::booking(&bed, hurried).waits();
    bed.core.tick();
    assert_eq!(second.wakes(), 0);
    bed.clock.advance(Duration::from_secs(1));
    bed.core.tick();
    assert_eq!(second.wakes(), 1);
    assert_eq!(second.poll().unwrap(), Err(SelectionError::DeadlineExceeded));
}

#[test]
fn a_worker_that_came_while_a_request_waited_is_not_taken_for_the_one_that_left() {
    let bed = Bed::new(with_events(|config| config.queue_threshold = Some(0.0)));
    for id in 1..=2 {
        capable(&bed, id);
        bed.reserve(booking_on(id, &id.to_string(), prompt(1000 * id as i64, 1))).unwrap();
    }
    bed.sinks.store(2, 0, Tier::Device, &[11, 12], 0);
    let mut waiting = Running::booking(&bed, booking("x", prompt(11, 3))).waits();
    bed.core.delete_worker(2).unwrap();
    assert_eq!(waiting.wakes(), 0);
    capable(&bed, 3);
    assert!(waiting.wakes() > 0, "the new one is idle");
    let answer = waiting.poll().expect("it is its turn").expect("served");
    assert_eq!((answer.worker_id, answer.overlap.gpu, answer.effective_prefill_tokens), (3, 0, 12));
}

fn class(name: &str, threshold: u64) -> PolicyClass {
    let synthetic = PolicyProfile::synthetic(None, QueuePolicy::Fcfs).classes.remove(0);
    PolicyClass { name: name.into(), cell: None, prefill_busy_threshold: Some(threshold), ..synthetic }
}

fn document(classes: Vec<PolicyClass>) -> PolicyProfiles {
    let mut profile = PolicyProfile::synthetic(None, QueuePolicy::Fcfs);
    profile.classes.extend(classes);
    PolicyProfiles { root: Some(Arc::new(profile)), ..PolicyProfiles::default() }
}

fn of_class(class: &str, mut request: SelectRequest) -> SelectRequest {
    request.steering.policy_class = Some(class.to_owned());
    request
}

#[test]
fn classes_come_by_header_and_survive_a_change_of_the_document() {
    let bed = Bed::new(approximate(|config| config.profiles = document(vec![class("tight", 0), class("loose", 1000)])));
    capable(&bed, 1);
    bed.reserve(booking("a", prompt(1, 1))).unwrap();
    bed.select(of_class("loose", request(prompt(1, 1)))).unwrap();
    bed.select(request(prompt(1, 1))).expect("the default class has no threshold");
    let mut waiting = Running::booking(&bed, of_class("tight", booking("b", prompt(100, 2)))).waits();
    let queues = bed.core.queues(&PartitionFilter::default());
    let tight = queues[0].classes.iter().find(|class| &*class.policy_class == "tight").unwrap();
    assert_eq!((tight.waiting, tight.isl_tokens, tight.busy_ranks, tight.oldest_age_seconds), (1, 8, 1, Some(0.0)));
    bed.core.set_profiles(document(vec![class("tight", 3)]));
    assert_eq!((waiting.wakes(), pending(&bed).0), (0, 1));
    bed.core.set_profiles(document(vec![class("tight", 4)]));
    assert_eq!(waiting.went(), 1);
    assert_eq!(bed.core.live_bookings(), 2, "nothing was lost");
}

#[test]
fn capacities_are_asked_for_while_a_class_has_a_threshold() {
    let bed = Bed::new(approximate(|config| config.profiles = document(vec![class("tight", 0)])));
    let worker = || {
        let request = serde_json::json!({"worker_id": 1, "model_name": "m", "endpoint": "e", "block_size": 4});
        serde_json::from_value::<WorkerRequest>(request).unwrap()
    };
    let record = bed.core.upsert_worker(worker()).unwrap();
    assert_eq!(record.not_schedulable_reasons, ["max_num_batched_tokens is required while queueing is enabled"]);
    bed.core.set_profiles(PolicyProfiles::default());
    bed.select(request(prompt(1, 1))).expect("the worker lacks nothing any more");
    bed.core.set_profiles(document(vec![class("tight", 0)]));
    bed.select(request(prompt(1, 1))).expect("it stays what it is");
    assert_eq!(bed.core.upsert_worker(worker()).unwrap().lifecycle, Lifecycle::Incomplete);
}

#[test]
fn many_threads_never_share_a_freed_rank() {
    let bed = with_workers(queueing(|_| {}), 2);
    std::thread::scope(|scope| {
        for thread in 0..8_i64 {
            let bed = &bed;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread.cast_unsigned());
                for round in 0..200 {
                    let id = format!("{thread}-{round}");
                    let mut request = booking(&id, prompt(1 + thread * 100_000 + round * 10, 2));
                    if rng.u8(0..3) == 0 {
                        request.steering.allowed_worker_ids = Some([rng.u64(1..3)].into());
                    }
                    if rng.u8(0..5) == 0 {
                        // Its client may be gone before it is its turn.
                        let mut running = Running::booking(bed, request);
                        if running.poll().is_none() {
                            continue;
                        }
                    } else {
                        let answer = block_on(bed.core.select_and_reserve(request)).unwrap();
                        let load = bed.loads().into_iter().find(|row| row.0 == answer.worker_id).unwrap();
                        assert_eq!(load.2, 8, "only its own prefill runs there");
                    }
                    // At once, so that the free rank is the cheapest too.
                    bed.core.free_reservation(&id).unwrap();
                }
            });
        }
    });
    assert_eq!(pending(&bed), (0, 0));
    bed.assert_idle();
}
