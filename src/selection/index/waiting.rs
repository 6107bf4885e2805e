//! Blocks a rank announced under a parent it does not hold. No prompt can reach them until the parent comes, so readers
//! never see them; the writer keeps them by name.
//!
//! Device blocks wait for a device parent (engines store parents first, so theirs was lost or is late); at most
//! [`MAX_ORPHANS`] a rank, the longest waiting go first. Blocks of lower tiers are held, count as held and wait for a
//! parent in any tier. Invariants: a (tier, name) waits at most once; every block is in the list of its parent.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::{StoredBlock, chunk::TIERS};

/// Most device blocks a rank that wait for their parent.
pub(super) const MAX_ORPHANS: usize = 16_384;
/// Most lower-tier blocks a rank that wait for their parent; the longest waiting go first.
pub(super) const MAX_DETACHED: usize = 1 << 22;

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
    order: [VecDeque<(u64, u8, u64)>; 2],
    counts: [usize; 2],
    held: [u64; TIERS],
    tickets: u64,
}

impl Waiting {
    /// Keeps a block. Returns blocks that had to go for it.
    pub(super) fn add(&mut self, waiting: WaitingBlock) -> usize {
        let WaitingBlock { tier, parent, block } = waiting;
        if block.name == parent {
            return 0;
        }
        self.take(tier, block.name);
        let kind = usize::from(tier != 0);
        self.tickets += 1;
        self.by_name.insert((tier, block.name), Place { parent, local: block.local, ticket: self.tickets });
        self.children.insert((parent, tier, block.name));
        self.counts[kind] += 1;
        self.held[tier as usize] += 1;
        self.order[kind].push_back((self.tickets, tier, block.name));
        self.trim(kind)
    }

    fn trim(&mut self, kind: usize) -> usize {
        if self.order[kind].len() > 2 * self.counts[kind] + 64 {
            let by_name = &self.by_name;
            self.order[kind]
                .retain(|&(ticket, tier, name)| by_name.get(&(tier, name)).is_some_and(|p| p.ticket == ticket));
        }
        let limit = if kind == 0 { MAX_ORPHANS } else { MAX_DETACHED };
        let mut dropped = 0;
        while self.counts[kind] > limit {
            let Some((ticket, tier, name)) = self.order[kind].pop_front() else { break };
            if self.by_name.get(&(tier, name)).is_some_and(|place| place.ticket == ticket) {
                self.take(tier, name);
                dropped += 1;
            }
        }
        dropped
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn block(tier: u8, parent: u64, name: u64) -> WaitingBlock {
        WaitingBlock { tier, parent, block: StoredBlock { name, local: name } }
    }

    #[test]
    fn the_longest_waiting_orphans_go_first() {
        let mut waiting = Waiting::default();
        let first = 10;
        let limit = MAX_ORPHANS as u64;
        for name in first..first + limit {
            assert_eq!(waiting.add(block(0, 1, name)), 0);
        }
        // Announced again: it waits from now on.
        assert_eq!(waiting.add(block(0, 1, first)), 0);
        assert_eq!(waiting.add(block(1, 1, 5)), 0, "other tiers have room of their own");
        assert_eq!(waiting.add(block(0, 1, first + limit)), 1);
        assert!(waiting.take(0, first + 1).is_none());
        assert!(waiting.take(0, first).is_some() && waiting.take(1, 5).is_some());
    }

    #[test]
    fn coming_and_going_keeps_the_order_short() {
        let mut waiting = Waiting::default();
        for name in 2..100_000 {
            waiting.add(block(2, 1, name));
            assert_eq!(waiting.take(2, name), Some(block(2, 1, name)));
        }
        assert!(waiting.is_empty() && waiting.order[1].len() < 100 && waiting.children.is_empty());
        assert_eq!(waiting.held(), [0; TIERS]);
    }
}
