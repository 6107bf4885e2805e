//! The plainest index that gives the right answers: per rank and tier a map from chained hash to block.
//!
//! Invariants: a rank's tiers are independent of each other and of other ranks; a block is held or not, whatever
//! became of its neighbours; the first name a rank announced for a block in a tier is the one it goes by there.

use std::collections::{BTreeMap, HashMap};

use super::{RemoveOutcome, StoreOutcome, StoredBlock, TierBlocks, chain, writer::MAX_TWINS};
use crate::selection::identity::{Tier, WorkerWithDpRank};

/// A block a rank holds in one tier.
#[derive(Clone, Copy, Debug)]
struct Held {
    name: u64,
    local: u64,
    /// Seq of the block before.
    before: Option<u64>,
}

/// What a rank holds in one tier.
#[derive(Debug, Default)]
struct HeldTier {
    blocks: HashMap<u64, Held>,
    /// Seqs that go by a name, oldest first.
    names: HashMap<u64, Vec<u64>>,
}

/// A block whose parent the rank does not hold.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    tier: Tier,
    parent: u64,
    block: StoredBlock,
}

/// One rank.
#[derive(Debug, Default)]
pub(super) struct Rank {
    tiers: [HeldTier; 4],
    /// In order of arrival.
    waiting: Vec<Waiting>,
}

/// The model.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) ranks: BTreeMap<WorkerWithDpRank, Rank>,
}

impl Rank {
    fn find(&self, tier: Tier, name: u64) -> Option<u64> {
        self.tiers[tier as usize].names.get(&name).and_then(|seqs| seqs.last().copied())
    }

    /// Where a child of `name` goes: device children need a device parent, others take any.
    fn parent(&self, tier: Tier, name: u64) -> Option<u64> {
        self.find(tier, name).or_else(|| match tier {
            Tier::Device => None,
            _ => Tier::ALL.into_iter().find_map(|t| self.find(t, name)),
        })
    }

    fn place(&mut self, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> Vec<u64> {
        let mut before = parent;
        let mut learnt = Vec::new();
        let held = &mut self.tiers[tier as usize];
        for &StoredBlock { name, local } in blocks {
            let seq = before.map_or(local, |s| chain(s, local));
            match held.blocks.get(&seq) {
                Some(old) if old.name != name && tier != Tier::Device => break,
                Some(_) => {}
                None => {
                    held.blocks.insert(seq, Held { name, local, before });
                    held.names.entry(name).or_default().push(seq);
                    learnt.push(name);
                }
            }
            before = Some(seq);
        }
        for name in &learnt {
            if let Some(seqs) = held.names.get_mut(name)
                && seqs.len() > MAX_TWINS
            {
                held.blocks.remove(&seqs.remove(0));
            }
        }
        learnt
    }

    fn store(&mut self, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        let (mut parent, mut blocks) = (parent, blocks);
        let (mut outcome, mut kept) = (StoreOutcome::Applied, false);
        // What has no parent yet waits.
        let at = loop {
            let Some(name) = parent else { break None };
            if let Some(at) = self.parent(tier, name) {
                break Some(at);
            }
            let Some((&block, rest)) = blocks.split_first() else {
                return if kept { outcome } else { StoreOutcome::ParentUnknown };
            };
            if tier == Tier::Device {
                outcome = StoreOutcome::WaitsForParent;
            }
            if block.name != name {
                kept = true;
                self.waiting.retain(|w| w.tier != tier || w.block.name != block.name);
                self.waiting.push(Waiting { tier, parent: name, block });
            }
            (parent, blocks) = (Some(block.name), rest);
        };
        let mut learnt = self.place(tier, at, blocks);
        while let Some(name) = learnt.pop() {
            let mut children: Vec<Waiting> = self.waiting.iter().filter(|w| w.parent == name).copied().collect();
            children.sort_by_key(|w| (w.tier, w.block.name));
            for child in children {
                if let Some(at) = self.parent(child.tier, name) {
                    self.waiting.retain(|w| (w.tier, w.block.name) != (child.tier, child.block.name));
                    learnt.extend(self.place(child.tier, Some(at), &[child.block]));
                }
            }
        }
        outcome
    }

    fn remove(&mut self, tier: Tier, names: &[u64]) -> RemoveOutcome {
        let mut outcome = RemoveOutcome::default();
        for name in names {
            let waiting = self.waiting.len();
            self.waiting.retain(|w| w.tier != tier || w.block.name != *name);
            let held = &mut self.tiers[tier as usize];
            if let Some(seqs) = held.names.get_mut(name) {
                if let Some(seq) = seqs.pop() {
                    held.blocks.remove(&seq);
                }
                if seqs.is_empty() {
                    held.names.remove(name);
                }
                outcome.removed += 1;
            } else if self.waiting.len() < waiting {
                outcome.removed += 1;
            } else {
                outcome.unknown += 1;
            }
        }
        outcome
    }

    /// What the rank matches of a prompt.
    pub(super) fn matched(&self, seqs: &[u64]) -> TierBlocks {
        let mut at = 0;
        let mut run = |tier: Tier| {
            let from = at;
            while at < seqs.len() && self.tiers[tier as usize].blocks.contains_key(&seqs[at]) {
                at += 1;
            }
            (at - from) as u32
        };
        TierBlocks {
            device: run(Tier::Device),
            host: run(Tier::HostPinned),
            disk: run(Tier::Disk),
            external: run(Tier::External),
        }
    }

    /// Blocks held by tier, waiting ones of the lower tiers included.
    pub(super) fn held(&self) -> [u64; 4] {
        let mut held = [0; 4];
        for tier in Tier::ALL {
            held[tier as usize] = self.tiers[tier as usize].blocks.len() as u64;
        }
        for w in self.waiting.iter().filter(|w| w.tier != Tier::Device) {
            held[w.tier as usize] += 1;
        }
        held
    }

    /// Blocks that wait: tier, name, parent.
    pub(super) fn waiting(&self) -> Vec<(u8, u64, u64)> {
        let mut waiting: Vec<_> = self.waiting.iter().map(|w| (w.tier as u8, w.block.name, w.parent)).collect();
        waiting.sort_unstable();
        waiting
    }

    /// Device blocks that wait.
    pub(super) fn orphans(&self) -> u64 {
        self.waiting.iter().filter(|w| w.tier == Tier::Device).count() as u64
    }

    fn names_of(&self, seqs: &[u64]) -> Option<Vec<u64>> {
        seqs.iter()
            .map(|seq| Tier::ALL.into_iter().find_map(|t| self.tiers[t as usize].blocks.get(seq).map(|b| b.name)))
            .collect()
    }

    /// What an export tells of the rank: tier, name and local of every block but device blocks behind a hole.
    pub(super) fn exported(&self) -> Vec<(Tier, u64, u64)> {
        let mut exported = Vec::new();
        for tier in Tier::ALL {
            let held = &self.tiers[tier as usize].blocks;
            for block in held.values() {
                let mut at = block;
                let reached = loop {
                    match at.before {
                        None => break true,
                        Some(_) if tier != Tier::Device => break true,
                        Some(seq) => match held.get(&seq) {
                            Some(before) => at = before,
                            None => break false,
                        },
                    }
                };
                if reached {
                    exported.push((tier, block.name, block.local));
                }
            }
        }
        exported.extend(
            self.waiting.iter().filter(|w| w.tier != Tier::Device).map(|w| (w.tier, w.block.name, w.block.local)),
        );
        exported
    }

    /// Names the rank has ever been told and still holds or waits for.
    pub(super) fn names(&self) -> Vec<(Tier, u64)> {
        let mut names: Vec<(Tier, u64)> = self.waiting.iter().map(|w| (w.tier, w.block.name)).collect();
        for tier in Tier::ALL {
            names.extend(self.tiers[tier as usize].names.keys().map(|&name| (tier, name)));
        }
        names.sort_unstable();
        names
    }
}

impl Model {
    pub(super) fn store(
        &mut self,
        rank: WorkerWithDpRank,
        tier: Tier,
        parent: Option<u64>,
        blocks: &[StoredBlock],
    ) -> StoreOutcome {
        if blocks.is_empty() {
            return StoreOutcome::Applied;
        }
        self.ranks.entry(rank).or_default().store(tier, parent, blocks)
    }

    pub(super) fn remove(&mut self, rank: WorkerWithDpRank, tier: Tier, names: &[u64]) -> RemoveOutcome {
        match self.ranks.get_mut(&rank) {
            Some(r) => r.remove(tier, names),
            None => RemoveOutcome { removed: 0, unknown: names.len() },
        }
    }

    pub(super) fn names_of(&self, rank: WorkerWithDpRank, seqs: &[u64]) -> Option<Vec<u64>> {
        self.ranks.get(&rank)?.names_of(seqs)
    }
}
