//! From the pools of a SelectorSet to its one snapshot: which pool wins where two say different things, and ids. Pure.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    pool::{Found, PoolSpec, PoolWorkers},
    state::{MAX_REJECTIONS, PoolOutcome},
};
use crate::{
    discovery::{Snapshot, identity::derive_ids},
    kubernetes::api::{
        ModelPool,
        constants::{reason, rejection},
        model_pool::Rejection,
    },
    selection::{
        catalog::{DesiredWorker, SnapshotVersion},
        worker::WorkerState,
    },
};

/// A pool of the set.
pub(super) struct Member<'a> {
    pub name: &'a str,
    pub object: &'a Arc<ModelPool>,
    /// Why the object as it is now cannot be followed; `spec` is then the last one that could.
    pub invalid: Option<&'a str>,
    pub spec: Option<&'a PoolSpec>,
    pub workers: &'a PoolWorkers,
}

/// What a set's pools come to.
pub(super) struct Assembled {
    pub pools: BTreeMap<String, PoolOutcome>,
    pub workers: Vec<DesiredWorker>,
}

/// Puts the pools of a set together. `set_exists`: there is such a SelectorSet.
pub(super) fn assemble(mut members: Vec<Member<'_>>, set_exists: bool) -> Assembled {
    // The oldest first: it wins. Pools that were never understood have no age and no workers.
    members.sort_by(|a, b| (a.spec.map(|s| &s.age), a.name).cmp(&(b.spec.map(|s| &s.age), b.name)));
    let mut partitions: HashMap<(&str, &str), &PoolSpec> = HashMap::new();
    let mut claims: HashMap<(IpAddr, u16), &str> = HashMap::new();
    let mut all: Vec<(usize, &Found)> = Vec::new();
    let mut pools = Vec::with_capacity(members.len());
    for (at, member) in members.iter().enumerate() {
        let mut outcome = outcome(member);
        if !set_exists {
            let message =
                format!("there is no SelectorSet {:?} in the namespace", member.object.spec.selector_ref.name);
            outcome.accepted = outcome.accepted.and(Err((reason::SELECTOR_SET_NOT_FOUND, message)));
        }
        let mut rejections = member.workers.rejections.clone();
        if let Some(spec) = member.spec {
            let winner = *partitions.entry((&spec.model, &spec.group)).or_insert(spec);
            if let Some(message) = conflict(spec, winner) {
                outcome.accepted = outcome.accepted.and(Err((reason::POOL_CONFLICT, message)));
            } else {
                for found in &member.workers.workers {
                    match claims.entry(found.address) {
                        std::collections::hash_map::Entry::Occupied(by) => rejections.push(Rejection {
                            name: found.name.to_string(),
                            reason: rejection::CLAIMED_BY_OTHER_POOL.to_owned(),
                            message: format!("{} is a worker of ModelPool {} already", endpoint(found), by.get()),
                        }),
                        std::collections::hash_map::Entry::Vacant(free) => {
                            free.insert(member.name);
                            outcome.ready += usize::from(found.ready);
                            outcome.draining += usize::from(found.record.state == WorkerState::Draining);
                            all.push((at, found));
                        }
                    }
                }
                rejections.sort();
            }
        }
        outcome.rejected = rejections.len();
        rejections.truncate(MAX_REJECTIONS);
        outcome.rejections = rejections;
        pools.push(outcome);
    }
    let workers = identify(&all, &mut pools);
    let names = members.iter().map(|member| member.name.to_owned());
    Assembled { pools: names.zip(pools).collect(), workers }
}

fn outcome(member: &Member<'_>) -> PoolOutcome {
    let workers = member.workers;
    PoolOutcome {
        object: member.object.clone(),
        observed_generation: member.object.metadata.generation,
        accepted: member.invalid.map_or(Ok(()), |why| Err((reason::INVALID_SPEC, why.to_owned()))),
        listing: false,
        discovered: workers.discovered,
        ready: 0,
        draining: 0,
        rejected: 0,
        rejections: Vec::new(),
        sources: workers.sources.clone(),
        warnings: workers.warnings.clone(),
        worker_ids: BTreeMap::new(),
    }
}

/// Why `spec` cannot stand beside the older `winner` of the same model and group.
fn conflict(spec: &PoolSpec, winner: &PoolSpec) -> Option<String> {
    let older = &winner.key.name;
    let partition = format!("model {:?}, group {:?}", spec.model, spec.group);
    if spec.role != winner.role {
        return Some(format!("ModelPool {older}, which is older, has role {:?} in {partition}", winner.role));
    }
    let (own, theirs) = (spec.block_size?, winner.block_size?);
    (own != theirs).then(|| format!("ModelPool {older}, which is older, has blockSize {theirs} in {partition}"))
}

fn endpoint(found: &Found) -> String {
    std::net::SocketAddr::new(found.address.0, found.address.1).to_string()
}

/// The records with their ids; the outcomes are told of them.
fn identify(all: &[(usize, &Found)], pools: &mut [PoolOutcome]) -> Vec<DesiredWorker> {
    let starts: Vec<String> = all.iter().map(|(_, found)| found.start_rank.to_string()).collect();
    let mut ids = vec![0; all.len()];
    let parts = all.iter().zip(&starts).map(|((_, found), start)| {
        let request = &found.record.request;
        [
            request.model_name.as_str(),
            request.routing_group.as_str(),
            &*found.identity,
            &*found.container,
            start.as_str(),
        ]
    });
    let mut identities: Vec<([&str; 5], &mut u64)> = parts.zip(ids.iter_mut()).collect();
    derive_ids(&mut identities, &mut HashSet::with_capacity(all.len()));
    let record = |((at, found), id): (&(usize, &Found), u64)| {
        pools[*at].worker_ids.insert(id, found.name.clone());
        let mut record = found.record.clone();
        record.request.worker_id = id;
        record
    };
    all.iter().zip(ids).map(record).collect()
}

/// The snapshot of `workers`: `before` where nothing differs, else the next of its generation.
pub(super) fn snapshot(workers: Vec<DesiredWorker>, before: Option<&Snapshot>, generation: &mut u64) -> Snapshot {
    let version = SnapshotVersion { epoch: 0, generation: *generation + 1 };
    let next = Snapshot::new(version, workers).expect("derived ids are unique");
    match before {
        Some(before) if before.digest() == next.digest() => before.clone(),
        _ => {
            *generation += 1;
            next
        }
    }
}
