//! An index of the router's own decisions, for engines without events and for predict-on-route: each booking records
//! its prompt for the chosen rank, and each block goes at its deadline unless booked again (spec index 8.1).
//!
//! Deadlines are ticks of 100 ms since the start. A rank's blocks are kept as a forest of runs: pieces of prompts that
//! were always booked together and so go together; a booking that ends or leaves inside a run cuts it in two.
//! Invariants: a block that a rank holds is in one run; a run's deadline is not before its children's, since whoever
//! books a block books all before it; a run goes after its children, so that the index, which keeps no names here,
//! finds it along its path; a run is queued once, for the deadline it had when it was queued; when that comes and a
//! later booking has moved the deadline, it is queued again. So memory is bounded by the blocks that are held, however
//! often they are booked, and a run costs one visit a TTL.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{PrefixIndex, StoredBlock};
use crate::selection::{
    identity::{Tier, WorkerWithDpRank},
    moment::Moment,
    slab::Slab,
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

/// No run: the parent of those that begin at the root.
const ROOT: u32 = u32::MAX;

/// Blocks of one rank that go together. Its id is stable at its end: a cut gives a new one to the upper part.
#[derive(Debug)]
struct Run {
    /// Tick at which they go.
    deadline: u32,
    parent: u32,
    children: u32,
    seqs: Box<[u64]>,
}

/// Runs of one rank.
#[derive(Debug)]
struct Runs {
    runs: Slab<Run>,
    /// By parent and first seq.
    heads: HashMap<(u32, u64), u32>,
}

/// When what goes.
#[derive(Debug, Default)]
struct Expiry {
    ranks: HashMap<WorkerWithDpRank, Runs>,
    due: Due,
}

/// Runs that are looked at at a tick.
#[derive(Debug, Default)]
struct Due(BTreeMap<u32, VecDeque<(WorkerWithDpRank, u32)>>);

impl Due {
    fn queue(&mut self, tick: u32, rank: WorkerWithDpRank, run: u32) {
        self.0.entry(tick).or_default().push_back((rank, run));
    }

    /// Something that is due at or before `tick`, and when it was.
    fn next(&mut self, tick: u32) -> Option<(u32, WorkerWithDpRank, u32)> {
        let mut due = self.0.first_entry().filter(|entry| *entry.key() <= tick)?;
        // The newest first: children were queued after their parents.
        let next = due.get_mut().pop_back();
        let at = *due.key();
        if due.get().is_empty() {
            due.remove();
        }
        next.map(|(rank, run)| (at, rank, run))
    }
}

/// Leading blocks at which `run` and `prompt` agree.
fn matching(run: &[u64], prompt: &[u64]) -> usize {
    if prompt.starts_with(run) {
        return run.len();
    }
    run.iter().zip(prompt).take_while(|(a, b)| a == b).count()
}

impl Runs {
    fn new() -> Self {
        Self { runs: Slab::new(), heads: HashMap::new() }
    }

    /// Adds `seqs` behind `parent`.
    fn append(&mut self, parent: u32, seqs: &[u64], deadline: u32) -> u32 {
        let run = self.runs.insert(Run { deadline, parent, children: 0, seqs: seqs.into() });
        self.heads.insert((parent, seqs[0]), run);
        if parent != ROOT {
            self.runs[parent].children += 1;
        }
        run
    }

    /// Makes a run of its own of the first `at` blocks of a run, with a new deadline.
    fn cut(&mut self, run: u32, at: usize, deadline: u32) -> u32 {
        let lower = &mut self.runs[run];
        let (seqs, rest) = lower.seqs.split_at(at);
        let (seqs, rest): (Box<[u64]>, Box<[u64]>) = (seqs.into(), rest.into());
        let (parent, first, rest_first) = (lower.parent, seqs[0], rest[0]);
        lower.seqs = rest;
        let upper = self.runs.insert(Run { deadline, parent, children: 1, seqs });
        self.runs[run].parent = upper;
        self.heads.insert((parent, first), upper);
        self.heads.insert((upper, rest_first), run);
        upper
    }

    /// Takes out a run without children; returns all blocks from the root to its end, and where its own begin.
    fn take(&mut self, run: u32) -> Option<(Vec<u64>, usize)> {
        let gone = self.runs.remove(run)?;
        self.heads.remove(&(gone.parent, gone.seqs[0]));
        if gone.parent != ROOT {
            self.runs[gone.parent].children -= 1;
        }
        let (mut above, mut next) = (Vec::new(), gone.parent);
        while next != ROOT {
            above.push(next);
            next = self.runs[next].parent;
        }
        let mut path = Vec::new();
        above.iter().rev().for_each(|&run| path.extend_from_slice(&self.runs[run].seqs));
        let from = path.len();
        path.extend_from_slice(&gone.seqs);
        // Gives memory back as runs go, a quarter at a time.
        if self.heads.len() * 4 < self.heads.capacity() {
            self.heads.shrink_to(self.heads.len() * 2);
        }
        Some((path, from))
    }
}

impl Expiry {
    /// `rank` holds the blocks `seqs`, from the root on, until `deadline`.
    fn book(&mut self, rank: WorkerWithDpRank, seqs: &[u64], deadline: u32) {
        let runs = self.ranks.entry(rank).or_insert_with(Runs::new);
        let (mut parent, mut rest) = (ROOT, seqs);
        while let Some(&first) = rest.first() {
            let Some(&run) = runs.heads.get(&(parent, first)) else {
                for piece in rest.chunks(MAX_RUN) {
                    parent = runs.append(parent, piece, deadline);
                    self.due.queue(deadline, rank, parent);
                }
                return;
            };
            let known = &mut runs.runs[run];
            let matched = matching(&known.seqs, rest);
            let later = known.deadline.max(deadline);
            if matched == known.seqs.len() {
                known.deadline = later;
                parent = run;
            } else {
                parent = runs.cut(run, matched, later);
                self.due.queue(later, rank, parent);
            }
            rest = &rest[matched..];
        }
    }

    /// The next blocks that go at or before `tick`: the whole path to them, and where they begin. An empty path when a
    /// run has to wait. `None` when nothing is due.
    fn next(&mut self, tick: u32) -> Option<(WorkerWithDpRank, Vec<u64>, usize)> {
        let (at, rank, run) = self.due.next(tick)?;
        let nothing = (rank, Vec::new(), 0);
        let Some(runs) = self.ranks.get_mut(&rank) else { return Some(nothing) };
        let Some(&Run { deadline, children, .. }) = runs.runs.get(run) else { return Some(nothing) };
        if deadline > tick || (children > 0 && deadline > at) {
            self.due.queue(deadline, rank, run);
            return Some(nothing);
        }
        if children > 0 {
            // They are queued for no later, so they come first.
            self.due.0.entry(at).or_default().push_front((rank, run));
            return Some(nothing);
        }
        let gone = runs.take(run);
        if runs.heads.is_empty() {
            self.ranks.remove(&rank);
        }
        gone.map(|(path, from)| (rank, path, from)).or(Some(nothing))
    }
}

impl ApproximateIndex {
    /// An empty index whose deadlines are multiples of 100 ms counted from `start`.
    pub fn new(ttl: Duration, start: Moment) -> Self {
        Self { index: PrefixIndex::by_seqs(), ttl, start, expiry: Mutex::default() }
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
            let Some((rank, path, from)) = expiry.next(tick) else { return gone };
            if !path.is_empty() {
                gone += self.index.remove_path(rank, Tier::Device, &path, from);
            }
        }
    }
}

#[cfg(all(test, not(model_check)))]
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
        let (queued, runs): (usize, usize) =
            (expiry.due.0.values().map(VecDeque::len).sum(), expiry.ranks[&A].runs.len());
        assert_eq!((queued, runs, matched(&index, A, &locals)), (runs, 100_usize.div_ceil(MAX_RUN), 100));
    }

    #[test]
    fn random_bookings_agree_with_a_map_of_deadlines() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            // Short prompts that share little, or long ones that share much.
            let (longest, variety) = if seed % 2 == 0 { (30, 2) } else { (200, 60) };
            let index = ApproximateIndex::new(Duration::from_millis(730), ms(17));
            let mut deadlines: HashMap<(WorkerWithDpRank, u64), u64> = HashMap::new();
            let mut now = 17;
            for step in 0..400 {
                now += rng.u64(..120);
                let (rank, length) = (if rng.bool() { A } else { B }, rng.usize(1..longest));
                let local = |k| (u64::from(rng.u8(..variety) == 0) << 8) | (k as u64 + 1);
                let locals: Vec<u64> = (0..length).map(local).collect();
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
                let queued: usize = expiry.due.0.values().map(VecDeque::len).sum();
                let runs = || expiry.ranks.values().flat_map(|runs| runs.runs.iter());
                let blocks: usize = runs().map(|(_, run)| run.seqs.len()).sum();
                assert_eq!((queued, blocks), (runs().count(), deadlines.len()), "seed {seed} step {step}");
                index.index.check();
            }
        }
    }
}
