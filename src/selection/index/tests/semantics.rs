//! One test a rule of the specification of the index.

use super::*;

const A: WorkerWithDpRank = WorkerWithDpRank { worker_id: 1, dp_rank: 0 };
const B: WorkerWithDpRank = WorkerWithDpRank { worker_id: 2, dp_rank: 0 };

/// Blocks `(name, local)`.
fn blocks(pairs: &[(u64, u64)]) -> Vec<StoredBlock> {
    pairs.iter().map(|&(name, local)| StoredBlock { name, local }).collect()
}

fn store(index: &PrefixIndex, rank: WorkerWithDpRank, tier: Tier, parent: Option<u64>, pairs: &[(u64, u64)]) {
    assert_ne!(index.store(rank, tier, parent, &blocks(pairs)), StoreOutcome::Full);
}

/// Device, host, disk and external blocks `rank` matches of a prompt.
fn matched(index: &PrefixIndex, rank: WorkerWithDpRank, locals: &[u64]) -> [u32; 4] {
    let mut out = Matches::default();
    index.lookup(locals, &seqs_of(locals), &mut out);
    pairs(index, &out).get(&rank).copied().unwrap_or_default()
}

fn device(index: &PrefixIndex, rank: WorkerWithDpRank, locals: &[u64]) -> u32 {
    matched(index, rank, locals)[0]
}

#[test]
fn a_chain_matches_as_far_as_it_goes() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2), (103, 3)]);
    assert_eq!(device(&index, A, &[1, 2, 3, 4]), 3);
    assert_eq!(device(&index, A, &[1, 2]), 2);
    assert_eq!(device(&index, A, &[2, 3]), 0, "a block in the middle is no prefix");
    assert_eq!(device(&index, B, &[1, 2, 3]), 0);
    store(&index, A, Tier::Device, Some(103), &[(104, 4)]);
    store(&index, A, Tier::Device, Some(102), &[(203, 9)]);
    assert_eq!(device(&index, A, &[1, 2, 3, 4]), 4);
    assert_eq!(device(&index, A, &[1, 2, 9]), 3);
}

#[test]
fn storing_again_or_a_shorter_prefix_changes_nothing() {
    let index = PrefixIndex::new();
    for pairs in [&[(101, 1), (102, 2), (103, 3)][..], &[(101, 1), (102, 2), (103, 3)], &[(101, 1)]] {
        store(&index, A, Tier::Device, None, pairs);
    }
    assert_eq!(device(&index, A, &[1, 2, 3]), 3);
    assert_eq!(index.stats().held, [3, 0, 0, 0]);
    assert_eq!(index.remove(A, Tier::Device, &[102, 102]), RemoveOutcome { removed: 1, unknown: 1 });
    assert_eq!(device(&index, A, &[1, 2, 3]), 1);
}

#[test]
fn unknown_names_in_a_removal_are_skipped_one_by_one() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2)]);
    assert_eq!(index.remove(A, Tier::Device, &[7, 102, 8]), RemoveOutcome { removed: 1, unknown: 2 });
    assert_eq!(index.remove(B, Tier::Device, &[101]), RemoveOutcome { removed: 0, unknown: 1 });
    assert_eq!(index.remove(A, Tier::HostPinned, &[101]), RemoveOutcome { removed: 0, unknown: 1 });
    assert_eq!(device(&index, A, &[1, 2]), 1);
}

#[test]
fn a_removed_inner_block_ends_the_match_until_it_is_restored() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2), (103, 3)]);
    store(&index, B, Tier::Device, None, &[(101, 1), (102, 2), (103, 3)]);
    index.remove(A, Tier::Device, &[102]);
    assert_eq!((device(&index, A, &[1, 2, 3]), device(&index, B, &[1, 2, 3])), (1, 3));
    store(&index, A, Tier::Device, Some(101), &[(102, 2)]);
    assert_eq!(device(&index, A, &[1, 2, 3]), 3);
    index.remove(A, Tier::Device, &[101, 102, 103]);
    assert_eq!((device(&index, A, &[1, 2, 3]), device(&index, B, &[1, 2, 3])), (0, 3));
}

#[test]
fn the_first_name_a_rank_gave_a_block_stays() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2), (103, 3)]);
    store(&index, A, Tier::Device, None, &[(901, 1), (902, 2), (903, 3)]);
    assert_eq!(index.remove(A, Tier::Device, &[901, 902, 903]).removed, 0);
    assert_eq!(device(&index, A, &[1, 2, 3]), 3);
    assert_eq!(index.remove(A, Tier::Device, &[103]).removed, 1);
    assert_eq!(device(&index, A, &[1, 2, 3]), 2);
    store(&index, A, Tier::HostPinned, None, &[(101, 1)]);
    store(&index, A, Tier::HostPinned, None, &[(901, 1), (902, 2)]);
    assert_eq!(index.stats().held[1], 1, "a lower tier's store stops where its name disagrees");
}

#[test]
fn ranks_with_names_of_their_own_extend_and_evict_by_them() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2), (103, 3)]);
    store(&index, B, Tier::Device, None, &[(901, 1), (902, 2)]);
    store(&index, B, Tier::Device, Some(902), &[(903, 3), (904, 4)]);
    assert_eq!((device(&index, A, &[1, 2, 3, 4]), device(&index, B, &[1, 2, 3, 4])), (3, 4));
    assert_eq!(index.remove(B, Tier::Device, &[103]).removed, 0);
    assert_eq!(index.remove(B, Tier::Device, &[903]).removed, 1);
    assert_eq!((device(&index, A, &[1, 2, 3, 4]), device(&index, B, &[1, 2, 3, 4])), (3, 2));
    assert_eq!(index.remove(A, Tier::Device, &[101, 102, 103]).removed, 3);
    assert_eq!(device(&index, B, &[1, 2]), 2);
    store(&index, B, Tier::Device, Some(902), &[(903, 3)]);
    assert_eq!(device(&index, B, &[1, 2, 3, 4]), 4);
    assert_eq!(index.remove(B, Tier::Device, &[904, 903, 902, 901]).removed, 4);
    assert_eq!(index.stats().held, [0; 4]);
}

#[test]
fn one_name_for_two_contents_loses_the_later_one() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1)]);
    store(&index, A, Tier::Device, None, &[(101, 21)]);
    assert_eq!((device(&index, A, &[1]), device(&index, A, &[21])), (1, 1));
    index.remove(A, Tier::Device, &[101]);
    assert_eq!((device(&index, A, &[1]), device(&index, A, &[21])), (1, 0));
    index.remove(A, Tier::Device, &[101]);
    assert_eq!(device(&index, A, &[1]), 0);
}

#[test]
fn one_name_for_two_contents_that_another_rank_holds_already() {
    let index = PrefixIndex::new();
    store(&index, B, Tier::Device, None, &[(101, 21)]);
    store(&index, A, Tier::Device, None, &[(101, 1)]);
    store(&index, A, Tier::Device, None, &[(101, 21)]);
    index.remove(A, Tier::Device, &[101]);
    assert_eq!((device(&index, A, &[1]), device(&index, A, &[21]), device(&index, B, &[21])), (1, 0, 1));
}

#[test]
fn a_clear_takes_every_tier_of_one_rank() {
    let index = PrefixIndex::new();
    assert!(index.bind_slot(A, 5));
    for rank in [A, B] {
        for tier in Tier::ALL {
            store(&index, rank, tier, None, &[(101, 1), (102, 2)]);
        }
    }
    index.clear(A);
    assert_eq!(matched(&index, A, &[1, 2]), [0; 4]);
    assert_eq!(matched(&index, B, &[1, 2]), [2, 0, 0, 0]);
    let lane = index.lane_of_slot(5).expect("the slot stays bound");
    assert_eq!((index.slot_of(lane), index.rank_of(lane)), (Some(5), Some(A)));
    assert_eq!(index.store(A, Tier::Device, Some(101), &blocks(&[(103, 3)])), StoreOutcome::WaitsForParent);
    store(&index, A, Tier::Device, None, &[(101, 1)]);
    assert_eq!(device(&index, A, &[1, 2]), 1);
}

#[test]
fn removing_a_worker_takes_ranks_only_events_named() {
    let index = PrefixIndex::new();
    let odd = WorkerWithDpRank::new(1, u32::MAX);
    assert!(index.bind_slot(A, 0));
    store(&index, A, Tier::Device, None, &[(101, 1)]);
    store(&index, odd, Tier::HostPinned, None, &[(101, 1)]);
    store(&index, B, Tier::Device, None, &[(101, 1)]);
    index.remove_worker(1);
    assert_eq!((matched(&index, A, &[1]), matched(&index, odd, &[1])), ([0; 4], [0; 4]));
    assert_eq!(device(&index, B, &[1]), 1);
    assert_eq!(index.lane_of_slot(0), None);
}

#[test]
fn tiers_continue_where_the_one_before_stopped() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2)]);
    store(&index, A, Tier::HostPinned, None, &[(101, 1), (102, 2)]);
    store(&index, A, Tier::HostPinned, Some(102), &[(103, 3)]);
    store(&index, A, Tier::Disk, Some(103), &[(104, 4)]);
    store(&index, A, Tier::External, Some(104), &[(105, 5)]);
    store(&index, B, Tier::HostPinned, None, &[(101, 1)]);
    assert_eq!(matched(&index, A, &[1, 2, 3, 4, 5, 6]), [2, 1, 1, 1]);
    assert_eq!(matched(&index, B, &[1, 2, 3]), [0, 1, 0, 0]);
    index.remove(A, Tier::Device, &[101, 102]);
    assert_eq!(matched(&index, A, &[1, 2, 3, 4, 5]), [0, 3, 1, 1], "the host copy counts from the root");
    index.remove(A, Tier::Disk, &[104]);
    assert_eq!(matched(&index, A, &[1, 2, 3, 4, 5]), [0, 3, 0, 0], "external does not join");
}

#[test]
fn a_disk_block_behind_an_external_one_does_not_count() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1)]);
    store(&index, A, Tier::External, Some(101), &[(102, 2)]);
    store(&index, A, Tier::Disk, Some(102), &[(103, 3)]);
    assert_eq!(matched(&index, A, &[1, 2, 3]), [1, 0, 0, 1]);
}

#[test]
fn lower_tiers_take_children_of_unknown_parents() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::HostPinned, Some(102), &[(103, 3)]);
    assert_eq!(index.stats().held, [0, 1, 0, 0]);
    assert_eq!(matched(&index, A, &[1, 2, 3]), [0; 4]);
    store(&index, A, Tier::HostPinned, None, &[(101, 1), (102, 2)]);
    assert_eq!(matched(&index, A, &[1, 2, 3]), [0, 3, 0, 0]);
    store(&index, B, Tier::Disk, Some(102), &[(103, 3), (104, 4)]);
    store(&index, B, Tier::Disk, Some(104), &[(105, 5)]);
    assert_eq!(index.remove(B, Tier::Disk, &[103]).removed, 1);
    store(&index, B, Tier::Device, None, &[(101, 1), (102, 2)]);
    assert_eq!(matched(&index, B, &[1, 2, 3, 4, 5]), [2, 0, 0, 0]);
    store(&index, B, Tier::Disk, Some(102), &[(103, 3)]);
    assert_eq!(matched(&index, B, &[1, 2, 3, 4, 5]), [2, 0, 3, 0], "what lies behind the restored block reconnects");
}

#[test]
fn a_device_child_waits_for_its_parent() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1)]);
    assert_eq!(index.store(A, Tier::Device, Some(102), &blocks(&[(103, 3), (104, 4)])), StoreOutcome::WaitsForParent);
    assert_eq!(index.store(A, Tier::Device, Some(104), &blocks(&[(105, 5)])), StoreOutcome::WaitsForParent);
    assert_eq!((index.stats().orphans, index.stats().held), (3, [1, 0, 0, 0]));
    assert_eq!(index.remove(A, Tier::Device, &[105]).removed, 1, "an orphan can be evicted");
    store(&index, B, Tier::Device, None, &[(101, 1), (102, 2)]);
    assert_eq!(device(&index, A, &[1, 2, 3, 4, 5]), 1, "another rank's parent adopts nothing");
    store(&index, A, Tier::Device, Some(101), &[(102, 2)]);
    assert_eq!(device(&index, A, &[1, 2, 3, 4, 5]), 4);
    assert_eq!(index.stats().orphans, 0);
    index.store(A, Tier::Device, Some(7), &blocks(&[(8, 8)]));
    index.clear(A);
    assert_eq!(index.stats().orphans, 0);
}

#[test]
fn a_block_that_is_its_own_parent_does_no_harm() {
    let index = PrefixIndex::new();
    index.store(A, Tier::Device, Some(5), &blocks(&[(5, 1)]));
    index.store(A, Tier::HostPinned, Some(5), &blocks(&[(5, 1), (6, 2), (5, 3)]));
    index.store(A, Tier::Device, Some(6), &blocks(&[(7, 1)]));
    index.store(A, Tier::Device, Some(7), &blocks(&[(6, 1)]));
    store(&index, A, Tier::Device, None, &[(5, 1), (5, 2), (5, 2)]);
    assert_eq!(device(&index, A, &[1, 2]), 2);
    index.remove(A, Tier::Device, &[5, 5, 5, 5]);
    assert_eq!(device(&index, A, &[1, 2]), 0);
    store(&index, B, Tier::Device, None, &[(5, 3)]);
    assert_eq!(device(&index, B, &[3]), 1);
}

#[test]
fn names_are_given_as_the_rank_announced_them() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2)]);
    store(&index, B, Tier::Device, None, &[(901, 1)]);
    store(&index, B, Tier::HostPinned, Some(901), &[(902, 2)]);
    for (slot, rank) in [A, B].into_iter().enumerate() {
        assert!(index.bind_slot(rank, slot as u32));
    }
    let lane = |slot| index.lane_of_slot(slot).expect("bound");
    let seqs = seqs_of(&[1, 2, 3]);
    assert_eq!(index.names_of(lane(0), &[1, 2, 3], &seqs, 2), Some(vec![101, 102]));
    assert_eq!(index.names_of(lane(1), &[1, 2, 3], &seqs, 2), Some(vec![901, 902]));
    assert_eq!(index.names_of(lane(0), &[1, 2, 3], &seqs, 3), None);
}

#[test]
fn an_export_rebuilds_the_index() {
    let index = PrefixIndex::new();
    store(&index, A, Tier::Device, None, &[(101, 1), (102, 2), (103, 3)]);
    store(&index, A, Tier::Device, Some(101), &[(202, 9)]);
    store(&index, B, Tier::Device, None, &[(901, 1), (902, 2)]);
    store(&index, B, Tier::HostPinned, Some(902), &[(903, 3)]);
    store(&index, B, Tier::Disk, Some(7), &[(8, 8)]);
    let copy = PrefixIndex::new();
    index.export(&mut |run| {
        assert_eq!(copy.store(run.rank, run.tier, run.parent, &run.blocks), StoreOutcome::Applied, "{run:?}");
    });
    assert_eq!(copy.stats().held, index.stats().held);
    assert_eq!(edges(&copy), edges(&index));
    assert_eq!(matched(&copy, B, &[1, 2, 3]), [2, 1, 0, 0]);
}

#[test]
fn slots_of_a_set_of_lanes_are_those_of_each() {
    let index = PrefixIndex::new();
    let mut rng = fastrand::Rng::with_seed(3);
    let ranks: Vec<_> = (0..300).map(|worker_id| WorkerWithDpRank { worker_id, dp_rank: 0 }).collect();
    let check = |rng: &mut fastrand::Rng| {
        let lanes: Vec<u16> = (0..700).filter(|_| rng.bool()).collect();
        let mut words = vec![0_u64; 11];
        lanes.iter().for_each(|lane| words[usize::from(lane / 64)] |= 1 << (lane % 64));
        let mut wanted = vec![0_u64; 4];
        for slot in lanes.iter().filter_map(|&lane| index.slot_of(Lane(lane))).filter(|&slot| slot < 256) {
            wanted[slot as usize / 64] |= 1 << (slot % 64);
        }
        for set in [LaneSet::Bits(words), LaneSet::List(lanes)] {
            let mut slots = vec![0_u64; 4];
            index.add_slots(&set, &mut slots);
            assert_eq!(slots, wanted);
        }
    };
    for (slot, &rank) in ranks.iter().enumerate() {
        assert!(index.bind_slot(rank, slot as u32));
    }
    check(&mut rng);
    for _ in 0..40 {
        for _ in 0..20 {
            let slot = rng.usize(0..ranks.len());
            match rng.u8(0..3) {
                0 => index.unbind_slot(ranks[slot]),
                1 => assert!(index.bind_slot(ranks[slot], slot as u32)),
                _ => {
                    store(&index, ranks[slot], Tier::Device, None, &[(101, 1)]);
                    index.clear(ranks[slot]);
                }
            }
        }
        while index.sweep(1_000) {}
        check(&mut rng);
    }
}
