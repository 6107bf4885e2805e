//! Which lanes go by which column, and what becomes of columns when chunks are divided, cut or freed.

use super::{
    chunk::{TIERS, capacity_for},
    columns::{ChunkColumns, Column, Columns, Handle, Slot},
    residency::{Holders, mask, offsets},
    sets::EMPTY,
    shared::Context,
};

impl Columns {
    /// A new column without lanes and names.
    pub(super) fn add_column(&mut self, chunk: u32, cx: Context<'_>) -> Slot {
        let parent_name = cx.chunk(chunk).parent_name();
        let column = Column { chunk, lanes: [EMPTY; TIERS], parent_name, names: Vec::new() };
        let id = match self.free.pop() {
            Some(id) => {
                self.columns[id as usize] = Some(column);
                id
            }
            None => {
                self.columns.push(Some(column));
                (self.columns.len() - 1) as u32
            }
        };
        let of =
            self.by_chunk.entry(chunk).or_insert_with(|| ChunkColumns { ids: Vec::new(), aliased: [EMPTY; TIERS] });
        of.ids.push(id);
        self.bytes += 4;
        cx.chunk(chunk).set_has_columns(true);
        Slot::Column(id)
    }

    /// From now on, or no longer, `lane` goes by a column in a tier. Nothing to do for the canonical one.
    pub(super) fn set_member(
        &mut self,
        slot: Slot,
        lane: u16,
        tier: usize,
        member: bool,
        holders: &mut Holders,
        cx: Context<'_>,
    ) {
        let Slot::Column(id) = slot else { return };
        let Some(column) = self.columns.get_mut(id as usize).and_then(Option::as_mut) else { return };
        let Some(of) = self.by_chunk.get_mut(&column.chunk) else { return };
        change(&mut column.lanes[tier], lane, member, holders, cx);
        change(&mut of.aliased[tier], lane, member, holders, cx);
        if column.lanes == [EMPTY; TIERS] {
            self.drop_column(id, cx);
        }
    }

    /// `lane` leaves a column for another one of the same chunk.
    pub(super) fn leave(&mut self, slot: Slot, lane: u16, tier: usize, holders: &mut Holders, cx: Context<'_>) {
        let Slot::Column(id) = slot else { return };
        let Some(column) = self.columns.get_mut(id as usize).and_then(Option::as_mut) else { return };
        change(&mut column.lanes[tier], lane, false, holders, cx);
        if column.lanes == [EMPTY; TIERS] {
            self.drop_column(id, cx);
        }
    }

    fn drop_column(&mut self, id: u32, cx: Context<'_>) {
        let Some(column) = self.columns[id as usize].take() else { return };
        self.free.push(id);
        self.bytes -= 8 * column.names.capacity() + 4;
        if let Some(of) = self.by_chunk.get_mut(&column.chunk) {
            of.ids.retain(|&other| other != id);
            if of.ids.is_empty() {
                self.by_chunk.remove(&column.chunk);
                cx.chunk(column.chunk).set_has_columns(false);
            }
        }
    }

    /// Blocks `from..to` of a chunk have moved to the beginning of `new`, canonical names and residency included:
    /// their slots follow. `live` holds the live offsets of each of the chunk's slots.
    pub(super) fn follow(
        &mut self,
        chunk: u32,
        live: &[(Slot, u64)],
        (from, to): (usize, usize),
        new: u32,
        holders: &mut Holders,
        cx: Context<'_>,
    ) {
        let moved = mask(from, to - from);
        for &(slot, live) in live {
            if live & moved == 0 {
                continue;
            }
            let target = match slot {
                Slot::Canonical => Slot::Canonical,
                Slot::Column(_) => self.add_column(new, cx),
            };
            if from > 0
                && let Some(before) = self.name(chunk, slot, from - 1, cx)
            {
                self.set_parent_name(new, target, before, cx);
            }
            for o in offsets(live & moved) {
                let Some(name) = self.name(chunk, slot, o, cx) else { continue };
                if target != Slot::Canonical {
                    self.set_name(new, target, o - from, name, cx);
                }
                let (old, new) = (Handle::new(chunk, slot, o), Handle::new(new, target, o - from));
                if let Some(table) = &mut self.table {
                    table.replace(name, old.0, new.0);
                }
            }
            let Slot::Column(id) = slot else { continue };
            for tier in 0..TIERS {
                let lanes = self.column(id).map_or(EMPTY, |column| column.lanes[tier]);
                let mut members = Vec::new();
                holders.members(lanes, cx).for_each(|lane| members.push(lane));
                for lane in members {
                    if holders.held(cx.chunk(new), tier, lane, cx) != 0 {
                        self.set_member(target, lane, tier, true, holders, cx);
                    }
                }
            }
        }
    }

    /// Lanes that hold nothing in a chunk any more, after it was cut, leave its columns; names past the end go.
    pub(super) fn prune(&mut self, chunk: u32, holders: &mut Holders, cx: Context<'_>) {
        for slot in self.slots(chunk, cx) {
            let Slot::Column(id) = slot else { continue };
            let len = cx.chunk(chunk).len();
            if let Some(column) = self.columns[id as usize].as_mut() {
                let before = column.names.capacity();
                column.names.truncate(len);
                column.names.shrink_to(capacity_for(len));
                self.bytes -= 8 * (before - column.names.capacity());
            }
            for tier in 0..TIERS {
                let lanes = self.column(id).map_or(EMPTY, |column| column.lanes[tier]);
                let mut members = Vec::new();
                holders.members(lanes, cx).for_each(|lane| members.push(lane));
                for lane in members {
                    if holders.held(cx.chunk(chunk), tier, lane, cx) == 0 {
                        self.set_member(slot, lane, tier, false, holders, cx);
                    }
                }
            }
        }
    }

    /// The chunk is going: so do its columns.
    pub(super) fn clear(&mut self, chunk: u32, holders: &mut Holders, cx: Context<'_>) {
        if !cx.chunk(chunk).has_columns() {
            return;
        }
        let Some(of) = self.by_chunk.remove(&chunk) else { return };
        for id in of.ids {
            let Some(column) = self.columns[id as usize].take() else { continue };
            self.free.push(id);
            self.bytes -= 8 * column.names.capacity() + 4;
            column.lanes.iter().for_each(|&lanes| holders.sets.release(lanes, &cx.shared.sets, cx.guard));
        }
        of.aliased.iter().for_each(|&lanes| holders.sets.release(lanes, &cx.shared.sets, cx.guard));
        cx.chunk(chunk).set_has_columns(false);
    }

    /// Checks the columns of a chunk and adds their uses of sets.
    #[cfg(test)]
    pub(super) fn check_chunk(
        &self,
        chunk: u32,
        holders: &Holders,
        cx: Context<'_>,
        uses: &mut std::collections::HashMap<u32, u32>,
    ) {
        let Some(of) = self.by_chunk.get(&chunk) else {
            assert!(!cx.chunk(chunk).has_columns());
            return;
        };
        assert!(cx.chunk(chunk).has_columns() && !of.ids.is_empty());
        for tier in 0..TIERS {
            let mut lanes = Vec::new();
            for &id in &of.ids {
                let column = self.column(id).expect("a column in use");
                assert_eq!(column.chunk, chunk);
                assert!(column.lanes != [EMPTY; TIERS]);
                *uses.entry(column.lanes[tier]).or_default() += 1;
                holders.members(column.lanes[tier], cx).for_each(|lane| lanes.push(lane));
            }
            *uses.entry(of.aliased[tier]).or_default() += 1;
            lanes.sort_unstable();
            let mut aliased = Vec::new();
            holders.members(of.aliased[tier], cx).for_each(|lane| aliased.push(lane));
            assert_eq!(lanes, aliased, "a lane goes by one column");
            for lane in lanes {
                assert_ne!(holders.held(cx.chunk(chunk), tier, lane, cx), 0, "a member holds something");
            }
        }
    }
}

/// Adds or removes a lane in a counted set.
fn change(set: &mut u32, lane: u16, member: bool, holders: &mut Holders, cx: Context<'_>) {
    if let Some(to) = holders.sets.step(*set, lane, member, &cx.shared.sets, cx.guard) {
        holders.sets.retain(to);
        holders.sets.release(std::mem::replace(set, to), &cx.shared.sets, cx.guard);
    }
}
