//! A namespace of a trial's own, its pods, and helm releases in it.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, ObjectMeta},
};
use serde_json::Value;

use super::{
    cluster::Cluster,
    wait::{wait_until, within},
};

/// A namespace; deleted with all that is in it when dropped.
pub struct Namespace {
    cluster: &'static Cluster,
    name: String,
}

/// What trials ask of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub name: String,
    pub uid: String,
    /// Absent until it has a sandbox.
    pub address: Option<IpAddr>,
    /// Its Ready condition.
    pub ready: bool,
    /// Whether its deletion was asked for.
    pub terminating: bool,
    /// Of all containers together.
    pub restarts: i32,
    /// Name and `containerd://...` id of each container that was started.
    pub containers: Vec<(String, String)>,
}

impl PodFacts {
    fn of(pod: &Pod) -> Self {
        let meta: &ObjectMeta = &pod.metadata;
        let status = pod.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        let containers = status.container_statuses.unwrap_or_default();
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            address: status.pod_ip.and_then(|ip| ip.parse().ok()),
            ready,
            terminating: meta.deletion_timestamp.is_some(),
            restarts: containers.iter().map(|c| c.restart_count).sum(),
            containers: containers.into_iter().filter_map(|c| Some((c.name, c.container_id?))).collect(),
        }
    }

    /// Its address; a pod of a trial that asks has one.
    #[track_caller]
    pub fn ip(&self) -> IpAddr {
        self.address.unwrap_or_else(|| panic!("pod {} has no address", self.name))
    }
}

impl Namespace {
    /// Makes a namespace with a name that no other has.
    #[track_caller]
    pub fn new(cluster: &'static Cluster, stem: &str) -> Self {
        let stem: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
        let name = format!("{}-{:06x}", stem.trim_matches('-').to_lowercase(), fastrand::u32(..1 << 24));
        cluster.kubectl(&["create", "namespace", &name]);
        let namespace = Self { cluster, name };
        // Pods are refused until it is there.
        wait_until("the default service account", || {
            cluster.try_kubectl(&["-n", &namespace.name, "get", "serviceaccount", "default"], None)
        });
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn cluster(&self) -> &'static Cluster {
        self.cluster
    }

    /// A typed client of this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.client(), &self.name)
    }

    /// Runs kubectl in it.
    #[track_caller]
    pub fn kubectl(&self, words: &[&str]) -> String {
        self.try_kubectl(words).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs kubectl in it.
    ///
    /// # Errors
    /// What it printed.
    pub fn try_kubectl(&self, words: &[&str]) -> Result<String, String> {
        self.cluster.try_kubectl(&[&["-n", &self.name], words].concat(), None)
    }

    /// The JSON that a kubectl command prints with `-o json`.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        self.cluster.json(&[&["-n", &self.name], words].concat())
    }

    /// One object as JSON; nothing when there is none.
    ///
    /// # Errors
    /// Any answer but "not found".
    pub fn object(&self, kind: &str, name: &str) -> Result<Option<Value>, String> {
        let text = self.try_kubectl(&["get", kind, name, "--ignore-not-found", "-o", "json"])?;
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text).map(Some).map_err(|e| format!("{kind}/{name}: {e}"))
    }

    /// Applies documents (YAML or JSON) in it.
    #[track_caller]
    pub fn apply(&self, documents: &str) {
        self.try_apply(documents).unwrap_or_else(|e| panic!("{e}\n{documents}"));
    }

    /// Applies documents in it.
    ///
    /// # Errors
    /// Why the apiserver refused them.
    pub fn try_apply(&self, documents: &str) -> Result<String, String> {
        self.cluster.try_apply(Some(&self.name), documents)
    }

    /// Pods with the labels of `selector` (`app=engine`), by name, those that terminate among them.
    ///
    /// # Errors
    /// What the API answered.
    pub fn try_pods(&self, selector: &str) -> Result<Vec<PodFacts>, String> {
        let api = self.api::<Pod>();
        let parameters = ListParams::default().labels(selector);
        let list = self.cluster.api(api.list(&parameters))?;
        let mut pods: Vec<_> = list.items.iter().map(PodFacts::of).collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pods)
    }

    /// As [`Namespace::try_pods`].
    #[track_caller]
    pub fn pods(&self, selector: &str) -> Vec<PodFacts> {
        self.try_pods(selector).unwrap_or_else(|e| panic!("pods {selector}: {e}"))
    }

    /// Waits until exactly `count` pods have these labels, all Ready and none terminating.
    #[track_caller]
    pub fn wait_for_pods(&self, selector: &str, count: usize) -> Vec<PodFacts> {
        wait_until(&format!("{count} Ready pods {selector} in {}", self.name), || {
            let pods = self.try_pods(selector)?;
            if pods.len() == count && pods.iter().all(|p| p.ready && !p.terminating) {
                return Ok(pods);
            }
            let states: Vec<_> = pods
                .iter()
                .map(|p| format!("{} ready={} terminating={} restarts={}", p.name, p.ready, p.terminating, p.restarts))
                .collect();
            Err(format!("{} pods: {}", pods.len(), states.join(", ")))
        })
    }

    /// One pod.
    #[track_caller]
    pub fn pod(&self, name: &str) -> PodFacts {
        let api = self.api::<Pod>();
        PodFacts::of(&self.cluster.api(api.get(name)).unwrap_or_else(|e| panic!("pod {name}: {e}")))
    }

    /// Waits for `kubectl rollout status` of a workload such as `statefulset/fleet`.
    #[track_caller]
    pub fn wait_for_rollout(&self, workload: &str) {
        self.kubectl(&["rollout", "status", workload, "--timeout=180s"]);
    }

    /// The cluster address of a Service.
    #[track_caller]
    pub fn service_ip(&self, name: &str) -> IpAddr {
        let text = self.kubectl(&["get", "service", name, "-o", "jsonpath={.spec.clusterIP}"]);
        text.parse().unwrap_or_else(|e| panic!("service {name}: {e}: {text}"))
    }

    /// Installs a chart here; what it made, cluster-wide objects too, is uninstalled when the release is dropped.
    #[track_caller]
    pub fn helm_install(&self, release: &str, chart: &str, words: &[&str]) -> HelmRelease {
        let all = [&["install", release, chart, "-n", &self.name, "--wait", "--timeout", "180s"], words].concat();
        // Even a failed installation leaves objects.
        let installed = HelmRelease { cluster: self.cluster, namespace: self.name.clone(), name: release.to_owned() };
        self.cluster.helm(&all);
        installed
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Finalizers of an operator that is gone would hold the namespace for ever.
        for kind in ["selectorsets", "modelpools"] {
            let kind = format!("{kind}.pointsman.dev");
            let names = self.try_kubectl(&["get", &kind, "-o", "name"]).unwrap_or_default();
            for name in names.lines() {
                let patch = r#"{"metadata": {"finalizers": null}}"#;
                self.try_kubectl(&["patch", name, "--type=merge", "-p", patch]).ok();
            }
        }
        self.cluster.try_kubectl(&["delete", "namespace", &self.name, "--wait=false"], None).ok();
        // Nobody waits for what the pods would still do.
        let soon = ["delete", "pods", "--all", "--grace-period=1", "--wait=false"];
        self.try_kubectl(&soon).ok();
        if std::thread::panicking() {
            return;
        }
        within(Duration::from_secs(300), &format!("the end of namespace {}", self.name), || {
            self.try_kubectl(&soon).ok();
            match self.cluster.try_kubectl(&["get", "namespace", &self.name, "--ignore-not-found"], None) {
                Ok(text) if text.is_empty() => Ok(()),
                Ok(text) | Err(text) => Err(text),
            }
        });
    }
}

/// An installed chart; uninstalled when dropped.
pub struct HelmRelease {
    cluster: &'static Cluster,
    namespace: String,
    name: String,
}

impl HelmRelease {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Upgrades it and waits.
    #[track_caller]
    pub fn upgrade(&self, chart: &str, words: &[&str]) {
        let all =
            [&["upgrade", &self.name, chart, "-n", &self.namespace, "--wait", "--timeout", "180s"], words].concat();
        self.cluster.helm(&all);
    }

    /// Runs `helm test`; what it printed, its pods' logs too.
    ///
    /// # Errors
    /// The same, when a test failed.
    pub fn test(&self) -> Result<String, String> {
        self.cluster.try_helm(&["test", &self.name, "-n", &self.namespace, "--logs", "--timeout", "180s"])
    }
}

impl Drop for HelmRelease {
    fn drop(&mut self) {
        let words =
            ["uninstall", &self.name, "-n", &self.namespace, "--ignore-not-found", "--wait", "--timeout", "120s"];
        if let Err(error) = self.cluster.try_helm(&words)
            && !std::thread::panicking()
        {
            panic!("{error}");
        }
    }
}
