//! The queue beside a load tracker, without a partition around them.

mod examples;
mod lanes;
mod random;
mod time;

use std::{collections::BTreeMap, sync::Arc, task::Waker, time::Duration};

use super::{
    profile::{CacheBucket, FamilyBucket, PolicyClass, PolicyProfile},
    *,
};
use crate::selection::{
    config::QueuePolicy,
    error::SelectionError,
    identity::WorkerWithDpRank,
    load::{BookingId, LoadConfig, LoadTracker, NewBooking, Slot, WorkerFacts},
    moment::Moment,
    request::{RoutingConstraints, Steering},
};

/// A class that every test changes a little: explicit, quantum 64, busy above no token.
fn class(name: &str) -> PolicyClass {
    PolicyClass {
        name: name.into(),
        cell: None,
        quantum: 64,
        prefill_busy_threshold: Some(0),
        ..PolicyProfile::synthetic(None, QueuePolicy::Fcfs).classes.remove(0)
    }
}

/// A class of a family.
fn family(name: &str, family: &str, bucket: &str) -> PolicyClass {
    PolicyClass { cell: Some(FamilyBucket { family: family.into(), bucket: bucket.into() }), ..class(name) }
}

/// A profile whose default family is the first class's, or `std` with one class of no threshold.
fn profile(classes: Vec<PolicyClass>) -> Arc<PolicyProfile> {
    let mut all = classes;
    if all[0].cell.is_none() {
        all.insert(0, PolicyClass { prefill_busy_threshold: None, ..family("std", "std", "all") });
    }
    let cell = all[0].cell.clone().expect("a family");
    Arc::new(PolicyProfile {
        default_family: cell.family,
        buckets: vec![CacheBucket { min_tokens: 0, name: cell.bucket }],
        classes: all,
    })
}

/// The one class of a partition without a policy document.
fn synthetic(threshold: f64) -> Arc<PolicyProfile> {
    Arc::new(PolicyProfile::synthetic(Some(threshold), QueuePolicy::Fcfs))
}

fn only(worker_id: u64) -> impl FnOnce(&mut Steering) {
    among([worker_id])
}

fn among<const N: usize>(worker_ids: [u64; N]) -> impl FnOnce(&mut Steering) {
    move |steering| steering.allowed_worker_ids = Some(worker_ids.into())
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
enum State {
    Waits,
    Granted,
    Failed(SelectionError),
}

/// The queue, the tracker, and who waits.
struct Bed {
    queue: AdmissionQueue,
    load: LoadTracker,
    now: Moment,
    tickets: BTreeMap<String, Ticket>,
    workers: u64,
    last_booking: u64,
}

impl Bed {
    fn new(profile: Arc<PolicyProfile>) -> Self {
        Self::with_limits(profile, QueueLimits::default())
    }

    fn with_limits(profile: Arc<PolicyProfile>, limits: QueueLimits) -> Self {
        let mut load = LoadTracker::new(LoadConfig { block_size: 4, expiry: None });
        let mut queue = AdmissionQueue::new(profile, limits);
        queue.attach(&mut load);
        let (now, tickets) = (Moment(1_000_000_000), BTreeMap::new());
        Self { queue, load, now, tickets, workers: 0, last_booking: 0 }
    }

    fn worker(&mut self, worker_id: u64, change: impl FnOnce(&mut WorkerFacts)) {
        let mut facts =
            WorkerFacts { worker_id, ranks: 0..1, max_num_batched_tokens: Some(100), ..WorkerFacts::default() };
        change(&mut facts);
        let facts = Arc::new(facts);
        self.workers += u64::from(self.load.worker(worker_id).is_none());
        for dp_rank in facts.ranks.clone() {
            self.load.upsert_rank(WorkerWithDpRank::new(worker_id, dp_rank), Arc::clone(&facts));
        }
        self.advance();
    }

    fn remove_worker(&mut self, worker_id: u64) {
        let slots: Vec<Slot> = self.load.slots_of(worker_id).collect();
        self.workers -= u64::from(!slots.is_empty());
        for slot in slots {
            let rank = self.load.rank(slot).unwrap();
            self.load.remove_rank(rank);
        }
        self.advance();
    }

    /// Books tokens on a rank, as a request that does not pass the queue.
    fn book(&mut self, worker_id: u64, dp_rank: u32, tokens: u64) -> BookingId {
        self.book_for(worker_id, dp_rank, tokens, None)
    }

    /// The same, with the time that its prefill is thought to take.
    fn book_for(&mut self, worker_id: u64, dp_rank: u32, tokens: u64, duration: Option<Duration>) -> BookingId {
        self.last_booking += 1;
        let (id, slot) =
            (BookingId(self.last_booking), self.load.slot(WorkerWithDpRank::new(worker_id, dp_rank)).unwrap());
        let booking = NewBooking {
            id,
            slot,
            sequence: Arc::from([]),
            prefill_tokens: tokens,
            prefill_duration: duration,
            expected_output_tokens: None,
        };
        assert!(self.load.book(booking, self.now).0);
        self.advance();
        id
    }

    fn complete(&mut self, id: BookingId) {
        self.load.prefill_complete(id, self.now);
        self.advance();
    }

    fn advance(&mut self) {
        loop {
            self.queue.advance(&mut self.load);
            if !self.queue.is_unfinished() {
                break;
            }
        }
        self.queue.take_told();
    }

    /// A request of `tokens`, nothing of it cached. `true` = it went at once.
    fn arrive(&mut self, id: &str, class: &str, tokens: u64) -> Result<bool, SelectionError> {
        self.arrive_with(id, class, tokens, 0, |_| {})
    }

    fn arrive_with(
        &mut self,
        id: &str,
        class: &str,
        tokens: u64,
        cached: u64,
        change: impl FnOnce(&mut Steering),
    ) -> Result<bool, SelectionError> {
        let mut steering = Steering::default();
        change(&mut steering);
        let arriving = Arriving {
            class_name: Some(class),
            placement: Placement::of(&steering),
            isl_tokens: tokens,
            scheduling_cost: steering.scheduling_cost,
            strict_priority: steering.strict_priority.unwrap_or(0),
            priority_jump: steering.priority_jump.unwrap_or(0.0),
            due: steering.due,
            came: steering.came,
            deadline: steering.deadline_ms.map(|ms| Moment(self.now.0 + ms * 1_000_000)),
        };
        let arrival = self.queue.arrive(arriving, &mut self.load, self.workers, self.now, |_, _| cached)?;
        let went = match arrival {
            Arrival::Admitted => true,
            Arrival::Waits(ticket) => {
                assert!(self.tickets.insert(id.to_owned(), ticket).is_none());
                false
            }
        };
        self.advance();
        Ok(went)
    }

    fn state(&self, id: &str) -> State {
        match self.tickets[id].signal.poll(Waker::noop()) {
            std::task::Poll::Pending => State::Waits,
            std::task::Poll::Ready(Word::Granted(_)) => State::Granted,
            std::task::Poll::Ready(Word::Failed(error)) => State::Failed(error),
        }
    }

    /// Who has the grant.
    fn granted(&self) -> Option<String> {
        let mut granted = self.tickets.keys().filter(|id| self.state(id) == State::Granted);
        let first = granted.next().cloned();
        assert_eq!(granted.next(), None, "there is one grant at a time");
        first
    }

    /// The granted request books `tokens` on a rank.
    fn settle(&mut self, worker_id: u64, tokens: u64) -> (String, BookingId) {
        let id = self.granted().expect("somebody goes");
        let ticket = self.tickets.remove(&id).unwrap();
        self.queue.redeem(&ticket);
        (id, self.book(worker_id, 0, tokens))
    }

    fn cancel(&mut self, id: &str) {
        let ticket = self.tickets.remove(id).unwrap();
        self.queue.cancel(&ticket, Departure::Cancelled);
        self.advance();
    }

    fn tick(&mut self, millis: u64) {
        self.now.0 += millis * 1_000_000;
        self.queue.tick(&mut self.load, self.now);
        self.advance();
    }
}
