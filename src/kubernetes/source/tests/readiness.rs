//! Readiness, its end, and restarts in place.

use serde_json::{Value, json};

use super::super::{
    testing::{Bed, POOL, at, container, pod, readiness, slice, with},
    world::Kind,
};

fn bed() -> Bed {
    let mut bed = Bed::with_pods(POOL);
    bed.slice(slice("a", &[("w-0", "u-0", "10.0.0.1", true)]));
    bed
}

fn worker() -> Value {
    pod("w-0", "u-0", "10.0.0.1")
}

const ACTIVE: [&str; 1] = ["w-0 http://10.0.0.1:8000"];
const DRAINING: [&str; 1] = ["w-0 http://10.0.0.1:8000 draining"];

#[test]
fn a_worker_that_is_not_ready_drains_for_its_grace_and_comes_back_the_same() {
    let mut bed = bed();
    bed.pod(worker());
    assert_eq!(bed.lines(), ACTIVE);
    let id = bed.records()["w-0"].request.worker_id;
    bed.pod(readiness(worker(), false, 100));
    assert_eq!(bed.at(101).lines(), DRAINING);
    assert_eq!(bed.world.next_wake(), Some(at(160)));
    assert_eq!(bed.at(159).lines(), DRAINING);
    // Nothing is told of: time alone does it.
    assert_eq!(bed.at(160).lines(), [""; 0]);
    assert_eq!(bed.rejections(), ["w-0 NotReady"]);
    assert_eq!(bed.world.next_wake(), None);
    bed.pod(readiness(worker(), true, 170));
    assert_eq!(bed.at(171).lines(), ACTIVE);
    assert_eq!(bed.records()["w-0"].request.worker_id, id);
}

#[test]
fn the_grace_is_the_pools() {
    let mut bed = bed();
    bed.pool("llama", 0, &format!("{POOL}  drain: {{notReadyGraceSeconds: 5}}\n"));
    bed.pod(worker());
    bed.settle();
    bed.pod(readiness(worker(), false, 100));
    assert_eq!(bed.at(104).lines(), DRAINING);
    assert_eq!(bed.at(105).lines(), [""; 0]);
}

#[test]
fn a_pod_that_was_never_ready_is_no_worker() {
    let mut bed = bed();
    bed.pod(readiness(worker(), false, 0));
    assert_eq!(bed.lines(), [""; 0]);
    assert_eq!(bed.rejections(), ["w-0 NotReady"]);
}

#[test]
fn a_source_that_starts_while_a_worker_drains_knows_that_it_was_ready() {
    let mut bed = bed();
    // Ready changed at 90, after the container was started: it was ready.
    bed.pod(readiness(worker(), false, 90));
    assert_eq!(bed.at(100).lines(), DRAINING);
    assert_eq!(bed.world.next_wake(), Some(at(150)));
}

#[test]
fn a_slice_that_is_ready_does_not_make_the_pod_ready() {
    // publishNotReadyAddresses calls everything ready.
    let mut bed = bed();
    bed.pod(readiness(worker(), false, 0));
    assert_eq!(bed.rejections(), ["w-0 NotReady"]);
    // And a pod that is ready is no worker before the slice says so.
    let mut bed = Bed::with_pods(POOL);
    bed.slice(slice("a", &[("w-0", "u-0", "10.0.0.1", false)]));
    bed.pod(worker());
    assert_eq!(bed.rejections(), ["w-0 NotReady"]);
}

#[test]
fn without_pods_the_slice_tells_and_the_source_remembers() {
    let mut bed = Bed::without_pods(POOL);
    bed.slice(slice("a", &[("w-0", "u-0", "10.0.0.1", true)]));
    assert_eq!(bed.lines(), ACTIVE);
    bed.slice(slice("a", &[("w-0", "u-0", "10.0.0.1", false)]));
    assert_eq!(bed.at(110).lines(), DRAINING);
    // Another change in between does not begin the grace again.
    bed.slice(slice("a", &[("w-0", "u-0", "10.0.0.1", false), ("w-1", "u-1", "10.0.0.2", false)]));
    assert_eq!(bed.at(140).lines(), DRAINING);
    assert_eq!(bed.at(170).lines(), [""; 0]);
}

#[test]
fn a_pod_that_terminates_drains_until_its_grace_has_passed_or_it_is_gone() {
    let ending = || {
        let ending = with(worker(), "/metadata/deletionTimestamp", json!(at(130).to_string()));
        with(ending, "/metadata/deletionGracePeriodSeconds", json!(30))
    };
    let mut bed = bed();
    bed.pod(worker());
    bed.settle();
    // Until the slice follows, the pod alone tells.
    bed.pod(ending());
    assert_eq!(bed.lines(), DRAINING);
    bed.slice(with(
        slice("a", &[("w-0", "u-0", "10.0.0.1", false)]),
        "/endpoints/0/conditions",
        json!({"ready": false, "serving": true, "terminating": true}),
    ));
    assert_eq!(bed.at(129).lines(), DRAINING);
    assert_eq!(bed.at(130).lines(), [""; 0]);
    assert_eq!(bed.rejections(), ["w-0 PodGone"]);
    bed.at(129).delete(Kind::Pods, "w-0");
    assert_eq!(bed.lines(), [""; 0]);
    // One that was never ready has nothing to drain.
    bed.pod(readiness(ending(), false, 0));
    assert_eq!(bed.rejections(), ["w-0 NotReady"]);
}

#[test]
fn a_container_that_is_restarted_in_place_is_another_worker() {
    let mut bed = bed();
    bed.pod(worker());
    let before = bed.records()["w-0"].request.worker_id;
    // It ended: its cache is gone, so it does not drain.
    let ended = json!([{"name": "engine", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "containerID": "containerd://u-0-1", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]);
    bed.pod(readiness(with(worker(), "/status/containerStatuses", ended), false, 101));
    assert_eq!(bed.lines(), [""; 0]);
    assert!(bed.outcome("llama").rejections[0].message.contains("OOMKilled"));
    // The next one is none before it is ready.
    let restarted = with(worker(), "/status/containerStatuses", json!([container("containerd://u-0-2", 102)]));
    bed.pod(readiness(restarted.clone(), false, 101));
    assert_eq!(bed.rejections(), ["w-0 NotReady"]);
    bed.pod(readiness(restarted.clone(), true, 110));
    assert_eq!(bed.lines(), ACTIVE);
    let after = bed.records()["w-0"].request.worker_id;
    assert_ne!(after, before);
    // A restart that no one saw not ready is one too.
    bed.pod(with(restarted, "/status/containerStatuses", json!([container("containerd://u-0-3", 120)])));
    assert_eq!(bed.lines(), ACTIVE);
    assert_ne!(bed.records()["w-0"].request.worker_id, after);
}

#[test]
fn a_sidecar_that_restarts_changes_nothing() {
    let two = |sidecar: &str| {
        let pod = with(
            worker(),
            "/spec/containers",
            json!([{"name": "proxy"}, {"name": "engine", "ports": [{"name": "http", "containerPort": 8000}]}]),
        );
        let mut proxy = container(sidecar, 0);
        proxy["name"] = json!("proxy");
        with(pod, "/status/containerStatuses", json!([proxy, container("containerd://e", 0)]))
    };
    let mut bed = bed();
    bed.pod(two("containerd://p1"));
    let before = bed.records();
    bed.pod(two("containerd://p2"));
    assert_eq!(bed.records(), before);
    assert_eq!(before.len(), 1);
}

#[test]
fn a_pod_that_has_ended_or_has_no_address_is_no_worker() {
    let mut bed = bed();
    bed.pod(with(worker(), "/status/phase", json!("Failed")));
    assert_eq!(bed.rejections(), ["w-0 PodFinished"]);
    bed.pod(with(worker(), "/status/podIP", Value::Null));
    assert_eq!(bed.rejections(), ["w-0 NoAddress"]);
}

#[test]
fn pods_by_label_are_workers_without_a_service() {
    let mut bed =
        Bed::with_pods(&POOL.replace("{service: {name: llm-workers}}", "{podSelector: {matchLabels: {app: llm}}}"));
    bed.pod(worker());
    bed.pod(with(pod("x", "u-x", "10.0.0.9"), "/metadata/labels", json!({"app": "other"})));
    assert_eq!(bed.lines(), ACTIVE);
    bed.pod(with(worker(), "/metadata/labels", json!({"app": "taken-out"})));
    assert_eq!(bed.lines(), [""; 0], "a pod whose labels do not match any more goes at once");
}
