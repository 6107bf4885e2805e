//! The index against the plainest model, on random events.
//!
//! `POINTSMAN_SEEDS` sets how many seeds, `POINTSMAN_SEED` the first one.

use super::{super::model::Model, *};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// One run's world: prompts that share prefixes, and ranks that name blocks in several ways.
struct World {
    rng: fastrand::Rng,
    prompts: Vec<Vec<u64>>,
    ranks: Vec<WorkerWithDpRank>,
    /// Ranks of one scheme give equal names.
    schemes: Vec<u64>,
    /// One block in so many has a name that others may have too.
    common_names: u64,
    /// Ranks announce names of another one's scheme now and then.
    foreign_names: bool,
    tiers: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let longest = *[4, 20, 80, 200].get(rng.usize(..4)).expect("four");
        let mut prompts: Vec<Vec<u64>> = Vec::new();
        for k in 0..rng.u64(2..12) {
            let mut prompt = match prompts.is_empty() || rng.u8(..4) == 0 {
                true => Vec::new(),
                false => {
                    let other = &prompts[rng.usize(..prompts.len())];
                    other[..rng.usize(..=other.len())].to_vec()
                }
            };
            let length = rng.usize(1..=longest);
            while prompt.len() < length {
                // Contents repeat, at other positions too.
                prompt.push(if rng.u8(..8) == 0 { rng.u64(..4) } else { k << 32 | prompt.len() as u64 });
            }
            prompts.push(prompt);
        }
        let most = if rng.bool() { 6 } else { 80 };
        let ranks: Vec<_> = (0..rng.u64(1..most)).map(|k| WorkerWithDpRank::new(k / 2, (k % 2) as u32)).collect();
        let schemes = rng.u64(1..4);
        let schemes = ranks.iter().map(|_| if rng.u8(..3) == 0 { rng.u64(..) } else { rng.u64(..schemes) }).collect();
        let common_names = if rng.u8(..3) == 0 { rng.u64(2..30) } else { u64::MAX };
        let tiers = if rng.bool() { 1 } else { 4 };
        let foreign_names = rng.u8(..3) == 0;
        Self { rng, prompts, ranks, schemes, common_names, foreign_names, tiers }
    }

    fn name(&self, rank: usize, seq: u64) -> u64 {
        let name = chain(self.schemes[rank], seq);
        if name % self.common_names == 1 { name % 5 } else { name }
    }

    fn tier(&mut self) -> Tier {
        Tier::ALL[self.rng.usize(..self.tiers)]
    }
}

fn run(seed: u64, steps: usize) {
    let mut world = World::new(seed);
    let (index, mut model) = (PrefixIndex::new(), Model::default());
    let mut out = Matches::default();
    for (slot, &rank) in world.ranks.iter().enumerate() {
        if slot % 2 == 0 {
            assert!(index.bind_slot(rank, slot as u32));
        }
    }
    for step in 0..steps {
        let at = world.rng.usize(..world.ranks.len());
        let rank = world.ranks[at];
        match world.rng.u8(..100) {
            0..50 => {
                let prompt = world.prompts[world.rng.usize(..world.prompts.len())].clone();
                let seqs = seqs_of(&prompt);
                let from = if world.rng.bool() { 0 } else { world.rng.usize(..prompt.len()) };
                let to = if world.rng.bool() { prompt.len() } else { from + world.rng.usize(..=prompt.len() - from) };
                let by = if world.foreign_names && world.rng.u8(..8) == 0 {
                    world.rng.usize(..world.ranks.len())
                } else {
                    at
                };
                let parent = from.checked_sub(1).map(|before| world.name(by, seqs[before]));
                let blocks: Vec<StoredBlock> =
                    (from..to).map(|k| StoredBlock { name: world.name(by, seqs[k]), local: prompt[k] }).collect();
                let tier = world.tier();
                let (got, want) = (index.store(rank, tier, parent, &blocks), model.store(rank, tier, parent, &blocks));
                assert_eq!(got, want, "seed {seed} step {step}: store");
            }
            50..85 => {
                let held = model.ranks.get(&rank).map_or_else(Vec::new, |r| r.names());
                let tier = world.tier();
                let mut names: Vec<u64> = held.iter().filter(|(t, _)| *t == tier).map(|&(_, name)| name).collect();
                if world.rng.bool() {
                    world.rng.shuffle(&mut names);
                }
                if world.rng.bool() {
                    // In the order of a prompt, as engines evict, from either end.
                    let prompt = &world.prompts[world.rng.usize(..world.prompts.len())];
                    names = seqs_of(prompt).into_iter().map(|seq| world.name(at, seq)).collect();
                    if world.rng.bool() {
                        names.reverse();
                    }
                }
                names.truncate(world.rng.usize(..=names.len().min(100)));
                if world.rng.u8(..4) == 0 {
                    names.push(world.rng.u64(..10));
                }
                let (got, want) = (index.remove(rank, tier, &names), model.remove(rank, tier, &names));
                assert_eq!(got, want, "seed {seed} step {step}: remove");
            }
            85..88 => {
                index.clear(rank);
                model.ranks.remove(&rank);
            }
            88 => {
                if world.rng.bool() {
                    index.remove_rank(rank);
                    model.ranks.remove(&rank);
                } else {
                    index.remove_worker(rank.worker_id);
                    model.ranks.retain(|r, _| r.worker_id != rank.worker_id);
                }
            }
            89..94 => {
                index.sweep(world.rng.usize(1..40));
            }
            _ => {}
        }
        let prompt = world.prompts[world.rng.usize(..world.prompts.len())].clone();
        let seqs = seqs_of(&prompt);
        let n = world.rng.usize(..=prompt.len());
        index.lookup(&prompt[..n], &seqs[..n], &mut out);
        let got = pairs(&index, &out);
        let want: BTreeMap<_, _> = model
            .ranks
            .iter()
            .map(|(&rank, held)| (rank, held.matched(&seqs[..n])))
            .filter(|(_, blocks)| *blocks != TierBlocks::default())
            .map(|(rank, TierBlocks { device, host, disk, external })| (rank, [device, host, disk, external]))
            .collect();
        assert_eq!(got, want, "seed {seed} step {step}: lookup");
        let depths: Vec<u32> = out.classes.iter().map(|class| class.blocks.device).collect();
        assert!(depths.is_sorted_by(|a, b| a >= b), "seed {seed} step {step}: deepest first");
        if step % 32 == 0 {
            index.check();
            compare_sizes(&index, &model, seed, step);
            compare_exports(&index, &model, seed, step);
            if n > 0
                && let Some(lane) = at.is_multiple_of(2).then(|| index.lane_of_slot(at as u32)).flatten()
            {
                assert_eq!(index.slot_of(lane), Some(at as u32));
                let (got, want) = (index.names_of(lane, &prompt, &seqs, n), model.names_of(rank, &seqs[..n]));
                assert_eq!(got, want, "seed {seed} step {step}: names");
            }
        }
    }
    // Everything goes: nothing is left.
    let ranks: Vec<_> = model.ranks.keys().copied().collect();
    for rank in ranks {
        for tier in Tier::ALL {
            loop {
                let held = model.ranks.get(&rank).map_or_else(Vec::new, |r| r.names());
                let names: Vec<u64> = held.iter().filter(|(t, _)| *t == tier).map(|&(_, name)| name).collect();
                if names.is_empty() {
                    break;
                }
                assert_eq!(index.remove(rank, tier, &names), model.remove(rank, tier, &names), "seed {seed}: end");
            }
        }
    }
    while index.sweep(1000) {}
    index.check();
    let stats = index.stats();
    assert_eq!((stats.held, stats.chunks, stats.names, stats.orphans), ([0; 4], 0, 0, 0), "seed {seed}: left over");
    assert!(stats.bytes < 100_000, "seed {seed}: {} bytes left", stats.bytes);
}

fn compare_sizes(index: &PrefixIndex, model: &Model, seed: u64, step: usize) {
    let (mut held, mut orphans) = ([0; 4], 0);
    for rank in model.ranks.values() {
        orphans += rank.orphans();
        held.iter_mut().zip(rank.held()).for_each(|(sum, blocks)| *sum += blocks);
    }
    let stats = index.stats();
    for (&rank, held) in &model.ranks {
        let mut waiting: Vec<_> = index.write(|writer, _| {
            let state = writer.lanes.get(rank).map(|lane| &writer.lanes.states[lane as usize]);
            let waiting = state.and_then(|state| state.waiting.as_deref());
            waiting.iter().flat_map(|w| w.iter()).map(|w| (w.tier, w.block.name, w.parent)).collect()
        });
        waiting.sort_unstable();
        assert_eq!(waiting, held.waiting(), "seed {seed} step {step}: waiting");
    }
    assert_eq!((stats.held, stats.orphans), (held, orphans), "seed {seed} step {step}: sizes");
}

fn compare_exports(index: &PrefixIndex, model: &Model, seed: u64, step: usize) {
    let mut got: Vec<_> =
        edges(index).into_iter().map(|(rank, tier, _, name, local)| (rank, tier, name, local)).collect();
    let mut want: Vec<_> = model
        .ranks
        .iter()
        .flat_map(|(&rank, held)| held.exported().into_iter().map(move |(tier, name, local)| (rank, tier, name, local)))
        .collect();
    got.sort_unstable();
    want.sort_unstable();
    assert_eq!(got, want, "seed {seed} step {step}: export");
}

#[test]
fn random_events_agree_with_the_model() {
    let first = number("POINTSMAN_SEED", 0);
    for seed in first..first + number("POINTSMAN_SEEDS", 100) {
        run(seed, 200);
    }
}
