//! Blocks a rank announced under a parent it does not hold. No prompt can reach them until the parent comes, so readers
//! never see them; the writer keeps them by name.
//!
//! Device blocks wait for a device parent (engines store parents first, so theirs was lost or is late). Blocks of lower
//! tiers are held, count as held and wait for a parent in any tier. Both are limited for a rank and for the index; a
//! rank's longest waiting block goes first, and a rank that has none gets no place in a full index. Invariants: a
//! (tier, name) waits at most once; every block is in the list of its parent.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::{StoredBlock, chunk::TIERS};

/// Device blocks and others.
const KINDS: usize = 2;
/// Most blocks a rank that wait, by kind.
const MOST_A_RANK: [usize; KINDS] = [16_384, 1 << 20];
/// Most blocks an index that wait, by kind; about 100 bytes each.
const MOST: [usize; KINDS] = [1 << 20, 1 << 23];

/// What waits in a whole index.
#[derive(Debug, Default)]
pub(super) struct Totals {
    waiting: [usize; KINDS],
    /// Blocks that had to go, since the start.
    pub(super) dropped: u64,
}

impl Totals {
    /// A rank's blocks are going, or have changed from `before` to `after`.
    pub(super) fn change(&mut self, before: [usize; KINDS], after: [usize; KINDS]) {
        for kind in 0..KINDS {
            self.waiting[kind] = self.waiting[kind] + after[kind] - before[kind];
        }
    }
}

/// A block that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingBlock {
    pub(super) tier: u8,
    pub(super) parent: u64,
    pub(super) block: StoredBlock,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    parent: u64,
    local: u64,
    /// Tells this wait from a later one of the same name.
    ticket: u64,
}

/// The waiting blocks of one rank.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    by_name: HashMap<(u8, u64), Place>,
    /// Parent, tier and name of every block.
    children: BTreeSet<(u64, u8, u64)>,
    /// Device blocks and others in order of arrival; those that left are skipped.
    order: [VecDeque<(u64, u8, u64)>; KINDS],
    counts: [usize; KINDS],
    held: [u64; TIERS],
    tickets: u64,
}

impl Waiting {
    /// Keeps a block. `false` when there is no place for it.
    pub(super) fn add(&mut self, waiting: WaitingBlock, totals: &mut Totals) -> bool {
        let WaitingBlock { tier, parent, block } = waiting;
        if block.name == parent {
            return false;
        }
        let before = self.counts;
        self.take(tier, block.name);
        let kind = usize::from(tier != 0);
        self.tickets += 1;
        self.by_name.insert((tier, block.name), Place { parent, local: block.local, ticket: self.tickets });
        self.children.insert((parent, tier, block.name));
        self.counts[kind] += 1;
        self.held[tier as usize] += 1;
        self.order[kind].push_back((self.tickets, tier, block.name));
        totals.change(before, self.counts);
        self.trim(kind, totals);
        self.by_name.contains_key(&(tier, block.name))
    }

    fn trim(&mut self, kind: usize, totals: &mut Totals) {
        if self.order[kind].len() > 2 * self.counts[kind] + 64 {
            let by_name = &self.by_name;
            self.order[kind]
                .retain(|&(ticket, tier, name)| by_name.get(&(tier, name)).is_some_and(|p| p.ticket == ticket));
        }
        while self.counts[kind] > MOST_A_RANK[kind] || totals.waiting[kind] > MOST[kind] {
            let Some((ticket, tier, name)) = self.order[kind].pop_front() else { break };
            if self.by_name.get(&(tier, name)).is_some_and(|place| place.ticket == ticket) {
                let before = self.counts;
                self.take(tier, name);
                totals.change(before, self.counts);
                totals.dropped += 1;
            }
        }
    }

    /// Takes a block out.
    pub(super) fn take(&mut self, tier: u8, name: u64) -> Option<WaitingBlock> {
        let Place { parent, local, .. } = self.by_name.remove(&(tier, name))?;
        self.children.remove(&(parent, tier, name));
        self.counts[usize::from(tier != 0)] -= 1;
        self.held[tier as usize] -= 1;
        Some(WaitingBlock { tier, parent, block: StoredBlock { name, local } })
    }

    /// The blocks that wait for `parent`, by tier and name.
    pub(super) fn children(&self, parent: u64) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.children.range((parent, 0, 0)..=(parent, u8::MAX, u64::MAX)).map(|&(_, tier, name)| (tier, name))
    }

    /// All blocks, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = WaitingBlock> + '_ {
        self.by_name.iter().map(|(&(tier, name), place)| WaitingBlock {
            tier,
            parent: place.parent,
            block: StoredBlock { name, local: place.local },
        })
    }

    /// Blocks by kind.
    pub(super) fn counts(&self) -> [usize; KINDS] {
        self.counts
    }

    /// Blocks by tier.
    pub(super) fn held(&self) -> [u64; TIERS] {
        self.held
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Estimated bytes of heap.
    pub(super) fn bytes(&self) -> usize {
        self.by_name.capacity() * 41
            + self.children.len() * 34
            + self.order.iter().map(|order| order.capacity() * 24).sum::<usize>()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    fn block(tier: u8, parent: u64, name: u64) -> WaitingBlock {
        WaitingBlock { tier, parent, block: StoredBlock { name, local: name } }
    }

    #[test]
    fn the_longest_waiting_orphans_go_first() {
        let (mut waiting, mut totals) = (Waiting::default(), Totals::default());
        let (first, limit) = (10, MOST_A_RANK[0] as u64);
        for name in first..first + limit {
            assert!(waiting.add(block(0, 1, name), &mut totals));
        }
        // Announced again: it waits from now on.
        assert!(waiting.add(block(0, 1, first), &mut totals));
        assert!(waiting.add(block(1, 1, 5), &mut totals), "other tiers have room of their own");
        assert_eq!(totals.dropped, 0);
        assert!(waiting.add(block(0, 1, first + limit), &mut totals));
        assert_eq!((totals.dropped, totals.waiting), (1, [limit as usize, 1]));
        assert!(waiting.take(0, first + 1).is_none());
        assert!(waiting.take(0, first).is_some() && waiting.take(1, 5).is_some());
    }

    #[test]
    fn a_full_index_has_no_place_for_further_ranks() {
        let mut totals = Totals { waiting: [MOST[0] - 1, 0], dropped: 0 };
        let (mut old, mut new) = (Waiting::default(), Waiting::default());
        assert!(old.add(block(0, 1, 2), &mut totals));
        assert!(!new.add(block(0, 1, 2), &mut totals));
        assert!(old.add(block(0, 1, 3), &mut totals), "a rank with a place may use it for another block");
        assert_eq!((old.take(0, 2), new.is_empty(), totals.dropped), (None, true, 2));
        assert_eq!(totals.waiting[0], MOST[0]);
    }

    #[test]
    fn coming_and_going_keeps_the_order_short() {
        let (mut waiting, mut totals) = (Waiting::default(), Totals::default());
        for name in 2..100_000 {
            assert!(waiting.add(block(2, 1, name), &mut totals));
            assert_eq!(waiting.take(2, name), Some(block(2, 1, name)));
            totals.change([0, 1], [0, 0]);
        }
        assert!(waiting.is_empty() && waiting.order[1].len() < 100 && waiting.children.is_empty());
        assert_eq!((waiting.held(), totals.waiting), ([0; TIERS], [0; KINDS]));
    }
}
