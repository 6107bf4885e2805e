//! From a ModelPool and what is in the cluster to its workers, and to reasons for all that are none. Pure.

pub(super) mod annotations;
mod candidate;
mod record;
mod spec;
mod standing;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

pub(super) use spec::{Finder, PoolSpec};
pub(super) use standing::Memories;

use self::{
    annotations::Overrides,
    candidate::Candidate,
    record::{EngineAnswers, Place},
    standing::Standing,
};
use super::{
    engine::EngineKey,
    objects::{ContainerState, NodeView, PodView, SliceView},
    state::MAX_WARNINGS,
};
use crate::{
    kubernetes::api::{
        constants::rejection,
        model_pool::{Rejection, ValueSource},
    },
    selection::catalog::DesiredWorker,
};

/// What of the cluster a pool is resolved against: its own namespace, and the nodes.
pub(super) struct Surroundings<'a> {
    /// Pods by UID; none where they cannot be read.
    pub pods: Option<&'a HashMap<Arc<str>, Arc<PodView>>>,
    /// UID by name of the pod.
    pub pod_names: &'a HashMap<Arc<str>, Arc<str>>,
    /// Slices of the pool's Service, by name.
    pub slices: Vec<&'a SliceView>,
    /// Nodes by name; none where they cannot be read.
    pub nodes: Option<&'a HashMap<Arc<str>, NodeView>>,
    /// What engines answered.
    pub answers: EngineAnswers<'a>,
}

/// Why something is no worker: a reason of [`rejection`] and a message.
pub(super) type Refusal = (&'static str, String);

/// A worker.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Name of the pod, or address and port.
    pub name: Arc<str>,
    /// UID of the pod, or address and port.
    pub identity: Arc<str>,
    /// Id of the container that owns the port; empty where it cannot be known.
    pub container: Arc<str>,
    /// First rank.
    pub start_rank: u32,
    /// Where it is.
    pub address: (IpAddr, u16),
    /// It is ready, and not on its way out.
    pub ready: bool,
    /// When its readiness changed, where the pod tells.
    ready_since: Option<Timestamp>,
    /// The record; its id is not derived yet.
    pub record: DesiredWorker,
}

/// What a pool came to.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolWorkers {
    /// Pods or endpoints that were found.
    pub discovered: usize,
    /// Workers, sorted by name.
    pub workers: Vec<Found>,
    /// All that are none, sorted by name.
    pub rejections: Vec<Rejection>,
    /// What was ignored.
    pub warnings: Vec<String>,
    /// Where values come from.
    pub sources: Vec<ValueSource>,
    /// Nodes whose labels were read.
    pub nodes: BTreeSet<Arc<str>>,
    /// Engines that are to be asked, by base URL.
    pub asks: BTreeMap<EngineKey, String>,
    /// When time alone changes something.
    pub next_wake: Option<Timestamp>,
}

/// Resolves a pool at `now`. `memories` is what is remembered of its workers from the last time.
pub(super) fn resolve(
    spec: &PoolSpec,
    around: &Surroundings<'_>,
    memories: &mut Memories,
    now: Timestamp,
) -> PoolWorkers {
    let candidates = candidate::candidates(spec, around);
    let mut out = PoolWorkers { discovered: candidates.len(), ..PoolWorkers::default() };
    memories.begin();
    for candidate in &candidates {
        match worker(spec, candidate, around, memories, now, &mut out) {
            Ok(found) => out.workers.push(found),
            Err((reason, message)) => out.reject(&candidate.name, reason, message),
        }
    }
    memories.end();
    out.part_shared_addresses();
    out.workers.sort_by(|a, b| (&a.name, &a.identity).cmp(&(&b.name, &b.identity)));
    out.rejections.sort();
    out.warnings.sort();
    out.warnings.truncate(MAX_WARNINGS);
    out
}

fn worker(
    spec: &PoolSpec,
    candidate: &Candidate<'_>,
    around: &Surroundings<'_>,
    memories: &mut Memories,
    now: Timestamp,
    out: &mut PoolWorkers,
) -> Result<Found, Refusal> {
    if let Some(refusal) = &candidate.refusal {
        return Err(refusal.clone());
    }
    if let Some(phase) = candidate.pod.and_then(|pod| pod.finished.as_ref()) {
        return Err((rejection::POD_FINISHED, format!("the pod has ended: phase {phase}")));
    }
    let overrides = match candidate.pod {
        Some(pod) => Overrides::read(pod, &mut out.warnings)?,
        None => Overrides::default(),
    };
    if overrides.exclude {
        return Err((rejection::EXCLUDED, "an annotation takes the pod out".to_owned()));
    }
    let address = candidate.address.ok_or_else(|| {
        let message = "the pod has no address yet";
        (rejection::NO_ADDRESS, message.to_owned())
    })?;
    let port = candidate.port(overrides.endpoint_port, &spec.endpoint_port)?;
    let container = container(candidate, port)?;
    let identity = match &candidate.identity {
        Some(identity) => identity.clone(),
        None => std::net::SocketAddr::new(address, port).to_string().into(),
    };
    let memory = memories.of(&identity, &container.id);
    let standing = standing::standing(candidate, container.started, memory, spec.not_ready_grace, now);
    out.wake_at(standing.until());
    let (state, ready) = match standing {
        Standing::Active => (crate::selection::worker::WorkerState::Active, true),
        Standing::Draining { .. } => (crate::selection::worker::WorkerState::Draining, false),
        Standing::Refused(refusal) => return Err(refusal),
    };
    let place = Place {
        address,
        port,
        topology: topology(spec, candidate, around, out),
        engine: EngineKey::new(&identity, &container.id, spec.scheme, address, port),
    };
    let (start_rank, request) = record::build(spec, &overrides, place, around.answers, out)?;
    Ok(Found {
        name: candidate.name.clone(),
        identity,
        container: container.id,
        start_rank,
        address: (address, port),
        ready,
        ready_since: candidate.pod.and_then(|pod| pod.ready_since),
        record: DesiredWorker { state, request },
    })
}

/// The container whose cache a worker is.
struct Incarnation {
    id: Arc<str>,
    started: Option<Timestamp>,
}

/// The container that owns `port`. A container that does not run has no cache any more, so its worker goes at once.
fn container(candidate: &Candidate<'_>, port: u16) -> Result<Incarnation, Refusal> {
    let unknown = || Incarnation { id: "".into(), started: None };
    let Some(pod) = candidate.pod else { return Ok(unknown()) };
    let Some(container) = pod.container_of(port) else { return Ok(unknown()) };
    match &container.state {
        ContainerState::Running { id, started } => Ok(Incarnation { id: id.clone(), started: *started }),
        // Pods that no kubelet runs may tell of readiness alone.
        ContainerState::Unknown if pod.ready => Ok(unknown()),
        ContainerState::Unknown => {
            Err((rejection::NOT_READY, format!("container {} has not been started yet", container.name)))
        }
        ContainerState::Stopped(why) if pod.terminating.is_some() => Err((
            rejection::POD_FINISHED,
            format!("the pod terminates, and container {} has ended: {why}", container.name),
        )),
        ContainerState::Stopped(why) => {
            Err((rejection::NOT_READY, format!("container {} is not running: {why}", container.name)))
        }
    }
}

/// The well-known label that slices carry as well.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

fn topology(
    spec: &PoolSpec,
    candidate: &Candidate<'_>,
    around: &Surroundings<'_>,
    out: &mut PoolWorkers,
) -> BTreeMap<String, String> {
    if spec.topology.is_empty() {
        return BTreeMap::new();
    }
    let name = candidate.node();
    let node = match (around.nodes, name) {
        (Some(nodes), Some(name)) => {
            out.nodes.insert(name.clone());
            nodes.get(name)
        }
        _ => None,
    };
    let value = |label: &String| match node {
        Some(node) => node.labels.get(label).cloned(),
        None => candidate.zone().filter(|_| label == ZONE_LABEL).map(|zone| zone.to_string()),
    };
    spec.topology.iter().filter_map(|(domain, label)| Some((domain.clone(), value(label)?))).collect()
}

impl PoolWorkers {
    fn reject(&mut self, name: &str, reason: &str, message: String) {
        self.rejections.push(Rejection { name: name.to_owned(), reason: reason.to_owned(), message });
    }

    fn wake_at(&mut self, at: Option<Timestamp>) {
        self.next_wake = [self.next_wake, at].into_iter().flatten().min();
    }

    /// One address and port is one worker: the ready one, then the one whose readiness is the newest. The address of a
    /// pod that ended may be another's already.
    fn part_shared_addresses(&mut self) {
        let rank = |w: &Found| (w.ready, w.ready_since, w.identity.clone());
        let mut best: HashMap<(IpAddr, u16), usize> = HashMap::with_capacity(self.workers.len());
        let mut losers = Vec::new();
        for (at, worker) in self.workers.iter().enumerate() {
            match best.entry(worker.address) {
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(at);
                }
                std::collections::hash_map::Entry::Occupied(mut taken) => {
                    let before = *taken.get();
                    let won = rank(worker) > rank(&self.workers[before]);
                    losers.push(if won { (before, at) } else { (at, before) });
                    if won {
                        taken.insert(at);
                    }
                }
            }
        }
        for (loser, winner) in losers {
            let message = format!("its address is that of {} now", self.workers[winner].name);
            let name = self.workers[loser].name.clone();
            self.reject(&name, rejection::POD_GONE, message);
            self.workers[loser].record.request.worker_id = LOST;
        }
        self.workers.retain(|w| w.record.request.worker_id != LOST);
    }
}

/// Marks a record that is to go; derived ids have 53 bits.
const LOST: u64 = u64::MAX;
