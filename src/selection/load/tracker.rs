//! The load tracker: slots, bookings and everything derived from them, kept up to date at each change.

mod ahead;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;

use super::{
    BookingId, LoadConfig, NewBooking, RankLoad, Slot, WorkerFacts,
    bookings::Booking,
    busy::{BusyBoards, BusyThreshold, Touched},
    forest::{Change, Forest, Passed},
    order::{Order, OrderSpec},
    owners::Owners,
    ranks::{Rank, Row, TaintSets},
    slices::Slices,
    weight,
    work::{PrefillEnd, Work},
};
use crate::selection::{identity::WorkerWithDpRank, moment::Moment, slab::Slab};

/// A rank looks for expired bookings when it gets a new one, but not more often than this.
const EXPIRY_CHECK_PERIOD: Duration = Duration::from_secs(30);

/// Most orders kept; a policy needs three, six with taints.
const MAX_ORDERS: usize = 8;

/// Load of all ranks of a partition.
#[derive(Debug)]
pub struct LoadTracker {
    config: LoadConfig,
    ranks: Slab<Rank>,
    /// By slot; vacant slots have the default row.
    rows: Vec<Row>,
    taints: TaintSets,
    /// Slots in no order because their prefill tokens decay.
    decaying: BTreeSet<Slot>,
    orders: Vec<Order>,
    busy: BusyBoards,
    slots: BTreeMap<WorkerWithDpRank, Slot>,
    bookings: Slab<Booking>,
    ids: HashMap<BookingId, u32>,
    forest: Forest,
    /// Grows with every rank that comes, goes or gets other facts.
    membership: u64,
    /// Grows with every change of any rank.
    changes: u64,
    /// By slot: `changes` as of its last change.
    changed_at: Vec<u64>,
    /// Registered ranks that take no bookings.
    draining: usize,
    /// Work ahead, by what policies asked for.
    works: Vec<Work>,
    /// How many of them, from the first, were asked for since the policy changed, in the order of asking.
    claimed: usize,
    /// Memory of a look at ranks that are due.
    due: Vec<Slot>,
    /// Latest time that was told.
    latest: Moment,
}

impl LoadTracker {
    /// No rank, no load.
    pub fn new(config: LoadConfig) -> Self {
        Self {
            config,
            ranks: Slab::new(),
            rows: Vec::new(),
            taints: TaintSets::default(),
            decaying: BTreeSet::new(),
            orders: Vec::new(),
            busy: BusyBoards::default(),
            slots: BTreeMap::new(),
            bookings: Slab::new(),
            ids: HashMap::new(),
            forest: Forest::new(),
            membership: 0,
            changes: 0,
            changed_at: Vec::new(),
            draining: 0,
            works: Vec::new(),
            claimed: 0,
            due: Vec::new(),
            latest: Moment::default(),
        }
    }

    /// An empty tracker in the place of this one: its counts of changes go on.
    pub fn successor(&self) -> Self {
        let (membership, changes, latest) = (self.membership + 1, self.changes + 1, self.latest);
        Self { membership, changes, latest, ..Self::new(self.config.clone()) }
    }

    /// Grows with every rank that comes, goes or gets other facts.
    pub fn membership(&self) -> u64 {
        self.membership
    }

    /// Grows with every change of any rank.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a slot has not changed since [`Self::changes`] stood at `changes`. Decay by time is no change.
    pub fn is_unchanged_since(&self, slot: Slot, changes: u64) -> bool {
        self.changed_at.get(slot as usize).is_some_and(|&at| at <= changes)
    }

    /// Tokens a block.
    pub fn block_size(&self) -> u32 {
        self.config.block_size
    }

    /// Registers a rank with no load, or replaces the facts of a registered one and keeps its load.
    pub fn upsert_rank(&mut self, rank: WorkerWithDpRank, facts: Arc<WorkerFacts>) -> Slot {
        let taints = self.taints.enter(&facts.taints);
        let (worker_id, takes_bookings) = (facts.worker_id, !facts.draining);
        let slot = match self.slots.get(&rank) {
            Some(&slot) => {
                self.ranks[slot].facts = facts;
                self.taints.leave(self.rows[slot as usize].taints);
                slot
            }
            None => {
                let slot = self.ranks.insert(Rank::new(rank, facts));
                self.slots.insert(rank, slot);
                if slot as usize >= self.rows.len() {
                    self.rows.resize(slot as usize + 1, Row::default());
                    self.changed_at.resize(slot as usize + 1, 0);
                }
                self.draining += 1;
                slot
            }
        };
        let row = &mut self.rows[slot as usize];
        self.draining -= usize::from(!row.takes_bookings);
        self.draining += usize::from(!takes_bookings);
        *row = Row { worker_id, taints, takes_bookings, ..*row };
        self.membership += 1;
        self.note_change(slot);
        if !self.busy.is_empty() {
            self.busy.set_capacity(slot, rank, self.ranks[slot].facts.max_num_batched_tokens);
        }
        self.reorder(slot);
        self.upsert_work(slot);
        slot
    }

    /// Removes a rank; returns its bookings, which are gone.
    pub fn remove_rank(&mut self, rank: WorkerWithDpRank) -> Vec<BookingId> {
        let Some(slot) = self.slots.remove(&rank) else { return Vec::new() };
        let mut gone = Vec::new();
        while let Some(booking) = self.ranks[slot].admitted.oldest() {
            gone.push(self.bookings[booking].id);
            self.drop_booking(booking, PrefillEnd::Dropped, self.latest);
        }
        self.works.iter_mut().for_each(|work| work.remove(slot));
        self.ranks.remove(slot);
        self.decaying.remove(&slot);
        self.orders.iter_mut().for_each(|order| order.take(slot));
        if !self.busy.is_empty() {
            self.busy.remove(slot, rank);
        }
        self.taints.leave(self.rows[slot as usize].taints);
        self.draining -= usize::from(!self.rows[slot as usize].takes_bookings);
        self.rows[slot as usize] = Row::default();
        self.membership += 1;
        self.note_change(slot);
        self.rows.truncate(self.ranks.bound());
        self.changed_at.truncate(self.ranks.bound());
        gone
    }

    /// The slot of a registered rank.
    pub fn slot(&self, rank: WorkerWithDpRank) -> Option<Slot> {
        self.slots.get(&rank).copied()
    }

    /// The rank of a slot in use.
    pub fn rank(&self, slot: Slot) -> Option<WorkerWithDpRank> {
        Some(self.ranks.get(slot)?.id)
    }

    /// The facts of a slot in use.
    pub fn facts(&self, slot: Slot) -> Option<&Arc<WorkerFacts>> {
        Some(&self.ranks.get(slot)?.facts)
    }

    /// The facts of a worker with at least one slot in use.
    pub fn worker(&self, worker_id: u64) -> Option<&Arc<WorkerFacts>> {
        self.facts(self.slots_of(worker_id).next()?)
    }

    /// Slots in use, sorted by (worker, rank).
    pub fn slots(&self) -> Vec<Slot> {
        self.slots.values().copied().collect()
    }

    /// Slots of one worker, sorted by rank.
    pub fn slots_of(&self, worker_id: u64) -> impl Iterator<Item = Slot> + Clone + '_ {
        let all = WorkerWithDpRank::new(worker_id, 0)..=WorkerWithDpRank::new(worker_id, u32::MAX);
        self.slots.range(all).map(|(_, &slot)| slot)
    }

    /// Number of slots in use.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds a booking. Ids are unique by construction; the slot must be in use (`false` otherwise, nothing booked).
    /// May drop expired bookings of the rank (see [`Self::expire`]); they are returned.
    pub fn book(&mut self, booking: NewBooking, now: Moment) -> (bool, Vec<BookingId>) {
        let slot = booking.slot;
        if self.ranks.get(slot).is_none() || self.ids.contains_key(&booking.id) {
            return (false, Vec::new());
        }
        let Ok(blocks) = u32::try_from(booking.sequence.len()) else { return (false, Vec::new()) };
        let expired = self.expire_at_booking(slot, now);
        let mut entry = Booking::new(booking.id, slot, now, blocks);
        entry.expected_output_tokens = booking.expected_output_tokens;
        let key = self.bookings.insert(entry);
        self.ids.insert(booking.id, key);
        let (rank, bookings) = (&mut self.ranks[slot], &mut self.bookings);
        let last_run = self.forest.book(slot, &booking.sequence, |change| rank.apply(bookings, change));
        bookings[key].last_run = last_run;
        rank.admitted.push(bookings, key);
        rank.requests += 1;
        rank.prefills.push(bookings, key, booking.prefill_tokens, booking.prefill_duration, now);
        self.booked_work(slot, key, &booking.sequence, booking.prefill_tokens, now);
        self.changed(slot, now);
        (true, expired)
    }

    /// The prefill of a booking is done; idempotent. `false` when the booking is gone.
    pub fn prefill_complete(&mut self, id: BookingId, now: Moment) -> bool {
        let Some(&key) = self.ids.get(&id) else { return false };
        let entry = &self.bookings[key];
        let (slot, tokens, end) = (entry.slot, entry.prefill_tokens, PrefillEnd::FirstToken(entry.admitted));
        if self.ranks[slot].prefills.remove(&mut self.bookings, key, now) {
            self.ended_work(slot, key, tokens, end, now);
            self.changed(slot, now);
        }
        true
    }

    /// Ends a booking. `false` when it is gone.
    pub fn free(&mut self, id: BookingId, now: Moment) -> bool {
        let Some(&key) = self.ids.get(&id) else { return false };
        self.drop_booking(key, PrefillEnd::Untold, now);
        true
    }

    /// Adds one output block and, given a fraction in `[0, 1]`, sets it as the weight of the booking's output blocks and
    /// of its exclusive prompt tail. `false` when the booking is gone.
    ///
    /// The exclusive tail is what no other live booking of the rank holds now, from the end of the prompt upwards. The
    /// weight is the booking's own: while another one holds the same blocks they count fully. A fraction outside the
    /// range is clamped.
    pub fn output_block(&mut self, id: BookingId, decay_fraction: Option<f64>, now: Moment) -> bool {
        let Some(&key) = self.ids.get(&id) else { return false };
        let slot = self.bookings[key].slot;
        let (rank, bookings) = (&mut self.ranks[slot], &mut self.bookings);
        let entry = &mut bookings[key];
        let (len, last_run, before) = (entry.blocks, entry.last_run, entry.output_weight());
        let rare = entry.rare();
        rare.outputs += 1;
        match decay_fraction.map(weight::of_fraction) {
            None => rare.output_weight += weight::ONE,
            Some(weight) => {
                rare.output_weight = weight * u128::from(rare.outputs);
                let start = last_run.map_or(len, |last| {
                    self.forest.weigh_tail(slot, key, last, len, |change| rank.apply(bookings, change))
                });
                if start < len {
                    bookings[key].rare().missing.set_from(start, weight::ONE - weight);
                    rank.apply(bookings, Change::Applies { booking: key, start, end: len });
                }
            }
        }
        rank.outputs = rank.outputs - before + bookings[key].output_weight();
        self.changed(slot, now);
        true
    }

    /// Whether a booking lives.
    pub fn is_live(&self, id: BookingId) -> bool {
        self.ids.contains_key(&id)
    }

    /// Number of live bookings of the partition.
    pub fn live(&self) -> usize {
        self.bookings.len()
    }

    /// The slot and the expected output of a live booking, in tokens.
    pub fn booking(&self, id: BookingId) -> Option<(Slot, Option<u32>)> {
        let entry = &self.bookings[*self.ids.get(&id)?];
        Some((entry.slot, entry.expected_output_tokens))
    }

    /// Live bookings of one rank.
    pub fn bookings_of(&self, rank: WorkerWithDpRank) -> usize {
        self.slot(rank).map_or(0, |slot| usize::try_from(self.ranks[slot].requests).unwrap_or(usize::MAX))
    }

    /// Drops bookings older than the expiry; call it every 60 s. Returns them.
    pub fn expire(&mut self, now: Moment) -> Vec<BookingId> {
        let mut expired = Vec::new();
        if self.config.expiry.is_some() {
            for slot in self.slots() {
                self.expire_rank(slot, now, &mut expired);
            }
        }
        expired
    }

    /// Current load of a slot.
    pub fn load(&self, slot: Slot, now: Moment) -> RankLoad {
        let Some(row) = self.rows.get(slot as usize) else { return RankLoad::default() };
        if row.decays {
            let prefill_tokens = self.ranks[slot].prefills.tokens(&self.bookings, now);
            return RankLoad { prefill_tokens, ..row.load };
        }
        row.load
    }

    /// Leading blocks of `sequence` that live prompts on the slot hold.
    pub fn shared_blocks(&self, slot: Slot, sequence: &[u64]) -> u64 {
        u64::from(self.forest.shared(slot, sequence))
    }

    /// Runs in the forest of active prompts, for metrics.
    pub fn active_runs(&self) -> usize {
        self.forest.runs()
    }

    /// The runs of live prompts that `sequence` passes through, from the root down.
    pub(in crate::selection) fn walk(&self, sequence: &[u64], path: &mut Vec<Passed>) {
        self.forest.walk(sequence, path);
    }

    /// The ranks that hold a run of a path just walked. Owners further down the path are among those further up.
    pub(in crate::selection) fn owners(&self, passed: Passed) -> &Owners {
        self.forest.owners(passed.run)
    }

    /// Leading blocks of the walked prompt that live prompts on the slot hold.
    pub(in crate::selection) fn shared_on(&self, path: &[Passed], slot: Slot) -> u64 {
        let held = path.partition_point(|passed| self.forest.owners(passed.run).contains(slot));
        held.checked_sub(1).map_or(0, |at| u64::from(path[at].depth))
    }

    /// By slot; vacant slots take no bookings.
    pub(in crate::selection) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether every registered rank takes bookings.
    pub(in crate::selection) fn takes_all(&self) -> bool {
        self.draining == 0
    }

    /// Slots in no order because their prefill tokens decay by themselves.
    pub(in crate::selection) fn decaying(&self) -> impl Iterator<Item = Slot> + '_ {
        self.decaying.iter().copied()
    }

    /// One past the highest number of a set of taints.
    pub(in crate::selection) fn taint_sets(&self) -> usize {
        self.taints.bound()
    }

    /// The set of taints with a number.
    pub(in crate::selection) fn taint_set(&self, number: u32) -> Option<&BTreeSet<String>> {
        self.taints.get(number)
    }

    /// Makes sure that orders are kept; returns their places, valid until the next call.
    pub(in crate::selection) fn keep_orders(
        &mut self,
        first: OrderSpec,
        second: Option<OrderSpec>,
    ) -> (usize, Option<usize>) {
        let wanted = [Some(first), second];
        for spec in wanted.into_iter().flatten() {
            if self.orders.len() == MAX_ORDERS && self.place_of_order(spec).is_none() {
                self.orders.retain(|order| wanted.contains(&Some(order.spec())));
            }
            if self.place_of_order(spec).is_none() {
                self.add_order(spec);
            }
        }
        let place = |spec| self.place_of_order(spec).expect("the order was just kept");
        (place(first), second.map(place))
    }

    fn place_of_order(&self, spec: OrderSpec) -> Option<usize> {
        self.orders.iter().position(|order| order.spec() == spec)
    }

    fn add_order(&mut self, spec: OrderSpec) {
        let mut order = Order::new(spec, self.config.block_size);
        for (slot, row) in self.rows.iter().enumerate() {
            if row.takes_bookings && !row.decays {
                order.place(slot as Slot, &row.load, row.taints);
            }
        }
        self.orders.push(order);
    }

    /// Groups of a kept order.
    pub(in crate::selection) fn order_groups(&self, order: usize) -> usize {
        self.orders[order].groups()
    }

    /// Base costs and slots of one group of a kept order, cheapest first; all slots of a bucket have equal load.
    pub(in crate::selection) fn buckets(&self, order: usize, group: usize) -> impl Iterator<Item = (f64, &[Slot])> {
        self.orders[order].buckets(group)
    }

    /// The base costs of a kept order bit by bit; none when it has groups.
    pub(in crate::selection) fn slices(&self, order: usize) -> Option<&Slices> {
        self.orders[order].slices()
    }

    /// Whether all ranks that have the slot's key among the slices have the slot's load.
    pub(in crate::selection) fn is_alone(&self, order: usize, slot: Slot) -> bool {
        self.orders[order].is_alone(slot)
    }

    fn expire_at_booking(&mut self, slot: Slot, now: Moment) -> Vec<BookingId> {
        let mut expired = Vec::new();
        if self.config.expiry.is_some() {
            let rank = &mut self.ranks[slot];
            match rank.expiry_checked {
                Some(last) if now.since(last) < EXPIRY_CHECK_PERIOD => {}
                None => rank.expiry_checked = Some(now),
                Some(_) => self.expire_rank(slot, now, &mut expired),
            }
        }
        expired
    }

    fn expire_rank(&mut self, slot: Slot, now: Moment, expired: &mut Vec<BookingId>) {
        let Some(expiry) = self.config.expiry else { return };
        self.ranks[slot].expiry_checked = Some(now);
        while let Some(oldest) = self.ranks[slot].admitted.oldest() {
            let entry = &self.bookings[oldest];
            if now.since(entry.admitted) <= expiry {
                break;
            }
            expired.push(entry.id);
            self.drop_booking(oldest, PrefillEnd::Dropped, now);
        }
    }

    fn drop_booking(&mut self, key: u32, end: PrefillEnd, now: Moment) {
        let Booking { slot, prefill_tokens, .. } = self.bookings[key];
        self.ended_work(slot, key, prefill_tokens, end, now);
        let (rank, bookings) = {
            let slot = self.bookings[key].slot;
            (&mut self.ranks[slot], &mut self.bookings)
        };
        rank.prefills.remove(bookings, key, now);
        rank.admitted.remove(bookings, key);
        let entry = &bookings[key];
        let slot = entry.slot;
        if let Some(last) = entry.last_run {
            self.forest.free(slot, key, last, entry.blocks, |change| rank.apply(bookings, change));
        }
        let entry = bookings.remove(key).expect("the booking was just read");
        rank.outputs -= entry.output_weight();
        rank.requests -= 1;
        self.ids.remove(&entry.id);
        if self.ids.capacity() > 64 && self.ids.capacity() / 8 > self.ids.len() {
            self.ids.shrink_to(self.ids.len() * 2);
        }
        self.changed(slot, now);
    }

    /// Brings what is derived from a rank's bookings up to date.
    fn changed(&mut self, slot: Slot, now: Moment) {
        let rank = &self.ranks[slot];
        let row = &mut self.rows[slot as usize];
        row.load = rank.load(&self.bookings, now);
        row.decays = rank.prefills.decays(&self.bookings);
        self.latest = self.latest.max(now);
        self.note_change(slot);
        self.reorder(slot);
        self.refresh_work(slot, now);
    }

    fn note_change(&mut self, slot: Slot) {
        self.changes += 1;
        self.changed_at[slot as usize] = self.changes;
    }

    fn reorder(&mut self, slot: Slot) {
        let row = &self.rows[slot as usize];
        if row.decays {
            self.decaying.insert(slot);
        } else if !self.decaying.is_empty() {
            self.decaying.remove(&slot);
        }
        for order in &mut self.orders {
            if row.takes_bookings && !row.decays {
                order.place(slot, &row.load, row.taints);
            } else {
                order.take(slot);
            }
        }
        if !self.busy.is_empty() {
            self.busy.update(slot, self.ranks[slot].id, row.takes_bookings, row.load.prefill_tokens);
        }
    }

    /// Keeps up which ranks are busy by each of the thresholds from now on, in place of those before.
    pub(in crate::selection) fn watch_busy(&mut self, thresholds: &[BusyThreshold]) {
        self.busy.reset(thresholds);
        if self.busy.is_empty() {
            return;
        }
        for (&rank, &slot) in &self.slots {
            let row = &self.rows[slot as usize];
            self.busy.set_capacity(slot, rank, self.ranks[slot].facts.max_num_batched_tokens);
            self.busy.update(slot, rank, row.takes_bookings, row.load.prefill_tokens);
        }
    }

    /// Looks again at ranks whose prefill tokens decay by themselves.
    pub(in crate::selection) fn refresh_busy(&mut self, now: Moment) {
        if self.busy.is_empty() {
            return;
        }
        for &slot in &self.decaying {
            let rank = &self.ranks[slot];
            let tokens = rank.prefills.tokens(&self.bookings, now);
            self.busy.update(slot, rank.id, self.rows[slot as usize].takes_bookings, tokens);
        }
    }

    /// Which ranks are busy.
    pub(in crate::selection) fn busy(&self) -> &BusyBoards {
        &self.busy
    }

    /// Ranks that became free, came, left or changed since the last call.
    pub(in crate::selection) fn take_touched(&mut self) -> Touched {
        self.busy.take_touched()
    }

    #[cfg(test)]
    pub(in crate::selection) fn check(&self) {
        self.forest.check();
        self.orders.iter().for_each(Order::check);
        self.check_work();
        let ordered = self.rows.iter().filter(|row| row.takes_bookings && !row.decays).count();
        for order in &self.orders {
            let held: usize =
                (0..order.groups()).flat_map(|group| order.buckets(group)).map(|(_, slots)| slots.len()).sum();
            assert_eq!(held, ordered);
        }
    }

    /// Places kept for bookings and runs, and bytes of blocks.
    #[cfg(test)]
    pub(super) fn memory(&self) -> (usize, usize) {
        (self.bookings.capacity() + self.ids.capacity() + self.forest.capacity(), self.forest.check())
    }

    #[cfg(test)]
    pub(super) fn forest(&self) -> &Forest {
        &self.forest
    }
}
