//! The prefix index of one partition: which rank holds which block, by tier.
//!
//! Content is stored once, in chunks of at most 64 consecutive blocks of one chain; who holds it is an interned set of
//! lanes for each chunk. Readers take no lock (see [`PrefixIndex::lookup`]); writers share one mutex.
//!
//! Words: a *lane* is a dense u16 id for one incarnation of a rank; a *name* is the engine's own hash of a block
//! (opaque, used for parents and removals); a *local* is the hash of one block's content; a *seq* is the chained hash
//! of a block and all before it.

pub mod approximate;
mod arena;
#[cfg(all(test, not(model_check)))]
mod check;
mod chunk;
mod columns;
mod export;
mod heads;
mod lanes;
mod lookup;
mod membership;
#[cfg(all(test, not(model_check)))]
mod model;
mod names;
mod naming;
mod removal;
mod residency;
mod sets;
mod shared;
mod store;
mod sync;
#[cfg(test)]
mod tests;
mod waiting;
mod writer;

use parking_lot::Mutex;

use self::{
    export::Export,
    shared::{Act, Context, Shared},
    writer::Writer,
};
use super::{
    hash::chain,
    identity::{Tier, WorkerWithDpRank},
};

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

    /// Whether one of the lanes is wanted; looks no further than that.
    pub fn any(&self, mut wanted: impl FnMut(Lane) -> bool) -> bool {
        match self {
            Self::List(lanes) => lanes.iter().any(|&lane| wanted(Lane(lane))),
            Self::Bits(words) => words.iter().enumerate().any(|(k, &word)| {
                let mut left = word;
                std::iter::from_fn(|| {
                    let bit = (left != 0).then(|| left.trailing_zeros())?;
                    left &= left - 1;
                    Some(Lane((k * 64) as u16 + bit as u16))
                })
                .any(&mut wanted)
            }),
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
    /// See [`PrefixIndex::is_current`].
    recycled: u64,
    scratch: lookup::Scratch,
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

/// How far an export in pieces has come. It takes about 100 bytes a chunk shown.
#[derive(Debug)]
pub struct ExportCursor(Export);

impl Default for ExportCursor {
    fn default() -> Self {
        Self(Export::of_everything())
    }
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
    /// Device blocks that wait for their parent.
    pub orphans: u64,
    /// Waiting blocks dropped since the start because too many waited; the oldest go first.
    pub dropped_orphans: u64,
    /// Blocks dropped since the start because too many contents of one rank had one name; the oldest go first.
    pub dropped_twins: u64,
    /// Estimated bytes of heap.
    pub bytes: u64,
}

/// The prefix index of one partition.
///
/// Ranks are registered implicitly by their first store. A *slot* is the caller's own dense id for a rank it may
/// select (the load tracker's); it stays bound to the rank over clears.
#[derive(Debug)]
pub struct PrefixIndex {
    shared: Shared,
    writer: Mutex<Writer>,
}

/// Most ranks an index holds.
pub const MAX_LANES: usize = 65_000;

/// Ranks forgotten together when there is no room: one sweep frees the lanes of all.
const FORGOTTEN_AT_ONCE: usize = 256;

impl PrefixIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self { shared: Shared::new(), writer: Mutex::new(Writer::new(true)) }
    }

    /// An empty index in which every block's name is its seq. It needs no names table, which is half of what a store
    /// costs: stores begin at the root, and [`Self::remove_path`] takes the place of [`Self::remove`].
    fn by_seqs() -> Self {
        Self { shared: Shared::new(), writer: Mutex::new(Writer::new(false)) }
    }

    /// Runs `f` as the only writer.
    fn write<R>(&self, f: impl FnOnce(&mut Writer, Context<'_>) -> R) -> R {
        let mut writer = self.writer.lock();
        let guard = crossbeam_epoch::pin();
        let outcome = f(&mut writer, Context { shared: &self.shared, guard: &guard });
        drop(writer);
        sync::collect(&guard);
        outcome
    }

    /// Makes sure `rank` has a lane and binds `slot` to it. `false` when the index holds 65,000 ranks already.
    pub fn bind_slot(&self, rank: WorkerWithDpRank, slot: u32) -> bool {
        self.write(|writer, cx| writer.lane(rank, cx).is_some() && writer.lanes.bind(rank, slot, &cx.shared.lanes))
    }

    /// Forgets some ranks that have no slot and are not `wanted`, for want of room. `false` when there is none.
    pub fn make_room(&self, wanted: impl Fn(WorkerWithDpRank) -> bool) -> bool {
        self.write(|writer, cx| {
            let unwanted: Vec<_> =
                writer.lanes.unbound().filter(|&rank| !wanted(rank)).take(FORGOTTEN_AT_ONCE).collect();
            unwanted.iter().for_each(|&rank| writer.remove_rank(rank, cx));
            !unwanted.is_empty()
        })
    }

    /// Forgets the slot of `rank`; what it holds stays.
    pub fn unbind_slot(&self, rank: WorkerWithDpRank) {
        self.write(|writer, cx| writer.lanes.unbind(rank, &cx.shared.lanes));
    }

    /// The slot bound to a lane; `None` when retired or unbound. Takes no lock.
    #[inline]
    pub fn slot_of(&self, lane: Lane) -> Option<u32> {
        self.shared.lanes.slot_of(lane)
    }

    /// The live lane of a bound slot. Takes no lock.
    #[inline]
    pub fn lane_of_slot(&self, slot: u32) -> Option<Lane> {
        self.shared.lanes.lane_of_slot(slot)
    }

    /// Adds the slots bound to a set of lanes to `slots`, a bit each; slots past its end are left out. Takes no lock.
    pub fn add_slots(&self, lanes: &LaneSet, slots: &mut [u64]) {
        self.shared.lanes.add_slots(lanes, slots);
    }

    /// The rank of a lane; `None` when retired. Takes no lock.
    pub fn rank_of(&self, lane: Lane) -> Option<WorkerWithDpRank> {
        self.shared.lanes.rank_of(lane)
    }

    /// Whether the lanes of an answer still mean the ranks they meant. A lane number is given to another rank no
    /// earlier than its blocks are swept and 64 others were freed, so this matters to answers kept for long.
    #[inline]
    pub fn is_current(&self, matches: &Matches) -> bool {
        self.shared.lanes.recycled() == matches.recycled
    }

    /// `rank` now holds `blocks`, consecutive blocks after `parent` (`None`: from the root), in `tier`.
    pub fn store(
        &self,
        rank: WorkerWithDpRank,
        tier: Tier,
        parent: Option<u64>,
        blocks: &[StoredBlock],
    ) -> StoreOutcome {
        self.write(|writer, cx| match writer.lane(rank, cx) {
            Some(lane) => writer.store(Act { cx, lane, tier: tier as usize }, parent, blocks),
            None => StoreOutcome::Full,
        })
    }

    /// `rank` no longer holds the blocks called `names` in `tier`. Unknown names are skipped one by one.
    pub fn remove(&self, rank: WorkerWithDpRank, tier: Tier, names: &[u64]) -> RemoveOutcome {
        self.write(|writer, cx| match writer.lanes.get(rank) {
            Some(lane) => writer.remove(Act { cx, lane, tier: tier as usize }, names),
            None => RemoveOutcome { removed: 0, unknown: names.len() },
        })
    }

    /// In an index by seqs: `rank` no longer holds the blocks of the prompt `seqs` from block `from` on. It has to hold
    /// those before. Returns how many went.
    fn remove_path(&self, rank: WorkerWithDpRank, tier: Tier, seqs: &[u64], from: usize) -> usize {
        self.write(|writer, cx| match writer.lanes.get(rank) {
            Some(lane) => writer.remove_path(Act { cx, lane, tier: tier as usize }, seqs, from),
            None => 0,
        })
    }

    /// `rank` holds nothing any more, in any tier. Visible at once; memory comes back by [`Self::sweep`].
    pub fn clear(&self, rank: WorkerWithDpRank) {
        self.write(|writer, cx| {
            // A rank that holds nothing keeps its lane: clearing it again and again costs nothing.
            if writer.lanes.get(rank).is_some_and(|lane| !writer.lanes.states[lane as usize].is_idle()) {
                writer.retire(rank, cx);
                // A bound slot needs a live lane; without room for one it gets it with the rank's next store.
                writer.lane(rank, cx);
            }
        });
    }

    /// As [`Self::clear`], and the rank itself is forgotten, its slot binding included.
    pub fn remove_rank(&self, rank: WorkerWithDpRank) {
        self.write(|writer, cx| writer.remove_rank(rank, cx));
    }

    /// [`Self::remove_rank`] for every rank of a worker, ranks that only events named included.
    pub fn remove_worker(&self, worker_id: u64) {
        self.write(|writer, cx| {
            let ranks: Vec<_> = writer.lanes.ranks_of(worker_id).collect();
            for rank in ranks {
                writer.remove_rank(rank, cx);
            }
        });
    }

    /// Gives back memory of retired lanes, visiting at most `max_chunks` chunks. `true` while work is left.
    pub fn sweep(&self, max_chunks: usize) -> bool {
        self.write(|writer, cx| {
            let more = writer.sweep(max_chunks, cx);
            cx.guard.flush();
            more
        })
    }

    /// Who holds leading blocks of the prompt with content hashes `locals` and chained hashes `seqs` (equal lengths).
    /// One state of the whole path. Takes no lock, unless the path changed during 16 walks in a row: then it waits for
    /// the writer once.
    pub fn lookup(&self, locals: &[u64], seqs: &[u64], out: &mut Matches) {
        lookup::lookup(&self.shared, locals, seqs, out, || self.writer.lock());
    }

    /// Engine names of the first `blocks` blocks of a prompt as `lane` announced them (any tier), for KV hints.
    /// `None` when the lane does not hold them all. Waits for the writer.
    pub fn names_of(&self, lane: Lane, locals: &[u64], seqs: &[u64], blocks: usize) -> Option<Vec<u64>> {
        self.write(|writer, cx| writer.names_of(lane.0, locals.get(..blocks)?, seqs.get(..blocks)?, cx))
    }

    /// The chained hash of the block that `rank` holds on its device under `name`. Waits for the writer.
    pub fn seq_of(&self, rank: WorkerWithDpRank, name: u64) -> Option<u64> {
        self.write(|writer, cx| {
            let (chunk, at) = writer.find(writer.lanes.get(rank)?, Tier::Device as usize, name, cx)?;
            Some(writer.seq_at(chunk, at, cx))
        })
    }

    /// Hides what `rank` holds from lookups and shows its slot no lane, or shows both again. It is kept up to date
    /// meanwhile, over clears too, and exports show it.
    pub fn withhold(&self, rank: WorkerWithDpRank, withhold: bool) {
        self.write(|writer, cx| writer.lanes.withhold(rank, withhold, &cx.shared.lanes));
    }

    /// Ranks that hold anything, with the number of blocks in all tiers; in no order.
    pub fn ranks(&self) -> Vec<(WorkerWithDpRank, u64)> {
        self.write(|writer, _| {
            let held = |(rank, lane): (WorkerWithDpRank, u16)| {
                let state = &writer.lanes.states[lane as usize];
                let waiting = state.waiting.as_deref().map_or(0, |waiting| waiting.held().iter().skip(1).sum());
                (rank, state.blocks.iter().sum::<u64>() + waiting)
            };
            writer.lanes.ranks().map(held).filter(|&(_, blocks)| blocks > 0).collect()
        })
    }

    /// Goes on with an export that shows everything held, device blocks that no prompt can reach included: these come
    /// without their parent. Visits about `blocks` blocks; `false` when everything was shown. The mutex is released
    /// between slices.
    pub fn export_more(&self, cursor: &mut ExportCursor, blocks: usize, visit: &mut dyn FnMut(ExportedRun)) -> bool {
        let mut runs = Vec::new();
        let mut shown = 0;
        while shown < blocks {
            let more = self.write(|writer, cx| cursor.0.slice(writer, cx, &mut runs));
            shown += runs.iter().map(|run| run.blocks.len()).sum::<usize>();
            runs.drain(..).for_each(&mut *visit);
            if !more {
                return false;
            }
        }
        true
    }

    /// Visits all that is held but device blocks no prompt can reach, parents before children within the device tier.
    /// The writer mutex is released between slices, so events go on.
    pub fn export(&self, visit: &mut dyn FnMut(ExportedRun)) {
        let mut export = Export::default();
        let mut runs = Vec::new();
        loop {
            let more = self.write(|writer, cx| export.slice(writer, cx, &mut runs));
            runs.drain(..).for_each(&mut *visit);
            if !more {
                return;
            }
        }
    }

    /// Current sizes.
    pub fn stats(&self) -> IndexStats {
        self.write(|writer, _| writer.stats())
    }
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self::new()
    }
}
