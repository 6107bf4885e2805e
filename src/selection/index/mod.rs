//! The prefix index of one partition: which rank holds which block, by tier.
//!
//! Content is stored once, in chunks of at most 64 consecutive blocks of one chain; who holds it is an interned set of
//! lanes for each chunk. Readers take no lock; writers share one mutex.
//!
//! Words: a *lane* is a dense u16 id for one incarnation of a rank; a *name* is the engine's own hash of a block
//! (opaque, used for parents and removals); a *local* is the hash of one block's content; a *seq* is the chained hash
//! of a block and all before it.

pub mod approximate;

use super::identity::{Tier, WorkerWithDpRank};

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
pub struct PrefixIndex {}

impl PrefixIndex {
    /// An empty index.
    pub fn new() -> Self {
        todo!()
    }

    /// Makes sure `rank` has a lane and binds `slot` to it. `false` when the index holds 65,000 ranks already.
    pub fn bind_slot(&self, rank: WorkerWithDpRank, slot: u32) -> bool {
        let _ = (rank, slot);
        todo!()
    }

    /// Forgets the slot of `rank`; what it holds stays.
    pub fn unbind_slot(&self, rank: WorkerWithDpRank) {
        let _ = rank;
        todo!()
    }

    /// The slot bound to a lane; `None` when retired or unbound. Takes no lock.
    pub fn slot_of(&self, lane: Lane) -> Option<u32> {
        let _ = lane;
        todo!()
    }

    /// The live lane of a bound slot. Takes no lock.
    pub fn lane_of_slot(&self, slot: u32) -> Option<Lane> {
        let _ = slot;
        todo!()
    }

    /// The rank of a lane; `None` when retired. Takes no lock.
    pub fn rank_of(&self, lane: Lane) -> Option<WorkerWithDpRank> {
        let _ = lane;
        todo!()
    }

    /// `rank` now holds `blocks`, consecutive blocks after `parent` (`None`: from the root), in `tier`.
    pub fn store(
        &self,
        rank: WorkerWithDpRank,
        tier: Tier,
        parent: Option<u64>,
        blocks: &[StoredBlock],
    ) -> StoreOutcome {
        let _ = (rank, tier, parent, blocks);
        todo!()
    }

    /// `rank` no longer holds the blocks called `names` in `tier`. Unknown names are skipped one by one.
    pub fn remove(&self, rank: WorkerWithDpRank, tier: Tier, names: &[u64]) -> RemoveOutcome {
        let _ = (rank, tier, names);
        todo!()
    }

    /// `rank` holds nothing any more, in any tier. Visible at once; memory comes back by [`Self::sweep`].
    pub fn clear(&self, rank: WorkerWithDpRank) {
        let _ = rank;
        todo!()
    }

    /// As [`Self::clear`], and the rank itself is forgotten, its slot binding included.
    pub fn remove_rank(&self, rank: WorkerWithDpRank) {
        let _ = rank;
        todo!()
    }

    /// [`Self::remove_rank`] for every rank of a worker, ranks that only events named included.
    pub fn remove_worker(&self, worker_id: u64) {
        let _ = worker_id;
        todo!()
    }

    /// Gives back memory of retired lanes, visiting at most `max_chunks` chunks. `true` while work is left.
    pub fn sweep(&self, max_chunks: usize) -> bool {
        let _ = max_chunks;
        todo!()
    }

    /// Who holds leading blocks of the prompt with content hashes `locals` and chained hashes `seqs` (equal lengths).
    /// Takes no lock.
    pub fn lookup(&self, locals: &[u64], seqs: &[u64], out: &mut Matches) {
        let _ = (locals, seqs, out);
        todo!()
    }

    /// Engine names of the first `blocks` blocks of a prompt as `lane` announced them (any tier), for KV hints.
    /// `None` when the lane does not hold them all.
    pub fn names_of(&self, lane: Lane, locals: &[u64], seqs: &[u64], blocks: usize) -> Option<Vec<u64>> {
        let _ = (lane, locals, seqs, blocks);
        todo!()
    }

    /// Visits all that is held, parents before children within the device tier. The writer mutex is released between
    /// slices, so events go on.
    pub fn export(&self, visit: &mut dyn FnMut(ExportedRun)) {
        let _ = visit;
        todo!()
    }

    /// Current sizes.
    pub fn stats(&self) -> IndexStats {
        todo!()
    }
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self::new()
    }
}
