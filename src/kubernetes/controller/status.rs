//! What the status of a SelectorSet and of a ModelPool says. Pure.
//!
//! Invariant: equal facts give equal statuses, times included, so that nothing is written without a difference.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use super::{
    fleet::{FleetView, MemberView},
    selector_set::{Reconciled, problems},
};
use crate::{
    discovery::{fleet::CatalogState, wiring::WiringState},
    kubernetes::{
        api::{
            conditions::{Verdict, conditions},
            constants::{SELECTOR_SET_LABEL, condition, reason},
            model_pool::{ModelPoolStatus, Rejection},
            selector_set::{CatalogStatus, Mode, SelectorSet, SelectorSetStatus, SelectorStatus},
        },
        source::{PoolOutcome, SelectorPod, SetState, state::MAX_REJECTIONS},
    },
    selection::worker::WorkerState,
};

/// Names that a message gives.
const NAMED: usize = 3;

/// Everything that the statuses of a set and its pools are made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The set.
    pub object: &'a SelectorSet,
    /// Its workers and pods.
    pub state: &'a SetState,
    /// Its selectors; none while they are not served.
    pub fleet: Option<&'a FleetView>,
    /// What the last reconcile came to; none before the first.
    pub reconciled: Option<&'a Reconciled>,
}

impl Facts<'_> {
    /// Pods that count: those that are not leaving.
    fn pods(&self) -> impl Iterator<Item = &SelectorPod> {
        self.state.selectors.iter().filter(|pod| !pod.terminating && !pod.finished)
    }

    /// Whether all that a status is made of was asked for and answered, or not answered, at least once.
    pub fn is_known(&self) -> bool {
        let is_heard = |pod: &SelectorPod| {
            pod.ip.is_none()
                || self.member(pod).is_some_and(|member| {
                    member.catalog.state != CatalogState::Pending && member.wiring != WiringState::Pending
                })
        };
        self.reconciled.is_some() && self.state.snapshot.is_some() && self.pods().all(is_heard)
    }

    fn member(&self, pod: &SelectorPod) -> Option<&MemberView> {
        self.fleet?.members.iter().find(|m| *m.uid == *pod.uid)
    }

    fn members(&self) -> Vec<(&SelectorPod, Option<&MemberView>)> {
        self.pods().map(|pod| (pod, self.member(pod))).collect()
    }
}

/// The status of the set, after `before`.
pub fn selector_set_status(facts: Facts<'_>, before: Option<&SelectorSetStatus>, now: Timestamp) -> SelectorSetStatus {
    let object = facts.object;
    let members = facts.members();
    let ready = members.iter().filter(|(pod, _)| pod.ready).count();
    let managed = object.spec.mode == Mode::Managed;
    let wanted = if managed { usize::try_from(object.spec.replicas).unwrap_or(0) } else { members.len() };
    let stateful = facts.reconciled.and_then(|r| r.statefulset.as_ref());
    let verdicts = [
        available(&facts, ready, wanted),
        progressing(&facts, &members, wanted),
        catalog_synced(&facts, &members),
        peers_wired(&facts, &members),
        degraded(&facts),
    ];
    let catalog = facts.fleet.and_then(|f| f.snapshot.as_ref()).map(|snapshot| CatalogStatus {
        owner: facts.state.key.owner(),
        epoch: i64::try_from(snapshot.version.epoch).unwrap_or(i64::MAX),
        generation: i64::try_from(snapshot.version.generation).unwrap_or(i64::MAX),
        digest: snapshot.digest().to_owned(),
        workers: count(snapshot.workers().len()).into(),
    });
    let updated = stateful.map_or(count(members.len()), |s| s.updated);
    SelectorSetStatus {
        observed_generation: object.metadata.generation,
        replicas: count(members.len()),
        ready_replicas: count(ready),
        updated_replicas: updated,
        ready_of_replicas: format!("{ready}/{wanted}"),
        label_selector: label_selector(&facts),
        catalog,
        policy: policy_word(&facts),
        selectors: members.iter().map(|(pod, member)| selector(pod, *member)).collect(),
        conditions: conditions(
            before.map(|s| &*s.conditions).unwrap_or_default(),
            &verdicts,
            object.metadata.generation,
            now,
        ),
    }
}

fn policy_word(facts: &Facts<'_>) -> String {
    match &facts.object.spec.router {
        Some(router) if router.document.is_some() => "document".to_owned(),
        Some(router) => router.policy.clone().unwrap_or_else(|| "default".to_owned()),
        None => "default".to_owned(),
    }
}

fn label_selector(facts: &Facts<'_>) -> String {
    let labels = facts.object.spec.pod_selector.as_ref();
    match labels {
        None => format!("{SELECTOR_SET_LABEL}={}", facts.state.key.name),
        Some(selector) => {
            let equals = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
            let others = selector.match_expressions.iter().flatten().map(|r| {
                let values = r.values.iter().flatten().cloned().collect::<Vec<_>>().join(",");
                match r.operator.as_str() {
                    "In" => format!("{} in ({values})", r.key),
                    "NotIn" => format!("{} notin ({values})", r.key),
                    "DoesNotExist" => format!("!{}", r.key),
                    _ => r.key.clone(),
                }
            });
            equals.chain(others).collect::<Vec<_>>().join(",")
        }
    }
}

fn selector(pod: &SelectorPod, member: Option<&MemberView>) -> SelectorStatus {
    let problem = member.and_then(|m| m.catalog.last_error.clone().or_else(|| m.peers.last_error.clone()));
    SelectorStatus {
        pod: pod.name.to_string(),
        address: pod.ip.map(|ip| ip.to_string()),
        ready: pod.ready,
        catalog: member.map_or(CatalogState::Pending, |m| m.catalog.state).as_str().to_owned(),
        digest: member.and_then(|m| m.catalog.digest.clone()),
        peers: member.map_or(WiringState::Pending, |m| m.wiring).as_str().to_owned(),
        message: pod.failing.clone().or(problem),
    }
}

fn available(facts: &Facts<'_>, ready: usize, wanted: usize) -> Verdict {
    let type_ = condition::AVAILABLE;
    if ready > 0 {
        return Verdict::new(type_, true, reason::SELECTORS_READY, format!("{ready} of {wanted} selectors are ready"));
    }
    if wanted == 0 && facts.object.spec.mode == Mode::Managed {
        return Verdict::new(type_, false, reason::SCALED_TO_ZERO, "no selectors are asked for");
    }
    let why = match facts.object.spec.mode {
        Mode::External if facts.pods().next().is_none() => "no pod matches podSelector".to_owned(),
        _ => format!("0 of {wanted} selectors are ready"),
    };
    Verdict::new(type_, false, reason::NO_SELECTOR_READY, why)
}

fn progressing(facts: &Facts<'_>, members: &[(&SelectorPod, Option<&MemberView>)], wanted: usize) -> Verdict {
    let type_ = condition::PROGRESSING;
    let Some(stateful) = facts.reconciled.and_then(|r| r.statefulset.as_ref()) else {
        return match facts.object.spec.mode {
            Mode::External => Verdict::new(type_, false, reason::ROLLED_OUT, "pods are their owner's"),
            Mode::Managed => Verdict::new(type_, true, reason::SCALING, "the StatefulSet is not there yet"),
        };
    };
    if !stateful.is_observed() || stateful.updated < stateful.replicas {
        let text = format!("{} of {wanted} selectors have the newest template", stateful.updated);
        return Verdict::new(type_, true, reason::ROLLING_OUT, text);
    }
    if members.len() != wanted {
        let text = format!("{} selectors, {wanted} are asked for", members.len());
        return Verdict::new(type_, true, reason::SCALING, text);
    }
    Verdict::new(type_, false, reason::ROLLED_OUT, "all selectors have the newest template")
}

fn catalog_synced(facts: &Facts<'_>, members: &[(&SelectorPod, Option<&MemberView>)]) -> Verdict {
    let type_ = condition::CATALOG_SYNCED;
    let Some(snapshot) = facts.fleet.and_then(|f| f.snapshot.as_ref()) else {
        return Verdict::new(type_, None, reason::LISTING, "the cluster has not been listed in full yet");
    };
    let with = |state: CatalogState| -> Vec<&str> {
        let has = |m: Option<&MemberView>| m.map_or(CatalogState::Pending, |m| m.catalog.state) == state;
        members.iter().filter(|(_, m)| has(*m)).map(|(pod, _)| &*pod.name).collect()
    };
    let failing = with(CatalogState::Failing);
    if !failing.is_empty() {
        let refused = members.iter().any(|(_, m)| m.is_some_and(|m| m.refused));
        let first = members.iter().find_map(|(_, m)| m.and_then(|m| m.catalog.last_error.clone()));
        let text = format!("{}: {}", named(&failing), first.unwrap_or_default());
        let why = if refused { reason::CATALOG_REFUSED } else { reason::CATALOG_BEHIND };
        return Verdict::new(type_, false, why, text);
    }
    let away = with(CatalogState::Unreachable);
    if !away.is_empty() {
        let text = format!("the operator does not reach {}", named(&away));
        return Verdict::new(type_, false, reason::SELECTOR_UNREACHABLE, text);
    }
    let applied = with(CatalogState::Applied).len();
    if applied < members.len() {
        let text = format!("{applied} of {} selectors have catalog {}", members.len(), snapshot.version.generation);
        return Verdict::new(type_, false, reason::CATALOG_BEHIND, text);
    }
    if members.is_empty() {
        return Verdict::new(type_, false, reason::NO_SELECTORS, "there are no selectors");
    }
    let workers = snapshot.workers().len();
    let text = format!("all {applied} selectors have catalog {}, {workers} workers", snapshot.version.generation);
    Verdict::new(type_, true, reason::CATALOG_APPLIED, text)
}

fn peers_wired(facts: &Facts<'_>, members: &[(&SelectorPod, Option<&MemberView>)]) -> Verdict {
    let type_ = condition::PEERS_WIRED;
    if facts.object.spec.replica_sync.as_ref().is_some_and(|sync| !sync.enabled) {
        return Verdict::new(type_, false, reason::REPLICA_SYNC_DISABLED, "replicaSync.enabled is false");
    }
    let settled = |m: Option<&MemberView>| m.is_some_and(|m| m.wiring.is_settled() && m.peers.awaited.is_empty());
    let open: Vec<&str> = members.iter().filter(|(_, m)| !settled(*m)).map(|(pod, _)| &*pod.name).collect();
    if open.is_empty() {
        return Verdict::new(type_, true, reason::ALL_PEERS_WIRED, format!("{} selectors in one mesh", members.len()));
    }
    let text = format!("{} of {} selectors lack peers: {}", open.len(), members.len(), named(&open));
    Verdict::new(type_, false, reason::PEERS_MISSING, text)
}

fn degraded(facts: &Facts<'_>) -> Verdict {
    let type_ = condition::DEGRADED;
    let problems = facts.reconciled.map(problems).unwrap_or_default();
    if let Some(first) = problems.first() {
        let more = problems.len() - 1;
        let text = if more > 0 { format!("{} (and {more} more)", first.note) } else { first.note.clone() };
        return Verdict::new(type_, true, first.reason, text);
    }
    if let Some(why) = &facts.state.invalid {
        return Verdict::new(type_, true, reason::INVALID_SPEC, why.clone());
    }
    let failing = facts.pods().find_map(|pod| Some((&pod.name, pod.failing.as_ref()?)));
    match failing {
        Some((pod, why)) => Verdict::new(type_, true, reason::PODS_FAILING, format!("{pod}: {why}")),
        None => Verdict::new(type_, false, reason::AS_EXPECTED, "nothing needs a person"),
    }
}

/// The status of the pool `outcome` is about, after `before`. `facts` are those of its set; none where there is no such
/// set.
pub fn model_pool_status(
    facts: Option<Facts<'_>>,
    outcome: &PoolOutcome,
    before: Option<&ModelPoolStatus>,
    now: Timestamp,
) -> ModelPoolStatus {
    let object = &outcome.object;
    let place = facts.map(|facts| Standing::of(&facts, outcome)).unwrap_or_default();
    let mut rejections = outcome.rejections.clone();
    rejections.extend(place.refusals);
    rejections.sort();
    rejections.truncate(MAX_REJECTIONS);
    let verdicts =
        [accepted(facts.is_some(), outcome), discovered(outcome), synced(facts, outcome, place.reached, place.asleep)];
    ModelPoolStatus {
        observed_generation: object.metadata.generation,
        discovered: count(outcome.discovered),
        ready: count(outcome.ready),
        schedulable: count(place.schedulable),
        draining: count(outcome.draining),
        rejected: count(outcome.rejected),
        schedulable_of_discovered: format!("{}/{}", place.schedulable, outcome.discovered),
        catalog_generation: place.generation,
        rejections,
        sources: outcome.sources.clone(),
        conditions: conditions(
            before.map(|s| &*s.conditions).unwrap_or_default(),
            &verdicts,
            object.metadata.generation,
            now,
        ),
    }
}

/// How a pool's workers stand at the selectors.
#[derive(Debug, Default)]
struct Standing {
    schedulable: usize,
    generation: Option<i64>,
    refusals: Vec<Rejection>,
    /// Every selector has the newest catalog.
    reached: bool,
    /// Workers that take no bookings somewhere, though they do not drain.
    asleep: usize,
}

impl Standing {
    fn of(facts: &Facts<'_>, outcome: &PoolOutcome) -> Self {
        let members = facts.members();
        let Some(snapshot) = facts.fleet.and_then(|f| f.snapshot.as_ref()) else { return Self::default() };
        let applied: Vec<&MemberView> =
            members.iter().filter_map(|(_, m)| *m).filter(|m| m.catalog.state == CatalogState::Applied).collect();
        let mut asleep: BTreeMap<u64, &[String]> = BTreeMap::new();
        for (id, reasons) in applied.iter().flat_map(|m| &m.not_schedulable) {
            asleep.entry(*id).or_insert(reasons);
        }
        let active = |id: &&u64| snapshot.get(**id).is_some_and(|w| w.state == WorkerState::Active);
        let (awake, sleeping): (Vec<&u64>, Vec<&u64>) =
            outcome.worker_ids.keys().filter(active).partition(|id| !asleep.contains_key(*id));
        let refusals = sleeping.iter().filter_map(|id| {
            Some(Rejection {
                name: outcome.worker_ids.get(id)?.to_string(),
                reason: reason::NOT_SCHEDULABLE.to_owned(),
                message: asleep.get(id)?.join("; "),
            })
        });
        Self {
            schedulable: if applied.is_empty() { 0 } else { awake.len() },
            generation: applied.iter().filter_map(|m| m.catalog.generation).min().and_then(|g| i64::try_from(g).ok()),
            refusals: refusals.collect(),
            reached: !members.is_empty() && applied.len() == members.len(),
            asleep: sleeping.len(),
        }
    }
}

fn accepted(has_set: bool, outcome: &PoolOutcome) -> Verdict {
    match &outcome.accepted {
        Ok(()) if !has_set => {
            let set = &outcome.object.spec.selector_ref.name;
            let text = format!("there is no SelectorSet {set} in this namespace");
            Verdict::new(condition::ACCEPTED, false, reason::SELECTOR_SET_NOT_FOUND, text)
        }
        Ok(()) if !outcome.warnings.is_empty() => {
            let text = format!("the pool is followed; ignored: {}", outcome.warnings.join("; "));
            Verdict::new(condition::ACCEPTED, true, reason::ACCEPTED, text)
        }
        Ok(()) => Verdict::new(condition::ACCEPTED, true, reason::ACCEPTED, "the pool is followed"),
        Err((why, text)) => Verdict::new(condition::ACCEPTED, false, why, text.clone()),
    }
}

fn discovered(outcome: &PoolOutcome) -> Verdict {
    let type_ = condition::WORKERS_DISCOVERED;
    if outcome.listing {
        return Verdict::new(type_, None, reason::LISTING, "the cluster has not been listed in full yet");
    }
    let (found, rejected) = (outcome.discovered, outcome.rejected);
    let why = || {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for rejection in &outcome.rejections {
            *reasons.entry(&rejection.reason).or_default() += 1;
        }
        let words: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        words.join(", ")
    };
    if found == 0 {
        let text = match (&outcome.object.spec.workers.service, rejected) {
            (Some(service), 0) => format!("Service {} has no endpoints, or there is no such Service", service.name),
            (None, 0) => "no pod matches workers.podSelector".to_owned(),
            _ => why(),
        };
        return Verdict::new(type_, false, reason::NO_ENDPOINTS, text);
    }
    match (outcome.worker_ids.len(), rejected) {
        (0, _) => Verdict::new(type_, false, reason::ALL_REJECTED, format!("none of {found} is a worker: {}", why())),
        (workers, 0) => Verdict::new(type_, true, reason::WORKERS_FOUND, format!("{workers} workers")),
        (workers, _) => {
            Verdict::new(type_, true, reason::SOME_REJECTED, format!("{workers} of {found} are workers: {}", why()))
        }
    }
}

fn synced(facts: Option<Facts<'_>>, outcome: &PoolOutcome, reached: bool, asleep: usize) -> Verdict {
    let type_ = condition::SYNCED;
    let Some(facts) = facts else {
        return Verdict::new(type_, false, reason::SELECTOR_SET_NOT_FOUND, "the pool belongs to no set of selectors");
    };
    if outcome.listing || facts.fleet.is_none_or(|f| f.snapshot.is_none()) {
        return Verdict::new(type_, None, reason::LISTING, "the cluster has not been listed in full yet");
    }
    if !reached {
        let verdict = catalog_synced(&facts, &facts.members());
        return Verdict { type_, ..verdict };
    }
    if asleep > 0 {
        let text = format!("{asleep} of {} workers take no bookings; rejections say why", outcome.worker_ids.len());
        return Verdict::new(type_, true, reason::NOT_SCHEDULABLE, text);
    }
    let text = format!("all selectors have {} workers of this pool", outcome.worker_ids.len());
    Verdict::new(type_, true, reason::CATALOG_APPLIED, text)
}

fn named(names: &[&str]) -> String {
    let unique: BTreeSet<&str> = names.iter().copied().collect();
    let first: Vec<&str> = unique.iter().take(NAMED).copied().collect();
    let more = unique.len().saturating_sub(NAMED);
    if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
