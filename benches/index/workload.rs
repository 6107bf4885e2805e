//! Fleets and prompts for the benchmarks of the index.

use std::collections::VecDeque;

use pointsman::selection::{
    Tier, WorkerWithDpRank,
    hash::chain,
    index::{PrefixIndex, StoredBlock},
};

/// Blocks of the prompts that are looked up.
pub const PROMPT: usize = 128;

/// Rank number `k`.
pub fn rank(k: usize) -> WorkerWithDpRank {
    WorkerWithDpRank::new(k as u64, 0)
}

/// Content hashes and chained hashes of a prompt.
#[derive(Clone)]
pub struct Prompt {
    pub locals: Vec<u64>,
    pub seqs: Vec<u64>,
}

/// A prompt of new content behind `prefix`.
pub fn extend(prefix: &[u64], more: usize, rng: &mut fastrand::Rng) -> Prompt {
    let mut locals = prefix.to_vec();
    locals.extend((0..more).map(|_| rng.u64(..)));
    let mut seqs: Vec<u64> = Vec::with_capacity(locals.len());
    for &local in &locals {
        seqs.push(seqs.last().map_or(local, |&seq| chain(seq, local)));
    }
    Prompt { locals, seqs }
}

/// Blocks `from..to` of a prompt, named by their seqs and `scheme`.
pub fn blocks(prompt: &Prompt, from: usize, to: usize, scheme: u64) -> Vec<StoredBlock> {
    (from..to).map(|k| StoredBlock { name: prompt.seqs[k] ^ scheme, local: prompt.locals[k] }).collect()
}

/// Stores a prompt's first `to` blocks in events of `batch` blocks.
pub fn store(index: &PrefixIndex, rank: WorkerWithDpRank, prompt: &Prompt, to: usize, batch: usize, scheme: u64) {
    for from in (0..to).step_by(batch) {
        let parent = from.checked_sub(1).map(|k| prompt.seqs[k] ^ scheme);
        index.store(rank, Tier::Device, parent, &blocks(prompt, from, (from + batch).min(to), scheme));
    }
}

/// Who holds what of the prompts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The first 48 blocks on every rank, 40 more on 8 (of 64) or 16 ranks, the last 40 on one.
    Tree,
    /// One prompt, every rank with another depth.
    Staggered,
}

/// An index that holds about `held` other blocks, and prompts to look up.
pub fn fleet(ranks: usize, held: usize, shape: Shape) -> (PrefixIndex, Vec<Prompt>) {
    let (index, mut rng) = (PrefixIndex::new(), fastrand::Rng::with_seed(7));
    for k in 0..ranks {
        index.bind_slot(rank(k), k as u32);
    }
    let mut prompts = Vec::new();
    match shape {
        Shape::Tree => {
            let system = extend(&[], 48, &mut rng);
            (0..ranks).for_each(|k| store(&index, rank(k), &system, 48, 64, 0));
            let middle_ranks = if ranks <= 64 { 8.min(ranks) } else { 16 };
            for _ in 0..200 {
                let middle = extend(&system.locals, 40, &mut rng);
                let first = rng.usize(..ranks);
                (0..middle_ranks).for_each(|k| store(&index, rank((first + k) % ranks), &middle, 88, 64, 0));
                for _ in 0..20 {
                    let own = extend(&middle.locals, 40, &mut rng);
                    store(&index, rank(first), &own, PROMPT, 64, 0);
                    prompts.push(own);
                }
            }
        }
        Shape::Staggered => {
            for _ in 0..(100_000 / ranks).max(4) {
                let prompt = extend(&[], PROMPT, &mut rng);
                for k in 0..ranks {
                    store(&index, rank(k), &prompt, 1 + (k * 37) % PROMPT, 64, 0);
                }
                prompts.push(prompt);
            }
        }
    }
    let before: u64 = index.stats().names;
    for k in 0..held.saturating_sub(before as usize) / 256 {
        store(&index, rank(k % ranks), &extend(&[], 256, &mut rng), 256, 64, 0);
    }
    (index, prompts)
}

/// An engine fleet at steady size: every step stores a new sequence of 64 blocks and removes the oldest one.
pub struct Churn {
    ranks: usize,
    held: VecDeque<(usize, Vec<u64>)>,
    ready: Vec<(usize, Vec<StoredBlock>)>,
    rng: fastrand::Rng,
}

impl Churn {
    /// Fills `index` with `sequences` sequences of 64 blocks.
    pub fn new(index: &PrefixIndex, ranks: usize, sequences: usize) -> Self {
        let rng = fastrand::Rng::with_seed(11);
        let mut churn = Self { ranks, held: VecDeque::new(), ready: Vec::new(), rng };
        while churn.held.len() < sequences {
            churn.prepare(sequences.min(4096));
            while let Some((k, blocks)) = churn.ready.pop() {
                churn.put(index, k, &blocks);
            }
        }
        churn
    }

    /// Makes the next `n` sequences, so that steps cost the index alone.
    pub fn prepare(&mut self, n: usize) {
        let Self { ranks, rng, ready, .. } = self;
        ready.extend((0..n).map(|_| {
            let blocks = (0..64).map(|_| StoredBlock { name: rng.u64(..), local: rng.u64(..) }).collect();
            (rng.usize(..*ranks), blocks)
        }));
    }

    fn put(&mut self, index: &PrefixIndex, k: usize, blocks: &[StoredBlock]) {
        index.store(rank(k), Tier::Device, None, blocks);
        self.held.push_back((k, blocks.iter().rev().map(|block| block.name).collect()));
    }

    /// One store of 64 blocks and one removal of as many. `false` when nothing is prepared.
    pub fn step(&mut self, index: &PrefixIndex) -> bool {
        let Some((k, blocks)) = self.ready.pop() else { return false };
        self.put(index, k, &blocks);
        if let Some((k, names)) = self.held.pop_front() {
            index.remove(rank(k), Tier::Device, &names);
        }
        true
    }
}
