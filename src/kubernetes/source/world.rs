//! What is in the cluster, indexed by what pools and sets depend on. Pure: objects and the time go in, [`Sets`] come out.
//!
//! Invariants: the sets depend on the objects that are there (and on the memory of readiness), not on the order in which
//! they were told of; a change marks the pools and sets that it touches, and [`World::recompute`] computes those alone;
//! until every kind was listed in full, no set has a snapshot.

mod compute;
mod object;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use kube::core::{Selector, SelectorExt};

use self::compute::selectors_of;
pub use self::object::{Kind, Object, Reads};
use super::{
    engine::{Answer, Answers, EngineKey},
    objects::{NodeView, ObjectKey, PodView, SliceView},
    pool::{Finder, Memories, PoolSpec, PoolWorkers},
    state::{SetKey, Sets},
};
use crate::kubernetes::api::{ModelPool, SelectorSet};

#[derive(Default)]
struct Namespace {
    /// By UID.
    pods: HashMap<Arc<str>, Arc<PodView>>,
    pod_names: HashMap<Arc<str>, Arc<str>>,
    slices: BTreeMap<Arc<str>, SliceView>,
    /// Names of slices by Service.
    services: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Services that name a pod, with the number of times.
    targets: HashMap<Arc<str>, HashMap<Arc<str>, usize>>,
    pools: BTreeMap<Arc<str>, PoolEntry>,
    sets: BTreeMap<Arc<str>, SetEntry>,
}

impl Namespace {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.slices.is_empty() && self.pools.is_empty() && self.sets.is_empty()
    }
}

struct PoolEntry {
    object: Arc<ModelPool>,
    /// Why the object as it is now cannot be followed.
    invalid: Option<String>,
    /// The last spec that could.
    spec: Option<PoolSpec>,
    memories: Memories,
    workers: PoolWorkers,
}

impl PoolEntry {
    fn set_name(&self) -> &str {
        self.spec.as_ref().map_or(self.object.spec.selector_ref.name.as_str(), |spec| spec.set.as_str())
    }
}

struct SetEntry {
    object: Option<Arc<SelectorSet>>,
    invalid: Option<String>,
    /// Its selectors' labels; none where they cannot be told.
    selector: Option<Selector>,
}

/// The cluster.
pub struct World {
    reads: Reads,
    listed: [bool; Kind::ALL.len()],
    namespaces: HashMap<Arc<str>, Namespace>,
    nodes: HashMap<Arc<str>, NodeView>,
    answers: Answers,
    dirty_pools: BTreeSet<ObjectKey>,
    dirty_sets: BTreeSet<SetKey>,
    sets: Arc<Sets>,
    /// Whether a world in full was told of: one without sets is news too, once.
    is_told: bool,
    /// Kept for sets that are gone: a set that comes back must not count from the beginning.
    generations: HashMap<SetKey, u64>,
    recomputed: u64,
    snapshots: u64,
}

impl World {
    /// Nothing was listed yet.
    pub fn new(reads: Reads) -> Self {
        let mut listed = [false; Kind::ALL.len()];
        listed[Kind::Pods.index()] = !reads.pods;
        listed[Kind::Nodes.index()] = !reads.nodes;
        Self {
            reads,
            listed,
            namespaces: HashMap::new(),
            nodes: HashMap::new(),
            answers: Answers::new(),
            dirty_pools: BTreeSet::new(),
            dirty_sets: BTreeSet::new(),
            sets: Arc::default(),
            is_told: false,
            generations: HashMap::new(),
            recomputed: 0,
            snapshots: 0,
        }
    }

    /// `kind` cannot be read: everything is computed without it.
    pub fn give_up(&mut self, kind: Kind) {
        match kind {
            Kind::Pods => self.reads.pods = false,
            Kind::Nodes => self.reads.nodes = false,
            Kind::Sets | Kind::Pools | Kind::Slices => return,
        }
        self.reset(kind, Vec::new());
    }

    /// Takes in an object that is new or changed.
    pub fn apply(&mut self, object: Object) {
        match object {
            Object::Pod(pod) => self.apply_pod(pod),
            Object::Slice(slice) => self.apply_slice(slice),
            Object::Node(node) => self.apply_node(node),
            Object::Pool(pool, invalid) => self.apply_pool(pool, invalid),
            Object::Set(key, set) => self.apply_set(&key, set),
        }
    }

    /// An object is gone.
    pub fn delete(&mut self, kind: Kind, key: &ObjectKey) {
        match kind {
            Kind::Pods => self.delete_pod(key),
            Kind::Slices => self.delete_slice(key),
            Kind::Nodes => {
                if self.nodes.remove(&key.name).is_some() {
                    self.touch_node(&key.name);
                }
            }
            Kind::Pools => {
                let Some(entry) = self.space(&key.namespace).pools.remove(&key.name) else { return };
                self.dirty_pools.remove(key);
                self.dirty_sets.insert(SetKey::new(&*key.namespace, entry.set_name()));
            }
            Kind::Sets => {
                if self.space(&key.namespace).sets.remove(&key.name).is_some() {
                    self.dirty_sets.insert(SetKey::new(&*key.namespace, &*key.name));
                }
            }
        }
    }

    /// A complete list: what is not in it is gone.
    pub fn reset(&mut self, kind: Kind, objects: Vec<Object>) {
        let names: BTreeSet<ObjectKey> = objects.iter().map(Object::key).collect();
        for gone in self.keys(kind).into_iter().filter(|key| !names.contains(key)) {
            self.delete(kind, &gone);
        }
        objects.into_iter().for_each(|object| self.apply(object));
        if !self.listed[kind.index()] {
            self.listed[kind.index()] = true;
            self.touch_everything();
        }
    }

    /// What came of asking an engine.
    pub fn answer(&mut self, key: EngineKey, answer: Answer) {
        let asks: Vec<ObjectKey> = self
            .namespaces
            .iter()
            .flat_map(|(namespace, space)| {
                let asking = space.pools.iter().filter(|(_, pool)| pool.workers.asks.contains_key(&key));
                asking.map(|(name, _)| ObjectKey { namespace: namespace.clone(), name: name.clone() })
            })
            .collect();
        // Nobody waits for it any more.
        if asks.is_empty() || self.answers.get(&key) == Some(&answer) {
            return;
        }
        self.answers.insert(key, answer);
        self.dirty_pools.extend(asks);
    }

    /// Engines that are to be asked, by base URL: those that answered are not among them.
    pub fn asks(&self) -> BTreeMap<EngineKey, String> {
        let pools = self.namespaces.values().flat_map(|space| space.pools.values());
        let asks = pools.flat_map(|pool| &pool.workers.asks);
        let open = asks.filter(|(key, _)| !matches!(self.answers.get(key), Some(Answer::Facts(_))));
        open.map(|(key, url)| (key.clone(), url.clone())).collect()
    }

    /// The sets as of the last computation.
    pub fn sets(&self) -> &Arc<Sets> {
        &self.sets
    }

    /// When time alone changes something.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let pools = self.namespaces.values().flat_map(|space| space.pools.values());
        pools.filter_map(|pool| pool.workers.next_wake).min()
    }

    /// Pools computed and snapshots made since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.recomputed, self.snapshots)
    }

    fn is_listed(&self) -> bool {
        self.listed.iter().all(|listed| *listed)
    }

    fn space(&mut self, namespace: &Arc<str>) -> &mut Namespace {
        self.namespaces.entry(namespace.clone()).or_default()
    }

    fn keys(&self, kind: Kind) -> Vec<ObjectKey> {
        if kind == Kind::Nodes {
            return self.nodes.keys().map(|name| ObjectKey { namespace: "".into(), name: name.clone() }).collect();
        }
        let mut keys = Vec::new();
        for (namespace, space) in &self.namespaces {
            let key = |name: &Arc<str>| ObjectKey { namespace: namespace.clone(), name: name.clone() };
            match kind {
                Kind::Pods => keys.extend(space.pod_names.keys().map(key)),
                Kind::Slices => keys.extend(space.slices.keys().map(key)),
                Kind::Pools => keys.extend(space.pools.keys().map(key)),
                Kind::Sets => keys.extend(space.sets.keys().map(key)),
                Kind::Nodes => {}
            }
        }
        keys
    }

    fn apply_pod(&mut self, pod: Arc<PodView>) {
        let namespace = pod.key.namespace.clone();
        let space = self.space(&namespace);
        let before = space.pod_names.get(&pod.key.name).and_then(|uid| space.pods.get(uid)).cloned();
        if before.as_ref() == Some(&pod) {
            return;
        }
        if let Some(before) = &before {
            space.pods.remove(&before.uid);
        }
        space.pod_names.insert(pod.key.name.clone(), pod.uid.clone());
        space.pods.insert(pod.uid.clone(), pod.clone());
        if let Some(before) = before {
            self.touch_pod(&before);
        }
        self.touch_pod(&pod);
    }

    fn delete_pod(&mut self, key: &ObjectKey) {
        let space = self.space(&key.namespace);
        let Some(pod) = space.pod_names.remove(&key.name).and_then(|uid| space.pods.remove(&uid)) else { return };
        self.touch_pod(&pod);
    }

    fn touch_pod(&mut self, pod: &PodView) {
        let Some(space) = self.namespaces.get(&pod.key.namespace) else { return };
        let services = space.targets.get(&pod.key.name);
        for (name, pool) in &space.pools {
            let depends = match pool.spec.as_ref().map(|spec| &spec.finder) {
                Some(Finder::Service(service)) => services.is_some_and(|services| services.contains_key(service)),
                Some(Finder::Pods(selector)) => selector.matches(&pod.labels),
                None => false,
            };
            if depends {
                self.dirty_pools.insert(ObjectKey { namespace: pod.key.namespace.clone(), name: name.clone() });
            }
        }
        for (name, set) in &space.sets {
            if set.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels)) {
                self.dirty_sets.insert(SetKey::new(&*pod.key.namespace, &**name));
            }
        }
    }

    fn apply_slice(&mut self, slice: SliceView) {
        let key = slice.key.clone();
        if self.space(&key.namespace).slices.get(&key.name) == Some(&slice) {
            return;
        }
        self.delete_slice(&key);
        let space = self.space(&key.namespace);
        for (pod, _) in slice.endpoints.iter().filter_map(|e| e.pod.as_ref()) {
            *space.targets.entry(pod.clone()).or_default().entry(slice.service.clone()).or_default() += 1;
        }
        space.services.entry(slice.service.clone()).or_default().insert(key.name.clone());
        let service = slice.service.clone();
        space.slices.insert(key.name, slice);
        self.touch_service(&key.namespace, &service);
    }

    fn delete_slice(&mut self, key: &ObjectKey) {
        let space = self.space(&key.namespace);
        let Some(slice) = space.slices.remove(&key.name) else { return };
        for (pod, _) in slice.endpoints.iter().filter_map(|e| e.pod.as_ref()) {
            let Some(services) = space.targets.get_mut(pod) else { continue };
            if let Some(count) = services.get_mut(&slice.service) {
                *count -= 1;
                if *count == 0 {
                    services.remove(&slice.service);
                }
            }
            if services.is_empty() {
                space.targets.remove(pod);
            }
        }
        if let Some(slices) = space.services.get_mut(&slice.service) {
            slices.remove(&key.name);
            if slices.is_empty() {
                space.services.remove(&slice.service);
            }
        }
        self.touch_service(&key.namespace, &slice.service);
    }

    fn touch_service(&mut self, namespace: &Arc<str>, service: &str) {
        let Some(space) = self.namespaces.get(namespace) else { return };
        for (name, pool) in &space.pools {
            let finder = pool.spec.as_ref().map(|spec| &spec.finder);
            if matches!(finder, Some(Finder::Service(of)) if **of == *service) {
                self.dirty_pools.insert(ObjectKey { namespace: namespace.clone(), name: name.clone() });
            }
        }
    }

    fn apply_node(&mut self, node: NodeView) {
        if self.nodes.get(&node.name) == Some(&node) {
            return;
        }
        let name = node.name.clone();
        self.nodes.insert(name.clone(), node);
        self.touch_node(&name);
    }

    fn touch_node(&mut self, node: &Arc<str>) {
        for (namespace, space) in &self.namespaces {
            let depend = space.pools.iter().filter(|(_, pool)| pool.workers.nodes.contains(node));
            let keys = depend.map(|(name, _)| ObjectKey { namespace: namespace.clone(), name: name.clone() });
            self.dirty_pools.extend(keys);
        }
    }

    fn apply_pool(&mut self, object: Arc<ModelPool>, invalid: Option<String>) {
        let key = Object::Pool(object.clone(), None).key();
        let compiled = invalid.map_or_else(|| PoolSpec::new(&object), Err);
        let space = self.space(&key.namespace);
        let mut touched = Vec::new();
        let before = space.pools.remove(&key.name);
        let is_new_object = before.as_ref().is_none_or(|b| b.object.metadata.uid != object.metadata.uid);
        let is_new_spec = before.as_ref().is_none_or(|b| b.object.spec != object.spec || b.invalid.is_some());
        touched.extend(before.as_ref().map(|b| b.set_name().to_owned()));
        let mut entry = before.unwrap_or_else(|| PoolEntry {
            object: object.clone(),
            invalid: None,
            spec: None,
            memories: Memories::default(),
            workers: PoolWorkers::default(),
        });
        if is_new_object {
            entry.spec = None;
        }
        entry.object = object;
        match compiled {
            Ok(spec) => {
                entry.spec = Some(spec);
                entry.invalid = None;
            }
            // What could be followed until now stays in force.
            Err(why) => entry.invalid = Some(why),
        }
        touched.push(entry.set_name().to_owned());
        space.pools.insert(key.name.clone(), entry);
        let sets = touched.into_iter().map(|name| SetKey::new(&*key.namespace, name));
        self.dirty_sets.extend(sets);
        if is_new_object || is_new_spec {
            self.dirty_pools.insert(key);
        }
    }

    fn apply_set(&mut self, key: &ObjectKey, read: Result<Arc<SelectorSet>, String>) {
        let sets = &mut self.space(&key.namespace).sets;
        let before = sets.remove(&key.name);
        let (object, invalid) = match read {
            Ok(object) => (Some(object), None),
            // What could be read until now stays in force.
            Err(why) => (before.and_then(|before| before.object), Some(why)),
        };
        let selector = object.as_ref().and_then(|object| selectors_of(object));
        sets.insert(key.name.clone(), SetEntry { object, invalid, selector });
        self.dirty_sets.insert(SetKey::new(&*key.namespace, &*key.name));
    }

    fn touch_everything(&mut self) {
        for (namespace, space) in &self.namespaces {
            for (name, pool) in &space.pools {
                self.dirty_pools.insert(ObjectKey { namespace: namespace.clone(), name: name.clone() });
                self.dirty_sets.insert(SetKey::new(&**namespace, pool.set_name()));
            }
            self.dirty_sets.extend(space.sets.keys().map(|name| SetKey::new(&**namespace, &**name)));
        }
    }
}
