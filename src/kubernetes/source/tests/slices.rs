//! Slices as the apiserver has them, and as it may have them for a moment.

use serde_json::{Value, json};

use super::super::{
    testing::{Bed, POOL, pod, slice, slices, with},
    world::Kind,
};

macro_rules! fixture {
    ($name:literal) => {
        slices(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/endpointslices/", $name)))
    };
}

#[test]
fn a_plain_slice_is_its_endpoints() {
    let mut bed = Bed::without_pods(POOL);
    bed.apply_slices(&fixture!("01-basic.yaml"));
    assert_eq!(bed.lines(), ["w-0 http://10.0.0.11:8000", "w-1 http://10.0.0.12:8000"]);
    let outcome = bed.outcome("llama");
    assert_eq!((outcome.discovered, outcome.ready, outcome.draining, outcome.rejected), (2, 2, 0, 0));
}

#[test]
fn conditions_say_who_takes_bookings_who_drains_and_who_is_none() {
    let mut bed = Bed::without_pods(POOL);
    bed.apply_slices(&fixture!("02-conditions-matrix.yaml"));
    assert_eq!(
        bed.lines(),
        [
            "c-1 http://10.0.1.1:8000",
            "c-3 http://10.0.1.3:8000 draining",
            "c-5 http://10.0.1.5:8000 draining",
            "c-7 http://10.0.1.7:8000",
            "c-8 http://10.0.1.8:8000",
            "c-9 http://10.0.1.9:8000",
        ]
    );
    assert_eq!(bed.rejections(), ["c-2 NotReady", "c-4 NotReady", "c-6 NotReady"]);
}

#[test]
fn an_endpoint_in_two_slices_is_one_worker_and_outlives_the_first() {
    let both = fixture!("03-duplicate-across-slices.yaml");
    for order in [[0, 1], [1, 0]] {
        let mut bed = Bed::without_pods(POOL);
        order.iter().for_each(|at| bed.apply_slices(&both[*at..=*at]));
        let before = bed.records();
        assert_eq!(before.keys().collect::<Vec<_>>(), ["w-0", "w-1", "w-2"]);
        bed.delete(Kind::Slices, "dup-a");
        let after = bed.records();
        assert_eq!(after.keys().collect::<Vec<_>>(), ["w-1", "w-2"]);
        assert!(after.iter().all(|(name, record)| before[name] == *record));
    }
}

#[test]
fn an_address_that_a_new_pod_has_is_the_new_pods() {
    let both = fixture!("04-same-ip-two-pods.yaml");
    for order in [[0, 1], [1, 0]] {
        let mut bed = Bed::without_pods(POOL);
        order.iter().for_each(|at| bed.apply_slices(&both[*at..=*at]));
        assert_eq!(bed.lines(), ["new-pod http://10.0.3.9:8000"]);
        let before = bed.records();
        bed.delete(Kind::Slices, "reuse-a");
        assert_eq!(bed.records(), before);
    }
    // The old pod was a worker until its address was given away: never two workers at one address.
    let mut bed = Bed::without_pods(POOL);
    bed.slice(slice("a", &[("old-pod", "u-old", "10.0.3.9", true)]));
    let old = bed.records()["old-pod"].request.worker_id;
    bed.apply_slices(&both);
    bed.slice(slice("a", &[("old-pod", "u-old", "10.0.3.9", false)]));
    assert_eq!(bed.lines(), ["new-pod http://10.0.3.9:8000"]);
    assert_eq!(bed.rejections(), ["old-pod PodGone"]);
    assert_ne!(bed.records()["new-pod"].request.worker_id, old);
}

#[test]
fn two_families_are_one_worker_at_its_ipv4_address() {
    let all = fixture!("05-dual-stack.yaml");
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut bed = Bed::without_pods(POOL);
        order.iter().for_each(|at| bed.apply_slices(&all[*at..=*at]));
        assert_eq!(bed.lines(), ["w-0 http://10.0.4.11:8000", "w-1 http://10.0.4.12:8000"]);
    }
    // Where pods are read, their primary address counts.
    let mut bed = Bed::with_pods(POOL);
    bed.apply_slices(&all);
    bed.pod(pod("w-0", "u-0", "fd00::11"));
    bed.pod(pod("w-1", "u-1", "10.0.4.12"));
    assert_eq!(bed.lines(), ["w-0 http://[fd00::11]:8000", "w-1 http://10.0.4.12:8000"]);
    assert_eq!(bed.records()["w-0"].request.fields.kv_events_endpoints[&0], "tcp://[fd00::11]:5557");
}

#[test]
fn an_ipv6_cluster_has_addresses_in_brackets() {
    let mut bed = Bed::without_pods(POOL);
    bed.apply_slices(&fixture!("05-dual-stack.yaml")[1..2]);
    assert_eq!(bed.lines(), ["w-0 http://[fd00::11]:8000", "w-1 http://[fd00::12]:8000"]);
    assert_eq!(bed.records()["w-0"].request.fields.kv_events_endpoints[&0], "tcp://[fd00::11]:5557");
}

#[test]
fn odd_slices_are_read_for_what_they_say() {
    let mut bed = Bed::without_pods(POOL);
    bed.apply_slices(&fixture!("06-odd-shapes.yaml"));
    assert_eq!(bed.lines(), [""; 0]);
    assert_eq!(bed.rejections(), ["10.0.5.2 PortNotFound", "10.0.5.3 PortNotFound", "w-0 PortNotFound"]);
    // A number is the pod's port, whatever slices say. Endpoints that are no pods go by address and port.
    bed.pool("llama", 0, &POOL.replace("{port: http}", "{port: 8000}"));
    assert_eq!(
        bed.lines(),
        ["10.0.5.2 http://10.0.5.2:8000", "10.0.5.3 http://10.0.5.3:8000", "w-0 http://10.0.5.1:8000"]
    );
}

#[test]
fn a_port_by_name_is_looked_up_in_the_pod_where_the_slice_lacks_it() {
    let mut bed = Bed::with_pods(POOL);
    bed.pod(pod("w-0", "u-0", "10.0.0.1"));
    bed.slice(with(slice("a", &[("w-0", "u-0", "10.0.0.1", true)]), "/ports", Value::Null));
    assert_eq!(bed.lines(), ["w-0 http://10.0.0.1:8000"]);
    let before = bed.state("fleet");
    bed.slice(slice("a", &[("w-0", "u-0", "10.0.0.1", true)]));
    assert!(std::sync::Arc::ptr_eq(&bed.state("fleet"), &before), "a port that comes back changes nothing");
}

#[test]
fn what_makes_an_endpoint_no_endpoint_removes_it() {
    let worker = || slice("a", &[("w-0", "u-0", "10.0.0.1", true)]);
    let other = "other-service";
    for gone in [
        with(worker(), "/endpoints", Value::Null),
        with(worker(), "/metadata/labels/kubernetes.io~1service-name", json!(other)),
        with(worker(), "/metadata/labels", Value::Null),
        with(worker(), "/endpoints/0/addresses", json!([])),
    ] {
        let mut bed = Bed::without_pods(POOL);
        bed.slice(worker());
        let before = bed.records();
        assert_eq!(before.len(), 1);
        let mut gone = gone;
        if let Some(labels) = gone["metadata"]["labels"].as_object_mut()
            && labels.remove("kubernetes.io~1service-name").is_some()
        {
            labels.insert("kubernetes.io/service-name".to_owned(), json!(other));
        }
        bed.slice(gone);
        assert_eq!(bed.lines(), [""; 0]);
        bed.slice(worker());
        assert_eq!(bed.records(), before, "the pod is the same");
    }
}

#[test]
fn a_slice_that_names_a_pod_of_the_past_gives_no_worker() {
    let mut bed = Bed::with_pods(POOL);
    bed.slice(slice("a", &[("w-0", "u-old", "10.0.0.1", true), ("w-1", "u-1", "10.0.0.2", true)]));
    bed.pod(pod("w-0", "u-new", "10.0.0.1"));
    assert_eq!(bed.rejections(), ["w-0 PodGone", "w-1 PodGone"]);
    assert!(bed.outcome("llama").rejections[0].message.contains("another pod"));
    bed.slice(slice("a", &[("w-0", "u-new", "10.0.0.1", true)]));
    assert_eq!(bed.lines(), ["w-0 http://10.0.0.1:8000"]);
}

#[test]
fn an_endpoint_that_names_a_pod_without_uid_is_that_pod() {
    let mut bed = Bed::with_pods(POOL);
    let mut named = slice("a", &[("w-0", "u-0", "10.0.0.1", true)]);
    named["endpoints"][0]["targetRef"].as_object_mut().unwrap().remove("uid");
    bed.slice(named);
    bed.pod(pod("w-0", "u-0", "10.0.0.1"));
    bed.slice(slice("b", &[("w-0", "u-0", "10.0.0.1", true)]));
    assert_eq!(bed.lines(), ["w-0 http://10.0.0.1:8000"]);
}
