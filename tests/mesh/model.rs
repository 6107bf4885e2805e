//! What the fleet should know, from what its clients were answered.
//!
//! A call that a replica answered and could not pass on before it died may have happened or not: the replicas must agree
//! with each other, and the model allows both. A booking that is about to expire, or has, may be live on some replicas
//! only: each expires it by its own clock, and no sooner than it happens to look.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::replica::Knowledge;

/// What a call needs to reach every replica when nothing is broken.
const SETTLES: Duration = Duration::from_secs(3);

/// How much older than it is a booking may look to a replica that was told its age.
const OLDER: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    Yes,
    No,
    Maybe,
}

#[derive(Clone, Debug)]
pub struct Booking {
    pub worker: u64,
    pub rank: u64,
    pub is_live: Certainty,
    pub is_done: Certainty,
    made: Instant,
    /// Calls about it: which replica answered, and when.
    calls: Vec<(usize, Instant, Call)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Made,
    Done,
    Ended,
}

#[derive(Debug, Default)]
pub struct Model {
    pub bookings: BTreeMap<String, Booking>,
    /// Age at which replicas end bookings.
    pub expiry: Option<Duration>,
    /// Since when what a replica publishes may be lost.
    unsettled: BTreeMap<usize, (Instant, Option<Instant>)>,
}

impl Model {
    pub fn made(&mut self, id: &str, worker: u64, rank: u64, at: usize) {
        let booking = Booking {
            worker,
            rank,
            is_live: Certainty::Yes,
            is_done: Certainty::No,
            made: Instant::now(),
            calls: vec![(at, Instant::now(), Call::Made)],
        };
        self.bookings.insert(id.to_owned(), booking);
    }

    pub fn called(&mut self, id: &str, call: Call, at: usize) {
        let booking = self.bookings.get_mut(id).expect("it was made");
        booking.calls.push((at, Instant::now(), call));
        match call {
            Call::Ended => booking.is_live = Certainty::No,
            Call::Done if booking.is_done == Certainty::No => booking.is_done = Certainty::Yes,
            Call::Done | Call::Made => {}
        }
    }

    fn may_have_expired(&self, booking: &Booking) -> bool {
        self.expiry.is_some_and(|expiry| booking.made.elapsed() + OLDER > expiry)
    }

    /// Ids that may have expired.
    pub fn aged(&self) -> BTreeSet<String> {
        let aged = self.bookings.iter().filter(|(_, booking)| self.may_have_expired(booking));
        aged.map(|(id, _)| id.clone()).collect()
    }

    /// Ids that may be live, in order.
    pub fn candidates(&self) -> Vec<String> {
        let live = self.bookings.iter().filter(|(_, booking)| booking.is_live != Certainty::No);
        live.map(|(id, _)| id.clone()).collect()
    }

    /// A worker left the catalog; a replica that does not run (`all_know` is false) may never notice.
    pub fn worker_left(&mut self, worker: u64, all_know: bool) {
        for booking in self.bookings.values_mut().filter(|booking| booking.worker == worker) {
            booking.is_live = match booking.is_live {
                Certainty::Yes | Certainty::Maybe if !all_know => Certainty::Maybe,
                _ => Certainty::No,
            };
        }
    }

    /// What `replica` publishes does not reach everybody from now on.
    pub fn breaks(&mut self, replica: usize) {
        let now = Instant::now();
        let entry = self.unsettled.entry(replica).or_insert((now, None));
        if entry.1.is_some_and(|healed| now - healed > SETTLES) {
            entry.0 = now;
        }
        entry.1 = None;
    }

    /// It does again.
    pub fn heals(&mut self, replica: usize) {
        if let Some(entry) = self.unsettled.get_mut(&replica) {
            entry.1.get_or_insert_with(Instant::now);
        }
    }

    /// `replica` died: what it answered lately may be lost.
    pub fn died(&mut self, replica: usize) {
        let now = Instant::now();
        let lately = now - SETTLES;
        let from = match self.unsettled.get(&replica) {
            Some(&(since, healed)) if healed.is_none_or(|healed| healed > lately) => since.min(lately),
            _ => lately,
        };
        for booking in self.bookings.values_mut() {
            for &(at, when, call) in &booking.calls {
                if at == replica && when >= from {
                    match call {
                        Call::Made | Call::Ended if booking.is_live == Certainty::No && call == Call::Made => {}
                        Call::Made | Call::Ended => booking.is_live = Certainty::Maybe,
                        Call::Done => booking.is_done = Certainty::Maybe,
                    }
                }
            }
        }
    }

    /// What contradicts the model, those `aged` apart.
    pub fn objections(&self, known: &Knowledge, aged: &BTreeSet<String>) -> Vec<String> {
        let mut objections = Vec::new();
        for (id, booking) in self.bookings.iter().filter(|(id, _)| !aged.contains(*id)) {
            match (booking.is_live, known.bookings.get(id)) {
                (Certainty::Yes, None) => objections.push(format!("{id} is lost: {booking:?}")),
                (Certainty::No, Some(_)) => objections.push(format!("{id} has ended: {booking:?}")),
                (_, Some(&(worker, rank, is_done))) => {
                    if (worker, rank) != (booking.worker, booking.rank) {
                        objections.push(format!("{id} is elsewhere: {booking:?}"));
                    }
                    if booking.is_done != Certainty::Maybe && is_done != (booking.is_done == Certainty::Yes) {
                        objections.push(format!("the prefill of {id} is wrong: {booking:?}"));
                    }
                }
                (_, None) => {}
            }
        }
        let strangers = known.bookings.keys().filter(|id| !self.bookings.contains_key(*id));
        objections.extend(strangers.map(|id| format!("{id} was never made")));
        objections
    }
}
