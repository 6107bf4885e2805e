//! Who calls a block what.
//!
//! A chunk has one canonical column of names. Lanes whose engines hash differently share further columns, one for each
//! set of names; a lane goes, in one tier of one chunk, by one column. Owns the columns and the names table.
//! Invariants: a slot (a column at an offset) is live while a lane of the column holds the block in a tier in which it
//! goes by the column; every live slot has exactly one entry in the names table, if there is one, no other has one.

use std::collections::{HashMap, HashSet};

use super::{
    chunk::{CAPACITY, TIERS, capacity_for},
    names::Names,
    residency::Holders,
    sets::EMPTY,
    shared::{CHUNKS, Context},
};

/// A slot's place in the names table: a chunk or a column, and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) u32);

/// Marks handles of columns.
const COLUMN: u32 = 1 << 31;

/// Column ids that stores leave to the division of chunks.
const RESERVE: usize = 1 << 22;

/// Which column of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The names kept with the blocks.
    Canonical,
    /// A column by its id.
    Column(u32),
}

impl Handle {
    pub(super) fn new(chunk: u32, slot: Slot, o: usize) -> Self {
        match slot {
            Slot::Canonical => Self(chunk << 6 | o as u32),
            Slot::Column(id) => Self(COLUMN | id << 6 | o as u32),
        }
    }

    /// Offset of the block.
    #[inline]
    pub(super) fn offset(self) -> usize {
        (self.0 & 63) as usize
    }
}

/// Names that some lanes give the blocks of a chunk.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) chunk: u32,
    /// Lanes that go by it, by tier.
    pub(super) lanes: [u32; TIERS],
    /// Name of the block before the chunk.
    pub(super) parent_name: u64,
    /// By offset; dead slots keep their last value, those past the end were never named.
    pub(super) names: Vec<u64>,
}

/// The columns of one chunk beside the canonical one.
#[derive(Debug, Default)]
pub(super) struct ChunkColumns {
    pub(super) ids: Vec<u32>,
    /// Lanes of all of them, by tier; the others go by the canonical names.
    pub(super) aliased: [u32; TIERS],
}

/// All names.
#[derive(Debug)]
pub(super) struct Columns {
    /// `None` in an index whose blocks are found by their seqs alone.
    pub(super) table: Option<Names>,
    /// Live slots, where there is no table to count them.
    live: usize,
    pub(super) columns: Vec<Option<Column>>,
    pub(super) free: Vec<u32>,
    pub(super) by_chunk: HashMap<u32, ChunkColumns>,
    /// Names that live slots of two blocks share.
    ambiguous: HashSet<u64>,
    pub(super) bytes: usize,
}

impl Columns {
    pub(super) fn new(named: bool) -> Self {
        Self {
            table: named.then(Names::new),
            live: 0,
            columns: Vec::new(),
            free: Vec::new(),
            by_chunk: HashMap::new(),
            ambiguous: HashSet::new(),
            bytes: 0,
        }
    }

    /// Live slots.
    pub(super) fn len(&self) -> usize {
        self.table.as_ref().map_or(self.live, Names::len)
    }

    /// Whether stores may still make columns; divisions of chunks need some too.
    pub(super) fn has_room(&self) -> bool {
        self.columns.len() - self.free.len() < CHUNKS as usize - RESERVE
    }

    /// Estimated bytes of heap.
    pub(super) fn bytes(&self) -> usize {
        self.table.as_ref().map_or(0, Names::bytes)
            + self.bytes
            + self.columns.capacity() * std::mem::size_of::<Option<Column>>()
            + self.by_chunk.capacity() * 53
            + self.ambiguous.capacity() * 9
    }

    pub(super) fn prefetch(&self, name: u64) {
        if let Some(table) = &self.table {
            table.prefetch(name);
        }
    }

    pub(super) fn column(&self, id: u32) -> Option<&Column> {
        self.columns.get(id as usize)?.as_ref()
    }

    /// Chunk and offset of a handle.
    pub(super) fn block_of(&self, handle: Handle) -> Option<(u32, usize)> {
        let id = (handle.0 & !COLUMN) >> 6;
        let chunk = if handle.0 & COLUMN == 0 { id } else { self.column(id)?.chunk };
        Some((chunk, handle.offset()))
    }

    /// The name a slot has.
    #[inline]
    pub(super) fn name(&self, chunk: u32, slot: Slot, o: usize, cx: Context<'_>) -> Option<u64> {
        match slot {
            Slot::Canonical => {
                let chunk = cx.chunk(chunk);
                (o < chunk.len()).then(|| chunk.blocks(cx.guard).map(|blocks| blocks.name(o)))?
            }
            Slot::Column(id) => self.column(id)?.names.get(o).copied(),
        }
    }

    /// Name of the block before the chunk.
    pub(super) fn parent_name(&self, chunk: u32, slot: Slot, cx: Context<'_>) -> u64 {
        match slot {
            Slot::Column(id) => self.column(id).map_or(0, |column| column.parent_name),
            Slot::Canonical => cx.chunk(chunk).parent_name(),
        }
    }

    fn slot(handle: Handle) -> Slot {
        if handle.0 & COLUMN == 0 { Slot::Canonical } else { Slot::Column((handle.0 & !COLUMN) >> 6) }
    }

    /// The column by which `lane` goes in one tier of a chunk; the canonical one while it holds nothing there.
    pub(super) fn slot_of(&self, chunk: u32, lane: u16, tier: usize, holders: &Holders, cx: Context<'_>) -> Slot {
        if !cx.chunk(chunk).has_columns() {
            return Slot::Canonical;
        }
        let Some(of) = self.by_chunk.get(&chunk) else { return Slot::Canonical };
        if !holders.members(of.aliased[tier], cx).has(lane) {
            return Slot::Canonical;
        }
        let goes_by = |&&id: &&u32| {
            self.column(id).is_some_and(|column| {
                column.lanes[tier] == u32::from(lane) || holders.members(column.lanes[tier], cx).has(lane)
            })
        };
        of.ids.iter().find(goes_by).map_or(Slot::Canonical, |&id| Slot::Column(id))
    }

    /// Offsets at which a slot is live.
    pub(super) fn live(&self, chunk: u32, slot: Slot, holders: &Holders, cx: Context<'_>) -> u64 {
        let of = cx.chunk(chunk);
        let columns = if of.has_columns() { self.by_chunk.get(&chunk) } else { None };
        (0..TIERS).fold(0, |live, tier| {
            live | match slot {
                Slot::Canonical => match columns.map(|columns| columns.aliased[tier]) {
                    None | Some(EMPTY) => holders.where_set(of, tier, cx, |set| set != EMPTY),
                    Some(aliased) => {
                        let aliased = holders.members(aliased, cx);
                        holders.where_set(of, tier, cx, |set| holders.members(set, cx).exceeds(aliased))
                    }
                },
                Slot::Column(id) => match self.column(id).map_or(EMPTY, |column| column.lanes[tier]) {
                    EMPTY => 0,
                    lanes => {
                        let lanes = holders.members(lanes, cx);
                        holders.where_set(of, tier, cx, |set| holders.members(set, cx).intersects(lanes))
                    }
                },
            }
        })
    }

    /// The first slot whose name is `name` and that passes.
    fn find_slot(&self, name: u64, cx: Context<'_>, mut pass: impl FnMut(u32, Slot, usize) -> bool) -> Option<Handle> {
        self.table
            .as_ref()?
            .find(name, |handle| {
                let handle = Handle(handle);
                let slot = Self::slot(handle);
                self.block_of(handle)
                    .is_some_and(|(chunk, o)| self.name(chunk, slot, o, cx) == Some(name) && pass(chunk, slot, o))
            })
            .map(Handle)
    }

    /// A block that `lane` holds in `tier` under `name` and that passes.
    #[inline]
    pub(super) fn find(
        &self,
        lane: u16,
        tier: usize,
        name: u64,
        holders: &Holders,
        cx: Context<'_>,
        mut pass: impl FnMut(u32, usize) -> bool,
    ) -> Option<(u32, usize)> {
        let found = self.find_slot(name, cx, |chunk, slot, o| {
            holders.holds(cx.chunk(chunk), tier, o, lane, cx)
                && match slot {
                    Slot::Canonical => {
                        !cx.chunk(chunk).has_columns()
                            || self.slot_of(chunk, lane, tier, holders, cx) == Slot::Canonical
                    }
                    Slot::Column(id) => {
                        self.column(id).is_some_and(|column| holders.members(column.lanes[tier], cx).has(lane))
                    }
                }
                && pass(chunk, o)
        })?;
        self.block_of(found)
    }

    /// The first block with a live slot of this name that passes.
    pub(super) fn find_block(
        &self,
        name: u64,
        cx: Context<'_>,
        mut pass: impl FnMut(u32, usize) -> bool,
    ) -> Option<(u32, usize)> {
        let found = self.find_slot(name, cx, |chunk, _, o| pass(chunk, o))?;
        self.block_of(found)
    }

    /// A column of `chunk`, other than the canonical one, that has `name` at `o` and passes.
    pub(super) fn find_column(
        &self,
        chunk: u32,
        o: usize,
        name: u64,
        cx: Context<'_>,
        mut pass: impl FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        self.find_slot(name, cx, |c, slot, at| c == chunk && at == o && slot != Slot::Canonical && pass(slot))
            .map(Self::slot)
    }

    /// Whether some name belongs to two blocks.
    #[inline]
    pub(super) fn any_ambiguous(&self) -> bool {
        !self.ambiguous.is_empty()
    }

    /// Whether `name` belongs to two blocks.
    pub(super) fn is_ambiguous(&self, name: u64) -> bool {
        self.ambiguous.contains(&name)
    }

    /// A slot became live.
    #[inline]
    pub(super) fn insert(&mut self, name: u64, handle: Handle, cx: Context<'_>) {
        if self.table.is_none() {
            self.live += 1;
            return;
        }
        // Entries of equal tag are few, so the name is compared only for them.
        let block = self.block_of(handle);
        if self.find_slot(name, cx, |chunk, _, o| Some((chunk, o)) != block).is_some() {
            self.ambiguous.insert(name);
        }
        if let Some(table) = &mut self.table {
            table.insert(name, handle.0);
        }
    }

    /// A slot is not live any more.
    #[inline]
    pub(super) fn remove(&mut self, name: u64, handle: Handle, cx: Context<'_>) {
        let Some(table) = &mut self.table else {
            self.live -= 1;
            return;
        };
        table.remove(name, handle.0);
        if self.any_ambiguous() && self.ambiguous.contains(&name) {
            let mut first = None;
            let two = self.find_slot(name, cx, |chunk, _, o| *first.get_or_insert((chunk, o)) != (chunk, o));
            if two.is_none() {
                self.ambiguous.remove(&name);
            }
        }
    }

    /// Sets the name of a slot, which must not be live.
    pub(super) fn set_name(&mut self, chunk: u32, slot: Slot, o: usize, name: u64, cx: Context<'_>) {
        match slot {
            Slot::Canonical => {
                if let Some(blocks) = cx.chunk(chunk).blocks(cx.guard) {
                    blocks.set_name(o, name);
                }
            }
            Slot::Column(id) => {
                let Some(column) = self.columns.get_mut(id as usize).and_then(Option::as_mut) else { return };
                let (len, before) = (column.names.len(), column.names.capacity());
                if o >= len {
                    column.names.reserve_exact(capacity_for(o + 1).min(CAPACITY) - len);
                    column.names.resize(o + 1, 0);
                }
                column.names[o] = name;
                self.bytes += 8 * (column.names.capacity() - before);
            }
        }
    }

    /// Sets the name of the block before the chunk.
    pub(super) fn set_parent_name(&mut self, chunk: u32, slot: Slot, name: u64, cx: Context<'_>) {
        match slot {
            Slot::Canonical => cx.chunk(chunk).set_parent_name(name),
            Slot::Column(id) => {
                if let Some(column) = self.columns.get_mut(id as usize).and_then(Option::as_mut) {
                    column.parent_name = name;
                }
            }
        }
    }

    /// The slots of a chunk.
    pub(super) fn slots(&self, chunk: u32, cx: Context<'_>) -> Vec<Slot> {
        let mut slots = vec![Slot::Canonical];
        if cx.chunk(chunk).has_columns()
            && let Some(of) = self.by_chunk.get(&chunk)
        {
            slots.extend(of.ids.iter().map(|&id| Slot::Column(id)));
        }
        slots
    }

    /// Whether the names table has a slot.
    #[cfg(test)]
    pub(super) fn is_listed(&self, chunk: u32, slot: Slot, o: usize, cx: Context<'_>) -> bool {
        let name = self.name(chunk, slot, o, cx).expect("a live slot has a name");
        if self.table.is_none() {
            return true;
        }
        let two = self.find_slot(name, cx, |c, _, at| (c, at) != (chunk, o)).is_some();
        assert_eq!(self.is_ambiguous(name), two, "shared names are known");
        self.find_slot(name, cx, |c, s, at| (c, s, at) == (chunk, slot, o)).is_some()
    }

    /// Gives back what an empty index does not need.
    pub(super) fn shrink(&mut self) {
        if let Some(table) = &mut self.table {
            table.shrink();
        }
        if self.by_chunk.is_empty() {
            *self = Self { table: self.table.take(), live: self.live, ..Self::new(false) };
        }
    }
}
