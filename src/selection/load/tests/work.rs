//! Work ahead over random histories, against prompts kept one by one.

use super::*;
use crate::selection::load::work::{WorkForm, WorkSpec};

fn spec(form: Option<WorkForm>) -> Arc<WorkSpec> {
    Arc::new(WorkSpec { gamma: 0.02, kappa: 1.0, prefill_rate: 8000.0, form, speeds: BTreeMap::new() })
}

/// A booking as the words say it.
struct Naive {
    id: BookingId,
    slot: Slot,
    sequence: Vec<u64>,
    /// First block that was not told of.
    next: usize,
    in_prefill: bool,
}

impl Naive {
    /// The engine of `slot` told of the blocks `from..to` of `sequence`: those after the first that this prompt waits
    /// for, or after a third one beyond it, as far as both agree.
    fn stored(&mut self, slot: Slot, sequence: &[u64], from: usize, to: usize) {
        let common = self.sequence.iter().zip(sequence).take_while(|(a, b)| a == b).count();
        let to = to.min(common);
        let waits = |at: usize| at == self.next || (at > self.next && at.is_multiple_of(3));
        if self.in_prefill && self.slot == slot && (from..to).any(waits) {
            self.next = self.next.max(to);
        }
    }

    fn missing(&self) -> u64 {
        if self.in_prefill { 16 * (self.sequence.len() - self.next) as u64 } else { 0 }
    }
}

#[test]
fn what_is_ahead_is_what_was_booked_and_not_told_of() {
    for seed in seeds(20) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut load = tracker(rng.bool().then_some(50));
        let ranks: Vec<WorkerWithDpRank> = (0..3).map(|worker| WorkerWithDpRank::new(worker, 0)).collect();
        let slots: Vec<Slot> = (0..3).map(|worker| add_rank(&mut load, worker)).collect();
        let mut now = Moment(0);
        let works = [None, Some(WorkForm::Events), Some(WorkForm::Rate), Some(WorkForm::Clock)].map(spec);
        let mut kept = works.len();
        let mut naive: Vec<Naive> = Vec::new();
        for step in 0..300 {
            now = now.after(Duration::from_millis(rng.u64(0..300)));
            if step == 20 {
                // From a tracker that has bookings already.
                kept = works.iter().map(|work| load.keep_work(work, now)).max().unwrap();
                naive.iter_mut().for_each(|booking| booking.next = 0);
            }
            let worker = rng.usize(0..3);
            match rng.u32(0..12) {
                0..=3 => {
                    let chain = rng.u64(0..3) << 32;
                    let sequence: Vec<u64> = (0..rng.u64(1..20)).map(|block| chain + block).collect();
                    let cached = if step < 20 { 0 } else { rng.usize(0..=sequence.len()) };
                    let tokens = 16 * (sequence.len() - cached) as u64 + rng.u64(0..16);
                    let id = BookingId(1000 + step);
                    let (slot, next) = (slots[worker], cached);
                    let booking = NewBooking {
                        id,
                        slot,
                        sequence: sequence.clone().into(),
                        prefill_tokens: tokens,
                        prefill_duration: None,
                        expected_output_tokens: None,
                    };
                    let (booked, expired) = load.book(booking, now);
                    assert!(booked);
                    naive.retain(|booking| !expired.contains(&booking.id));
                    naive.push(Naive { id, slot, sequence, next, in_prefill: tokens > 0 });
                }
                4..=6 => {
                    let chain = rng.u64(0..3) << 32;
                    let sequence: Vec<u64> = (0..20).map(|block| chain + block).collect();
                    let from = rng.usize(0..20);
                    let to = rng.usize(from..=20);
                    // Twice now and then, as after a replay.
                    for _ in 0..rng.u32(1..3) {
                        load.stored(ranks[worker], &sequence[from..to]);
                        naive.iter_mut().for_each(|booking| booking.stored(slots[worker], &sequence, from, to));
                    }
                }
                7 | 8 if !naive.is_empty() => {
                    let at = rng.usize(0..naive.len());
                    naive[at].in_prefill = false;
                    assert!(load.prefill_complete(naive[at].id, now));
                }
                9 if !naive.is_empty() => {
                    let gone = naive.swap_remove(rng.usize(0..naive.len()));
                    assert!(load.free(gone.id, now));
                }
                10 => load.set_event_flow(ranks[worker], rng.bool()),
                11 if rng.u32(0..4) == 0 => {
                    let gone = load.remove_rank(ranks[worker]);
                    naive.retain(|booking| !gone.contains(&booking.id));
                    assert_eq!(slots[worker], add_rank(&mut load, worker as u64));
                }
                _ => {
                    let expired = load.expire(now);
                    naive.retain(|booking| !expired.contains(&booking.id));
                }
            }
            load.check();
            for work in kept.saturating_sub(works.len() - 1)..load.works().len() {
                let work = load.work(work);
                for &slot in &slots {
                    let (ahead, form) = work.ahead(slot);
                    let here = || naive.iter().filter(|booking| booking.slot == slot);
                    let missing: u64 = here().map(Naive::missing).sum();
                    if form == WorkForm::Events {
                        assert_eq!(ahead, missing, "seed {seed} step {step} slot {slot}");
                    }
                    if here().next().is_none() {
                        assert_eq!(ahead, 0, "seed {seed} step {step}");
                    }
                }
            }
        }
        for booking in naive {
            assert!(load.free(booking.id, now));
        }
        load.check();
        assert_eq!(load.live(), 0);
    }
}

/// Whatever clients, engines and clocks say: never negative, never more than booked, nothing left at the end.
#[test]
fn what_is_ahead_is_never_more_than_booked_and_never_left_behind() {
    for seed in seeds(20) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut load = tracker(rng.bool().then_some(5));
        let mut works = [None, Some(WorkForm::Events), Some(WorkForm::Rate), Some(WorkForm::Clock)].map(spec);
        let mut live: Vec<BookingId> = Vec::new();
        let mut now = Moment(rng.u64(..) >> rng.u32(0..64));
        for step in 0..300 {
            // Clocks may step back.
            let step_of_time = rng.u64(..) >> rng.u32(20..64);
            now = Moment(if rng.u32(0..8) == 0 {
                now.0.saturating_sub(step_of_time)
            } else {
                now.0.saturating_add(step_of_time)
            });
            let rank = WorkerWithDpRank::new(rng.u64(0..4), 0);
            // A block may be there twice, and be another prompt's.
            let blocks = rng.usize(0..24);
            let sequence: Vec<u64> = (0..blocks).map(|at| if rng.bool() { at as u64 } else { rng.u64(0..6) }).collect();
            match rng.u32(0..14) {
                0..=4 => {
                    let Some(slot) = load.slot(rank) else { continue };
                    let id = BookingId(if rng.u32(0..6) == 0 { rng.u64(0..step + 1) } else { step });
                    let fitting = 16 * rng.u64(0..=blocks as u64) + rng.u64(0..16);
                    let booking = NewBooking {
                        id,
                        slot,
                        sequence: sequence.into(),
                        prefill_tokens: [fitting, fitting, fitting, 1 << 40, u64::MAX][rng.usize(0..5)],
                        prefill_duration: None,
                        expected_output_tokens: None,
                    };
                    let known = load.is_live(id);
                    let (booked, expired) = load.book(booking, now);
                    assert_eq!(booked, !known, "seed {seed} step {step}");
                    live.retain(|id| !expired.contains(id));
                    if booked {
                        live.push(id);
                    }
                }
                5 | 6 => load.stored(rank, &sequence),
                7 | 8 if !live.is_empty() => {
                    let id = live[rng.usize(0..live.len())];
                    // Twice, as a client that tries again.
                    (0..rng.u32(1..3)).for_each(|_| assert!(load.prefill_complete(id, now)));
                }
                9 if !live.is_empty() => {
                    let id = live.swap_remove(rng.usize(0..live.len()));
                    assert!(load.free(id, now));
                    assert!(!load.free(id, now) && !load.prefill_complete(id, now));
                }
                10 => load.set_event_flow(rank, rng.bool()),
                11 => {
                    let gone = load.remove_rank(rank);
                    live.retain(|id| !gone.contains(id));
                }
                12 if rng.bool() => match rng.u32(0..3) {
                    0 => load.forget_work(),
                    1 => load.retire_work(),
                    _ => works.rotate_left(1),
                },
                12 => {
                    let expired = load.expire(now);
                    live.retain(|id| !expired.contains(id));
                }
                _ => {
                    add_rank(&mut load, rank.worker_id);
                }
            }
            let at = load.keep_work(&works[rng.usize(0..2)], now);
            load.check();
            for slot in load.slots() {
                let rank = load.rank(slot).unwrap();
                let (ahead, booked) = (load.work(at).ahead(slot).0, load.load(slot, now).prefill_tokens);
                assert!(ahead <= booked, "seed {seed} step {step} rank {rank:?}: {ahead} ahead of {booked}");
                let line = load.work(at).lines().line(slot).unwrap();
                assert!(line.intercept >= 0.0 && line.slope > 0.0 && line.cost(1e12).is_finite(), "{line:?}");
            }
        }
        for id in live {
            assert!(load.free(id, now));
        }
        load.check();
        assert_eq!(load.live(), 0, "seed {seed}");
    }
}
