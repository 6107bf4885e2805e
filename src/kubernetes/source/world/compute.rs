//! From what was told to the sets: only what a change, or the time, has touched.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use kube::core::{Selector, SelectorExt};

use super::{Kind, Namespace, PoolEntry, World};
use crate::kubernetes::{
    api::{SelectorSet, constants::SELECTOR_SET_LABEL, selector_set::Mode},
    source::{
        engine::EngineKey,
        objects::ObjectKey,
        pool::{self, Finder, PoolWorkers, Surroundings},
        set,
        state::{PoolOutcome, SelectorPod, SetKey, SetState, Sets},
    },
};

impl World {
    /// Computes what changed, or what time changes by `now`. `true` when [`World::sets`] is another than before, and when
    /// all kinds have been listed for the first time.
    pub fn recompute(&mut self, now: Timestamp) -> bool {
        if !(self.listed[Kind::Sets.index()] && self.listed[Kind::Pools.index()]) {
            return false;
        }
        if self.is_listed() {
            for (namespace, space) in &self.namespaces {
                let due = |pool: &PoolEntry| pool.workers.next_wake.is_some_and(|at| at <= now);
                let due = space.pools.iter().filter(|(_, pool)| due(pool)).map(|(name, _)| name.clone());
                self.dirty_pools.extend(due.map(|name| ObjectKey { namespace: namespace.clone(), name }));
            }
            for key in std::mem::take(&mut self.dirty_pools) {
                self.recompute_pool(&key, now);
            }
            let open: BTreeSet<&EngineKey> = self
                .namespaces
                .values()
                .flat_map(|space| space.pools.values().flat_map(|pool| pool.workers.asks.keys()))
                .collect();
            self.answers.retain(|key, _| open.contains(key));
            self.namespaces.retain(|_, space| !space.is_empty());
        }
        let mut sets: Option<Sets> = None;
        for key in std::mem::take(&mut self.dirty_sets) {
            let before = self.sets.get(&key).cloned();
            let after = self.assemble(&key, before.as_deref());
            if after.as_ref().is_none_or(|after| before.as_deref().is_none_or(|before| !is_same(before, after))) {
                let sets = sets.get_or_insert_with(|| Sets::clone(&self.sets));
                match after {
                    Some(after) => drop(sets.insert(key, Arc::new(after))),
                    None => drop(sets.remove(&key)),
                }
            }
        }
        let changed = sets.is_some();
        if let Some(sets) = sets {
            self.sets = Arc::new(sets);
        }
        let is_new = self.is_listed() && !std::mem::replace(&mut self.is_told, true);
        changed || is_new
    }

    fn recompute_pool(&mut self, key: &ObjectKey, now: Timestamp) {
        let Some(space) = self.namespaces.get_mut(&key.namespace) else { return };
        let Some(mut entry) = space.pools.remove(&key.name) else { return };
        self.recomputed += 1;
        entry.workers = match &entry.spec {
            Some(spec) => {
                let slices = match &spec.finder {
                    Finder::Service(service) => space.services.get(service).into_iter().flatten(),
                    Finder::Pods(_) => None.into_iter().flatten(),
                };
                let around = Surroundings {
                    pods: self.reads.pods.then_some(&space.pods),
                    pod_names: &space.pod_names,
                    slices: slices.filter_map(|name| space.slices.get(name)).collect(),
                    nodes: self.reads.nodes.then_some(&self.nodes),
                    answers: &self.answers,
                };
                pool::resolve(spec, &around, &mut entry.memories, now)
            }
            None => PoolWorkers::default(),
        };
        self.dirty_sets.insert(SetKey::new(&*key.namespace, entry.set_name()));
        space.pools.insert(key.name.clone(), entry);
    }

    fn assemble(&mut self, key: &SetKey, before: Option<&SetState>) -> Option<SetState> {
        let is_listed = self.is_listed();
        let space = self.namespaces.get(key.namespace.as_str())?;
        let set = space.sets.get(key.name.as_str());
        let mine = space.pools.iter().filter(|(_, pool)| pool.set_name() == key.name);
        let members: Vec<set::Member<'_>> = mine
            .map(|(name, pool)| set::Member {
                name,
                object: &pool.object,
                invalid: pool.invalid.as_deref(),
                spec: pool.spec.as_ref(),
                workers: &pool.workers,
            })
            .collect();
        if set.is_none() && members.is_empty() {
            return None;
        }
        let assembled = set::assemble(members, set.is_some());
        let snapshot = (is_listed && set.is_some()).then(|| {
            let generation = self.generations.entry(key.clone()).or_default();
            let count = *generation;
            let before = before.and_then(|before| before.snapshot.as_ref());
            let snapshot = set::snapshot(assembled.workers, before, generation);
            self.snapshots += *generation - count;
            snapshot
        });
        let pools = assembled.pools.into_iter().map(|(name, mut outcome)| {
            outcome.listing = !is_listed;
            let same = before.and_then(|before| before.pools.get(&name)).filter(|same| ***same == outcome);
            let outcome: Arc<PoolOutcome> = same.cloned().unwrap_or_else(|| Arc::new(outcome));
            (name, outcome)
        });
        Some(SetState {
            key: key.clone(),
            object: set.and_then(|set| set.object.clone()),
            invalid: set.and_then(|set| set.invalid.clone()),
            snapshot,
            pools: pools.collect(),
            selectors: selectors(space, set.and_then(|set| set.selector.as_ref())),
        })
    }
}

/// The labels by which the selectors of `set` are found.
pub(super) fn selectors_of(set: &SelectorSet) -> Option<Selector> {
    match set.spec.mode {
        Mode::Managed => {
            let name = set.metadata.name.clone().unwrap_or_default();
            Some([(SELECTOR_SET_LABEL.to_owned(), name)].into_iter().collect())
        }
        Mode::External => Selector::try_from(set.spec.pod_selector.clone()?).ok(),
    }
}

fn selectors(space: &Namespace, selector: Option<&Selector>) -> Arc<[SelectorPod]> {
    let Some(selector) = selector else { return Arc::default() };
    let matching = space.pods.values().filter(|pod| selector.matches(&pod.labels));
    let mut pods: Vec<SelectorPod> = matching
        .map(|pod| SelectorPod {
            name: pod.key.name.clone(),
            uid: pod.uid.clone(),
            ip: pod.ip,
            ready: pod.ready,
            terminating: pod.terminating.is_some(),
            finished: pod.finished.is_some(),
            revision: pod.revision(),
            failing: pod.failing.clone(),
        })
        .collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    pods.into()
}

/// Whether two states are one, without a look at every worker: equal digests are equal workers.
fn is_same(before: &SetState, after: &SetState) -> bool {
    let version = |state: &SetState| state.snapshot.as_ref().map(|snapshot| snapshot.version);
    before.object == after.object
        && before.invalid == after.invalid
        && version(before) == version(after)
        && before.selectors == after.selectors
        && before.pools.len() == after.pools.len()
        && before.pools.iter().zip(&after.pools).all(|((a, x), (b, y))| a == b && Arc::ptr_eq(x, y))
}
