//! Who holds one run of active blocks: live bookings counted by slot.

use hashbrown::HashMap;

use super::{Slot, bookings::NONE};

/// Distinct slots above which a set is kept as a map with a bit set; below half of it, as a sorted list again. Tests meet
/// the edge with few ranks.
pub(super) const FEW: usize = if cfg!(test) { 8 } else { 64 };

/// One slot's share of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::selection) struct Owner {
    pub(super) slot: Slot,
    /// Live bookings of the slot that pass through the run.
    pub(super) bookings: u32,
    /// The one booking among them that gave these blocks weights, or [`NONE`]. There is at most one: weights are set by a sole owner,
    /// and whoever joins later counts fully.
    pub(super) weighted: u32,
}

/// The owners of a run, at least one in use.
#[derive(Clone, Debug)]
pub(in crate::selection) enum Owners {
    /// Most runs.
    One(Owner),
    /// Sorted by slot.
    Few(Vec<Owner>),
    /// Any number, with a bit a slot for membership.
    Many(Box<ManyOwners>),
}

#[derive(Clone, Debug, Default)]
pub(in crate::selection) struct ManyOwners {
    by_slot: HashMap<Slot, Owner>,
    bits: Vec<u64>,
}

impl Owners {
    pub(super) fn one(slot: Slot) -> Self {
        Self::One(Owner { slot, bookings: 1, weighted: NONE })
    }

    /// Number of distinct slots.
    pub(in crate::selection) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(list) => list.len(),
            Self::Many(many) => many.by_slot.len(),
        }
    }

    #[inline]
    pub(in crate::selection) fn contains(&self, slot: Slot) -> bool {
        match self {
            Self::One(owner) => owner.slot == slot,
            Self::Few(list) => list.binary_search_by_key(&slot, |owner| owner.slot).is_ok(),
            Self::Many(many) => many.bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1),
        }
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Owner> {
        match self {
            Self::One(owner) => (owner.slot == slot).then_some(owner),
            Self::Few(list) => {
                let at = list.binary_search_by_key(&slot, |owner| owner.slot).ok()?;
                Some(&mut list[at])
            }
            Self::Many(many) => many.by_slot.get_mut(&slot),
        }
    }

    /// Adds a booking; returns the owner as it was before.
    pub(super) fn add(&mut self, slot: Slot) -> Option<Owner> {
        if let Some(owner) = self.get_mut(slot) {
            let before = *owner;
            owner.bookings += 1;
            return Some(before);
        }
        let owner = Owner { slot, bookings: 1, weighted: NONE };
        match self {
            Self::One(first) => {
                let first = *first;
                *self = Self::Few(if first.slot < slot { vec![first, owner] } else { vec![owner, first] });
            }
            Self::Few(list) if list.len() < FEW => {
                let at = list.partition_point(|other| other.slot < slot);
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
            Self::One(_) => {}
            Self::Few(list) => {
                list.retain(|owner| owner.slot != slot);
                if let [last] = list.as_slice() {
                    *self = Self::One(*last);
                }
            }
            Self::Many(many) => {
                if many.by_slot.remove(&slot).is_some() {
                    many.bits[slot as usize / 64] &= !(1 << (slot % 64));
                }
                if many.by_slot.len() < FEW / 2 {
                    let mut list: Vec<Owner> = many.by_slot.values().copied().collect();
                    list.sort_unstable_by_key(|owner| owner.slot);
                    *self = Self::Few(list);
                }
            }
        }
    }

    /// Slots in ascending order.
    pub(in crate::selection) fn for_each(&self, mut visit: impl FnMut(Slot)) {
        match self {
            Self::One(owner) => visit(owner.slot),
            Self::Few(list) => list.iter().for_each(|owner| visit(owner.slot)),
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
    fn insert(&mut self, owner: Owner) {
        let word = owner.slot as usize / 64;
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << (owner.slot % 64);
        self.by_slot.insert(owner.slot, owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_and_map_agree_across_the_switch() {
        let mut owners = Owners::one(0);
        for slot in (1..200).rev() {
            assert_eq!(owners.add(slot), None);
            assert_eq!(owners.add(slot).map(|owner| owner.bookings), Some(1));
        }
        assert!(matches!(owners, Owners::Many(_)));
        let mut seen = vec![];
        owners.for_each(|slot| seen.push(slot));
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(owners.contains(199) && !owners.contains(200) && !owners.contains(9_999));
        for slot in 3..200 {
            owners.remove(slot);
        }
        assert!(matches!(owners, Owners::Few(_)));
        assert_eq!(owners.len(), 3);
        assert_eq!(owners.get_mut(2).map(|owner| owner.bookings), Some(2));
        assert!(!owners.contains(3));
    }
}
