//! Interned sets of lanes.
//!
//! Owns set ids and their reference counts. Invariants: equal sets have one id; a set's content never changes; a set
//! whose last reference went is gone at once, its memory when readers have left. An id below 65,536 is the set of that
//! one lane and [`EMPTY`] the empty set; neither takes storage.
#![allow(unsafe_code)]

use crossbeam_epoch::Guard;
use hashbrown::HashTable;

use super::{
    arena::{Arena, Slots, View},
    sync::{AtomicPtr, Ordering, defer},
};

/// The empty set.
pub(super) const EMPTY: u32 = (1 << 26) - 1;
/// Ids from here on are stored sets.
const STORED: u32 = 1 << 16;
/// Entries of the memo; a power of two.
const MEMO: usize = 1024;

/// Members of a stored set.
#[derive(Debug)]
pub(super) enum SetData {
    /// Sorted.
    List(Box<[u16]>),
    /// A bit a lane.
    Bits(Box<[u64]>),
}

impl SetData {
    #[inline]
    pub(super) fn has(&self, lane: u16) -> bool {
        match self {
            Self::Bits(words) => words.get(lane as usize / 64).is_some_and(|word| word >> (lane % 64) & 1 == 1),
            Self::List(lanes) => lanes.binary_search(&lane).is_ok(),
        }
    }

    fn bytes(&self) -> usize {
        std::mem::size_of::<Self>()
            + match self {
                Self::List(lanes) => 2 * lanes.len(),
                Self::Bits(words) => 8 * words.len(),
            }
    }
}

/// Where readers find a stored set.
#[derive(Debug)]
pub(super) struct SetSlot(AtomicPtr<SetData>);

impl Default for SetSlot {
    fn default() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl Drop for SetSlot {
    fn drop(&mut self) {
        let data = self.0.load(Ordering::Relaxed);
        if !data.is_null() {
            // SAFETY: `&mut self` of a slot whose page is being freed: no reader is left; a released set is not in its
            // slot any more, so this is the only owner.
            drop(unsafe { Box::from_raw(data) });
        }
    }
}

/// A set with its members at hand.
#[derive(Clone, Copy, Debug)]
pub(super) enum SetRef<'g> {
    /// Nobody.
    Empty,
    /// One lane.
    One(u16),
    /// Two or more.
    Many(&'g SetData),
}

impl<'g> SetRef<'g> {
    /// The members of set `id`. `None` when a reader looked for a set that is gone, or not yet there.
    #[inline]
    pub(super) fn resolve(id: u32, sets: View<'g, SetSlot>) -> Option<Self> {
        if id < STORED {
            return Some(Self::One(id as u16));
        }
        if id == EMPTY {
            return Some(Self::Empty);
        }
        let data = sets.get(id - STORED)?.0.load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from a box and was released after its content was written. It is freed only
        // after it was taken out of its slot and every guard of that time, the view's 'g included, is gone.
        unsafe { data.as_ref() }.map(Self::Many)
    }

    /// Whether both are the same set. Exact while both are borrowed: memory in use is not reused.
    #[inline]
    pub(super) fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Empty, Self::Empty) => true,
            (Self::One(a), Self::One(b)) => a == b,
            (Self::Many(a), Self::Many(b)) => std::ptr::eq(a, b),
            _ => false,
        }
    }

    /// Whether `lane` is a member.
    #[inline]
    pub(super) fn has(self, lane: u16) -> bool {
        match self {
            Self::Empty => false,
            Self::One(one) => one == lane,
            Self::Many(data) => data.has(lane),
        }
    }

    /// Visits the members in order.
    pub(super) fn for_each(self, mut visit: impl FnMut(u16)) {
        match self {
            Self::Empty => {}
            Self::One(lane) => visit(lane),
            Self::Many(SetData::List(lanes)) => lanes.iter().copied().for_each(visit),
            Self::Many(SetData::Bits(words)) => {
                for (k, &word) in words.iter().enumerate() {
                    let mut word = word;
                    while word != 0 {
                        visit((k * 64) as u16 + word.trailing_zeros() as u16);
                        word &= word - 1;
                    }
                }
            }
        }
    }

    /// Visits the members whose bit is set in `words`.
    pub(super) fn for_each_in(self, words: &[u64], mut visit: impl FnMut(u16)) {
        if let Self::Many(SetData::Bits(bits)) = self {
            for (k, (&bits, &word)) in bits.iter().zip(words).enumerate() {
                let mut both = bits & word;
                while both != 0 {
                    visit((k * 64) as u16 + both.trailing_zeros() as u16);
                    both &= both - 1;
                }
            }
            return;
        }
        self.for_each(|lane| {
            if words.get(lane as usize / 64).is_some_and(|word| word >> (lane % 64) & 1 == 1) {
                visit(lane);
            }
        });
    }

    /// Number of members.
    fn len(self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(_) => 1,
            Self::Many(SetData::List(lanes)) => lanes.len(),
            Self::Many(SetData::Bits(words)) => words.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    /// Whether a member satisfies `test`.
    fn any(self, mut test: impl FnMut(u16) -> bool) -> bool {
        match self {
            Self::Empty => false,
            Self::One(lane) => test(lane),
            Self::Many(SetData::List(lanes)) => lanes.iter().any(|&lane| test(lane)),
            Self::Many(SetData::Bits(words)) => words.iter().enumerate().any(|(k, &word)| {
                let mut word = word;
                while word != 0 {
                    if test((k * 64) as u16 + word.trailing_zeros() as u16) {
                        return true;
                    }
                    word &= word - 1;
                }
                false
            }),
        }
    }

    /// Whether the two share a member.
    pub(super) fn intersects(self, other: Self) -> bool {
        match (self, other) {
            (Self::Empty, _) | (_, Self::Empty) => false,
            (Self::One(lane), set) | (set, Self::One(lane)) => set.has(lane),
            (Self::Many(SetData::Bits(a)), Self::Many(SetData::Bits(b))) => {
                a.iter().zip(b.iter()).any(|(a, b)| a & b != 0)
            }
            (list @ Self::Many(SetData::List(_)), set) | (set, list) => list.any(|lane| set.has(lane)),
        }
    }

    /// Whether this set has a member that `other` has not.
    pub(super) fn exceeds(self, other: Self) -> bool {
        match (self, other) {
            (Self::Empty, _) => false,
            (_, Self::Empty) => true,
            (Self::Many(SetData::Bits(a)), Self::Many(SetData::Bits(b))) => {
                a.iter().enumerate().any(|(k, a)| a & !b.get(k).copied().unwrap_or(0) != 0)
            }
            _ => self.any(|lane| !other.has(lane)),
        }
    }
}

/// The writer's record of a stored set.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// XOR of [`mark`] over the members.
    hash: u64,
    /// Members.
    len: u32,
    /// Uses in chunks, segment lists and columns.
    refs: u32,
    /// Goes up when the id is released, so that the memo forgets it.
    generation: u32,
}

/// A transition seen before: adding or removing one lane.
#[derive(Clone, Copy, Debug, Default)]
struct Memo {
    from: u32,
    from_generation: u32,
    /// Lane, and whether it was added; `u32::MAX` in an empty entry.
    step: u32,
    to: u32,
    to_generation: u32,
}

/// The writer's side.
#[derive(Debug)]
pub(super) struct Sets {
    slots: Slots,
    entries: Vec<Entry>,
    table: HashTable<u32>,
    memo: Box<[Memo]>,
    bytes: usize,
}

/// Share of a lane in the hash of its sets.
fn mark(lane: u16) -> u64 {
    let mut x = (u64::from(lane) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Ids that can be given out before removals alone may need more; stores stop there.
const RESERVE: usize = 1 << 20;

impl Sets {
    /// No stored set.
    pub(super) fn new() -> Self {
        Self {
            slots: Slots::new(EMPTY - STORED),
            entries: Vec::new(),
            table: HashTable::new(),
            memo: Box::default(),
            bytes: 0,
        }
    }

    /// Whether stores may still make sets.
    pub(super) fn has_room(&self) -> bool {
        self.slots.room() > RESERVE
    }

    /// Estimated bytes of heap.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
            + self.entries.capacity() * std::mem::size_of::<Entry>()
            + self.memo.len() * std::mem::size_of::<Memo>()
            + self.table.capacity() * 5
            + self.slots.linked() * super::arena::PAGE * 8
    }

    /// Compares the counts with the uses found.
    #[cfg(test)]
    pub(super) fn check(&self, uses: &std::collections::HashMap<u32, u32>) {
        let stored = uses.keys().filter(|&&id| id >= STORED).count();
        assert_eq!(stored, self.slots.used(), "every stored set is used");
        for (&id, &count) in uses.iter().filter(|&(&id, _)| id >= STORED) {
            assert_eq!(self.entries[(id - STORED) as usize].refs, count, "uses of a set are counted");
        }
    }

    fn entry(&mut self, id: u32) -> Option<&mut Entry> {
        (id >= STORED && id != EMPTY).then(|| &mut self.entries[(id - STORED) as usize])
    }

    fn generation(&self, id: u32) -> u32 {
        if id < STORED || id == EMPTY { 0 } else { self.entries[(id - STORED) as usize].generation }
    }

    /// Counts one more use.
    #[inline]
    pub(super) fn retain(&mut self, id: u32) {
        if let Some(entry) = self.entry(id) {
            entry.refs += 1;
        }
    }

    /// Counts one use less; the last one frees the set.
    #[inline]
    pub(super) fn release(&mut self, id: u32, arena: &Arena<SetSlot>, guard: &Guard) {
        if let Some(entry) = self.entry(id) {
            entry.refs -= 1;
            if entry.refs == 0 {
                self.free(id, arena, guard);
            }
        }
    }

    #[cold]
    fn free(&mut self, id: u32, arena: &Arena<SetSlot>, guard: &Guard) {
        let at = id - STORED;
        let entry = &mut self.entries[at as usize];
        entry.generation = entry.generation.wrapping_add(1);
        if let Ok(found) = self.table.find_entry(entry.hash, |&x| x == at) {
            found.remove();
        }
        if let Some(slot) = arena.view(guard).get(at) {
            let data = slot.0.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !data.is_null() {
                // SAFETY: from `Box::into_raw` in `intern`; the swap took it out of its slot, so this is the only
                // call that frees it; readers of this time hold guards.
                unsafe {
                    self.bytes -= (*data).bytes();
                    defer(guard, move || drop(Box::from_raw(data)));
                }
            }
        }
        self.slots.give(at, arena, guard);
    }

    /// Gives back what an index without stored sets does not need.
    pub(super) fn shrink(&mut self) {
        if self.slots.used() == 0 {
            self.entries = Vec::new();
            self.table = HashTable::new();
            // The memo has to go with the generations it compares.
            self.memo = Box::default();
        }
    }

    /// `from` with `lane` added or removed. The result is not counted: retain it before anything is released.
    /// `None` when no further set can be stored.
    #[inline]
    pub(super) fn step(
        &mut self,
        from: u32,
        lane: u16,
        add: bool,
        arena: &Arena<SetSlot>,
        guard: &Guard,
    ) -> Option<u32> {
        let one = u32::from(lane);
        if from == EMPTY || from == one {
            return Some(match (from == EMPTY, add) {
                (true, true) | (false, true) => one,
                (true, false) | (false, false) => EMPTY,
            });
        }
        let step = one << 1 | u32::from(add);
        let at = ((from ^ step.wrapping_mul(0x9E37_79B1)).wrapping_mul(0x85EB_CA6B) >> 22) as usize % MEMO;
        if self.memo.is_empty() {
            self.memo = vec![Memo { step: u32::MAX, ..Memo::default() }; MEMO].into();
        }
        let memo = self.memo[at];
        if memo.from == from
            && memo.step == step
            && memo.from_generation == self.generation(from)
            && self.knows(memo.to)
            && memo.to_generation == self.generation(memo.to)
        {
            return Some(memo.to);
        }
        let to = self.intern(from, lane, add, arena, guard)?;
        self.memo[at] =
            Memo { from, from_generation: self.generation(from), step, to, to_generation: self.generation(to) };
        Some(to)
    }

    fn knows(&self, id: u32) -> bool {
        id < STORED || id == EMPTY || ((id - STORED) as usize) < self.entries.len()
    }

    fn intern(&mut self, from: u32, lane: u16, add: bool, arena: &Arena<SetSlot>, guard: &Guard) -> Option<u32> {
        let view = arena.view(guard);
        let old = SetRef::resolve(from, view)?;
        if old.has(lane) == add {
            return Some(from);
        }
        let (mut hash, mut len) = match self.entry(from) {
            Some(entry) => (entry.hash, entry.len),
            None => (mark(from as u16), 1),
        };
        hash ^= mark(lane);
        len = if add { len + 1 } else { len - 1 };
        if len == 1 {
            let mut rest = EMPTY;
            old.for_each(|member| {
                if member != lane {
                    rest = u32::from(member)
                }
            });
            return Some(rest);
        }
        // Equal hash and size: compare members without building the set.
        let entries = &self.entries;
        let known = self.table.find(hash, |&at| {
            entries[at as usize].hash == hash
                && entries[at as usize].len == len
                && SetRef::resolve(at + STORED, view)
                    .is_some_and(|set| set.has(lane) == add && !old.any(|member| member != lane && !set.has(member)))
        });
        if let Some(&at) = known {
            return Some(at + STORED);
        }
        let data = build(old, lane, add);
        let at = self.slots.take(arena, guard)?;
        self.bytes += data.bytes();
        if let Some(slot) = arena.view(guard).get(at) {
            slot.0.store(Box::into_raw(Box::new(data)), Ordering::Release);
        }
        if self.entries.len() <= at as usize {
            self.entries.resize(at as usize + 1, Entry::default());
        }
        let entry = &mut self.entries[at as usize];
        *entry = Entry { hash, len, refs: 0, generation: entry.generation };
        let entries = &self.entries;
        self.table.insert_unique(hash, at, |&at| entries[at as usize].hash);
        Some(at + STORED)
    }
}

/// `old` with `lane` added or removed, two members at least.
fn build(old: SetRef<'_>, lane: u16, add: bool) -> SetData {
    let mut lanes = Vec::with_capacity(old.len() + 1);
    old.for_each(|member| {
        if member != lane {
            lanes.push(member)
        }
    });
    if add {
        let at = lanes.partition_point(|&member| member < lane);
        lanes.insert(at, lane);
    }
    let words = lanes.last().map_or(0, |&lane| lane as usize / 64 + 1);
    if 2 * lanes.len() < 4 * words {
        return SetData::List(lanes.into());
    }
    let mut bits = vec![0; words];
    for lane in lanes {
        bits[lane as usize / 64] |= 1 << (lane % 64);
    }
    SetData::Bits(bits.into())
}
