//! Selectors as pods without the operator, over mock engines as pods: a workers file in a ConfigMap, KV events across pod
//! addresses, bookings through the Service.

use std::net::IpAddr;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::harness::{BookingLoad, Namespace, PodFacts, call, manifests, reset_container, trial, wait_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("plain_selectors::book_engines_of_a_workers_file", book_engines_of_a_workers_file),
        trial("plain_selectors::follow_the_caches_of_pods", follow_the_caches_of_pods),
        trial("plain_selectors::come_and_go_unnoticed_by_clients", come_and_go_unnoticed_by_clients),
    ]
}

/// Three engines, and `selectors` selectors that know them by their names in the DNS.
fn deploy(ns: &Namespace, selectors: u32) -> (Vec<PodFacts>, Vec<PodFacts>) {
    let image = ns.cluster().image();
    ns.apply(&manifests::list(&manifests::stateful_engines("engine", 3, image, &[])));
    let host = |n: u32| (format!("engine-{n}"), format!("engine-{n}.engine.{}.svc.cluster.local", ns.name()));
    ns.apply(&manifests::workers("selector", &(0..3).map(host).collect::<Vec<_>>()).to_string());
    ns.apply(&manifests::list(&manifests::selectors("selector", selectors, image, &[])));
    (ns.wait_for_pods("app=engine", 3), ns.wait_for_pods("app=selector", selectors as usize))
}

fn get(host: IpAddr, path: &str) -> Value {
    call(host, 8092, "GET", path, None).unwrap_or_else(|e| panic!("{e}")).json()
}

fn book_engines_of_a_workers_file(ns: &Namespace) {
    let (_, selectors) = deploy(ns, 1);
    assert_eq!(call(selectors[0].ip(), 8092, "GET", "/livez", None).unwrap().status, 200);
    let service = ns.service_ip("selector");
    let load = BookingLoad::new(service, manifests::MODEL).start(ns.cluster());
    load.wait_for_bookings(300);
    let report = load.finish();
    report.assert_clean(300);
    assert_eq!(report.workers.len(), 3, "every engine gets its share\n{report}");
    let loads = get(service, "/loads");
    let rows = loads[0]["loads"].as_array().expect("loads of one partition");
    assert!(rows.iter().all(|row| row["active_requests"] == 0), "bookings are left over: {loads}");
}

fn follow_the_caches_of_pods(ns: &Namespace) {
    let (engines, selectors) = deploy(ns, 1);
    let prompt: Vec<u32> = (1000..1000 + 8 * manifests::BLOCK_SIZE).collect();
    for engine in &engines[1..] {
        let body = json!({"model": manifests::MODEL, "prompt": &prompt[..64], "max_tokens": 1});
        let answer = call(engine.ip(), 8000, "POST", "/v1/completions", Some(&body)).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let body = json!({"model": manifests::MODEL, "prompt": prompt, "max_tokens": 1});
    let answer = call(engines[2].ip(), 8000, "POST", "/v1/completions", Some(&body)).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    // engine-0 has nothing, engine-1 half, engine-2 all.
    let body = json!({"model_name": manifests::MODEL, "token_ids": prompt});
    wait_until("events of all engines", || {
        let answer = call(selectors[0].ip(), 8092, "POST", "/overlap_scores", Some(&body))?.json();
        let text = answer.to_string();
        let rows = answer["workers"].as_array().map_or(&[][..], Vec::as_slice);
        let mut blocks: Vec<_> = rows.iter().filter_map(|row| row["device_blocks"].as_u64()).collect();
        blocks.sort_unstable();
        if blocks == [0, 4, 8] { Ok(()) } else { Err(text) }
    });
    let chosen = call(selectors[0].ip(), 8092, "POST", "/select", Some(&body)).unwrap().json();
    let expected = format!("http://engine-2.engine.{}.svc.cluster.local:8000", ns.name());
    assert_eq!(chosen["endpoint"], expected, "{chosen}");
}

fn come_and_go_unnoticed_by_clients(ns: &Namespace) {
    let (_, selectors) = deploy(ns, 3);
    let cluster = ns.cluster();
    let load = BookingLoad::new(ns.service_ip("selector"), manifests::MODEL).start(cluster);
    load.wait_for_bookings(200);
    reset_container(ns, &selectors[0], "selector");
    ns.wait_for_pods("app=selector", 3);
    load.wait_for_bookings(200);
    ns.kubectl(&["delete", "pod", "selector-1"]);
    ns.wait_for_pods("app=selector", 3);
    load.wait_for_bookings(200);
    ns.kubectl(&["set", "image", "statefulset/selector", &format!("selector={}", cluster.other_image())]);
    ns.wait_for_rollout("statefulset/selector");
    load.wait_for_bookings(200);
    load.finish().assert_clean(800);
    let agreed = ns.wait_for_agreement_but_for(16, "app=selector", 3, "file.default");
    assert_eq!(agreed.workers.len(), 3, "{agreed:?}");
}
