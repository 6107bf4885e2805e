//! The cluster itself: pods with names in the DNS, containers that crash in place, an apiserver that goes and comes back.
//! What other trials take for granted fails here first.

use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::json;

use super::harness::{
    AuditLog, CLUSTER_DNS, Component, Cordon, Cut, Namespace, alone, call, manifests, reaches, reset_container,
    resolve, trial, wait_until, within,
};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("cluster::stateful_pods_are_ready_and_have_names", stateful_pods_are_ready_and_have_names),
        trial("cluster::a_killed_container_comes_back_in_its_pod", a_killed_container_comes_back_in_its_pod),
        trial("cluster::networks_can_be_cut", networks_can_be_cut),
        trial("cluster::programs_of_the_machine_run_in_pods", programs_of_the_machine_run_in_pods),
        trial("cluster::hand_made_objects_stand_in_the_api", hand_made_objects_stand_in_the_api),
        trial("cluster::the_audit_log_tells_who_wrote_what", the_audit_log_tells_who_wrote_what),
        alone("cluster::the_apiserver_and_etcd_come_back", the_apiserver_and_etcd_come_back),
        alone("cluster::a_drained_node_takes_its_pods_back", a_drained_node_takes_its_pods_back),
    ]
}

fn engines(ns: &Namespace, count: u32) -> String {
    manifests::list(&manifests::stateful_engines("engine", count, ns.cluster().image(), &[]))
}

fn stateful_pods_are_ready_and_have_names(ns: &Namespace) {
    ns.apply(&engines(ns, 3));
    let pods = ns.wait_for_pods("app=engine", 3);
    for pod in &pods {
        let name = format!("{}.engine.{}.svc.cluster.local", pod.name, ns.name());
        wait_until(&name, || match resolve(CLUSTER_DNS, &name) {
            Ok(addresses) if addresses == [pod.ip()] => Ok(()),
            other => Err(format!("{other:?}, not {}", pod.ip())),
        });
        let answer = call(pod.ip(), 8000, "GET", "/health", None).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

fn a_killed_container_comes_back_in_its_pod(ns: &Namespace) {
    ns.apply(&engines(ns, 1));
    let mut before = ns.wait_for_pods("app=engine", 1).remove(0);
    for _ in 0..4 {
        let after = reset_container(ns, &before, "engine");
        assert_eq!((&after.uid, after.address), (&before.uid, before.address));
        assert_ne!(after.containers, before.containers);
        before = after;
    }
    let log = ns.kubectl(&["logs", "engine-0", "--previous"]);
    assert!(log.contains("mock engine is up"), "the log of the container before: {log}");
    ns.wait_for_pods("app=engine", 1);
}

fn networks_can_be_cut(ns: &Namespace) {
    ns.apply(&engines(ns, 3));
    let pods = ns.wait_for_pods("app=engine", 3);
    let health = |at: usize| call(pods[at].ip(), 8000, "GET", "/health", None).map(|a| a.status);
    let reach = |from: usize, to: usize| reaches(&pods[from], pods[to].ip(), 8000).is_ok();
    let cut = Cut::between(&pods[0], &pods[1]);
    assert_eq!([reach(0, 1), reach(1, 0), reach(0, 2), reach(2, 1)], [false, false, true, true]);
    assert_eq!((health(0), health(1)), (Ok(200), Ok(200)), "both are reached by the machine");
    drop(cut);
    assert_eq!([reach(0, 1), reach(1, 0)], [true, true]);
    let cut = Cut::pod(&pods[0]);
    assert!(health(0).is_err(), "{:?}", health(0));
    assert_eq!(health(1), Ok(200));
    wait_until("the pod's probes to fail", || {
        let pod = ns.pod(&pods[0].name);
        if pod.ready { Err(format!("{pod:?}")) } else { Ok(()) }
    });
    drop(cut);
    ns.wait_for_pods("app=engine", 3);
}

fn programs_of_the_machine_run_in_pods(ns: &Namespace) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hello"), "from the machine").unwrap();
    let path = folder.path().to_str().expect("a temporary folder has a name in UTF-8");
    // Under another name in the pod: its /tmp is its own.
    let mut template =
        manifests::host_template("files", &["python3", "-m", "http.server", "8000", "-d", "/data"], &[], 8000);
    let spec = &mut template["spec"];
    spec["volumes"].as_array_mut().unwrap().push(json!({"name": "data", "hostPath": {"path": path}}));
    let mounts = spec["containers"][0]["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({"name": "data", "mountPath": "/data"}));
    ns.apply(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "files", "labels": {"app": "files"}},
            "spec": template["spec"]})
        .to_string(),
    );
    let pod = ns.wait_for_pods("app=files", 1).remove(0);
    assert_eq!(call(pod.ip(), 8000, "GET", "/hello", None).unwrap().text(), "from the machine");
}

fn hand_made_objects_stand_in_the_api(ns: &Namespace) {
    let labels = json!({"app": "nothing"});
    ns.apply(&manifests::unbacked_pod("nothing-0", &labels).to_string());
    let status = manifests::unbacked_status("10.99.0.1", "one", true).to_string();
    ns.kubectl(&["patch", "pod", "nothing-0", "--subresource=status", "--type=strategic", "-p", &status]);
    let pod = ns.wait_for_pods("app=nothing", 1).remove(0);
    assert_eq!(pod.ip().to_string(), "10.99.0.1");
    assert_eq!(pod.containers, [("engine".to_owned(), "containerd://one".to_owned())]);
    let endpoints: Vec<_> = (0..250)
        .map(|n| manifests::Endpoint { address: format!("10.99.{}.{}", n / 100, n % 100 + 1), ..Default::default() })
        .collect();
    let slices: Vec<_> = endpoints
        .chunks(100)
        .enumerate()
        .map(|(n, part)| {
            manifests::endpoint_slice(&format!("many-{n}"), "many", ns.name(), "IPv4", &[("http", 8000)], part)
        })
        .collect();
    ns.apply(&manifests::list(&slices));
    let found = ns.json(&["get", "endpointslices", "-l", "kubernetes.io/service-name=many"]);
    let count: usize =
        found["items"].as_array().unwrap().iter().map(|s| s["endpoints"].as_array().unwrap().len()).sum();
    assert_eq!(count, 250);
}

fn the_audit_log_tells_who_wrote_what(ns: &Namespace) {
    let log = AuditLog::from_now(ns.cluster());
    ns.kubectl(&["create", "configmap", "a"]);
    ns.kubectl(&["get", "configmap", "a"]);
    ns.kubectl(&["create", "serviceaccount", "reader"]);
    let reader = format!("system:serviceaccount:{}:reader", ns.name());
    // What a pod of that account would be told, without a pod.
    let token = ns.kubectl(&["create", "token", "reader"]);
    let refused = ns.cluster().try_kubectl_as(&token, &["-n", ns.name(), "get", "configmaps"]);
    assert!(refused.as_ref().is_err_and(|e| e.contains("Forbidden")), "{refused:?}");
    // A request is logged when it is answered, and its client may be quicker.
    within(Duration::from_secs(30), "three requests in the log", || {
        let requests = log.requests();
        let by_admin = requests.clone().by("admin").in_namespace(ns.name()).writes().of("configmaps");
        let by_reader = requests.clone().by(&reader).of("configmaps").answered(403);
        if by_admin.len() == 1 && by_reader.len() == 1 && by_reader.writes().is_empty() {
            return Ok(());
        }
        Err(format!("{requests:?}"))
    });
}

fn the_apiserver_and_etcd_come_back(ns: &Namespace) {
    let cluster = ns.cluster();
    ns.apply(&engines(ns, 1));
    let pod = ns.wait_for_pods("app=engine", 1).remove(0);
    cluster.without(Component::Apiserver, || {
        assert!(cluster.is_ready().is_err());
        assert_eq!(call(pod.ip(), 8000, "GET", "/health", None).unwrap().status, 200, "pods run on");
    });
    cluster.without(Component::Etcd, || {
        wait_until("the apiserver to miss etcd", || cluster.is_ready().err().ok_or("it says that it is ready"))
    });
    cluster.compact_history();
    let stale =
        cluster.try_kubectl(&["get", "--raw", "/api/v1/pods?watch=true&resourceVersion=1&timeoutSeconds=5"], None);
    assert!(stale.as_ref().is_ok_and(|s| s.contains("\"code\":410")), "a watch from before: {stale:?}");
    assert_eq!(ns.wait_for_pods("app=engine", 1)[0].uid, pod.uid, "the same pod as before");
    ns.kubectl(&["scale", "statefulset/engine", "--replicas=2"]);
    ns.wait_for_pods("app=engine", 2);
}

fn a_drained_node_takes_its_pods_back(ns: &Namespace) {
    ns.apply(&engines(ns, 2));
    let before = ns.wait_for_pods("app=engine", 2);
    {
        let node = Cordon::node(ns.cluster());
        node.drain("app=engine");
        wait_until("pods that wait for a node", || {
            let pods = ns.try_pods("app=engine")?;
            let wait = |p: &super::harness::PodFacts| p.address.is_none() && before.iter().all(|b| b.uid != p.uid);
            if pods.len() == 2 && pods.iter().all(wait) { Ok(()) } else { Err(format!("{pods:?}")) }
        });
    }
    ns.wait_for_pods("app=engine", 2);
}
