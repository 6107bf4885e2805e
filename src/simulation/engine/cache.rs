//! The prefix cache of a simulated engine: which blocks are reusable, who pins them, and what goes first.
//!
//! Invariants: `free + idle + pinned + reserved copies = capacity`; a pinned block is never evicted; an idle one is in
//! the list exactly once, and the list is in order of release, oldest first.

use hashbrown::HashMap;

/// Index of a block in the slab.
type Slot = u32;

/// No slot: the end of the list.
const NONE: Slot = Slot::MAX;

struct Block {
    id: u64,
    /// Requests that hold it; 0: idle, and in the list.
    pins: u32,
    older: Slot,
    newer: Slot,
}

pub(super) struct PrefixCache {
    /// Blocks that hold nothing and belong to nobody.
    free: u32,
    /// Cached blocks nobody pins.
    idle: u32,
    blocks: Vec<Block>,
    vacant: Vec<Slot>,
    index: HashMap<u64, Slot>,
    oldest: Slot,
    newest: Slot,
}

impl PrefixCache {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            free: capacity,
            idle: 0,
            blocks: Vec::new(),
            vacant: Vec::new(),
            index: HashMap::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Takes room for `total` blocks of which the cached beginning of `chain` is shared and pinned, or changes nothing
    /// when there is not enough.
    ///
    /// Fills `held`, which comes empty, with the shared blocks in order, and appends to `evicted` what had to go.
    /// `total` is more than `chain` has blocks: the output needs room as well.
    pub(super) fn reserve(&mut self, chain: &[u64], total: u32, held: &mut Vec<Slot>, evicted: &mut Vec<u64>) -> bool {
        let mut wakes = 0;
        for id in chain {
            let Some(&slot) = self.index.get(id) else { break };
            wakes += u32::from(self.block(slot).pins == 0);
            held.push(slot);
        }
        let own = total - held.len() as u32;
        if u64::from(own) > u64::from(self.free) + u64::from(self.idle - wakes) {
            held.clear();
            return false;
        }
        for &slot in held.iter() {
            if self.block(slot).pins == 0 {
                self.unlink(slot);
            }
            self.blocks[slot as usize].pins += 1;
        }
        while self.free < own {
            evicted.push(self.evict());
        }
        self.free -= own;
        true
    }

    /// Makes a block reusable that its request has room for, pinned by it. `None`: it is cached already, and the copy
    /// stays the request's own.
    pub(super) fn store(&mut self, id: u64) -> Option<Slot> {
        let hashbrown::hash_map::Entry::Vacant(entry) = self.index.entry(id) else { return None };
        let block = Block { id, pins: 1, older: NONE, newer: NONE };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.blocks[slot as usize] = block;
                slot
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as Slot
            }
        };
        entry.insert(slot);
        Some(slot)
    }

    /// Gives back what a request held: the blocks it pinned, in the order of its prompt, and `own` others.
    pub(super) fn release(&mut self, held: &[Slot], own: u32) {
        // The tail first: it is of no use without the head, so it is the older.
        for &slot in held.iter().rev() {
            let block = &mut self.blocks[slot as usize];
            block.pins -= 1;
            if block.pins == 0 {
                block.older = self.newest;
                block.newer = NONE;
                match self.newest {
                    NONE => self.oldest = slot,
                    newest => self.blocks[newest as usize].newer = slot,
                }
                self.newest = slot;
                self.idle += 1;
            }
        }
        self.free += own;
    }

    fn block(&self, slot: Slot) -> &Block {
        &self.blocks[slot as usize]
    }

    /// Removes the oldest idle block and leaves its room free.
    fn evict(&mut self) -> u64 {
        let slot = self.oldest;
        let id = self.block(slot).id;
        self.unlink(slot);
        self.index.remove(&id);
        self.vacant.push(slot);
        self.free += 1;
        id
    }

    fn unlink(&mut self, slot: Slot) {
        let Block { older, newer, .. } = self.blocks[slot as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        self.idle -= 1;
    }
}
