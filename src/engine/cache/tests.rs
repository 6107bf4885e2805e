//! Blocks that come, stay and go.

use super::*;

const SIZE: usize = 2;

/// Hashes of the blocks of `tokens`.
fn hashes(tokens: &[u32]) -> Vec<u64> {
    block_hashes(7, SIZE, &Namespace::default(), tokens)
}

/// Allocates and stores all full blocks of `tokens`.
fn fill(cache: &mut BlockCache, tokens: &[u32]) -> Vec<BlockId> {
    let names = hashes(tokens);
    let blocks = cache.allocate(names.len()).unwrap();
    cache.store(&blocks, &names, None, tokens, &Namespace::default());
    blocks
}

fn removed(events: &[KvEvent], medium: Medium) -> Vec<u64> {
    events
        .iter()
        .filter_map(|event| match event {
            KvEvent::Removed { hashes, medium: found } if *found == medium => Some(hashes.clone()),
            _ => None,
        })
        .flatten()
        .collect()
}

#[test]
fn hashes_chain_and_depend_on_seed_adapter_and_salt() {
    let tokens = [1, 2, 3, 4, 5];
    let plain = hashes(&tokens);
    assert_eq!(plain.len(), 2, "the partial block has no hash");
    assert_eq!(plain[0], hashes(&[1, 2])[0]);
    assert_ne!(plain[1], hashes(&[9, 9, 3, 4])[1], "the second block depends on the first");
    let with = |lora: Option<&str>, salt: Option<&str>| {
        let namespace = Namespace { lora_name: lora.map(Into::into), cache_salt: salt.map(Into::into) };
        block_hashes(7, SIZE, &namespace, &tokens)
    };
    let all =
        [plain, with(Some("a"), None), with(None, Some("a")), block_hashes(8, SIZE, &Namespace::default(), &tokens)];
    for (index, one) in all.iter().enumerate() {
        for other in &all[index + 1..] {
            assert!(one[0] != other[0] && one[1] != other[1]);
        }
    }
}

#[test]
fn a_released_chain_is_found_again_and_evicted_from_its_end() {
    let mut cache = BlockCache::new(3, 0);
    let tokens = [1, 2, 3, 4, 5, 6];
    let names = hashes(&tokens);
    let blocks = fill(&mut cache, &tokens);
    assert_eq!(cache.free(), 0);
    assert!(cache.allocate(1).is_none(), "referenced blocks are never taken");
    cache.release(&blocks);
    assert_eq!((cache.free(), cache.prefix(&names)), (3, 3));
    cache.take_events();
    cache.allocate(1).unwrap();
    assert_eq!(cache.prefix(&names), 2);
    assert_eq!(cache.take_events(), [KvEvent::Removed { hashes: vec![names[2]], medium: Medium::Gpu }]);
    assert_eq!(cache.evicted(), 1);
}

#[test]
fn use_makes_blocks_young_and_references_protect_them() {
    let mut cache = BlockCache::new(4, 0);
    let (old, young) = ([1, 2, 3, 4], [5, 6, 7, 8]);
    let (a, b) = (fill(&mut cache, &old), fill(&mut cache, &young));
    cache.release(&a);
    cache.release(&b);
    let again = cache.reference(&hashes(&old));
    assert_eq!(again, a);
    assert_eq!(cache.free(), 2);
    cache.release(&again);
    cache.take_events();
    cache.allocate(2).unwrap();
    assert_eq!(removed(&cache.take_events(), Medium::Gpu), [hashes(&young)[1], hashes(&young)[0]]);
    assert_eq!(cache.prefix(&hashes(&old)), 2);
}

#[test]
fn one_hash_in_two_blocks_stays_held_until_both_are_gone() {
    let mut cache = BlockCache::new(2, 0);
    let first = fill(&mut cache, &[1, 2]);
    let second = fill(&mut cache, &[1, 2]);
    cache.release(&first);
    cache.release(&second);
    cache.allocate(1).unwrap();
    assert!(cache.holds(hashes(&[1, 2])[0]));
    cache.allocate(1).unwrap();
    assert!(!cache.holds(hashes(&[1, 2])[0]));
    assert_eq!(removed(&cache.take_events(), Medium::Gpu).len(), 2, "each copy is told, as vLLM does");
}

#[test]
fn clear_forgets_everything_and_running_blocks_come_back_empty() {
    let mut cache = BlockCache::new(2, 2);
    let blocks = fill(&mut cache, &[1, 2]);
    cache.take_events();
    cache.clear();
    assert_eq!(cache.take_events(), [KvEvent::Cleared]);
    assert_eq!((cache.cached(), cache.free()), (0, 1));
    cache.release(&blocks);
    cache.allocate(2).unwrap();
    assert_eq!(cache.take_events(), [], "nothing is evicted that nobody could find");
}

#[test]
fn what_the_device_evicts_moves_to_the_host_and_leaves_it_in_order_of_use() {
    let mut cache = BlockCache::new(2, 2);
    let names: Vec<u64> = (0..4).map(|token| hashes(&[token, token])[0]).collect();
    for token in 0..4u32 {
        let blocks = fill(&mut cache, &[token, token]);
        cache.release(&blocks);
    }
    assert_eq!(cache.host_prefix(&names[..2]), 2);
    let events = cache.take_events();
    assert!(events.contains(&KvEvent::Stored {
        hashes: vec![names[0]],
        parent: None,
        tokens: vec![0, 0],
        namespace: Namespace::default(),
        medium: Medium::Host,
    }));
    cache.load_from_host(&names[..1]);
    let blocks = fill(&mut cache, &[8, 8]);
    cache.release(&blocks);
    assert_eq!(removed(&cache.take_events(), Medium::Host), [names[1]], "the one not used goes");
}

/// The pool against its definition, over random traffic.
#[test]
fn random_traffic_keeps_the_counts_and_events_true() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut cache = BlockCache::new(random.u32(1..20), random.u32(0..4));
        let mut running: Vec<Vec<BlockId>> = Vec::new();
        // Copies of each hash according to the events.
        let mut told: HashMap<u64, usize> = HashMap::new();
        for _ in 0..200 {
            match random.u32(0..10) {
                0..4 => {
                    let tokens: Vec<u32> = (0..random.usize(1..6) * SIZE).map(|_| random.u32(0..2)).collect();
                    let names = hashes(&tokens);
                    let held = cache.prefix(&names);
                    let mut blocks = cache.reference(&names[..held]);
                    assert_eq!(blocks.len(), held, "seed {seed}");
                    if let Some(new) = cache.allocate(names.len() - held) {
                        let parent = held.checked_sub(1).map(|index| names[index]);
                        cache.store(&new, &names[held..], parent, &tokens[held * SIZE..], &Namespace::default());
                        blocks.extend(new);
                        running.push(blocks);
                    } else {
                        cache.release(&blocks);
                    }
                }
                4..9 if !running.is_empty() => {
                    let blocks = running.swap_remove(random.usize(..running.len()));
                    cache.release(&blocks);
                }
                9 if random.u32(0..10) == 0 => cache.clear(),
                _ => {}
            }
            for event in cache.take_events() {
                match event {
                    KvEvent::Stored { hashes, medium: Medium::Gpu, .. } => {
                        hashes.into_iter().for_each(|hash| *told.entry(hash).or_default() += 1);
                    }
                    KvEvent::Removed { hashes, medium: Medium::Gpu } => hashes.iter().for_each(|hash| {
                        let copies = told.get_mut(hash).unwrap();
                        *copies -= 1;
                        if *copies == 0 {
                            told.remove(hash);
                        }
                    }),
                    KvEvent::Cleared => told.clear(),
                    _ => {}
                }
            }
            let mut used: Vec<BlockId> = running.iter().flatten().copied().collect();
            used.sort_unstable();
            used.dedup();
            assert_eq!(cache.free(), cache.len() - used.len(), "seed {seed}");
            assert_eq!(cache.cached(), told.len(), "seed {seed}");
            assert!(told.keys().all(|hash| cache.holds(*hash)), "seed {seed}");
        }
    }
}
