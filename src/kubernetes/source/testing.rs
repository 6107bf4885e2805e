//! A world for tests: objects are written as YAML, as the apiserver has them, and time stands still until it is moved.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{core::v1::Pod, discovery::v1::EndpointSlice},
    jiff::{SignedDuration, Timestamp},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    objects::{NodeView, ObjectKey, PodView, SliceView},
    state::{PoolOutcome, SetKey, SetState},
    world::{Kind, Object, Reads, World},
};
use crate::{
    kubernetes::api::{ModelPool, SelectorSet},
    selection::{catalog::DesiredWorker, worker::WorkerState},
};

/// Namespace of everything.
pub(super) const NAMESPACE: &str = "demo";

/// The beginning of time.
pub(super) fn epoch() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// `seconds` after the beginning.
pub(super) fn at(seconds: i64) -> Timestamp {
    epoch() + SignedDuration::from_secs(seconds)
}

pub(super) fn yaml<T: DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).unwrap()
}

/// The slices of a fixture, read as the apiserver sends them.
pub(super) fn slices(text: &str) -> Vec<EndpointSlice> {
    serde_saphyr::from_multiple::<Value>(text)
        .unwrap()
        .into_iter()
        .map(|slice| serde_json::from_value(slice).unwrap())
        .collect()
}

/// A pod of one container that serves on 8000 and publishes on 5557, started at 0 and ready since 10.
pub(super) fn pod(name: &str, uid: &str, ip: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid, "labels": {"app": "llm"}},
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "engine", "ports": [
                {"name": "http", "containerPort": 8000}, {"name": "kv-events", "containerPort": 5557}
            ]}],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(10).to_string()}],
            "containerStatuses": [container(&format!("containerd://{uid}-1"), 0)],
        },
    })
}

/// The status of a container that runs since `started`.
pub(super) fn container(id: &str, started: i64) -> Value {
    json!({
        "name": "engine", "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": id,
        "state": {"running": {"startedAt": at(started).to_string()}},
    })
}

/// Changes what is at `pointer`.
pub(super) fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[name] = value;
    object
}

/// `pod`, its readiness as it became at `since`.
pub(super) fn readiness(pod: Value, ready: bool, since: i64) -> Value {
    let status = if ready { "True" } else { "False" };
    let condition = json!([{"type": "Ready", "status": status, "lastTransitionTime": at(since).to_string()}]);
    with(pod, "/status/conditions", condition)
}

/// A slice of the Service `llm-workers` with these pods: name, UID, address, ready.
pub(super) fn slice(name: &str, pods: &[(&str, &str, &str, bool)]) -> Value {
    let endpoint = |(name, uid, ip, ready): &(&str, &str, &str, bool)| {
        json!({"addresses": [ip], "conditions": {"ready": ready},
            "targetRef": {"kind": "Pod", "name": name, "namespace": NAMESPACE, "uid": uid}})
    };
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "llm-workers"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// The shortest useful pool.
pub(super) const POOL: &str = "
  selectorRef: {name: fleet}
  modelName: m
  workers: {service: {name: llm-workers}}
  endpoint: {port: http}
  blockSize: 16
  kvEvents: {port: 5557}
";

/// A world at a time.
pub(super) struct Bed {
    pub world: World,
    pub now: Timestamp,
}

impl Bed {
    /// Everything is listed, and nothing there but the SelectorSet `fleet` and the pool `llama` with `spec`.
    pub fn new(reads: Reads, spec: &str) -> Self {
        let mut bed = Self { world: World::new(reads), now: at(100) };
        for kind in Kind::ALL {
            bed.world.reset(kind, Vec::new());
        }
        bed.set("fleet", "{}");
        bed.pool("llama", 0, spec);
        bed.settle();
        bed
    }

    /// One where pods and nodes are read.
    pub fn with_pods(spec: &str) -> Self {
        Self::new(Reads { pods: true, nodes: true }, spec)
    }

    /// One where slices alone are read.
    pub fn without_pods(spec: &str) -> Self {
        Self::new(Reads { pods: false, nodes: false }, spec)
    }

    pub fn set(&mut self, name: &str, spec: &str) {
        let mut set = SelectorSet::new(name, yaml(spec));
        set.metadata.namespace = Some(NAMESPACE.to_owned());
        self.world.apply(Object::Set(ObjectKey::new(NAMESPACE, name), Ok(Arc::new(set))));
    }

    /// A pool created at `created`.
    pub fn pool(&mut self, name: &str, created: i64, spec: &str) {
        self.world.apply(Object::Pool(Arc::new(model_pool(name, created, spec)), None));
    }

    pub fn apply_slices(&mut self, slices: &[EndpointSlice]) {
        for slice in slices {
            match SliceView::new(slice) {
                Some(view) => self.world.apply(Object::Slice(view)),
                None => self.delete(Kind::Slices, slice.metadata.name.as_deref().unwrap()),
            }
        }
    }

    pub fn slice(&mut self, slice: Value) {
        self.apply_slices(&[serde_json::from_value(slice).unwrap()]);
    }

    pub fn pod(&mut self, pod: Value) {
        self.world.apply(pod_object(pod));
    }

    pub fn node(&mut self, name: &str, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.world.apply(Object::Node(NodeView { name: name.into(), labels }));
    }

    pub fn delete(&mut self, kind: Kind, name: &str) {
        self.world.delete(kind, &ObjectKey::new(NAMESPACE, name));
    }

    /// Moves time to `seconds`.
    pub fn at(&mut self, seconds: i64) -> &mut Self {
        self.now = at(seconds);
        self
    }

    pub fn settle(&mut self) -> bool {
        self.world.recompute(self.now)
    }

    pub fn state(&mut self, set: &str) -> Arc<SetState> {
        self.settle();
        self.world.sets()[&SetKey::new(NAMESPACE, set)].clone()
    }

    pub fn outcome(&mut self, pool: &str) -> Arc<PoolOutcome> {
        self.state("fleet").pools[pool].clone()
    }

    /// Records of `fleet` by the name of their pod, sorted.
    pub fn records(&mut self) -> BTreeMap<String, DesiredWorker> {
        let state = self.state("fleet");
        let names: BTreeMap<u64, String> =
            state.pools.values().flat_map(|p| p.worker_ids.iter().map(|(id, name)| (*id, name.to_string()))).collect();
        let workers = state.snapshot.as_ref().unwrap().workers().to_vec();
        workers.into_iter().map(|w| (names[&w.request.worker_id].clone(), w)).collect()
    }

    /// Workers of `fleet` in a line each: `name endpoint`, and `draining` where it drains.
    pub fn lines(&mut self) -> Vec<String> {
        let line = |(name, record): (String, DesiredWorker)| {
            let draining = if record.state == WorkerState::Draining { " draining" } else { "" };
            format!("{name} {}{draining}", record.request.fields.endpoint.unwrap())
        };
        self.records().into_iter().map(line).collect()
    }

    /// Rejections of `llama` as `name reason`.
    pub fn rejections(&mut self) -> Vec<String> {
        self.outcome("llama").rejections.iter().map(|r| format!("{} {}", r.name, r.reason)).collect()
    }
}

pub(super) fn pod_object(pod: Value) -> Object {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    Object::Pod(Arc::new(PodView::new(&pod).unwrap()))
}

pub(super) fn model_pool(name: &str, created: i64, spec: &str) -> ModelPool {
    let mut pool = ModelPool::new(name, yaml(spec));
    pool.metadata.namespace = Some(NAMESPACE.to_owned());
    pool.metadata.uid = Some(format!("{name}-{created}"));
    pool.metadata.generation = Some(1);
    let created = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(created));
    pool.metadata.creation_timestamp = Some(created);
    pool
}
