//! What the replicas of a set must have in common once nothing changes any more.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    http::call,
    namespace::{Namespace, PodFacts},
    wait::wait_until,
};

/// Live bookings by worker and rank.
type Live = BTreeMap<(u64, u64), u64>;

/// What all replicas agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Digest of the owner's catalog.
    pub digest: String,
    /// Ids of all workers, with their lifecycle.
    pub workers: BTreeSet<(u64, String)>,
}

impl Namespace {
    /// Waits until the selector pods with these labels are exactly `count` Ready ones that agree: the same workers, and the
    /// same digest of `owner` (`k8s.NAMESPACE.SET`, `file.default`); each follows all others, with nothing diverged; and no
    /// booking is live on any.
    #[track_caller]
    pub fn wait_for_agreement(&self, labels: &str, count: usize, owner: &str) -> Agreement {
        self.wait_for_agreement_but_for(0, labels, count, owner)
    }

    /// The same, but that at most `most_left` bookings may be left over, on all replicas alike, until they expire: as in the
    /// reference, an end that is told to a replica which does not know the worker ends nothing; nor does one that is told
    /// more than ten seconds before the replica hears of the booking.
    #[track_caller]
    pub fn wait_for_agreement_but_for(&self, most_left: u64, labels: &str, count: usize, owner: &str) -> Agreement {
        wait_until(&format!("{count} selectors {labels} that agree"), || {
            let pods = self.try_pods(labels)?;
            if pods.len() != count || pods.iter().any(|p| !p.ready || p.terminating) {
                return Err(format!("{pods:?}"));
            }
            let mut common: Option<(Agreement, Live)> = None;
            for pod in &pods {
                let known = knowledge(pod, owner, count - 1).map_err(|e| format!("{}: {e}", pod.name))?;
                match &common {
                    Some(common) if *common != known => {
                        return Err(format!("{} has {known:?}, not {common:?}", pod.name));
                    }
                    _ => common = Some(known),
                }
            }
            let (agreement, live) = common.ok_or_else(|| "no selectors".to_owned())?;
            match live.values().sum() {
                0 => {}
                left if left <= most_left => println!("{left} bookings are left, on all {count} selectors {labels}"),
                _ => return Err(format!("bookings are live: {live:?}")),
            }
            Ok(agreement)
        })
    }
}

fn knowledge(pod: &PodFacts, owner: &str, others: usize) -> Result<(Agreement, Live), String> {
    let address = pod.address.ok_or("no address")?;
    let get = |path: &str| {
        let answer = call(address, 8092, "GET", path, None)?;
        if answer.is_success() {
            Ok(answer.json())
        } else {
            Err(format!("{path}: {} {}", answer.status, answer.text()))
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();

    let catalog = get("/catalog")?;
    let entry = list(&catalog["owners"]).into_iter().find(|o| o["owner"] == owner);
    let entry = entry.ok_or_else(|| format!("no owner {owner} in {catalog}"))?;
    let digest = entry["digest"].as_str().unwrap_or_default().to_owned();
    let workers = list(&get("/workers")?);
    let workers = workers.iter().filter_map(|worker| {
        Some((worker["worker_id"].as_u64()?, worker["lifecycle"].as_str().unwrap_or_default().to_owned()))
    });

    let mesh = get("/replica_sync/status")?;
    let peers: Vec<_> = list(&mesh["peers"]).into_iter().filter(|peer| peer["is_self"] != true).collect();
    let is_good = |peer: &Value| peer["state"] == "connected" && list(&peer["diverged"]).is_empty();
    if peers.len() != others || !peers.iter().all(is_good) {
        return Err(format!("{others} connected peers are wanted: {}", Value::from(peers)));
    }

    let loads = get("/loads")?;
    let ranks = list(&loads).into_iter().flat_map(|partition| list(&partition["loads"]));
    let live = ranks.map(|rank| {
        let place = (rank["worker_id"].as_u64().unwrap_or_default(), rank["dp_rank"].as_u64().unwrap_or_default());
        (place, rank["active_requests"].as_u64().unwrap_or_default())
    });
    let live = live.filter(|(_, count)| *count > 0).collect();
    Ok((Agreement { digest, workers: workers.collect() }, live))
}
