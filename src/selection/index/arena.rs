//! Slots with dense ids, in pages that come and go; readers reach them without a lock.
//!
//! Owns the page directory and the free slots. Invariants: a page is freed only after every reader that may have seen
//! it has unpinned; a directory holds the pages of all ids below its length; ids are given out lowest page first, so
//! that high pages empty.
#![allow(unsafe_code)]

use std::{collections::BTreeSet, marker::PhantomData};

use crossbeam_epoch::Guard;

use super::sync::{AtomicPtr, Ordering, defer};

/// Slots a page; a power of two.
#[cfg(not(model_check))]
pub(super) const PAGE: usize = 256;
/// Slots a page; small, because a model checker pays for every atomic.
#[cfg(model_check)]
pub(super) const PAGE: usize = 2;

/// A page of slots.
struct Page<T>([T; PAGE]);

impl<T: Default> Default for Page<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

/// Pages by number; replaced by a longer copy when it is full.
struct Directory<T>(Box<[AtomicPtr<Page<T>>]>);

impl<T> Directory<T> {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect())
    }
}

/// The part that readers see.
#[derive(Debug)]
pub(super) struct Arena<T> {
    directory: AtomicPtr<Directory<T>>,
    owns: PhantomData<Box<T>>,
}

/// What one reader sees of an arena: the directory as of the moment it looked.
pub(super) struct View<'g, T> {
    pages: &'g [AtomicPtr<Page<T>>],
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'g, T> View<'g, T> {
    /// The slot, unless its page is gone or came after this view was taken.
    #[inline]
    pub(super) fn get(self, id: u32) -> Option<&'g T> {
        let page = self.pages.get(id as usize / PAGE)?.load(Ordering::Acquire);
        // SAFETY: a non-null entry points at a page initialised before the pointer was released. Pages are unlinked
        // before they are freed, and freed only after every guard of that time is gone: ours ('g) keeps it alive.
        let page = unsafe { page.as_ref() }?;
        Some(&page.0[id as usize % PAGE])
    }
}

impl<T: Default> Arena<T> {
    /// No slots.
    pub(super) fn new() -> Self {
        Self { directory: AtomicPtr::new(Box::into_raw(Box::new(Directory::new(0)))), owns: PhantomData }
    }

    /// What is there now.
    #[inline]
    pub(super) fn view<'g>(&'g self, _guard: &'g Guard) -> View<'g, T> {
        // SAFETY: never null; initialised before it was released; a replaced directory outlives the guards of its time.
        let directory = unsafe { &*self.directory.load(Ordering::Acquire) };
        View { pages: &directory.0 }
    }

    /// Adds page number `page`, growing the directory if needed. One writer at a time.
    pub(super) fn add_page(&self, page: usize, guard: &Guard) {
        let mut view = self.view(guard);
        if page >= view.pages.len() {
            let longer = Directory::new((page + 1).next_power_of_two().max(4));
            for (new, old) in longer.0.iter().zip(view.pages) {
                new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            let old = self.directory.swap(Box::into_raw(Box::new(longer)), Ordering::AcqRel);
            // SAFETY: `old` came from `Box::into_raw`, is unlinked now, and this is the only writer, so it is freed
            // once. Its pages live on in the longer one: a directory's drop does not touch them.
            unsafe { defer(guard, move || drop(Box::from_raw(old))) };
            view = self.view(guard);
        }
        view.pages[page].store(Box::into_raw(Box::default()), Ordering::Release);
    }

    /// Frees a page nobody will be led to any more. One writer at a time.
    pub(super) fn drop_page(&self, page: usize, guard: &Guard) {
        let old = self.view(guard).pages[page].swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: from `Box::into_raw`, unlinked by the swap, freed once; readers of this time hold guards.
            unsafe { defer(guard, move || drop(Box::from_raw(old))) };
        }
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: nobody else reaches the directory or its pages; all came from `Box::into_raw`, and what
        // was unlinked earlier is not in this directory.
        unsafe {
            let directory = Box::from_raw(self.directory.load(Ordering::Relaxed));
            for page in &directory.0 {
                let page = page.load(Ordering::Relaxed);
                if !page.is_null() {
                    drop(Box::from_raw(page));
                }
            }
        }
    }
}

/// The writer's account of an arena: which ids are free.
#[derive(Debug)]
pub(super) struct Slots {
    pages: Vec<PageUse>,
    /// Pages with a free slot.
    with_room: BTreeSet<u32>,
    /// Numbers below the highest page that have none.
    unlinked: BTreeSet<u32>,
    /// Slots in use.
    used: usize,
    /// Ids are below this.
    limit: u32,
}

/// Free slots of one page, a bit each.
#[derive(Debug)]
struct PageUse {
    free: [u64; PAGE.div_ceil(64)],
    used: usize,
}

impl PageUse {
    fn new() -> Self {
        let mut free = [0; PAGE.div_ceil(64)];
        for slot in 0..PAGE {
            free[slot / 64] |= 1 << (slot % 64);
        }
        Self { free, used: 0 }
    }
}

impl Slots {
    /// All ids below `limit` are free, no page is there.
    pub(super) fn new(limit: u32) -> Self {
        Self { pages: Vec::new(), with_room: BTreeSet::new(), unlinked: BTreeSet::new(), used: 0, limit }
    }

    /// Slots in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Pages allocated.
    pub(super) fn linked(&self) -> usize {
        self.pages.len() - self.unlinked.len()
    }

    /// One past the highest id there may be.
    pub(super) fn end(&self) -> u32 {
        (self.pages.len() * PAGE) as u32
    }

    /// Ids that can still be given out.
    pub(super) fn room(&self) -> usize {
        self.limit as usize - self.used
    }

    /// Whether the page of `id` is there.
    pub(super) fn has_page(&self, id: u32) -> bool {
        (id as usize / PAGE) < self.pages.len() && !self.unlinked.contains(&(id / PAGE as u32))
    }

    /// Takes a free slot; `None` at the limit.
    pub(super) fn take<T: Default>(&mut self, arena: &Arena<T>, guard: &Guard) -> Option<u32> {
        let page = match self.with_room.first() {
            Some(&page) => page as usize,
            None => self.link(arena, guard)?,
        };
        let of = &mut self.pages[page];
        let word = of.free.iter().position(|&word| word != 0)?;
        let bit = of.free[word].trailing_zeros() as usize;
        of.free[word] &= of.free[word] - 1;
        of.used += 1;
        if of.used == PAGE {
            self.with_room.remove(&(page as u32));
        }
        self.used += 1;
        Some((page * PAGE + word * 64 + bit) as u32)
    }

    fn link<T: Default>(&mut self, arena: &Arena<T>, guard: &Guard) -> Option<usize> {
        let page = self.unlinked.first().map_or(self.pages.len(), |&page| page as usize);
        if (page + 1) * PAGE > self.limit as usize {
            return None;
        }
        arena.add_page(page, guard);
        if self.unlinked.remove(&(page as u32)) {
            self.pages[page] = PageUse::new();
        } else {
            self.pages.push(PageUse::new());
        }
        self.with_room.insert(page as u32);
        Some(page)
    }

    /// Gives a slot back. Its page goes when it is empty and another page has room.
    pub(super) fn give<T: Default>(&mut self, id: u32, arena: &Arena<T>, guard: &Guard) {
        let (page, slot) = (id as usize / PAGE, id as usize % PAGE);
        let of = &mut self.pages[page];
        of.free[slot / 64] |= 1 << (slot % 64);
        of.used -= 1;
        self.used -= 1;
        self.with_room.insert(page as u32);
        if of.used == 0 && self.with_room.len() > 1 {
            self.with_room.remove(&(page as u32));
            self.unlinked.insert(page as u32);
            arena.drop_page(page, guard);
            while self.unlinked.last().is_some_and(|&page| page as usize + 1 == self.pages.len()) {
                self.unlinked.pop_last();
                self.pages.pop();
            }
        }
    }
}
