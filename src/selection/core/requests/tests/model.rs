//! Random sequences of verbs against a plain list of what should be booked.

use std::collections::HashMap;

use super::*;

#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: u64,
    prefill: u64,
    blocks: u64,
}

#[derive(Default)]
struct Model {
    workers: Vec<u64>,
    booked: HashMap<String, Entry>,
    /// Worker and blocks of cached selections.
    pending: HashMap<String, (u64, u64)>,
}

impl Model {
    fn loads(&self) -> Vec<(u64, u32, u64, u64, u64)> {
        let mut workers = self.workers.clone();
        workers.sort_unstable();
        let row = |worker: u64| {
            let of = || self.booked.values().filter(move |entry| entry.worker == worker);
            let sum = |value: fn(&Entry) -> u64| of().map(value).sum();
            (worker, 0, sum(|entry| entry.prefill), sum(|entry| entry.blocks), of().count() as u64)
        };
        workers.into_iter().map(row).collect()
    }

    /// Why a booking of `id` must fail whatever else is true.
    fn conflict(&self, id: &str) -> Option<&'static str> {
        if self.workers.is_empty() {
            Some("unavailable")
        } else if self.booked.contains_key(id) {
            Some("conflict")
        } else {
            None
        }
    }
}

fn check<T: std::fmt::Debug>(outcome: Result<T, SelectionError>, expected: Option<&str>, what: &str) -> Option<T> {
    assert_eq!(outcome.as_ref().err().map(SelectionError::reason), expected, "{what}: {outcome:?}");
    outcome.ok()
}

fn run(seed: u64, steps: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let bed = Bed::new(approximate(|config| config.seed = Some(seed)));
    let mut model = Model::default();
    for step in 0..steps {
        let id = rng.u8(0..8).to_string();
        let what = format!("seed {seed}, step {step}, id {id}");
        // Every prompt is new, so that nothing is cached or shared but what a replay repeats.
        let blocks = rng.u64(1..20);
        let content = prompt(1 + (step * 100).cast_signed(), blocks.cast_signed());
        let target = rng.u64(1..5);
        match rng.u8(0..12) {
            0..=2 => {
                let answer = check(bed.reserve(booking(&id, content)), model.conflict(&id), &what);
                if let Some(answer) = answer {
                    assert!(model.workers.contains(&answer.worker_id), "{what}");
                    model.booked.insert(id, Entry { worker: answer.worker_id, prefill: blocks * 4, blocks });
                }
            }
            3 => {
                let expected = model.workers.is_empty().then_some("unavailable");
                if let Some(answer) = check(bed.select(booking(&id, content)), expected, &what) {
                    model.pending.insert(id, (answer.worker_id, blocks));
                }
            }
            4 | 5 => {
                let cached = model.pending.get(&id).copied();
                let expected = match cached {
                    None => Some("not_found"),
                    Some(_) if model.workers.is_empty() => Some("unavailable"),
                    Some((worker, _)) if !model.workers.contains(&worker) => Some("not_found"),
                    Some(_) => model.conflict(&id),
                };
                if check(bed.book(replay(&id)), expected, &what).is_some()
                    && let Some((worker, blocks)) = model.pending.remove(&id)
                {
                    model.booked.insert(id, Entry { worker, prefill: blocks * 4, blocks });
                }
            }
            6 => {
                model.pending.remove(&id);
                let expected = match model.conflict(&id) {
                    Some("unavailable") => Some("unavailable"),
                    _ if !model.workers.contains(&target) => Some("not_found"),
                    conflict => conflict,
                };
                let stated = rng.u64(0..=blocks * 4);
                let request =
                    ReservationRequest { effective_prefill_tokens: Some(stated), ..named(&id, target, content) };
                if check(bed.book(request), expected, &what).is_some() {
                    model.booked.insert(id, Entry { worker: target, prefill: stated, blocks });
                }
            }
            7 => {
                let known = model.booked.get_mut(&id);
                check(bed.core.prefill_complete(&id), known.is_none().then_some("not_found"), &what);
                if let Some(entry) = known {
                    entry.prefill = 0;
                }
            }
            8 => {
                let known = model.booked.get_mut(&id);
                check(bed.core.add_output_block(&id, None), known.is_none().then_some("not_found"), &what);
                if let Some(entry) = known {
                    entry.blocks += 1;
                }
            }
            9 | 10 => {
                let gone = model.booked.remove(&id).is_none();
                check(bed.core.free_reservation(&id), gone.then_some("not_found"), &what);
            }
            _ if rng.bool() => {
                bed.worker(target, |_| {});
                if !model.workers.contains(&target) {
                    model.workers.push(target);
                }
            }
            _ => {
                let known = model.workers.iter().position(|&worker| worker == target);
                check(bed.core.delete_worker(target), known.is_none().then_some("not_found"), &what);
                if let Some(at) = known {
                    model.workers.remove(at);
                    model.booked.retain(|_, entry| entry.worker != target);
                }
            }
        }
        assert_eq!(bed.loads(), model.loads(), "{what}");
        assert_eq!(bed.core.live_bookings(), model.booked.len(), "{what}");
    }
}

/// `POINTSMAN_SEEDS` sets how many sequences a long run plays.
#[test]
fn any_sequence_of_verbs_books_what_it_should() {
    let seeds = std::env::var("POINTSMAN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        run(seed, 300);
    }
}
