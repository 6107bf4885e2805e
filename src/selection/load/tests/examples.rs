//! Worked examples of the specification and recorded cases.

use super::{super::forest::MAX_RUN, *};

#[test]
fn output_blocks_of_life_01() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    prompt(&mut load, 1, slot, &[1, 2, 3, 4], 0);
    assert_eq!(blocks(&load, slot), 4);
    prompt(&mut load, 2, slot, &[1, 2, 5, 6], 0);
    assert_eq!(blocks(&load, slot), 6);
    for (fraction, expected) in [(None, 7), (Some(0.5), 6), (Some(0.25), 5)] {
        assert!(load.output_block(BookingId(1), fraction, Moment(0)));
        assert_eq!(blocks(&load, slot), expected);
    }
    assert!(load.free(BookingId(2), Moment(0)));
    assert_eq!(blocks(&load, slot), 3);
    assert!(load.output_block(BookingId(1), Some(0.0), Moment(0)));
    assert_eq!(blocks(&load, slot), 0);
    assert!(load.free(BookingId(1), Moment(0)));
    assert!(!load.free(BookingId(1), Moment(0)));
    assert_eq!(load.load(slot, Moment(0)), RankLoad::default());
}

#[test]
fn blocks_count_once_and_leave_with_their_last_owner() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    for (id, sequence) in [(1, &[1, 2, 3][..]), (2, &[1, 2, 4, 5]), (3, &[1, 2]), (4, &[1, 2, 3]), (5, &[])] {
        prompt(&mut load, id, slot, sequence, 0);
    }
    assert_eq!(load.load(slot, Moment(0)), RankLoad { prefill_tokens: 0, blocks: 5, requests: 5 });
    for (id, left) in [(1, 5), (4, 4), (5, 4), (2, 2), (3, 0)] {
        assert!(load.free(BookingId(id), Moment(0)));
        assert_eq!(blocks(&load, slot), left, "after {id}");
    }
    assert_eq!(load.active_runs(), 0);
}

#[test]
fn runs_join_again_when_what_parted_them_has_left() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    for (id, blocks) in [(1, 8), (2, 2), (3, 5), (4, 7)] {
        prompt(&mut load, id, slot, &[1, 2, 3, 4, 5, 6, 7, 8][..blocks], 0);
    }
    assert_eq!(load.active_runs(), 4);
    for id in [3, 2, 4] {
        assert!(load.free(BookingId(id), Moment(0)));
        load.check();
    }
    assert_eq!((load.active_runs(), load.shared_blocks(slot, &[1, 2, 3, 9])), (1, 3));
}

#[test]
fn lineage_is_trusted_and_repeats_count() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    prompt(&mut load, 1, slot, &[1, 2, 3], 0);
    prompt(&mut load, 2, slot, &[1, 9, 3], 0);
    assert_eq!(blocks(&load, slot), 3);
    assert!(load.free(BookingId(1), Moment(0)) && load.free(BookingId(2), Moment(0)));
    prompt(&mut load, 3, slot, &[9, 9], 0);
    prompt(&mut load, 4, slot, &[9], 0);
    assert_eq!(blocks(&load, slot), 2);
    assert!(load.free(BookingId(3), Moment(0)));
    assert_eq!(blocks(&load, slot), 1);
    load.check();
}

#[test]
fn ranks_share_nothing() {
    let mut load = tracker(None);
    let slots = [add_rank(&mut load, 1), add_rank(&mut load, 2)];
    prompt(&mut load, 1, slots[0], &[1, 2, 3], 5);
    prompt(&mut load, 2, slots[1], &[1, 2], 0);
    assert_eq!((blocks(&load, slots[0]), blocks(&load, slots[1])), (3, 2));
    assert_eq!((load.shared_blocks(slots[0], &[1, 2, 3, 4]), load.shared_blocks(slots[1], &[1, 2, 3, 4])), (3, 2));
    assert_eq!(load.remove_rank(WorkerWithDpRank::new(1, 0)), [BookingId(1)]);
    assert!(!load.is_live(BookingId(1)) && load.is_live(BookingId(2)));
    assert_eq!(load.slot(WorkerWithDpRank::new(1, 0)), None);
    assert_eq!(load.load(slots[0], Moment(0)), RankLoad::default());
    // Back again it starts at zero, and what it is now keeps its load when its facts change.
    let slot = add_rank(&mut load, 1);
    assert_eq!(load.load(slot, Moment(0)), RankLoad::default());
    assert_eq!((add_rank(&mut load, 2), blocks(&load, slots[1])), (slots[1], 2));
}

#[test]
fn output_blocks_grow_and_take_a_weight() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    prompt(&mut load, 1, slot, &[1, 2, 3], 12);
    let steps = [(None, 4), (None, 5), (Some(0.5), 3), (None, 4), (Some(0.25), 2), (Some(1.0), 9), (Some(0.0), 0)];
    for (step, (fraction, expected)) in steps.into_iter().enumerate() {
        assert!(load.output_block(BookingId(1), fraction, Moment(0)));
        assert_eq!(blocks(&load, slot), expected, "step {step}");
    }
    for _ in 0..1000 {
        assert!(load.output_block(BookingId(1), Some(0.3), Moment(0)));
    }
    assert!(load.free(BookingId(1), Moment(0)) && !load.output_block(BookingId(1), None, Moment(0)));
    assert_eq!(load.load(slot, Moment(0)), RankLoad::default());
}

#[test]
fn weights_touch_only_blocks_nobody_else_holds() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    prompt(&mut load, 1, slot, &[1, 2, 3, 4], 0);
    prompt(&mut load, 2, slot, &[1, 2], 0);
    let weigh = |load: &mut LoadTracker, id| assert!(load.output_block(BookingId(id), Some(0.0), Moment(0)));
    weigh(&mut load, 1);
    assert_eq!(blocks(&load, slot), 2);
    weigh(&mut load, 2);
    assert_eq!(blocks(&load, slot), 2);
    assert!(load.free(BookingId(1), Moment(0)));
    assert_eq!(blocks(&load, slot), 2);
    weigh(&mut load, 2);
    assert_eq!(blocks(&load, slot), 0);
    assert!(load.free(BookingId(2), Moment(0)));
    assert_eq!(load.load(slot, Moment(0)), RankLoad::default());
}

/// The reference lets the weight stick to the blocks; here it belongs to the booking that sent it (design 9.12).
#[test]
fn another_booking_of_a_weighted_prefix_counts_fully() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    prompt(&mut load, 1, slot, &[1, 2, 3, 4], 0);
    assert!(load.output_block(BookingId(1), Some(0.0), Moment(0)));
    assert_eq!(blocks(&load, slot), 0);
    prompt(&mut load, 2, slot, &[1, 2], 0);
    assert_eq!(blocks(&load, slot), 2);
    assert!(load.free(BookingId(2), Moment(0)));
    assert_eq!(blocks(&load, slot), 0);
    // life_06: an equal prompt counts fully as well, and still does when the weighted one has left.
    prompt(&mut load, 3, slot, &[1, 2, 3, 4], 0);
    assert_eq!(blocks(&load, slot), 4);
    assert!(load.output_block(BookingId(3), Some(1.0), Moment(0)));
    assert_eq!(blocks(&load, slot), 5);
    assert!(load.free(BookingId(1), Moment(0)));
    assert_eq!(blocks(&load, slot), 5);
    assert!(load.output_block(BookingId(3), Some(1.0), Moment(0)));
    assert_eq!(blocks(&load, slot), 6);
}

#[test]
fn prefill_tokens_saturate_and_return_to_zero() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    let tokens = |load: &LoadTracker| load.load(slot, Moment(0)).prefill_tokens;
    prompt(&mut load, 1, slot, &[1], u64::MAX);
    prompt(&mut load, 2, slot, &[2], 10);
    prompt(&mut load, 3, slot, &[3], u64::MAX);
    assert_eq!(tokens(&load), u64::MAX);
    for _ in 0..2 {
        assert!(load.prefill_complete(BookingId(1), Moment(0)));
        assert!(load.prefill_complete(BookingId(3), Moment(0)));
        assert_eq!(tokens(&load), 10);
    }
    assert!(load.free(BookingId(2), Moment(0)));
    assert_eq!(tokens(&load), 0);
    assert!(!load.prefill_complete(BookingId(2), Moment(0)));
}

#[test]
fn refused_bookings_change_nothing() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    prompt(&mut load, 1, slot, &[1, 2], 3);
    for (id, slot) in [(1, slot), (2, slot + 1)] {
        let booking = NewBooking {
            id: BookingId(id),
            slot,
            sequence: [1, 7].into(),
            prefill_tokens: 9,
            prefill_duration: None,
            expected_output_tokens: None,
        };
        assert!(!load.book(booking, Moment(0)).0);
    }
    assert_eq!(load.load(slot, Moment(0)), RankLoad { prefill_tokens: 3, blocks: 2, requests: 1 });
    assert_eq!((load.live(), load.bookings_of(WorkerWithDpRank::new(1, 0))), (1, 1));
}

#[test]
fn deep_prompts_and_many_bookings_give_their_memory_back() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    let deep: Vec<u64> = (0..200_000).collect();
    prompt(&mut load, 0, slot, &deep, 0);
    prompt(&mut load, 1, slot, &deep[..100_000 + MAX_RUN / 2], 0);
    assert_eq!((blocks(&load, slot), load.shared_blocks(slot, &deep)), (200_000, 200_000));
    assert!(load.free(BookingId(0), Moment(0)));
    assert_eq!(blocks(&load, slot), 100_000 + MAX_RUN as u64 / 2);
    for id in 2..20_000 {
        prompt(&mut load, id, slot, &[1 << 40, id << 41, id], 1);
    }
    for id in 1..20_000 {
        assert!(load.free(BookingId(id), Moment(0)));
    }
    prompt(&mut load, 1, slot, &[1, 2], 0);
    load.check();
    let (places, bytes) = load.memory();
    assert!(places < 1_000 && bytes < 1_000, "{places} places and {bytes} bytes are kept for one booking");
}
