//! Owners, snapshots, draining.

use super::*;
use crate::selection::{
    catalog::{
        CatalogDelta, CatalogError, CatalogReport, CatalogSnapshot, DesiredWorker, OwnerStatus, PeerCatalog,
        SnapshotVersion,
    },
    worker::WorkerState,
};

const OWNER: &str = "file.default";

fn desired(request: Value, state: WorkerState) -> DesiredWorker {
    DesiredWorker { state, request: serde_json::from_value(request).unwrap() }
}

fn snapshot(epoch: u64, generation: u64, digest: &str, workers: &[Value]) -> CatalogSnapshot {
    CatalogSnapshot {
        version: SnapshotVersion { epoch, generation },
        digest: digest.to_owned(),
        workers: workers.iter().map(|request| desired(request.clone(), WorkerState::Active)).collect(),
    }
}

fn draining(epoch: u64, generation: u64, digest: &str, workers: &[Value]) -> CatalogSnapshot {
    let mut snapshot = snapshot(epoch, generation, digest, workers);
    snapshot.workers.iter_mut().for_each(|worker| worker.state = WorkerState::Draining);
    snapshot
}

fn lines(report: &CatalogReport) -> Vec<(u64, Option<Lifecycle>, String)> {
    report.workers.iter().map(|line| (line.worker_id, line.lifecycle, line.reasons.join("; "))).collect()
}

fn ids(f: &Fixture) -> Vec<u64> {
    f.core.workers(&PartitionFilter::default()).iter().map(|record| record.request.worker_id).collect()
}

fn owner(f: &Fixture, name: &str) -> Option<OwnerStatus> {
    f.core.catalog().owners.into_iter().find(|owner| owner.owner == name)
}

#[test]
fn a_snapshot_is_the_whole_of_its_owner() {
    let f = Fixture::new();
    assert!(!f.core.catalog_applied());
    f.upsert(worker(9, 1));
    let report = f.core.apply_catalog(OWNER, snapshot(1, 1, "d1", &[worker(2, 1), worker(1, 1)]), None).unwrap();
    assert_eq!(
        lines(&report),
        [(1, Some(Lifecycle::Schedulable), String::new()), (2, Some(Lifecycle::Schedulable), String::new())]
    );
    assert_eq!((report.digest.as_str(), report.version), ("d1", SnapshotVersion { epoch: 1, generation: 1 }));
    assert_eq!(report.instance_id, f.core.instance_id());
    assert!(f.core.catalog_applied());
    assert_eq!(&*f.core.worker(1).unwrap().owner, OWNER);
    let status = f.core.catalog();
    let shown: Vec<_> = status.owners.iter().map(|o| (o.owner.as_str(), o.workers, o.schedulable)).collect();
    assert_eq!(shown, [("api", 1, 1), (OWNER, 2, 2)]);

    f.sources.take();
    let report =
        f.core.apply_catalog(OWNER, snapshot(1, 2, "d2", &[worker(2, 1), json!({"worker_id": 3})]), None).unwrap();
    assert_eq!(report.workers[0].lifecycle, Some(Lifecycle::Schedulable));
    assert_eq!(report.workers[1].lifecycle, Some(Lifecycle::Incomplete));
    assert!(report.workers[1].reasons.contains(&"endpoint is required".to_owned()));
    assert_eq!(ids(&f), [3, 2, 9]);
    assert_eq!(f.sources.take(), [Call::Detach(1, 0)], "worker 2 was left alone");
}

#[test]
fn an_empty_snapshot_removes_its_owner_and_its_version_stays() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(2, 5, "d", &[worker(1, 1)]), None).unwrap();
    let report = f.core.apply_catalog(OWNER, snapshot(2, 6, "none", &[]), None).unwrap();
    assert_eq!((report.digest.as_str(), report.workers.len()), ("none", 0));
    assert!(ids(&f).is_empty() && owner(&f, OWNER).is_none());
    let error = f.core.apply_catalog(OWNER, snapshot(2, 5, "d", &[worker(1, 1)]), None).unwrap_err();
    assert_eq!(
        error,
        CatalogError::Stale {
            offered: SnapshotVersion { epoch: 2, generation: 5 },
            current: SnapshotVersion { epoch: 2, generation: 6 },
            digest: "none".to_owned(),
        }
    );
    f.core.apply_catalog(OWNER, snapshot(3, 1, "d", &[worker(1, 1)]), None).unwrap();
    assert_eq!(ids(&f), [1]);
}

#[test]
fn older_snapshots_and_bad_ones_change_nothing() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(2, 2, "d", &[worker(1, 1)]), None).unwrap();
    for (epoch, generation) in [(2, 1), (1, 9)] {
        let error = f.core.apply_catalog(OWNER, snapshot(epoch, generation, "x", &[]), None).unwrap_err();
        assert_eq!(error.reason(), "stale");
    }
    let twice = snapshot(2, 3, "x", &[worker(5, 1), worker(5, 1)]);
    let error = f.core.apply_catalog(OWNER, twice, None).unwrap_err();
    assert_eq!(error.to_string(), "duplicate worker_id 5");
    for name in ["", "api", "a b", "a/b", &"x".repeat(257)] {
        let error = f.core.apply_catalog(name, snapshot(2, 3, "x", &[]), None).unwrap_err();
        assert_eq!(error.reason(), "invalid", "{name}");
    }
    assert_eq!(ids(&f), [1]);
    // The same pair again is a retry.
    f.core.apply_catalog(OWNER, snapshot(2, 2, "d", &[worker(1, 1)]), None).unwrap();
}

#[test]
fn versions_beyond_the_largest_are_refused() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1)]), None).unwrap();
    let largest = SnapshotVersion::MAX_PART;
    for (epoch, generation, text) in [
        (largest + 1, 1, "epoch 9223372036854775808 is too large: at most 9223372036854775807 (2^63 - 1)"),
        (1, u64::MAX, "generation 18446744073709551615 is too large: at most 9223372036854775807 (2^63 - 1)"),
    ] {
        let error = f.core.apply_catalog(OWNER, snapshot(epoch, generation, "x", &[]), None).unwrap_err();
        assert_eq!((error.reason(), error.to_string().as_str()), ("invalid", text));
        let version = SnapshotVersion { epoch, generation };
        let delta = CatalogDelta { version, base_digest: "d".to_owned(), digest: "x".to_owned(), ..Default::default() };
        assert_eq!(f.core.apply_catalog_delta(OWNER, delta).unwrap_err(), error);
        let taken = PeerCatalog { owner: "b".to_owned(), version, digest: "x".to_owned(), workers: Vec::new() };
        f.core.take_catalog(taken);
        assert_eq!(f.core.catalog.lock().in_force("b"), None, "a peer's word");
    }
    assert_eq!(owner(&f, OWNER).unwrap().version, SnapshotVersion { epoch: 1, generation: 1 });
    f.core.apply_catalog(OWNER, snapshot(largest, largest, "d2", &[]), None).unwrap();
}

#[test]
fn an_equal_digest_means_the_records_are_known() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1)]), None).unwrap();
    f.sources.take();
    let report = f.core.apply_catalog(OWNER, snapshot(1, 2, "d", &[]), None).unwrap();
    assert_eq!(lines(&report), [(1, Some(Lifecycle::Schedulable), String::new())]);
    assert_eq!(report.version.generation, 2);
    assert_eq!((ids(&f), f.sources.take()), (vec![1], vec![]));
    // It restores what the API changed meanwhile, without waiting for a tick.
    f.core.delete_worker(1).unwrap();
    f.core.apply_catalog(OWNER, snapshot(1, 3, "d", &[]), None).unwrap();
    assert_eq!(ids(&f), [1]);
    // No digest is no digest.
    f.core.apply_catalog(OWNER, snapshot(1, 4, "", &[worker(1, 1)]), None).unwrap();
    f.core.apply_catalog(OWNER, snapshot(1, 5, "", &[]), None).unwrap();
    assert!(ids(&f).is_empty());
}

#[test]
fn what_the_api_does_to_an_owned_worker_acts_at_once_and_is_restored() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1), worker(2, 1)]), None).unwrap();
    let record = f.patch(1, json!({"endpoint": "http://elsewhere"}));
    assert_eq!((&*record.owner, record.request.fields.endpoint.as_deref()), (OWNER, Some("http://elsewhere")));
    f.core.delete_worker(2).unwrap();
    assert_eq!(ids(&f), [1]);
    f.core.tick();
    assert_eq!(ids(&f), [1, 2]);
    assert_eq!(f.core.worker(1).unwrap().request.fields.endpoint.as_deref(), Some("http://w1:8000"));
    f.upsert(with(worker(2, 1), json!({"model_name": "n"})));
    assert_eq!(&*f.core.worker(2).unwrap().owner, OWNER);
    f.core.tick();
    assert_eq!(f.core.worker(2).unwrap().request.model_name, "m");
    assert!(!f.has_partition("n"));
    // A worker the API made is nobody else's business.
    f.upsert(worker(3, 1));
    f.core.delete_worker(3).unwrap();
    f.core.tick();
    assert_eq!(ids(&f), [1, 2]);
}

#[test]
fn an_id_has_one_owner() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.core.apply_catalog("k8s.ns.a", snapshot(1, 1, "a", &[worker(2, 1)]), None).unwrap();
    let elsewhere = |id| with(worker(id, 1), json!({"endpoint": "http://elsewhere"}));
    let wanted = snapshot(1, 1, "b", &[elsewhere(1), elsewhere(2), worker(3, 1)]);
    let report = f.core.apply_catalog("k8s.ns.b", wanted, None).unwrap();
    assert_eq!(f.core.worker(1).unwrap().request.fields.endpoint.as_deref(), Some("http://w1:8000"));
    assert_eq!(
        lines(&report),
        [
            (1, None, "rejected: owned by api".to_owned()),
            (2, None, "rejected: owned by k8s.ns.a".to_owned()),
            (3, Some(Lifecycle::Schedulable), String::new()),
        ]
    );
    // Snapshots of one do not remove the other's; a freed id goes to who wants it.
    f.core.apply_catalog("k8s.ns.a", snapshot(1, 2, "-", &[]), None).unwrap();
    f.core.delete_worker(1).unwrap();
    f.core.tick();
    assert_eq!(ids(&f), [1, 2, 3]);
    assert!((1..=3).all(|id| &*f.core.worker(id).unwrap().owner == "k8s.ns.b"));
    f.core.apply_catalog("k8s.ns.b", snapshot(1, 2, "-", &[]), None).unwrap();
    assert!(ids(&f).is_empty());
}

#[test]
fn adopting_takes_over_the_records_without_touching_their_listeners() {
    let f = Fixture::new();
    f.core.apply_catalog("file.old", snapshot(7, 1, "o", &[worker(1, 1), worker(2, 1)]), None).unwrap();
    store(&f.sources.sink(1, 0), 0, &[1]);
    f.sources.take();
    f.core.set_source_error("file.old", Some("it is gone".to_owned()));
    let report = f.core.apply_catalog("file.new", snapshot(1, 1, "n", &[worker(1, 1)]), Some("file.old")).unwrap();
    assert!(report.changes.adopted);
    assert_eq!(lines(&report), [(1, Some(Lifecycle::Schedulable), String::new())]);
    assert_eq!(f.sources.take(), [Call::Detach(2, 0)]);
    assert_eq!(f.cached("m", (1, 0), &[1]), Some(1));
    assert_eq!(ids(&f), [1]);
    assert!(owner(&f, "file.old").is_none());
    assert_eq!(owner(&f, "file.new").unwrap().workers, 1);
    let records = f.core.workers(&PartitionFilter::default());
    assert!(records.iter().all(|record| &*record.owner == "file.new"), "readers see the new owner");
    // Workers of the API can be adopted too.
    f.upsert(worker(5, 1));
    f.core.apply_catalog("file.new", snapshot(1, 2, "n2", &[worker(1, 1), worker(5, 1)]), Some("api")).unwrap();
    assert_eq!(&*f.core.worker(5).unwrap().owner, "file.new");
}

#[test]
fn deltas_start_from_the_digest_in_force() {
    let f = Fixture::new();
    let delta = |generation, base: &str, digest: &str, upsert: &[Value], delete: &[u64]| CatalogDelta {
        version: SnapshotVersion { epoch: 1, generation },
        base_digest: base.to_owned(),
        digest: digest.to_owned(),
        upsert: upsert.iter().map(|request| desired(request.clone(), WorkerState::Active)).collect(),
        delete: delete.to_vec(),
    };
    let error = f.core.apply_catalog_delta(OWNER, delta(1, "d1", "d2", &[], &[])).unwrap_err();
    assert_eq!(error, CatalogError::BaseMismatch { base: "d1".into(), current: String::new() });
    assert!(f.core.apply_catalog_delta(OWNER, delta(1, "", "d2", &[], &[])).is_err(), "nothing is in force");
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d1", &[worker(1, 1), worker(2, 1)]), None).unwrap();
    let report = f.core.apply_catalog_delta(OWNER, delta(2, "d1", "d2", &[worker(3, 1)], &[1, 77])).unwrap();
    assert_eq!(lines(&report), [(3, Some(Lifecycle::Schedulable), String::new())]);
    assert_eq!(report.digest, "d2");
    assert_eq!(ids(&f), [2, 3]);
    assert!(f.core.apply_catalog_delta(OWNER, delta(3, "d1", "d3", &[], &[2])).is_err());
    assert_eq!(f.core.apply_catalog_delta(OWNER, delta(1, "d2", "d3", &[], &[2])).unwrap_err().reason(), "stale");
    assert!(f.core.apply_catalog_delta(OWNER, delta(3, "d2", "d3", &[worker(2, 1)], &[2])).is_err());
    assert_eq!(ids(&f), [2, 3]);
    f.core.apply_catalog_delta(OWNER, delta(3, "d2", "d3", &[], &[2, 3])).unwrap();
    assert!(ids(&f).is_empty() && owner(&f, OWNER).is_none());
}

#[test]
fn a_pool_may_change_its_block_size_in_one_snapshot() {
    let f = Fixture::new();
    let resized = |id| with(worker(id, 1), json!({"block_size": 8}));
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d1", &[worker(1, 1), worker(2, 1)]), None).unwrap();
    // New ids: the new workers wait for the old ones to go, within the pass.
    let report = f.core.apply_catalog(OWNER, snapshot(1, 2, "d2", &[resized(3), resized(4)]), None).unwrap();
    assert!(report.workers.iter().all(|line| line.lifecycle == Some(Lifecycle::Schedulable)), "{report:?}");
    // The same ids: each is refused until the last has left.
    let report = f.core.apply_catalog(OWNER, snapshot(1, 3, "d3", &[worker(3, 1), worker(4, 1)]), None).unwrap();
    assert!(report.workers.iter().all(|line| line.lifecycle == Some(Lifecycle::Schedulable)), "{report:?}");
    assert_eq!(f.core.partition("m", "default").unwrap().block_size, 4);
    assert_eq!(f.loads("m"), [(3, 0, 0), (4, 0, 0)]);
}

#[test]
fn one_bad_record_does_not_stop_the_others() {
    let f = Fixture::new();
    let huge = with(worker(1, 1), json!({"data_parallel_size": 5000}));
    let report = f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[huge, worker(2, 1)]), None).unwrap();
    assert_eq!(
        lines(&report),
        [
            (1, None, "rejected: data_parallel_size 5000 exceeds the maximum 4096".to_owned()),
            (2, Some(Lifecycle::Schedulable), String::new()),
        ]
    );
    assert_eq!(ids(&f), [2]);
}

#[test]
fn draining_takes_no_booking_and_retires_with_the_last_one() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1)]), None).unwrap();
    f.reserve("m", "a", &[1]).unwrap();
    store(&f.sources.sink(1, 0), 0, &[1]);
    f.sources.take();
    let report = f.core.apply_catalog(OWNER, draining(1, 2, "d2", &[worker(1, 1)]), None).unwrap();
    assert_eq!(lines(&report), [(1, Some(Lifecycle::Draining), String::new())]);
    assert_eq!(f.core.schedulable_workers(), 0);
    assert_eq!(f.reserve("m", "b", &[1]).unwrap_err().to_string(), "no schedulable workers are available");
    f.clock.advance(Duration::from_secs(1));
    f.core.tick();
    assert_eq!(f.loads("m"), [(1, 0, 1)], "listener, index and booking stay");
    assert_eq!(f.sources.take(), []);
    assert_eq!(f.dump()["m:default"]["events"].as_array().unwrap().len(), 1);
    f.core.prefill_complete("a").unwrap();
    f.core.free_reservation("a").unwrap();
    f.clock.advance(Duration::from_secs(1));
    f.core.tick();
    assert_eq!(f.sources.take(), [Call::Detach(1, 0)]);
    assert!(ids(&f).is_empty() && !f.has_partition("m"));
    // What its owner wants and the digest are as they were; it does not come back by itself.
    let report = f.core.apply_catalog(OWNER, draining(1, 3, "d2", &[]), None).unwrap();
    assert_eq!(lines(&report), [(1, Some(Lifecycle::Unschedulable), String::new())]);
    f.clock.advance(Duration::from_secs(61));
    f.core.tick();
    assert!(ids(&f).is_empty());
    // Unless it is wanted again.
    let report = f.core.apply_catalog(OWNER, snapshot(1, 4, "d3", &[worker(1, 1)]), None).unwrap();
    assert_eq!(lines(&report), [(1, Some(Lifecycle::Schedulable), String::new())]);
}

#[test]
fn a_worker_that_stops_draining_keeps_its_blocks() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1), worker(2, 1)]), None).unwrap();
    store(&f.sources.sink(1, 0), 0, &[1]);
    f.reserve("m", "a", &[1]).unwrap();
    f.sources.take();
    let mut mixed = snapshot(1, 2, "d2", &[worker(1, 1), worker(2, 1)]);
    mixed.workers[0].state = WorkerState::Draining;
    f.core.apply_catalog(OWNER, mixed, None).unwrap();
    let answer = f.reserve("m", "b", &[1]).unwrap();
    assert_eq!(answer.worker_id, 2, "a draining worker takes no booking, whatever it has cached");
    f.core.apply_catalog(OWNER, snapshot(1, 3, "d3", &[worker(1, 1), worker(2, 1)]), None).unwrap();
    assert_eq!((f.cached("m", (1, 0), &[1]), f.sources.take()), (Some(1), vec![]));
    assert_eq!(f.core.schedulable_workers(), 2);
    assert_eq!(f.loads("m"), [(1, 0, 1), (2, 0, 1)]);
    ["a", "b"].iter().for_each(|id| f.core.free_reservation(id).unwrap());
    f.clock.advance(Duration::from_secs(1));
    f.core.tick();
    assert_eq!(ids(&f), [1, 2], "idle, and drained no more");
}

#[test]
fn a_source_that_is_behind_says_why() {
    let f = Fixture::new();
    f.core.set_source_error(OWNER, Some("workers.yaml:3: unknown field".to_owned()));
    assert_eq!(owner(&f, OWNER).unwrap().source_error.as_deref(), Some("workers.yaml:3: unknown field"));
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1)]), None).unwrap();
    assert!(owner(&f, OWNER).unwrap().source_error.is_some(), "only its source knows");
    f.core.set_source_error(OWNER, None);
    assert_eq!(owner(&f, OWNER).unwrap().source_error, None);
    f.core.set_source_error("a/b", Some("x".to_owned()));
    f.core.set_source_error("file.unknown", None);
    assert_eq!(f.core.catalog().owners.len(), 1);
}

#[test]
fn selections_and_readers_do_not_wait_for_a_large_snapshot() {
    let f = Fixture::approximate();
    let base =
        |id: u64| json!({"worker_id": id, "model_name": format!("m{}", id % 4), "endpoint": "e", "block_size": 4});
    f.upsert(with(base(1_000_000), json!({"model_name": "m0"})));
    let workers: Vec<_> = (0..2_000).map(base).collect();
    let whole = snapshot(1, 1, "d", &workers);
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| f.core.apply_catalog(OWNER, whole, None).unwrap());
        let mut count = 0_u64;
        while !applying.is_finished() {
            let id = format!("r{count}");
            f.reserve("m0", &id, &[1]).unwrap();
            f.core.free_reservation(&id).unwrap();
            count += 1;
        }
        assert_eq!(applying.join().unwrap().workers.len(), 2_000);
        assert!(count > 0);
    });
    assert_eq!(f.core.schedulable_workers(), 2_001);
}

/// How many blocked workers are looked at while an owner whose workers have `own` partitions leaves.
fn looked_at(own: u64, blocked: u64) -> usize {
    let f = Fixture::new();
    let sized = |id: u64, block_size: u32| {
        let mut request = worker(id, 1);
        request["block_size"] = json!(block_size);
        request
    };
    let strangers: Vec<_> = (0..=blocked).map(|id| sized(1000 + id, if id == 0 { 4 } else { 8 })).collect();
    let report = f.core.apply_catalog("b", snapshot(1, 1, "d", &strangers), None).unwrap();
    let kept_out = report.workers.iter().filter(|line| line.lifecycle == Some(Lifecycle::Incomplete)).count();
    assert_eq!(kept_out as u64, blocked);
    let apart: Vec<_> = (0..own)
        .map(|id| {
            let mut request = worker(id, 1);
            request["model_name"] = json!(format!("m{id}"));
            request
        })
        .collect();
    f.core.apply_catalog("a", snapshot(1, 1, "d", &apart), None).unwrap();
    let before = f.core.catalog.lock().blocked.handed_out;
    f.core.apply_catalog("a", snapshot(1, 2, "none", &[]), None).unwrap();
    let after = f.core.catalog.lock().blocked.handed_out;
    assert_eq!(f.core.partitions(&PartitionFilter::default()).len(), 1);
    after - before
}

#[test]
fn blocked_workers_are_looked_at_once_however_many_partitions_go() {
    assert_eq!(looked_at(10, 300), 300);
    assert_eq!(looked_at(200, 300), 300);
}

#[test]
fn those_that_a_partition_kept_out_are_found_wherever_it_was_left_by_the_last() {
    let f = Fixture::new();
    let sized = |id: u64, model: &str, block_size: u32| {
        let mut request = worker(id, 1);
        (request["model_name"], request["block_size"]) = (json!(model), json!(block_size));
        request
    };
    f.core.apply_catalog("a", snapshot(1, 1, "d", &[sized(1, "x", 4), sized(2, "y", 4)]), None).unwrap();
    let kept_out = [sized(11, "x", 8), sized(12, "y", 8), sized(13, "x", 8)];
    f.core.apply_catalog("b", snapshot(1, 1, "d", &kept_out), None).unwrap();
    assert_eq!(owner(&f, "b").unwrap().schedulable, 0);
    // One that is kept out elsewhere now no longer waits for the first partition.
    f.core
        .apply_catalog("b", snapshot(1, 2, "d2", &[sized(11, "x", 8), sized(12, "y", 8), sized(13, "y", 8)]), None)
        .unwrap();
    f.core.apply_catalog("a", snapshot(1, 2, "d2", &[sized(2, "y", 4)]), None).unwrap();
    assert_eq!(owner(&f, "b").unwrap().schedulable, 1);
    f.core.apply_catalog("a", snapshot(1, 3, "none", &[]), None).unwrap();
    assert_eq!(owner(&f, "b").unwrap().schedulable, 3);
}

#[test]
fn a_report_counts_what_is_new_or_another_and_what_is_gone() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1), worker(2, 1), worker(5, 1)]), None).unwrap();
    let mut next = snapshot(1, 2, "d2", &[worker(1, 1), worker(3, 1), worker(5, 2)]);
    next.workers[0].state = WorkerState::Draining;
    let changes = f.core.apply_catalog(OWNER, next, None).unwrap().changes;
    assert_eq!((changes.upserted, changes.deleted, changes.adopted), (3, 1, false));
    let delta = CatalogDelta {
        version: SnapshotVersion { epoch: 1, generation: 3 },
        base_digest: "d2".to_owned(),
        digest: "d3".to_owned(),
        upsert: snapshot(1, 3, "", &[worker(3, 1), worker(4, 1), worker(6, 1)]).workers,
        delete: vec![5, 99],
    };
    let changes = f.core.apply_catalog_delta(OWNER, delta.clone()).unwrap().changes;
    assert_eq!((changes.upserted, changes.deleted), (2, 1));
    assert_eq!(owner(&f, OWNER).unwrap().digest, "d3");
    let endless = CatalogDelta { base_digest: "d3".to_owned(), digest: "x".repeat(1 << 20), ..delta };
    assert_eq!(f.core.apply_catalog_delta(OWNER, endless).unwrap_err().reason(), "invalid");
}

#[test]
fn a_worker_that_one_which_drains_keeps_out_comes_in_when_it_has_retired() {
    let f = Fixture::new();
    f.core.apply_catalog(OWNER, draining(1, 1, "d", &[worker(1, 1)]), None).unwrap();
    f.core.apply_catalog(OWNER, snapshot(1, 2, "e", &[worker(1, 1)]), None).unwrap();
    f.upsert(with(worker(2, 1), json!({"block_size": 8})));
    assert_eq!(f.core.worker(2).unwrap().lifecycle, Lifecycle::Incomplete);
    f.core.apply_catalog(OWNER, draining(1, 3, "f", &[worker(1, 1)]), None).unwrap();
    f.clock.advance(Duration::from_secs(1));
    f.core.tick();
    assert_eq!(ids(&f), [2]);
    assert_eq!(f.core.worker(2).unwrap().lifecycle, Lifecycle::Schedulable);
}

#[test]
fn a_partition_of_draining_workers_takes_no_request() {
    let f = Fixture::new();
    f.upsert(with(worker(9, 1), json!({"model_name": "other"})));
    f.core.apply_catalog(OWNER, snapshot(1, 1, "d", &[worker(1, 1)]), None).unwrap();
    f.reserve("m", "a", &[1]).unwrap();
    f.core.apply_catalog(OWNER, draining(1, 2, "e", &[worker(1, 1)]), None).unwrap();
    let refused = f.reserve("m", "b", &[1]).unwrap_err();
    assert_eq!(refused.to_string(), "no schedulable workers for model=m routing_group=default");
    assert_eq!(f.core.schedulable_workers(), 1);
}

#[test]
fn an_owner_takes_away_its_own_records_only() {
    let f = Fixture::new();
    f.core.apply_catalog("file.a", snapshot(1, 1, "a", &[worker(1, 1)]), None).unwrap();
    f.core.apply_catalog("file.b", snapshot(1, 1, "b", &[worker(1, 1), worker(2, 1)]), None).unwrap();
    f.core.apply_catalog("file.b", snapshot(1, 2, "b2", &[]), None).unwrap();
    assert_eq!(ids(&f), [1]);
    assert_eq!(&*f.core.worker(1).unwrap().owner, "file.a");
}
