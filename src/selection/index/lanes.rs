//! Ranks, their lanes and their slots.
//!
//! Owns lane ids and both directions of the slot binding as readers see them. Invariants: a rank has at most one live
//! lane; a retired lane belongs to nobody; a lane id is given out again only after its blocks are swept, and then as
//! late as possible.
#![allow(unsafe_code)]

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::{
    Lane, LaneSet, MAX_LANES,
    chunk::TIERS,
    sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
    waiting::Waiting,
};
use crate::selection::identity::WorkerWithDpRank;

/// No slot, no lane.
const NONE: u32 = u32::MAX;
/// Cells of the first part of a table.
#[cfg(not(model_check))]
const FIRST: u32 = 64;
/// Cells of the first part of a table.
#[cfg(model_check)]
const FIRST: u32 = 2;
/// Parts of a table, each twice as long as the one before.
const PARTS: usize = 16;

/// Cells by a dense id; grows by parts that stay until the table goes, so readers need no guard.
#[derive(Debug)]
struct Table<T> {
    parts: [AtomicPtr<T>; PARTS],
}

impl<T: Default> Table<T> {
    fn new() -> Self {
        Self { parts: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())) }
    }

    /// Part and place of a cell; `None` past the end.
    #[inline]
    fn split(at: u32) -> Option<(usize, usize)> {
        let from_first = at / FIRST + 1;
        let part = from_first.ilog2() as usize;
        (part < PARTS).then(|| (part, (at + FIRST - (FIRST << part)) as usize))
    }

    #[inline]
    fn get(&self, at: u32) -> Option<&T> {
        let (part, place) = Self::split(at)?;
        let cells = self.parts[part].load(Ordering::Acquire);
        // SAFETY: a non-null part is a box of `FIRST << part` cells, released after they were made and freed only by
        // the table's drop; `split` gives a place below that length.
        (!cells.is_null()).then(|| unsafe { &*cells.add(place) })
    }

    /// The cell, made if needed. One writer at a time.
    fn ensure(&self, at: u32) -> Option<&T> {
        let (part, _) = Self::split(at)?;
        if self.parts[part].load(Ordering::Relaxed).is_null() {
            let cells: Box<[T]> = (0..FIRST << part).map(|_| T::default()).collect();
            self.parts[part].store(Box::into_raw(cells).cast(), Ordering::Release);
        }
        self.get(at)
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for (part, cells) in self.parts.iter().enumerate() {
            let cells = cells.load(Ordering::Relaxed);
            if !cells.is_null() {
                // SAFETY: `&mut self`: nobody else reaches it; the slice is the box that `ensure` made.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(cells, (FIRST as usize) << part)) });
            }
        }
    }
}

/// What readers see of a lane.
#[derive(Debug)]
struct LaneCell {
    slot: AtomicU32,
    /// Odd while the rank changes.
    version: AtomicU32,
    worker_id: AtomicU64,
    dp_rank: AtomicU32,
    live: AtomicU32,
}

impl Default for LaneCell {
    fn default() -> Self {
        Self {
            slot: AtomicU32::new(NONE),
            version: AtomicU32::new(0),
            worker_id: AtomicU64::new(0),
            dp_rank: AtomicU32::new(0),
            live: AtomicU32::new(0),
        }
    }
}

/// What readers see of a slot.
#[derive(Debug)]
struct SlotCell(AtomicU32);

impl Default for SlotCell {
    fn default() -> Self {
        Self(AtomicU32::new(NONE))
    }
}

/// The part that readers see.
#[derive(Debug)]
pub(super) struct LaneTable {
    lanes: Table<LaneCell>,
    slots: Table<SlotCell>,
    /// By 64 lanes, a bit each: its slot has its number. Most have while few ranks came and went.
    straight: Table<AtomicU64>,
    /// Goes up whenever a lane id is given out again.
    recycled: AtomicU64,
}

impl LaneTable {
    /// No lanes.
    pub(super) fn new() -> Self {
        Self { lanes: Table::new(), slots: Table::new(), straight: Table::new(), recycled: AtomicU64::new(0) }
    }

    /// The slot of a live lane.
    #[inline]
    pub(super) fn slot_of(&self, lane: Lane) -> Option<u32> {
        let slot = self.lanes.get(lane.0.into())?.slot.load(Ordering::Acquire);
        (slot != NONE).then_some(slot)
    }

    /// The live lane of a slot.
    #[inline]
    pub(super) fn lane_of_slot(&self, slot: u32) -> Option<Lane> {
        let lane = self.slots.get(slot)?.0.load(Ordering::Acquire);
        (lane != NONE).then_some(Lane(lane as u16))
    }

    /// Adds the slots of the live lanes of a set to `slots`, a bit each; slots past its end are left out.
    pub(super) fn add_slots(&self, lanes: &LaneSet, slots: &mut [u64]) {
        let add = |slots: &mut [u64], lane| {
            if let Some(slot) = self.slot_of(Lane(lane))
                && let Some(word) = slots.get_mut(slot as usize / 64)
            {
                *word |= 1 << (slot % 64);
            }
        };
        let words = match lanes {
            LaneSet::List(lanes) => return lanes.iter().for_each(|&lane| add(slots, lane)),
            LaneSet::Bits(words) => words,
        };
        for (at, &word) in words.iter().enumerate().filter(|&(_, &word)| word != 0) {
            let straight = self.straight.get(at as u32).map_or(0, |straight| straight.load(Ordering::Acquire));
            if let Some(slots) = slots.get_mut(at) {
                *slots |= word & straight;
            }
            let mut left = word & !straight;
            while left != 0 {
                add(slots, (at * 64) as u16 + left.trailing_zeros() as u16);
                left &= left - 1;
            }
        }
    }

    /// The rank of a live lane.
    pub(super) fn rank_of(&self, lane: Lane) -> Option<WorkerWithDpRank> {
        let cell = self.lanes.get(lane.0.into())?;
        let mut spin = super::sync::Spin::default();
        loop {
            let version = cell.version.load(Ordering::Acquire);
            if version & 1 == 0 {
                let rank = WorkerWithDpRank {
                    worker_id: cell.worker_id.load(Ordering::Relaxed),
                    dp_rank: cell.dp_rank.load(Ordering::Relaxed),
                };
                let live = cell.live.load(Ordering::Relaxed) != 0;
                // Pairs with the fence in `set`, as in `chunk`.
                fence(Ordering::Acquire);
                if cell.version.load(Ordering::Relaxed) == version {
                    return live.then_some(rank);
                }
            }
            spin.wait();
        }
    }

    /// How often a lane id was given out again.
    #[inline]
    pub(super) fn recycled(&self) -> u64 {
        self.recycled.load(Ordering::Acquire)
    }

    fn set(&self, lane: u16, rank: Option<WorkerWithDpRank>, slot: Option<u32>) {
        let Some(cell) = self.lanes.ensure(lane.into()) else { return };
        let version = cell.version.load(Ordering::Relaxed);
        cell.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some(rank) = rank {
            cell.worker_id.store(rank.worker_id, Ordering::Relaxed);
            cell.dp_rank.store(rank.dp_rank, Ordering::Relaxed);
        }
        cell.live.store(u32::from(rank.is_some()), Ordering::Relaxed);
        cell.version.store(version.wrapping_add(2), Ordering::Release);
        cell.slot.store(slot.unwrap_or(NONE), Ordering::Release);
        if let Some(straight) = self.straight.ensure(u32::from(lane) / 64) {
            let (lanes, bit) = (straight.load(Ordering::Relaxed), 1 << (lane % 64));
            let lanes = if slot == Some(lane.into()) { lanes | bit } else { lanes & !bit };
            straight.store(lanes, Ordering::Release);
        }
    }

    /// `false` when there can be no such slot.
    fn set_slot(&self, slot: u32, lane: Option<u16>) -> bool {
        match self.slots.ensure(slot) {
            Some(cell) => {
                cell.0.store(lane.map_or(NONE, u32::from), Ordering::Release);
                true
            }
            None => false,
        }
    }
}

/// Seqs of the blocks that share one name in one tier, oldest first.
pub(super) type Twins = HashMap<(u8, u64), Vec<u64>>;

/// The writer's record of one lane.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// Whose it is; `None` when retired or free.
    pub(super) rank: Option<WorkerWithDpRank>,
    /// Blocks of chunks held by tier; what a retired lane has left to sweep.
    pub(super) blocks: [u64; TIERS],
    /// Names it gave to several blocks.
    pub(super) twins: Option<Box<Twins>>,
    /// Blocks whose parent it does not hold.
    pub(super) waiting: Option<Box<Waiting>>,
    retired: bool,
}

impl LaneState {
    /// Whether the lane holds or waits for anything.
    pub(super) fn is_idle(&self) -> bool {
        self.blocks == [0; TIERS] && self.waiting.is_none()
    }
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub(super) states: Vec<LaneState>,
    by_rank: HashMap<WorkerWithDpRank, u16>,
    /// The same ranks in order: those of one worker stand together.
    ordered: BTreeSet<WorkerWithDpRank>,
    slots: HashMap<WorkerWithDpRank, u32>,
    /// Ranks with a lane and no slot, in order.
    unbound: BTreeSet<WorkerWithDpRank>,
    /// Ranks whose blocks readers must not see.
    withheld: HashSet<WorkerWithDpRank>,
    /// Swept, longest ago first.
    free: VecDeque<u16>,
    /// A bit a retired lane that is not swept yet.
    retired: Vec<u64>,
    retired_count: usize,
}

/// Free lane ids that are kept back from reuse, so that a reader's answer is old before its lanes mean others.
const KEPT_BACK: usize = 64;

impl Lanes {
    /// The live lane of a rank.
    #[inline]
    pub(super) fn get(&self, rank: WorkerWithDpRank) -> Option<u16> {
        self.by_rank.get(&rank).copied()
    }

    /// The live lane of a rank, a new one if it has none. `None` when all are in use.
    pub(super) fn get_or_add(&mut self, rank: WorkerWithDpRank, table: &LaneTable) -> Option<u16> {
        if let Some(lane) = self.get(rank) {
            return Some(lane);
        }
        let lane = if self.free.len() > KEPT_BACK || self.states.len() >= MAX_LANES {
            let lane = self.free.pop_front()?;
            table.recycled.fetch_add(1, Ordering::AcqRel);
            lane
        } else {
            self.states.push(LaneState::default());
            (self.states.len() - 1) as u16
        };
        self.states[lane as usize] = LaneState { rank: Some(rank), ..LaneState::default() };
        self.by_rank.insert(rank, lane);
        self.ordered.insert(rank);
        if !self.slots.contains_key(&rank) {
            self.unbound.insert(rank);
        }
        self.show(rank, lane, table);
        Some(lane)
    }

    /// Shows readers whose the live `lane` is and its slot, or neither while the rank is withheld. `false` when there
    /// can be no such slot.
    fn show(&self, rank: WorkerWithDpRank, lane: u16, table: &LaneTable) -> bool {
        let slot = self.slots.get(&rank).copied();
        let shown = !self.withheld.contains(&rank);
        if slot.is_some_and(|slot| !table.set_slot(slot, shown.then_some(lane))) {
            return false;
        }
        table.set(lane, shown.then_some(rank), slot.filter(|_| shown));
        true
    }

    /// Hides what a rank holds from readers, or shows it again; it is kept up to date meanwhile.
    pub(super) fn withhold(&mut self, rank: WorkerWithDpRank, withhold: bool, table: &LaneTable) {
        let changed = if withhold { self.withheld.insert(rank) } else { self.withheld.remove(&rank) };
        if changed && let Some(lane) = self.get(rank) {
            self.show(rank, lane, table);
        }
    }

    /// Binds a slot to a rank that has a lane.
    pub(super) fn bind(&mut self, rank: WorkerWithDpRank, slot: u32, table: &LaneTable) -> bool {
        let Some(lane) = self.get(rank) else { return false };
        if self.slots.get(&rank).is_some_and(|&old| old != slot) {
            self.unbind(rank, table);
        }
        self.slots.insert(rank, slot);
        let bound = self.show(rank, lane, table);
        if bound {
            self.unbound.remove(&rank);
        } else {
            self.slots.remove(&rank);
            self.unbound.insert(rank);
        }
        bound
    }

    /// Forgets the slot of a rank.
    pub(super) fn unbind(&mut self, rank: WorkerWithDpRank, table: &LaneTable) {
        let Some(slot) = self.slots.remove(&rank) else { return };
        let lane = self.get(rank);
        if let Some(lane) = lane {
            self.unbound.insert(rank);
            self.show(rank, lane, table);
        }
        // The slot may be bound to another rank by now.
        if table.lane_of_slot(slot).map(|lane| lane.0) == lane {
            table.set_slot(slot, None);
        }
    }

    /// Takes the lane away from its rank; its blocks stay until they are swept.
    pub(super) fn retire(&mut self, rank: WorkerWithDpRank, table: &LaneTable) {
        let Some(lane) = self.by_rank.remove(&rank) else { return };
        self.ordered.remove(&rank);
        self.unbound.remove(&rank);
        if let Some(&slot) = self.slots.get(&rank) {
            table.set_slot(slot, None);
        }
        table.set(lane, None, None);
        let state = &mut self.states[lane as usize];
        (state.rank, state.twins, state.waiting) = (None, None, None);
        if state.is_idle() {
            self.free.push_back(lane);
            return;
        }
        state.retired = true;
        let word = lane as usize / 64;
        if self.retired.len() <= word {
            self.retired.resize(word + 1, 0);
        }
        self.retired[word] |= 1 << (lane % 64);
        self.retired_count += 1;
    }

    /// Lanes that wait for their sweep, a bit each.
    pub(super) fn retired_bits(&self) -> &[u64] {
        &self.retired
    }

    /// Lanes that wait for their sweep.
    pub(super) fn retired(&self) -> usize {
        self.retired_count
    }

    /// A block of a lane is gone; a retired lane that lost its last one is free.
    pub(super) fn lost(&mut self, lane: u16, tier: usize, blocks: u64) {
        let state = &mut self.states[lane as usize];
        state.blocks[tier] -= blocks;
        if state.retired && state.blocks == [0; TIERS] {
            state.retired = false;
            self.retired[lane as usize / 64] &= !(1 << (lane % 64));
            self.retired_count -= 1;
            self.free.push_back(lane);
        }
    }

    /// Ranks with a lane.
    pub(super) fn ranks(&self) -> impl Iterator<Item = (WorkerWithDpRank, u16)> + '_ {
        self.by_rank.iter().map(|(&rank, &lane)| (rank, lane))
    }

    /// Those of them without a slot, in the order of workers and ranks: few, where most workers are registered.
    pub(super) fn unbound(&self) -> impl Iterator<Item = WorkerWithDpRank> + '_ {
        self.unbound.iter().copied()
    }

    /// Whether the ranks without a slot are exactly those.
    #[cfg(test)]
    pub(super) fn knows_unbound(&self) -> bool {
        let unbound = self.ordered.iter().filter(|rank| !self.slots.contains_key(rank));
        unbound.eq(&self.unbound)
    }

    /// Ranks of one worker with a lane.
    pub(super) fn ranks_of(&self, worker_id: u64) -> impl Iterator<Item = WorkerWithDpRank> + '_ {
        let rank = |dp_rank| WorkerWithDpRank { worker_id, dp_rank };
        self.ordered.range(rank(0)..=rank(u32::MAX)).copied()
    }

    /// Lanes in use, retired ones included.
    pub(super) fn in_use(&self) -> usize {
        self.by_rank.len() + self.retired_count
    }

    /// Whether a rank without a lane could get one now.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.states.len() < MAX_LANES
    }
}
