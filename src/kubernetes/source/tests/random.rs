//! Objects that come and go in random order, lists that are read again in between: the sets are those of a source that
//! begins with what is there at the end.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::super::{
    objects::{NodeView, ObjectKey, SliceView},
    state::Sets,
    testing::{NAMESPACE, POOL, at, container, model_pool, pod, pod_object, readiness, slice, with},
    world::{Kind, Object, Reads, World},
};
use crate::kubernetes::api::SelectorSet;

const ROUNDS: u64 = 60;
const STEPS: usize = 120;
const PODS: usize = 8;

/// What is there, by kind and name.
#[derive(Default)]
struct Cluster(BTreeMap<(usize, String), (Kind, Object)>);

impl Cluster {
    fn of(&self, kind: Kind) -> Vec<Object> {
        self.0.values().filter(|(of, _)| *of == kind).map(|(_, object)| object.clone()).collect()
    }

    fn put(&mut self, kind: Kind, object: Object) {
        self.0.insert((kind.index(), object.key().name.to_string()), (kind, object));
    }

    fn world(&self) -> World {
        let mut world = World::new(Reads { pods: true, nodes: true });
        Kind::ALL.into_iter().for_each(|kind| world.reset(kind, self.of(kind)));
        world
    }
}

fn service_slice(random: &mut fastrand::Rng, name: &str, incarnations: &[u64; PODS]) -> Object {
    let mut pods: Vec<(String, String, String)> = Vec::new();
    for (i, incarnation) in incarnations.iter().enumerate() {
        if random.bool() {
            // Now and then a pod of the future.
            let incarnation = incarnation + u64::from(random.u8(..8) == 0);
            pods.push((format!("w-{i}"), format!("u-{i}-{incarnation}"), format!("10.0.0.{i}")));
        }
    }
    let pods: Vec<(&str, &str, &str, bool)> =
        pods.iter().map(|(name, uid, ip)| (name.as_str(), uid.as_str(), ip.as_str(), true)).collect();
    let mut made = slice(name, &pods);
    made["metadata"]["labels"]["kubernetes.io/service-name"] = json!(["svc-0", "svc-1"][random.usize(..2)]);
    if random.u8(..6) == 0 {
        made["ports"] = Value::Null;
    }
    let made: EndpointSlice = serde_json::from_value(made).unwrap();
    Object::Slice(SliceView::new(&made).unwrap())
}

fn random_pod(random: &mut fastrand::Rng, i: usize, incarnation: u64, now: i64) -> Object {
    let ip = format!("10.0.0.{}", if random.u8(..10) == 0 { random.usize(..PODS) } else { i });
    let mut made = pod(&format!("w-{i}"), &format!("u-{i}-{incarnation}"), &ip);
    // Each container has a start of its own. The first was never ready, so its readiness never changed since; the others
    // were. In the second of the start itself only memory could tell.
    let container_of_pod = random.i64(0..4);
    let started = 700 + 50 * container_of_pod;
    let id = format!("c-{container_of_pod}");
    made = with(made, "/status/containerStatuses", json!([container(&id, started)]));
    let was_ready = container_of_pod > 0;
    let since = if was_ready { now - random.i64(0..100) } else { started - 5 };
    made = readiness(made, was_ready && random.bool(), since.max(if was_ready { started + 1 } else { 0 }));
    match random.u8(..10) {
        0 => made = with(made, "/metadata/deletionTimestamp", json!(at(now + random.i64(-20..60)).to_string())),
        1 => made = with(made, "/metadata/annotations", json!({"pointsman.dev/block-size": "x"})),
        2 => made = with(made, "/metadata/annotations", json!({"pointsman.dev/taints": "t"})),
        3 => made = with(made, "/status/phase", json!("Failed")),
        4 => made = with(made, "/metadata/labels", json!({"app": "other"})),
        5 => made["spec"]["nodeName"] = json!("node-b"),
        _ => {}
    }
    pod_object(made)
}

fn random_pool(random: &mut fastrand::Rng, i: usize) -> Object {
    let workers = ["{service: {name: svc-0}}", "{service: {name: svc-1}}", "{podSelector: {matchLabels: {app: llm}}}"];
    let spec = POOL
        .replace("{service: {name: llm-workers}}", workers[random.usize(..3)])
        .replace("blockSize: 16", ["blockSize: 16", "blockSize: 32"][random.usize(..2)])
        .replace("modelName: m", ["modelName: m", "modelName: n"][random.usize(..2)])
        .replace("fleet", ["fleet", "fleet", "other"][random.usize(..3)]);
    let topology = ["", "  topology: {zone: zone}\n", "  drain: {notReadyGraceSeconds: 5}\n"][random.usize(..3)];
    Object::Pool(Arc::new(model_pool(&format!("p{i}"), i64::try_from(i).unwrap(), &format!("{spec}{topology}"))), None)
}

fn set(name: &str) -> Object {
    let mut set = SelectorSet::new(name, serde_json::from_value(json!({})).unwrap());
    set.metadata.namespace = Some(NAMESPACE.to_owned());
    Object::Set(ObjectKey::new(NAMESPACE, name), Ok(Arc::new(set)))
}

/// Everything but generations, which count what was published.
fn shape(sets: &Sets) -> String {
    let mut out = String::new();
    for (key, state) in sets {
        let snapshot = state.snapshot.as_ref().map(|s| (s.digest().to_owned(), s.workers().to_vec()));
        out += &format!("{key} {snapshot:#?} {:#?} {:#?}\n", state.pools, state.selectors);
    }
    out
}

#[test]
fn the_order_of_what_is_told_does_not_matter() {
    let seed = std::env::var("SOURCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let rounds = seed.map_or_else(|| (0..ROUNDS).map(|_| fastrand::u64(..)).collect(), |seed| vec![seed]);
    let mut workers = 0;
    for seed in rounds {
        println!("SOURCE_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut cluster = Cluster::default();
        cluster.put(Kind::Sets, set("fleet"));
        let mut world = World::new(Reads { pods: true, nodes: true });
        Kind::ALL.into_iter().for_each(|kind| world.reset(kind, cluster.of(kind)));
        let mut incarnations = [0_u64; PODS];
        let mut now = 1000;
        for _ in 0..STEPS {
            let (kind, object) = match random.u8(..12) {
                0..=4 => {
                    let i = random.usize(..PODS);
                    incarnations[i] += u64::from(random.u8(..4) == 0);
                    (Kind::Pods, random_pod(&mut random, i, incarnations[i], now))
                }
                5..=7 => {
                    let name = format!("s{}", random.usize(..4));
                    (Kind::Slices, service_slice(&mut random, &name, &incarnations))
                }
                8..=9 => {
                    let i = random.usize(..4);
                    (Kind::Pools, random_pool(&mut random, i))
                }
                10 => {
                    let labels = [("zone".to_owned(), format!("z{}", random.u8(..3)))].into();
                    let name = ["node-a", "node-b"][random.usize(..2)].into();
                    (Kind::Nodes, Object::Node(NodeView { name, labels }))
                }
                _ => (Kind::Sets, set(["fleet", "other"][random.usize(..2)])),
            };
            if random.u8(..5) == 0 {
                let key = object.key();
                cluster.0.remove(&(kind.index(), key.name.to_string()));
                world.delete(kind, &key);
            } else {
                cluster.put(kind, object.clone());
                world.apply(object);
            }
            if random.u8(..8) == 0 {
                let kind = Kind::ALL[random.usize(..Kind::ALL.len())];
                world.reset(kind, cluster.of(kind));
            }
            if random.u8(..3) == 0 {
                now += random.i64(0..20);
                world.recompute(at(now));
            }
        }
        world.recompute(at(now));
        let mut fresh = cluster.world();
        fresh.recompute(at(now));
        let (known, begun) = (shape(world.sets()), shape(fresh.sets()));
        let differ = known.lines().zip(begun.lines()).find(|(a, b)| a != b);
        assert!(known == begun, "SOURCE_SEED={seed}: {differ:?}");
        workers += fresh.sets().values().filter_map(|s| s.snapshot.as_ref()).map(|s| s.workers().len()).sum::<usize>();
    }
    assert!(seed.is_some() || workers > 50, "the model makes workers: {workers}");
}
