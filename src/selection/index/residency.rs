//! Who holds the blocks of a chunk in one tier, as one word: the id of a set when all blocks are held alike, else the
//! id of a segment list.
//!
//! Owns segment lists and the sets' references from words. Invariants: a segment list never changes; its first offset
//! is 0, offsets ascend, neighbours differ; every word and every segment counts as one use of its set.
#![allow(unsafe_code)]

use super::{
    arena::{PAGE, Slots, View},
    chunk::{CAPACITY, Chunk, TIERS},
    sets::{EMPTY, SetRef, Sets},
    shared::{CHUNKS, Context},
    sync::{AtomicPtr, Ordering, defer},
};

/// Marks a word that names a segment list.
const SEGMENTED: u32 = 1 << 31;
/// Most segment lists: more than four tiers of every chunk there may be.
const LISTS: u32 = 1 << 28;
const _: () = assert!(LISTS / 8 >= CHUNKS);

/// Offsets `from..from + n`, a bit each.
#[inline]
pub(super) fn mask(from: usize, n: usize) -> u64 {
    if n >= 64 { !0 } else { ((1 << n) - 1) << from }
}

/// The offsets in a mask, ascending.
#[inline]
pub(super) fn offsets(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        next
    })
}

/// One segment: first offset and set id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment(u32);

impl Segment {
    fn new(offset: usize, set: u32) -> Self {
        Self((offset as u32) << 26 | set)
    }

    #[inline]
    pub(super) fn offset(self) -> usize {
        (self.0 >> 26) as usize
    }

    #[inline]
    pub(super) fn set(self) -> u32 {
        self.0 & EMPTY
    }
}

/// Where readers find a segment list: a box of its length and its segments, by its first element.
#[derive(Debug)]
pub(super) struct ListSlot(AtomicPtr<Segment>);

impl Default for ListSlot {
    fn default() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl Drop for ListSlot {
    fn drop(&mut self) {
        let list = self.0.load(Ordering::Relaxed);
        if !list.is_null() {
            // SAFETY: `&mut self` of a slot whose page is being freed: no reader is left; a dropped list is not in its
            // slot any more, so this is the only owner.
            unsafe { free(list) };
        }
    }
}

fn allocate(segments: impl ExactSizeIterator<Item = Segment>) -> *mut Segment {
    let len = segments.len() as u32;
    let list: Box<[Segment]> = std::iter::once(Segment(len)).chain(segments).collect();
    Box::into_raw(list).cast()
}

/// # Safety
/// `list` came from [`allocate`] and is not freed during `'g`.
unsafe fn segments_of<'g>(list: *const Segment) -> &'g [Segment] {
    // SAFETY: `allocate` made a length and as many segments; none of them is ever written again.
    unsafe { std::slice::from_raw_parts(list.add(1), (*list).0 as usize) }
}

/// # Safety
/// `list` came from [`allocate`], is freed once, and nobody uses it any more.
unsafe fn free(list: *mut Segment) {
    // SAFETY: as above; the slice is exactly the box that was allocated.
    unsafe {
        let len = (*list).0 as usize + 1;
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, len)));
    }
}

/// What a word says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word<'g> {
    /// All blocks are held by this set.
    Uniform(u32),
    /// Blocks differ.
    Segments(&'g [Segment]),
}

impl<'g> Word<'g> {
    /// Reads a word. `None` when a reader looked for a list that is gone, or not yet there.
    #[inline]
    pub(super) fn resolve(word: u32, lists: View<'g, ListSlot>) -> Option<Self> {
        if word & SEGMENTED == 0 {
            return Some(Self::Uniform(word));
        }
        let list = lists.get(word & !SEGMENTED)?.0.load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from `allocate` and was released after its content was written. It is freed
        // only after it was taken out of its slot and every guard of that time, the view's 'g included, is gone.
        (!list.is_null()).then(|| Self::Segments(unsafe { segments_of(list) }))
    }

    /// The set that holds block `o`.
    #[inline]
    fn set_at(self, o: usize) -> u32 {
        match self {
            Self::Uniform(set) => set,
            Self::Segments(segments) => {
                segments.iter().take_while(|segment| segment.offset() <= o).last().map_or(EMPTY, |s| s.set())
            }
        }
    }

    /// Set ids block by block, for the first `len` blocks.
    fn expand(self, len: usize) -> [u32; CAPACITY] {
        let mut sets = [EMPTY; CAPACITY];
        match self {
            Self::Uniform(set) => sets[..len].fill(set),
            Self::Segments(segments) => {
                for (k, segment) in segments.iter().enumerate() {
                    let end = segments.get(k + 1).map_or(len, |next| next.offset()).min(len);
                    if segment.offset() < end {
                        sets[segment.offset()..end].fill(segment.set());
                    }
                }
            }
        }
        sets
    }
}

/// The writer's side: sets and segment lists.
#[derive(Debug)]
pub(super) struct Holders {
    pub(super) sets: Sets,
    lists: Slots,
    list_bytes: usize,
}

impl Holders {
    /// No set, no list.
    pub(super) fn new() -> Self {
        Self { sets: Sets::new(), lists: Slots::new(LISTS), list_bytes: 0 }
    }

    /// Estimated bytes of heap.
    pub(super) fn bytes(&self) -> usize {
        self.sets.bytes() + self.list_bytes + self.lists.linked() * PAGE * 8
    }

    /// The set that holds block `o` of a chunk in a tier.
    #[inline]
    pub(super) fn set_at(&self, chunk: &Chunk, tier: usize, o: usize, cx: Context<'_>) -> u32 {
        let word = chunk.residency(tier);
        if word & SEGMENTED == 0 {
            return word;
        }
        Word::resolve(word, cx.shared.lists.view(cx.guard)).map_or(EMPTY, |word| word.set_at(o))
    }

    /// Members of a set.
    #[inline]
    pub(super) fn members<'g>(&self, set: u32, cx: Context<'g>) -> SetRef<'g> {
        SetRef::resolve(set, cx.shared.sets.view(cx.guard)).unwrap_or(SetRef::Empty)
    }

    /// Whether `lane` holds block `o` of a chunk in a tier.
    #[inline]
    pub(super) fn holds(&self, chunk: &Chunk, tier: usize, o: usize, lane: u16, cx: Context<'_>) -> bool {
        let set = self.set_at(chunk, tier, o, cx);
        set == u32::from(lane) || self.members(set, cx).has(lane)
    }

    /// Offsets that `lane` holds in a tier.
    pub(super) fn held(&self, chunk: &Chunk, tier: usize, lane: u16, cx: Context<'_>) -> u64 {
        self.where_set(chunk, tier, cx, |set| self.members(set, cx).has(lane))
    }

    /// Offsets whose set in a tier satisfies `test`, asked once for each segment.
    pub(super) fn where_set(
        &self,
        chunk: &Chunk,
        tier: usize,
        cx: Context<'_>,
        mut test: impl FnMut(u32) -> bool,
    ) -> u64 {
        let len = chunk.len();
        match Word::resolve(chunk.residency(tier), cx.shared.lists.view(cx.guard)) {
            Some(Word::Uniform(set)) if test(set) => mask(0, len),
            Some(Word::Uniform(_)) | None => 0,
            Some(Word::Segments(segments)) => {
                let mut held = 0;
                for (k, segment) in segments.iter().enumerate() {
                    let end = segments.get(k + 1).map_or(len, |next| next.offset()).min(len);
                    if segment.offset() < end && test(segment.set()) {
                        held |= mask(segment.offset(), end - segment.offset());
                    }
                }
                held
            }
        }
    }

    /// Offsets that somebody holds in some tier.
    pub(super) fn alive(&self, chunk: &Chunk, cx: Context<'_>) -> u64 {
        (0..TIERS).fold(0, |alive, tier| alive | self.where_set(chunk, tier, cx, |set| set != EMPTY))
    }

    /// Adds the uses of sets by a word.
    #[cfg(test)]
    pub(super) fn count_uses(&self, word: u32, cx: Context<'_>, uses: &mut std::collections::HashMap<u32, u32>) {
        match Word::resolve(word, cx.shared.lists.view(cx.guard)).expect("a word in use names a list") {
            Word::Uniform(set) => *uses.entry(set).or_default() += 1,
            Word::Segments(segments) => {
                assert!(segments[0].offset() == 0 && segments.len() > 1);
                assert!(segments.windows(2).all(|w| w[0].offset() < w[1].offset() && w[0].set() != w[1].set()));
                segments.iter().for_each(|segment| *uses.entry(segment.set()).or_default() += 1);
            }
        }
    }

    /// Set ids block by block.
    pub(super) fn expand(&self, word: u32, len: usize, cx: Context<'_>) -> [u32; CAPACITY] {
        Word::resolve(word, cx.shared.lists.view(cx.guard)).map_or([EMPTY; CAPACITY], |word| word.expand(len))
    }

    /// The word for set ids block by block; its uses are counted.
    pub(super) fn compress(&mut self, sets: &[u32], cx: Context<'_>) -> u32 {
        let changes = (1..sets.len()).fold(0u64, |mask, o| mask | u64::from(sets[o] != sets[o - 1]) << o);
        if changes == 0 {
            self.sets.retain(sets[0]);
            return sets[0];
        }
        let starts = changes | 1;
        offsets(starts).for_each(|o| self.sets.retain(sets[o]));
        let len = starts.count_ones() as usize;
        let mut starts = offsets(starts);
        let list = allocate((0..len).map(|_| {
            let o = starts.next().unwrap_or_default();
            Segment::new(o, sets[o])
        }));
        self.list_bytes += 4 + 4 * len;
        let id = self.lists.take(&cx.shared.lists, cx.guard).expect("there are more ids than chunks have words");
        if let Some(slot) = cx.shared.lists.view(cx.guard).get(id) {
            slot.0.store(list, Ordering::Release);
        }
        SEGMENTED | id
    }

    /// Uncounts a word nobody is led to any more.
    pub(super) fn drop_word(&mut self, word: u32, cx: Context<'_>) {
        if word & SEGMENTED == 0 {
            self.sets.release(word, &cx.shared.sets, cx.guard);
            return;
        }
        let Some(slot) = cx.shared.lists.view(cx.guard).get(word & !SEGMENTED) else { return };
        let list = slot.0.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !list.is_null() {
            // SAFETY: from `allocate`; freed only by the deferred call below, which is the only one, since the swap
            // took the list out of its slot. Readers of this time hold guards.
            let segments = unsafe { segments_of(list) };
            for segment in segments {
                self.sets.release(segment.set(), &cx.shared.sets, cx.guard);
            }
            self.list_bytes -= 4 + 4 * segments.len();
            // SAFETY: see above.
            unsafe { defer(cx.guard, move || free(list)) };
        }
        self.lists.give(word & !SEGMENTED, &cx.shared.lists, cx.guard);
    }

    /// Adds or removes `lane` on the offsets of `at` in one tier; returns those that changed. What cannot be stored
    /// any more does not change.
    pub(super) fn update(&mut self, chunk: &Chunk, tier: usize, at: u64, lane: u16, add: bool, cx: Context<'_>) -> u64 {
        let (word, len) = (chunk.residency(tier), chunk.len());
        let all = mask(0, len);
        let at = at & all;
        if at == 0 {
            return 0;
        }
        let shared = cx.shared;
        if word & SEGMENTED == 0 {
            let Some(to) = self.sets.step(word, lane, add, &shared.sets, cx.guard) else { return 0 };
            if to == word {
                return 0;
            }
            self.sets.retain(to);
            let new = if at == all {
                to
            } else {
                let mut sets = [word; CAPACITY];
                offsets(at).for_each(|o| sets[o] = to);
                let new = self.compress(&sets[..len], cx);
                self.sets.release(to, &shared.sets, cx.guard);
                new
            };
            self.replace(chunk, tier, new, cx);
            return at;
        }
        let mut sets = self.expand(word, len, cx);
        let mut done = 0;
        // Results are held until the new word has counted them: releasing the old word must not free one.
        let mut fresh = [EMPTY; CAPACITY];
        let mut count = 0;
        let mut last = None;
        for o in offsets(at) {
            let from = sets[o];
            let to = match last {
                Some((known, to)) if known == from => to,
                _ => {
                    let Some(to) = self.sets.step(from, lane, add, &shared.sets, cx.guard) else { continue };
                    self.sets.retain(to);
                    fresh[count] = to;
                    count += 1;
                    to
                }
            };
            last = Some((from, to));
            if to != from {
                done |= 1 << o;
                sets[o] = to;
            }
        }
        if done != 0 {
            let new = self.compress(&sets[..len], cx);
            self.replace(chunk, tier, new, cx);
        }
        for &set in &fresh[..count] {
            self.sets.release(set, &shared.sets, cx.guard);
        }
        done
    }

    /// Shows readers a new word and uncounts the old one.
    fn replace(&mut self, chunk: &Chunk, tier: usize, word: u32, cx: Context<'_>) {
        let old = chunk.residency(tier);
        chunk.begin();
        chunk.set_residency(tier, word);
        chunk.end();
        self.drop_word(old, cx);
    }

    /// Words for `chunk` with `n` more blocks, which `lane` holds in `tier`. Those that differ from the chunk's are
    /// counted.
    pub(super) fn extended(
        &mut self,
        chunk: &Chunk,
        n: usize,
        tier: usize,
        lane: u16,
        cx: Context<'_>,
    ) -> [u32; TIERS] {
        let len = chunk.len();
        std::array::from_fn(|t| {
            let (word, added) = (chunk.residency(t), if t == tier { u32::from(lane) } else { EMPTY });
            if self.set_at(chunk, t, len - 1, cx) == added {
                return word;
            }
            let mut sets = self.expand(word, len, cx);
            sets[len..len + n].fill(added);
            self.compress(&sets[..len + n], cx)
        })
    }

    /// Words for blocks `from..to` of a chunk, counted.
    pub(super) fn range(&mut self, chunk: &Chunk, from: usize, to: usize, cx: Context<'_>) -> [u32; TIERS] {
        std::array::from_fn(|t| {
            let sets = self.expand(chunk.residency(t), chunk.len(), cx);
            self.compress(&sets[from..to], cx)
        })
    }
}
