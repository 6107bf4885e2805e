//! Sets: their pools beside each other, their selectors, and when they have a snapshot.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{
    objects::ObjectKey,
    state::SetKey,
    testing::{Bed, NAMESPACE, POOL, at, model_pool, pod, slice, with},
    world::{Kind, Object, Reads, World},
};
use crate::kubernetes::api::{SelectorSet, constants::reason};

fn two_services() -> Bed {
    let mut bed = Bed::with_pods(POOL);
    for name in ["w-0", "w-1"] {
        let ip = if name == "w-0" { "10.0.0.1" } else { "10.0.0.2" };
        bed.pod(pod(name, name, ip));
    }
    let pods = [("w-0", "w-0", "10.0.0.1", true), ("w-1", "w-1", "10.0.0.2", true)];
    bed.slice(slice("a", &pods));
    let mut other = slice("b", &pods);
    other["metadata"]["labels"]["kubernetes.io/service-name"] = json!("decode");
    other["ports"] = json!([{"name": "http", "port": 8000}, {"name": "second", "port": 8001}]);
    bed.slice(other);
    bed
}

#[test]
fn two_services_over_the_same_pods_give_one_worker_each_and_the_older_pool_has_it() {
    let decode = POOL.replace("llm-workers", "decode").replace("modelName: m", "modelName: m\n  role: Decode");
    let mut bed = two_services();
    // Younger by creation, though first by name.
    bed.pool("decode", 50, &decode);
    let before = bed.records();
    assert_eq!(before.len(), 2);
    assert!(before.values().all(|w| w.request.routing_group == "default"));
    let outcome = bed.outcome("decode");
    assert_eq!((outcome.ready, outcome.rejected), (0, 2));
    assert_eq!(outcome.rejections[0].reason, "ClaimedByOtherPool");
    assert!(outcome.rejections[0].message.contains("ModelPool llama"));
    // Other ports of the same pods are other workers.
    bed.pool("decode", 50, &decode.replace("port: http", "port: second"));
    assert_eq!(bed.state("fleet").snapshot.as_ref().unwrap().workers().len(), 4);
}

#[test]
fn of_two_pools_that_contradict_each_other_the_older_wins() {
    for (change, word) in
        [("blockSize: 16", "blockSize: 32"), ("modelName: m", "modelName: m\n  role: Decode\n  routingGroup: default")]
    {
        let mut bed = two_services();
        bed.pool(
            "decode",
            50,
            &POOL.replace("llm-workers", "decode").replace("port: http", "port: second").replace(change, word),
        );
        assert_eq!(bed.records().len(), 2);
        let (why, message) = bed.outcome("decode").accepted.clone().unwrap_err();
        assert_eq!(why, reason::POOL_CONFLICT);
        assert!(message.contains("ModelPool llama"), "{message}");
        assert_eq!(bed.outcome("llama").accepted, Ok(()));
        bed.delete(Kind::Pools, "llama");
        assert_eq!(bed.outcome("decode").accepted, Ok(()));
    }
}

#[test]
fn a_pool_without_set_is_told_and_gives_nothing() {
    let mut bed = two_services();
    let before = bed.state("fleet");
    bed.delete(Kind::Sets, "fleet");
    let state = bed.state("fleet");
    assert_eq!((state.object.is_none(), state.snapshot.is_none()), (true, true));
    assert_eq!(state.pools["llama"].accepted.clone().unwrap_err().0, reason::SELECTOR_SET_NOT_FOUND);
    bed.set("fleet", "{}");
    let after = bed.state("fleet").snapshot.clone().unwrap();
    let before = before.snapshot.clone().unwrap();
    assert_eq!(after.digest(), before.digest());
    assert!(after.version > before.version, "a set that comes back counts on");
}

#[test]
fn a_set_without_pools_has_an_empty_snapshot_and_one_without_anything_is_gone() {
    let mut bed = Bed::with_pods(POOL);
    bed.delete(Kind::Pools, "llama");
    assert!(bed.state("fleet").snapshot.as_ref().unwrap().workers().is_empty());
    bed.delete(Kind::Sets, "fleet");
    bed.settle();
    assert!(bed.world.sets().is_empty());
}

#[test]
fn names_in_another_namespace_are_others() {
    let mut bed = two_services();
    let before = bed.state("fleet");
    let mut other = slice("a", &[("w-0", "x", "10.9.9.9", true)]);
    other["metadata"]["namespace"] = json!("elsewhere");
    bed.slice(other);
    let mut set = SelectorSet::new("fleet", serde_json::from_value(json!({})).unwrap());
    set.metadata.namespace = Some("elsewhere".to_owned());
    bed.world.apply(Object::Set(ObjectKey::new("elsewhere", "fleet"), Ok(Arc::new(set))));
    assert!(Arc::ptr_eq(&bed.state("fleet"), &before));
    assert!(bed.world.sets()[&SetKey::new("elsewhere", "fleet")].snapshot.as_ref().unwrap().workers().is_empty());
}

#[test]
fn there_is_no_snapshot_before_every_list_is_complete() {
    let object = |set: SelectorSet| Object::Set(ObjectKey::new(NAMESPACE, "fleet"), Ok(Arc::new(set)));
    let mut set = SelectorSet::new("fleet", serde_json::from_value(json!({})).unwrap());
    set.metadata.namespace = Some(NAMESPACE.to_owned());
    let mut world = World::new(Reads { pods: true, nodes: true });
    world.reset(Kind::Slices, Vec::new());
    world.reset(Kind::Pools, vec![Object::Pool(Arc::new(model_pool("llama", 0, POOL)), None)]);
    assert!(!world.recompute(at(0)), "sets are not known yet");
    world.reset(Kind::Sets, vec![object(set)]);
    world.recompute(at(0));
    let key = SetKey::new(NAMESPACE, "fleet");
    for kind in [Kind::Pods, Kind::Nodes] {
        let state = world.sets()[&key].clone();
        assert!(state.snapshot.is_none() && state.pools["llama"].listing);
        world.reset(kind, Vec::new());
        world.recompute(at(0));
    }
    let state = world.sets()[&key].clone();
    assert!(state.snapshot.is_some() && !state.pools["llama"].listing);
}

#[test]
fn a_list_that_is_read_again_replaces_what_was() {
    let mut bed = two_services();
    let before = bed.state("fleet");
    let same = ["w-0", "w-1"].map(|name| {
        super::super::testing::pod_object(pod(name, name, if name == "w-0" { "10.0.0.1" } else { "10.0.0.2" }))
    });
    let [first, second] = same;
    bed.world.reset(Kind::Pods, vec![first.clone(), second]);
    assert!(Arc::ptr_eq(&bed.state("fleet"), &before), "the same list is no change");
    bed.world.reset(Kind::Pods, vec![first]);
    assert_eq!(bed.lines(), ["w-0 http://10.0.0.1:8000"]);
}

#[test]
fn a_spec_that_cannot_be_followed_keeps_in_force_what_was() {
    let mut bed = two_services();
    let before = bed.records();
    bed.pool("llama", 0, &POOL.replace("kvEvents: {port: 5557}", "kvEvents: {}"));
    let outcome = bed.outcome("llama");
    assert_eq!(outcome.accepted.clone().unwrap_err().0, reason::INVALID_SPEC);
    assert_eq!(bed.records(), before);
    let unreadable = Object::Pool(Arc::new(model_pool("llama", 0, POOL)), Some("blockSize: a string".to_owned()));
    bed.world.apply(unreadable);
    assert_eq!(
        bed.outcome("llama").accepted.clone().unwrap_err(),
        (reason::INVALID_SPEC, "blockSize: a string".to_owned())
    );
    assert_eq!(bed.records(), before);
    // Another object under the name has no past.
    bed.pool("llama", 7, &POOL.replace("kvEvents: {port: 5557}", "kvEvents: {}"));
    assert!(bed.records().is_empty());
}

#[test]
fn a_set_that_cannot_be_read_stays_as_it_was() {
    let mut bed = two_services();
    let before = bed.state("fleet");
    bed.world.apply(Object::Set(ObjectKey::new(NAMESPACE, "fleet"), Err("spec.replicas: a string".to_owned())));
    let after = bed.state("fleet");
    assert_eq!(after.invalid.as_deref(), Some("spec.replicas: a string"));
    assert_eq!((&after.object, &after.snapshot), (&before.object, &before.snapshot));
}

#[test]
fn selectors_of_a_set_are_found_by_label() {
    let mut bed = Bed::with_pods(POOL);
    bed.set("gateway", "{mode: External, podSelector: {matchLabels: {app: gateway}}}");
    let labelled = |name: &str, labels: Value| with(pod(name, name, "10.0.1.1"), "/metadata/labels", labels);
    bed.pod(labelled("fleet-1", json!({"pointsman.dev/selector-set": "fleet", "controller-revision-hash": "r7"})));
    bed.pod(labelled("fleet-0", json!({"pointsman.dev/selector-set": "fleet"})));
    bed.pod(labelled("gw", json!({"app": "gateway"})));
    let names = |bed: &mut Bed, set: &str| -> Vec<String> {
        bed.state(set).selectors.iter().map(|s| s.name.to_string()).collect()
    };
    assert_eq!(
        (names(&mut bed, "fleet"), names(&mut bed, "gateway")),
        (vec!["fleet-0".to_owned(), "fleet-1".to_owned()], vec!["gw".to_owned()])
    );
    let state = bed.state("fleet");
    let one = &state.selectors[1];
    assert_eq!((one.revision.as_deref(), one.ready, one.terminating), (Some("r7"), true, false));
    // One that terminates stays until it is gone; one that cannot start says why.
    let ending = with(
        labelled("fleet-0", json!({"pointsman.dev/selector-set": "fleet"})),
        "/metadata/deletionTimestamp",
        json!(at(130).to_string()),
    );
    bed.pod(ending);
    let waiting = json!([{"name": "engine", "image": "", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]);
    bed.pod(with(
        labelled("fleet-1", json!({"pointsman.dev/selector-set": "fleet"})),
        "/status/containerStatuses",
        waiting,
    ));
    let state = bed.state("fleet");
    assert!(state.selectors[0].terminating);
    assert_eq!(state.selectors[1].failing.as_deref(), Some("ImagePullBackOff: no such image"));
    bed.delete(Kind::Pods, "fleet-0");
    assert_eq!(names(&mut bed, "fleet"), ["fleet-1"]);
}

#[test]
fn a_change_is_computed_for_the_pools_it_touches() {
    let mut bed = Bed::with_pods(POOL);
    for pool in 0..50 {
        let service = format!("svc-{pool}");
        bed.pool(
            &format!("p{pool}"),
            0,
            &POOL.replace("llm-workers", &service).replace("modelName: m", &format!("modelName: m{pool}")),
        );
        for part in 0..2 {
            let names: Vec<String> = (0..100).map(|i| format!("w-{pool}-{part}-{i}")).collect();
            let address = |i: usize| format!("10.{pool}.{part}.{i}");
            let ips: Vec<String> = (0..100).map(address).collect();
            let pods: Vec<(&str, &str, &str, bool)> =
                names.iter().zip(&ips).map(|(name, ip)| (name.as_str(), name.as_str(), ip.as_str(), true)).collect();
            let mut one = slice(&format!("{service}-{part}"), &pods);
            one["metadata"]["labels"]["kubernetes.io/service-name"] = json!(service);
            bed.slice(one);
            pods.iter().for_each(|(name, uid, ip, _)| bed.pod(pod(name, uid, ip)));
        }
    }
    assert_eq!(bed.records().len(), 10_000);
    let count = |bed: &mut Bed| {
        let before = bed.world.counts().0;
        bed.settle();
        bed.world.counts().0 - before
    };
    assert_eq!(count(&mut bed), 0, "nothing changed");
    let one = pod("w-7-0-7", "w-7-0-7", "10.7.0.7");
    bed.pod(one.clone());
    assert_eq!(count(&mut bed), 0, "the same pod again is no change");
    bed.pod(with(one, "/status/podIP", json!("10.7.9.9")));
    assert_eq!(count(&mut bed), 1);
    bed.delete(Kind::Slices, "svc-9-1");
    assert_eq!(count(&mut bed), 1);
    bed.pod(pod("stranger", "stranger", "10.200.0.1"));
    assert_eq!(count(&mut bed), 0, "a pod that nobody selects");
    bed.node("node-a", &[("a", "b")]);
    assert_eq!(count(&mut bed), 0, "no pool has a topology");
    // What did not change is what readers hold already.
    let before = bed.world.sets()[&SetKey::new(NAMESPACE, "fleet")].clone();
    bed.delete(Kind::Slices, "svc-8-1");
    let after = bed.state("fleet");
    let kept = after.pools.iter().filter(|(name, pool)| Arc::ptr_eq(pool, &before.pools[*name])).count();
    assert_eq!(kept, 50, "the pool llama and 49 others");
}

#[test]
fn a_status_that_is_written_wakes_readers_without_a_computation() {
    let mut bed = two_services();
    let before = bed.state("fleet");
    let computed = bed.world.counts();
    let mut written = model_pool("llama", 0, POOL);
    written.status = Some(crate::kubernetes::api::ModelPoolStatus { discovered: 2, ..Default::default() });
    bed.world.apply(Object::Pool(Arc::new(written), None));
    let after = bed.state("fleet");
    assert_eq!(bed.world.counts(), computed);
    assert_eq!(after.pools["llama"].object.status.as_ref().unwrap().discovered, 2);
    assert_eq!(after.snapshot, before.snapshot);
    assert!(!Arc::ptr_eq(&after, &before));
}
