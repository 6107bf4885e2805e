//! Records as a peer has them, until their source applies its own.

use super::*;
use crate::selection::{
    catalog::{
        CatalogDelta, CatalogError, CatalogSnapshot, DesiredWorker, OwnerSource, OwnerStatus, PeerCatalog,
        SnapshotVersion,
    },
    worker::WorkerState,
};

const OWNER: &str = "file.default";

fn peer(owner: &str, workers: &[Value]) -> PeerCatalog {
    PeerCatalog {
        owner: owner.to_owned(),
        version: SnapshotVersion { epoch: 1, generation: 7 },
        digest: "d".to_owned(),
        workers: desired(workers),
    }
}

fn desired(workers: &[Value]) -> Vec<DesiredWorker> {
    let active = |request: &Value| DesiredWorker {
        state: WorkerState::Active,
        request: serde_json::from_value(request.clone()).unwrap(),
    };
    workers.iter().map(active).collect()
}

fn snapshot(generation: u64, workers: &[Value]) -> CatalogSnapshot {
    let version = SnapshotVersion { epoch: 1, generation };
    CatalogSnapshot { version, digest: "d".to_owned(), workers: desired(workers) }
}

fn ids(f: &Fixture) -> Vec<u64> {
    f.core.workers(&PartitionFilter::default()).iter().map(|record| record.request.worker_id).collect()
}

fn owner(f: &Fixture, name: &str) -> OwnerStatus {
    f.core.catalog().owners.into_iter().find(|owner| owner.owner == name).expect("an owner")
}

#[test]
fn a_peers_records_stand_in_until_their_source_applies_its_own() {
    let f = Fixture::new();
    assert_eq!(f.core.take_catalog(peer(OWNER, &[worker(1, 1), worker(2, 1)])), 2);
    let status = owner(&f, OWNER);
    assert_eq!((status.workers, status.schedulable, status.version.generation), (2, 2, 7));
    assert_eq!((status.digest.as_str(), status.source), ("d", Some(OwnerSource::Peer)));
    // Others may change them, as those of any owner.
    f.core.delete_worker(2).unwrap();
    f.core.tick();
    assert_eq!(ids(&f), [1, 2]);
    let version = SnapshotVersion { epoch: 1, generation: 8 };
    let delta = CatalogDelta { version, base_digest: "d".to_owned(), digest: "e".to_owned(), ..Default::default() };
    let error = f.core.apply_catalog_delta(OWNER, delta).unwrap_err();
    assert!(matches!(error, CatalogError::BaseMismatch { .. }), "{error}: a peer may lack some");
    // The digest is the one the peer told.
    f.core.apply_catalog(OWNER, snapshot(8, &[worker(1, 1)]), None).unwrap();
    assert_eq!((ids(&f), owner(&f, OWNER).source), (vec![1], None));
}

#[test]
fn a_peers_word_is_nothing_against_that_of_a_source() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(1, &[worker(1, 1)]), None).unwrap();
    assert_eq!(f.core.take_catalog(peer(OWNER, &[worker(2, 1)])), 0);
    assert_eq!((ids(&f), owner(&f, OWNER).version.generation), (vec![1], 1));
}

#[test]
fn ids_in_use_and_records_beyond_the_limits_are_not_taken() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    let huge = with(worker(3, 1), json!({"data_parallel_size": 5000}));
    assert_eq!(f.core.take_catalog(peer(OWNER, &[worker(1, 2), worker(2, 1), huge])), 1);
    assert_eq!(ids(&f), [1, 2]);
    assert_eq!((&*f.core.worker(1).unwrap().owner, &*f.core.worker(2).unwrap().owner), ("api", OWNER));
    assert_eq!(f.loads("m"), [(1, 0, 0), (2, 0, 0)]);
}

#[test]
fn a_peers_single_records_are_its_word_until_one_is_registered_here() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    assert_eq!(f.core.take_catalog(peer("api", &[worker(1, 1)])), 0);
    assert_eq!(owner(&f, "api").source, None, "nothing came");
    assert_eq!(f.core.take_catalog(peer("api", &[worker(2, 1)])), 1);
    let status = owner(&f, "api");
    assert_eq!((status.workers, status.source), (2, Some(OwnerSource::Peer)));
    assert_eq!((status.version, status.digest.as_str()), (SnapshotVersion::default(), ""));
    f.upsert(worker(3, 1));
    assert_eq!(owner(&f, "api").source, None);
}
