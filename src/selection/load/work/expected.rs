//! Prompts that ranks are expected to compute, and how far engines have told that they are.
//!
//! A stored block that is part of a booking's prompt says that all before it is there too: prefills go from front to
//! back. So a booking knows the first block not heard of, and only that one and every [`STRIDE`]th after it are looked
//! for; what follows a block that was found is compared with the prompt itself. Invariant: the marks of a booking are
//! exactly those, and none are left when it is forgotten.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet, hash_map::Entry};

use super::super::Slot;

/// Blocks between marks, so that a lost event costs at most this many.
const STRIDE: u32 = if cfg!(test) { 3 } else { 32 };

/// The prompt of one booking.
#[derive(Debug)]
struct Expected {
    slot: Slot,
    sequence: Arc<[u64]>,
    /// First block that was not heard of.
    next: u32,
}

/// A block that a booking waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mark {
    booking: u32,
    at: u32,
}

/// Who waits for a block; seldom more than one, but a prompt may be booked as often as clients like.
#[derive(Debug)]
enum Marks {
    One(Mark),
    Many(HashSet<Mark>),
}

/// Prompts in prefill, by the key of their booking.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    prompts: HashMap<u32, Expected>,
    marks: HashMap<(Slot, u64), Marks>,
}

/// Positions that are marked while `next` is the first block not heard of.
fn marked(next: u32, len: u32) -> impl Iterator<Item = u32> {
    let first = (next / STRIDE + 1) * STRIDE;
    std::iter::once(next).chain((first..len).step_by(STRIDE as usize)).filter(move |&at| at < len)
}

impl Expectations {
    /// The last `blocks` blocks of `sequence` are to be computed on `slot`.
    pub(super) fn expect(&mut self, booking: u32, slot: Slot, sequence: Arc<[u64]>, blocks: u32) {
        let len = sequence.len() as u32;
        let next = len.saturating_sub(blocks);
        for at in marked(next, len) {
            self.mark((slot, sequence[at as usize]), Mark { booking, at });
        }
        self.prompts.insert(booking, Expected { slot, sequence, next });
    }

    /// Forgets a booking: how many of its blocks were not heard of, and the hash of the last one.
    pub(super) fn forget(&mut self, booking: u32) -> Option<(u32, u64)> {
        let Expected { slot, sequence, next } = self.prompts.remove(&booking)?;
        let len = sequence.len() as u32;
        for at in marked(next, len) {
            self.unmark((slot, sequence[at as usize]), Mark { booking, at });
        }
        self.shrink();
        (next < len).then(|| (len - next, sequence[len as usize - 1]))
    }

    /// `slot` holds these blocks, each after the one before; returns how many blocks of all prompts that brings.
    pub(super) fn stored(&mut self, slot: Slot, sequence: &[u64]) -> u64 {
        if self.marks.is_empty() {
            return 0;
        }
        let mut heard = 0;
        for (at, &hash) in sequence.iter().enumerate() {
            let waiting = match self.marks.get(&(slot, hash)) {
                None => continue,
                Some(Marks::One(mark)) => vec![*mark],
                Some(Marks::Many(marks)) => marks.iter().copied().collect(),
            };
            for mark in waiting {
                heard += u64::from(self.advance(mark, &sequence[at..]));
            }
        }
        heard
    }

    /// The marked block was stored, and what follows it.
    fn advance(&mut self, mark: Mark, stored: &[u64]) -> u32 {
        let Some(expected) = self.prompts.get_mut(&mark.booking) else { return 0 };
        let rest = &expected.sequence[mark.at as usize..];
        let agree = rest.iter().zip(stored).take_while(|(a, b)| a == b).count() as u32;
        let (before, after) = (expected.next, mark.at + agree);
        if after <= before {
            return 0;
        }
        expected.next = after;
        let (slot, sequence) = (expected.slot, Arc::clone(&expected.sequence));
        let len = sequence.len() as u32;
        for at in marked(before, len).take_while(|&at| at < after) {
            self.unmark((slot, sequence[at as usize]), Mark { booking: mark.booking, at });
        }
        // Later multiples of the stride are marked already.
        if after < len && !(after.is_multiple_of(STRIDE) && after > before) {
            self.mark((slot, sequence[after as usize]), Mark { booking: mark.booking, at: after });
        }
        after - before
    }

    fn mark(&mut self, block: (Slot, u64), mark: Mark) {
        match self.marks.entry(block) {
            Entry::Vacant(vacant) => {
                vacant.insert(Marks::One(mark));
            }
            Entry::Occupied(mut marks) => match marks.get_mut() {
                Marks::One(first) => {
                    let first = *first;
                    *marks.get_mut() = Marks::Many(HashSet::from_iter([first, mark]));
                }
                Marks::Many(many) => {
                    many.insert(mark);
                }
            },
        }
    }

    fn unmark(&mut self, block: (Slot, u64), mark: Mark) {
        let Entry::Occupied(mut marks) = self.marks.entry(block) else { return };
        if let Marks::Many(many) = marks.get_mut() {
            many.remove(&mark);
            if !many.is_empty() {
                return;
            }
        }
        marks.remove();
    }

    fn shrink(&mut self) {
        if self.marks.capacity() > 256 && self.marks.capacity() / 8 > self.marks.len() {
            self.marks.shrink_to(self.marks.len() * 2);
            self.prompts.shrink_to(self.prompts.len() * 2);
        }
    }

    /// Whether nothing is expected and no mark is left.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.prompts.is_empty() && self.marks.is_empty()
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut count = 0;
        for (&booking, expected) in &self.prompts {
            for at in marked(expected.next, expected.sequence.len() as u32) {
                let mark = Mark { booking, at };
                let found = match &self.marks[&(expected.slot, expected.sequence[at as usize])] {
                    Marks::One(one) => *one == mark,
                    Marks::Many(many) => many.contains(&mark),
                };
                assert!(found, "{mark:?}");
                count += 1;
            }
        }
        let held: usize =
            self.marks.values().map(|marks| if let Marks::Many(many) = marks { many.len() } else { 1 }).sum();
        assert_eq!(held, count);
    }
}
