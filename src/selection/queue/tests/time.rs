//! What time changes by itself, and how much is looked at in a turn.

use super::*;

#[test]
fn a_prefill_that_is_thought_to_go_on_frees_its_rank_for_who_waits() {
    let mut bed = Bed::new(synthetic(0.5));
    bed.worker(1, |_| {});
    bed.book_for(1, 0, 60, Some(Duration::from_secs(1)));
    assert_eq!(bed.arrive("a", "", 8), Ok(false));
    bed.tick(150);
    assert_eq!(bed.state("a"), State::Waits, "51 of 100 tokens are left");
    bed.tick(17);
    assert_eq!(bed.state("a"), State::Granted, "50 are left");
}

#[test]
fn a_prefill_that_is_thought_to_be_over_keeps_nobody_waiting_who_comes_first() {
    // 51 and 50 of 100 tokens are left.
    for (millis, goes) in [(166, false), (167, true)] {
        let mut bed = Bed::new(synthetic(0.5));
        bed.worker(1, |_| {});
        bed.book_for(1, 0, 60, Some(Duration::from_secs(1)));
        bed.now.0 += millis * 1_000_000;
        assert_eq!(bed.arrive("a", "", 8), Ok(goes), "after {millis} ms");
    }
}

#[test]
fn everything_is_looked_at_again_once_a_minute() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    bed.book(1, 0, 1);
    assert_eq!(bed.arrive("a", "", 1), Ok(false));
    let set_aside_after = |bed: &mut Bed, millis: u64| {
        bed.advance();
        bed.now.0 += millis * 1_000_000;
        bed.queue.tick(&mut bed.load, bed.now);
        bed.queue.classes[0].lanes.parked()
    };
    set_aside_after(&mut bed, 0);
    for _ in 0..3 {
        assert_eq!(set_aside_after(&mut bed, 59_999), 1);
        assert_eq!(set_aside_after(&mut bed, 1), 0);
    }
}

#[test]
fn nothing_is_left_to_look_at_when_nobody_waits() {
    let mut bed = Bed::new(synthetic(0.0));
    bed.worker(1, |_| {});
    bed.book(1, 0, 1);
    // More lanes than are looked at in one turn.
    for id in 0..500 {
        assert_eq!(bed.arrive_with(&id.to_string(), "", 1, 0, among([1, 1000 + id])), Ok(false));
    }
    bed.queue.tick(&mut bed.load, bed.now);
    bed.queue.advance(&mut bed.load);
    assert!(bed.queue.is_unfinished());
    // Whoever held the lock goes on until the queue is through, and everybody may leave in between.
    bed.queue.fail_all(&SelectionError::DeadlineExceeded);
    bed.queue.advance(&mut bed.load);
    assert!(!bed.queue.is_unfinished());
}
