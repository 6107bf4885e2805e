//! The active prompts of all ranks of a partition: one forest of runs of blocks, owners counted for each rank.
//!
//! A run is a piece of some prompt that every owner of it passes through whole. Invariants: a child's owners are among
//! its parent's; a run without owners does not exist; a run has at most [`MAX_RUN`] blocks; the id of a run is stable
//! at its *end* (a split gives the new id to the upper part), so bookings keep the id of the run they end in.
//!
//! A sequence hash is taken to fix its whole prefix (as the reference does): two runs that agree on their last compared
//! block are taken to agree on all before it.

use hashbrown::HashMap;

use super::{
    Slot,
    bookings::NONE,
    owners::{FEW, Owners},
};
use crate::selection::slab::Slab;

/// Most blocks of a run; bounds the copy that a split or a merge makes. Tests meet the edge with short prompts.
pub(super) const MAX_RUN: usize = if cfg!(test) { 16 } else { 1024 };

const ROOT: u32 = u32::MAX;

/// What a booking or its end changed for its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The rank now holds this many more blocks.
    Held(u32),
    /// The rank holds this many fewer.
    Left(u32),
    /// The weights of `booking` at its blocks `start..end` count from now on: nobody else on the rank holds them.
    Applies { booking: u32, start: u32, end: u32 },
    /// They no longer count.
    Ceases { booking: u32, start: u32, end: u32 },
}

#[derive(Debug)]
struct Run {
    blocks: Box<[u64]>,
    parent: u32,
    children: u32,
    /// XOR of the ids of the children: the only child's id when there is one.
    child_ids: u32,
    /// Live bookings of all ranks that pass through.
    bookings: u32,
    owners: Owners,
}

/// One run a prompt passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::selection) struct Passed {
    pub(super) run: u32,
    /// Blocks of the prompt matched at the end of it.
    pub(in crate::selection) depth: u32,
}

/// Active prompts.
#[derive(Debug)]
pub(super) struct Forest {
    runs: Slab<Run>,
    /// By parent and first block.
    heads: HashMap<(u32, u64), u32>,
}

/// Blocks at which `run` and `prompt` agree; their first ones are known to.
fn matching(run: &[u64], prompt: &[u64]) -> usize {
    let both = run.len().min(prompt.len());
    if run[both - 1] == prompt[both - 1] {
        return both;
    }
    run.iter().zip(prompt).take_while(|(a, b)| a == b).count()
}

impl Forest {
    pub(super) fn new() -> Self {
        Self { runs: Slab::new(), heads: HashMap::new() }
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn owners(&self, run: u32) -> &Owners {
        &self.runs[run].owners
    }

    /// The runs that `prompt` shares with live prompts, from the root down.
    pub(super) fn walk(&self, prompt: &[u64], out: &mut Vec<Passed>) {
        out.clear();
        let (mut parent, mut at) = (ROOT, 0);
        while let Some(first) = prompt.get(at) {
            let Some(&run) = self.heads.get(&(parent, *first)) else { break };
            let blocks = &self.runs[run].blocks;
            let matched = matching(blocks, &prompt[at..]);
            at += matched;
            out.push(Passed { run, depth: at as u32 });
            if matched < blocks.len() {
                break;
            }
            parent = run;
        }
    }

    /// Leading blocks of `prompt` that live prompts of `slot` hold.
    pub(super) fn shared(&self, slot: Slot, prompt: &[u64]) -> u32 {
        let (mut parent, mut at) = (ROOT, 0);
        while let Some(first) = prompt.get(at) {
            let Some(&run) = self.heads.get(&(parent, *first)) else { break };
            let run_ref = &self.runs[run];
            if !run_ref.owners.contains(slot) {
                break;
            }
            let matched = matching(&run_ref.blocks, &prompt[at..]);
            at += matched;
            if matched < run_ref.blocks.len() {
                break;
            }
            parent = run;
        }
        at as u32
    }

    /// Adds a prompt of `slot`; returns the run it ends in, `None` for an empty prompt.
    pub(super) fn book(&mut self, slot: Slot, prompt: &[u64], mut changed: impl FnMut(Change)) -> Option<u32> {
        let (mut parent, mut at) = (ROOT, 0);
        while let Some(&first) = prompt.get(at) {
            let Some(&found) = self.heads.get(&(parent, first)) else {
                parent = self.append(slot, parent, &prompt[at..]);
                changed(Change::Held((prompt.len() - at) as u32));
                break;
            };
            let matched = matching(&self.runs[found].blocks, &prompt[at..]);
            let run = if matched < self.runs[found].blocks.len() { self.split(found, matched) } else { found };
            let (start, end) = (at as u32, (at + matched) as u32);
            let run_ref = &mut self.runs[run];
            run_ref.bookings += 1;
            match run_ref.owners.add(slot) {
                None => changed(Change::Held(matched as u32)),
                Some(before) => {
                    if before.bookings == 1 && before.weighted != NONE {
                        changed(Change::Ceases { booking: before.weighted, start, end });
                    }
                }
            }
            at += matched;
            parent = run;
        }
        (parent != ROOT).then_some(parent)
    }

    /// Takes away the prompt of `booking`, `len` blocks that end in `last`.
    pub(super) fn free(&mut self, slot: Slot, booking: u32, last: u32, len: u32, mut changed: impl FnMut(Change)) {
        let (mut run, mut end) = (last, len);
        while run != ROOT {
            let run_ref = &mut self.runs[run];
            let (parent, blocks) = (run_ref.parent, run_ref.blocks.len() as u32);
            let start = end - blocks;
            run_ref.bookings -= 1;
            let owner = run_ref.owners.get_mut(slot).expect("a live booking owns every run of its prompt");
            if owner.weighted == booking {
                owner.weighted = NONE;
                if owner.bookings == 1 {
                    changed(Change::Ceases { booking, start, end });
                }
            }
            owner.bookings -= 1;
            match (owner.bookings, owner.weighted) {
                (0, _) => {
                    run_ref.owners.remove(slot);
                    changed(Change::Left(blocks));
                }
                (1, other) if other != NONE => changed(Change::Applies { booking: other, start, end }),
                _ => {}
            }
            if run_ref.bookings == 0 {
                self.unlink(run);
            } else if run_ref.children == 1 {
                self.merge_into_child(run);
            }
            (run, end) = (parent, start);
        }
    }

    /// The prompt that ends in a run.
    pub(super) fn prompt(&self, last: u32) -> Vec<u64> {
        let mut pieces = Vec::new();
        let mut run = last;
        while run != ROOT {
            pieces.push(&*self.runs[run].blocks);
            run = self.runs[run].parent;
        }
        pieces.into_iter().rev().flatten().copied().collect()
    }

    /// Marks the blocks that only `booking` holds on its rank, from the end of its prompt upwards, as weighted by it.
    /// Returns where they begin, and tells of weights of the booking that counted there until now.
    pub(super) fn weigh_tail(
        &mut self,
        slot: Slot,
        booking: u32,
        last: u32,
        len: u32,
        mut changed: impl FnMut(Change),
    ) -> u32 {
        let (mut run, mut end) = (last, len);
        while run != ROOT {
            let run_ref = &mut self.runs[run];
            let owner = run_ref.owners.get_mut(slot).expect("a live booking owns every run of its prompt");
            if owner.bookings != 1 {
                break;
            }
            let start = end - run_ref.blocks.len() as u32;
            if std::mem::replace(&mut owner.weighted, booking) == booking {
                changed(Change::Ceases { booking, start, end });
            }
            (run, end) = (run_ref.parent, start);
        }
        end
    }

    /// New runs with the single owner `slot` under `parent`; returns the last.
    fn append(&mut self, slot: Slot, mut parent: u32, blocks: &[u64]) -> u32 {
        for piece in blocks.chunks(MAX_RUN) {
            let run = self.runs.insert(Run {
                blocks: piece.into(),
                parent,
                children: 0,
                child_ids: 0,
                bookings: 1,
                owners: Owners::one(slot),
            });
            self.heads.insert((parent, piece[0]), run);
            self.count_child(parent, run, true);
            parent = run;
        }
        parent
    }

    /// Cuts the first `at` blocks off `run` into a new run above it, whose id is returned.
    fn split(&mut self, run: u32, at: usize) -> u32 {
        let lower = &mut self.runs[run];
        let (upper_blocks, rest) = lower.blocks.split_at(at);
        let (upper_blocks, rest): (Box<[u64]>, Box<[u64]>) = (upper_blocks.into(), rest.into());
        let (parent, first, rest_first) = (lower.parent, upper_blocks[0], rest[0]);
        lower.blocks = rest;
        let (bookings, owners) = (lower.bookings, lower.owners.clone());
        let upper =
            self.runs.insert(Run { blocks: upper_blocks, parent, children: 1, child_ids: run, bookings, owners });
        self.runs[run].parent = upper;
        self.heads.insert((parent, first), upper);
        self.heads.insert((upper, rest_first), run);
        if parent != ROOT {
            self.runs[parent].child_ids ^= run ^ upper;
        }
        upper
    }

    /// Joins a run with its only child when the same bookings pass through both. The child's id survives.
    fn merge_into_child(&mut self, run: u32) {
        let upper = &self.runs[run];
        let child = upper.child_ids;
        let lower = &self.runs[child];
        // Copying large owner sets back and forth would cost more than the extra run.
        if lower.bookings != upper.bookings
            || upper.owners.len() > FEW
            || upper.blocks.len() + lower.blocks.len() > MAX_RUN
        {
            return;
        }
        let upper = self.runs.remove(run).expect("the run was just read");
        let lower = &mut self.runs[child];
        self.heads.remove(&(run, lower.blocks[0]));
        self.heads.insert((upper.parent, upper.blocks[0]), child);
        lower.blocks = [&*upper.blocks, &*lower.blocks].concat().into();
        lower.parent = upper.parent;
        if upper.parent != ROOT {
            self.runs[upper.parent].child_ids ^= run ^ child;
        }
    }

    fn unlink(&mut self, run: u32) {
        let gone = self.runs.remove(run).expect("the run was just read");
        self.heads.remove(&(gone.parent, gone.blocks[0]));
        self.count_child(gone.parent, run, false);
        if self.heads.capacity() > 64 && self.heads.capacity() / 8 > self.heads.len() {
            self.heads.shrink_to(self.heads.len() * 2);
        }
    }

    fn count_child(&mut self, parent: u32, child: u32, added: bool) {
        if parent != ROOT {
            let parent = &mut self.runs[parent];
            parent.child_ids ^= child;
            if added { parent.children += 1 } else { parent.children -= 1 }
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.runs.capacity() + self.heads.capacity()
    }

    /// Checks the invariants, and returns the bytes of heap the blocks take.
    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        let mut bytes = 0;
        assert_eq!(self.heads.len(), self.runs.len());
        let mut children: HashMap<u32, (u32, u32)> = HashMap::new();
        for (id, run) in self.runs.iter() {
            let of_parent = children.entry(run.parent).or_default();
            *of_parent = (of_parent.0 + 1, of_parent.1 ^ id);
        }
        for (id, run) in self.runs.iter() {
            assert!(!run.blocks.is_empty() && run.blocks.len() <= MAX_RUN);
            assert_eq!(self.heads.get(&(run.parent, run.blocks[0])), Some(&id));
            assert!(run.bookings > 0 && run.owners.len() > 0);
            assert_eq!((run.children, run.child_ids), children.get(&id).copied().unwrap_or_default());
            run.owners.for_each(|slot| {
                assert!(run.parent == ROOT || self.runs[run.parent].owners.contains(slot));
            });
            bytes += run.blocks.len() * 8;
        }
        bytes
    }
}
