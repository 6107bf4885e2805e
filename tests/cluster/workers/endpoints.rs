//! Endpoints written by hand: many slices, two families, no pods; and addresses that change hands.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{
    super::harness::{Fleet, Namespace, condition, id_at, manifests, manifests::Endpoint, pool},
    engines, service,
};

/// A pod that is an object alone, Running and Ready at `address`; nothing schedules it.
fn pod_object(ns: &Namespace, name: &str, address: &str, container: &str) -> String {
    let mut pod = manifests::unbacked_pod(name, &json!({"app": "by-hand"}));
    pod["spec"].as_object_mut().expect("a pod has a spec").remove("nodeName");
    pod["spec"]["schedulerName"] = json!("nobody");
    ns.apply(&pod.to_string());
    let status = manifests::unbacked_status(address, container, true);
    ns.kubectl(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", &status.to_string()]);
    ns.pod(name).uid
}

fn by_address(address: String) -> Endpoint {
    Endpoint { address, ready: Some(true), ..Endpoint::default() }
}

fn by_pod(address: &str, name: &str, uid: &str) -> Endpoint {
    Endpoint { pod: Some((name.to_owned(), uid.to_owned())), ..by_address(address.to_owned()) }
}

fn slice(ns: &Namespace, name: &str, kind: &str, endpoints: &[Endpoint]) -> Value {
    let ports = [("http", manifests::ENGINE_PORTS[0])];
    manifests::endpoint_slice(name, "by-hand", ns.name(), kind, &ports, endpoints)
}

/// A Service whose endpoints nobody but the trial writes.
fn service_by_hand() -> Value {
    let mut object = manifests::service("by-hand", &json!({}), &[("http", manifests::ENGINE_PORTS[0])], false);
    object["spec"].as_object_mut().expect("a Service has a spec").remove("selector");
    object
}

/// The `n`th address that nobody has.
fn vacant(n: u32) -> String {
    format!("10.88.{}.{}", 240 + n / 200, n % 200 + 1)
}

fn addresses(list: impl IntoIterator<Item = String>) -> Vec<IpAddr> {
    list.into_iter().map(|address| address.parse().expect("an address")).collect()
}

pub fn by_hand(ns: &Namespace) {
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    ns.apply(&service_by_hand().to_string());
    let range = |from: u32, to: u32| (from..to).map(|n| by_address(vacant(n))).collect::<Vec<_>>();
    // 246 addresses without pods; ten of them in two slices.
    let parts = [range(0, 90), range(80, 180), range(180, 246)];
    let mut objects: Vec<Value> =
        parts.iter().enumerate().map(|(n, part)| slice(ns, &format!("part-{n}"), "IPv4", part)).collect();
    // Four pods of two families, each in both slices.
    let pods: Vec<(String, String, String)> = (0..4)
        .map(|n| {
            let (name, address) = (format!("dual-{n}"), vacant(300 + n));
            let uid = pod_object(ns, &name, &address, &format!("{n:064}"));
            (name, address, uid)
        })
        .collect();
    let of_pods = |address: &dyn Fn(usize) -> String| -> Vec<Endpoint> {
        pods.iter().enumerate().map(|(n, (name, _, uid))| by_pod(&address(n), name, uid)).collect()
    };
    objects.push(slice(ns, "four", "IPv4", &of_pods(&|n| pods[n].1.clone())));
    objects.push(slice(ns, "six", "IPv6", &of_pods(&|n| format!("fd00:88::{}", n + 1))));
    // One was never ready.
    let never = Endpoint { ready: Some(false), ..by_address(vacant(399)) };
    objects.push(slice(ns, "odd", "IPv4", &[never]));
    ns.apply(&manifests::list(&objects));
    ns.apply(&pool("llama", "fleet", &service("by-hand"), &json!({})).to_string());

    let all = addresses((0..246).map(vacant).chain(pods.iter().map(|p| p.1.clone())));
    assert_eq!(all.len(), 250);
    let workers = fleet.wait_for(all.clone());
    ns.wait_for_rejection("llama", &vacant(399), "NotReady");
    let status = ns.wait_for_counts("llama", 251, 250, 0);
    assert_eq!(status["schedulableOfDiscovered"], "250/251", "{status}");

    // A pod whose IPv4 slice goes is the same worker still: its address is the pod's, whichever slice tells of it.
    ns.kubectl(&["delete", "endpointslice", "four"]);
    // So is an address that one of two slices no longer has.
    ns.apply(&slice(ns, "part-0", "IPv4", &range(0, 80)).to_string());
    ns.apply(&slice(ns, "part-2", "IPv4", &range(180, 240)).to_string());
    let left = addresses((0..240).map(vacant).chain(pods.iter().map(|p| p.1.clone())));
    let now = fleet.wait_for(left);
    assert!(now.keys().all(|id| workers.contains_key(id)), "ids do not depend on slices");
    ns.kubectl(&["delete", "endpointslice", "part-0", "part-1", "part-2"]);
    fleet.wait_for(addresses(pods.iter().map(|p| p.1.clone())));
    ns.wait_for_counts("llama", 5, 4, 0);
}

pub fn an_address_used_again(ns: &Namespace) {
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    let address = vacant(310);
    let at = addresses([address.clone()])[0];
    let first = pod_object(ns, "first", &address, &"1".repeat(64));
    ns.apply(&manifests::list(&[service_by_hand(), slice(ns, "one", "IPv4", &[by_pod(&address, "first", &first)])]));
    ns.apply(&pool("llama", "fleet", &service("by-hand"), &json!({})).to_string());
    let before = fleet.wait_for([at]);

    // The slice lags behind: the pod is gone, so is its worker.
    ns.kubectl(&["delete", "pod", "first", "--grace-period=0", "--force"]);
    fleet.wait_for([]);
    let why = ns.wait_for_rejection("llama", "first", "PodGone");
    assert!(why.contains("no such pod"), "{why}");
    let again = pod_object(ns, "first", &address, &"2".repeat(64));
    assert_ne!(again, first);
    ns.wait_for_pool("llama", |status| status.to_string().contains("another pod has this name now"));
    fleet.wait_for([]);
    ns.apply(&slice(ns, "one", "IPv4", &[by_pod(&address, "first", &again)]).to_string());
    let second = fleet.wait_for([at]);
    assert_ne!(id_at(&second, at), id_at(&before, at), "another pod at the address of the first is another worker");

    // Two pods say that they have one address: the one that is ready there last has it.
    let heir = pod_object(ns, "heir", &address, &"3".repeat(64));
    let newer = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-02-02T00:00:00Z"}]}});
    ns.kubectl(&["patch", "pod", "heir", "--subresource=status", "--type=merge", "-p", &newer.to_string()]);
    let both = [by_pod(&address, "first", &again), by_pod(&address, "heir", &heir)];
    ns.apply(&slice(ns, "one", "IPv4", &both).to_string());
    ns.wait_for_rejection("llama", "first", "PodGone");
    let third = fleet.wait_for([at]);
    assert_ne!(id_at(&third, at), id_at(&second, at));

    // A container that was replaced in place is another worker, too.
    let status = manifests::unbacked_status(&address, &"4".repeat(64), true);
    ns.kubectl(&["patch", "pod", "heir", "--subresource=status", "--type=merge", "-p", &status.to_string()]);
    ns.apply(&slice(ns, "one", "IPv4", &both[1..]).to_string());
    fleet.wait_until_gone(id_at(&third, at));
    fleet.wait_for([at]);
}

pub fn two_services_over_the_same_pods(ns: &Namespace) {
    let image = ns.cluster().image();
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    let labels = json!({"app": "engines"});
    let other = manifests::service("other", &labels, &[("http", manifests::ENGINE_PORTS[0])], true);
    ns.apply(&manifests::list(&[&engines("engines", 2, image)[..], &[other]].concat()));
    ns.apply(&pool("older", "fleet", &service("engines"), &json!({})).to_string());
    let pods = ns.wait_for_pods("app=engines", 2);
    let before = fleet.wait_for_pods(&pods);
    // The older pool has them, though the younger one names another model.
    ns.apply(&pool("younger", "fleet", &service("other"), &json!({"modelName": "other-model"})).to_string());
    for pod in &pods {
        let why = ns.wait_for_rejection("younger", &pod.name, "ClaimedByOtherPool");
        assert!(why.contains("older"), "{why}");
    }
    let status = ns.wait_for_counts("younger", 2, 0, 0);
    assert_eq!(condition(&status, "WorkersDiscovered")["status"], "False", "{status}");
    ns.wait_for_counts("older", 2, 2, 0);
    assert_eq!(fleet.wait_for_pods(&pods), before, "a pool that gets nothing takes nothing");
    ns.kubectl(&["delete", "mp", "older"]);
    ns.wait_for_counts("younger", 2, 2, 0);
    let after = fleet.wait_for_pods(&pods);
    assert!(after.keys().all(|id| !before.contains_key(id)), "another model is another worker: {after:?}");
}
