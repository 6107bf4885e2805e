//! Who holds one run of active blocks: live bookings counted by slot.
//!
//! Most runs have one owner. The few that most ranks own, such as a system prompt, are met by every booking, so large
//! sets keep an owner in eight bytes and find it without hashing.

use std::borrow::Cow;

use super::{Slot, bookings::NONE};

/// Distinct slots above which a set is kept as pages with a bit set; below half of it, as a sorted list again. Tests meet
/// the edge with few ranks.
pub(super) const FEW: usize = if cfg!(test) { 8 } else { 64 };

/// One slot's share of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::selection) struct Share {
    /// Live bookings of the slot that pass through the run.
    pub(super) bookings: u32,
    /// The one booking among them that gave these blocks weights, or [`NONE`]. There is at most one: weights are set by a sole owner,
    /// and whoever joins later counts fully.
    pub(super) weighted: u32,
}

impl Share {
    const ONE: Self = Self { bookings: 1, weighted: NONE };
}

/// A slot and its share.
type Owner = (Slot, Share);

/// The owners of a run, at least one in use.
#[derive(Clone, Debug)]
pub(in crate::selection) enum Owners {
    /// Most runs.
    One(Slot, Share),
    /// Sorted by slot.
    Few(Vec<Owner>),
    /// Any number, with a bit a slot for membership.
    Many(Box<ManyOwners>),
}

#[derive(Clone, Debug, Default)]
pub(in crate::selection) struct ManyOwners {
    len: usize,
    /// A bit a slot.
    bits: Vec<u64>,
    /// Shares of 64 slots each, in the order of their bits.
    pages: Vec<Vec<Share>>,
}

impl Owners {
    pub(super) fn one(slot: Slot) -> Self {
        Self::One(slot, Share::ONE)
    }

    /// Number of distinct slots.
    pub(in crate::selection) fn len(&self) -> usize {
        match self {
            Self::One(..) => 1,
            Self::Few(list) => list.len(),
            Self::Many(many) => many.len,
        }
    }

    #[inline]
    pub(in crate::selection) fn contains(&self, slot: Slot) -> bool {
        match self {
            Self::One(owner, _) => *owner == slot,
            Self::Few(list) => list.binary_search_by_key(&slot, |owner| owner.0).is_ok(),
            Self::Many(many) => many.bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1),
        }
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Share> {
        match self {
            Self::One(owner, share) => (*owner == slot).then_some(share),
            Self::Few(list) => {
                let at = list.binary_search_by_key(&slot, |owner| owner.0).ok()?;
                Some(&mut list[at].1)
            }
            Self::Many(many) => {
                let (page, at, held) = many.place(slot);
                if held { many.pages[page].get_mut(at) } else { None }
            }
        }
    }

    /// Adds a booking; returns the slot's share as it was before.
    pub(super) fn add(&mut self, slot: Slot) -> Option<Share> {
        if let Some(share) = self.get_mut(slot) {
            let before = *share;
            share.bookings += 1;
            return Some(before);
        }
        let owner = (slot, Share::ONE);
        match self {
            Self::One(first, share) => {
                let first = (*first, *share);
                *self = Self::Few(if first.0 < slot { vec![first, owner] } else { vec![owner, first] });
            }
            Self::Few(list) if list.len() < FEW => {
                let at = list.partition_point(|other| other.0 < slot);
                list.insert(at, owner);
            }
            Self::Few(list) => {
                let mut many = ManyOwners::default();
                list.iter().for_each(|&owner| many.insert(owner));
                many.insert(owner);
                *self = Self::Many(Box::new(many));
            }
            Self::Many(many) => many.insert(owner),
        }
        None
    }

    /// Takes a slot out. The last one stays: its run goes with it.
    pub(super) fn remove(&mut self, slot: Slot) {
        match self {
            Self::One(..) => {}
            Self::Few(list) => {
                list.retain(|owner| owner.0 != slot);
                if let [(slot, share)] = list.as_slice() {
                    *self = Self::One(*slot, *share);
                }
            }
            Self::Many(many) => {
                many.remove(slot);
                if many.len < FEW / 2 {
                    let shares = many.pages.iter().flatten().copied().collect::<Vec<_>>();
                    let mut slots = Vec::with_capacity(shares.len());
                    self.for_each(|slot| slots.push(slot));
                    *self = Self::Few(slots.into_iter().zip(shares).collect());
                }
            }
        }
    }

    /// A bit a slot.
    pub(in crate::selection) fn bits(&self) -> Cow<'_, [u64]> {
        if let Self::Many(many) = self {
            return Cow::Borrowed(&many.bits);
        }
        let mut bits = Vec::new();
        self.for_each(|slot| {
            let word = slot as usize / 64;
            if word >= bits.len() {
                bits.resize(word + 1, 0);
            }
            bits[word] |= 1 << (slot % 64);
        });
        Cow::Owned(bits)
    }

    /// Slots in ascending order.
    pub(in crate::selection) fn for_each(&self, mut visit: impl FnMut(Slot)) {
        match self {
            Self::One(slot, _) => visit(*slot),
            Self::Few(list) => list.iter().for_each(|owner| visit(owner.0)),
            Self::Many(many) => {
                for (at, &word) in many.bits.iter().enumerate() {
                    let mut left = word;
                    while left != 0 {
                        visit(at as u32 * 64 + left.trailing_zeros());
                        left &= left - 1;
                    }
                }
            }
        }
    }
}

impl ManyOwners {
    /// Page of a slot, its place there, and whether it is held.
    #[inline]
    fn place(&self, slot: Slot) -> (usize, usize, bool) {
        let (page, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        let word = self.bits.get(page).copied().unwrap_or(0);
        (page, (word & (bit - 1)).count_ones() as usize, word & bit != 0)
    }

    /// Adds a slot that is not held.
    fn insert(&mut self, (slot, share): Owner) {
        let (page, at, _) = self.place(slot);
        if page >= self.bits.len() {
            self.bits.resize(page + 1, 0);
            self.pages.resize_with(page + 1, Vec::new);
        }
        self.bits[page] |= 1 << (slot % 64);
        self.pages[page].insert(at, share);
        self.len += 1;
    }

    fn remove(&mut self, slot: Slot) {
        let (page, at, held) = self.place(slot);
        if !held {
            return;
        }
        self.bits[page] &= !(1 << (slot % 64));
        let shares = &mut self.pages[page];
        shares.remove(at);
        if shares.len() * 4 < shares.capacity() {
            shares.shrink_to(shares.len() * 2);
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_and_pages_agree_across_the_switch() {
        let mut owners = Owners::one(0);
        for slot in (1..200).rev() {
            assert_eq!(owners.add(slot), None);
            assert_eq!(owners.add(slot).map(|share| share.bookings), Some(1));
        }
        assert!(matches!(owners, Owners::Many(_)));
        let mut seen = vec![];
        owners.for_each(|slot| seen.push(slot));
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(owners.contains(199) && !owners.contains(200) && !owners.contains(9_999));
        assert_eq!(owners.bits()[..], [u64::MAX, u64::MAX, u64::MAX, 255]);
        for slot in 3..200 {
            owners.remove(slot);
        }
        assert!(matches!(owners, Owners::Few(_)));
        assert_eq!(owners.len(), 3);
        assert_eq!(owners.get_mut(2).map(|share| share.bookings), Some(2));
        assert!(!owners.contains(3));
        assert_eq!(owners.bits()[..], [7]);
    }
}
