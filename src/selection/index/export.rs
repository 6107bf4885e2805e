//! What is held, as runs a receiver can store one by one.
//!
//! Within the device tier a chunk comes after the one that its first block continues, and only what a prompt can reach
//! comes at all: a receiver has no use for device blocks behind a hole. The writer's mutex is held for a slice of
//! chunks at a time; what changes between slices may appear as it was before or after its change.

use std::collections::HashMap;

use super::{
    ExportedRun, StoredBlock, chain,
    chunk::{Chunk, TIERS},
    residency::{mask, offsets},
    shared::Context,
    writer::{DEVICE, Writer},
};
use crate::selection::identity::Tier;

/// Chunks visited while the mutex is held once.
const SLICE: usize = 64;
/// Blocks emitted, after which the mutex is given up.
const BLOCKS: usize = 1 << 16;
/// Passes that emit: what is divided meanwhile may move to ids that a pass has left behind.
const ROUNDS: u32 = 4;

/// A chunk that is out.
#[derive(Debug)]
struct Out {
    /// Its head seq: the id may belong to another chunk meanwhile.
    seq: u64,
    /// How many of its leading blocks each lane reaches on the device.
    reach: Vec<(u16, u8)>,
}

/// What a pass over the chunks does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pass {
    /// Looks for the block before each chunk by the names that lanes give it.
    #[default]
    Link,
    /// Looks for those that go by other names now, by their seqs.
    Seek,
    /// Emits.
    Emit,
}

/// How far an export has come.
#[derive(Debug, Default)]
pub(super) struct Export {
    pass: Pass,
    /// Where the pass goes on.
    at: u32,
    /// Blocks that chunks continue and names do not lead to, by seq, where they are known.
    sought: HashMap<u64, Option<(u32, usize)>>,
    /// Chunks that are out, by id.
    out: HashMap<u32, Out>,
    /// Chunks that come out next, the last one first.
    path: Vec<Step>,
    /// Device blocks that no prompt can reach come out too.
    unreachable: bool,
    /// Emitting passes that are over, and whether the one at work found anything.
    rounds: u32,
    found: bool,
}

/// A chunk that comes out, with its head seq and the block it continues.
#[derive(Debug)]
struct Step {
    id: u32,
    seq: u64,
    before: Option<(u32, usize)>,
}

impl Export {
    /// An export that leaves out nothing.
    pub(super) fn of_everything() -> Self {
        Self { unreachable: true, ..Self::default() }
    }

    /// Adds the next runs to `runs`. `false` when everything is out.
    pub(super) fn slice(&mut self, writer: &Writer, cx: Context<'_>, runs: &mut Vec<ExportedRun>) -> bool {
        let mut left = SLICE;
        let full = |runs: &Vec<ExportedRun>| runs.iter().map(|run| run.blocks.len()).sum::<usize>() > BLOCKS;
        loop {
            while left > 0
                && let Some(step) = self.path.pop()
            {
                left -= 1;
                self.emit(&step, writer, cx, runs);
                if full(runs) {
                    return true;
                }
            }
            if left == 0 {
                return true;
            }
            if self.at >= writer.chunks.end() {
                break;
            }
            let id = self.at;
            self.at += 1;
            if writer.chunks.has_page(id) && cx.chunk(id).len() > 0 {
                left -= 1;
                match self.pass {
                    Pass::Link => self.link(id, writer, cx),
                    Pass::Seek => self.seek(id, cx),
                    Pass::Emit => self.find_path(id, writer, cx),
                }
            }
        }
        self.at = 0;
        self.pass = match self.pass {
            Pass::Link if !self.sought.is_empty() => Pass::Seek,
            Pass::Link | Pass::Seek => Pass::Emit,
            Pass::Emit => {
                self.rounds += 1;
                if !std::mem::take(&mut self.found) || self.rounds == ROUNDS {
                    emit_waiting(writer, runs);
                    return false;
                }
                Pass::Emit
            }
        };
        true
    }

    fn link(&mut self, id: u32, writer: &Writer, cx: Context<'_>) {
        if !is_root(cx.chunk(id), cx) && before_by_name(id, writer, cx).is_none() {
            self.sought.insert(cx.chunk(id).parent_seq(), None);
        }
    }

    fn seek(&mut self, id: u32, cx: Context<'_>) {
        let chunk = cx.chunk(id);
        let Some(data) = chunk.blocks(cx.guard) else { return };
        let mut seq = chunk.head_seq();
        for o in 0..chunk.len() {
            if o > 0 {
                seq = chain(seq, data.local(o));
            }
            if let Some(place) = self.sought.get_mut(&seq) {
                *place = Some((id, o));
            }
        }
    }

    /// The block before a chunk's first.
    fn before(&self, id: u32, writer: &Writer, cx: Context<'_>) -> Option<(u32, usize)> {
        let chunk = cx.chunk(id);
        if is_root(chunk, cx) {
            return None;
        }
        before_by_name(id, writer, cx).or_else(|| {
            let (parent, o) = (*self.sought.get(&chunk.parent_seq())?)?;
            let there = writer.chunks.has_page(parent) && o < cx.chunk(parent).len();
            (there && writer.seq_at(parent, o, cx) == chunk.parent_seq()).then_some((parent, o))
        })
    }

    /// Puts a chunk that is not out yet on the path, before it the chunks it continues.
    fn find_path(&mut self, id: u32, writer: &Writer, cx: Context<'_>) {
        let mut next = Some((id, 0));
        while let Some((id, _)) = next {
            let seq = cx.chunk(id).head_seq();
            if self.out.get(&id).is_some_and(|out| out.seq == seq) {
                break;
            }
            let before = self.before(id, writer, cx);
            self.path.push(Step { id, seq, before });
            // Known from here on, so that a path cannot run in a circle.
            self.out.insert(id, Out { seq, reach: Vec::new() });
            self.found = true;
            next = before;
        }
    }

    /// Emits the runs of one chunk and notes what lanes reach of it on the device.
    fn emit(&mut self, step: &Step, writer: &Writer, cx: Context<'_>, runs: &mut Vec<ExportedRun>) {
        let &Step { id, seq, before } = step;
        if !writer.chunks.has_page(id) || cx.chunk(id).len() == 0 || cx.chunk(id).head_seq() != seq {
            return;
        }
        let chunk = cx.chunk(id);
        let from = Source { id, chunk, before, writer, cx };
        let candidates = match before {
            Some((parent, o)) => self.out.get(&parent).map_or_else(Vec::new, |out| {
                out.reach.iter().filter(|&&(_, n)| usize::from(n) > o).map(|&(lane, _)| lane).collect()
            }),
            None if is_root(chunk, cx) => from.holders(DEVICE),
            None => Vec::new(),
        };
        let mut reach = Vec::new();
        for lane in candidates {
            let n = writer.holders.held(chunk, DEVICE, lane, cx).trailing_ones();
            if n > 0 {
                reach.push((lane, n as u8));
                from.emit(lane, DEVICE, mask(0, n as usize), runs);
            }
        }
        if self.unreachable {
            for lane in from.holders(DEVICE) {
                let reached = reach.iter().find(|&&(known, _)| known == lane).map_or(0, |&(_, n)| usize::from(n));
                let held = writer.holders.held(chunk, DEVICE, lane, cx);
                from.emit(lane, DEVICE, held & !mask(0, reached), runs);
            }
        }
        for tier in 1..TIERS {
            for lane in from.holders(tier) {
                from.emit(lane, tier, writer.holders.held(chunk, tier, lane, cx), runs);
            }
        }
        if let Some(out) = self.out.get_mut(&id) {
            out.reach = reach;
        }
    }
}

/// Whether a chunk begins prompts.
fn is_root(chunk: &Chunk, cx: Context<'_>) -> bool {
    chunk.blocks(cx.guard).is_some_and(|data| data.local(0) == chunk.head_seq())
}

/// The block before a chunk's first, by a name that it had for a lane of the chunk.
fn before_by_name(id: u32, writer: &Writer, cx: Context<'_>) -> Option<(u32, usize)> {
    let seq = cx.chunk(id).parent_seq();
    writer.columns.slots(id, cx).into_iter().find_map(|slot| {
        let name = writer.columns.parent_name(id, slot, cx);
        writer.columns.find_block(name, cx, |other, o| writer.seq_at(other, o, cx) == seq)
    })
}

/// Blocks of lower tiers that wait for their parent.
fn emit_waiting(writer: &Writer, runs: &mut Vec<ExportedRun>) {
    for (rank, lane) in writer.lanes.ranks() {
        let waiting = writer.lanes.states[lane as usize].waiting.iter().flat_map(|waiting| waiting.iter());
        for held in waiting.filter(|held| held.tier as usize != DEVICE) {
            runs.push(ExportedRun {
                rank,
                tier: Tier::ALL[held.tier as usize],
                parent: Some(held.parent),
                blocks: vec![held.block],
            });
        }
    }
}

/// A chunk that is coming out.
struct Source<'a> {
    id: u32,
    chunk: &'a Chunk,
    before: Option<(u32, usize)>,
    writer: &'a Writer,
    cx: Context<'a>,
}

impl Source<'_> {
    /// Lanes that hold a block in a tier, sorted.
    fn holders(&self, tier: usize) -> Vec<u16> {
        let Self { writer, chunk, cx, .. } = *self;
        let mut lanes = Vec::new();
        writer.holders.where_set(chunk, tier, cx, |set| {
            writer.holders.members(set, cx).for_each(|lane| lanes.push(lane));
            false
        });
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    }

    /// Emits runs of `held` blocks for one lane and tier.
    fn emit(&self, lane: u16, tier: usize, held: u64, runs: &mut Vec<ExportedRun>) {
        let Self { id, chunk, writer, cx, .. } = *self;
        let Some(rank) = writer.lanes.states[lane as usize].rank else { return };
        let Some(data) = chunk.blocks(cx.guard) else { return };
        let slot = writer.columns.slot_of(id, lane, tier, &writer.holders, cx);
        let named = |o: usize| writer.columns.name(id, slot, o, cx).unwrap_or_else(|| data.name(o));
        let known = |(id, o): (u32, usize)| name_in_any_tier(id, lane, tier, o, writer, cx);
        let mut held = held;
        while held != 0 {
            let from = held.trailing_zeros() as usize;
            let n = (held >> from).trailing_ones() as usize;
            held &= !mask(from, n);
            let parent = if from > 0 {
                Some(known((id, from - 1)).unwrap_or_else(|| named(from - 1)))
            } else {
                let given = (!is_root(chunk, cx)).then(|| writer.columns.parent_name(id, slot, cx));
                self.before.and_then(known).or(given)
            };
            let blocks = offsets(mask(from, n)).map(|o| StoredBlock { name: named(o), local: data.local(o) }).collect();
            runs.push(ExportedRun { rank, tier: Tier::ALL[tier], parent, blocks });
        }
    }
}

/// What `lane` calls a block, in `tier` if it holds it there, else in another.
pub(super) fn name_in_any_tier(
    id: u32,
    lane: u16,
    tier: usize,
    o: usize,
    writer: &Writer,
    cx: Context<'_>,
) -> Option<u64> {
    let tiers = std::iter::once(tier).chain((0..TIERS).filter(|&other| other != tier));
    tiers
        .filter(|&tier| writer.holders.holds(cx.chunk(id), tier, o, lane, cx))
        .find_map(|tier| writer.columns.name(id, writer.columns.slot_of(id, lane, tier, &writer.holders, cx), o, cx))
}
