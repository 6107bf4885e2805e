//! The running test cluster: where it is, its programs, its processes, its images, a client of its API.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{command, names::resolve};

/// Names the state folder that `tests/cluster/up.sh` printed.
pub const VARIABLE: &str = "POINTSMAN_CLUSTER";
/// Longest time for one call of the API.
const CALL: Duration = Duration::from_secs(15);

/// A process that the cluster is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    Etcd,
    Apiserver,
    ControllerManager,
    Scheduler,
    Containerd,
    Kubelet,
    Proxy,
}

impl Component {
    fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "apiserver",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::Proxy => "proxy",
        }
    }
}

/// The cluster under test; one a process.
pub struct Cluster {
    state: PathBuf,
    bin: PathBuf,
    images: [String; 2],
    client: kube::Client,
    runtime: Runtime,
}

static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();

impl Cluster {
    /// Why there is no cluster to test on; `None` where one was named.
    pub fn missing() -> Option<String> {
        std::env::var_os(VARIABLE).is_none().then(|| {
            format!("{VARIABLE} is not set (tests/cluster/up.sh brings a cluster up, as root, and prints its value)")
        })
    }

    /// The cluster that the environment names. The first call imports the images of the program under test.
    pub fn get() -> &'static Self {
        CLUSTER.get_or_init(Self::connect).as_ref().unwrap_or_else(|e| panic!("{e}"))
    }

    fn connect() -> Result<Self, String> {
        let state = PathBuf::from(std::env::var_os(VARIABLE).ok_or_else(|| Self::missing().unwrap_or_default())?);
        let bin = command::run(&mut script("../setup/cluster.sh"), None)?.into();
        let program = std::env::var("POINTSMAN_CLUSTER_PROGRAM").unwrap_or(env!("CARGO_BIN_EXE_pointsman").into());
        let names = command::run(script("pointsman-image.sh").arg(&state).arg(&program), None)?;
        let [a, b] = names.lines().collect::<Vec<_>>()[..] else { return Err(format!("two images, not {names}")) };
        let images = [a.to_owned(), b.to_owned()];
        // A process has one provider of cryptography; another part may have installed it.
        rustls::crypto::ring::default_provider().install_default().ok();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|e| format!("runtime: {e}"))?;
        let kubeconfig = kube::config::Kubeconfig::read_from(state.join("kubeconfig")).map_err(|e| e.to_string())?;
        let client = runtime.block_on(async {
            let options = kube::config::KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
            kube::Client::try_from(config.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
        })?;
        Ok(Self { state, bin, images, client, runtime })
    }

    /// Folder of the cluster's state; `log/` has a file a component.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Folder of kubectl and helm.
    pub fn programs(&self) -> &Path {
        &self.bin
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// The image of the program under test, `repository:tag`.
    pub fn image(&self) -> &str {
        &self.images[0]
    }

    /// The same program under another tag, to roll to.
    pub fn other_image(&self) -> &str {
        &self.images[1]
    }

    /// Runs kubectl as administrator.
    ///
    /// # Errors
    /// What it printed.
    pub fn try_kubectl(&self, words: &[&str], input: Option<&str>) -> Result<String, String> {
        let mut kubectl = Command::new(self.bin.join("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.kubeconfig()).args(words);
        // Discovery is cached by kubectl, in a home that a test must not write to.
        kubectl.env("KUBECACHEDIR", self.state.join("kubectl-cache"));
        command::run(&mut kubectl, input)
    }

    /// Runs kubectl as administrator; its output.
    #[track_caller]
    pub fn kubectl(&self, words: &[&str]) -> String {
        self.try_kubectl(words, None).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs kubectl with a bearer token instead of the administrator's certificate.
    ///
    /// # Errors
    /// What it printed.
    pub fn try_kubectl_as(&self, token: &str, words: &[&str]) -> Result<String, String> {
        let mut kubectl = Command::new(self.bin.join("kubectl"));
        // No kubeconfig at all: its certificate would win over the token.
        kubectl.args(["--kubeconfig", "/dev/null", "--server", "https://127.0.0.1:6443", "--token", token]);
        kubectl.arg("--certificate-authority").arg(self.state.join("pki/ca.crt")).args(words);
        kubectl.env("KUBECACHEDIR", self.state.join("kubectl-cache"));
        command::run(&mut kubectl, None)
    }

    /// The JSON that a kubectl command prints with `-o json`.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        let text = self.kubectl(&[words, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("kubectl {words:?}: {e}: {text}"))
    }

    /// Applies documents (YAML or JSON) on the server's side.
    ///
    /// # Errors
    /// Why the apiserver refused them.
    pub fn try_apply(&self, namespace: Option<&str>, documents: &str) -> Result<String, String> {
        let mut words = vec!["apply", "--server-side", "--field-manager=trial", "-f", "-"];
        if let Some(namespace) = namespace {
            words.extend(["--namespace", namespace]);
        }
        self.try_kubectl(&words, Some(documents))
    }

    /// Runs helm as administrator, with a home of its own.
    ///
    /// # Errors
    /// What it printed.
    pub fn try_helm(&self, words: &[&str]) -> Result<String, String> {
        let mut helm = Command::new(self.bin.join("helm"));
        helm.arg("--kubeconfig").arg(self.kubeconfig()).args(words);
        for (name, folder) in [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            helm.env(name, self.state.join("helm").join(folder));
        }
        command::run(&mut helm, None)
    }

    /// Runs helm as administrator; its output.
    #[track_caller]
    pub fn helm(&self, words: &[&str]) -> String {
        self.try_helm(words).unwrap_or_else(|e| panic!("{e}"))
    }

    /// An administrator's client of the API, for [`Cluster::block_on`].
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Runs a future on the harness's runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// The runtime, to start tasks on.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// One call of the API, with a limit of time.
    ///
    /// # Errors
    /// What the API answered.
    pub fn api<R>(&self, call: impl Future<Output = kube::Result<R>>) -> Result<R, String> {
        self.block_on(async {
            match tokio::time::timeout(CALL, call).await {
                Ok(result) => result.map_err(|e| e.to_string()),
                Err(_) => Err(format!("no answer in {} s", CALL.as_secs())),
            }
        })
    }

    /// Whether the apiserver says that it is ready.
    ///
    /// # Errors
    /// That it does not.
    pub fn is_ready(&self) -> Result<(), String> {
        self.try_kubectl(&["get", "--raw", "/readyz", "--request-timeout=5s"], None).map(drop)
    }

    /// Ends a component at once, as a crash does. [`Cluster::restart`] brings it back.
    #[track_caller]
    pub fn kill(&self, component: Component) {
        self.component("kill", component);
    }

    /// Asks a component to end, waits 10 s, then kills it.
    #[track_caller]
    pub fn stop(&self, component: Component) {
        self.component("stop", component);
    }

    /// Starts a component that was ended; does nothing to one that runs.
    #[track_caller]
    pub fn restart(&self, component: Component) {
        self.component("start", component);
    }

    #[track_caller]
    fn component(&self, verb: &str, component: Component) {
        command::run(script("component.sh").arg(&self.state).arg(verb).arg(component.name()), None)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// Kills a component for as long as `meanwhile` takes, then starts it and waits until the apiserver is ready. It is
    /// started even when `meanwhile` panics.
    #[track_caller]
    pub fn without<R>(&self, component: Component, meanwhile: impl FnOnce() -> R) -> R {
        struct Restart<'a>(&'a Cluster, Component);
        impl Drop for Restart<'_> {
            fn drop(&mut self) {
                self.0.restart(self.1);
            }
        }
        self.kill(component);
        let restart = Restart(self, component);
        let result = meanwhile();
        drop(restart);
        super::wait_until("the apiserver", || self.is_ready());
        result
    }

    /// Waits until the cluster answers to what is new as ever. After an outage each of its parts watches again when its
    /// own back-off ends, up to a minute later, and until then a new name is unknown and a new Service leads nowhere.
    #[track_caller]
    pub fn wait_until_recovered(&self) {
        let name = format!("recovered-{:08x}", fastrand::u32(..));
        // The DNS by another name and address: only parts that all have caught up make it answer to them.
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {
            "selector": {"k8s-app": "kube-dns"},
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
        }});
        let started = Instant::now();
        super::wait_until("an apiserver that takes a Service", || {
            self.try_apply(Some("kube-system"), &service.to_string())
        });
        let address = self.kubectl(&["-n", "kube-system", "get", "service", &name, "-o", "jsonpath={.spec.clusterIP}"]);
        let address: IpAddr = address.parse().unwrap_or_else(|e| panic!("{address:?}: {e}"));
        let full_name = format!("{name}.kube-system.svc.cluster.local");
        super::wait_until("a new Service of the DNS that knows itself", || match resolve(address, &full_name) {
            Ok(found) if found == [address] => Ok(()),
            other => Err(format!("{other:?}, not {address}")),
        });
        println!("the cluster was itself again after {:?}", started.elapsed());
        self.kubectl(&["-n", "kube-system", "delete", "service", &name]);
    }

    /// Forgets all of etcd's history but the present: a watch that resumes from before is told 410 Gone.
    #[track_caller]
    pub fn compact_history(&self) {
        let post = |path: &str, body: &str| {
            let mut curl = Command::new("curl");
            curl.args(["-sSf", "--max-time", "15", "-d", body]).arg(format!("http://127.0.0.1:2379/v3/kv/{path}"));
            command::run(&mut curl, None).unwrap_or_else(|e| panic!("{e}"))
        };
        let answer: Value = serde_json::from_str(&post("range", r#"{"key": "AA=="}"#)).unwrap();
        let revision = answer["header"]["revision"].as_str().expect("etcd tells its revision").to_owned();
        post("compaction", &format!(r#"{{"revision": "{revision}", "physical": true}}"#));
    }

    /// Runs `ctr` on the cluster's containerd.
    ///
    /// # Errors
    /// What it printed.
    pub fn containerd(&self, words: &[&str]) -> Result<String, String> {
        let mut ctr = Command::new("ctr");
        ctr.arg("-a").arg(self.state.join("run/containerd.sock")).args(["-n", "k8s.io"]).args(words);
        command::run(&mut ctr, None)
    }
}

/// A script of `tests/cluster`.
fn script(name: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster").join(name));
    command
}
