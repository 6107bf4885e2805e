//! The prefix index of one partition: which rank holds which block, by tier.
//!
//! Content is stored once, in chunks of at most 64 consecutive blocks of one chain; who holds it is an interned set of
//! lanes for each chunk. Readers take no lock; writers share one mutex.
//!
//! Words: a *lane* is a dense u16 id for one incarnation of a rank; a *name* is the engine's own hash of a block
//! (opaque, used for parents and removals); a *local* is the hash of one block's content; a *seq* is the chained hash
//! of a block and all before it.

pub mod approximate;
mod model;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use parking_lot::Mutex;

use super::identity::{Tier, WorkerWithDpRank};
use model::Model;

/// Dense id of one incarnation of a rank in one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(pub u16);

/// One block of a store event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoredBlock {
    /// The engine's hash of the block.
    pub name: u64,
    /// Hash of the block's content.
    pub local: u64,
}

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The rank now holds all blocks of the event.
    Applied,
    /// A device block's parent is not held by this rank; the event waits for it, bounded.
    WaitsForParent,
    /// The event was dropped: parent unknown and no room to wait.
    ParentUnknown,
    /// The event was dropped: the index cannot hold another rank or block.
    Full,
}

/// What became of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoveOutcome {
    /// Blocks the rank held and now does not.
    pub removed: usize,
    /// Names the rank did not hold in that tier; each was skipped alone.
    pub unknown: usize,
}

/// Blocks matched by tier; lower tiers count what they add beyond the tier before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TierBlocks {
    /// Leading blocks held on the device.
    pub device: u32,
    /// Blocks held in host memory after those.
    pub host: u32,
    /// Blocks on disk after those.
    pub disk: u32,
    /// Blocks in external storage after those.
    pub external: u32,
}

/// A set of lanes.
#[derive(Clone, Debug)]
pub enum LaneSet {
    /// Sorted lane numbers, when few.
    List(Vec<u16>),
    /// A bit a lane, when many.
    Bits(Vec<u64>),
}

impl LaneSet {
    /// Visits the lanes, in order.
    pub fn for_each(&self, mut visit: impl FnMut(Lane)) {
        match self {
            Self::List(lanes) => lanes.iter().for_each(|&lane| visit(Lane(lane))),
            Self::Bits(words) => {
                for (k, &word) in words.iter().enumerate() {
                    let mut word = word;
                    while word != 0 {
                        visit(Lane((k * 64) as u16 + word.trailing_zeros() as u16));
                        word &= word - 1;
                    }
                }
            }
        }
    }

    /// Number of lanes.
    pub fn len(&self) -> usize {
        match self {
            Self::List(lanes) => lanes.len(),
            Self::Bits(words) => words.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::List(lanes) => lanes.is_empty(),
            Self::Bits(words) => words.iter().all(|&word| word == 0),
        }
    }
}

/// Lanes that match a prompt equally deep.
#[derive(Clone, Debug)]
pub struct MatchClass {
    /// How much they hold.
    pub blocks: TierBlocks,
    /// Who. Lanes retired since are included: map with [`PrefixIndex::slot_of`] or [`PrefixIndex::rank_of`].
    pub lanes: LaneSet,
}

/// The answer to a lookup, reusable between calls. Classes are disjoint; a lane in none of them matches nothing.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    /// Deepest device match first.
    pub classes: Vec<MatchClass>,
}

/// One run of a dump: consecutive blocks one rank holds in one tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedRun {
    /// Who holds it.
    pub rank: WorkerWithDpRank,
    /// Where.
    pub tier: Tier,
    /// Name of the block before the first one; `None` at the root.
    pub parent: Option<u64>,
    /// The blocks, in order.
    pub blocks: Vec<StoredBlock>,
}

/// Sizes of an index, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexStats {
    /// Held blocks by tier, counted once a holder.
    pub held: [u64; 4],
    /// Chunks alive.
    pub chunks: u64,
    /// Distinct blocks with a name.
    pub names: u64,
    /// Lanes in use, retired ones that wait for their sweep included.
    pub lanes: u64,
    /// Store events that wait for a parent.
    pub orphans: u64,
    /// Estimated bytes of heap.
    pub bytes: u64,
}

/// The prefix index of one partition.
///
/// Ranks are registered implicitly by their first store. A *slot* is the caller's own dense id for a rank it may
/// select (the load tracker's); it stays bound to the rank over clears.
#[derive(Debug)]
pub struct PrefixIndex {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    model: Model,
    lanes: Vec<Option<WorkerWithDpRank>>,
    lane_of: HashMap<WorkerWithDpRank, u16>,
    slots: HashMap<WorkerWithDpRank, u32>,
}

impl Inner {
    fn lane(&mut self, rank: WorkerWithDpRank) -> Option<u16> {
        if let Some(lane) = self.lane_of.get(&rank) {
            return Some(*lane);
        }
        let lane = match self.lanes.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.lanes.len() < MAX_LANES => {
                self.lanes.push(None);
                self.lanes.len() - 1
            }
            None => return None,
        };
        self.lanes[lane] = Some(rank);
        self.lane_of.insert(rank, lane as u16);
        Some(lane as u16)
    }
}

/// The chained hash after `previous` and a block's own hash (spec index 2.5).
fn chain(previous: u64, local: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&previous.to_le_bytes());
    bytes[8..].copy_from_slice(&local.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, super::hash::HASH_SEED)
}

/// Most ranks an index holds.
pub const MAX_LANES: usize = 65_000;

impl PrefixIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self { inner: Mutex::default() }
    }

    /// Makes sure `rank` has a lane and binds `slot` to it. `false` when the index holds 65,000 ranks already.
    pub fn bind_slot(&self, rank: WorkerWithDpRank, slot: u32) -> bool {
        let mut inner = self.inner.lock();
        let bound = inner.lane(rank).is_some();
        if bound {
            inner.slots.insert(rank, slot);
        }
        bound
    }

    /// Forgets the slot of `rank`; what it holds stays.
    pub fn unbind_slot(&self, rank: WorkerWithDpRank) {
        self.inner.lock().slots.remove(&rank);
    }

    /// The slot bound to a lane; `None` when retired or unbound. Takes no lock.
    pub fn slot_of(&self, lane: Lane) -> Option<u32> {
        let inner = self.inner.lock();
        let rank = inner.lanes.get(lane.0 as usize).copied().flatten()?;
        inner.slots.get(&rank).copied()
    }

    /// The live lane of a bound slot. Takes no lock.
    pub fn lane_of_slot(&self, slot: u32) -> Option<Lane> {
        let inner = self.inner.lock();
        let rank = inner.slots.iter().find(|(_, s)| **s == slot).map(|(rank, _)| *rank)?;
        inner.lane_of.get(&rank).copied().map(Lane)
    }

    /// The rank of a lane; `None` when retired. Takes no lock.
    pub fn rank_of(&self, lane: Lane) -> Option<WorkerWithDpRank> {
        self.inner.lock().lanes.get(lane.0 as usize).copied().flatten()
    }

    /// `rank` now holds `blocks`, consecutive blocks after `parent` (`None`: from the root), in `tier`.
    pub fn store(
        &self,
        rank: WorkerWithDpRank,
        tier: Tier,
        parent: Option<u64>,
        blocks: &[StoredBlock],
    ) -> StoreOutcome {
        let mut inner = self.inner.lock();
        if inner.lane(rank).is_none() {
            return StoreOutcome::Full;
        }
        inner.model.store(rank, tier, parent, blocks)
    }

    /// `rank` no longer holds the blocks called `names` in `tier`. Unknown names are skipped one by one.
    pub fn remove(&self, rank: WorkerWithDpRank, tier: Tier, names: &[u64]) -> RemoveOutcome {
        self.inner.lock().model.remove(rank, tier, names)
    }

    /// `rank` holds nothing any more, in any tier. Visible at once; memory comes back by [`Self::sweep`].
    pub fn clear(&self, rank: WorkerWithDpRank) {
        self.inner.lock().model.ranks.remove(&rank);
    }

    /// As [`Self::clear`], and the rank itself is forgotten, its slot binding included.
    pub fn remove_rank(&self, rank: WorkerWithDpRank) {
        let mut inner = self.inner.lock();
        inner.model.ranks.remove(&rank);
        inner.slots.remove(&rank);
        if let Some(lane) = inner.lane_of.remove(&rank) {
            inner.lanes[lane as usize] = None;
        }
    }

    /// [`Self::remove_rank`] for every rank of a worker, ranks that only events named included.
    pub fn remove_worker(&self, worker_id: u64) {
        let ranks: Vec<_> =
            self.inner.lock().lane_of.keys().copied().filter(|rank| rank.worker_id == worker_id).collect();
        for rank in ranks {
            self.remove_rank(rank);
        }
    }

    /// Gives back memory of retired lanes, visiting at most `max_chunks` chunks. `true` while work is left.
    pub fn sweep(&self, max_chunks: usize) -> bool {
        let _ = max_chunks;
        false
    }

    /// Who holds leading blocks of the prompt with content hashes `locals` and chained hashes `seqs` (equal lengths).
    /// Takes no lock.
    pub fn lookup(&self, locals: &[u64], seqs: &[u64], out: &mut Matches) {
        let _ = locals;
        let inner = self.inner.lock();
        let mut classes: HashMap<TierBlocks, Vec<u16>> = HashMap::new();
        for (rank, held) in &inner.model.ranks {
            let blocks = held.matched(seqs);
            if blocks != TierBlocks::default() {
                classes.entry(blocks).or_default().push(inner.lane_of[rank]);
            }
        }
        out.classes.clear();
        for (blocks, mut lanes) in classes {
            lanes.sort_unstable();
            out.classes.push(MatchClass { blocks, lanes: LaneSet::List(lanes) });
        }
        out.classes.sort_by_key(|class| {
            let b = class.blocks;
            std::cmp::Reverse((b.device, b.host, b.disk, b.external))
        });
    }

    /// Engine names of the first `blocks` blocks of a prompt as `lane` announced them (any tier), for KV hints.
    /// `None` when the lane does not hold them all.
    pub fn names_of(&self, lane: Lane, locals: &[u64], seqs: &[u64], blocks: usize) -> Option<Vec<u64>> {
        let _ = locals;
        let rank = self.rank_of(lane)?;
        self.inner.lock().model.names_of(rank, seqs.get(..blocks)?)
    }

    /// Visits all that is held, parents before children within the device tier. The writer mutex is released between
    /// slices, so events go on.
    pub fn export(&self, visit: &mut dyn FnMut(ExportedRun)) {
        let mut runs = Vec::new();
        self.inner.lock().model.export(&mut |run| runs.push(run));
        runs.into_iter().for_each(visit);
    }

    /// Current sizes.
    pub fn stats(&self) -> IndexStats {
        let inner = self.inner.lock();
        let mut stats = IndexStats { lanes: inner.lane_of.len() as u64, ..IndexStats::default() };
        for rank in inner.model.ranks.values() {
            for (sum, held) in stats.held.iter_mut().zip(rank.held()) {
                *sum += held;
            }
            stats.orphans += rank.orphans();
        }
        stats.names = stats.held.iter().sum();
        stats.bytes = stats.names * 200;
        stats
    }
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self::new()
    }
}
