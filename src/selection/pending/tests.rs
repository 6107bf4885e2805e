//! The three limits of cached selections.

use super::*;

fn cache(change: impl FnOnce(&mut SelectionConfig)) -> PendingSelections {
    let mut config = SelectionConfig::default();
    change(&mut config);
    PendingSelections::new(&config)
}

fn partition() -> PartitionKey {
    PartitionKey::new("m", "default")
}

fn selection(worker_id: u64, blocks: u64) -> PendingSelection {
    PendingSelection {
        rank: WorkerWithDpRank::new(worker_id, 0),
        sequence: (0..blocks).collect(),
        isl_tokens: blocks * 4,
        effective_prefill_tokens: blocks * 4,
        expected_output_tokens: None,
        track_prefill_tokens: true,
        lora_name: None,
        session_id: None,
        block_hashes: None,
    }
}

fn at(secs: u64) -> Moment {
    Moment(secs * 1_000_000_000)
}

fn worker(cache: &PendingSelections, id: &str, now: Moment) -> Option<u64> {
    cache.peek(&partition(), id, now).map(|(_, selection)| selection.rank.worker_id)
}

#[test]
fn entries_live_as_long_as_the_ttl_inclusive() {
    let cache = cache(|c| c.selection_cache_ttl = Duration::from_secs(2));
    cache.insert(&partition(), "a".into(), selection(1, 1), at(0));
    assert_eq!(worker(&cache, "a", at(2)), Some(1));
    assert_eq!(worker(&cache, "a", Moment(at(2).0 + 1)), None);
    cache.sweep(at(2));
    assert_eq!(cache.size().0, 1);
    cache.sweep(at(3));
    assert_eq!(cache.size(), (0, 0));
}

#[test]
fn the_newest_selection_wins_and_is_consumed_by_generation() {
    let cache = cache(|_| {});
    let old = cache.insert(&partition(), "a".into(), selection(1, 1), at(0));
    let new = cache.insert(&partition(), "a".into(), selection(2, 1), at(0));
    assert_eq!(cache.size().0, 1);
    assert!(!cache.consume(&partition(), "a", old), "a late clean-up does not take the newer entry");
    assert_eq!(worker(&cache, "a", at(0)), Some(2));
    assert!(cache.consume(&partition(), "a", new));
    assert!(!cache.consume(&partition(), "a", new));
    assert_eq!(cache.size(), (0, 0));
}

#[test]
fn ids_are_scoped_by_partition() {
    let cache = cache(|_| {});
    let other = PartitionKey::new("m", "other");
    cache.insert(&partition(), "a".into(), selection(1, 1), at(0));
    assert!(cache.peek(&other, "a", at(0)).is_none());
    assert!(!cache.discard(&other, "a"));
    assert!(cache.discard(&partition(), "a"));
}

#[test]
fn the_oldest_go_when_a_limit_is_exceeded() {
    let cache = cache(|c| c.selection_cache_max_entries = 2);
    cache.insert(&partition(), "a".into(), selection(1, 1), at(0));
    cache.insert(&partition(), "b".into(), selection(2, 1), at(0));
    cache.insert(&partition(), "a".into(), selection(3, 1), at(0));
    cache.insert(&partition(), "c".into(), selection(4, 1), at(0));
    let workers: Vec<_> = ["a", "b", "c"].iter().map(|id| worker(&cache, id, at(0))).collect();
    assert_eq!(workers, [Some(3), None, Some(4)], "replacing makes an entry the youngest");
}

#[test]
fn bytes_are_estimated_as_the_reference_does() {
    // Three blocks, id "a", model "m", group "default": 33 bytes, and 24 more for stored content hashes.
    for (hashes, bytes) in [(None, 33), (Some(vec![1, 2, 3].into_boxed_slice()), 57)] {
        for (budget, kept) in [(bytes, true), (bytes - 1, false)] {
            let cache = cache(|c| c.selection_cache_max_bytes = budget);
            let entry = PendingSelection { block_hashes: hashes.clone(), ..selection(1, 3) };
            cache.insert(&partition(), "a".into(), entry, at(0));
            assert_eq!(worker(&cache, "a", at(0)).is_some(), kept, "{budget} of {bytes}");
            assert_eq!(cache.size(), if kept { (1, bytes) } else { (0, 0) });
        }
    }
    let texts =
        PendingSelection { lora_name: Some("adapter".into()), session_id: Some("session".into()), ..selection(1, 0) };
    let cache = cache(|_| {});
    cache.insert(&partition(), "a".into(), texts, at(0));
    assert_eq!(cache.size().1, 9 + 14);
}

#[test]
fn an_entry_over_the_budget_takes_everything_with_it() {
    let cache = cache(|c| c.selection_cache_max_bytes = 100);
    cache.insert(&partition(), "a".into(), selection(1, 1), at(0));
    cache.insert(&partition(), "b".into(), selection(2, 20), at(0));
    assert_eq!(cache.size(), (0, 0));
}

#[test]
fn zero_limits_keep_nothing() {
    for cache in [cache(|c| c.selection_cache_max_entries = 0), cache(|c| c.selection_cache_max_bytes = 0)] {
        cache.insert(&partition(), "a".into(), selection(1, 1), at(0));
        assert_eq!(worker(&cache, "a", at(0)), None);
        assert_eq!(cache.size(), (0, 0));
    }
    let cache = cache(|c| c.selection_cache_ttl = Duration::ZERO);
    cache.insert(&partition(), "a".into(), selection(1, 1), at(0));
    assert_eq!(worker(&cache, "a", Moment(1)), None);
}

/// Random operations against a plain list in insertion order.
#[test]
fn agrees_with_a_naive_cache() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (max_entries, max_bytes, ttl) = (rng.usize(0..6), rng.usize(0..300), rng.u64(0..5));
        let cache = cache(|c| {
            c.selection_cache_max_entries = max_entries;
            c.selection_cache_max_bytes = max_bytes;
            c.selection_cache_ttl = Duration::from_secs(ttl);
        });
        let mut naive: Vec<(String, u64, u64, usize)> = Vec::new();
        let mut now = 0;
        for step in 0..300 {
            now += rng.u64(0..2);
            let id = format!("{}", rng.u8(0..8));
            match rng.u8(0..4) {
                0 | 1 => {
                    let blocks = rng.u64(0..10);
                    cache.insert(&partition(), id.as_str().into(), selection(step, blocks), at(now));
                    naive.retain(|entry| now - entry.2 <= ttl && entry.0 != id);
                    naive.push((id, step, now, blocks as usize * 8 + 9));
                    while naive.len() > max_entries || naive.iter().map(|entry| entry.3).sum::<usize>() > max_bytes {
                        naive.remove(0);
                    }
                }
                2 => {
                    let expected =
                        naive.iter().find(|entry| entry.0 == id && now - entry.2 <= ttl).map(|entry| entry.1);
                    assert_eq!(worker(&cache, &id, at(now)), expected, "seed {seed} step {step}");
                }
                _ => {
                    let before = naive.len();
                    naive.retain(|entry| entry.0 != id);
                    assert_eq!(cache.discard(&partition(), &id), naive.len() < before, "seed {seed} step {step}");
                }
            }
        }
    }
}
