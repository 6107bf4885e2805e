//! The chart as a user has it: installed from nothing, tested by Helm, uninstalled.

use std::{collections::BTreeSet, fs};

use libtest_mimic::Trial;
use serde_json::Value;

use super::harness::{AuditLog, Cluster, Namespace, alone, wait_until};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/pointsman");
const DEFINITIONS: [&str; 2] = ["selectorsets.pointsman.dev", "modelpools.pointsman.dev"];

pub fn trials() -> Vec<Trial> {
    vec![
        alone("chart::from_nothing_to_a_fleet_and_back", from_nothing_to_a_fleet_and_back),
        alone("chart::one_namespace_is_enough", one_namespace_is_enough),
    ]
}

/// `--set` of the image under test.
fn image(cluster: &Cluster) -> String {
    let (repository, tag) = cluster.image().rsplit_once(':').expect("an image has a tag");
    format!("image.repository={repository},image.tag={tag}")
}

/// Definitions that are there already go to the release, as the guide says: several people may use the cluster, and
/// deleting definitions deletes everybody's objects. Afterwards they are nobody's again.
pub struct Adopted<'a>(&'a Cluster);

impl<'a> Adopted<'a> {
    fn by(ns: &'a Namespace, release: &str) -> Self {
        Self::into(ns.cluster(), release, ns.name())
    }

    /// Gives them to the release of a namespace.
    pub fn into(cluster: &'a Cluster, release: &str, namespace: &str) -> Self {
        for name in DEFINITIONS {
            let crd = format!("crd/{name}");
            if cluster.try_kubectl(&["get", &crd], None).is_ok() {
                cluster.kubectl(&["label", &crd, "app.kubernetes.io/managed-by=Helm", "--overwrite"]);
                let release = format!("meta.helm.sh/release-name={release}");
                let namespace = format!("meta.helm.sh/release-namespace={namespace}");
                cluster.kubectl(&["annotate", &crd, &release, &namespace, "--overwrite"]);
            }
        }
        Self(cluster)
    }
}

impl Drop for Adopted<'_> {
    fn drop(&mut self) {
        for name in DEFINITIONS {
            let crd = format!("crd/{name}");
            self.0.try_kubectl(&["label", &crd, "app.kubernetes.io/managed-by-"], None).ok();
            let marks = ["meta.helm.sh/release-name-", "meta.helm.sh/release-namespace-"];
            self.0.try_kubectl(&[&["annotate", &crd][..], &marks].concat(), None).ok();
        }
    }
}

/// Status of a condition, `Missing` where there is none.
fn condition(object: &Value, kind: &str) -> String {
    let all = object["status"]["conditions"].as_array().into_iter().flatten();
    let found = all.into_iter().find(|condition| condition["type"] == kind);
    found.map_or("Missing".to_owned(), |condition| condition["status"].as_str().unwrap_or_default().to_owned())
}

fn quickstart(cluster: &Cluster) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/kubernetes/quickstart.yaml");
    let image = concat!("pointsman/pointsman:", env!("CARGO_PKG_VERSION"));
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(image), "the quickstart's image is {image}");
    text.replace(image, cluster.image())
}

/// Waits until the quickstart stands: all selectors ready, wired, with one catalog of all workers.
fn wait_for_fleet(ns: &Namespace) {
    wait_until("the fleet of the quickstart", || {
        let set = ns.object("selectorset", "fleet")?.ok_or("no set")?;
        let pool = ns.object("modelpool", "llama")?.ok_or("no pool")?;
        let told = format!("{}\n{}", set["status"], pool["status"]);
        let stands = ["Available", "CatalogSynced", "PeersWired"].iter().all(|kind| condition(&set, kind) == "True")
            && ["Accepted", "WorkersDiscovered", "Synced"].iter().all(|kind| condition(&pool, kind) == "True")
            && condition(&set, "Degraded") == "False"
            && set["status"]["readyOfReplicas"] == "3/3"
            && pool["status"]["schedulableOfDiscovered"] == "3/3";
        let selectors = set["status"]["selectors"].as_array().into_iter().flatten();
        let digests: BTreeSet<&str> = selectors.filter_map(|selector| selector["digest"].as_str()).collect();
        if stands && digests.len() == 1 { Ok(()) } else { Err(told) }
    });
}

/// What `kubectl` shows of the chart's kinds with the release's label.
fn left_of(ns: &Namespace, release: &str) -> String {
    let kinds = "deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,\
                 poddisruptionbudgets,networkpolicies";
    let label = format!("app.kubernetes.io/name=pointsman,app.kubernetes.io/instance={release}");
    ns.kubectl(&["get", kinds, "-l", &label, "-o", "name"])
}

fn from_nothing_to_a_fleet_and_back(ns: &Namespace) {
    let cluster = ns.cluster();
    let _definitions = Adopted::by(ns, "fresh");
    let audit = AuditLog::from_now(cluster);
    let release = ns.helm_install("fresh", CHART, &["--set", &image(cluster)]);
    ns.apply(&quickstart(cluster));
    wait_for_fleet(ns);
    let said = release.test().unwrap_or_else(|said| panic!("helm test: {said}"));
    assert!(said.contains("Phase:          Succeeded"), "{said}");
    release.upgrade(CHART, &["--set", &image(cluster), "--set", "replicas=2,networkPolicy.enabled=true"]);
    let columns = ns.kubectl(&["get", "sset,mp", "--no-headers"]);
    assert!(columns.contains("3/3"), "{columns}");
    ns.kubectl(&["delete", "sset,mp", "--all", "--timeout=60s"]);
    let account = "fresh-pointsman-controller";
    let refused = audit.requests().by_service_account(ns.name(), account).answered(403);
    assert!(refused.is_empty(), "a right is missing: {refused:?}");
    assert_ne!(left_of(ns, "fresh"), "");
    drop(release);
    assert_eq!(left_of(ns, "fresh"), "");
    for name in DEFINITIONS {
        cluster.kubectl(&["get", "crd", name]);
    }
}

fn one_namespace_is_enough(ns: &Namespace) {
    let cluster = ns.cluster();
    let _definitions = Adopted::by(ns, "small");
    let audit = AuditLog::from_now(cluster);
    let release = ns.helm_install("small", CHART, &["--set", &image(cluster), "--set", "rbac.scope=namespace"]);
    ns.apply(&quickstart(cluster));
    wait_for_fleet(ns);
    ns.kubectl(&["delete", "sset,mp", "--all", "--timeout=60s"]);
    let requests = audit.requests().by_service_account(ns.name(), "small-pointsman-controller");
    assert!(!requests.is_empty());
    let refused = requests.answered(403);
    assert!(refused.is_empty(), "a right is missing: {refused:?}");
    drop(release);
}
