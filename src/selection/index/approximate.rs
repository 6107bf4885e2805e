//! An index of the router's own decisions, for engines without events and for predict-on-route: each booking records
//! its prompt for the chosen rank, and each block goes at its deadline unless booked again (spec index 8.1).
//!
//! Deadlines are ticks of 100 ms since the start. A rank's blocks are kept as runs: pieces of prompts that were always
//! booked together and so go together; a booking that ends or leaves inside a run cuts it in two. Invariants: a block a
//! rank holds is in one run; within a run each block is the parent of the next; a run is queued once, for the deadline
//! it had when it was queued; when that comes and a later booking has moved the deadline, it is queued again. So memory
//! is bounded by the blocks that are held, however often they are booked, and a run costs one visit a TTL.

use std::{collections::BTreeMap, time::Duration};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{PrefixIndex, StoredBlock};
use crate::selection::{
    identity::{Tier, WorkerWithDpRank},
    moment::Moment,
};

/// Length of a tick of the expiry clock.
const TICK: Duration = Duration::from_millis(100);

/// Most blocks of a run; bounds the copy that a cut makes. Tests meet the edge with short prompts.
const MAX_RUN: usize = if cfg!(test) { 8 } else { 512 };

/// Prefix index whose blocks expire `ttl` after they were last booked, rounded up to 100 ms.
#[derive(Debug)]
pub struct ApproximateIndex {
    index: PrefixIndex,
    ttl: Duration,
    start: Moment,
    expiry: Mutex<Expiry>,
}

/// Blocks of one rank that go together.
#[derive(Debug)]
struct Run {
    /// Tick at which they go.
    deadline: u32,
    seqs: Box<[u64]>,
}

/// Runs of one rank by their first seqs.
type Runs = HashMap<u64, Run>;

/// When what goes.
#[derive(Debug, Default)]
struct Expiry {
    ranks: HashMap<WorkerWithDpRank, Runs>,
    due: Due,
}

/// What is looked at at a tick.
#[derive(Debug, Default)]
struct Due(BTreeMap<u32, Vec<(WorkerWithDpRank, u64)>>);

impl Due {
    fn queue(&mut self, tick: u32, rank: WorkerWithDpRank, first: u64) {
        self.0.entry(tick).or_default().push((rank, first));
    }

    /// Something that is due at or before `tick`.
    fn next(&mut self, tick: u32) -> Option<(WorkerWithDpRank, u64)> {
        let mut due = self.0.first_entry().filter(|entry| *entry.key() <= tick)?;
        let next = due.get_mut().pop();
        if due.get().is_empty() {
            due.remove();
        }
        next
    }
}

/// Blocks at which `run` and `prompt` agree; their first ones are known to. A seq fixes all before it.
fn matching(run: &[u64], prompt: &[u64]) -> usize {
    let both = run.len().min(prompt.len());
    if run[both - 1] == prompt[both - 1] {
        return both;
    }
    run.iter().zip(prompt).take_while(|(a, b)| a == b).count()
}

impl Expiry {
    /// `rank` holds the blocks `seqs`, from the root on, until `deadline`.
    fn book(&mut self, rank: WorkerWithDpRank, seqs: &[u64], deadline: u32) {
        let runs = self.ranks.entry(rank).or_default();
        let mut rest = seqs;
        while let Some(&first) = rest.first() {
            let Some(run) = runs.get_mut(&first) else {
                // Not past a block that begins a run: its parent may have gone before it.
                let most = rest.len().min(MAX_RUN);
                let length = (1..most).find(|&at| runs.contains_key(&rest[at])).unwrap_or(most);
                let (fresh, after) = rest.split_at(length);
                runs.insert(first, Run { deadline, seqs: fresh.into() });
                self.due.queue(deadline, rank, first);
                rest = after;
                continue;
            };
            let matched = matching(&run.seqs, rest);
            let before = std::mem::replace(&mut run.deadline, deadline);
            if matched < run.seqs.len() {
                let (upper, lower) = run.seqs.split_at(matched);
                let (upper, lower): (Box<[u64]>, Box<[u64]>) = (upper.into(), lower.into());
                run.seqs = upper;
                self.due.queue(before, rank, lower[0]);
                runs.insert(lower[0], Run { deadline: before, seqs: lower });
            }
            rest = &rest[matched..];
        }
    }

    /// The next blocks that go at or before `tick`; none when they were booked again. `None` when nothing is due.
    fn next(&mut self, tick: u32) -> Option<(WorkerWithDpRank, Box<[u64]>)> {
        let (rank, first) = self.due.next(tick)?;
        let nothing = Some((rank, Box::default()));
        let Some(runs) = self.ranks.get_mut(&rank) else { return nothing };
        let Some(run) = runs.get(&first) else { return nothing };
        if run.deadline > tick {
            self.due.queue(run.deadline, rank, first);
            return nothing;
        }
        let Some(gone) = runs.remove(&first) else { return nothing };
        // Gives memory back as blocks go, a quarter at a time.
        if runs.is_empty() {
            self.ranks.remove(&rank);
        } else if runs.len() * 4 < runs.capacity() {
            runs.shrink_to(runs.len() * 2);
        }
        Some((rank, gone.seqs))
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
            if !seqs.is_empty() {
                gone += self.index.remove(rank, Tier::Device, &seqs).removed;
            }
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
        assert!(expiry.due.0.is_empty() && expiry.ranks.is_empty());
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
    fn a_run_is_queued_once_however_often_it_is_booked() {
        let index = ApproximateIndex::new(Duration::from_secs(1), ms(0));
        let locals: Vec<u64> = (1..=100).collect();
        for k in 0..5_000 {
            index.record(A, &locals, &seqs_of(&locals), ms(k));
            index.expire(ms(k));
        }
        let expiry = index.expiry.lock();
        let (queued, runs): (usize, usize) = (expiry.due.0.values().map(Vec::len).sum(), expiry.ranks[&A].len());
        assert_eq!((queued, runs, matched(&index, A, &locals)), (runs, 100_usize.div_ceil(MAX_RUN), 100));
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
                let expiry = index.expiry.lock();
                let queued: usize = expiry.due.0.values().map(Vec::len).sum();
                let runs = || expiry.ranks.values().flat_map(|runs| runs.values());
                let blocks: usize = runs().map(|run| run.seqs.len()).sum();
                assert_eq!((queued, blocks), (runs().count(), deadlines.len()), "seed {seed} step {step}");
            }
        }
    }
}
