//! The queue of one partition: who waits, who goes next, who is refused. Pure: it lives under the partition's lock and
//! is told the time.
//!
//! A request that goes decides and books before anybody else of the queue is judged, so each judgement sees the load
//! of all before it: either at once, in the critical section it came in, or by a *grant*. There is one grant at a time;
//! it ends when its request has decided, or gives up, or takes longer than [`GRANT_PATIENCE`] to be run.
//!
//! Invariants: a request is in exactly one lane of one class, or gone; what is gone was told so or took itself out;
//! totals are sums over what waits.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    counters::{ClassCounters, Counters, Departure},
    lanes::{EntryId, Head, Lanes},
    limits::{QueueLimits, Totals, class_limit, never_queues, partition_limit},
    order::{OrderKey, Rank},
    placement::Placement,
    profile::{PolicyClass, PolicyProfile},
    round_robin::{RoundRobin, Share, Standing},
    signal::{Signal, Word},
};
use crate::selection::{
    error::SelectionError,
    load::{BusyThreshold, LoadTracker},
    moment::Moment,
    slab::Slab,
};

/// Looks at lanes in one hold of the partition's lock.
const WORK_A_TURN: usize = 256;
/// How long a granted request may take to be run before it holds back others no longer.
const GRANT_PATIENCE: Duration = Duration::from_secs(1);
/// Everything is looked at again this often, as in the reference.
const RECHECK_PERIOD: Duration = Duration::from_secs(60);

/// A request that comes.
#[derive(Clone, Debug)]
pub(in crate::selection) struct Arriving<'a> {
    /// Policy class or family it names.
    pub(in crate::selection) class_name: Option<&'a str>,
    /// Where it may go.
    pub(in crate::selection) placement: Placement,
    /// Prompt length.
    pub(in crate::selection) isl_tokens: u64,
    /// Cost in the round robin and for `wspt` instead of the uncached tokens.
    pub(in crate::selection) scheduling_cost: Option<u64>,
    /// See [`Rank`].
    pub(in crate::selection) strict_priority: u32,
    /// See [`Rank`].
    pub(in crate::selection) priority_jump: f64,
    /// When it gets late; it goes before those without, and is refused afterwards.
    pub(in crate::selection) due: Option<Moment>,
    /// When it came, where that was before now.
    pub(in crate::selection) came: Option<Moment>,
    /// When it is refused; orders nothing.
    pub(in crate::selection) deadline: Option<Moment>,
}

/// The place of a request that waits.
#[derive(Clone, Debug)]
pub(in crate::selection) struct Ticket {
    entry: EntryId,
    number: u64,
    /// When it came.
    pub(in crate::selection) arrived: Moment,
    /// Where it is told.
    pub(in crate::selection) signal: Arc<Signal>,
}

/// What becomes of a request that comes.
#[derive(Clone, Debug)]
pub(in crate::selection) enum Arrival {
    /// It decides now, in the critical section it came in.
    Admitted,
    /// It waits.
    Waits(Ticket),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) class: usize,
    lane: u32,
    key: OrderKey,
    placement: Placement,
    class_name: Option<Arc<str>>,
    rank: Rank,
    isl_tokens: u64,
    cached_tokens: u64,
    /// The earlier of due time and deadline.
    expires: Option<Moment>,
    signal: Arc<Signal>,
}

impl Entry {
    pub(super) fn arrived(&self) -> Moment {
        self.rank.arrived
    }
}

#[derive(Debug)]
pub(super) struct Class {
    pub(super) spec: PolicyClass,
    /// Its threshold among the boards of the load tracker; ranks are never busy without one.
    pub(super) board: Option<usize>,
    pub(super) lanes: Lanes,
    pub(super) waiting: Totals,
    counters: Arc<ClassCounters>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    number: u64,
    /// When it was first seen by [`AdmissionQueue::tick`].
    seen: Option<Moment>,
}

/// The queue of one partition.
#[derive(Debug)]
pub struct AdmissionQueue {
    profile: Arc<PolicyProfile>,
    /// Whether anybody may have to wait.
    is_on: bool,
    limits: QueueLimits,
    pub(super) classes: Vec<Class>,
    pub(super) shares: Vec<Share>,
    turn: RoundRobin,
    standings: Vec<Standing>,
    heads: Vec<Option<EntryId>>,
    pub(super) entries: Slab<Entry>,
    pub(super) waiting: Totals,
    expiries: BTreeSet<(Moment, EntryId)>,
    last_number: u64,
    grant: Option<Grant>,
    /// Told and not woken yet.
    told: Vec<Arc<Signal>>,
    /// Lanes are left to be looked at.
    unfinished: bool,
    next_recheck: Moment,
    pub(super) counters: Counters,
}

impl AdmissionQueue {
    /// An empty queue; [`Self::attach`] it before its first use.
    pub(in crate::selection) fn new(profile: Arc<PolicyProfile>, limits: QueueLimits) -> Self {
        let mut queue = Self {
            is_on: false,
            profile: Arc::clone(&profile),
            limits,
            classes: Vec::new(),
            shares: Vec::new(),
            turn: RoundRobin::default(),
            standings: Vec::new(),
            heads: Vec::new(),
            entries: Slab::new(),
            waiting: Totals::default(),
            expiries: BTreeSet::new(),
            last_number: 0,
            grant: None,
            told: Vec::new(),
            unfinished: false,
            next_recheck: Moment::default(),
            counters: Counters::default(),
        };
        queue.adopt(profile);
        queue
    }

    /// Takes over the classes of a profile; nothing waits in them yet.
    fn adopt(&mut self, profile: Arc<PolicyProfile>) {
        let mut boards: Vec<BusyThreshold> = Vec::new();
        let mut classes = Vec::with_capacity(profile.classes.len());
        let mut shares = Vec::with_capacity(profile.classes.len());
        for spec in &profile.classes {
            let threshold = threshold_of(spec);
            let board = threshold.map(|threshold| {
                boards.iter().position(|known| *known == threshold).unwrap_or_else(|| {
                    boards.push(threshold);
                    boards.len() - 1
                })
            });
            // What a class of the same name had earned it keeps.
            let known = self.classes.iter().position(|class| class.spec.name == spec.name);
            let deficit = known.map_or(0, |at| self.shares[at].deficit);
            shares.push(Share { quantum: spec.quantum, deficit });
            let counters = self.counters.of(&spec.name);
            classes.push(Class {
                spec: spec.clone(),
                board,
                lanes: Lanes::new(),
                waiting: Totals::default(),
                counters,
            });
        }
        self.is_on = profile.queues();
        self.turn = RoundRobin::default();
        self.standings = vec![Standing::Empty; classes.len()];
        self.heads = vec![None; classes.len()];
        (self.classes, self.shares, self.profile) = (classes, shares, profile);
    }

    /// Has a tracker that is new to the queue keep up which ranks are busy.
    pub(in crate::selection) fn attach(&mut self, load: &mut LoadTracker) {
        let mut boards: Vec<BusyThreshold> = Vec::new();
        for class in &self.classes {
            if let Some(threshold) = threshold_of(&class.spec)
                && !boards.contains(&threshold)
            {
                boards.push(threshold);
            }
        }
        load.watch_busy(&boards);
    }

    /// Replaces the profile. What waits is put into the class its request names in the new one; nothing is refused by
    /// the new limits.
    pub(in crate::selection) fn set_profile(&mut self, profile: Arc<PolicyProfile>, load: &mut LoadTracker) {
        if *self.profile == *profile {
            return;
        }
        self.adopt(profile);
        let ids: Vec<EntryId> = self.entries.keys().collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(id) else { continue };
            let uncached = entry.isl_tokens.saturating_sub(entry.cached_tokens);
            entry.class = self.profile.resolve(entry.class_name.as_deref(), uncached);
            let class = &mut self.classes[entry.class];
            entry.key = OrderKey::new(&entry.rank, class.spec.queue_policy, entry.key.number);
            entry.lane = class.lanes.insert(entry.key, id, entry.placement.clone());
            class.waiting.add(entry.isl_tokens, entry.cached_tokens);
        }
        for (share, class) in self.shares.iter_mut().zip(&self.classes) {
            if class.lanes.is_empty() {
                share.deficit = 0;
            }
        }
        self.attach(load);
    }

    /// Whether requests pass it at all.
    #[inline]
    pub(in crate::selection) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether nobody waits, and nobody is to be woken.
    #[inline]
    pub(in crate::selection) fn is_quiet(&self) -> bool {
        self.entries.len() == 0 && self.told.is_empty()
    }

    /// A request comes: it goes, waits, or is refused. `workers` is the number of workers in the partition; `cached`
    /// gives the best estimate of cached tokens among the ranks a request may go to, and is asked only where that matters.
    ///
    /// # Errors
    /// 429 when a limit is reached.
    pub(in crate::selection) fn arrive(
        &mut self,
        request: Arriving<'_>,
        load: &mut LoadTracker,
        workers: u64,
        now: Moment,
        cached: impl Fn(&LoadTracker, &Placement) -> u64,
    ) -> Result<Arrival, SelectionError> {
        let estimate = |load: &LoadTracker| cached(load, &request.placement).min(request.isl_tokens);
        let known = (self.profile.buckets.len() > 1).then(|| estimate(load));
        let at = self.profile.resolve(request.class_name, request.isl_tokens - known.unwrap_or(0));
        let class = &self.classes[at];
        if workers == 0 {
            // Limits would all be 0; it is to learn that nobody is there.
            class.counters.went(Duration::ZERO);
            return Ok(Arrival::Admitted);
        }
        let mut is_blocked = request.placement.is_blocked(load, class.board);
        if is_blocked && self.entries.len() == 0 {
            // The tick looks at prefills that go on by themselves only while somebody waits.
            load.refresh_busy(now);
            is_blocked = request.placement.is_blocked(load, class.board);
        }
        if never_queues(&class.spec, self.limits) && (class.board.is_none() || class.lanes.is_empty() && !is_blocked) {
            class.counters.went(Duration::ZERO);
            return Ok(Arrival::Admitted);
        }
        let reached = class_limit(&class.spec, class.waiting, workers).or_else(|| {
            // A backlog of ranks that this request does not need is no reason to idle those it may go to.
            let limits = if is_blocked { self.limits } else { self.limits.with_room() };
            partition_limit(&class.spec, self.waiting, limits)
        });
        if let Some((kind, rejection)) = reached {
            class.counters.rejected(kind);
            return Err(SelectionError::QueueRejected(rejection));
        }
        if self.entries.len() == 0 && self.grant.is_none() && !is_blocked {
            // It would be the only one: it goes, whatever it costs, and its class has nothing left.
            class.counters.went(Duration::ZERO);
            self.turn.took(&mut self.shares, at, 0, true);
            return Ok(Arrival::Admitted);
        }
        let cached_tokens = known.unwrap_or_else(|| estimate(load));
        let cost = request.scheduling_cost.unwrap_or(request.isl_tokens - cached_tokens).max(1);
        let rank = Rank {
            strict_priority: request.strict_priority,
            due: request.due,
            jump: request.priority_jump,
            arrived: request.came.unwrap_or(now).min(now),
            cost,
        };
        self.last_number += 1;
        let number = self.last_number;
        let key = OrderKey::new(&rank, class.spec.queue_policy, number);
        let signal = Arc::new(Signal::default());
        let expires = request.due.into_iter().chain(request.deadline).min();
        let entry = self.entries.insert(Entry {
            class: at,
            lane: 0,
            key,
            placement: request.placement.clone(),
            class_name: request.class_name.map(Arc::from),
            rank,
            isl_tokens: request.isl_tokens,
            cached_tokens,
            expires,
            signal: Arc::clone(&signal),
        });
        let class = &mut self.classes[at];
        self.entries[entry].lane = class.lanes.insert(key, entry, request.placement);
        class.waiting.add(request.isl_tokens, cached_tokens);
        self.waiting.add(request.isl_tokens, cached_tokens);
        if let Some(expires) = expires {
            self.expiries.insert((expires, entry));
        }
        match self.next(load) {
            Some(first) if first == entry => {
                self.take(entry);
                self.classes[at].counters.went(Duration::ZERO);
                Ok(Arrival::Admitted)
            }
            first => {
                if let Some(first) = first {
                    self.grant(first);
                }
                Ok(Arrival::Waits(Ticket { entry, number, arrived: now, signal }))
            }
        }
    }

    /// Lets the next request go, if there is one and nobody has a grant. Call it whenever something happened; it costs
    /// nothing that an event or an arrival has not paid for.
    pub(in crate::selection) fn advance(&mut self, load: &mut LoadTracker) {
        if let Some(first) = self.next(load) {
            self.grant(first);
        }
    }

    /// The request that goes next; it still waits. `None` while there is a grant.
    fn next(&mut self, load: &mut LoadTracker) -> Option<EntryId> {
        if self.entries.len() == 0 || self.grant.is_some() {
            self.unfinished = false;
            return None;
        }
        let touched = load.take_touched();
        if touched.all || !touched.ranks.is_empty() {
            self.classes.iter_mut().for_each(|class| class.lanes.touch(&touched, load));
        }
        let mut work = WORK_A_TURN;
        self.unfinished = false;
        for (at, class) in self.classes.iter_mut().enumerate() {
            let head = class.lanes.best(load, class.board, &mut work);
            (self.standings[at], self.heads[at]) = match head {
                Head::Ready(entry) => (Standing::Ready(self.entries[entry].rank.cost), Some(entry)),
                Head::Blocked if class.lanes.is_empty() => (Standing::Empty, None),
                Head::Blocked => (Standing::Blocked, None),
                Head::Unknown => {
                    // Nobody goes on half a picture; the rest is looked at in the next turn.
                    self.unfinished = true;
                    return None;
                }
            };
        }
        let chosen = self.turn.choose(&mut self.shares, &self.standings)?;
        self.heads[chosen]
    }

    /// Whether a turn ended before all lanes were looked at: [`Self::advance`] has more to do.
    pub(in crate::selection) fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// The chosen request goes: it pays, and waits no longer.
    fn take(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.remove(id)?;
        let is_empty = self.classes[entry.class].lanes.is_empty();
        self.turn.took(&mut self.shares, entry.class, entry.rank.cost, is_empty);
        Some(entry)
    }

    fn grant(&mut self, id: EntryId) {
        let Some(entry) = self.take(id) else { return };
        self.grant = Some(Grant { number: entry.key.number, seen: None });
        entry.signal.tell(Word::Granted(Arc::clone(&self.classes[entry.class].counters)));
        self.told.push(entry.signal);
    }

    /// Takes a request out of everything. O(log n).
    fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        let class = &mut self.classes[entry.class];
        class.lanes.remove(entry.lane, entry.key);
        class.waiting.remove(entry.isl_tokens, entry.cached_tokens);
        if class.lanes.is_empty() {
            self.shares[entry.class].deficit = 0;
        }
        self.waiting.remove(entry.isl_tokens, entry.cached_tokens);
        if let Some(expires) = entry.expires {
            self.expiries.remove(&(expires, id));
        }
        Some(entry)
    }

    /// The request of a grant decides now, in this critical section. Others go on afterwards.
    pub(in crate::selection) fn redeem(&mut self, ticket: &Ticket) {
        if self.grant.is_some_and(|grant| grant.number == ticket.number) {
            self.grant = None;
        }
    }

    /// A request leaves: its place, or its grant, is free at once.
    pub(in crate::selection) fn cancel(&mut self, ticket: &Ticket, why: Departure) {
        self.redeem(ticket);
        if self.entries.get(ticket.entry).is_some_and(|entry| entry.key.number == ticket.number)
            && let Some(entry) = self.remove(ticket.entry)
        {
            self.classes[entry.class].counters.left(why);
        }
    }

    /// Time passes: what is late is refused, and what changes by itself is looked at.
    pub(in crate::selection) fn tick(&mut self, load: &mut LoadTracker, now: Moment) {
        while let Some(&(expires, id)) = self.expiries.first()
            && expires <= now
        {
            self.expiries.pop_first();
            if let Some(entry) = self.remove(id) {
                self.classes[entry.class].counters.left(Departure::Expired);
                entry.signal.tell(Word::Failed(SelectionError::DeadlineExceeded));
                self.told.push(entry.signal);
            }
        }
        match &mut self.grant {
            // Its task is not run: others need not wait for it. It still decides when it is.
            Some(Grant { seen: Some(seen), .. }) if now.since(*seen) >= GRANT_PATIENCE => self.grant = None,
            Some(grant) => {
                grant.seen.get_or_insert(now);
            }
            None => {}
        }
        if self.entries.len() > 0 {
            load.refresh_busy(now);
            if now >= self.next_recheck {
                self.next_recheck = now.after(RECHECK_PERIOD);
                self.classes.iter_mut().for_each(|class| class.lanes.unpark_all());
            }
        }
    }

    /// Everybody who waits is refused.
    pub(in crate::selection) fn fail_all(&mut self, error: &SelectionError) {
        let ids: Vec<EntryId> = self.entries.keys().collect();
        for id in ids {
            if let Some(entry) = self.remove(id) {
                entry.signal.tell(Word::Failed(error.clone()));
                self.told.push(entry.signal);
            }
        }
    }

    /// After a panic of its own: nothing of it is trusted, and everybody who waits is told.
    pub(in crate::selection) fn reset(&mut self, load: &mut LoadTracker) {
        let error = SelectionError::Internal("admission queue failed and was rebuilt".to_owned());
        for id in self.entries.keys().collect::<Vec<_>>() {
            if let Some(entry) = self.entries.remove(id) {
                entry.signal.tell(Word::Failed(error.clone()));
                self.told.push(entry.signal);
            }
        }
        (self.waiting, self.grant, self.unfinished) = (Totals::default(), None, false);
        self.expiries.clear();
        self.adopt(Arc::clone(&self.profile));
        self.attach(load);
    }

    /// Whoever was told something since the last call, to be woken without the lock.
    pub(in crate::selection) fn take_told(&mut self) -> Vec<Arc<Signal>> {
        std::mem::take(&mut self.told)
    }

    /// Most requests and prompt tokens that may wait.
    pub(super) fn limits(&self) -> (u64, u64) {
        (self.limits.requests, self.limits.tokens)
    }

    /// Requests and prompt tokens that wait.
    pub(in crate::selection) fn totals(&self) -> (u64, u64) {
        (self.waiting.requests, self.waiting.raw_tokens)
    }
}

fn threshold_of(spec: &PolicyClass) -> Option<BusyThreshold> {
    let threshold = BusyThreshold { tokens: spec.prefill_busy_threshold, fraction: spec.prefill_busy_threshold_frac };
    (threshold != BusyThreshold::default()).then_some(threshold)
}
