//! Prefill work still ahead of every rank, and the order of ranks by what a prompt would cost them.
//!
//! Kept only while a policy asks for it, in a form a rank: by *events* (blocks of booked prompts that the engine has not
//! told of as stored), by *rate* (booked tokens less what the oldest prefill has had time for), or by a *clock* (booked
//! tokens put end to end at the learned rate). Events need an engine that tells of its blocks, the rate needs clients
//! that tell of first tokens; the clock needs nothing. Invariants: work ahead is never negative and never more than what
//! is booked; a rank without bookings has none.

mod expected;
mod lines;
mod rate;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

pub(in crate::selection) use self::lines::{Line, Lines};
use self::{expected::Expectations, rate::PrefillRate};
use super::{RankLoad, Slot, WorkerFacts};
use crate::selection::moment::Moment;

/// Ranks whose work falls by time are looked at again after this, [`MOST_DUE`] of them a pick.
const TICK: Duration = Duration::from_millis(10);
const MOST_DUE: usize = 64;

/// Events later than this after the first token are late.
const LATE: Duration = Duration::from_secs(2);

/// First tokens remembered until events tell of their blocks.
const MOST_UNCONFIRMED: usize = 64;

/// Part of the oldest prefill that time alone may take off: the rest waits for its first token.
const MOST_OF_HEAD: f64 = 0.95;

/// Weight of the newest booking in the share of bookings whose first token was told.
const NOTICE_WEIGHT: f64 = 0.1;

/// How work ahead is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::selection) enum WorkForm {
    /// Engines tell of stored blocks.
    Events,
    /// First tokens and a learned rate.
    #[default]
    Rate,
    /// A learned or given rate alone.
    Clock,
}

impl WorkForm {
    pub(in crate::selection) const ALL: [Self; 3] = [Self::Events, Self::Rate, Self::Clock];

    /// A stable word for explanations and metrics.
    pub(in crate::selection) fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Rate => "rate",
            Self::Clock => "clock",
        }
    }
}

/// What a policy wants kept.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::selection) struct WorkSpec {
    /// Price of delaying an active request, as a share of the prompt's own work.
    pub(in crate::selection) gamma: f64,
    /// Price of memory in use.
    pub(in crate::selection) kappa: f64,
    /// Prefill tokens a second until there is evidence.
    pub(in crate::selection) prefill_rate: f64,
    /// One form for all ranks; `None` = the best one each has.
    pub(in crate::selection) form: Option<WorkForm>,
    /// Factors of prefill speed by taint; those of all a worker's taints multiply.
    pub(in crate::selection) speeds: BTreeMap<String, f64>,
}

/// What the tracker knows of a rank when its work is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankView {
    pub(super) load: RankLoad,
    pub(super) takes_bookings: bool,
    /// Tokens of all prefills, undecayed.
    pub(super) booked: u64,
    /// Tokens of the oldest prefill and when it was booked.
    pub(super) head: Option<(u64, Moment)>,
    pub(super) total_kv_blocks: Option<u64>,
}

/// A prefill that was booked.
#[derive(Debug)]
pub(super) struct NewPrefill<'a> {
    pub(super) booking: u32,
    pub(super) sequence: &'a Arc<[u64]>,
    pub(super) tokens: u64,
}

/// How a prefill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefillEnd {
    /// Its first token was told; when it was booked.
    FirstToken(Moment),
    /// Its booking ended, and nobody told of a first token.
    Untold,
    /// Its booking expired or its rank left: that says nothing.
    Dropped,
}

/// The work of one rank.
#[derive(Debug)]
struct RankWork {
    speed: f64,
    /// Its engine tells of its blocks.
    hears_events: bool,
    events_are_late: bool,
    /// Blocks of its prefills not told of.
    missing_blocks: u64,
    /// Tokens of prefills whose blocks cannot be told of.
    untellable: u128,
    /// When the oldest prefill began at the earliest.
    last_first_token: Moment,
    /// When a clock would have done all of it.
    finish: Moment,
    /// Last blocks of prompts whose first token came before their events, oldest first.
    unconfirmed: VecDeque<(u64, Moment)>,
    form: WorkForm,
    /// Tokens ahead as of `keyed`.
    queued: u64,
    keyed: Moment,
    falls: bool,
}

/// Work ahead of all ranks of a partition.
#[derive(Debug)]
pub(in crate::selection) struct Work {
    spec: Arc<WorkSpec>,
    block_size: u32,
    ranks: Vec<Option<RankWork>>,
    expected: Expectations,
    /// Tokens of prefills in no expectation, by booking.
    untellable: hashbrown::HashMap<u32, u64>,
    rate: PrefillRate,
    /// Fading share of bookings whose first token was told.
    told: f64,
    lines: Lines,
    /// Ranks whose work falls by time, by when it was last looked at.
    falling: BTreeSet<(Moment, Slot)>,
    /// Ranks that wait for events, by when those will be late.
    deadlines: BTreeSet<(Moment, Slot)>,
    /// Ranks whose events are late, broken or absent.
    unheard: usize,
}

/// How long so many tokens take at a rate.
fn duration(tokens: u64, per_second: f64) -> Duration {
    Duration::from_secs_f64((tokens as f64 / per_second).min(1e9))
}

impl Work {
    pub(super) fn new(spec: Arc<WorkSpec>, block_size: u32) -> Self {
        Self {
            rate: PrefillRate::new(spec.prefill_rate),
            spec,
            block_size,
            ranks: Vec::new(),
            expected: Expectations::default(),
            untellable: hashbrown::HashMap::new(),
            told: 1.0,
            lines: Lines::new(),
            falling: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            unheard: 0,
        }
    }

    pub(super) fn spec(&self) -> &Arc<WorkSpec> {
        &self.spec
    }

    /// Price of delaying an active request.
    pub(in crate::selection) fn gamma(&self) -> f64 {
        self.spec.gamma
    }

    /// Ranks in order.
    pub(in crate::selection) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Tokens ahead of a rank when it was last looked at, and how they are known.
    pub(in crate::selection) fn ahead(&self, slot: Slot) -> (u64, WorkForm) {
        self.rank(slot).map_or_else(Default::default, |rank| (rank.queued, rank.form))
    }

    /// Whether the rank's events are late, broken or absent, so that own bookings stand in for them.
    pub(in crate::selection) fn is_unheard(&self, slot: Slot) -> bool {
        self.rank(slot).is_none_or(|rank| !rank.hears_events || rank.events_are_late)
    }

    /// Ranks for which [`Self::is_unheard`] holds.
    pub(in crate::selection) fn unheard(&self) -> usize {
        self.unheard
    }

    /// Tokens a second that prefills are taken to go at.
    pub(in crate::selection) fn rate(&self) -> f64 {
        self.rate.per_second()
    }

    /// Ranks by form.
    pub(in crate::selection) fn forms(&self) -> [u64; WorkForm::ALL.len()] {
        let mut counts = [0; WorkForm::ALL.len()];
        for rank in self.ranks.iter().flatten() {
            counts[rank.form as usize] += 1;
        }
        counts
    }

    fn rank(&self, slot: Slot) -> Option<&RankWork> {
        self.ranks.get(slot as usize)?.as_ref()
    }

    fn rank_mut(&mut self, slot: Slot) -> Option<&mut RankWork> {
        self.ranks.get_mut(slot as usize)?.as_mut()
    }

    /// A rank came, or its facts changed.
    pub(super) fn upsert(&mut self, slot: Slot, facts: &WorkerFacts, hears_events: bool) {
        let speeds = &self.spec.speeds;
        // A worker may have any number of taints.
        let speed = facts.taints.iter().filter_map(|taint| speeds.get(taint)).product::<f64>().clamp(1e-6, 1e6);
        if let Some(rank) = self.rank_mut(slot) {
            rank.speed = speed;
            return;
        }
        if slot as usize >= self.ranks.len() {
            self.ranks.resize_with(slot as usize + 1, || None);
        }
        self.ranks[slot as usize] = Some(RankWork {
            speed,
            hears_events,
            events_are_late: false,
            missing_blocks: 0,
            untellable: 0,
            last_first_token: Moment::default(),
            finish: Moment::default(),
            unconfirmed: VecDeque::new(),
            form: WorkForm::default(),
            queued: 0,
            keyed: Moment::default(),
            falls: false,
        });
        self.unheard += usize::from(!hears_events);
    }

    /// A rank without bookings leaves.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.unheard -= usize::from(self.rank(slot).is_some() && self.is_unheard(slot));
        let Some(rank) = self.ranks.get_mut(slot as usize).and_then(Option::take) else { return };
        self.falling.remove(&(rank.keyed, slot));
        if let Some(&(_, since)) = rank.unconfirmed.front() {
            self.deadlines.remove(&(since.after(LATE), slot));
        }
        self.lines.set(slot, None);
        while matches!(self.ranks.last(), Some(None)) {
            self.ranks.pop();
        }
    }

    /// A prefill was booked.
    pub(super) fn booked(&mut self, slot: Slot, prefill: NewPrefill<'_>, now: Moment) {
        let NewPrefill { booking, sequence, tokens } = prefill;
        if tokens == 0 {
            return;
        }
        let blocks = (tokens / u64::from(self.block_size.max(1))).min(sequence.len() as u64);
        let rate = self.rate.per_second();
        let Some(rank) = self.ranks.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        rank.finish = rank.finish.max(now).after(duration(tokens, rate * rank.speed));
        if sequence.is_empty() {
            rank.untellable += u128::from(tokens);
            self.untellable.insert(booking, tokens);
        } else if blocks > 0 {
            rank.missing_blocks += blocks;
            self.expected.expect(booking, slot, Arc::clone(sequence), blocks as u32);
        }
    }

    /// A prefill of so many tokens ended.
    pub(super) fn ended(&mut self, slot: Slot, booking: u32, tokens: u64, end: PrefillEnd, now: Moment) {
        let missing = self.expected.forget(booking);
        let untellable = self.untellable.remove(&booking).unwrap_or(0);
        let Some(rank) = self.ranks.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        rank.missing_blocks -= missing.map_or(0, |(blocks, _)| u64::from(blocks));
        rank.untellable -= u128::from(untellable);
        if end == PrefillEnd::Dropped {
            return;
        }
        let told = f64::from(u8::from(end != PrefillEnd::Untold));
        self.told += NOTICE_WEIGHT * (told - self.told);
        if let PrefillEnd::FirstToken(booked) = end {
            self.rate.learn(tokens, now.since(booked.max(rank.last_first_token)));
            rank.last_first_token = now;
        }
        if let Some((_, last)) = missing
            && rank.hears_events
        {
            rank.unconfirmed.push_back((last, now));
            if rank.unconfirmed.len() > MOST_UNCONFIRMED {
                self.drop_unconfirmed(slot, 1);
            } else if rank.unconfirmed.len() == 1 {
                self.deadlines.insert((now.after(LATE), slot));
            }
        }
    }

    /// The engine told of blocks; `sequence` has their hashes, each chained to the one before.
    pub(super) fn stored(&mut self, slot: Slot, sequence: &[u64], now: Moment) {
        let heard = self.expected.stored(slot, sequence);
        self.set_events(slot, true);
        let Some(rank) = self.rank_mut(slot) else { return };
        rank.missing_blocks -= heard;
        let confirmed = |&(last, _): &(u64, Moment)| sequence.contains(&last);
        if let Some(at) = rank.unconfirmed.iter().rposition(confirmed) {
            let late = now.since(rank.unconfirmed[at].1) > LATE;
            self.drop_unconfirmed(slot, at + 1);
            self.set_late(slot, late);
        }
    }

    /// The rank's events flow, or do not.
    pub(super) fn set_events(&mut self, slot: Slot, flow: bool) {
        let before = self.is_unheard(slot);
        let Some(rank) = self.rank_mut(slot) else { return };
        rank.hears_events = flow;
        if !flow {
            let all = rank.unconfirmed.len();
            rank.events_are_late = false;
            self.drop_unconfirmed(slot, all);
        }
        self.recount(slot, before);
    }

    fn set_late(&mut self, slot: Slot, late: bool) {
        let before = self.is_unheard(slot);
        if let Some(rank) = self.rank_mut(slot) {
            rank.events_are_late = late;
        }
        self.recount(slot, before);
    }

    fn recount(&mut self, slot: Slot, before: bool) {
        let after = self.is_unheard(slot);
        self.unheard = self.unheard + usize::from(after) - usize::from(before);
    }

    fn drop_unconfirmed(&mut self, slot: Slot, count: usize) {
        let Some(rank) = self.ranks.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if let Some(&(_, since)) = rank.unconfirmed.front() {
            self.deadlines.remove(&(since.after(LATE), slot));
        }
        rank.unconfirmed.drain(..count);
        if let Some(&(_, since)) = rank.unconfirmed.front() {
            self.deadlines.insert((since.after(LATE), slot));
        }
    }

    /// Ranks to be looked at again because of the time: some of those whose work falls, and those whose events have
    /// become late.
    pub(super) fn due(&mut self, now: Moment, due: &mut Vec<Slot>) {
        while let Some(&(at, slot)) = self.deadlines.first()
            && at < now
        {
            self.deadlines.pop_first();
            self.set_late(slot, true);
            due.push(slot);
        }
        let old = now.before(TICK);
        due.extend(self.falling.iter().take_while(|(keyed, _)| *keyed < old).take(MOST_DUE).map(|&(_, slot)| slot));
    }

    /// Looks at a rank: what is ahead of it now, and its place in the order.
    pub(super) fn refresh(&mut self, slot: Slot, view: &RankView, now: Moment) {
        let (told, rate) = (self.told, self.rate.per_second());
        let Some(rank) = self.ranks.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let best = match (rank.hears_events && !rank.events_are_late, told >= 0.5) {
            (true, _) => WorkForm::Events,
            (false, true) => WorkForm::Rate,
            (false, false) => WorkForm::Clock,
        };
        rank.form = self.spec.form.unwrap_or(best);
        let speed = rate * rank.speed;
        let ahead = match rank.form {
            WorkForm::Events => {
                let told_of = u128::from(rank.missing_blocks) * u128::from(self.block_size) + rank.untellable;
                u64::try_from(told_of).unwrap_or(u64::MAX)
            }
            WorkForm::Rate => {
                let done = view.head.map_or(0.0, |(tokens, booked)| {
                    let busy = now.since(booked.max(rank.last_first_token));
                    (speed * busy.as_secs_f64()).min(MOST_OF_HEAD * tokens as f64)
                });
                view.booked.saturating_sub(done as u64)
            }
            WorkForm::Clock => (speed * rank.finish.since(now).as_secs_f64()) as u64,
        };
        let queued = ahead.min(view.booked);
        // What is not booked any more takes no time: else one booking, however long ago it ended, would hold for all
        // after it.
        rank.finish = rank.finish.min(now.after(duration(view.booked, speed)));
        let falls = rank.form != WorkForm::Events && queued > 0;
        if rank.falls {
            self.falling.remove(&(rank.keyed, slot));
        }
        if falls {
            self.falling.insert((now, slot));
        }
        (rank.queued, rank.falls, rank.keyed) = (queued, falls, now);
        let WorkSpec { gamma, kappa, .. } = *self.spec;
        let used = view
            .total_kv_blocks
            .filter(|&blocks| blocks > 0)
            .map_or(0.0, |total| view.load.blocks as f64 / total as f64);
        let price = (1.0 + kappa * used) / rank.speed;
        let line = Line { intercept: queued as f64 * price, slope: (1.0 + gamma * view.load.requests as f64) * price };
        self.lines.set(slot, view.takes_bookings.then_some(line));
    }

    #[cfg(test)]
    pub(super) fn check(&self, views: impl Fn(Slot) -> RankView) {
        self.expected.check();
        self.lines.check();
        let mut unheard = 0;
        for (slot, rank) in self.ranks.iter().enumerate() {
            let (slot, Some(rank)) = (slot as Slot, rank) else { continue };
            let view = views(slot);
            unheard += usize::from(self.is_unheard(slot));
            assert!(rank.queued <= view.booked, "{} ahead of {} booked", rank.queued, view.booked);
            assert_eq!(self.falling.contains(&(rank.keyed, slot)), rank.falls);
            let deadline = rank.unconfirmed.front().map(|&(_, since)| (since.after(LATE), slot));
            assert!(rank.events_are_late || deadline.is_none_or(|deadline| self.deadlines.contains(&deadline)));
            if view.load.requests == 0 {
                assert_eq!((rank.missing_blocks, rank.untellable, rank.queued), (0, 0, 0));
            }
        }
        assert_eq!(self.unheard, unheard);
        assert!(self.falling.len() <= self.ranks.len() && self.deadlines.len() <= self.ranks.len());
    }

    #[cfg(test)]
    pub(super) fn has_no_prefill(&self) -> bool {
        self.expected.is_empty() && self.untellable.is_empty()
    }
}
