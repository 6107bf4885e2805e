//! Readers: who holds leading blocks of a prompt.
//!
//! A lookup walks the prompt chunk by chunk and intersects the sets of holders. Every chunk is read under its version;
//! at the end all versions are compared once more, so that the answer is one state of the whole path; when that fails
//! too often, the writer is stopped for one walk. Invariant: what a walk dereferences was reached from pointers loaded
//! under its guard.

use crossbeam_epoch::Guard;

use super::{
    LaneSet, MatchClass, Matches, TierBlocks,
    chunk::{Chunk, TIERS},
    residency::Word,
    sets::{EMPTY, SetData, SetRef},
    shared::Shared,
    sync::{AtomicU64, Ordering, Spin},
};

/// Walks beside the writer until the path stood still during one. After that the writer waits for one walk.
const ATTEMPTS: usize = 16;

/// Holders of a chunk in one tier as a lookup saw them.
#[derive(Clone, Copy, Debug)]
enum Held<'g> {
    /// All blocks alike.
    By(SetRef<'g>),
    /// These of `Scratch::segments`.
    Segments(u32, u32),
}

/// A chunk on the prompt's path.
#[derive(Clone, Copy, Debug)]
struct Visit<'g> {
    chunk: &'g Chunk,
    version: u32,
    /// Position of its first block in the prompt.
    position: usize,
    /// Blocks of it that the prompt has too, one at least.
    matched: usize,
    held: [Held<'g>; TIERS],
}

/// Memory a lookup reuses. Empty between lookups.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    path: Vec<Visit<'static>>,
    segments: Vec<(u8, SetRef<'static>)>,
    lists: Vec<Vec<u16>>,
    bits: Vec<Vec<u64>>,
}

/// The allocation of an empty vector for elements of the same layout.
fn reuse<A, B>(mut empty: Vec<A>) -> Vec<B> {
    empty.clear();
    empty.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

/// Leading elements that `prompt` and `chunk` share.
#[inline]
fn common(prompt: &[u64], chunk: &[AtomicU64]) -> usize {
    prompt
        .iter()
        .zip(chunk)
        .position(|(local, held)| *local != held.load(Ordering::Relaxed))
        .unwrap_or(prompt.len().min(chunk.len()))
}

/// Pieces of a chunk on the path that are held alike: offsets and holders.
fn pieces<'a, 'g>(
    visit: &'a Visit<'g>,
    tier: usize,
    segments: &'a [(u8, SetRef<'g>)],
) -> impl Iterator<Item = (usize, usize, SetRef<'g>)> + 'a {
    let (whole, part) = match visit.held[tier] {
        Held::By(set) => (Some((0, visit.matched, set)), &segments[..0]),
        Held::Segments(from, to) => (None, &segments[from as usize..to as usize]),
    };
    let parts = part.iter().enumerate().map(move |(k, &(from, set))| {
        let end = part.get(k + 1).map_or(visit.matched, |next| next.0 as usize);
        (from as usize, end.min(visit.matched), set)
    });
    whole.into_iter().chain(parts.take_while(|&(from, ..)| from < visit.matched))
}

/// One lookup at work.
struct Walk<'s, 'g> {
    shared: &'g Shared,
    guard: &'g Guard,
    locals: &'s [u64],
    seqs: &'s [u64],
    path: Vec<Visit<'g>>,
    segments: Vec<(u8, SetRef<'g>)>,
    pool: &'s mut Pool,
    classes: &'s mut Vec<MatchClass>,
}

/// Vectors for lanes.
#[derive(Default)]
struct Pool {
    lists: Vec<Vec<u16>>,
    bits: Vec<Vec<u64>>,
}

impl Pool {
    fn list(&mut self) -> Vec<u16> {
        self.lists.pop().unwrap_or_default()
    }

    fn bits(&mut self) -> Vec<u64> {
        self.bits.pop().unwrap_or_default()
    }

    fn give(&mut self, lanes: LaneSet) {
        match lanes {
            LaneSet::List(mut list) => {
                list.clear();
                self.lists.push(list);
            }
            LaneSet::Bits(mut bits) => {
                bits.clear();
                self.bits.push(bits);
            }
        }
    }

    fn copy(&mut self, set: SetRef<'_>) -> LaneSet {
        if let SetRef::Many(SetData::Bits(words)) = set {
            let mut bits = self.bits();
            bits.extend_from_slice(words);
            return LaneSet::Bits(bits);
        }
        let mut list = self.list();
        set.for_each(|lane| list.push(lane));
        LaneSet::List(list)
    }
}

/// Keeps the members of `alive` that are in `set`; returns the others, if any.
fn retain(alive: &mut LaneSet, set: SetRef<'_>, pool: &mut Pool) -> Option<LaneSet> {
    match (&mut *alive, set) {
        (LaneSet::List(lanes), _) => {
            let first = lanes.iter().position(|&lane| !set.has(lane))?;
            let mut dropped = pool.list();
            let mut kept = first;
            for k in first..lanes.len() {
                if set.has(lanes[k]) {
                    lanes[kept] = lanes[k];
                    kept += 1;
                } else {
                    dropped.push(lanes[k]);
                }
            }
            lanes.truncate(kept);
            Some(LaneSet::List(dropped))
        }
        (LaneSet::Bits(words), SetRef::Many(SetData::Bits(others))) => {
            let other = |k: usize| others.get(k).copied().unwrap_or(0);
            let gone: usize = words.iter().enumerate().map(|(k, word)| (word & !other(k)).count_ones() as usize).sum();
            if gone == 0 {
                return None;
            }
            // Whichever is shorter.
            if gone * 4 < words.len() * 8 {
                let mut dropped = pool.list();
                for (k, word) in words.iter_mut().enumerate() {
                    let mut left = *word & !other(k);
                    *word &= other(k);
                    while left != 0 {
                        dropped.push((k * 64) as u16 + left.trailing_zeros() as u16);
                        left &= left - 1;
                    }
                }
                return Some(LaneSet::List(dropped));
            }
            let mut dropped = pool.bits();
            for (k, word) in words.iter_mut().enumerate() {
                dropped.push(*word & !other(k));
                *word &= other(k);
            }
            Some(LaneSet::Bits(dropped))
        }
        (LaneSet::Bits(words), _) => {
            let mut kept = pool.list();
            set.for_each(|lane| {
                let (word, bit) = (lane as usize / 64, 1 << (lane % 64));
                if words.get(word).is_some_and(|word| word & bit != 0) {
                    words[word] &= !bit;
                    kept.push(lane);
                }
            });
            let dropped = std::mem::replace(alive, LaneSet::List(kept));
            if dropped.is_empty() {
                pool.give(dropped);
                return None;
            }
            Some(dropped)
        }
    }
}

impl<'g> Walk<'_, 'g> {
    /// The chunk that begins with block `position` of the prompt, read under its version.
    #[inline]
    fn visit(&mut self, position: usize) -> Option<Visit<'g>> {
        let Self { shared, guard, locals, seqs, .. } = *self;
        let segments = &mut self.segments;
        let seq = seqs[position];
        shared.heads.find(seq, guard, |id| {
            let mut spin = Spin::default();
            let before = segments.len();
            loop {
                let chunk = shared.chunks.view(guard).get(id)?;
                let Some(glimpse) = chunk.glimpse(guard) else {
                    spin.wait();
                    continue;
                };
                let glimpse = glimpse.filter(|glimpse| glimpse.head_seq == seq)?;
                let len = glimpse.len;
                let whole = seqs.get(position + len - 1) == Some(&glimpse.last_seq);
                let matched = if whole { len } else { 1 + common(&locals[position + 1..], &glimpse.locals[1..len]) };
                segments.truncate(before);
                let held = glimpse.residency.map(|word| resolve(word, matched, segments, shared, guard));
                if chunk.unchanged(glimpse.version)
                    && let [Some(device), Some(host), Some(disk), Some(external)] = held
                {
                    let held = [device, host, disk, external];
                    return Some(Visit { chunk, version: glimpse.version, position, matched, held });
                }
                spin.wait();
            }
        })
    }

    /// Walks the device tier and remembers the path for the others. Returns its length.
    fn device(&mut self) -> usize {
        let mut alive: Option<LaneSet> = None;
        let mut last: Option<SetRef<'g>> = None;
        let mut position = 0;
        while position < self.seqs.len() {
            let Some(visit) = self.visit(position) else { break };
            self.path.push(visit);
            let lower = visit.held[1..].iter().any(|held| !matches!(held, Held::By(SetRef::Empty)));
            for (from, _, set) in pieces(&visit, 0, &self.segments) {
                if last.is_some_and(|last| last.same(set)) {
                    continue;
                }
                last = Some(set);
                match &mut alive {
                    None => alive = Some(self.pool.copy(set)),
                    Some(alive) => {
                        if let Some(lanes) = retain(alive, set, self.pool) {
                            let blocks = TierBlocks { device: (position + from) as u32, ..TierBlocks::default() };
                            self.classes.push(MatchClass { blocks, lanes });
                        }
                    }
                }
            }
            position += visit.matched;
            if !lower && alive.as_ref().is_none_or(LaneSet::is_empty) {
                break;
            }
        }
        if let Some(lanes) = alive {
            if lanes.is_empty() {
                self.pool.give(lanes);
            } else {
                let blocks = TierBlocks { device: position as u32, ..TierBlocks::default() };
                self.classes.push(MatchClass { blocks, lanes });
            }
        }
        self.classes.reverse();
        position
    }

    /// Whether the path is as it was when it was walked.
    fn stood_still(&self) -> bool {
        self.path.iter().all(|visit| visit.chunk.unchanged(visit.version))
    }

    /// Continues every class through the lower tiers, each from where the tier before stopped.
    fn lower(&mut self, length: usize) {
        let mut known: Option<Vec<u64>> = None;
        for tier in 1..TIERS {
            let empty = |visit: &Visit<'_>| matches!(visit.held[tier], Held::By(SetRef::Empty));
            if self.path.iter().all(empty) {
                continue;
            }
            let known = known.get_or_insert_with(|| members(self.classes));
            let mut classes = std::mem::take(self.classes);
            // Lanes with nothing in the tiers before begin at the root.
            let first = self.path.first().and_then(|visit| pieces(visit, tier, &self.segments).next());
            if let Some((_, _, set)) = first {
                let mut begin = self.pool.list();
                set.for_each(|lane| {
                    let (word, bit) = (lane as usize / 64, 1 << (lane % 64));
                    if known.len() <= word {
                        known.resize(word + 1, 0);
                    }
                    if known[word] & bit == 0 {
                        known[word] |= bit;
                        begin.push(lane);
                    }
                });
                if begin.is_empty() {
                    self.pool.give(LaneSet::List(begin));
                } else {
                    classes.push(MatchClass { blocks: TierBlocks::default(), lanes: LaneSet::List(begin) });
                }
            }
            for class in classes {
                self.extend(class, tier, length);
            }
        }
    }

    /// Walks one class on through one tier.
    fn extend(&mut self, class: MatchClass, tier: usize, length: usize) {
        let MatchClass { blocks, lanes: mut alive } = class;
        let start = (blocks.device + blocks.host + blocks.disk + blocks.external) as usize;
        let with = |end: usize| {
            let mut blocks = blocks;
            let more = (end - start) as u32;
            match tier {
                1 => blocks.host = more,
                2 => blocks.disk = more,
                _ => blocks.external = more,
            }
            blocks
        };
        let mut last: Option<SetRef<'g>> = None;
        let skipped = self.path.partition_point(|visit| visit.position + visit.matched <= start);
        'path: for visit in &self.path[skipped..] {
            for (from, to, set) in pieces(visit, tier, &self.segments) {
                let (from, to) = (visit.position + from, visit.position + to);
                if to <= start || last.is_some_and(|last| last.same(set)) {
                    continue;
                }
                last = Some(set);
                if let Some(lanes) = retain(&mut alive, set, self.pool) {
                    self.classes.push(MatchClass { blocks: with(from.max(start)), lanes });
                    if alive.is_empty() {
                        break 'path;
                    }
                }
            }
        }
        if alive.is_empty() {
            self.pool.give(alive);
        } else {
            self.classes.push(MatchClass { blocks: with(length.max(start)), lanes: alive });
        }
    }

    /// Forgets the path and the classes.
    fn restart(&mut self) {
        self.path.clear();
        self.segments.clear();
        for class in self.classes.drain(..) {
            self.pool.give(class.lanes);
        }
    }
}

/// The holders a word names, for the first `matched` blocks. `None` when the word is out of date.
#[inline]
fn resolve<'g>(
    word: u32,
    matched: usize,
    segments: &mut Vec<(u8, SetRef<'g>)>,
    shared: &'g Shared,
    guard: &'g Guard,
) -> Option<Held<'g>> {
    if word == EMPTY {
        return Some(Held::By(SetRef::Empty));
    }
    match Word::resolve(word, shared.lists.view(guard))? {
        Word::Uniform(set) => Some(Held::By(SetRef::resolve(set, shared.sets.view(guard))?)),
        Word::Segments(list) => {
            let from = segments.len() as u32;
            for segment in list.iter().take_while(|segment| segment.offset() < matched) {
                let set = SetRef::resolve(segment.set(), shared.sets.view(guard))?;
                segments.push((segment.offset() as u8, set));
            }
            Some(Held::Segments(from, segments.len() as u32))
        }
    }
}

/// All lanes of the classes, a bit each.
fn members(classes: &[MatchClass]) -> Vec<u64> {
    let mut bits: Vec<u64> = Vec::new();
    for class in classes {
        class.lanes.for_each(|lane| {
            let word = lane.0 as usize / 64;
            if bits.len() <= word {
                bits.resize(word + 1, 0);
            }
            bits[word] |= 1 << (lane.0 % 64);
        });
    }
    bits
}

/// Who holds leading blocks of the prompt. What `stop_writer` returns keeps the writer away while it lives.
pub(super) fn lookup<G>(
    shared: &Shared,
    locals: &[u64],
    seqs: &[u64],
    out: &mut Matches,
    stop_writer: impl FnOnce() -> G,
) {
    let guard = crossbeam_epoch::pin();
    let n = locals.len().min(seqs.len());
    let Matches { classes, scratch, recycled } = out;
    *recycled = shared.lanes.recycled();
    let mut pool = Pool { lists: std::mem::take(&mut scratch.lists), bits: std::mem::take(&mut scratch.bits) };
    let mut walk = Walk {
        shared,
        guard: &guard,
        locals: &locals[..n],
        seqs: &seqs[..n],
        path: reuse(std::mem::take(&mut scratch.path)),
        segments: reuse(std::mem::take(&mut scratch.segments)),
        pool: &mut pool,
        classes,
    };
    walk.restart();
    let mut length = walk.device();
    let mut attempts = 1;
    while !walk.stood_still() && attempts < ATTEMPTS {
        walk.restart();
        length = walk.device();
        attempts += 1;
    }
    if attempts == ATTEMPTS && !walk.stood_still() {
        let _stopped = stop_writer();
        walk.restart();
        length = walk.device();
    }
    let lower = |visit: &Visit<'_>| visit.held[1..].iter().any(|held| !matches!(held, Held::By(SetRef::Empty)));
    if walk.path.iter().any(lower) {
        walk.lower(length);
        walk.classes.sort_by_key(|class| std::cmp::Reverse(class.blocks.device));
    }
    let Walk { path, segments, .. } = walk;
    (scratch.path, scratch.segments) = (reuse(path), reuse(segments));
    (scratch.lists, scratch.bits) = (pool.lists, pool.bits);
}
