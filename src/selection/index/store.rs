//! The writer adds blocks: what a store event does.

use super::{
    StoreOutcome, StoredBlock, chain,
    chunk::{CAPACITY, NewChunk, TIERS, capacity_for},
    columns::{Handle, Slot},
    naming::Gained,
    residency::mask,
    sets::EMPTY,
    shared::{Act, Context},
    waiting::WaitingBlock,
    writer::{DEVICE, Writer},
};

/// What the blocks of an event had in common with a chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Met {
    /// Blocks of the event.
    pub(super) blocks: usize,
    /// A name disagreed where the store has to end.
    pub(super) stop: bool,
}

impl Writer {
    /// Applies a store event.
    pub(super) fn store(&mut self, act: Act<'_>, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        if blocks.is_empty() {
            return StoreOutcome::Applied;
        }
        if self.chunks.room() <= blocks.len() || !self.holders.sets.has_room() || !self.columns.has_room() {
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
        let mut kept = false;
        let mut parent = parent;
        for (k, &block) in blocks.iter().enumerate() {
            if k > 0
                && let Some(after) = self.parent(act, parent)
            {
                self.place(act, Some(after), &blocks[k..]);
                self.adopt(act, blocks[k..].iter().map(|block| block.name).collect());
                kept = true;
                break;
            }
            let state = &mut self.lanes.states[act.lane as usize];
            let waiting = state.waiting.get_or_insert_default();
            kept |= waiting.add(WaitingBlock { tier: act.tier as u8, parent, block }, &mut self.waiting);
            if waiting.is_empty() {
                state.waiting = None;
            }
            parent = block.name;
        }
        match (kept, act.tier) {
            (false, _) => StoreOutcome::ParentUnknown,
            (true, DEVICE) => StoreOutcome::WaitsForParent,
            (true, _) => StoreOutcome::Applied,
        }
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
                let Some(block) = self.take_waiting(act.lane, tier, child) else { continue };
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
}
