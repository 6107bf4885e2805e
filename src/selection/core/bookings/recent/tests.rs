//! How long, how much and of whom a shard remembers.

use super::*;

const START: Moment = Moment(1_000_000_000_000);

fn rank(dp_rank: u32) -> WorkerWithDpRank {
    WorkerWithDpRank::new(7, dp_rank)
}

fn after(passed: Duration) -> Moment {
    START.after(passed)
}

fn freed(rank: Option<WorkerWithDpRank>) -> Early {
    Early { freed: true, rank, ..Early::default() }
}

fn completed(rank: Option<WorkerWithDpRank>) -> Early {
    Early { prefill_completed: true, rank, ..Early::default() }
}

fn ended(dp_rank: u32) -> EndedBooking {
    EndedBooking { rank: rank(dp_rank), origin: Some(1), by_call: false }
}

impl Recent {
    /// Ids that are remembered, and times they were written.
    pub(in crate::selection::core::bookings) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.order.len())
    }
}

#[test]
fn early_calls_of_one_rank_add_up_and_of_others_are_kept_apart() {
    let mut recent = Recent::default();
    recent.call_came_early("x", completed(Some(rank(0))), START);
    recent.call_came_early("x", freed(Some(rank(1))), START);
    recent.call_came_early("x", Early { is_local: true, ..freed(Some(rank(0))) }, START);
    let both = Early { freed: true, prefill_completed: true, is_local: true, rank: Some(rank(0)) };
    assert_eq!(recent.take_early("x", rank(0), START), Some(both));
    assert_eq!(recent.take_early("x", rank(0), START), None, "taken once");
    recent.call_came_early("y", freed(None), START);
    recent.call_came_early("y", completed(None), START);
    assert_eq!(recent.take_early("y", rank(0), START), Some(Early { prefill_completed: true, ..freed(None) }));
}

#[test]
fn a_call_that_names_no_rank_concerns_every_rank() {
    let mut recent = Recent::default();
    recent.call_came_early("x", completed(Some(rank(1))), START);
    recent.call_came_early("x", Early { is_local: true, ..freed(None) }, START);
    let early = recent.take_early("x", rank(1), START).expect("remembered");
    assert_eq!((early.freed, early.prefill_completed, early.is_local), (true, true, true));
    recent.call_came_early("y", completed(Some(rank(1))), START);
    recent.call_came_early("y", freed(None), START);
    assert_eq!(recent.take_early("y", rank(2), START), Some(freed(None)));
}

#[test]
fn early_calls_are_kept_for_a_few_ranks_only() {
    let mut recent = Recent::default();
    (0..=4).for_each(|at| recent.call_came_early("x", freed(Some(rank(at))), START));
    assert_eq!(recent.take_early("x", rank(4), START), None);
    assert_eq!(recent.take_early("x", rank(3), START), Some(freed(Some(rank(3)))));
}

#[test]
fn an_early_call_that_is_too_old_adds_nothing_to_a_new_one() {
    let mut recent = Recent::default();
    recent.call_came_early("x", freed(None), START);
    recent.call_came_early("x", completed(None), after(EARLY_FOR));
    assert_eq!(recent.take_early("x", rank(0), after(EARLY_FOR)), Some(completed(None)));
}

#[test]
fn a_call_for_a_booking_that_ended_otherwise_ends_it_for_good() {
    let mut recent = Recent::default();
    recent.ended("x".into(), ended(0), START);
    let late = after(ENDED_FOR - Duration::from_nanos(1));
    recent.call_came_early("x", completed(None), late);
    assert_eq!(recent.ended_lately("x", rank(0), late), Some((START, ended(0))));
    recent.call_came_early("x", freed(None), late);
    let by_call = EndedBooking { by_call: true, ..ended(0) };
    assert_eq!(recent.ended_lately("x", rank(0), late), Some((START, by_call)));
    assert_eq!(recent.ended_lately("x", rank(0), after(ENDED_FOR)), None);
    // The end is too long ago: the next call waits for a booking.
    recent.call_came_early("x", freed(None), after(ENDED_FOR));
    assert_eq!(recent.take_early("x", rank(0), after(ENDED_FOR)), Some(freed(None)));
}

#[test]
fn an_end_heard_of_alone_is_an_end_and_a_prefill_is_none() {
    let mut recent = Recent::default();
    recent.call_came_early("x", completed(Some(rank(0))), START);
    assert_eq!(recent.ended_lately("x", rank(0), START), None);
    recent.call_came_early("x", freed(None), START);
    assert_eq!(recent.ended_lately("x", rank(0), START), None, "a client names no rank");
    recent.call_came_early("x", freed(Some(rank(1))), START);
    recent.call_came_early("x", freed(Some(rank(2))), START);
    let told = |dp_rank| Some((START, EndedBooking { rank: rank(dp_rank), origin: None, by_call: true }));
    assert_eq!(recent.ended_lately("x", rank(2), START), told(2));
    assert_eq!(recent.ended_lately("x", rank(0), START), told(1), "of another rank");
    assert_eq!(recent.ended_lately("x", rank(2), after(ENDED_FOR)), None);
}

#[test]
fn what_was_remembered_of_an_id_that_lives_is_over_but_for_calls_to_a_mirror() {
    for is_mirrored in [false, true] {
        let mut recent = Recent::default();
        recent.ended("ended".into(), ended(0), START);
        recent.lives("ended", is_mirrored);
        assert_eq!(recent.ended_lately("ended", rank(0), START), None);
        recent.call_came_early("early", freed(None), START);
        recent.lives("early", is_mirrored);
        assert_eq!(recent.take_early("early", rank(0), START).is_some(), is_mirrored);
    }
}

#[test]
fn the_longest_id_is_remembered_and_no_longer_one() {
    let mut recent = Recent::default();
    for (length, remembered) in [(LONGEST_ID, 1), (LONGEST_ID + 1, 0)] {
        let id = "x".repeat(length);
        recent.call_came_early(&id, freed(None), START);
        assert_eq!(usize::from(recent.take_early(&id, rank(0), START).is_some()), remembered);
    }
}

#[test]
fn the_oldest_of_too_many_ids_go_first() {
    let mut recent = Recent::default();
    (0..MOST).for_each(|at| recent.ended(at.to_string().into(), ended(0), START));
    assert_eq!(recent.size(), (MOST, MOST));
    // Written anew, the oldest is the newest.
    recent.ended("0".into(), ended(0), after(Duration::from_secs(1)));
    assert_eq!(recent.size(), (MOST, MOST), "only its older time is gone");
    recent.ended("more".into(), ended(0), after(Duration::from_secs(1)));
    assert_eq!(recent.size(), (MOST, MOST));
    let known = |id| recent.ended_lately(id, rank(0), after(Duration::from_secs(1))).is_some();
    assert_eq!(["0", "1", "2", "more"].map(known), [true, false, true, true]);
}

#[test]
fn what_is_old_is_given_back() {
    let mut recent = Recent::default();
    recent.ended("first".into(), ended(0), START);
    recent.ended("second".into(), ended(0), after(Duration::from_secs(1)));
    recent.forget_old(after(ENDED_FOR - Duration::from_nanos(1)));
    assert_eq!(recent.size(), (2, 2));
    recent.forget_old(after(ENDED_FOR));
    assert_eq!(recent.size(), (1, 1));
    recent.forget_old(after(ENDED_FOR + Duration::from_secs(1)));
    assert_eq!(recent.size(), (0, 0));
}
