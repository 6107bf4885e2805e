//! Ten thousand endpoints written through the API for 50 pools and three sets of three selectors: how long they take to
//! every selector, how long one change takes, and what the operator costs then. It measures, and fails only where nothing
//! converges; so it is run by hand, on a release build, as `docs/performance.md` says.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    process::Command,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::api::{Patch, PatchParams, PostParams};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::harness::{AuditLog, Namespace, manifests, trial, within};

/// `slices` for endpoints without pods, `pods` for a Pod object behind each.
const VARIABLE: &str = "POINTSMAN_SCALE";
const SETS: usize = 3;
const SELECTORS: usize = 3;
const POOLS: usize = 50;
/// Endpoints of a pool; what an EndpointSlice takes unless the cluster says otherwise is 100.
const ENDPOINTS: usize = 200;
const OF_A_SLICE: usize = 100;
const CHANGES: usize = 100;
const STEADY: Duration = Duration::from_secs(60);
/// Longest wait for all of it; targets are in the documentation.
const PATIENCE: Duration = Duration::from_secs(180);
/// Writes under way at once.
const WRITERS: usize = 16;

pub fn trials() -> Vec<Trial> {
    if std::env::var_os(VARIABLE).is_none() {
        return Vec::new();
    }
    vec![trial("scale::ten_thousand_endpoints", ten_thousand_endpoints)]
}

fn set_of(pool: usize) -> usize {
    pool % SETS
}

fn objects() -> Vec<Value> {
    let sets = (0..SETS).map(|n| {
        // Nine of them share a small node.
        let resources = json!({"requests": {"cpu": "5m", "memory": "16Mi"}});
        json!({
            "apiVersion": "pointsman.dev/v1alpha1",
            "kind": "SelectorSet",
            "metadata": {"name": format!("set-{n}")},
            "spec": {"replicas": SELECTORS, "podTemplate": {"resources": resources}},
        })
    });
    let pools = (0..POOLS).map(|n| {
        json!({
            "apiVersion": "pointsman.dev/v1alpha1",
            "kind": "ModelPool",
            "metadata": {"name": format!("pool-{n}")},
            "spec": {
                "selectorRef": {"name": format!("set-{}", set_of(n))},
                "modelName": format!("model-{n}"),
                "workers": {"service": {"name": format!("service-{n}")}},
                "endpoint": {"port": "http"},
                "blockSize": 16,
            },
        })
    });
    sets.chain(pools).collect()
}

fn address(pool: usize, endpoint: usize) -> String {
    format!("10.20{}.{}.{}", pool / 25, pool % 25 * 10 + endpoint / 250, endpoint % 250 + 1)
}

/// Slice `n` of a pool; the endpoint `away` of it, if any, is not ready. `uids` are those of the pool's pods.
fn slice(ns: &Namespace, pool: usize, n: usize, away: Option<usize>, uids: &[String]) -> EndpointSlice {
    let endpoints: Vec<_> = (n * OF_A_SLICE..(n + 1) * OF_A_SLICE)
        .map(|endpoint| manifests::Endpoint {
            address: address(pool, endpoint),
            ready: Some(away != Some(endpoint)),
            pod: uids.get(endpoint).map(|uid| (pod_name(pool, endpoint), uid.clone())),
            ..Default::default()
        })
        .collect();
    let (name, service) = (format!("slice-{pool}-{n}"), format!("service-{pool}"));
    let value = manifests::endpoint_slice(&name, &service, ns.name(), "IPv4", &[("http", 8000)], &endpoints);
    serde_json::from_value(value).expect("a slice")
}

fn pod_name(pool: usize, endpoint: usize) -> String {
    format!("engine-{pool}-{endpoint}")
}

/// Makes the pods of all pools, none of which any kubelet runs; their UIDs.
fn make_pods(ns: &Namespace) -> Vec<Vec<String>> {
    let api = ns.api::<Pod>();
    let all = (0..POOLS).flat_map(|pool| (0..ENDPOINTS).map(move |endpoint| (pool, endpoint)));
    let made = stream::iter(all)
        .map(|(pool, endpoint)| {
            let api = api.clone();
            async move {
                let name = pod_name(pool, endpoint);
                let mut pod = manifests::unbacked_pod(&name, &json!({"app": format!("service-{pool}")}));
                let spec = pod["spec"].as_object_mut().expect("a spec");
                // Without a node, the garbage collector lets it be.
                spec.remove("nodeName");
                spec.insert("schedulerName".into(), json!("nobody"));
                let pod: Pod = serde_json::from_value(pod).expect("a pod");
                let made = api.create(&PostParams::default(), &pod).await.unwrap_or_else(|e| panic!("{name}: {e}"));
                let id = format!("{pool:032x}{endpoint:032x}");
                let status = manifests::unbacked_status(&address(pool, endpoint), &id, true);
                let status = Patch::Merge(&status);
                let patched = api.patch_status(&name, &PatchParams::default(), &status).await;
                patched.unwrap_or_else(|e| panic!("{name}: {e}"));
                ((pool, endpoint), made.metadata.uid.unwrap_or_default())
            }
        })
        .buffer_unordered(WRITERS);
    let made: BTreeMap<(usize, usize), String> = ns.cluster().block_on(made.collect());
    let of = |pool: usize| made.range((pool, 0)..(pool + 1, 0)).map(|(_, uid)| uid.clone()).collect();
    (0..POOLS).map(of).collect()
}

/// Asks selectors for their catalogs, on connections that stay open.
struct Looks {
    client: reqwest::Client,
    selectors: Vec<(usize, IpAddr)>,
}

impl Looks {
    /// Generation and number of workers at every selector of `set`, of all where there is none.
    async fn catalogs(&self, set: Option<usize>) -> Result<Vec<(u64, u64)>, String> {
        let wanted = self.selectors.iter().filter(|(of, _)| set.is_none_or(|set| set == *of));
        let looks = wanted.map(async |(_, ip)| {
            let answer =
                self.client.get(format!("http://{ip}:8092/catalog")).send().await.map_err(|e| e.to_string())?;
            let catalog: Value = answer.json().await.map_err(|e| e.to_string())?;
            let owner = &catalog["owners"][0];
            Ok((owner["generation"].as_u64().unwrap_or(0), owner["workers"].as_u64().unwrap_or(0)))
        });
        futures_util::future::join_all(looks).await.into_iter().collect()
    }
}

fn ten_thousand_endpoints(ns: &Namespace) {
    let with_pods = std::env::var(VARIABLE).is_ok_and(|word| word == "pods");
    let _operator = ns.install_operator(&[]);
    ns.apply(&manifests::list(&objects()));
    let mut selectors = Vec::new();
    for set in 0..SETS {
        let pods = ns.wait_for_pods(&format!("pointsman.dev/selector-set=set-{set}"), SELECTORS);
        selectors.extend(pods.iter().map(|pod| (set, pod.ip())));
    }
    let looks = Looks { client: reqwest::Client::builder().no_proxy().build().expect("a client"), selectors };
    let operator = Process::of(ns, "app.kubernetes.io/component=controller");
    println!("idle, nothing discovered: {}", operator.memory());

    let started = Instant::now();
    let uids = if with_pods { make_pods(ns) } else { vec![Vec::new(); POOLS] };
    if with_pods {
        println!("{} pods made in {:?}", POOLS * ENDPOINTS, started.elapsed());
    }
    let api = ns.api::<EndpointSlice>();
    let cluster = ns.cluster();
    let before = operator.cpu();
    let started = Instant::now();
    let slices = (0..POOLS).flat_map(|pool| (0..ENDPOINTS / OF_A_SLICE).map(move |n| (pool, n)));
    let slices: Vec<_> = slices.map(|(pool, n)| slice(ns, pool, n, None, &uids[pool])).collect();
    let writes = stream::iter(slices)
        .map(|slice| {
            let api = api.clone();
            async move { api.create(&PostParams::default(), &slice).await.unwrap_or_else(|e| panic!("{e}")) }
        })
        .buffer_unordered(WRITERS)
        .count();
    cluster.block_on(writes);
    let written = Instant::now();
    let wanted: Vec<u64> = looks
        .selectors
        .iter()
        .map(|(set, _)| ((0..POOLS).filter(|p| set_of(*p) == *set).count() * ENDPOINTS) as u64)
        .collect();
    within(PATIENCE, "all endpoints at all selectors", || {
        let seen = cluster.block_on(looks.catalogs(None))?;
        if seen.iter().map(|(_, workers)| *workers).eq(wanted.iter().copied()) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
    println!(
        "{} endpoints: written in {:?}, at all selectors {:?} after the last write; operator {:.2} s of CPU, {}",
        POOLS * ENDPOINTS,
        written - started,
        written.elapsed(),
        operator.cpu() - before,
        operator.memory(),
    );

    // Statuses are written, so that a change meets nothing else.
    std::thread::park_timeout(Duration::from_secs(10));
    let mut times = Vec::new();
    for change in 0..CHANGES {
        // One goes, the next comes back: each pool is at rest after its two.
        let (pool, away) = (change / 2 % POOLS, (change % 2 == 0).then_some(7));
        let slice = slice(ns, pool, 0, away, &uids[pool]);
        let set = set_of(pool);
        let from = cluster.block_on(looks.catalogs(Some(set))).expect("selectors answer");
        let started = Instant::now();
        let patch = json!({"endpoints": slice.endpoints});
        let name = slice.metadata.name.as_deref().expect("a name");
        cluster.api(api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))).unwrap_or_else(|e| panic!("{e}"));
        let all_have_it = async {
            loop {
                let now = looks.catalogs(Some(set)).await.expect("selectors answer");
                if now.iter().zip(&from).all(|(now, from)| now.0 > from.0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        cluster.block_on(async { tokio::time::timeout(PATIENCE, all_have_it).await }).expect("the change arrives");
        times.push(started.elapsed());
        std::thread::park_timeout(Duration::from_millis(150));
    }
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share).div_ceil(100) - 1];
    println!("one change, from its write to all selectors: p50 {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100));
    let late = times.iter().rev().take(10).collect::<Vec<_>>();
    println!("the slowest ten: {late:?}");

    std::thread::park_timeout(Duration::from_secs(15));
    let (before, audit) = (operator.cpu(), AuditLog::from_now(cluster));
    std::thread::park_timeout(STEADY);
    let requests = audit.requests().by_service_account(ns.name(), ns.operator_account());
    let mut kinds: BTreeMap<(String, String), usize> = BTreeMap::new();
    for request in &requests.0 {
        *kinds.entry((request.verb.clone(), request.resource.clone())).or_default() += 1;
    }
    println!(
        "at rest for {} s: {:.2} s of CPU, {}, {} API calls, {} of them writes but the Lease: {kinds:?}",
        STEADY.as_secs(),
        operator.cpu() - before,
        operator.memory(),
        requests.len(),
        requests.writes().but("leases").len(),
    );
}

/// A process of a pod, seen from the node.
struct Process(u32);

impl Process {
    fn of(ns: &Namespace, labels: &str) -> Self {
        let pod = ns.wait_for_pods(labels, 1).remove(0);
        let id = pod.containers[0].1.trim_start_matches("containerd://").to_owned();
        let tasks = ns.cluster().containerd(&["tasks", "list"]).unwrap_or_else(|e| panic!("{e}"));
        let row = tasks.lines().find(|line| line.starts_with(&id)).unwrap_or_else(|| panic!("no {id} in {tasks}"));
        Self(row.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a process id"))
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0)).expect("the process lives")
    }

    /// Seconds of CPU so far.
    fn cpu(&self) -> f64 {
        let stat = self.read("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = [11, 12].iter().filter_map(|n| fields.get(*n)?.parse::<f64>().ok()).sum();
        let hertz = Command::new("getconf").arg("CLK_TCK").output().expect("getconf runs");
        ticks / String::from_utf8_lossy(&hertz.stdout).trim().parse::<f64>().expect("a number")
    }

    fn memory(&self) -> String {
        let status = self.read("status");
        let of = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() / 1024.0
        };
        format!("{:.1} MiB (most {:.1})", of("VmRSS:"), of("VmHWM:"))
    }
}
