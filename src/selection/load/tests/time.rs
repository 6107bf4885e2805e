//! What the passing of time does: modelled prefills decay, bookings expire.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn book(load: &mut LoadTracker, id: u64, slot: Slot, tokens: u64, seconds: Option<u64>, now: u64) -> Vec<BookingId> {
    let booking = NewBooking {
        id: BookingId(id),
        slot,
        sequence: [id].into(),
        prefill_tokens: tokens,
        prefill_duration: seconds.map(Duration::from_secs),
        expected_output_tokens: Some(7),
    };
    let (booked, expired) = load.book(booking, Moment(now * SECOND));
    assert!(booked);
    assert_eq!(load.booking(BookingId(id)), Some((slot, Some(7))));
    expired
}

fn tokens(load: &LoadTracker, slot: Slot, now: u64) -> u64 {
    load.load(slot, Moment(now * SECOND)).prefill_tokens
}

#[test]
fn all_modelled_work_spills_over() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    book(&mut load, 1, slot, 1000, Some(10), 0);
    assert_eq!((tokens(&load, slot, 0), tokens(&load, slot, 1), tokens(&load, slot, 3)), (1000, 900, 700));
    book(&mut load, 2, slot, 500, Some(10), 1);
    assert_eq!((tokens(&load, slot, 1), tokens(&load, slot, 12), tokens(&load, slot, 100)), (1400, 300, 0));
    // The oldest leaves at 12 s: the next is worked on from then.
    assert!(load.prefill_complete(BookingId(1), Moment(12 * SECOND)));
    assert_eq!((tokens(&load, slot, 12), tokens(&load, slot, 14)), (500, 400));
    // One that is not the oldest leaves: the work on it is taken as done, but not past now.
    book(&mut load, 3, slot, 500, Some(1), 14);
    assert_eq!(tokens(&load, slot, 14), 900);
    assert!(load.prefill_complete(BookingId(3), Moment(14 * SECOND)));
    assert_eq!(tokens(&load, slot, 14), 450);
    assert!(load.free(BookingId(2), Moment(15 * SECOND)));
    assert_eq!(load.load(slot, Moment(15 * SECOND)), RankLoad { prefill_tokens: 0, blocks: 2, requests: 2 });
}

#[test]
fn with_one_unmodelled_only_the_oldest_decays() {
    let mut load = tracker(None);
    let slot = add_rank(&mut load, 1);
    book(&mut load, 1, slot, 1001, Some(10), 0);
    book(&mut load, 2, slot, 300, None, 0);
    assert_eq!((tokens(&load, slot, 5), tokens(&load, slot, 10), tokens(&load, slot, 99)), (801, 300, 300));
    assert!(load.free(BookingId(1), Moment(4 * SECOND)));
    book(&mut load, 3, slot, 100, Some(0), 4);
    assert_eq!(tokens(&load, slot, 50), 400);
    assert!(load.free(BookingId(2), Moment(50 * SECOND)));
    assert_eq!(tokens(&load, slot, 50), 0);
}

#[test]
fn extreme_durations_and_times_neither_wrap_nor_panic() {
    let mut load = tracker(Some(1));
    let slot = add_rank(&mut load, 1);
    let booking = |id, duration| NewBooking {
        id: BookingId(id),
        slot,
        sequence: [id].into(),
        prefill_tokens: u64::MAX,
        prefill_duration: Some(duration),
        expected_output_tokens: None,
    };
    for (id, duration) in [Duration::MAX, Duration::from_nanos(1), Duration::ZERO].into_iter().enumerate() {
        assert!(load.book(booking(id as u64, duration), Moment(u64::MAX - 5)).0);
    }
    for now in [0, 1, u64::MAX / 2, u64::MAX] {
        load.load(slot, Moment(now));
        load.expire(Moment(now));
    }
    for id in 0..3 {
        load.free(BookingId(id), Moment(7));
    }
    assert_eq!(load.load(slot, Moment(0)), RankLoad::default());
}

#[test]
fn bookings_expire_by_age_at_a_booking_and_by_the_sweep() {
    let mut load = tracker(Some(300));
    let (slot, other) = (add_rank(&mut load, 1), add_rank(&mut load, 2));
    assert_eq!(book(&mut load, 1, slot, 10, None, 0), []);
    assert_eq!(book(&mut load, 2, other, 10, None, 0), []);
    assert_eq!(book(&mut load, 3, slot, 10, None, 290), []);
    // Progress does not extend a life, and exactly the expiry is not past it.
    assert!(load.output_block(BookingId(1), None, Moment(299 * SECOND)));
    assert_eq!(load.expire(Moment(300 * SECOND)), []);
    // The rank looked at 300 s, so a booking at 329 s does not look again; one at 330 s does.
    assert_eq!(book(&mut load, 4, slot, 10, None, 329), []);
    assert_eq!(book(&mut load, 5, slot, 10, None, 330), [BookingId(1)]);
    assert_eq!(load.load(slot, Moment(330 * SECOND)), RankLoad { prefill_tokens: 30, blocks: 3, requests: 3 });
    assert!(!load.free(BookingId(1), Moment(330 * SECOND)) && load.is_live(BookingId(2)));
    assert_eq!(load.expire(Moment(331 * SECOND)), [BookingId(2)]);
    let mut gone = load.expire(Moment(10_000 * SECOND));
    gone.sort();
    assert_eq!((gone, load.live()), (vec![BookingId(3), BookingId(4), BookingId(5)], 0));
    let mut endless = tracker(None);
    let slot = add_rank(&mut endless, 1);
    book(&mut endless, 1, slot, 10, None, 0);
    assert_eq!(endless.expire(Moment(u64::MAX)), []);
}

/// Prefill tokens as the words of spec sequences 1.5 say them.
#[derive(Default)]
struct Table {
    entries: Vec<(u64, u64, Option<u64>)>,
    anchor: u64,
}

impl Table {
    fn tokens(&self, now: u64) -> u64 {
        let Some(&(_, tokens, duration)) = self.entries.first() else { return 0 };
        let sum: i128 = self.entries.iter().map(|entry| i128::from(entry.1)).sum();
        let tokens = i128::from(tokens);
        let elapsed = i128::from(now.saturating_sub(self.anchor));
        let left = match duration.map(i128::from) {
            None => sum,
            Some(0) => sum - tokens,
            Some(total) if self.entries.iter().all(|entry| entry.2.is_some()) => sum - tokens * elapsed / total,
            Some(total) => {
                let rest = (total - elapsed).max(0);
                sum - tokens + (tokens * rest + total - 1) / total
            }
        };
        left.max(0) as u64
    }

    fn remove(&mut self, id: u64, now: u64) {
        let Some(at) = self.entries.iter().position(|entry| entry.0 == id) else { return };
        let (_, _, duration) = self.entries.remove(at);
        if at == 0 {
            self.anchor = now;
        } else if let Some(duration) = duration {
            self.anchor = (self.anchor + duration).min(now);
        }
    }
}

#[test]
fn random_prefills_equal_the_table_of_the_words() {
    for seed in seeds(300) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut load = tracker(None);
        let slot = add_rank(&mut load, 1);
        let mut table = Table::default();
        let modelled = rng.bool();
        let (mut now, mut next) = (0, 0);
        for step in 0..100 {
            now += rng.u64(0..4 * SECOND);
            if rng.bool() {
                let duration = (modelled || rng.u32(0..4) > 0).then(|| rng.u64(0..5) * rng.u64(0..3 * SECOND));
                let (id, tokens) = (next, rng.u64(1..5000));
                next += 1;
                let booking = NewBooking {
                    id: BookingId(id),
                    slot,
                    sequence: [].into(),
                    prefill_tokens: tokens,
                    prefill_duration: duration.map(Duration::from_nanos),
                    expected_output_tokens: None,
                };
                assert!(load.book(booking, Moment(now)).0);
                if table.entries.is_empty() {
                    table.anchor = now;
                }
                table.entries.push((id, tokens, duration));
            } else if next > 0 {
                let id = rng.u64(next.saturating_sub(6)..next);
                table.remove(id, now);
                if rng.bool() {
                    load.prefill_complete(BookingId(id), Moment(now));
                } else {
                    load.free(BookingId(id), Moment(now));
                }
            }
            let later = now + rng.u64(0..3 * SECOND);
            assert_eq!(load.load(slot, Moment(later)).prefill_tokens, table.tokens(later), "seed {seed} step {step}");
        }
    }
}
