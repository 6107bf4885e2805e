//! A SelectorSet with its pools, and what every one of its selectors knows.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::{Value, json};

use super::{
    http::{Answer, call},
    manifests::{BLOCK_SIZE, ENGINE_PORTS, MODEL},
    namespace::{Namespace, PodFacts},
    wait::wait_until,
};

/// The selectors of a set, seen from outside.
pub struct Fleet<'a> {
    ns: &'a Namespace,
    labels: String,
    owner: String,
    count: usize,
}

/// What selectors know of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub endpoint: String,
    pub lifecycle: String,
}

/// Workers by id.
pub type Workers = BTreeMap<u64, Known>;

/// A ModelPool of mock engines; `workers` is `{"service": {"name": ..}}` or `{"podSelector": ..}`, and `more` further fields
/// of the spec.
pub fn pool(name: &str, set: &str, workers: &Value, more: &Value) -> Value {
    let [_, events, replay] = ENGINE_PORTS;
    let mut spec = json!({
        "selectorRef": {"name": set},
        "modelName": MODEL,
        "workers": workers,
        "endpoint": {"port": "http"},
        "blockSize": BLOCK_SIZE,
        "kvEvents": {"port": events, "replayPort": replay},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "ModelPool", "metadata": {"name": name}, "spec": spec})
}

/// A Managed SelectorSet.
pub fn selector_set(name: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "SelectorSet",
        "metadata": {"name": name},
        "spec": {"replicas": replicas},
    })
}

impl<'a> Fleet<'a> {
    /// The `count` selectors with these labels; `set` is the SelectorSet, or the Service of those that discover by
    /// themselves.
    pub fn of(ns: &'a Namespace, set: &str, labels: &str, count: usize) -> Self {
        Self { ns, labels: labels.to_owned(), owner: format!("k8s.{}.{set}", ns.name()), count }
    }

    /// Applies a Managed set and waits for nothing.
    #[track_caller]
    pub fn managed(ns: &'a Namespace, set: &str, count: usize) -> Self {
        ns.apply(&selector_set(set, count).to_string());
        Self::of(ns, set, &format!("pointsman.dev/selector-set={set}"), count)
    }

    /// Owner of its catalog.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Its selectors, all Ready.
    #[track_caller]
    pub fn selectors(&self) -> Vec<PodFacts> {
        self.ns.wait_for_pods(&self.labels, self.count)
    }

    /// Waits until every selector has one digest and the same workers, and `probe` is content with them.
    #[track_caller]
    pub fn wait(&self, what: &str, probe: impl Fn(&Workers) -> Result<(), String>) -> Workers {
        wait_until(&format!("{what} on every selector"), || {
            let pods = self.ns.try_pods(&self.labels)?;
            if pods.len() != self.count || pods.iter().any(|pod| !pod.ready || pod.terminating) {
                return Err(format!("{} selectors are wanted, Ready all of them: {pods:?}", self.count));
            }
            let mut common: Option<(String, Workers)> = None;
            for pod in &pods {
                let known = self.known(pod).map_err(|e| format!("{}: {e}", pod.name))?;
                probe(&known.1).map_err(|e| format!("{}: {e}; it has {known:?}", pod.name))?;
                match &common {
                    Some(common) if *common != known => {
                        return Err(format!("{} has {known:?}, another {common:?}", pod.name));
                    }
                    _ => common = Some(known),
                }
            }
            common.map(|(_, workers)| workers).ok_or_else(|| "no selectors".to_owned())
        })
    }

    /// Waits until every selector books on exactly these addresses and knows no other worker.
    #[track_caller]
    pub fn wait_for(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Workers {
        let mut wanted: Vec<String> = addresses.into_iter().map(endpoint).collect();
        wanted.sort();
        self.wait(&format!("{} workers", wanted.len()), |workers| {
            let mut found: Vec<&str> = workers.values().map(|w| w.endpoint.as_str()).collect();
            found.sort_unstable();
            if found != wanted {
                return Err(format!("{wanted:?} are wanted"));
            }
            match workers.iter().find(|(_, w)| w.lifecycle != "schedulable") {
                Some(other) => Err(format!("{other:?} takes no bookings")),
                None => Ok(()),
            }
        })
    }

    /// As [`Fleet::wait_for`], with the engines that are Ready now.
    #[track_caller]
    pub fn wait_for_pods(&self, pods: &[PodFacts]) -> Workers {
        self.wait_for(pods.iter().map(PodFacts::ip))
    }

    /// Waits until no selector knows `id`.
    #[track_caller]
    pub fn wait_until_gone(&self, id: u64) -> Workers {
        self.wait(&format!("the end of worker {id}"), |workers| {
            if workers.contains_key(&id) { Err(format!("worker {id} is there")) } else { Ok(()) }
        })
    }

    /// Waits until worker `id` drains: no selector gives it to a new request.
    #[track_caller]
    pub fn wait_until_draining(&self, id: u64) {
        self.wait(&format!("worker {id} draining"), |workers| match workers.get(&id) {
            Some(known) if known.lifecycle == "draining" => Ok(()),
            other => Err(format!("{other:?}")),
        });
        for (selector, number) in self.selectors().iter().zip(0..).flat_map(|s| std::iter::repeat_n(s, 20)) {
            let tokens: Vec<u32> = (number..number + 4 * BLOCK_SIZE).map(|_| fastrand::u32(..)).collect();
            let body = json!({"model_name": MODEL, "token_ids": tokens});
            let answer = self.ask(selector, "POST", "/select", Some(&body));
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_ne!(answer.json()["worker_id"], id, "{} books on a draining worker", selector.name);
        }
    }

    /// Books on one worker at one selector.
    #[track_caller]
    pub fn book(&self, selector: &PodFacts, booking: &str, worker: u64) {
        let body = json!({
            "model_name": MODEL,
            "selection_id": booking,
            "token_ids": (0..4 * BLOCK_SIZE).collect::<Vec<_>>(),
            "pinned_worker": {"worker_id": worker, "dp_rank": 0},
        });
        let answer = self.ask(selector, "POST", "/select_and_reserve", Some(&body));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Waits until every selector counts `bookings` on `worker`.
    #[track_caller]
    pub fn wait_for_bookings(&self, worker: u64, bookings: u64) {
        wait_until(&format!("{bookings} bookings on worker {worker}"), || {
            for selector in self.ns.try_pods(&self.labels)? {
                let loads = call(selector.ip(), 8092, "GET", "/loads", None)?.json();
                let ranks = loads.as_array().into_iter().flatten().filter_map(|p| p["loads"].as_array()).flatten();
                let found: u64 = ranks
                    .filter(|rank| rank["worker_id"] == worker)
                    .filter_map(|rank| rank["active_requests"].as_u64())
                    .sum();
                if found != bookings {
                    return Err(format!("{}: {found} in {loads}", selector.name));
                }
            }
            Ok(())
        });
    }

    /// Asks a selector.
    #[track_caller]
    pub fn ask(&self, selector: &PodFacts, method: &str, path: &str, body: Option<&Value>) -> Answer {
        call(selector.ip(), 8092, method, path, body).unwrap_or_else(|e| panic!("{}: {e}", selector.name))
    }

    /// Digest that a selector has, and its workers.
    fn known(&self, pod: &PodFacts) -> Result<(String, Workers), String> {
        let address = pod.address.ok_or("no address")?;
        let catalog = call(address, 8092, "GET", "/catalog", None)?.json();
        let entry = catalog["owners"].as_array().into_iter().flatten().find(|o| o["owner"] == self.owner.as_str());
        // An owner without workers may be told of or not.
        let digest = entry.filter(|o| o["workers"] != 0).map(|o| o["digest"].to_string()).unwrap_or_default();
        let list = call(address, 8092, "GET", "/workers", None)?.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let workers = list.as_array().into_iter().flatten().filter_map(|worker| {
            let known = Known { endpoint: text(&worker["endpoint"]), lifecycle: text(&worker["lifecycle"]) };
            Some((worker["worker_id"].as_u64()?, known))
        });
        Ok((digest, workers.collect()))
    }
}

/// URL of a mock engine.
fn endpoint(address: IpAddr) -> String {
    format!("http://{}", std::net::SocketAddr::new(address, ENGINE_PORTS[0]))
}

/// The id of the worker at `address`.
#[track_caller]
pub fn id_at(workers: &Workers, address: IpAddr) -> u64 {
    let wanted = endpoint(address);
    let found = workers.iter().find(|(_, known)| known.endpoint == wanted);
    *found.unwrap_or_else(|| panic!("no worker at {wanted} in {workers:?}")).0
}

impl Namespace {
    /// Waits until the status of a ModelPool pleases `probe`, which also tells what is wrong.
    #[track_caller]
    pub fn wait_for_pool(&self, name: &str, probe: impl Fn(&Value) -> bool) -> Value {
        wait_until(&format!("status of ModelPool {name}"), || {
            let pool = self.object("modelpool", name)?.ok_or("there is no such pool")?;
            let status = &pool["status"];
            if probe(status) { Ok(status.clone()) } else { Err(status.to_string()) }
        })
    }

    /// Waits until a ModelPool counts this many workers that were found, that take bookings and that drain, and every
    /// selector has them.
    #[track_caller]
    pub fn wait_for_counts(&self, name: &str, discovered: usize, schedulable: usize, draining: usize) -> Value {
        let wanted = [json!(discovered), json!(schedulable), json!(draining)];
        self.wait_for_pool(name, |status| {
            [&status["discovered"], &status["schedulable"], &status["draining"]] == [&wanted[0], &wanted[1], &wanted[2]]
                && condition(status, "Synced")["status"] == "True"
        })
    }

    /// Waits until a ModelPool says why `who` is no worker.
    #[track_caller]
    pub fn wait_for_rejection(&self, pool: &str, who: &str, reason: &str) -> String {
        let of = |status: &Value| {
            let all = status["rejections"].as_array().into_iter().flatten();
            all.filter(|r| r["name"] == who && r["reason"] == reason).map(|r| r["message"].to_string()).next()
        };
        let status = self.wait_for_pool(pool, |status| of(status).is_some());
        let message = of(&status).expect("it was there").trim_matches('"').to_owned();
        // A person reads this.
        let text = self.kubectl(&["describe", "mp", pool]);
        assert!(text.contains(who) && text.contains(reason), "{who} and {reason} are not in\n{text}");
        message
    }
}

/// A condition of a status; null where it is not there.
pub fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut all = status["conditions"].as_array().into_iter().flatten();
    all.find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}
