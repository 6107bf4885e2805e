//! What goes wrong in a cluster, made to happen: crashes in place, cut networks, a node that is taken out.

use std::{net::IpAddr, process::Command};

use super::{
    cluster::Cluster,
    command,
    namespace::{Namespace, PodFacts},
    wait::wait_until,
};

/// Bridge of the pods, as `tests/cluster/processes.sh` names it.
const BRIDGE: &str = "pointsman0";

/// Ends a pod's container with SIGKILL, as a crash or the kernel does. The kubelet starts it again in the same pod, with
/// the same address; see [`reset_container`].
#[track_caller]
pub fn kill_container(cluster: &Cluster, pod: &PodFacts, container: &str) {
    let id = pod.containers.iter().find(|(name, _)| name == container).map(|(_, id)| id);
    let id = id.unwrap_or_else(|| panic!("pod {} has no container {container}", pod.name));
    let id = id.strip_prefix("containerd://").unwrap_or(id);
    cluster.containerd(&["tasks", "kill", "-s", "SIGKILL", id]).unwrap_or_else(|e| panic!("{e}"));
}

/// Kills a pod's container and waits until the kubelet has started another one in its place; the pod as it is then.
#[track_caller]
pub fn reset_container(namespace: &Namespace, pod: &PodFacts, container: &str) -> PodFacts {
    kill_container(namespace.cluster(), pod, container);
    wait_until(&format!("a new {container} in {}", pod.name), || {
        let now = namespace.pod(&pod.name);
        let is_new = now.containers.iter().any(|c| c.0 == container && !pod.containers.contains(c));
        if is_new && now.restarts > pod.restarts { Ok(now) } else { Err(format!("{now:?}")) }
    })
}

/// A network that is cut until this is dropped.
#[derive(Debug)]
pub struct Cut {
    undo: Vec<Vec<String>>,
}

impl Cut {
    /// Takes a pod off the network: nothing reaches it, nothing leaves it, its probes fail.
    #[track_caller]
    pub fn pod(pod: &PodFacts) -> Self {
        let (link, _) = link_of(pod);
        ip(&["link", "set", &link, "down"]).unwrap_or_else(|e| panic!("{e}"));
        Self { undo: vec![words(&["link", "set", &link, "up"])] }
    }

    /// Two pods no longer reach each other; both reach everything else.
    #[track_caller]
    pub fn between(one: &PodFacts, other: &PodFacts) -> Self {
        let [mut here, mut there] = [Self::incoming(one, other.ip()), Self::incoming(other, one.ip())];
        here.undo.append(&mut there.undo);
        here
    }

    /// What comes to a pod from `address` is swallowed without a word, as a broken network does.
    #[track_caller]
    pub fn incoming(pod: &PodFacts, address: IpAddr) -> Self {
        let (_, netns) = link_of(pod);
        let table = format!("cut_{:x}", fastrand::u64(..));
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        let rule = format!("type filter hook input priority 0; {family} saddr {address} drop;");
        let mut nft = Command::new("ip");
        nft.args(["netns", "exec", &netns, "nft", "-f", "-"]);
        command::run(&mut nft, Some(&format!("table inet {table} {{\n chain input {{ {rule}\n }}\n}}\n")))
            .unwrap_or_else(|e| panic!("{e}"));
        Self { undo: vec![words(&["netns", "exec", &netns, "nft", "delete", "table", "inet", &table])] }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        for command in &self.undo {
            // A pod that is gone has taken its network with it.
            ip(&command.iter().map(String::as_str).collect::<Vec<_>>()).ok();
        }
    }
}

/// The node's end of a pod's link, and the name of the pod's network namespace.
#[track_caller]
fn link_of(pod: &PodFacts) -> (String, String) {
    let wanted = format!(" {}/", pod.ip());
    let links = ip(&["-o", "link", "show", "master", BRIDGE]).unwrap_or_else(|e| panic!("{e}"));
    for line in links.lines() {
        let name = line.split(": ").nth(1).and_then(|n| n.split('@').next());
        let netns = line.split("link-netns ").nth(1).and_then(|n| n.split_whitespace().next());
        let (Some(name), Some(netns)) = (name, netns) else { continue };
        if ip(&["-n", netns, "-o", "addr", "show"]).is_ok_and(|addresses| addresses.contains(&wanted)) {
            return (name.to_owned(), netns.to_owned());
        }
    }
    panic!("no link of pod {} ({}) among\n{links}", pod.name, pod.ip());
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|&w| w.to_owned()).collect()
}

fn ip(words: &[&str]) -> Result<String, String> {
    command::run(Command::new("ip").args(words), None)
}

/// Whether a pod gets an answer, whatever it says, from an HTTP server at `address`; tried from inside its network.
///
/// # Errors
/// What curl says.
pub fn reaches(pod: &PodFacts, address: IpAddr, port: u16) -> Result<(), String> {
    let (_, netns) = link_of(pod);
    let url = match address {
        IpAddr::V4(address) => format!("http://{address}:{port}/"),
        IpAddr::V6(address) => format!("http://[{address}]:{port}/"),
    };
    ip(&["netns", "exec", &netns, "curl", "-sS", "-o", "/dev/null", "--max-time", "5", &url]).map(drop)
}

/// The node takes no new pods until this is dropped.
pub struct Cordon {
    cluster: &'static Cluster,
    node: String,
}

impl Cordon {
    /// Cordons the cluster's node.
    #[track_caller]
    pub fn node(cluster: &'static Cluster) -> Self {
        let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
        cluster.kubectl(&["cordon", &node]);
        Self { cluster, node }
    }

    /// Evicts the pods with the labels of `selector` as `kubectl drain` does, budgets respected; waits until they are
    /// gone. They stay Pending where something makes them anew, until the node is back.
    #[track_caller]
    pub fn drain(&self, selector: &str) {
        let selector = format!("--pod-selector={selector}");
        let words = ["drain", &self.node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"];
        self.cluster.kubectl(&[&words[..], &[&selector]].concat());
    }
}

impl Drop for Cordon {
    fn drop(&mut self) {
        let outcome = self.cluster.try_kubectl(&["uncordon", &self.node], None);
        if !std::thread::panicking() {
            outcome.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
