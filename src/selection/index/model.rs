//! The plainest index that gives the right answers: per rank and tier a map from chained hash to block.
//!
//! Invariants: a rank's tiers are independent of each other and of other ranks; a block is held or not, whatever
//! became of its neighbours; the first name a rank announced for a block in a tier is the one it goes by there.

use std::collections::{BTreeMap, HashMap};

use super::{ExportedRun, RemoveOutcome, StoreOutcome, StoredBlock, TierBlocks, chain};
use crate::selection::identity::{Tier, WorkerWithDpRank};

/// A block a rank holds in one tier.
#[derive(Clone, Copy, Debug)]
struct Held {
    name: u64,
    local: u64,
    parent: Option<u64>,
    depth: u64,
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
    fn parent(&self, tier: Tier, name: u64) -> Option<(u64, u64)> {
        let seek = |t: Tier| self.find(t, name).map(|seq| (seq, self.tiers[t as usize].blocks[&seq].depth));
        match tier {
            Tier::Device => seek(Tier::Device),
            _ => seek(tier).or_else(|| Tier::ALL.into_iter().find_map(seek)),
        }
    }

    fn place(&mut self, tier: Tier, parent: Option<(u64, u64)>, name: Option<u64>, blocks: &[StoredBlock]) -> Vec<u64> {
        let (mut seq, mut depth) = parent.unzip();
        let mut before = name;
        let mut learnt = Vec::new();
        for block in blocks {
            let here = seq.map_or(block.local, |s| chain(s, block.local));
            let level = depth.map_or(0, |d: u64| d + 1);
            let held = &mut self.tiers[tier as usize];
            if let Some(old) = held.blocks.get(&here) {
                if old.name != block.name && tier != Tier::Device {
                    break;
                }
                before = Some(old.name);
            } else {
                held.blocks.insert(here, Held { name: block.name, local: block.local, parent: before, depth: level });
                held.names.entry(block.name).or_default().push(here);
                learnt.push(block.name);
                before = Some(block.name);
            }
            (seq, depth) = (Some(here), Some(level));
        }
        learnt
    }

    fn store(&mut self, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        let at = match parent {
            None => None,
            Some(name) => match self.parent(tier, name) {
                Some(at) => Some(at),
                None => {
                    let mut parent = name;
                    for &block in blocks {
                        if block.name != parent {
                            self.waiting.retain(|w| w.tier != tier || w.block.name != block.name);
                            self.waiting.push(Waiting { tier, parent, block });
                        }
                        parent = block.name;
                    }
                    return if tier == Tier::Device { StoreOutcome::WaitsForParent } else { StoreOutcome::Applied };
                }
            },
        };
        let mut learnt = self.place(tier, at, parent, blocks);
        while let Some(name) = learnt.pop() {
            let mut k = 0;
            while k < self.waiting.len() {
                let w = self.waiting[k];
                match (w.parent == name).then(|| self.parent(w.tier, name)).flatten() {
                    Some(at) => {
                        self.waiting.remove(k);
                        learnt.extend(self.place(w.tier, Some(at), Some(name), &[w.block]));
                    }
                    None => k += 1,
                }
            }
        }
        StoreOutcome::Applied
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

    /// Device blocks that wait.
    pub(super) fn orphans(&self) -> u64 {
        self.waiting.iter().filter(|w| w.tier == Tier::Device).count() as u64
    }

    fn names_of(&self, seqs: &[u64]) -> Option<Vec<u64>> {
        seqs.iter()
            .map(|seq| Tier::ALL.into_iter().find_map(|t| self.tiers[t as usize].blocks.get(seq).map(|b| b.name)))
            .collect()
    }

    fn export(&self, rank: WorkerWithDpRank, visit: &mut dyn FnMut(ExportedRun)) {
        for tier in Tier::ALL {
            let mut blocks: Vec<Held> = self.tiers[tier as usize].blocks.values().copied().collect();
            blocks.sort_by_key(|b| b.depth);
            for b in blocks {
                let blocks = vec![StoredBlock { name: b.name, local: b.local }];
                visit(ExportedRun { rank, tier, parent: b.parent, blocks });
            }
        }
        for w in self.waiting.iter().filter(|w| w.tier != Tier::Device) {
            visit(ExportedRun { rank, tier: w.tier, parent: Some(w.parent), blocks: vec![w.block] });
        }
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

    pub(super) fn export(&self, visit: &mut dyn FnMut(ExportedRun)) {
        for (rank, r) in &self.ranks {
            r.export(*rank, visit);
        }
    }
}
