//! The writer names what a store adds: by which column a lane goes, and what it means when one name has many contents.

use super::{
    StoredBlock,
    columns::{Handle, Slot},
    residency::{mask, offsets},
    shared::{Act, Context},
    store::Met,
    writer::{DEVICE, MAX_TWINS, Writer},
};

/// Names fetched ahead of their turn.
const AHEAD: usize = 24;

/// A block that a store gave to a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gained {
    pub(super) name: u64,
    pub(super) handle: Handle,
    /// Whether its slot became live by it.
    pub(super) insert: bool,
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

impl Writer {
    /// [`Self::meet`] where names may differ or blocks are dead.
    pub(super) fn meet_named(
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
    pub(super) fn settle(&mut self, act: Act<'_>) {
        let mut gained = std::mem::take(&mut self.gained);
        let mut excess = Vec::new();
        for (k, &Gained { name, handle, insert }) in gained.iter().enumerate() {
            if let Some(ahead) = gained.get(k + AHEAD) {
                self.columns.prefetch(ahead.name);
            }
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
