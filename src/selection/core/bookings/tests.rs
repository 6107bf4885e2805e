//! What the index keeps, and that it keeps nothing of what is gone.

use std::time::Duration;

use super::*;
use crate::selection::{
    config::SelectionConfig,
    core::SelectionCore,
    ingest::NoEventSources,
    replication::{Admission, BookingChange, BookingEvent, ReplicaOutlet, Replication, SessionEvent},
    testing::ManualClock,
};

struct Unheard;

impl ReplicaOutlet for Unheard {
    fn booking(&self, _: BookingEvent) -> u64 {
        0
    }

    fn session(&self, _: SessionEvent) {}
}

struct Bed {
    core: Arc<SelectionCore>,
    clock: Arc<ManualClock>,
}

impl Bed {
    /// A core with worker 7.
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let config = SelectionConfig { use_kv_events: false, ..SelectionConfig::default() };
        let core = SelectionCore::try_new(config, clock.clone(), Arc::new(NoEventSources)).expect("valid");
        let worker = serde_json::json!({"worker_id": 7, "model_name": "m", "endpoint": "http://w", "block_size": 16});
        core.upsert_worker(serde_json::from_value(worker).expect("a worker")).expect("accepted");
        Self { core, clock }
    }

    fn replicated() -> Self {
        let bed = Self::new();
        assert!(bed.core.replicate(Replication { router_id: 1, outlet: Arc::new(Unheard) }));
        bed
    }

    fn mirror(&self, id: &str) {
        let admission = Admission {
            sequence: [1, 2].into(),
            track_prefill_tokens: true,
            expected_output_tokens: None,
            prefill: None,
        };
        let event = BookingEvent {
            partition: crate::selection::PartitionKey::new("m", "default"),
            block_size: 16,
            selection_id: id.into(),
            rank: WorkerWithDpRank::new(7, 0),
            lora_name: None,
            change: BookingChange::Admitted(admission),
        };
        assert_eq!(self.core.mirror_booking(event, 2), crate::selection::core::Mirrored::Applied);
    }

    /// Rows, attempts, words of mirrored bookings.
    fn held(&self) -> (usize, usize, u64) {
        let index = &self.core.bookings;
        let attempts = index.shards.iter().map(|shard| shard.lock().attempts.len()).sum();
        (index.len(), attempts, index.mirrored_words.load(Ordering::Relaxed))
    }

    fn remembered(&self) -> usize {
        self.core.bookings.shards.iter().map(|shard| shard.lock().recent.size().0).sum()
    }
}

#[test]
fn nothing_is_held_of_bookings_that_are_gone() {
    let bed = Bed::replicated();
    let partition = bed.core.partition("m", "default").expect("exists");
    drop(bed.core.bookings.claim("claimed".into(), &partition).expect("free"));
    assert_eq!(bed.held(), (0, 0, 0), "a claim that was dropped");
    bed.mirror("freed");
    bed.mirror("left");
    let (rows, attempts, words) = bed.held();
    assert_eq!((rows, attempts), (2, 2));
    assert!(words > 0);
    bed.core.free_reservation("freed").expect("live");
    assert_eq!(bed.held(), (1, 1, words / 2), "a booking that was freed");
    bed.core.delete_worker(7).expect("registered");
    assert_eq!(bed.held(), (0, 0, 0), "a booking whose rank left");
}

#[test]
fn ids_are_spread_over_the_shards() {
    let bed = Bed::new();
    let partition = bed.core.partition("m", "default").expect("exists");
    let claims: Vec<_> =
        (0..1000).map(|at| bed.core.bookings.claim(at.to_string().into(), &partition).expect("free")).collect();
    let rows: Vec<_> = bed.core.bookings.shards.iter().map(|shard| shard.lock().rows.len()).collect();
    assert!(rows.iter().all(|&rows| rows < 100), "{rows:?}");
    drop(claims);
}

#[test]
fn attempts_hash_to_different_values() {
    let hashes: std::collections::HashSet<_> = (0..1000).map(|at| BuildAttemptHasher.hash_one(BookingId(at))).collect();
    assert_eq!(hashes.len(), 1000);
}

#[test]
fn ended_bookings_and_early_calls_are_remembered_for_a_minute() {
    let bed = Bed::replicated();
    bed.mirror("x");
    bed.core.free_reservation("x").expect("live");
    bed.core.free_reservation("unknown").expect_err("unknown");
    assert_eq!(bed.remembered(), 2);
    bed.mirror("x");
    assert_eq!(bed.remembered(), 1, "it lives again");
    bed.core.free_reservation("x").expect("live");
    bed.clock.advance(Duration::from_secs(60));
    bed.core.tick();
    assert_eq!(bed.remembered(), 0);
}

#[test]
fn without_replicas_nothing_is_remembered() {
    let bed = Bed::new();
    bed.mirror("freed");
    bed.mirror("left");
    bed.core.free_reservation("freed").expect("live");
    bed.core.free_reservation("freed").expect_err("freed");
    bed.core.delete_worker(7).expect("registered");
    assert_eq!(bed.remembered(), 0);
}
