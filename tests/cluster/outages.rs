//! Parts of the cluster are away for a while: selectors serve on with what they have, nothing flaps, and when the parts are
//! back every selector has the workers that there are, and none that went meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::{
    harness::{
        AuditLog, BookingLoad, Component, Cut, Namespace, PodFacts, alone, call, kill_container, manifests, trial,
        wait_until, within,
    },
    managed,
};

/// Labels of the operator's pods.
const OPERATOR: &str = "app.kubernetes.io/component=controller";
/// Seconds that the apiserver is away, unless the environment says otherwise.
const OUTAGE: (&str, u64) = ("POINTSMAN_OUTAGE_SECONDS", 30);

pub fn trials() -> Vec<Trial> {
    vec![
        alone("outages::of_the_control_plane", of_the_control_plane),
        alone("outages::of_the_node", of_the_node),
        trial("outages::of_the_operator_while_it_writes", of_the_operator_while_it_writes),
        trial("outages::of_the_way_to_one_selector", of_the_way_to_one_selector),
    ]
}

/// Workers of a selector by id: endpoint and lifecycle.
type Workers = BTreeMap<u64, (String, String)>;

fn workers(selector: &PodFacts) -> Result<Workers, String> {
    let answer = call(selector.ip(), 8092, "GET", "/workers", None)?;
    if !answer.is_success() {
        return Err(format!("{}: {} {}", selector.name, answer.status, answer.text()));
    }
    let list = answer.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row =
        |worker: &Value| Some((worker["worker_id"].as_u64()?, (text(&worker["endpoint"]), text(&worker["lifecycle"]))));
    Ok(list.as_array().into_iter().flatten().filter_map(row).collect())
}

/// Waits until every selector has `count` workers that take bookings, none of which is in `gone`.
#[track_caller]
fn wait_for_workers(ns: &Namespace, count: usize, gone: &[u64]) {
    wait_until(&format!("{count} workers without {gone:?}"), || {
        for pod in ns.try_pods(managed::SELECTORS)? {
            let found = workers(&pod)?;
            let are_good = found.values().all(|(_, lifecycle)| lifecycle == "schedulable");
            if found.len() != count || !are_good || gone.iter().any(|id| found.contains_key(id)) {
                return Err(format!("{}: {found:?}", pod.name));
            }
        }
        Ok(())
    });
}

/// The same, and all agree while nobody books; the workers.
#[track_caller]
fn settle(ns: &Namespace, selectors: usize, count: usize, gone: &[u64]) -> BTreeSet<u64> {
    wait_for_workers(ns, count, gone);
    managed::wait_until_well(ns, selectors, count).workers.into_iter().map(|(id, _)| id).collect()
}

/// Every selector has all of `ids`, whatever else it has.
fn assert_kept(selectors: &[PodFacts], ids: &BTreeSet<u64>, when: &str) {
    for pod in selectors {
        // One that does not answer is counted by the client that books.
        let Ok(found) = workers(pod) else { continue };
        let missing: Vec<_> = ids.iter().filter(|id| !found.contains_key(id)).collect();
        assert!(missing.is_empty(), "{when}, {} has lost {missing:?}: {found:?}", pod.name);
    }
}

/// Since when each condition of the set says what it says.
fn since(ns: &Namespace) -> BTreeMap<String, String> {
    let set = ns.object("selectorset", "fleet").expect("a set").expect("a set");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let conditions = set["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .map(|c| (text(&c["type"]), format!("{} since {}", c["status"], text(&c["lastTransitionTime"]))))
        .collect()
}

/// Takes a pod out of the store behind the apiserver's back, as what is lost with a watch.
fn forget_pod(ns: &Namespace, pod: &PodFacts) {
    let key = BASE64_STANDARD.encode(format!("/registry/pods/{}/{}", ns.name(), pod.name));
    let body = json!({"key": key}).to_string();
    let url = "http://127.0.0.1:2379/v3/kv/deleterange";
    let answer = Command::new("curl").args(["-sSf", "--max-time", "15", "-d", &body, url]).output().expect("curl runs");
    let answer: Value = serde_json::from_slice(&answer.stdout).expect("etcd answers in JSON");
    assert_eq!(answer["deleted"], "1", "{answer}");
}

fn of_the_control_plane(ns: &Namespace) {
    let cluster = ns.cluster();
    let seconds = std::env::var(OUTAGE.0).ok().and_then(|s| s.parse().ok()).unwrap_or(OUTAGE.1);
    let _operator = ns.install_operator(&[]);
    managed::apply(ns, &json!({"replicas": 3}), 4);
    let selectors = ns.wait_for_pods(managed::SELECTORS, 3);
    let ids = settle(ns, 3, 4, &[]);
    let engines = ns.wait_for_pods("app=engines", 4);
    let (before, audit) = (since(ns), AuditLog::from_now(cluster));
    let victim = &engines[0];
    let known = workers(&selectors[0]).expect("a selector answers");
    let victim_id = *known.iter().find(|(_, w)| w.0.contains(&victim.ip().to_string())).expect("the victim is known").0;
    let others: BTreeSet<u64> = ids.iter().copied().filter(|id| *id != victim_id).collect();

    let load = BookingLoad::new(ns.service_ip("fleet"), manifests::MODEL).start(cluster);
    load.wait_for_bookings(100);
    // A controller manager that loses its apiserver for so long ends and starts anew; one that went on would take the time
    // for the nodes' silence and call every pod not ready. And without it slices name the pod that went for longer.
    let gone_after = cluster.without(Component::ControllerManager, || {
        cluster.without(Component::Apiserver, || {
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(seconds) {
                assert_kept(&selectors, &ids, "without an apiserver");
                load.wait_for_bookings(50);
            }
            // A watch that goes on from before is told 410, and the list that follows has one pod less.
            forget_pod(ns, victim);
            cluster.compact_history();
        });
        let back = Instant::now();
        wait_until("the news at every selector", || {
            assert_kept(&selectors, &others, "after the outage");
            for pod in &selectors {
                let found = workers(pod)?;
                if found.contains_key(&victim_id) {
                    return Err(format!("{} has {victim_id} yet: {found:?}", pod.name));
                }
            }
            Ok::<_, String>(back.elapsed())
        })
    });
    println!("the worker that went during an outage of {seconds} s was gone {gone_after:?} after it");
    wait_for_workers(ns, 4, &[victim_id]);
    assert_kept(&selectors, &others, "when all was well again");
    let after = since(ns);
    for kind in ["Available", "PeersWired", "Degraded", "Progressing"] {
        assert_eq!(after[kind], before[kind], "{kind} has flapped");
    }
    let writes = audit.requests().by_service_account(ns.name(), ns.operator_account()).writes().but("leases");
    let writes = writes.but("events").answered(200);
    let of = |resource: &str| writes.clone().of(resource).len();
    println!("writes about it: {} set statuses, {} pool statuses", of("selectorsets/status"), of("modelpools/status"));
    // The outage is one change, the pod that is made anew another.
    assert!(of("selectorsets/status") <= 6 && of("modelpools/status") <= 6, "{writes:?}");
    assert_eq!(writes.len(), of("selectorsets/status") + of("modelpools/status"), "{writes:?}");

    cluster.without(Component::Etcd, || load.wait_for_bookings(200));
    ns.kubectl(&["scale", "deployment/engines", "--replicas=5"]);
    wait_for_workers(ns, 5, &[victim_id]);
    let report = load.finish();
    report.assert_clean(200);
    let ids = settle(ns, 3, 5, &[victim_id]);
    assert!(others.is_subset(&ids), "{others:?} {ids:?}");
    let restarts: i32 = ns.pods(managed::SELECTORS).iter().map(|p| p.restarts).sum();
    assert_eq!(restarts, 0, "a selector has restarted");
    assert_eq!(ns.pods(managed::SELECTORS), selectors);
}

fn of_the_node(ns: &Namespace) {
    let cluster = ns.cluster();
    let _operator = ns.install_operator(&[]);
    managed::apply(ns, &json!({"replicas": 2}), 3);
    let selectors = ns.wait_for_pods(managed::SELECTORS, 2);
    let ids = settle(ns, 2, 3, &[]);
    let node_is = |wanted: &'static str| {
        let path = "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].status}";
        within(Duration::from_secs(180), &format!("a node that is {wanted}"), || {
            let ready = cluster.try_kubectl(&["get", "nodes", "-o", path], None)?;
            if (ready == "True") == (wanted == "ready") { Ok(()) } else { Err(ready) }
        });
    };
    let started = Instant::now();
    cluster.without(Component::Kubelet, || {
        node_is("not ready");
        println!("not ready after {:?}", started.elapsed());
        // Its pods count as not ready, so they take no new bookings; those without any may go at once.
        wait_until("workers that take no bookings", || {
            for pod in &selectors {
                let found = workers(pod)?;
                if found.values().any(|(_, lifecycle)| lifecycle == "schedulable") {
                    return Err(format!("{}: {found:?}", pod.name));
                }
            }
            Ok(())
        });
    });
    node_is("ready");
    assert_eq!(settle(ns, 2, 3, &[]), ids, "the workers are the same as before");
}

/// SelectorSet `NAME` without pods.
fn empty_set(name: &str) -> Value {
    json!({
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "SelectorSet",
        "metadata": {"name": name},
        "spec": {"replicas": 0},
    })
}

fn of_the_operator_while_it_writes(ns: &Namespace) {
    const SETS: usize = 12;
    let _operator = ns.install_operator(&[]);
    managed::apply(ns, &json!({"replicas": 2}), 2);
    let selectors = ns.wait_for_pods(managed::SELECTORS, 2);
    let ids = settle(ns, 2, 2, &[]);
    let operator = ns.wait_for_pods(OPERATOR, 1).remove(0);
    let audit = AuditLog::from_now(ns.cluster());
    let sets: Vec<_> = (0..SETS).map(|n| empty_set(&format!("set-{n}"))).collect();
    ns.apply(&manifests::list(&sets));
    let writes = || {
        let of_it = audit.requests().by_service_account(ns.name(), ns.operator_account());
        of_it.writes().but("leases").but("events")
    };
    wait_until("its first writes", || if writes().of("configmaps").is_empty() { Err("none yet") } else { Ok(()) });
    kill_container(ns.cluster(), &operator, "controller");
    let made = || {
        let kinds = "statefulsets,services,configmaps,poddisruptionbudgets";
        let list = ns.try_kubectl(&["get", kinds, "-l", "pointsman.dev/selector-set", "-o", "name"])?;
        let of = |kind: &str| list.lines().filter(|name| name.starts_with(kind) && name.contains("/set-")).count();
        Ok::<_, String>([of("configmap"), of("service"), of("statefulset"), of("poddisruptionbudget")])
    };
    let half = made().unwrap();
    println!("killed when it had made {half:?}");
    assert!(half[2] < SETS, "all was made before it was killed: {half:?}");
    wait_until("all objects of all sets", || {
        assert_kept(&selectors, &ids, "without the operator");
        let made = made()?;
        // A set of no selectors has a budget too where the spec does not forbid it.
        if made[..3] == [SETS, 2 * SETS, SETS] { Ok(()) } else { Err(format!("{made:?}")) }
    });
    settle(ns, 2, 2, &[]);
    // What was made by the one that was killed is not made again by the next.
    let mut twice: BTreeMap<(String, String), usize> = BTreeMap::new();
    for write in writes().answered(201).0.into_iter().chain(writes().answered(200).0) {
        if !write.resource.ends_with("/status") {
            *twice.entry((write.resource, write.name)).or_default() += 1;
        }
    }
    twice.retain(|_, count| *count > 1);
    assert!(twice.is_empty(), "written twice: {twice:?}");
    assert_eq!(ns.pods(managed::SELECTORS), selectors, "the set that was there is untouched");
}

fn of_the_way_to_one_selector(ns: &Namespace) {
    let _operator = ns.install_operator(&[]);
    managed::apply(ns, &json!({"replicas": 3}), 2);
    let selectors = ns.wait_for_pods(managed::SELECTORS, 3);
    let ids = settle(ns, 3, 2, &[]);
    let operator = ns.wait_for_pods(OPERATOR, 1).remove(0);
    let (cut_off, others) = selectors.split_last().expect("three selectors");
    let load = BookingLoad::new(ns.service_ip("fleet"), manifests::MODEL).start(ns.cluster());
    load.wait_for_bookings(60);
    let cut = Cut::between(&operator, cut_off);
    ns.kubectl(&["scale", "deployment/engines", "--replicas=3"]);
    ns.wait_for_pods("app=engines", 3);
    let ready = Instant::now();
    let found = |pod: &PodFacts| -> Result<BTreeSet<u64>, String> { Ok(workers(pod)?.into_keys().collect()) };
    wait_until("the third worker at the others", || {
        for pod in others {
            let found = found(pod)?;
            if found.len() != 3 {
                return Err(format!("{}: {found:?}", pod.name));
            }
        }
        Ok::<_, String>(())
    });
    let others_after = ready.elapsed();
    assert_eq!(found(cut_off).unwrap(), ids, "{} serves on with what it has", cut_off.name);
    let told = wait_until("a status that names it", || {
        let set = ns.object("selectorset", "fleet")?.ok_or("no set")?;
        let all = set["status"]["conditions"].as_array().into_iter().flatten();
        let synced = all.into_iter().find(|c| c["type"] == "CatalogSynced").cloned().unwrap_or_default();
        let says = synced["message"].as_str().is_some_and(|text| text.contains(&cut_off.name));
        if synced["reason"] == "SelectorUnreachable" && says { Ok(ready.elapsed()) } else { Err(synced.to_string()) }
    });
    load.wait_for_bookings(200);
    let healed = Instant::now();
    drop(cut);
    wait_until("the third worker at the one that was cut off", || {
        let found = found(cut_off)?;
        if found.len() == 3 { Ok(()) } else { Err(format!("{found:?}")) }
    });
    let after = healed.elapsed();
    println!("the others after {others_after:?}, the status after {told:?}, the one cut off {after:?} after the cut");
    let report = load.finish();
    report.assert_clean(200);
    // Ends that were told to the one that did not know the third worker ended nothing.
    managed::wait_until_well_but_for(256, ns, 3, 3);
}
