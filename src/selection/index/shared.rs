//! What readers and the writer share, and the guard that keeps what a reader has seen alive.

use crossbeam_epoch::Guard;

use super::{arena::Arena, chunk::Chunk, heads::Heads, lanes::LaneTable, residency::ListSlot, sets::SetSlot};

/// Chunk ids are below this; handles of name columns take the other half of the space.
pub(super) const CHUNKS: u32 = 1 << 25;

/// The part of an index that readers see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) heads: Heads,
    pub(super) chunks: Arena<Chunk>,
    pub(super) lists: Arena<ListSlot>,
    pub(super) sets: Arena<SetSlot>,
    pub(super) lanes: LaneTable,
}

impl Shared {
    /// Empty.
    pub(super) fn new() -> Self {
        Self {
            heads: Heads::new(),
            chunks: Arena::new(),
            lists: Arena::new(),
            sets: Arena::new(),
            lanes: LaneTable::new(),
        }
    }
}

/// What every step of the writer needs.
#[derive(Clone, Copy)]
pub(super) struct Context<'g> {
    pub(super) shared: &'g Shared,
    pub(super) guard: &'g Guard,
}

impl<'g> Context<'g> {
    /// A chunk the writer knows is there.
    #[inline]
    pub(super) fn chunk(self, id: u32) -> &'g Chunk {
        self.shared.chunks.view(self.guard).get(id).expect("the writer keeps no handle of a page it dropped")
    }
}

/// One rank's event in one tier.
#[derive(Clone, Copy)]
pub(super) struct Act<'g> {
    pub(super) cx: Context<'g>,
    pub(super) lane: u16,
    pub(super) tier: usize,
}
