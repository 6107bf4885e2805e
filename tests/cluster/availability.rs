//! What a client sees while selectors of a set are scaled, lost, rolled and given another policy: nothing.

use std::collections::BTreeMap;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::{
    harness::{Booker, BookingLoad, Namespace, PodFacts, call, manifests, reset_container, trial, wait_until},
    managed::{self, SELECTORS},
};

pub fn trials() -> Vec<Trial> {
    vec![trial("availability::clients_notice_no_change_of_the_selectors", clients_notice_no_change_of_the_selectors)]
}

/// Bookings between two changes.
const BETWEEN: u64 = 150;
/// Engines of the fleet.
const ENGINES: u32 = 3;

fn clients_notice_no_change_of_the_selectors(ns: &Namespace) {
    let cluster = ns.cluster();
    let _operator = ns.install_operator(&[]);
    let mut spec = json!({"replicas": 3});
    managed::apply(ns, &spec, ENGINES);
    managed::wait_until_well(ns, 3, ENGINES as usize);

    let load = BookingLoad::new(ns.service_ip("fleet"), manifests::MODEL);
    assert!(load.rate >= 50.0);
    let load = load.start(cluster);
    load.wait_for_bookings(BETWEEN);

    // The kubelet brings a changed ConfigMap to pods within a minute or so: scaling goes on meanwhile.
    let first = ns.wait_for_pods(SELECTORS, 3);
    spec["router"] = json!({"document": {"worker_selection": {
        "aggregated": "tuned",
        "instances": [{"name": "tuned", "type": "dynamo-default-cost-fn", "parameters": {"overlap_score_credit": 0.5}}],
    }}});
    managed::apply_set(ns, &spec);
    ns.kubectl(&["scale", "sset/fleet", "--replicas=5"]);
    step(&load, "five selectors", || drop(ns.wait_for_pods(SELECTORS, 5)));
    step(&load, "the policy, without a restart", || wait_for_policy(ns, &first, "tuned"));

    // Until kube-proxy knows of a crash, it leads some of the new connections to nobody: of two selectors, every other one,
    // and then a client that repeats once may meet it twice.
    reset_container(ns, &ns.pod("fleet-0"), "selector");
    step(&load, "a container after a crash", || drop(ns.wait_for_pods(SELECTORS, 5)));

    ns.kubectl(&["scale", "sset/fleet", "--replicas=2"]);
    step(&load, "two selectors", || drop(ns.wait_for_pods(SELECTORS, 2)));

    let before = ns.pod("fleet-1");
    ns.kubectl(&["delete", "pod", "fleet-1"]);
    step(&load, "another pod in the place of a deleted one", || {
        let pods = ns.wait_for_pods(SELECTORS, 2);
        assert!(pods.iter().all(|pod| pod.uid != before.uid));
    });

    // `kubectl scale` owns the number now; an apply without the field leaves it.
    spec.as_object_mut().expect("a spec is an object").remove("replicas");
    let (repository, tag) = cluster.other_image().rsplit_once(':').expect("an image has a tag");
    spec["image"] = json!({"repository": repository, "tag": tag});
    managed::apply_set(ns, &spec);
    step(&load, "another image", || {
        wait_until("pods of the other image", || {
            let images = ns.try_kubectl(&[
                "get",
                "pods",
                "-l",
                SELECTORS,
                "-o",
                "jsonpath={.items[*].spec.containers[*].image}",
            ])?;
            let images: Vec<&str> = images.split_whitespace().collect();
            if images == [cluster.other_image(); 2] { Ok(()) } else { Err(format!("{images:?}")) }
        });
        drop(ns.wait_for_pods(SELECTORS, 2));
    });

    let report = load.finish();
    report.assert_clean(BETWEEN * 7);
    let agreed = managed::wait_until_well(ns, 2, ENGINES as usize);
    let known: Vec<u64> = agreed.workers.iter().map(|(id, _)| *id).collect();
    assert!(report.workers.keys().all(|id| known.contains(id)), "workers were remade: {report}");
    equal_load(ns);
}

/// Waits for a change, and for bookings after it; tells what the client saw as soon as that was bad.
#[track_caller]
fn step(load: &Booker, what: &str, change: impl FnOnce()) {
    let started = std::time::Instant::now();
    change();
    load.wait_for_bookings(BETWEEN);
    let seen = load.so_far();
    println!("{what}: {:.1} s; {seen}", started.elapsed().as_secs_f64());
    assert_eq!(seen.failed, 0, "after {what}: {seen}");
}

/// Waits until all of `pods` decide by the instance `name`; they are as they were.
fn wait_for_policy(ns: &Namespace, pods: &[PodFacts], name: &str) {
    wait_until(&format!("policy {name} everywhere"), || {
        for pod in pods {
            let status = call(pod.ip(), 8092, "GET", "/policy", None)?.json();
            let roles = status["effective"]["roles"].as_array().into_iter().flatten();
            let found = roles.into_iter().find(|role| role["role"] == "aggregated").map(|role| &role["instance"]);
            if found.is_none_or(|instance| *instance != *name) {
                return Err(format!("{}: {status}", pod.name));
            }
            if status["generation"].as_u64() < Some(2) {
                return Err(format!("{} read it at its start: {status}", pod.name));
            }
        }
        Ok(())
    });
    for pod in pods {
        let now = ns.pod(&pod.name);
        assert_eq!((&now.uid, &now.containers), (&pod.uid, &pod.containers), "{} was restarted", pod.name);
    }
}

/// Bookings that stay are on every replica, on the same workers; and are gone everywhere when they end.
fn equal_load(ns: &Namespace) {
    const HELD: u64 = 12;
    let service = ns.service_ip("fleet");
    for n in 0..HELD {
        let body =
            json!({"model_name": manifests::MODEL, "selection_id": format!("held-{n}"), "token_ids": [n, 1, 2, 3]});
        let answer = call(service, 8092, "POST", "/select_and_reserve", Some(&body)).unwrap();
        assert!(answer.is_success(), "{}", answer.text());
    }
    wait_until("the same load on all replicas", || {
        let loads = ns.try_pods(SELECTORS)?.iter().map(|pod| active(&pod.ip())).collect::<Result<Vec<_>, _>>()?;
        let same = loads.windows(2).all(|pair| pair[0] == pair[1]);
        if same && loads.first().is_some_and(|one| one.values().sum::<u64>() == HELD) {
            return Ok(());
        }
        Err(format!("{loads:?}"))
    });
    for n in 0..HELD {
        let answer = call(service, 8092, "DELETE", &format!("/reservations/held-{n}"), None).unwrap();
        assert!(answer.is_success(), "{}", answer.text());
    }
    ns.wait_for_agreement(SELECTORS, 2, &managed::owner(ns));
}

/// Live bookings by worker, as a selector has them.
fn active(host: &std::net::IpAddr) -> Result<BTreeMap<u64, u64>, String> {
    let loads = call(*host, 8092, "GET", "/loads", None)?.json();
    let rows = |partition: &Value| partition["loads"].as_array().cloned().unwrap_or_default();
    let ranks = loads.as_array().into_iter().flatten().flat_map(rows);
    Ok(ranks.filter_map(|r| Some((r["worker_id"].as_u64()?, r["active_requests"].as_u64()?))).collect())
}
