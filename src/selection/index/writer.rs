//! The writer: what happens to the index, one event at a time.
//!
//! Owns everything readers do not see. `store` and `naming` add blocks, `removal` takes them out. Invariants:
//! 1. A seq occurs at most once. An inner block's predecessor is the block before it in its chunk, alive or not.
//! 2. The last block of a chunk is alive, at most half of them are dead; a chunk without holders does not exist.
//! 3. Every live name has one entry in the names table (see `columns`).
//! 4. `lanes.blocks` counts what a lane holds; a retired lane is free when it reaches zero.

use super::{
    IndexStats,
    arena::{PAGE, Slots},
    chunk::{Chunk, NewChunk},
    columns::Columns,
    export::name_in_any_tier,
    heads::HeadCounts,
    lanes::{LaneState, Lanes},
    naming::Gained,
    residency::Holders,
    shared::{Act, CHUNKS, Context},
    waiting::{Totals, WaitingBlock},
};
use crate::selection::identity::WorkerWithDpRank;

/// The tier whose blocks need a parent in it.
pub(super) const DEVICE: usize = 0;
/// Most contents of one name that one rank holds in one tier; the oldest goes.
pub(super) const MAX_TWINS: usize = 64;

/// Chunks a slice when a lane is wanted at once.
const SWEEP: usize = 4096;

/// The writer's side of an index.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) holders: Holders,
    pub(super) columns: Columns,
    pub(super) lanes: Lanes,
    pub(super) chunks: Slots,
    pub(super) heads: HeadCounts,
    /// Bytes of chunk data.
    pub(super) data_bytes: usize,
    /// Where the sweep goes on.
    pub(super) sweep_at: u32,
    /// What waits for parents.
    pub(super) waiting: Totals,
    /// Blocks not stored because their name stood for too many contents.
    pub(super) dropped_twins: u64,
    /// Blocks of the event at work that have no entry yet.
    pub(super) gained: Vec<Gained>,
}

impl Writer {
    pub(super) fn new(named: bool) -> Self {
        Self {
            holders: Holders::new(),
            columns: Columns::new(named),
            lanes: Lanes::default(),
            chunks: Slots::new(CHUNKS),
            heads: HeadCounts::new(),
            data_bytes: 0,
            sweep_at: 0,
            waiting: Totals::default(),
            dropped_twins: 0,
            gained: Vec::new(),
        }
    }

    /// A block that `lane` holds in `tier` under `name`; of several, the one stored last.
    #[inline]
    pub(super) fn find(&self, lane: u16, tier: usize, name: u64, cx: Context<'_>) -> Option<(u32, usize)> {
        let last = match self.lanes.states[lane as usize].twins.as_deref() {
            Some(twins) => twins.get(&(tier as u8, name)).and_then(|seqs| seqs.last().copied()),
            None => None,
        };
        self.columns.find(lane, tier, name, &self.holders, cx, |chunk, o| {
            last.is_none_or(|seq| self.seq_at(chunk, o, cx) == seq)
        })
    }

    pub(super) fn seq_at(&self, chunk: u32, o: usize, cx: Context<'_>) -> u64 {
        let chunk = cx.chunk(chunk);
        chunk.blocks(cx.guard).map_or(0, |blocks| chunk.seq_at(o, blocks))
    }

    /// The live lane of a rank, a new one if it has none. `None` when all are taken by ranks.
    pub(super) fn lane(&mut self, rank: WorkerWithDpRank, cx: Context<'_>) -> Option<u16> {
        if self.lanes.get(rank).is_none() && !self.lanes.has_room() {
            // Retired lanes may hold the ids that are missing.
            while !self.lanes.has_room() && self.sweep(SWEEP, cx) {}
        }
        self.lanes.get_or_add(rank, &cx.shared.lanes)
    }

    /// Forgets a rank and its slot.
    pub(super) fn remove_rank(&mut self, rank: WorkerWithDpRank, cx: Context<'_>) {
        self.lanes.unbind(rank, &cx.shared.lanes);
        self.retire(rank, cx);
    }

    /// Takes the lane and what waits away from a rank.
    pub(super) fn retire(&mut self, rank: WorkerWithDpRank, cx: Context<'_>) {
        if let Some(lane) = self.lanes.get(rank)
            && let Some(waiting) = self.lanes.states[lane as usize].waiting.take()
        {
            self.waiting.change(waiting.counts(), Default::default());
        }
        self.lanes.retire(rank, &cx.shared.lanes);
    }

    /// Takes a block out of what waits.
    pub(super) fn take_waiting(&mut self, lane: u16, tier: u8, name: u64) -> Option<WaitingBlock> {
        let state = &mut self.lanes.states[lane as usize];
        let waiting = state.waiting.as_deref_mut()?;
        let before = waiting.counts();
        let block = waiting.take(tier, name);
        self.waiting.change(before, waiting.counts());
        if waiting.is_empty() {
            state.waiting = None;
        }
        block
    }

    /// What `lane` calls the blocks of a prompt, if it holds them all.
    pub(super) fn names_of(&self, lane: u16, locals: &[u64], seqs: &[u64], cx: Context<'_>) -> Option<Vec<u64>> {
        let mut names = Vec::with_capacity(locals.len());
        while names.len() < locals.len() {
            let at = names.len();
            let id = self.head(seqs[at], cx)?;
            let (chunk, rest) = (cx.chunk(id), &locals[at..]);
            let data = chunk.blocks(cx.guard)?;
            let n = (0..chunk.len().min(rest.len())).take_while(|&o| data.local(o) == rest[o]).count();
            if n == 0 {
                return None;
            }
            for o in 0..n {
                names.push(name_in_any_tier(id, lane, DEVICE, o, self, cx)?);
            }
        }
        Some(names)
    }

    /// Sizes.
    pub(super) fn stats(&self) -> IndexStats {
        let mut stats = IndexStats {
            chunks: self.chunks.used() as u64,
            names: self.columns.len() as u64,
            lanes: self.lanes.in_use() as u64,
            dropped_orphans: self.waiting.dropped,
            dropped_twins: self.dropped_twins,
            ..IndexStats::default()
        };
        let mut bytes = self.data_bytes
            + self.chunks.linked() * PAGE * std::mem::size_of::<Chunk>()
            + self.holders.bytes()
            + self.columns.bytes()
            + self.heads.bytes()
            + self.lanes.states.capacity() * std::mem::size_of::<LaneState>();
        for (_, lane) in self.lanes.ranks() {
            let state = &self.lanes.states[lane as usize];
            for (held, blocks) in stats.held.iter_mut().zip(state.blocks) {
                *held += blocks;
            }
            if let Some(waiting) = state.waiting.as_deref() {
                stats.orphans += waiting.held()[0];
                for (held, blocks) in stats.held.iter_mut().zip(waiting.held()).skip(1) {
                    *held += blocks;
                }
                bytes += waiting.bytes();
            }
        }
        stats.bytes = bytes as u64;
        stats
    }

    /// What the lane calls a block it holds; 0 for the one before the root.
    pub(super) fn name_of(&self, act: Act<'_>, block: Option<(u32, usize)>) -> u64 {
        block.and_then(|(id, o)| name_in_any_tier(id, act.lane, act.tier, o, self, act.cx)).unwrap_or_default()
    }

    /// The chunk that begins with `seq`.
    #[inline]
    pub(super) fn head(&self, seq: u64, cx: Context<'_>) -> Option<u32> {
        cx.shared.heads.find(seq, cx.guard, |id| {
            let chunk = cx.chunk(id);
            (chunk.head_seq() == seq && chunk.len() > 0).then_some(id)
        })
    }

    /// Fills a free chunk and shows it to readers. Its residency is counted already.
    pub(super) fn add_chunk(
        &mut self,
        new: NewChunk,
        blocks: impl ExactSizeIterator<Item = (u64, u64)>,
        cx: Context<'_>,
    ) -> Option<u32> {
        let id = self.chunks.take(&cx.shared.chunks, cx.guard)?;
        let seq = new.head_seq;
        self.data_bytes += cx.chunk(id).fill(new, blocks);
        self.heads.insert(seq, id, &cx.shared.heads, cx.guard);
        Some(id)
    }
}
