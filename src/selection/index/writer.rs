//! The writer: what happens to the index, one event at a time.
//!
//! Owns everything readers do not see. This file applies stores; `removal` takes blocks out. Invariants:
//! 1. A seq occurs at most once. An inner block's predecessor is the block before it in its chunk, alive or not.
//! 2. The last block of a chunk is alive, at most half of them are dead; a chunk without holders does not exist.
//! 3. Every live name has one entry in the names table (see `columns`).
//! 4. `lanes.blocks` counts what a lane holds; a retired lane is free when it reaches zero.

use super::{
    IndexStats, StoreOutcome, StoredBlock,
    arena::{PAGE, Slots},
    chain,
    chunk::{CAPACITY, Chunk, NewChunk, TIERS, capacity_for},
    columns::{Columns, Handle, Slot},
    export::name_in_any_tier,
    heads::HeadCounts,
    lanes::{LaneState, Lanes},
    residency::{Holders, mask, offsets},
    sets::EMPTY,
    shared::{Act, CHUNKS, Context},
    waiting::WaitingBlock,
};
use crate::selection::identity::WorkerWithDpRank;

/// The tier whose blocks need a parent in it.
pub(super) const DEVICE: usize = 0;
/// Most contents of one name that one rank holds in one tier; the oldest goes.
pub(super) const MAX_TWINS: usize = 64;

/// Chunks a slice when a lane is wanted at once.
const SWEEP: usize = 4096;

/// A block that a store gave to a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gained {
    name: u64,
    handle: Handle,
    /// Whether its slot became live by it.
    insert: bool,
}

/// Names that a lane gives blocks of a chunk.
struct Wanted<'a> {
    /// Blocks the lane has in the tier already, under names that stay.
    held: u64,
    /// Blocks it gets.
    fresh: u64,
    /// The block before the event's first.
    previous: Option<(u32, usize)>,
    /// Offset of the event's first block.
    from: usize,
    blocks: &'a [StoredBlock],
}

impl Wanted<'_> {
    fn at(&self, o: usize) -> u64 {
        self.blocks[o - self.from].name
    }
}

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
    /// Blocks that left the waiting room unadopted because it was full.
    pub(super) dropped_waiting: u64,
    /// Blocks not stored because their name stood for too many contents.
    pub(super) dropped_twins: u64,
    gained: Vec<Gained>,
}

/// What the blocks of an event had in common with a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    /// Blocks of the event.
    blocks: usize,
    /// A name disagreed where the store has to end.
    stop: bool,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            holders: Holders::new(),
            columns: Columns::new(),
            lanes: Lanes::default(),
            chunks: Slots::new(CHUNKS),
            heads: HeadCounts::new(),
            data_bytes: 0,
            sweep_at: 0,
            dropped_waiting: 0,
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
        self.lanes.retire(rank, &cx.shared.lanes);
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
            dropped_orphans: self.dropped_waiting,
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

    /// Applies a store event.
    pub(super) fn store(&mut self, act: Act<'_>, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        if blocks.is_empty() {
            return StoreOutcome::Applied;
        }
        if self.chunks.room() <= blocks.len() || !self.holders.sets.has_room() {
            return StoreOutcome::Full;
        }
        for block in blocks.iter().take(CAPACITY) {
            self.columns.prefetch(block.name);
        }
        let after = match parent {
            None => None,
            Some(name) => match self.parent(act, name) {
                Some(block) => Some(block),
                None => return self.wait(act, name, blocks),
            },
        };
        self.place(act, after, blocks);
        if self.lanes.states[act.lane as usize].waiting.is_some() {
            self.adopt(act, blocks.iter().map(|block| block.name).collect());
        }
        StoreOutcome::Applied
    }

    /// Where children of `name` go: device blocks need a device parent, others take one in any tier.
    fn parent(&self, act: Act<'_>, name: u64) -> Option<(u32, usize)> {
        let Act { cx, lane, tier } = act;
        self.find(lane, tier, name, cx).or_else(|| match tier {
            DEVICE => None,
            _ => (0..TIERS).filter(|&t| t != tier).find_map(|t| self.find(lane, t, name, cx)),
        })
    }

    /// Keeps the blocks of an event until their parent comes. The first one whose parent is held, and what follows it,
    /// need not wait.
    fn wait(&mut self, act: Act<'_>, parent: u64, blocks: &[StoredBlock]) -> StoreOutcome {
        let outcome = if act.tier == DEVICE { StoreOutcome::WaitsForParent } else { StoreOutcome::Applied };
        let mut parent = parent;
        for (k, &block) in blocks.iter().enumerate() {
            if k > 0
                && let Some(after) = self.parent(act, parent)
            {
                self.place(act, Some(after), &blocks[k..]);
                self.adopt(act, blocks[k..].iter().map(|block| block.name).collect());
                return outcome;
            }
            let state = &mut self.lanes.states[act.lane as usize];
            let waiting = state.waiting.get_or_insert_default();
            self.dropped_waiting += waiting.add(WaitingBlock { tier: act.tier as u8, parent, block }) as u64;
            if waiting.is_empty() {
                state.waiting = None;
            }
            parent = block.name;
        }
        outcome
    }

    /// Gives places to the blocks that waited for one of `names`, and to those that waited for them.
    fn adopt(&mut self, act: Act<'_>, mut names: Vec<u64>) {
        let lane = act.lane as usize;
        while let Some(name) = names.pop() {
            let Some(waiting) = self.lanes.states[lane].waiting.as_deref() else { return };
            let children: Vec<(u8, u64)> = waiting.children(name).collect();
            for (tier, child) in children {
                let act = Act { tier: tier.into(), ..act };
                let Some(after) = self.parent(act, name) else { continue };
                let Some(waiting) = self.lanes.states[lane].waiting.as_deref_mut() else { return };
                let Some(block) = waiting.take(tier, child) else { continue };
                if waiting.is_empty() {
                    self.lanes.states[lane].waiting = None;
                }
                self.place(act, Some(after), &[block.block]);
                names.push(child);
            }
        }
    }

    /// Adds `blocks` to what the lane holds: after a block, or from the root.
    fn place(&mut self, act: Act<'_>, after: Option<(u32, usize)>, blocks: &[StoredBlock]) {
        let cx = act.cx;
        let mut previous = after;
        let mut done = 0;
        if let Some((id, o)) = after {
            let met = self.meet(act, id, o + 1, previous, blocks);
            if met.stop {
                return self.settle(act);
            }
            done = met.blocks;
            previous = Some((id, o + done));
        }
        while done < blocks.len() {
            let rest = &blocks[done..];
            let seq = match previous {
                Some((id, o)) => chain(self.seq_at(id, o, cx), rest[0].local),
                None => rest[0].local,
            };
            if let Some(id) = self.head(seq, cx) {
                let met = self.meet(act, id, 0, previous, rest);
                // A head proves its first block, so only a disagreeing name can leave nothing in common.
                if met.stop || met.blocks == 0 {
                    break;
                }
                previous = Some((id, met.blocks - 1));
                done += met.blocks;
                continue;
            }
            // New content goes behind its chunk while there is room, whoever holds that.
            let tail = previous.filter(|&(id, o)| o + 1 == cx.chunk(id).len() && o + 1 < CAPACITY);
            let room = tail.map_or(CAPACITY, |(_, o)| CAPACITY - 1 - o);
            let (n, last) = self.fresh_run(seq, &rest[..rest.len().min(room)], cx);
            let added = match tail {
                Some((id, _)) => self.append(act, id, &rest[..n], last),
                None => self.begin_chunk(act, (seq, last), previous, &rest[..n]),
            };
            let Some(id) = added else { break };
            self.lanes.states[act.lane as usize].blocks[act.tier] += n as u64;
            previous = Some((id, cx.chunk(id).len() - 1));
            done += n;
        }
        self.settle(act);
    }

    /// What the lane calls a block it holds; 0 for the one before the root.
    fn name_of(&self, act: Act<'_>, block: Option<(u32, usize)>) -> u64 {
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

    /// How many of `blocks`, the first of which has `seq`, come before one that begins a chunk already, so that what is
    /// stored again reconnects to its descendants; and the last one's seq.
    fn fresh_run(&self, seq: u64, blocks: &[StoredBlock], cx: Context<'_>) -> (usize, u64) {
        let mut seqs = [seq; CAPACITY];
        for k in 1..blocks.len() {
            seqs[k] = chain(seqs[k - 1], blocks[k].local);
            cx.shared.heads.prefetch(seqs[k], cx.guard);
        }
        let n = (1..blocks.len()).find(|&k| self.head(seqs[k], cx).is_some()).unwrap_or(blocks.len());
        (n, seqs[n - 1])
    }

    /// Adds new content after the last block of a chunk, whoever holds the chunk.
    fn append(&mut self, act: Act<'_>, id: u32, blocks: &[StoredBlock], last_seq: u64) -> Option<u32> {
        let Act { cx, lane, tier } = act;
        let chunk = cx.chunk(id);
        let (len, n) = (chunk.len(), blocks.len());
        if len + n > chunk.blocks(cx.guard)?.capacity() {
            let (more, less) = chunk.resize(capacity_for((len + n + (len + n) / 8).min(CAPACITY)), cx.guard);
            self.data_bytes = self.data_bytes + more - less;
        }
        let data = chunk.blocks(cx.guard)?;
        let slot = self.columns.slot_of(id, lane, tier, &self.holders, cx);
        for (k, block) in blocks.iter().enumerate() {
            data.set(len + k, block.local, block.name);
            if slot != Slot::Canonical {
                self.columns.set_name(id, slot, len + k, block.name, cx);
            }
            self.gained.push(Gained { name: block.name, handle: Handle::new(id, slot, len + k), insert: true });
        }
        let old: [u32; TIERS] = std::array::from_fn(|t| chunk.residency(t));
        let words = self.holders.extended(chunk, n, tier, lane, cx);
        chunk.begin();
        for (t, word) in words.into_iter().enumerate() {
            chunk.set_residency(t, word);
        }
        chunk.set_len(len + n, last_seq);
        chunk.end();
        for (old, word) in old.into_iter().zip(words) {
            if old != word {
                self.holders.drop_word(old, cx);
            }
        }
        Some(id)
    }

    /// Makes a chunk of new content, from the first seq to the last.
    fn begin_chunk(
        &mut self,
        act: Act<'_>,
        seqs: (u64, u64),
        previous: Option<(u32, usize)>,
        blocks: &[StoredBlock],
    ) -> Option<u32> {
        let mut residency = [EMPTY; TIERS];
        residency[act.tier] = act.lane.into();
        let (head_seq, last_seq) = seqs;
        let capacity = capacity_for(blocks.len());
        let parent_seq = previous.map_or(0, |(id, o)| self.seq_at(id, o, act.cx));
        let parent_name = self.name_of(act, previous);
        let new = NewChunk { head_seq, last_seq, parent_seq, parent_name, residency, capacity };
        let id = self.add_chunk(new, blocks.iter().map(|block| (block.local, block.name)), act.cx)?;
        for (k, block) in blocks.iter().enumerate() {
            let handle = Handle::new(id, Slot::Canonical, k);
            self.gained.push(Gained { name: block.name, handle, insert: true });
        }
        Some(id)
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

    /// Blocks of an event lie along a chunk from `o` on as far as their content agrees: the lane holds those too.
    fn meet(&mut self, act: Act<'_>, id: u32, o: usize, previous: Option<(u32, usize)>, blocks: &[StoredBlock]) -> Met {
        let Act { cx, lane, tier } = act;
        let chunk = cx.chunk(id);
        let Some(data) = chunk.blocks(cx.guard) else { return Met::default() };
        let n = blocks.len().min(chunk.len().saturating_sub(o));
        let m = (0..n).find(|&k| data.local(o + k) != blocks[k].local).unwrap_or(n);
        if m == 0 {
            return Met::default();
        }
        let agree = (0..m).all(|k| data.name(o + k) == blocks[k].name);
        if agree && !chunk.has_columns() && chunk.dead() == 0 && !self.columns.any_ambiguous() {
            let done = self.holders.update(chunk, tier, mask(o, m), lane, true, cx);
            self.lanes.states[lane as usize].blocks[tier] += u64::from(done.count_ones());
            return Met { blocks: m, stop: false };
        }
        self.meet_named(act, id, o, previous, &blocks[..m])
    }

    /// [`Self::meet`] where names may differ or blocks are dead.
    fn meet_named(
        &mut self,
        act: Act<'_>,
        id: u32,
        o: usize,
        previous: Option<(u32, usize)>,
        blocks: &[StoredBlock],
    ) -> Met {
        let Act { cx, lane, tier } = act;
        let chunk = cx.chunk(id);
        let held = self.holders.held(chunk, tier, lane, cx);
        let mut m = blocks.len();
        if tier != DEVICE {
            // Lower tiers stop where the lane knows the block by another name.
            let slot = self.columns.slot_of(id, lane, tier, &self.holders, cx);
            let differs = |k: &usize| self.columns.name(id, slot, *k, cx) != Some(blocks[*k - o].name);
            m = offsets(held & mask(o, m)).find(differs).map_or(m, |k| k - o);
        }
        let met = Met { blocks: m, stop: m < blocks.len() };
        let fresh = if m == 0 { 0 } else { mask(o, m) & !held };
        if fresh == 0 {
            return met;
        }
        let names = Wanted { held, fresh, previous, from: o, blocks };
        let (slot, live) = self.choose_slot(act, id, &names);
        let revived = (fresh & !self.holders.alive(chunk, cx)).count_ones() as usize;
        let done = self.holders.update(chunk, tier, fresh, lane, true, cx);
        chunk.set_dead(chunk.dead() - revived);
        self.lanes.states[lane as usize].blocks[tier] += u64::from(done.count_ones());
        for k in offsets(fresh) {
            let handle = Handle::new(id, slot, k);
            self.gained.push(Gained { name: names.at(k), handle, insert: live >> k & 1 == 0 });
        }
        met
    }

    /// The column by which the lane calls the blocks what it calls them, and where that one is live already. Names of
    /// slots that are not live are set.
    fn choose_slot(&mut self, act: Act<'_>, id: u32, names: &Wanted<'_>) -> (Slot, u64) {
        let Act { cx, lane, tier } = act;
        let current = self.columns.slot_of(id, lane, tier, &self.holders, cx);
        let chosen = self.fits(id, current, names, cx).or_else(|| {
            // A lane that is in the chunk already keeps its names: it can only move to a column of its own.
            if names.held != 0 {
                return None;
            }
            let live = self.columns.live(id, Slot::Canonical, &self.holders, cx);
            let differs = |k: &usize| self.columns.name(id, Slot::Canonical, *k, cx) != Some(names.at(*k));
            let first = offsets(names.fresh & live).find(differs)?;
            let mut found = None;
            self.columns.find_column(id, first, names.at(first), cx, |slot| {
                found = self.fits(id, slot, names, cx);
                found.is_some()
            });
            found
        });
        let (slot, live) = chosen.unwrap_or_else(|| (self.columns.add_column(id, cx), 0));
        if slot != current {
            self.columns.set_member(slot, lane, tier, true, &mut self.holders, cx);
            if names.held != 0 {
                self.move_names(act, id, names.held, current, slot);
            }
        }
        let vacant = names.fresh & !live;
        for k in offsets(vacant) {
            self.columns.set_name(id, slot, k, names.at(k), cx);
        }
        if vacant & 1 == 1 {
            let before = self.name_of(act, names.previous);
            self.columns.set_parent_name(id, slot, before, cx);
        }
        (slot, live)
    }

    /// Whether a column has the wanted names wherever it is live.
    fn fits(&self, id: u32, slot: Slot, names: &Wanted<'_>, cx: Context<'_>) -> Option<(Slot, u64)> {
        let live = self.columns.live(id, slot, &self.holders, cx);
        let agrees = |k| self.columns.name(id, slot, k, cx) == Some(names.at(k));
        offsets(names.fresh & live).all(agrees).then_some((slot, live))
    }

    /// The lane leaves the column `from` for the new `to`, which gets its names of the blocks it has `held`.
    fn move_names(&mut self, act: Act<'_>, id: u32, held: u64, from: Slot, to: Slot) {
        let Act { cx, lane, tier } = act;
        let parent_name = self.columns.parent_name(id, from, cx);
        self.columns.set_parent_name(id, to, parent_name, cx);
        let names: Vec<(usize, u64)> =
            offsets(held).filter_map(|k| Some((k, self.columns.name(id, from, k, cx)?))).collect();
        for &(k, name) in &names {
            self.columns.set_name(id, to, k, name, cx);
            self.columns.insert(name, Handle::new(id, to, k), cx);
        }
        self.columns.leave(from, lane, tier, &mut self.holders, cx);
        let live = self.columns.live(id, from, &self.holders, cx);
        for (k, name) in names {
            if live >> k & 1 == 0 {
                self.columns.remove(name, Handle::new(id, from, k), cx);
            }
        }
    }

    /// Names the blocks gained since the last time.
    fn settle(&mut self, act: Act<'_>) {
        let mut gained = std::mem::take(&mut self.gained);
        let mut excess = Vec::new();
        for &Gained { name, handle, insert } in &gained {
            if insert {
                self.columns.insert(name, handle, act.cx);
            }
            if self.columns.any_ambiguous() && self.columns.is_ambiguous(name) {
                excess.extend(self.note_twin(act, name, handle));
            }
        }
        gained.clear();
        self.gained = gained;
        for (name, seq) in excess {
            let found = self
                .columns
                .find(act.lane, act.tier, name, &self.holders, act.cx, |chunk, o| self.seq_at(chunk, o, act.cx) == seq);
            if let Some((chunk, o)) = found {
                self.dropped_twins += self.take_out(chunk, 1 << o, act.lane, act.tier, act.cx) as u64;
            }
        }
    }

    /// Remembers the order in which the lane stored the contents of one name, if there are several. Returns the one
    /// that has to go for it.
    fn note_twin(&mut self, act: Act<'_>, name: u64, handle: Handle) -> Option<(u64, u64)> {
        let Act { cx, lane, tier } = act;
        let block = self.columns.block_of(handle)?;
        let seq = self.seq_at(block.0, block.1, cx);
        let key = (tier as u8, name);
        let known = self.lanes.states[lane as usize].twins.as_ref().is_some_and(|twins| twins.contains_key(&key));
        let mut seqs = Vec::new();
        if !known {
            // One from before, and what the same event brings: that comes again, in order.
            self.columns.find(lane, tier, name, &self.holders, cx, |chunk, o| {
                if (chunk, o) != block {
                    seqs.push(self.seq_at(chunk, o, cx));
                }
                false
            });
            if seqs.is_empty() {
                return None;
            }
        }
        let twins = self.lanes.states[lane as usize].twins.get_or_insert_default();
        let order: &mut Vec<u64> = twins.entry(key).or_insert(seqs);
        order.retain(|&other| other != seq);
        order.push(seq);
        (order.len() > MAX_TWINS).then(|| (name, order.remove(0)))
    }
}
