//! Operators at work: how much they write, who of two leads, and what is seen of it when one ends at the worst moment.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use libtest_mimic::Trial;
use serde_json::json;

use super::{
    harness::{
        AuditLog, BookingLoad, Cluster, Namespace, PATIENCE, PodFacts, Request, Requests, call, kill_container,
        manifests, trial, wait_until, within,
    },
    managed::{self, SELECTORS},
};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("operators::write_nothing_idle_and_little_for_a_change", write_nothing_idle_and_little_for_a_change),
        trial("operators::one_of_two_leads", one_of_two_leads),
    ]
}

/// Name of the Deployment, the ServiceAccount, the Lease and the container's pods' labels of an operator.
const OPERATOR: &str = "pointsman-controller";
/// Labels of its pods.
const OPERATORS: &str = "app.kubernetes.io/component=controller";
/// Most writes of one object for one change of a user's.
const MOST_WRITES: usize = 3;
/// How long a Lease lasts without a sign of life where operators are killed: less than users have, so that it is quick.
const LEASE: Duration = Duration::from_secs(6);
/// Without a write for so long, a change is over: longer than any pause that the operator makes between two.
const QUIET: Duration = Duration::from_secs(6);

/// How long nothing happens; a minute, or as the environment says.
fn idle_time() -> Duration {
    let seconds = std::env::var("POINTSMAN_IDLE_SECONDS").ok();
    Duration::from_secs(seconds.map_or(60, |text| text.parse().expect("POINTSMAN_IDLE_SECONDS is a number")))
}

/// What the operators of a namespace asked to be changed, their Lease apart.
fn writes(ns: &Namespace, audit: &AuditLog) -> Requests {
    audit.requests().by_service_account(ns.name(), OPERATOR).writes().but("leases")
}

/// Waits until the operators have written nothing for a while.
fn wait_until_quiet(ns: &Namespace, audit: &AuditLog) -> Requests {
    let (mut count, mut since) = (0, Instant::now());
    wait_until("the operator to be done", || {
        let all = writes(ns, audit);
        if all.len() != count {
            (count, since) = (all.len(), Instant::now());
        }
        if since.elapsed() >= QUIET { Ok(all) } else { Err(format!("{count} writes: {all:?}")) }
    })
}

/// Writes by object, its status included.
fn by_object(requests: &Requests) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in &requests.0 {
        let kind = request.resource.split('/').next().unwrap_or_default();
        *counts.entry(format!("{kind}/{}", request.name)).or_default() += 1;
    }
    counts
}

fn write_nothing_idle_and_little_for_a_change(ns: &Namespace) {
    let audit = AuditLog::from_now(ns.cluster());
    let _operator = ns.install_operator(&["--set", "replicas=2"]);
    managed::apply(ns, &json!({"replicas": 2}), 2);
    managed::wait_until_well(ns, 2, 2);
    println!("from nothing: {:?}", by_object(&wait_until_quiet(ns, &audit)));

    let idle = AuditLog::from_now(ns.cluster());
    let started = Instant::now();
    within(idle_time() * 2, "time without a write", || {
        let written = writes(ns, &idle);
        assert!(written.is_empty(), "{} writes while nothing happened: {:#?}", written.len(), written.0);
        if started.elapsed() >= idle_time() { Ok(()) } else { Err("it is not over") }
    });
    let beats = idle.requests().by_service_account(ns.name(), OPERATOR).of("leases").writes().len();
    let asked = idle.requests().by_service_account(ns.name(), OPERATOR).len();
    println!("{} s idle: 0 writes but {beats} of the Lease; {asked} requests in all", idle_time().as_secs());
    assert!(beats > 0, "the audit log shows what the operator does");

    little_for(ns, "another policy", || {
        ns.kubectl(&[
            "patch",
            "sset/fleet",
            "--type=merge",
            "-p",
            r#"{"spec": {"router": {"policy": "least-loaded"}}}"#,
        ]);
        wait_until("the ConfigMap", || {
            let map = ns.object("configmap", "fleet-policy")?.ok_or("none")?;
            if map["data"].to_string().contains("least-loaded") { Ok(()) } else { Err(map["data"].to_string()) }
        });
    });
    little_for(ns, "one selector more", || {
        ns.kubectl(&["scale", "sset/fleet", "--replicas=3"]);
        managed::wait_until_well(ns, 3, 2);
    });
    little_for(ns, "one selector less", || {
        ns.kubectl(&["scale", "sset/fleet", "--replicas=2"]);
        managed::wait_until_well(ns, 2, 2);
    });
    little_for(ns, "one engine more", || {
        ns.kubectl(&["scale", "deployment/engines", "--replicas=3"]);
        managed::wait_until_well(ns, 2, 3);
    });
    little_for(ns, "another capacity", || {
        ns.kubectl(&["patch", "mp/pool", "--type=merge", "-p", r#"{"spec": {"capacity": {"totalKvBlocks": 100}}}"#]);
        wait_until("its status", || {
            let pool = ns.object("modelpool", "pool")?.ok_or("none")?;
            if pool["status"]["observedGeneration"] == 2 { Ok(()) } else { Err(pool["status"].to_string()) }
        });
        managed::wait_until_well(ns, 2, 3);
    });
    little_for(ns, "a label of the Service", || {
        ns.kubectl(&["patch", "sset/fleet", "--type=merge", "-p", r#"{"spec": {"service": {"labels": {"a": "b"}}}}"#]);
        wait_until("the label", || {
            let service = ns.object("service", "fleet")?.ok_or("none")?;
            if service["metadata"]["labels"]["a"] == "b" { Ok(()) } else { Err(service["metadata"].to_string()) }
        });
    });
    little_for(ns, "a hand on what the operator owns", || {
        ns.kubectl(&[
            "patch",
            "service/fleet",
            "--type=json",
            "-p",
            r#"[{"op": "remove", "path": "/metadata/labels/a"}]"#,
        ]);
        wait_until("the label again", || {
            let service = ns.object("service", "fleet")?.ok_or("none")?;
            if service["metadata"]["labels"]["a"] == "b" { Ok(()) } else { Err(service["metadata"].to_string()) }
        });
    });
}

/// Makes a change, waits until all of it is done, and counts.
#[track_caller]
fn little_for(ns: &Namespace, what: &str, change: impl FnOnce()) {
    let audit = AuditLog::from_now(ns.cluster());
    change();
    let written = wait_until_quiet(ns, &audit);
    let counts = by_object(&written);
    println!("{what}: {counts:?}");
    assert!(!counts.is_empty(), "{what}: the audit log shows what the operator does");
    let most = counts.values().max().copied().unwrap_or_default();
    assert!(most <= MOST_WRITES, "{what}: more than {MOST_WRITES} writes of an object: {counts:?}\n{:#?}", written.0);
}

/// What selectors and status tell of the catalog, watched for steps back.
struct Steps {
    stop: Arc<AtomicBool>,
    watch: Option<JoinHandle<Vec<String>>>,
}

impl Steps {
    /// Watches the selectors at these addresses; they have `workers` workers all the time.
    fn watch(selectors: &[PodFacts], owner: String, workers: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, pods) = (stop.clone(), selectors.to_vec());
        let watch = thread::spawn(move || {
            let mut last: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            let mut back = Vec::new();
            while !ended.load(Ordering::Acquire) {
                for pod in &pods {
                    let Ok(answer) = call(pod.ip(), 8092, "GET", "/catalog", None) else { continue };
                    let catalog = answer.json();
                    let owners = catalog["owners"].as_array().cloned().unwrap_or_default();
                    let Some(entry) = owners.iter().find(|o| o["owner"] == *owner) else {
                        back.push(format!("{} has no catalog: {catalog}", pod.name));
                        continue;
                    };
                    let version = (entry["epoch"].as_u64().unwrap_or(0), entry["generation"].as_u64().unwrap_or(0));
                    let before = last.insert(pod.name.clone(), version).unwrap_or_default();
                    if version < before || entry["schedulable"].as_u64() != Some(workers) {
                        back.push(format!("{} after {before:?}: {entry}", pod.name));
                    }
                }
                thread::park_timeout(Duration::from_millis(100));
            }
            back
        });
        Self { stop, watch: Some(watch) }
    }

    /// Fails if anything went back.
    #[track_caller]
    fn assert_none_back(mut self) {
        self.stop.store(true, Ordering::Release);
        let back = self.watch.take().expect("it is taken once").join().expect("the watch does not panic");
        assert!(back.is_empty(), "{} steps back: {:#?}", back.len(), &back[..back.len().min(10)]);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Identity of the process that leads.
fn holder(ns: &Namespace) -> Result<String, String> {
    let lease = ns.object("lease", OPERATOR)?.ok_or("no Lease")?;
    let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
    holder.map(str::to_owned).ok_or_else(|| format!("nobody leads: {}", lease["spec"]))
}

/// The pod of the process that leads.
fn leader(ns: &Namespace) -> PodFacts {
    let identity = wait_until("a leader", || holder(ns));
    let pod = identity.split('_').next().unwrap_or_default();
    ns.pod(pod)
}

/// Waits for another leader than `before`; how long that took.
fn wait_for_another(ns: &Namespace, before: &str) -> Duration {
    let started = Instant::now();
    wait_until("another leader", || match holder(ns)? {
        now if now == before => Err(format!("{now} leads")),
        _ => Ok(()),
    });
    started.elapsed()
}

fn one_of_two_leads(ns: &Namespace) {
    let cluster = ns.cluster();
    let begun = AuditLog::from_now(cluster);
    let lease = format!("extraEnv[0].name=POINTSMAN_LEASE_DURATION,extraEnv[0].value={}", LEASE.as_secs());
    let _operator = ns.install_operator(&["--set", "replicas=2", "--set", &lease]);
    managed::apply(ns, &json!({"replicas": 2}), 2);
    managed::wait_until_well(ns, 2, 2);
    ns.wait_for_pods(OPERATORS, 2);
    let selectors = ns.wait_for_pods(SELECTORS, 2);
    let steps = Steps::watch(&selectors, managed::owner(ns), 2);
    let load = BookingLoad::new(ns.service_ip("fleet"), manifests::MODEL).start(cluster);
    let mut last = wait_until("a catalog", || managed::version(ns));
    // A crash: the Lease runs out, and the other, or the one that was started again, takes it.
    let before = holder(ns).unwrap();
    kill_container(cluster, &leader(ns), "controller");
    let took = wait_for_another(ns, &before);
    println!("another leads {:.1} s after a crash", took.as_secs_f64());
    last = well_again(ns, last);

    // A pod that is deleted gives the Lease back.
    ns.wait_for_pods(OPERATORS, 2);
    let (pod, before) = (leader(ns), holder(ns).unwrap());
    let audit = AuditLog::from_now(cluster);
    ns.kubectl(&["delete", "pod", &pod.name, "--wait=false"]);
    wait_for_another(ns, &before);
    let pause = vacancy(&audit.requests().by_service_account(ns.name(), OPERATOR), &pod.name);
    println!("another leads {:.1} s after the end of its predecessor", pause.as_secs_f64());
    assert!(pause < LEASE, "the Lease was not given back: {pause:?}");
    last = well_again(ns, last);

    // One that stands still for longer than its Lease comes back as one that does not lead.
    ns.wait_for_pods(OPERATORS, 2);
    let before = holder(ns).unwrap();
    let stopped = leader(ns);
    let pause = Paused::container(cluster, &stopped);
    wait_for_another(ns, &before);
    last = well_again(ns, last);
    let returned = AuditLog::from_now(cluster);
    drop(pause);
    wait_until("the former leader to ask again", || {
        let asked = returned.requests().by_service_account(ns.name(), OPERATOR).of("leases");
        let asked: Vec<Request> = asked.0.into_iter().filter(|r| r.pod == stopped.name && r.verb == "get").collect();
        if asked.is_empty() { Err("it did not") } else { Ok(()) }
    });
    let leads = leader(ns).name;
    let stray: Vec<_> = writes(ns, &returned).0.into_iter().filter(|w| w.pod != leads && w.code < 300).collect();
    assert!(stray.is_empty(), "one that does not lead writes: {stray:#?}");

    // Killed in the middle of its writes, three times.
    for n in 1..=3 {
        ns.wait_for_pods(OPERATORS, 2);
        let (pod, before) = (leader(ns), holder(ns).unwrap());
        let audit = AuditLog::from_now(cluster);
        let document = json!({"spec": {
            "router": {"document": {"worker_selection": {
                "aggregated": format!("p{n}"),
                "instances": [{"name": format!("p{n}"), "type": "dynamo-default-cost-fn"}],
            }}},
            "service": {"labels": {"n": n.to_string()}},
            "podDisruptionBudget": {"minAvailable": n % 2},
        }});
        ns.kubectl(&["patch", "sset/fleet", "--type=merge", "-p", &document.to_string()]);
        let written = wait_for_a_write(ns, &audit);
        kill_container(cluster, &pod, "controller");
        println!("killed after {written} of 3 writes");
        wait_for_another(ns, &before);
        wait_until("all of the change", || {
            let map = ns.object("configmap", "fleet-policy")?.ok_or("no policy")?["data"].to_string();
            let label = ns.object("service", "fleet")?.ok_or("no Service")?["metadata"]["labels"]["n"].clone();
            let budget = ns.object("pdb", "fleet")?.ok_or("no budget")?["spec"]["minAvailable"].clone();
            let is_done = map.contains(&format!("p{n}")) && label == *n.to_string() && budget == n % 2;
            if is_done { Ok(()) } else { Err(format!("{map} {label} {budget}")) }
        });
        last = well_again(ns, last);
    }

    let strays = strays(begun.requests().by_service_account(ns.name(), OPERATOR));
    assert!(strays.is_empty(), "one that did not lead wrote: {strays:#?}");
    load.wait_for_bookings(100);
    load.finish().assert_clean(1000);
    steps.assert_none_back();
    managed::wait_until_well(ns, 2, 2);
    for (then, now) in selectors.iter().zip(ns.wait_for_pods(SELECTORS, 2)) {
        assert_eq!((&then.uid, &then.containers), (&now.uid, &now.containers), "a selector was restarted");
    }
}

/// Writes of pods that did not have the Lease when they made them. Events may come a moment after what they tell of.
fn strays(requests: Requests) -> Vec<Request> {
    let mut writes = requests.writes().but("events").0;
    writes.retain(|r| r.code < 300);
    writes.sort_by(|a, b| a.at.cmp(&b.at));
    let (mut holder, mut strays) = (String::new(), Vec::new());
    for write in writes {
        if write.resource == "leases" {
            holder = write.pod;
        } else if write.pod != holder {
            strays.push(write);
        }
    }
    strays
}

/// Time between the last write of a Lease by a pod and the first by another.
fn vacancy(requests: &Requests, pod: &str) -> Duration {
    let writes: Vec<&Request> =
        requests.0.iter().filter(|r| r.resource == "leases" && r.is_write() && r.code < 300).collect();
    let time = |r: &&Request| r.at.parse::<Timestamp>().expect("the apiserver tells the time");
    let last = writes.iter().filter(|r| r.pod == pod).map(time).max().expect("a leader writes its Lease");
    let first = writes.iter().filter(|r| r.pod != pod).map(time).min().expect("another writes the Lease");
    first.duration_since(last).try_into().unwrap_or_default()
}

/// Waits for statuses of a later term; its catalog's version.
fn well_again(ns: &Namespace, last: (u64, u64)) -> (u64, u64) {
    let now = wait_until("a later epoch", || match managed::version(ns)? {
        now if now.0 > last.0 => Ok(now),
        now => Err(format!("{now:?} after {last:?}")),
    });
    println!("catalog {last:?} became {now:?}");
    now
}

/// Waits until the operator has written anything but a status; how much it was.
fn wait_for_a_write(ns: &Namespace, audit: &AuditLog) -> usize {
    let started = Instant::now();
    loop {
        let count = writes(ns, audit).0.iter().filter(|w| !w.resource.contains('/') && w.resource != "events").count();
        if count > 0 {
            return count;
        }
        assert!(started.elapsed() < PATIENCE, "the operator writes nothing");
        // The next write comes within milliseconds of the first.
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// A container whose processes stand still until this is dropped.
struct Paused {
    cluster: &'static Cluster,
    id: String,
}

impl Paused {
    #[track_caller]
    fn container(cluster: &'static Cluster, pod: &PodFacts) -> Self {
        let id = pod.containers.iter().find(|(name, _)| name == "controller").map(|(_, id)| id.clone());
        let id = id.expect("an operator has a container").trim_start_matches("containerd://").to_owned();
        cluster.containerd(&["tasks", "pause", &id]).unwrap_or_else(|e| panic!("{e}"));
        Self { cluster, id }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let outcome = self.cluster.containerd(&["tasks", "resume", &self.id]);
        if !thread::panicking() {
            outcome.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
