//! What a rank's earlier events taught: kinds of cache groups, and the salts of chains.
//!
//! Engines send both once and leave them out later. The memory belongs to the stream, not to a connection: it outlives
//! reconnects and restarts of the listener, and is forgotten when the publisher restarts. Invariant: every table is
//! bounded, and a full one never files a block under the wrong tenant.

use hashbrown::{HashMap, hash_map::Entry};

use super::super::{counts::DropReason, decode::Attention};
use crate::selection::{Tier, ingest::MAX_FOREIGN_RANKS, worker::MAX_DATA_PARALLEL_SIZE};

/// Cache groups remembered for a rank; real hybrid models have fewer than ten.
const MAX_GROUPS: usize = 1024;

/// Salted blocks remembered for a rank, as many as the largest caches hold; about 100 MB when full.
const MAX_SALTED: usize = 1 << 22;

/// Salted blocks that a snapshot carries for one stream; a stream with more is learned by replay instead.
const MAX_EXPORTED: usize = 1 << 18;

/// The memories of every rank that one listener's batches named.
#[derive(Debug, Default)]
pub struct RankMemories {
    /// By the rank the index knows it under.
    ranks: HashMap<u32, RankMemory>,
    /// How many of them nobody registered.
    foreign: usize,
}

impl RankMemories {
    /// The memory of `rank`; `None` when it is not registered and the batches named as many such ranks as they may.
    pub(super) fn of(&mut self, rank: u32, registered: bool) -> Option<&mut RankMemory> {
        match self.ranks.entry(rank) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(_) if !registered && self.foreign >= MAX_FOREIGN_RANKS => None,
            Entry::Vacant(free) => {
                self.foreign += usize::from(!registered);
                Some(free.insert(RankMemory::default()))
            }
        }
    }

    /// Forgets all: the publisher restarted.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// As bytes, for [`Self::read`]; `None` when that is more than a snapshot carries. For each rank, all little endian:
    /// its number (4), the number of groups (4), each with its number (4) and whether it holds the main attention (1),
    /// the number of salted blocks (4), each with name (8), salt (8) and flags (1).
    pub fn write(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let salted: usize = self.ranks.values().map(|memory| memory.salts.blocks.len()).sum();
        if salted > MAX_EXPORTED {
            return None;
        }
        for (rank, RankMemory { groups, salts }) in &self.ranks {
            if groups.0.is_empty() && salts.blocks.is_empty() {
                continue;
            }
            out.extend_from_slice(&rank.to_le_bytes());
            out.extend_from_slice(&(groups.0.len() as u32).to_le_bytes());
            for (group, attention) in &groups.0 {
                out.extend_from_slice(&group.to_le_bytes());
                out.push(u8::from(*attention == Attention::Main));
            }
            out.extend_from_slice(&(salts.blocks.len() as u32).to_le_bytes());
            for (name, Salted { salt, flags }) in &salts.blocks {
                out.extend_from_slice(&name.to_le_bytes());
                out.extend_from_slice(&salt.to_le_bytes());
                out.push(*flags);
            }
        }
        Some(out)
    }

    /// What [`Self::write`] wrote; `None` for anything else.
    pub fn read(mut bytes: &[u8]) -> Option<Self> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (head, rest) = bytes.split_first_chunk::<N>()?;
            *bytes = rest;
            Some(*head)
        }
        let mut read = Self::default();
        while !bytes.is_empty() {
            let rank = u32::from_le_bytes(take(&mut bytes)?);
            // Which of them are registered is not told; both kinds are bounded.
            let is_known = read.ranks.contains_key(&rank);
            if !is_known && read.ranks.len() >= MAX_FOREIGN_RANKS + MAX_DATA_PARALLEL_SIZE as usize {
                return None;
            }
            let memory = read.ranks.entry(rank).or_default();
            let groups = u32::from_le_bytes(take(&mut bytes)?);
            for _ in 0..groups {
                let group = u32::from_le_bytes(take(&mut bytes)?);
                let [main] = take(&mut bytes)?;
                memory.groups.learn(group, if main != 0 { Attention::Main } else { Attention::Other });
            }
            let blocks = u32::from_le_bytes(take(&mut bytes)?);
            for _ in 0..blocks {
                let name = u64::from_le_bytes(take(&mut bytes)?);
                let salt = u64::from_le_bytes(take(&mut bytes)?);
                let [flags] = take(&mut bytes)?;
                if memory.salts.blocks.len() >= MAX_SALTED {
                    return None;
                }
                memory.salts.blocks.insert(name, Salted { salt, flags });
            }
        }
        Some(read)
    }
}

/// The memory of one rank.
#[derive(Debug, Default)]
pub(super) struct RankMemory {
    pub groups: Groups,
    pub salts: Salts,
}

/// Kinds of cache groups, as stores named them; the last one counts.
#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<u32, Attention>);

impl Groups {
    pub fn learn(&mut self, group: u32, attention: Attention) {
        if self.0.len() < MAX_GROUPS || self.0.contains_key(&group) {
            self.0.insert(group, attention);
        }
    }

    /// Whether the group holds the main attention. Of groups that nobody explained only the first is taken for it.
    pub fn is_main(&self, group: u32) -> bool {
        self.0.get(&group).map_or(group == 0, |&attention| attention == Attention::Main)
    }
}

const AMBIGUOUS: u8 = 1 << 7;

/// A salted block.
#[derive(Debug)]
struct Salted {
    /// The salt's share of the hash seed.
    salt: u64,
    /// A bit for each tier that holds the block, and [`AMBIGUOUS`].
    flags: u8,
}

/// Which blocks were stored under a salt. Engines send the salt with the first block of a chain only.
#[derive(Debug, Default)]
pub(super) struct Salts {
    blocks: HashMap<u64, Salted>,
}

impl Salts {
    /// The salt of a store (0 = none), remembered for its blocks: its own one, else its parent's.
    pub fn store(
        &mut self,
        tier: Tier,
        parent: Option<u64>,
        hashes: &[u64],
        own: Option<u64>,
    ) -> Result<u64, DropReason> {
        if self.blocks.is_empty() && own.is_none() {
            return Ok(0);
        }
        let inherited = || parent.and_then(|parent| self.blocks.get(&parent));
        let salt = match own {
            Some(salt) => Some(salt),
            None => match inherited() {
                Some(parent) if parent.flags & AMBIGUOUS != 0 => return Err(DropReason::AmbiguousSalt),
                Some(parent) => Some(parent.salt),
                None => None,
            },
        };
        let Some(salt) = salt else {
            // The same name is now in use without a salt: its children cannot be told apart any more.
            for hash in hashes {
                if let Some(block) = self.blocks.get_mut(hash) {
                    block.flags |= AMBIGUOUS;
                }
            }
            return Ok(0);
        };
        if self.blocks.len() + hashes.len() > MAX_SALTED {
            return Err(DropReason::SaltTableFull);
        }
        for &hash in hashes {
            match self.blocks.entry(hash) {
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.flags |= 1 << tier as u8 | if known.salt == salt { 0 } else { AMBIGUOUS };
                }
                Entry::Vacant(free) => {
                    free.insert(Salted { salt, flags: 1 << tier as u8 });
                }
            }
        }
        Ok(salt)
    }

    /// Forgets blocks that no tier holds any more, except ambiguous ones.
    pub fn remove(&mut self, tier: Tier, hashes: &[u64]) {
        if self.blocks.is_empty() || matches!(tier, Tier::Disk | Tier::External) {
            return;
        }
        for &hash in hashes {
            if let Entry::Occupied(mut known) = self.blocks.entry(hash) {
                known.get_mut().flags &= !(1 << tier as u8);
                if known.get().flags == 0 {
                    known.remove();
                }
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.blocks = HashMap::new();
    }
}
