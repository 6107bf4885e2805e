//! One selector of the fleet: a real core, fed with the engines' events and its peers' messages.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::FleetConfig;
use crate::{
    events::transport::Message,
    mesh::in_process::{self, KeptMessages},
    selection::{
        SelectionCore, Tier,
        index::StoredBlock,
        ingest::{EventSink, EventSource, EventSources, Trust},
        worker::{Lifecycle, WorkerFields, WorkerRequest},
    },
    simulation::{SimulationError, candidate::Candidate, clock::VirtualClock},
};

/// The model all requests are for.
pub(super) const MODEL: &str = "simulated";
/// Its routing group.
pub(super) const GROUP: &str = "default";

/// Collects the sinks the core hands out.
#[derive(Debug, Default)]
struct Sinks(Mutex<HashMap<u64, EventSink>>);

impl EventSources for Sinks {
    fn attach(&self, source: EventSource, sink: EventSink) {
        // Every batch from the engine's start arrives, late or not.
        sink.set_trust(Trust::Complete);
        self.0.lock().insert(source.worker_id, sink);
    }

    fn detach(&self, worker_id: u64, _dp_rank: u32) {
        self.0.lock().remove(&worker_id);
    }
}

/// A selector.
pub(super) struct Replica {
    pub(super) core: Arc<SelectionCore>,
    /// By worker; none where the policy does not look at caches.
    sinks: Vec<Option<EventSink>>,
    /// None where it is alone.
    outbox: Option<Arc<KeptMessages>>,
}

impl Replica {
    pub(super) fn new(
        number: u32,
        candidate: &Candidate,
        config: &FleetConfig,
        workers: &[WorkerRequest],
        clock: &Arc<VirtualClock>,
    ) -> Result<Self, SimulationError> {
        let sinks = Arc::new(Sinks::default());
        let seed = config.seed.wrapping_mul(1_000).wrapping_add(u64::from(number));
        let core = candidate.core(seed, Arc::<VirtualClock>::clone(clock), Arc::<Sinks>::clone(&sinks))?;
        let outbox = (config.replicas > 1 && config.mesh_lag.is_some()).then(|| {
            let outbox = KeptMessages::new(u64::from(number) + 1);
            core.replicate(outbox.replication());
            outbox
        });
        for worker in workers {
            let record = core.upsert_worker(worker.clone());
            let record = record.map_err(|error| SimulationError::Worker(error.to_string()))?;
            if record.lifecycle != Lifecycle::Schedulable {
                return Err(SimulationError::Worker(record.not_schedulable_reasons.join(", ")));
            }
        }
        let sinks = workers.iter().map(|worker| sinks.0.lock().get(&worker.worker_id).cloned()).collect();
        Ok(Self { core, sinks, outbox })
    }

    /// Hears that a worker caches `blocks`.
    pub(super) fn store(&self, worker: usize, parent: Option<u64>, blocks: &[StoredBlock]) {
        if let Some(sink) = &self.sinks[worker] {
            sink.store(0, Tier::Device, parent, blocks);
        }
    }

    /// Hears that a worker no longer caches the blocks called `names`.
    pub(super) fn remove(&self, worker: usize, names: &[u64]) {
        if let Some(sink) = &self.sinks[worker] {
            sink.remove(0, Tier::Device, names);
        }
    }

    /// Hands what this replica has to tell the others to `carry`.
    pub(super) fn publish(&self, carry: impl FnMut(Message)) {
        if let Some(outbox) = &self.outbox {
            outbox.take(carry);
        }
    }

    /// Takes what another replica told.
    pub(super) fn mirror(&self, message: &Message) -> Result<(), SimulationError> {
        in_process::apply(&self.core, message).map(drop).ok_or(SimulationError::Mesh)
    }
}

/// Worker ids start at 1.
pub(super) fn worker_id(worker: u32) -> u64 {
    u64::from(worker) + 1
}

/// What a worker is registered as.
pub(super) fn worker_request(worker: u32, candidate: &Candidate, config: &FleetConfig) -> WorkerRequest {
    let id = worker_id(worker);
    let fields = WorkerFields {
        endpoint: Some(format!("http://worker-{id}:8000")),
        // Nothing connects to it; a worker without one is not schedulable where caches are learnt from events.
        kv_events_endpoint: candidate.uses_kv_events().then(|| format!("tcp://worker-{id}:5557")),
        block_size: Some(config.engine.block_size),
        max_num_batched_tokens: Some(config.engine.token_budget.into()),
        total_kv_blocks: Some(config.engine.kv_blocks.into()),
        ..WorkerFields::default()
    };
    WorkerRequest { worker_id: id, model_name: MODEL.to_owned(), routing_group: GROUP.to_owned(), fields }
}

/// What the content of a block hashes to.
pub(super) fn content(id: u64) -> u64 {
    mix(id ^ 0x5bd1_e995_9d1c_3f07)
}

/// What engines call a block: a hash of their own, like real ones, that says nothing to selectors.
pub(super) fn name(id: u64) -> u64 {
    mix(id ^ 0xc2b2_ae3d_27d4_eb4f)
}

/// The finaliser of SplitMix64: a bijection.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
