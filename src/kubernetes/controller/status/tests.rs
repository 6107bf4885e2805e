//! What statuses say of given facts.

use std::sync::Arc;

use super::*;
use crate::{
    discovery::{
        Snapshot,
        apply::{PassReport, TargetStatus},
        fleet::{CatalogView, PeersView},
        wiring::{WiringState, WiringStatus},
    },
    kubernetes::{api::ModelPool, source::SetKey},
    selection::{
        catalog::{DesiredWorker, SnapshotVersion},
        worker::{WorkerFields, WorkerRequest},
    },
};

fn object(replicas: i32) -> SelectorSet {
    let mut set = SelectorSet::new("fleet", Default::default());
    set.spec.replicas = replicas;
    set.metadata.generation = Some(4);
    set
}

fn pod(name: &str, ready: bool) -> SelectorPod {
    SelectorPod {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        ip: Some("10.0.0.1".parse().unwrap()),
        ready,
        terminating: false,
        finished: false,
        revision: None,
        failing: None,
    }
}

fn snapshot(ids: &[u64]) -> Snapshot {
    let worker = |id: &u64| DesiredWorker {
        state: WorkerState::Active,
        request: WorkerRequest {
            worker_id: *id,
            model_name: "m".to_owned(),
            routing_group: "default".to_owned(),
            fields: WorkerFields::default(),
        },
    };
    Snapshot::new(SnapshotVersion { epoch: 2, generation: 7 }, ids.iter().map(worker).collect()).unwrap()
}

fn state(pods: Vec<SelectorPod>) -> SetState {
    SetState {
        key: SetKey::new("ns", "fleet"),
        object: None,
        invalid: None,
        snapshot: None,
        pools: BTreeMap::new(),
        selectors: pods.into(),
    }
}

fn member(name: &str, snapshot: &Snapshot, asleep: &[(u64, &str)]) -> MemberView {
    let not_schedulable: Vec<_> = asleep.iter().map(|(id, why)| (*id, vec![(*why).to_owned()])).collect();
    let status = TargetStatus {
        applied: Some((snapshot.version, snapshot.digest().into())),
        report: PassReport { not_schedulable: not_schedulable.clone(), ..PassReport::default() },
        ..TargetStatus::default()
    };
    MemberView {
        uid: format!("uid-{name}"),
        catalog: CatalogView::new(&status, Some(snapshot.digest())),
        peers: PeersView::new(&WiringStatus::default()),
        wiring: WiringState::Wired,
        not_schedulable,
        refused: false,
    }
}

fn pool(ids: &[u64]) -> PoolOutcome {
    PoolOutcome {
        object: Arc::new(ModelPool::new("llama", Default::default())),
        observed_generation: Some(1),
        accepted: Ok(()),
        listing: false,
        discovered: ids.len(),
        ready: ids.len(),
        draining: 0,
        rejected: 0,
        rejections: Vec::new(),
        sources: Vec::new(),
        warnings: Vec::new(),
        worker_ids: ids.iter().map(|id| (*id, format!("vllm-{id}").into())).collect(),
    }
}

fn find<'a>(
    conditions: &'a [k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    type_: &str,
) -> (&'a str, &'a str) {
    conditions.iter().find(|c| c.type_ == type_).map(|c| (&*c.status, &*c.reason)).unwrap()
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

#[test]
fn a_set_whose_selectors_have_everything_says_so() {
    let snapshot = snapshot(&[1, 2]);
    let state = state(vec![pod("fleet-0", true), pod("fleet-1", true)]);
    let fleet = FleetView {
        members: vec![member("fleet-0", &snapshot, &[]), member("fleet-1", &snapshot, &[])],
        snapshot: Some(snapshot.clone()),
    };
    let object = object(2);
    let reconciled = Reconciled::default();
    let facts = Facts { object: &object, state: &state, fleet: Some(&fleet), reconciled: Some(&reconciled) };
    let status = selector_set_status(facts, None, NOW);
    assert_eq!((&*status.ready_of_replicas, status.replicas, status.observed_generation), ("2/2", 2, Some(4)));
    assert_eq!(find(&status.conditions, condition::CATALOG_SYNCED), ("True", reason::CATALOG_APPLIED));
    assert_eq!(find(&status.conditions, condition::PEERS_WIRED), ("True", reason::ALL_PEERS_WIRED));
    assert_eq!(find(&status.conditions, condition::DEGRADED), ("False", reason::AS_EXPECTED));
    let catalog = status.catalog.as_ref().unwrap();
    assert_eq!((catalog.epoch, catalog.generation, catalog.workers), (2, 7, 2));
    assert_eq!(catalog.owner, "k8s.ns.fleet");
    assert!(status.selectors.iter().all(|s| s.digest.as_deref() == Some(snapshot.digest())));
    // The same facts later are the same status.
    let later = Timestamp::from_second(99).unwrap();
    assert_eq!(selector_set_status(facts, Some(&status), later), status);
}

#[test]
fn a_selector_without_the_newest_catalog_or_peers_is_named() {
    let (old, new) = (snapshot(&[1]), snapshot(&[1, 2]));
    let state = state(vec![pod("fleet-0", true), pod("fleet-1", false)]);
    let mut late = member("fleet-1", &old, &[]);
    late.catalog.state = CatalogState::Behind;
    late.wiring = WiringState::Incomplete;
    let fleet = FleetView { members: vec![member("fleet-0", &new, &[]), late], snapshot: Some(new) };
    let object = object(2);
    let facts = Facts { object: &object, state: &state, fleet: Some(&fleet), reconciled: None };
    let status = selector_set_status(facts, None, NOW);
    assert_eq!(find(&status.conditions, condition::CATALOG_SYNCED), ("False", reason::CATALOG_BEHIND));
    assert_eq!(find(&status.conditions, condition::PEERS_WIRED), ("False", reason::PEERS_MISSING));
    let wired = status.conditions.iter().find(|c| c.type_ == condition::PEERS_WIRED).unwrap();
    assert!(wired.message.contains("fleet-1") && !wired.message.contains("fleet-0"), "{}", wired.message);
    assert_eq!(find(&status.conditions, condition::AVAILABLE), ("True", reason::SELECTORS_READY));
    let pool = model_pool_status(Some(facts), &pool(&[1, 2]), None, NOW);
    assert_eq!(find(&pool.conditions, condition::SYNCED), ("False", reason::CATALOG_BEHIND));
}

#[test]
fn workers_that_take_no_bookings_are_told_with_their_reason() {
    let snapshot = snapshot(&[1, 2, 3]);
    let state = state(vec![pod("fleet-0", true)]);
    let fleet = FleetView {
        members: vec![member("fleet-0", &snapshot, &[(2, "incomplete: no block size"), (3, "other pool")])],
        snapshot: Some(snapshot),
    };
    let object = object(1);
    let facts = Facts { object: &object, state: &state, fleet: Some(&fleet), reconciled: None };
    let status = model_pool_status(Some(facts), &pool(&[1, 2]), None, NOW);
    assert_eq!((status.schedulable, &*status.schedulable_of_discovered), (1, "1/2"));
    assert_eq!(find(&status.conditions, condition::SYNCED), ("True", reason::NOT_SCHEDULABLE));
    let [told] = &status.rejections[..] else { panic!("{:?}", status.rejections) };
    assert_eq!((&*told.name, &*told.reason), ("vllm-2", reason::NOT_SCHEDULABLE));
    assert!(told.message.contains("no block size"));
}

#[test]
fn a_pool_without_a_set_and_one_without_workers_say_why() {
    let mut none = pool(&[]);
    none.discovered = 2;
    none.rejected = 2;
    none.rejections = vec![Rejection { name: "a".to_owned(), reason: "NotReady".to_owned(), message: String::new() }];
    let status = model_pool_status(None, &none, None, NOW);
    assert_eq!(find(&status.conditions, condition::ACCEPTED), ("False", reason::SELECTOR_SET_NOT_FOUND));
    assert_eq!(find(&status.conditions, condition::WORKERS_DISCOVERED), ("False", reason::ALL_REJECTED));
    let mut listing = pool(&[]);
    listing.listing = true;
    let status = model_pool_status(None, &listing, None, NOW);
    assert_eq!(find(&status.conditions, condition::WORKERS_DISCOVERED), ("Unknown", reason::LISTING));
}

#[test]
fn the_label_selector_reads_as_kubectl_reads_it() {
    let mut object = object(1);
    let state = state(Vec::new());
    let text = |object: &SelectorSet| {
        selector_set_status(Facts { object, state: &state, fleet: None, reconciled: None }, None, NOW).label_selector
    };
    assert_eq!(text(&object), "pointsman.dev/selector-set=fleet");
    object.spec.pod_selector = serde_json::from_value(serde_json::json!({
        "matchLabels": { "app": "gateway" },
        "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a", "b"] },
                             { "key": "old", "operator": "DoesNotExist" }]
    }))
    .ok();
    assert_eq!(text(&object), "app=gateway,tier in (a,b),!old");
}
