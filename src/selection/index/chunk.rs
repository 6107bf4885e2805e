//! A chunk: at most 64 consecutive blocks of one chain, and who holds them.
//!
//! Owns the layout that readers and the writer share, and its version protocol: the writer makes the version odd,
//! changes fields, makes it even again; a reader that sees one even version before and after its reads has read one
//! state of the chunk. Every field is atomic, so a reader that loses has read stale values, never torn memory.
#![allow(unsafe_code)]

use crossbeam_epoch::Guard;

use super::sync::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, defer, fence};

/// Most blocks a chunk.
pub(super) const CAPACITY: usize = 64;
/// Tiers.
pub(super) const TIERS: usize = 4;

/// One chunk. Chunks of length 0 are free.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Chunk {
    /// Seq of the first block.
    head_seq: AtomicU64,
    /// Seq of the last block.
    last_seq: AtomicU64,
    /// Seq of the block before the first one; 0 when there is none.
    parent_seq: AtomicU64,
    /// Name of the block before the first one, as the lane gave it that made the chunk.
    parent_name: AtomicU64,
    /// The blocks; null when free.
    data: AtomicPtr<AtomicU64>,
    /// Residency word of each tier (see `residency`).
    residency: [AtomicU32; TIERS],
    /// Odd while the writer changes the chunk.
    version: AtomicU32,
    /// Blocks.
    len: AtomicU8,
    /// Blocks nobody holds.
    dead: AtomicU8,
    /// Whether lanes go by other names than the canonical ones (see `columns`).
    has_columns: AtomicU8,
}

/// A chunk fills its cache line.
#[cfg(not(model_check))]
const _: () = assert!(std::mem::size_of::<Chunk>() == 64);

impl Default for Chunk {
    fn default() -> Self {
        Self {
            head_seq: AtomicU64::new(0),
            last_seq: AtomicU64::new(0),
            parent_seq: AtomicU64::new(0),
            parent_name: AtomicU64::new(0),
            data: AtomicPtr::new(std::ptr::null_mut()),
            residency: std::array::from_fn(|_| AtomicU32::new(super::sets::EMPTY)),
            version: AtomicU32::new(0),
            len: AtomicU8::new(0),
            dead: AtomicU8::new(0),
            has_columns: AtomicU8::new(0),
        }
    }
}

/// Capacity for `n` blocks: an eighth to spare, in fours, so that most allocations fill their size class.
pub(super) fn capacity_for(n: usize) -> usize {
    if n <= 2 { n } else { ((n + n / 8 + 3) & !3).min(CAPACITY) }
}

/// The blocks of a chunk: a header word with the capacity, the locals, the names. The capacity never changes, so no
/// length a reader has seen leads out of the allocation it has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks<'g> {
    words: &'g [AtomicU64],
}

impl<'g> Blocks<'g> {
    /// Blocks there is room for.
    #[inline]
    pub(super) fn capacity(self) -> usize {
        self.words.len() / 2
    }

    /// Content hashes, as many as there is room for.
    #[inline]
    pub(super) fn locals(self) -> &'g [AtomicU64] {
        &self.words[..self.capacity()]
    }

    /// Content hash of block `o`.
    #[inline]
    pub(super) fn local(self, o: usize) -> u64 {
        self.words[o].load(Ordering::Relaxed)
    }

    /// Canonical name of block `o`.
    #[inline]
    pub(super) fn name(self, o: usize) -> u64 {
        self.words[self.capacity() + o].load(Ordering::Relaxed)
    }

    /// Sets block `o`.
    #[inline]
    pub(super) fn set(self, o: usize, local: u64, name: u64) {
        self.words[o].store(local, Ordering::Relaxed);
        self.set_name(o, name);
    }

    /// Sets the canonical name of block `o`.
    #[inline]
    pub(super) fn set_name(self, o: usize, name: u64) {
        self.words[self.capacity() + o].store(name, Ordering::Relaxed);
    }
}

/// A new allocation for `capacity` blocks.
fn allocate(capacity: usize) -> *mut AtomicU64 {
    let words: Box<[AtomicU64]> =
        std::iter::once(capacity as u64).chain(std::iter::repeat_n(0, 2 * capacity)).map(AtomicU64::new).collect();
    Box::into_raw(words).cast()
}

/// The allocation with its header.
///
/// # Safety
/// `data` came from [`allocate`] and is not freed during `'g`.
unsafe fn allocation<'g>(data: *mut AtomicU64) -> &'g [AtomicU64] {
    // SAFETY: `allocate` made `1 + 2 * capacity` initialised words and kept `capacity` in the first, which is never
    // written again.
    unsafe { std::slice::from_raw_parts(data, 1 + 2 * (*data).load(Ordering::Relaxed) as usize) }
}

/// Frees an allocation.
///
/// # Safety
/// `data` came from [`allocate`], is freed once, and nobody uses it any more.
unsafe fn release(data: *mut AtomicU64) {
    // SAFETY: as above; the slice is exactly the box that was allocated.
    unsafe {
        let words = allocation(data).len();
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, words)));
    }
}

/// What a new chunk starts with.
pub(super) struct NewChunk {
    pub(super) head_seq: u64,
    pub(super) last_seq: u64,
    pub(super) parent_seq: u64,
    pub(super) parent_name: u64,
    pub(super) residency: [u32; TIERS],
    /// Blocks to make room for.
    pub(super) capacity: usize,
}

/// Fields as the reader saw them, not yet validated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glimpse<'g> {
    pub(super) version: u32,
    pub(super) head_seq: u64,
    pub(super) last_seq: u64,
    /// At least 1, at most what `locals` has.
    pub(super) len: usize,
    pub(super) locals: &'g [AtomicU64],
    pub(super) residency: [u32; TIERS],
}

// For readers.
impl Chunk {
    /// Reads the chunk. `None` while a writer changes it; `Some(None)` when it is free. What is returned holds only if
    /// [`Self::unchanged`] says so after all reads that belong to it.
    #[inline]
    pub(super) fn glimpse<'g>(&'g self, guard: &'g Guard) -> Option<Option<Glimpse<'g>>> {
        let version = self.version.load(Ordering::Acquire);
        if version & 1 == 1 {
            return None;
        }
        let head_seq = self.head_seq.load(Ordering::Relaxed);
        let last_seq = self.last_seq.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed) as usize;
        let residency = std::array::from_fn(|tier| self.residency[tier].load(Ordering::Relaxed));
        let Some(blocks) = self.blocks(guard) else { return Some(None) };
        let len = len.min(blocks.capacity());
        if len == 0 {
            return Some(None);
        }
        Some(Some(Glimpse { version, head_seq, last_seq, len, locals: blocks.locals(), residency }))
    }

    /// Whether nothing changed since the version was read.
    #[inline]
    pub(super) fn unchanged(&self, version: u32) -> bool {
        // The fence pairs with the one in `begin`: if any read before it saw a later change, the load after it sees
        // the version odd or further on.
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// The blocks, unless the chunk is free.
    #[inline]
    pub(super) fn blocks<'g>(&'g self, _guard: &'g Guard) -> Option<Blocks<'g>> {
        let data = self.data.load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from `allocate` and was released after its header was written. It is freed
        // only after it was replaced here and every guard of that time, ours included, is gone.
        (!data.is_null()).then(|| Blocks { words: &unsafe { allocation(data) }[1..] })
    }
}

// For the writer. One at a time: all of these are called with the writer's mutex held.
impl Chunk {
    /// Starts a change. Keep what lies before [`Self::end`] short: readers wait for it.
    #[inline]
    pub(super) fn begin(&self) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Ends a change.
    #[inline]
    pub(super) fn end(&self) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Release);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    #[inline]
    pub(super) fn head_seq(&self) -> u64 {
        self.head_seq.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Relaxed)
    }

    pub(super) fn parent_seq(&self) -> u64 {
        self.parent_seq.load(Ordering::Relaxed)
    }

    pub(super) fn parent_name(&self) -> u64 {
        self.parent_name.load(Ordering::Relaxed)
    }

    pub(super) fn set_parent_name(&self, name: u64) {
        self.parent_name.store(name, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn dead(&self) -> usize {
        self.dead.load(Ordering::Relaxed) as usize
    }

    pub(super) fn set_dead(&self, dead: usize) {
        self.dead.store(dead as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has_columns(&self) -> bool {
        self.has_columns.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_has_columns(&self, has: bool) {
        self.has_columns.store(u8::from(has), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn residency(&self, tier: usize) -> u32 {
        self.residency[tier].load(Ordering::Relaxed)
    }

    /// Between `begin` and `end`.
    pub(super) fn set_residency(&self, tier: usize, word: u32) {
        self.residency[tier].store(word, Ordering::Relaxed);
    }

    /// Seq of block `o`.
    pub(super) fn seq_at(&self, o: usize, blocks: Blocks<'_>) -> u64 {
        if o + 1 == self.len() {
            return self.last_seq();
        }
        (1..=o).fold(self.head_seq(), |seq, k| super::chain(seq, blocks.local(k)))
    }

    /// Fills a free chunk with blocks (local, name), at least one. Returns the bytes of its data.
    pub(super) fn fill(&self, new: NewChunk, filling: impl ExactSizeIterator<Item = (u64, u64)>) -> usize {
        let data = allocate(new.capacity);
        // SAFETY: just allocated; nobody else knows it.
        let blocks = Blocks { words: &unsafe { allocation(data) }[1..] };
        let len = filling.len();
        for (o, (local, name)) in filling.enumerate() {
            blocks.set(o, local, name);
        }
        self.begin();
        self.head_seq.store(new.head_seq, Ordering::Relaxed);
        self.last_seq.store(new.last_seq, Ordering::Relaxed);
        self.parent_seq.store(new.parent_seq, Ordering::Relaxed);
        self.parent_name.store(new.parent_name, Ordering::Relaxed);
        self.data.store(data, Ordering::Release);
        for (tier, word) in new.residency.into_iter().enumerate() {
            self.set_residency(tier, word);
        }
        self.dead.store(0, Ordering::Relaxed);
        self.has_columns.store(0, Ordering::Relaxed);
        self.len.store(len as u8, Ordering::Relaxed);
        self.end();
        8 + 16 * new.capacity
    }

    /// Empties a chunk whose residency words were dropped already. Returns the bytes that went.
    pub(super) fn empty(&self, guard: &Guard) -> usize {
        self.begin();
        let bytes = self.replace_data(std::ptr::null_mut(), guard);
        self.len.store(0, Ordering::Relaxed);
        self.dead.store(0, Ordering::Relaxed);
        for tier in 0..TIERS {
            self.set_residency(tier, super::sets::EMPTY);
        }
        self.end();
        bytes
    }

    fn replace_data(&self, data: *mut AtomicU64, guard: &Guard) -> usize {
        let old = self.data.swap(data, Ordering::AcqRel);
        if old.is_null() {
            return 0;
        }
        // SAFETY: `old` came from `allocate` and is not freed before the deferred call below, which is the only one:
        // the swap took it out of the chunk, and readers of this time hold guards.
        unsafe {
            let bytes = 8 * allocation(old).len();
            defer(guard, move || release(old));
            bytes
        }
    }

    /// Moves the blocks to an allocation for `capacity` of them, the length at least. Needs no `begin`: readers find the
    /// same blocks in either. Returns the bytes that came and went.
    pub(super) fn resize(&self, capacity: usize, guard: &Guard) -> (usize, usize) {
        let data = allocate(capacity);
        // SAFETY: just allocated; nobody else knows it.
        let new = Blocks { words: &unsafe { allocation(data) }[1..] };
        if let Some(old) = self.blocks(guard) {
            for o in 0..self.len().min(capacity) {
                new.set(o, old.local(o), old.name(o));
            }
        }
        (8 + 16 * capacity, self.replace_data(data, guard))
    }

    /// Sets length and last seq. Between `begin` and `end`; the blocks are written already.
    pub(super) fn set_len(&self, len: usize, last_seq: u64) {
        self.last_seq.store(last_seq, Ordering::Relaxed);
        self.len.store(len as u8, Ordering::Relaxed);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let data = self.data.load(Ordering::Relaxed);
        if !data.is_null() {
            // SAFETY: `&mut self` of a slot whose page is being freed: no reader is left, and what was replaced earlier
            // is not in the field.
            unsafe { release(data) };
        }
    }
}
