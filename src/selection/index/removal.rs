//! The writer takes blocks out: removals, the sweep of retired lanes, and what keeps chunks dense.

use super::{
    RemoveOutcome, chain,
    chunk::{CAPACITY, NewChunk, TIERS, capacity_for},
    columns::{Handle, Slot},
    residency::{mask, offsets},
    shared::{Act, Context},
    writer::Writer,
};

/// Names whose table lines are fetched ahead.
const AHEAD: usize = 24;

impl Writer {
    /// Applies a removal event.
    pub(super) fn remove(&mut self, act: Act<'_>, names: &[u64]) -> RemoveOutcome {
        let Act { cx, lane, tier } = act;
        let mut outcome = RemoveOutcome::default();
        names.iter().take(AHEAD).for_each(|&name| self.columns.prefetch(name));
        // Blocks of one chunk are taken out together.
        let mut group: Option<(u32, u64)> = None;
        for (k, &name) in names.iter().enumerate() {
            if let Some(&next) = names.get(k + AHEAD) {
                self.columns.prefetch(next);
            }
            let waited = self.take_waiting(lane, tier as u8, name).is_some();
            let mut found = self.find_near(group, lane, tier, name, cx);
            if let (Some((chunk, o)), Some((of, at))) = (found, group) {
                if chunk != of {
                    // The place may move when the group goes: look again.
                    group = None;
                    outcome.removed += self.take_out(of, at, lane, tier, cx);
                    found = self.find(lane, tier, name, cx);
                } else if at >> o & 1 == 1 {
                    found = None;
                }
            }
            match found {
                Some((chunk, o)) => {
                    let at = group.map_or(0, |(_, at)| at) | 1 << o;
                    group = Some((chunk, at));
                    if self.forget_twin(lane, tier, name, cx, (chunk, o)) {
                        // The next block of that name is another one.
                        outcome.removed += self.take_out(chunk, at, lane, tier, cx);
                        group = None;
                    }
                }
                None if waited => outcome.removed += 1,
                None => outcome.unknown += 1,
            }
        }
        if let Some((chunk, at)) = group {
            outcome.removed += self.take_out(chunk, at, lane, tier, cx);
        }
        outcome
    }

    /// Takes the blocks of a path from `from` on out of an index by seqs. Those before are held, so that the path leads
    /// there chunk by chunk.
    pub(super) fn remove_path(&mut self, act: Act<'_>, seqs: &[u64], from: usize) -> usize {
        let Act { cx, lane, tier } = act;
        let (mut removed, mut at) = (0, 0);
        while at < seqs.len() {
            let Some(id) = self.head(seqs[at], cx) else { break };
            let chunk = cx.chunk(id);
            let Some(data) = chunk.blocks(cx.guard) else { break };
            let n = chunk.len().min(seqs.len() - at);
            let matched = (0..n).take_while(|o| data.name(*o) == seqs[at + o]).count();
            if matched == 0 {
                break;
            }
            let skipped = from.saturating_sub(at).min(matched);
            if skipped < matched {
                removed += self.take_out(id, mask(skipped, matched - skipped), lane, tier, cx);
            }
            at += matched;
        }
        removed
    }

    /// [`Writer::find`], trying the neighbours of the group first: engines remove runs.
    #[inline]
    fn find_near(
        &self,
        group: Option<(u32, u64)>,
        lane: u16,
        tier: usize,
        name: u64,
        cx: Context<'_>,
    ) -> Option<(u32, usize)> {
        if let Some((id, at)) = group
            && self.lanes.states[lane as usize].twins.is_none()
            && !cx.chunk(id).has_columns()
        {
            let chunk = cx.chunk(id);
            let (low, high) = (at.trailing_zeros() as usize, 63 - at.leading_zeros() as usize);
            let data = chunk.blocks(cx.guard)?;
            for o in [high + 1, low.wrapping_sub(1)] {
                if o < chunk.len() && data.name(o) == name && self.holders.holds(chunk, tier, o, lane, cx) {
                    return Some((id, o));
                }
            }
        }
        self.find(lane, tier, name, cx)
    }

    /// The block is about to go: takes it from the order of its name's contents. Whether there was one.
    fn forget_twin(&mut self, lane: u16, tier: usize, name: u64, cx: Context<'_>, (chunk, o): (u32, usize)) -> bool {
        let key = (tier as u8, name);
        if self.lanes.states[lane as usize].twins.as_ref().is_none_or(|twins| !twins.contains_key(&key)) {
            return false;
        }
        let seq = self.seq_at(chunk, o, cx);
        let state = &mut self.lanes.states[lane as usize];
        if let Some(twins) = state.twins.as_deref_mut() {
            if let Some(order) = twins.get_mut(&key) {
                order.retain(|&other| other != seq);
                if order.len() < 2 {
                    twins.remove(&key);
                }
            }
            if twins.is_empty() {
                state.twins = None;
            }
        }
        true
    }

    /// `lane` loses the blocks of a chunk at `at` that it holds in a tier. Returns how many.
    pub(super) fn take_out(&mut self, id: u32, at: u64, lane: u16, tier: usize, cx: Context<'_>) -> usize {
        let chunk = cx.chunk(id);
        let slot = self.columns.slot_of(id, lane, tier, &self.holders, cx);
        let done = self.holders.update(chunk, tier, at, lane, false, cx);
        if done == 0 {
            return 0;
        }
        self.lanes.lost(lane, tier, done.count_ones().into());
        let alive = self.holders.alive(chunk, cx);
        let live = if chunk.has_columns() { self.columns.live(id, slot, &self.holders, cx) } else { alive };
        for o in offsets(done & !live) {
            if let Some(name) = self.columns.name(id, slot, o, cx) {
                self.columns.remove(name, Handle::new(id, slot, o), cx);
            }
        }
        if slot != Slot::Canonical && self.holders.held(chunk, tier, lane, cx) == 0 {
            self.columns.set_member(slot, lane, tier, false, &mut self.holders, cx);
        }
        let died = (done & !alive).count_ones() as usize;
        if died > 0 {
            chunk.set_dead(chunk.dead() + died);
            self.tidy(id, alive, cx);
        }
        done.count_ones() as usize
    }

    /// Frees a chunk without holders, cuts a dead tail, and divides a chunk that is mostly holes.
    fn tidy(&mut self, id: u32, alive: u64, cx: Context<'_>) {
        if alive == 0 {
            self.free_chunk(id, cx);
            return;
        }
        let chunk = cx.chunk(id);
        let end = 64 - alive.leading_zeros() as usize;
        if (chunk.dead() - (chunk.len() - end)) * 2 > end {
            self.divide(id, alive, cx);
        } else if end < chunk.len() {
            self.cut(id, end, cx);
        }
    }

    fn free_chunk(&mut self, id: u32, cx: Context<'_>) {
        let chunk = cx.chunk(id);
        self.heads.remove(chunk.head_seq(), id, &cx.shared.heads, cx.guard);
        self.columns.clear(id, &mut self.holders, cx);
        let words: [u32; TIERS] = std::array::from_fn(|tier| chunk.residency(tier));
        self.data_bytes -= chunk.empty(cx.guard);
        words.into_iter().for_each(|word| self.holders.drop_word(word, cx));
        self.chunks.give(id, &cx.shared.chunks, cx.guard);
    }

    /// Keeps the first `end` blocks of a chunk; the others are dead.
    fn cut(&mut self, id: u32, end: usize, cx: Context<'_>) {
        let chunk = cx.chunk(id);
        let Some(data) = chunk.blocks(cx.guard) else { return };
        let words = self.holders.range(chunk, 0, end, cx);
        let last_seq = chunk.seq_at(end - 1, data);
        let old: [u32; TIERS] = std::array::from_fn(|tier| chunk.residency(tier));
        let kept = mask(0, end) & self.holders.alive(chunk, cx);
        chunk.begin();
        for (tier, word) in words.into_iter().enumerate() {
            chunk.set_residency(tier, word);
        }
        chunk.set_len(end, last_seq);
        chunk.end();
        chunk.set_dead(end - kept.count_ones() as usize);
        old.into_iter().for_each(|word| self.holders.drop_word(word, cx));
        if chunk.has_columns() {
            self.columns.prune(id, &mut self.holders, cx);
        }
        if data.capacity() > 8 && end * 2 <= data.capacity() {
            let (more, less) = chunk.resize(capacity_for(end), cx.guard);
            self.data_bytes = self.data_bytes + more - less;
        }
    }

    /// Gives every run of live blocks a chunk of its own; a run at the beginning stays. New chunks are shown before
    /// the old one shrinks, so that no reader misses a block that is there.
    fn divide(&mut self, id: u32, alive: u64, cx: Context<'_>) {
        let chunk = cx.chunk(id);
        let (Some(data), len) = (chunk.blocks(cx.guard), chunk.len()) else { return };
        if self.chunks.room() < CAPACITY {
            return;
        }
        let mut seqs = [chunk.head_seq(); CAPACITY];
        for o in 1..len {
            seqs[o] = chain(seqs[o - 1], data.local(o));
        }
        let live: Vec<(Slot, u64)> = self
            .columns
            .slots(id, cx)
            .into_iter()
            .map(|slot| (slot, self.columns.live(id, slot, &self.holders, cx)))
            .collect();
        let kept = alive.trailing_ones() as usize;
        let mut at = kept;
        while alive >> at != 0 {
            let from = at + (alive >> at).trailing_zeros() as usize;
            let to = from + (alive >> from).trailing_ones() as usize;
            at = to;
            let new = NewChunk {
                head_seq: seqs[from],
                last_seq: seqs[to - 1],
                parent_seq: if from == 0 { chunk.parent_seq() } else { seqs[from - 1] },
                parent_name: if from == 0 { chunk.parent_name() } else { data.name(from - 1) },
                residency: self.holders.range(chunk, from, to, cx),
                capacity: capacity_for(to - from),
            };
            let blocks = (from..to).map(|o| (data.local(o), data.name(o)));
            let new = self.add_chunk(new, blocks, cx).expect("room was checked");
            self.columns.follow(id, &live, (from, to), new, &mut self.holders, cx);
            if at == CAPACITY {
                break;
            }
        }
        if kept > 0 {
            self.cut(id, kept, cx);
        } else {
            self.free_chunk(id, cx);
        }
    }

    /// Visits at most `max_chunks` chunks and takes retired lanes out of them. `true` while work is left.
    pub(super) fn sweep(&mut self, max_chunks: usize, cx: Context<'_>) -> bool {
        let mut left = max_chunks;
        let mut found: Vec<u16> = Vec::new();
        while self.lanes.retired() > 0 && left > 0 && self.chunks.used() > 0 {
            if self.sweep_at >= self.chunks.end() {
                // Blocks may have moved to ids behind: another round, until the last retired lane has nothing.
                self.sweep_at = 0;
            }
            let id = self.sweep_at;
            if !self.chunks.has_page(id) {
                self.sweep_at = (id / super::arena::PAGE as u32 + 1) * super::arena::PAGE as u32;
                continue;
            }
            self.sweep_at += 1;
            left -= 1;
            for tier in 0..TIERS {
                let chunk = cx.chunk(id);
                if chunk.len() == 0 {
                    break;
                }
                found.clear();
                let (holders, retired) = (&self.holders, self.lanes.retired_bits());
                holders.where_set(chunk, tier, cx, |set| {
                    holders.members(set, cx).for_each_in(retired, |lane| found.push(lane));
                    false
                });
                found.sort_unstable();
                found.dedup();
                for &lane in &found {
                    // The chunk may be gone with the last of them; its page stays while it is the sweep's turn.
                    if !self.chunks.has_page(id) {
                        break;
                    }
                    self.take_out(id, !0, lane, tier, cx);
                }
                if !self.chunks.has_page(id) {
                    break;
                }
            }
        }
        if self.chunks.used() == 0 {
            self.holders.sets.shrink();
            self.columns.shrink();
        }
        self.lanes.retired() > 0
    }
}
