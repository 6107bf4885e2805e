//! Real pods with mock engines.

use serde_json::json;

use super::{
    super::harness::{BookingLoad, Cordon, Cut, Fleet, Namespace, PodFacts, condition, id_at, manifests, pool},
    engines, service,
};

pub fn twenty_engines_come_and_go(ns: &Namespace) {
    let image = ns.cluster().image();
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    ns.apply(&manifests::list(&engines("engines", 20, image)));
    ns.apply(&pool("llama", "fleet", &service("engines"), &json!({})).to_string());
    let pods = ns.wait_for_pods("app=engines", 20);
    let first = fleet.wait_for_pods(&pods);
    let status = ns.wait_for_counts("llama", 20, 20, 0);
    assert_eq!(status["schedulableOfDiscovered"], "20/20", "{status}");
    let mut load = BookingLoad::new(ns.service_ip("fleet"), manifests::MODEL);
    load.rate = 20.0;
    let load = load.start(ns.cluster());
    load.wait_for_bookings(40);

    ns.kubectl(&["scale", "deployment/engines", "--replicas=12"]);
    let pods = ns.wait_for_pods("app=engines", 12);
    let fewer = fleet.wait_for_pods(&pods);
    assert!(fewer.keys().all(|id| first.contains_key(id)), "those that stay keep their ids: {fewer:?} of {first:?}");
    ns.wait_for_counts("llama", 12, 12, 0);

    // A container that crashes has lost its cache: another worker, at the same address.
    let crashed = &pods[0];
    let old = id_at(&fewer, crashed.ip());
    super::super::harness::reset_container(ns, crashed, "engine");
    let now = fleet.wait_until_gone(old);
    assert!(now.keys().all(|id| *id != old));
    let pods = ns.wait_for_pods("app=engines", 12);
    let after_crash = fleet.wait_for_pods(&pods);
    assert_ne!(id_at(&after_crash, crashed.ip()), old);
    let others = after_crash.keys().filter(|id| fewer.contains_key(id)).count();
    assert_eq!(others, 11, "nobody else changed: {fewer:?}, then {after_crash:?}");

    let (gone, id) = (&pods[1], id_at(&after_crash, pods[1].ip()));
    ns.kubectl(&["delete", "pod", &gone.name, "--force", "--grace-period=0"]);
    fleet.wait_until_gone(id);
    let pods = ns.wait_for_pods("app=engines", 12);
    let before_roll = fleet.wait_for_pods(&pods);

    ns.kubectl(&["set", "env", "deployment/engines", "ROLLED=1"]);
    ns.wait_for_rollout("deployment/engines");
    let pods = ns.wait_for_pods("app=engines", 12);
    let rolled = fleet.wait_for_pods(&pods);
    assert!(rolled.keys().all(|id| !before_roll.contains_key(id)), "{before_roll:?}, then {rolled:?}");

    ns.kubectl(&["scale", "deployment/engines", "--replicas=16"]);
    let pods = ns.wait_for_pods("app=engines", 16);
    fleet.wait_for_pods(&pods);
    ns.wait_for_counts("llama", 16, 16, 0);
    load.wait_for_bookings(40);
    load.finish().assert_clean(200);
    fleet.wait_for_pods(&pods);
}

pub fn what_is_not_ready_drains(ns: &Namespace) {
    let image = ns.cluster().image();
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    ns.apply(&manifests::list(&engines("engines", 3, image)));
    let grace = json!({"drain": {"notReadyGraceSeconds": 30}});
    ns.apply(&pool("llama", "fleet", &service("engines"), &grace).to_string());
    let pods = ns.wait_for_pods("app=engines", 3);
    let before = fleet.wait_for_pods(&pods);
    let selectors = fleet.selectors();
    let (flaky, id) = (&pods[0], id_at(&before, pods[0].ip()));
    fleet.book(&selectors[0], "running", id);
    fleet.wait_for_bookings(id, 1);

    let cut = Cut::pod(flaky);
    fleet.wait_until_draining(id);
    fleet.wait_for_bookings(id, 1);
    ns.wait_for_counts("llama", 3, 2, 1);
    drop(cut);
    assert_eq!(fleet.wait_for_pods(&pods), before, "a worker that comes back in time is the same");
    fleet.wait_for_bookings(id, 1);

    let cut = Cut::pod(flaky);
    fleet.wait_until_draining(id);
    // Its grace passes, and the booking with it.
    fleet.wait_until_gone(id);
    let why = ns.wait_for_rejection("llama", &flaky.name, "NotReady");
    assert!(why.contains("longer than its grace of 30 s"), "{why}");
    let status = ns.wait_for_counts("llama", 3, 2, 0);
    assert_eq!(condition(&status, "WorkersDiscovered")["reason"], "SomeRejected", "{status}");
    drop(cut);
    assert_eq!(fleet.wait_for_pods(&pods), before, "its container is the same, so its id is");
    fleet.wait_for_bookings(id, 0);
}

pub fn every_way_out(ns: &Namespace) {
    let image = ns.cluster().image();
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    let mut served = engines("served", 4, image);
    let template = &mut served[0]["spec"]["template"]["spec"];
    template["terminationGracePeriodSeconds"] = json!(40);
    template["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 12}}});
    ns.apply(&manifests::list(&[&served[..], &engines("labelled", 3, image)[..]].concat()));
    ns.apply(&pool("served", "fleet", &service("served"), &json!({})).to_string());
    let by_label = json!({"podSelector": {"matchLabels": {"app": "labelled"}}});
    ns.apply(&pool("labelled", "fleet", &by_label, &json!({})).to_string());
    let all = || -> Vec<PodFacts> { [ns.wait_for_pods("app=served", 4), ns.wait_for_pods("app=labelled", 3)].concat() };
    let pods = all();
    let workers = fleet.wait_for_pods(&pods);
    let selectors = fleet.selectors();

    // Nonsense takes one pod out, with a reason; the others stay, and so does its id.
    let pod = &pods[0];
    ns.kubectl(&["annotate", "pod", &pod.name, "pointsman.dev/block-size=banana"]);
    let why = ns.wait_for_rejection("served", &pod.name, "BadAnnotation");
    assert!(why.contains("pointsman.dev/block-size") && why.contains("banana"), "{why}");
    fleet.wait_for_pods(&pods[1..]);
    ns.kubectl(&["annotate", "pod", &pod.name, "pointsman.dev/block-size-"]);
    assert_eq!(fleet.wait_for_pods(&pods), workers);

    // Labels that no longer match: not of the Service, not of the pool.
    for (pod, pool) in [(&pods[0], "served"), (&pods[4], "labelled")] {
        ns.kubectl(&["label", "pod", &pod.name, "app=other", "--overwrite"]);
        let left = fleet.wait_until_gone(id_at(&workers, pod.ip()));
        assert!(!left.is_empty(), "{pool}");
    }
    let pods = all();
    let workers = fleet.wait_for_pods(&pods);

    // One that is told to end drains: its booking goes on, and no new one comes.
    let (pod, id) = (&pods[0], id_at(&workers, pods[0].ip()));
    fleet.book(&selectors[0], "running", id);
    fleet.wait_for_bookings(id, 1);
    ns.kubectl(&["delete", "pod", &pod.name, "--wait=false"]);
    fleet.wait_until_draining(id);
    let answer = fleet.ask(&selectors[1], "DELETE", "/reservations/running", None);
    assert_eq!(answer.status, 200, "a booking on a draining worker ends as any other: {}", answer.text());
    fleet.wait_until_gone(id);
    let pods = all();
    let workers = fleet.wait_for_pods(&pods);

    // Evicted through the API, and ended by the kubelet.
    let (pod, id) = (&pods[1], id_at(&workers, pods[1].ip()));
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": ns.name()},
        "deleteOptions": {"gracePeriodSeconds": 1},
    });
    let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", ns.name(), pod.name);
    ns.cluster()
        .try_kubectl(&["create", "--raw", &path, "-f", "-"], Some(&eviction.to_string()))
        .unwrap_or_else(|e| panic!("{e}"));
    fleet.wait_until_gone(id);
    let (ended, id) = (&pods[4], id_at(&workers, pods[4].ip()));
    ns.kubectl(&["patch", "pod", &ended.name, "-p", r#"{"spec": {"activeDeadlineSeconds": 1}}"#]);
    fleet.wait_until_gone(id);
    let why = ns.wait_for_rejection("labelled", &ended.name, "PodFinished");
    assert!(why.contains("Failed"), "{why}");
    // It stays as an object, beside the one that replaces it.
    ns.wait_for_counts("labelled", 4, 3, 0);
    ns.wait_for_counts("served", 4, 4, 0);
    let served = ns.wait_for_pods("app=served", 4);
    let live = ns.pods("app=labelled").into_iter().filter(|pod| pod.ready);
    fleet.wait_for_pods(&live.chain(served).collect::<Vec<_>>());
}

pub fn a_node_is_drained(ns: &Namespace) {
    let image = ns.cluster().image();
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    ns.apply(&manifests::list(&engines("engines", 3, image)));
    ns.apply(&pool("llama", "fleet", &service("engines"), &json!({})).to_string());
    let pods = ns.wait_for_pods("app=engines", 3);
    let before = fleet.wait_for_pods(&pods);
    let cordon = Cordon::node(ns.cluster());
    fleet.wait_for_pods(&pods);
    cordon.drain("app=engines");
    fleet.wait_for([]);
    // Those that wait for a node have no address, and the Service no endpoints.
    let status = ns.wait_for_pool("llama", |status| status["schedulable"] == 0 && status["discovered"] == 0);
    assert_eq!(condition(&status, "WorkersDiscovered")["reason"], "NoEndpoints", "{status}");
    drop(cordon);
    let pods = ns.wait_for_pods("app=engines", 3);
    let after = fleet.wait_for_pods(&pods);
    assert!(after.keys().all(|id| !before.contains_key(id)), "{before:?}, then {after:?}");
}
