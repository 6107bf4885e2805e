//! Which lanes are looked at, and that no look is wasted.

use super::{
    super::{
        lanes::{Head, Lanes},
        order::{OrderKey, Rank},
    },
    *,
};

/// The place of the request that came as number `number`.
fn order(number: u64) -> OrderKey {
    OrderKey::new(&Rank::default(), QueuePolicy::Fcfs, number)
}

fn within<const N: usize>(worker_ids: [u64; N]) -> Placement {
    let mut steering = Steering::default();
    among(worker_ids)(&mut steering);
    Placement::of(&steering)
}

/// The best request, and how many looks at blocked lanes that took.
fn best(lanes: &mut Lanes, bed: &Bed) -> (Head, usize) {
    let mut work = 100;
    let head = lanes.best(&bed.load, Some(0), &mut work);
    (head, 100 - work)
}

/// Workers 1 and 2, both busy, and their bookings.
fn two_busy_workers() -> (Bed, [BookingId; 2]) {
    let mut bed = Bed::new(synthetic(0.0));
    let bookings = [1, 2].map(|id| {
        bed.worker(id, |_| {});
        bed.book(id, 0, 1)
    });
    bed.load.take_touched();
    (bed, bookings)
}

#[test]
fn a_rank_that_becomes_free_has_only_lanes_looked_at_that_may_want_it() {
    let (mut bed, [first, _]) = two_busy_workers();
    let mut lanes = Lanes::new();
    for (number, placement) in (1..).zip([within([2]), within([2, 7]), within([1]), within([1, 7]), within([1, 2])]) {
        lanes.insert(order(number), number as u32, placement);
    }
    assert_eq!((best(&mut lanes, &bed), lanes.parked()), ((Head::Blocked, 5), 5));
    bed.complete(first);
    let touched = bed.load.take_touched();
    lanes.touch(&touched, &bed.load);
    assert_eq!(lanes.parked(), 2, "those of worker 2 alone");
    assert_eq!(best(&mut lanes, &bed), (Head::Ready(3), 0));
    lanes.check(&bed.load, Some(0));
}

#[test]
fn another_head_of_a_blocked_lane_is_not_looked_at() {
    let (mut bed, [first, _]) = two_busy_workers();
    let mut lanes = Lanes::new();
    lanes.insert(order(2), 2, within([1]));
    assert_eq!((best(&mut lanes, &bed), lanes.parked()), ((Head::Blocked, 1), 1));
    let lane = lanes.insert(order(1), 1, within([1]));
    assert_eq!((best(&mut lanes, &bed), lanes.parked()), ((Head::Blocked, 0), 1));
    lanes.remove(lane, order(1));
    assert_eq!((best(&mut lanes, &bed), lanes.parked()), ((Head::Blocked, 0), 1));
    bed.complete(first);
    let touched = bed.load.take_touched();
    lanes.touch(&touched, &bed.load);
    assert_eq!(best(&mut lanes, &bed), (Head::Ready(2), 0));
    // In one that is not blocked it takes the place of the former.
    lanes.insert(order(1), 1, within([1]));
    assert_eq!(best(&mut lanes, &bed), (Head::Ready(1), 0));
    lanes.remove(lane, order(1));
    assert_eq!(best(&mut lanes, &bed), (Head::Ready(2), 0));
    lanes.check(&bed.load, Some(0));
}

#[test]
fn another_head_of_the_lane_that_many_constraints_share_is_looked_at() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    bed.worker(2, |_| {});
    bed.book(1, 0, 1);
    for id in 0..MAX_CONSTRAINT_LANES as u64 {
        assert_eq!(bed.arrive_with(&format!("filler {id}"), "", 1, 0, among([1, 1000 + id])), Ok(false));
    }
    assert_eq!(bed.arrive_with("head", "", 1, 0, among([1, 10])), Ok(false));
    assert_eq!(bed.arrive_with("next", "", 1, 0, only(2)), Ok(false), "it waits behind the head");
    bed.cancel("head");
    assert_eq!(bed.settle(2, 0).0, "next");
    assert_eq!(bed.arrive_with("head", "", 1, 0, among([1, 10])), Ok(false));
    let urgent = |steering: &mut Steering| {
        only(2)(steering);
        steering.strict_priority = Some(1);
    };
    assert_eq!(bed.arrive_with("urgent", "", 1, 0, urgent), Ok(true), "it is the head now, and its worker is free");
}
