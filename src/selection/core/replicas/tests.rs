//! A core with one peer, for tests of what replicas tell each other.

mod events;
mod state;

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::*;
use crate::selection::{
    Clock, Moment, PartitionKey, SelectionConfig,
    core::PartitionFilter,
    ingest::NoEventSources,
    replication::{LoadDigest, MAX_MIRRORED_WORDS, ReplicaOutlet, Replication},
    request::{AffinityTarget, PromptInput, ReservationRequest},
    sessions::SessionVersion,
    testing::{ManualClock, ready},
    worker::{WorkerFields, WorkerRequest},
};

/// Keeps what is published.
#[derive(Default)]
struct Published(Mutex<Vec<BookingEvent>>);

impl ReplicaOutlet for Published {
    fn booking(&self, event: BookingEvent) -> u64 {
        let mut events = self.0.lock();
        events.push(event);
        events.len() as u64
    }

    fn session(&self, _: SessionEvent) {}
}

struct Bed {
    core: Arc<SelectionCore>,
    clock: Arc<ManualClock>,
    published: Arc<Published>,
}

const OWN: RouterId = 1;
const PEER: RouterId = 2;

fn key() -> PartitionKey {
    PartitionKey::new("m", "default")
}

impl Bed {
    fn new() -> Self {
        let config = SelectionConfig {
            session_affinity_ttl: Some(Duration::from_secs(60)),
            use_kv_events: false,
            ..SelectionConfig::default()
        };
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000));
        let core = SelectionCore::try_new(config, clock.clone(), Arc::new(NoEventSources)).expect("valid");
        let published = Arc::new(Published::default());
        assert!(core.replicate(Replication { router_id: OWN, outlet: published.clone() }));
        let bed = Self { core, clock, published };
        bed.worker(7, "default");
        bed
    }

    /// A worker of two ranks.
    fn worker(&self, worker_id: u64, routing_group: &str) {
        let fields = WorkerFields {
            endpoint: Some("http://w".to_owned()),
            block_size: Some(16),
            data_parallel_size: Some(2),
            ..WorkerFields::default()
        };
        let (model_name, routing_group) = ("m".to_owned(), routing_group.to_owned());
        self.core.upsert_worker(WorkerRequest { worker_id, model_name, routing_group, fields }).expect("valid");
    }

    fn send(&self, id: &str, change: BookingChange) -> Mirrored {
        self.core.mirror_booking(event(id, change), PEER)
    }

    fn live(&self) -> u64 {
        self.core.loads(&PartitionFilter::default()).iter().flat_map(|p| &p.loads).map(|r| r.active_requests).sum()
    }

    fn prefill(&self) -> u64 {
        let loads = self.core.loads(&PartitionFilter::default());
        loads.iter().flat_map(|p| &p.loads).map(|r| r.potential_prefill_tokens).sum()
    }

    fn reserve(&self, id: &str) {
        let request = ReservationRequest {
            model_name: "m".to_owned(),
            routing_group: "default".to_owned(),
            selection_id: id.to_owned(),
            worker_id: Some(7),
            prompt: PromptInput { sequence_hashes: Some(vec![1, 2]), isl_tokens: Some(32), ..PromptInput::default() },
            effective_prefill_tokens: Some(32),
            ..ReservationRequest::default()
        };
        ready(self.core.create_reservation(request)).expect("booked");
    }

    fn digest(&self, origin: RouterId) -> LoadDigest {
        let digests = self.core.partition_digest(&key()).expect("exists");
        digests.origins.iter().find(|digest| digest.origin == origin).map(|d| d.load).unwrap_or_default()
    }

    fn all(&self, origin: Option<RouterId>) -> Vec<BookingSnapshot> {
        (0..).map_while(|part| self.core.replica_bookings(&key(), origin, None, part)).flatten().collect()
    }

    fn changes(&self) -> Vec<(String, BookingChange)> {
        let events = self.published.0.lock();
        let plain = |event: &BookingEvent| (event.selection_id.to_string(), event.change.clone());
        events.iter().map(plain).filter(|(_, change)| !matches!(change, BookingChange::Admitted(_))).collect()
    }
}

fn admission() -> Admission {
    Admission {
        sequence: [1, 2].into(),
        track_prefill_tokens: true,
        expected_output_tokens: None,
        prefill: Some(PrefillHint { tokens: 32, duration: None }),
    }
}

fn admitted() -> BookingChange {
    BookingChange::Admitted(admission())
}

fn event(id: &str, change: BookingChange) -> BookingEvent {
    BookingEvent {
        partition: key(),
        block_size: 16,
        selection_id: id.into(),
        rank: WorkerWithDpRank::new(7, 1),
        lora_name: None,
        change,
    }
}
