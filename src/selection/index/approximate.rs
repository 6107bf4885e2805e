//! An index of the router's own decisions, for engines without events and for predict-on-route: each booking records
//! its prompt for the chosen rank, and each block goes at its deadline unless booked again (spec index 8.1).
//!
//! Deadlines are ticks of 100 ms since the start, kept by rank and block. A block is queued once, for the deadline it
//! had when it was queued; when that comes and a later booking has moved the deadline, it is queued again. So memory
//! is bounded by the blocks that are held, however often they are booked, and a block costs one visit a TTL.

use std::{collections::BTreeMap, time::Duration};

use hashbrown::{HashMap, hash_map::Entry};
use parking_lot::Mutex;

use super::{PrefixIndex, StoredBlock};
use crate::selection::{
    identity::{Tier, WorkerWithDpRank},
    moment::Moment,
};

/// Length of a tick of the expiry clock.
const TICK: Duration = Duration::from_millis(100);

/// Prefix index whose blocks expire `ttl` after they were last booked, rounded up to 100 ms.
#[derive(Debug)]
pub struct ApproximateIndex {
    index: PrefixIndex,
    ttl: Duration,
    start: Moment,
    expiry: Mutex<Expiry>,
}

/// Blocks of one rank, by their seqs.
type Blocks = (WorkerWithDpRank, Box<[u64]>);

/// When what goes.
#[derive(Debug, Default)]
struct Expiry {
    /// Tick at which a block of a rank goes.
    deadlines: HashMap<WorkerWithDpRank, HashMap<u64, u32>>,
    /// What is looked at at a tick.
    due: BTreeMap<u32, Vec<Blocks>>,
}

impl Expiry {
    /// `rank` holds `seqs` until `deadline`.
    fn book(&mut self, rank: WorkerWithDpRank, seqs: &[u64], deadline: u32) {
        let deadlines = self.deadlines.entry(rank).or_default();
        let mut fresh = Vec::new();
        for &seq in seqs {
            match deadlines.entry(seq) {
                Entry::Occupied(mut held) => *held.get_mut() = deadline,
                Entry::Vacant(free) => {
                    free.insert(deadline);
                    fresh.push(seq);
                }
            }
        }
        self.queue(deadline, rank, fresh);
    }

    fn queue(&mut self, tick: u32, rank: WorkerWithDpRank, seqs: Vec<u64>) {
        if !seqs.is_empty() {
            self.due.entry(tick).or_default().push((rank, seqs.into()));
        }
    }

    /// The next blocks that go at or before `tick`; those that were booked again are queued again. `None` when nothing
    /// is due.
    fn next(&mut self, tick: u32) -> Option<(WorkerWithDpRank, Vec<u64>)> {
        let mut due = self.due.first_entry().filter(|entry| *entry.key() <= tick)?;
        let blocks = due.get_mut().pop();
        if due.get().is_empty() {
            due.remove();
        }
        let (rank, seqs) = blocks?;
        let Some(deadlines) = self.deadlines.get_mut(&rank) else { return Some((rank, Vec::new())) };
        let mut gone = Vec::new();
        let mut later: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for &seq in &seqs {
            match deadlines.get(&seq) {
                Some(&deadline) if deadline > tick => later.entry(deadline).or_default().push(seq),
                Some(_) => {
                    deadlines.remove(&seq);
                    gone.push(seq);
                }
                None => {}
            }
        }
        // Gives memory back as blocks go, a quarter at a time.
        if deadlines.is_empty() {
            self.deadlines.remove(&rank);
        } else if deadlines.len() * 4 < deadlines.capacity() {
            deadlines.shrink_to(deadlines.len() * 2);
        }
        for (tick, seqs) in later {
            self.queue(tick, rank, seqs);
        }
        Some((rank, gone))
    }
}

impl ApproximateIndex {
    /// An empty index whose deadlines are multiples of 100 ms counted from `start`.
    pub fn new(ttl: Duration, start: Moment) -> Self {
        Self { index: PrefixIndex::new(), ttl, start, expiry: Mutex::default() }
    }

    /// The index itself, for slots, lookups, removal of workers and dumps.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// `rank` was sent this prompt: its blocks (named by their seqs) count until the new deadline.
    pub fn record(&self, rank: WorkerWithDpRank, locals: &[u64], seqs: &[u64], now: Moment) {
        let n = locals.len().min(seqs.len());
        if n == 0 {
            return;
        }
        let end = now.after(self.ttl).since(self.start);
        let deadline = u32::try_from(end.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u32::MAX);
        let blocks: Vec<StoredBlock> =
            locals.iter().zip(seqs).map(|(&local, &name)| StoredBlock { name, local }).collect();
        // The queue is locked around both: what expires at this moment must not take out what is booked.
        let mut expiry = self.expiry.lock();
        self.index.store(rank, Tier::Device, None, &blocks);
        expiry.book(rank, &seqs[..n], deadline);
    }

    /// Removes what is past its deadline; returns how many blocks went.
    pub fn expire(&self, now: Moment) -> usize {
        let ticks = now.since(self.start).as_nanos() / TICK.as_nanos();
        let tick = u32::try_from(ticks).unwrap_or(u32::MAX);
        let mut gone = 0;
        loop {
            // Given up between the bookings' parts: bookings come in while much expires.
            let mut expiry = self.expiry.lock();
            let Some((rank, seqs)) = expiry.next(tick) else { return gone };
            gone += self.index.remove(rank, Tier::Device, &seqs).removed;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::selection::{hash::chain, index::Matches};

    const A: WorkerWithDpRank = WorkerWithDpRank { worker_id: 1, dp_rank: 0 };
    const B: WorkerWithDpRank = WorkerWithDpRank { worker_id: 2, dp_rank: 0 };

    fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    fn seqs_of(locals: &[u64]) -> Vec<u64> {
        let mut seqs: Vec<u64> = Vec::new();
        for &local in locals {
            seqs.push(seqs.last().map_or(local, |&seq| chain(seq, local)));
        }
        seqs
    }

    fn matched(index: &ApproximateIndex, rank: WorkerWithDpRank, locals: &[u64]) -> u32 {
        let mut out = Matches::default();
        index.index().lookup(locals, &seqs_of(locals), &mut out);
        let mut blocks = 0;
        for class in &out.classes {
            class.lanes.for_each(|lane| {
                if index.index().rank_of(lane) == Some(rank) {
                    blocks = class.blocks.device;
                }
            });
        }
        blocks
    }

    #[test]
    fn blocks_go_at_the_next_tick_after_their_ttl() {
        let index = ApproximateIndex::new(Duration::from_millis(250), ms(1_030));
        index.record(A, &[1, 2], &seqs_of(&[1, 2]), ms(1_060));
        // 30 ms after the start, and 250: the deadline is 300 ms after the start.
        assert_eq!((index.expire(ms(1_329)), matched(&index, A, &[1, 2])), (0, 2));
        assert_eq!((index.expire(ms(1_330)), matched(&index, A, &[1, 2])), (2, 0));
        assert_eq!(index.index().stats().held, [0; 4]);
    }

    #[test]
    fn booking_again_moves_exactly_the_blocks_booked() {
        let index = ApproximateIndex::new(Duration::from_secs(1), ms(0));
        index.record(A, &[1, 2, 3], &seqs_of(&[1, 2, 3]), ms(0));
        index.record(B, &[1, 2, 3], &seqs_of(&[1, 2, 3]), ms(0));
        index.record(A, &[1, 2], &seqs_of(&[1, 2]), ms(500));
        assert_eq!(index.expire(ms(1_000)), 4);
        assert_eq!((matched(&index, A, &[1, 2, 3]), matched(&index, B, &[1, 2, 3])), (2, 0));
        assert_eq!((index.expire(ms(1_499)), index.expire(ms(1_500))), (0, 2));
        let expiry = index.expiry.lock();
        assert!(expiry.due.is_empty() && expiry.deadlines.is_empty());
    }

    #[test]
    fn a_removed_worker_is_forgotten_and_may_come_back() {
        let index = ApproximateIndex::new(Duration::from_secs(1), ms(0));
        index.record(A, &[1, 2], &seqs_of(&[1, 2]), ms(0));
        index.index().remove_worker(1);
        assert_eq!(matched(&index, A, &[1, 2]), 0);
        index.record(A, &[1], &[1], ms(600));
        assert_eq!((index.expire(ms(1_000)), matched(&index, A, &[1, 2])), (0, 1));
        assert_eq!((index.expire(ms(1_600)), matched(&index, A, &[1, 2])), (1, 0));
    }

    #[test]
    fn time_that_overflows_never_expires_early() {
        let index = ApproximateIndex::new(Duration::MAX, ms(0));
        index.record(A, &[1], &[1], Moment(u64::MAX - 1));
        assert_eq!((index.expire(ms(1 << 30)), matched(&index, A, &[1])), (0, 1));
    }

    #[test]
    fn a_block_is_queued_once_however_often_it_is_booked() {
        let index = ApproximateIndex::new(Duration::from_secs(1), ms(0));
        let locals: Vec<u64> = (1..=100).collect();
        for k in 0..5_000 {
            index.record(A, &locals, &seqs_of(&locals), ms(k));
            index.expire(ms(k));
        }
        let queued: usize = index.expiry.lock().due.values().flatten().map(|(_, seqs)| seqs.len()).sum();
        assert_eq!((queued, matched(&index, A, &locals)), (100, 100));
    }

    #[test]
    fn random_bookings_agree_with_a_map_of_deadlines() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let index = ApproximateIndex::new(Duration::from_millis(730), ms(17));
            let mut deadlines: HashMap<(WorkerWithDpRank, u64), u64> = HashMap::new();
            let mut now = 17;
            for step in 0..400 {
                now += rng.u64(..120);
                let (rank, length) = (if rng.bool() { A } else { B }, rng.usize(1..30));
                let locals: Vec<u64> = (0..length).map(|k| (rng.u64(..2) << 8) | (k as u64 + 1)).collect();
                if rng.bool() {
                    let seqs = seqs_of(&locals);
                    index.record(rank, &locals, &seqs, ms(now));
                    let deadline = 17 + (now + 730 - 17).div_ceil(100) * 100;
                    seqs.iter().for_each(|&seq| _ = deadlines.insert((rank, seq), deadline));
                }
                let before = deadlines.len();
                deadlines.retain(|_, deadline| *deadline > now);
                assert_eq!(index.expire(ms(now)), before - deadlines.len(), "seed {seed} step {step}");
                let want = seqs_of(&locals).iter().take_while(|&&seq| deadlines.contains_key(&(rank, seq))).count();
                assert_eq!(matched(&index, rank, &locals), want as u32, "seed {seed} step {step}");
            }
        }
    }
}
