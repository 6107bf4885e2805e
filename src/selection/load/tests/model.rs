//! Random histories against the multiset of live bookings.

use super::{super::weight, *};

/// Load as the words say it: every live booking with its blocks, the weight it gave each of them, and its outputs.
#[derive(Default)]
struct Naive {
    bookings: Vec<NaiveBooking>,
}

struct NaiveBooking {
    id: BookingId,
    slot: Slot,
    sequence: Vec<u64>,
    missing: Vec<u128>,
    outputs: Vec<u128>,
    prefill: u64,
}

impl Naive {
    /// Bookings on the slot that hold the block at `at` of `sequence`; its hash fixes all before it.
    fn holders<'a>(
        &'a self,
        slot: Slot,
        sequence: &'a [u64],
        at: usize,
    ) -> impl Iterator<Item = &'a NaiveBooking> + 'a {
        self.bookings.iter().filter(move |other| other.slot == slot && other.sequence.get(at) == sequence.get(at))
    }

    fn output(&mut self, id: BookingId, weight: Option<u128>) {
        let at = self.bookings.iter().position(|booking| booking.id == id).unwrap();
        let (slot, sequence) = (self.bookings[at].slot, self.bookings[at].sequence.clone());
        let mut from = sequence.len();
        while from > 0 && self.holders(slot, &sequence, from - 1).count() == 1 {
            from -= 1;
        }
        let booking = &mut self.bookings[at];
        booking.outputs.push(weight::ONE);
        if let Some(weight) = weight {
            booking.outputs.fill(weight);
            booking.missing[from..].fill(weight::ONE - weight);
        }
    }

    fn load(&self, slot: Slot) -> RankLoad {
        let mut blocks: std::collections::HashMap<u64, (u32, u128)> = Default::default();
        let own = || self.bookings.iter().filter(|booking| booking.slot == slot);
        for booking in own() {
            for at in 0..booking.sequence.len() {
                let block = blocks.entry(booking.sequence[at]).or_default();
                block.0 += 1;
                block.1 = if block.0 == 1 { weight::ONE - booking.missing[at] } else { weight::ONE };
            }
        }
        let weight = blocks.values().map(|block| block.1).sum::<u128>()
            + own().flat_map(|booking| &booking.outputs).sum::<u128>();
        let prefill: u128 = own().map(|booking| u128::from(booking.prefill)).sum();
        RankLoad {
            prefill_tokens: u64::try_from(prefill).unwrap_or(u64::MAX),
            blocks: weight::to_blocks(weight),
            requests: own().count() as u64,
        }
    }

    fn shared(&self, slot: Slot, sequence: &[u64]) -> u64 {
        (0..sequence.len()).take_while(|&at| self.holders(slot, sequence, at).next().is_some()).count() as u64
    }
}

/// A prompt out of a few chains that branch: a block's hash is fixed by all before it, as real ones are.
fn random_prompt(rng: &mut fastrand::Rng, longest: usize) -> Vec<u64> {
    let mut sequence = Vec::new();
    let mut hash = rng.u64(0..3) << 50;
    let (branch_every, branches) = ([3, 8, 40][rng.usize(0..3)], rng.u64(1..3));
    for at in 0..rng.usize(0..longest) {
        let branch = if at % branch_every == 0 { rng.u64(0..=branches) } else { 0 };
        hash = hash.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(branch + 1);
        sequence.push(hash);
    }
    sequence
}

#[test]
fn random_histories_equal_the_naive_model() {
    for seed in seeds(40) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut load = tracker(None);
        let slots: Vec<Slot> = (0..rng.u64(1..=90)).map(|worker| add_rank(&mut load, worker)).collect();
        let longest = [4, 30, 120][rng.usize(0..3)];
        let mut naive = Naive::default();
        let (mut next, mut path) = (0, Vec::new());
        for step in 0..120 {
            let slot = if rng.bool() { slots[0] } else { slots[rng.usize(0..slots.len())] };
            match rng.u32(0..10) {
                0..=4 => {
                    let sequence = random_prompt(rng, longest);
                    let prefill = [0, 1, 500, u64::MAX, u64::MAX - 3][rng.usize(0..5)];
                    prompt(&mut load, next, slot, &sequence, prefill);
                    let missing = vec![0; sequence.len()];
                    let id = BookingId(next);
                    naive.bookings.push(NaiveBooking { id, slot, sequence, missing, outputs: vec![], prefill });
                    next += 1;
                }
                kind if !naive.bookings.is_empty() => {
                    let at = rng.usize(0..naive.bookings.len());
                    let id = naive.bookings[at].id;
                    match kind {
                        5 => {
                            naive.bookings[at].prefill = 0;
                            assert!(load.prefill_complete(id, Moment(0)));
                        }
                        6 | 7 => {
                            let fraction = rng.bool().then(|| f64::from(rng.u32(0..=20)) / 20.0);
                            naive.output(id, fraction.map(weight::of_fraction));
                            assert!(load.output_block(id, fraction, Moment(0)));
                        }
                        _ => {
                            naive.bookings.remove(at);
                            assert!(load.free(id, Moment(0)));
                        }
                    }
                }
                _ => {}
            }
            for &slot in slots.iter().take(3) {
                assert_eq!(load.load(slot, Moment(0)), naive.load(slot), "seed {seed} step {step}");
            }
            if step % 8 == 0 {
                load.check();
                let query = random_prompt(rng, longest);
                let mut found = vec![0; slots.len()];
                load.walk(&query, &mut path);
                for passed in &path {
                    load.owners(*passed).for_each(|slot| found[slot as usize] = u64::from(passed.depth));
                }
                for &slot in &slots {
                    let expected = naive.shared(slot, &query);
                    assert_eq!(load.shared_blocks(slot, &query), expected, "seed {seed} step {step}");
                    assert_eq!(found[slot as usize], expected, "seed {seed} step {step}");
                    assert_eq!(load.shared_on(&path, slot), expected, "seed {seed} step {step}");
                }
            }
        }
        if rng.bool() {
            for booking in &naive.bookings {
                assert!(load.free(booking.id, Moment(0)));
            }
        } else {
            let mut left: Vec<BookingId> = naive.bookings.iter().map(|booking| booking.id).collect();
            let mut gone: Vec<BookingId> =
                (0..slots.len() as u64).flat_map(|worker| load.remove_rank(WorkerWithDpRank::new(worker, 0))).collect();
            left.sort();
            gone.sort();
            assert_eq!(gone, left);
        }
        assert_eq!((load.live(), load.active_runs(), load.forest().check()), (0, 0, 0), "seed {seed}");
        assert!(slots.iter().all(|&slot| load.load(slot, Moment(0)) == RankLoad::default()), "seed {seed}");
    }
}
