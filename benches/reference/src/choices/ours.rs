//! A core of ours in the state of the simulated selector, asked for the cost of every worker.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use pointsman::{
    selection::{
        SelectionConfig, SelectionCore, Tier,
        index::StoredBlock,
        ingest::{EventSink, EventSource, EventSources, Trust},
        request::SelectRequest,
        worker::WorkerRequest,
    },
    simulation::clock::VirtualClock,
};

use crate::ours::now;

/// What the core listens to: the events it is handed here.
#[derive(Default)]
struct Sinks(Mutex<HashMap<u64, EventSink>>);

impl EventSources for Sinks {
    fn attach(&self, source: EventSource, sink: EventSink) {
        sink.set_trust(Trust::Complete);
        self.0.lock().expect("no panic under it").insert(source.worker_id, sink);
    }

    fn detach(&self, _worker_id: u64, _dp_rank: u32) {}
}

pub struct Follower {
    core: Arc<SelectionCore>,
    sinks: Arc<Sinks>,
}

impl Follower {
    pub fn new() -> Self {
        let (clock, sinks) = (Arc::new(VirtualClock::default()), Arc::new(Sinks::default()));
        let core = SelectionCore::try_new(SelectionConfig::default(), clock, Arc::clone(&sinks) as _);
        Self { core: core.expect("default settings are valid"), sinks }
    }

    pub fn join(&self, worker: &WorkerRequest) {
        self.core.upsert_worker(worker.clone()).expect("the simulated selector took it");
    }

    pub fn store(&self, worker_id: u64, parent: Option<u64>, blocks: &[StoredBlock]) {
        self.sink(worker_id).store(0, Tier::Device, parent, blocks);
    }

    pub fn remove(&self, worker_id: u64, names: &[u64]) {
        self.sink(worker_id).remove(0, Tier::Device, names);
    }

    fn sink(&self, worker_id: u64) -> EventSink {
        self.sinks.0.lock().expect("no panic under it")[&worker_id].clone()
    }

    /// What every worker would cost.
    pub fn costs(&self, request: &SelectRequest) -> BTreeMap<u64, f64> {
        let request = SelectRequest { selection_id: None, explain: true, ..request.clone() };
        let answer = now(self.core.select(request)).expect("there are workers");
        let candidates = answer.explain.expect("asked for").candidates;
        candidates.iter().filter_map(|candidate| Some((candidate.worker_id, candidate.cost?))).collect()
    }

    /// Books it on `worker_id`.
    pub fn book(&self, request: &SelectRequest, worker_id: u64) {
        let mut request = request.clone();
        request.steering.allowed_worker_ids = Some(BTreeSet::from([worker_id]));
        now(self.core.select_and_reserve(request)).expect("the worker is there");
    }

    pub fn prefill_complete(&self, selection_id: &str) {
        self.core.prefill_complete(selection_id).expect("booked");
    }

    pub fn free(&self, selection_id: &str) {
        self.core.free_reservation(selection_id).expect("booked");
    }
}
