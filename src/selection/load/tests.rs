//! Load against recorded examples and against a naive model.

mod examples;
mod model;
mod time;
mod work;

use super::*;
use crate::selection::{identity::WorkerWithDpRank, moment::Moment};

fn tracker(expiry: Option<u64>) -> LoadTracker {
    LoadTracker::new(LoadConfig { block_size: 16, expiry: expiry.map(Duration::from_secs) })
}

fn add_rank(load: &mut LoadTracker, worker_id: u64) -> Slot {
    load.upsert_rank(WorkerWithDpRank::new(worker_id, 0), Arc::new(WorkerFacts { worker_id, ..Default::default() }))
}

fn prompt(load: &mut LoadTracker, id: u64, slot: Slot, sequence: &[u64], tokens: u64) {
    let booking = NewBooking {
        id: BookingId(id),
        slot,
        sequence: sequence.into(),
        prefill_tokens: tokens,
        prefill_duration: None,
        expected_output_tokens: None,
    };
    assert!(load.book(booking, Moment(0)).0);
}

fn blocks(load: &LoadTracker, slot: Slot) -> u64 {
    load.load(slot, Moment(0)).blocks
}

/// How many random histories a test runs; `POINTSMAN_SEEDS` sets it.
fn seeds(default: u64) -> std::ops::Range<u64> {
    0..std::env::var("POINTSMAN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}
