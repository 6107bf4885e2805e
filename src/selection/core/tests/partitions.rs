//! Lifecycle of workers and partitions.

use super::*;
use crate::selection::index::StoreOutcome;

fn reasons(record: &WorkerRecord) -> Vec<&str> {
    assert_eq!(record.lifecycle, Lifecycle::Incomplete);
    record.not_schedulable_reasons.iter().map(String::as_str).collect()
}

#[test]
fn a_rank_is_in_the_load_tracker_before_the_answer() {
    let f = Fixture::new();
    let record = f.upsert(worker(1, 2));
    assert_eq!(record.lifecycle, Lifecycle::Schedulable);
    assert_eq!(f.loads("m"), [(1, 0, 0), (1, 1, 0)]);
    assert_eq!(f.core.schedulable_workers(), 1);
    assert!(f.reserve("m", "a", &[1]).is_ok());
}

#[test]
fn delete_answers_unschedulable_and_the_partition_goes_with_its_last_worker() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.upsert(worker(2, 1));
    let record = f.core.delete_worker(1).unwrap();
    assert_eq!((record.lifecycle, record.not_schedulable_reasons.len()), (Lifecycle::Unschedulable, 0));
    assert_eq!(f.core.delete_worker(1).unwrap_err().to_string(), "worker 1 not found");
    assert!(f.has_partition("m"));
    f.core.delete_worker(2).unwrap();
    assert!(!f.has_partition("m"));
    assert_eq!(f.core.schedulable_workers(), 0);
    assert_eq!(f.dump(), json!({}));
    assert!(f.core.workers(&PartitionFilter::default()).is_empty());
    assert!(f.core.records.read().is_empty());
}

#[test]
fn records_are_sorted_and_filtered() {
    let f = Fixture::approximate();
    for (id, model, group) in [(3, "b", "x"), (1, "b", "x"), (2, "a", "z"), (9, "a", "y")] {
        f.upsert(json!({"worker_id": id, "model_name": model, "routing_group": group}));
    }
    let ids = |model: Option<&str>, group: Option<&str>| -> Vec<u64> {
        let filter = PartitionFilter { model_name: model.map(Into::into), routing_group: group.map(Into::into) };
        f.core.workers(&filter).iter().map(|record| record.request.worker_id).collect()
    };
    assert_eq!(ids(None, None), [9, 2, 1, 3]);
    assert_eq!(ids(Some("b"), None), [1, 3]);
    assert_eq!(ids(Some("a"), Some("z")), [2]);
    assert!(ids(Some(""), None).is_empty());
}

#[test]
fn a_second_block_size_is_refused_until_the_partition_is_empty() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    let refused = f.upsert(with(worker(2, 1), json!({"block_size": 8})));
    assert_eq!(
        reasons(&refused),
        ["reconciliation failed: block_size mismatch for model=m routing_group=default: existing=4 requested=8"]
    );
    let refused = f.upsert(with(worker(3, 1), json!({"is_eagle": true})));
    assert_eq!(
        reasons(&refused),
        ["reconciliation failed: is_eagle mismatch for model=m routing_group=default: existing=false requested=true"]
    );
    let refused = f.upsert(with(worker(4, 1), json!({"worker_role": "decode"})));
    assert_eq!(
        reasons(&refused),
        ["reconciliation failed: worker_role mismatch for model=m routing_group=default: \
          existing=aggregated requested=decode"]
    );
    assert_eq!(f.loads("m"), [(1, 0, 0)]);
    // The refused ones get their turn when the partition goes; the first one in id order fixes the new one.
    f.core.delete_worker(1).unwrap();
    assert_eq!(f.core.worker(2).unwrap().lifecycle, Lifecycle::Schedulable);
    assert_eq!(f.core.partition("m", "default").unwrap().block_size, 8);
    assert_eq!(f.core.worker(3).unwrap().lifecycle, Lifecycle::Incomplete);
    assert_eq!(f.core.schedulable_workers(), 1);
}

#[test]
fn the_only_worker_may_change_what_it_fixed() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    store(&f.sources.sink(1, 0), 0, &[1, 2]);
    assert_eq!(f.cached("m", (1, 0), &[1, 2]), Some(2));
    let record = f.patch(1, json!({"block_size": 8, "is_eagle": true, "worker_role": "prefill"}));
    assert_eq!(record.lifecycle, Lifecycle::Schedulable);
    let partition = f.core.partition("m", "default").unwrap();
    assert_eq!((partition.block_size, partition.is_eagle()), (8, true));
    assert_eq!(f.cached("m", (1, 0), &[1, 2]), Some(0), "blocks of the old size are gone");
    assert_eq!(f.core.schedulable_workers(), 1);
}

#[test]
fn reasons_are_repaired_without_delete() {
    let f = Fixture::new();
    let record = f.upsert(json!({"worker_id": 7}));
    assert_eq!(
        reasons(&record),
        ["endpoint is required", "block_size must be greater than 0", "kv_events endpoint is required for dp_rank 0"]
    );
    assert!(!f.has_partition("default"));
    let record = f.patch(7, json!({"endpoint": "e", "block_size": 4, "kv_events_endpoint": "nope"}));
    assert_eq!(
        reasons(&record),
        ["reconciliation failed: invalid kv_events endpoint for worker 7 dp_rank 0: \
          invalid ZMQ endpoint `nope`: missing scheme"]
    );
    let record = f.patch(7, json!({"kv_events_endpoint": "tcp://h:1"}));
    assert_eq!(record.lifecycle, Lifecycle::Schedulable);
    assert!(f.core.patch_worker(8, Default::default()).is_err_and(|error| error.reason() == "not_found"));
}

#[test]
fn limits_are_errors_and_change_nothing() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    let request = serde_json::from_value(with(worker(1, 1), json!({"data_parallel_size": 4097}))).unwrap();
    let error = f.core.upsert_worker(request).unwrap_err();
    assert_eq!(error.to_string(), "data_parallel_size 4097 exceeds the maximum 4096");
    assert_eq!(error.reason(), "bad_request");
    let patch = serde_json::from_value(json!({"data_parallel_size": 4000000000_u32})).unwrap();
    assert!(f.core.patch_worker(1, patch).is_err());
    assert_eq!(f.core.worker(1).unwrap().lifecycle, Lifecycle::Schedulable);
    assert_eq!(f.sources.take(), [attach(1, 0)]);
}

// Deviation 2: worker_25 and worker_26 of the corpus.
#[test]
fn rank_ranges_that_do_not_fit_leave_the_partition_alone() {
    let f = Fixture::approximate();
    let base = |id: u64| json!({"worker_id": id, "model_name": "m", "endpoint": "e", "block_size": 4});
    f.upsert(base(1));
    for (start, size) in [(u32::MAX, 2), (u32::MAX, 1), (u32::MAX - 4095, 4096)] {
        let range = json!({"data_parallel_start_rank": start, "data_parallel_size": size});
        let record = f.upsert(with(base(2), range));
        assert!(reasons(&record)[0].contains("exceeds the last usable rank 4294967294"), "{record:?}");
    }
    f.upsert(base(3));
    assert_eq!(f.loads("m"), [(1, 0, 0), (3, 0, 0)]);
    let record = f.upsert(with(base(2), json!({"data_parallel_start_rank": u32::MAX - 1})));
    assert_eq!(record.lifecycle, Lifecycle::Schedulable);
    assert_eq!(f.loads("m"), [(1, 0, 0), (2, u32::MAX - 1, 0), (3, 0, 0)]);
}

// worker_18 of the corpus.
#[test]
fn bookings_stay_on_ranks_that_stay() {
    let f = Fixture::approximate();
    let base = json!({"worker_id": 1, "model_name": "m", "endpoint": "e", "block_size": 4, "data_parallel_size": 2});
    f.upsert(base);
    for (id, dp_rank) in [("r0", 0), ("r1", 1)] {
        let mut request = select_request("m", &[i64::from(dp_rank) + 1]);
        request.selection_id = Some(id.to_owned());
        request.steering.pinned_worker = Some(WorkerWithDpRank::new(1, dp_rank));
        block_on(f.core.select_and_reserve(request)).unwrap();
    }
    f.patch(1, json!({"total_kv_blocks": 5}));
    assert_eq!(f.loads("m"), [(1, 0, 1), (1, 1, 1)]);
    f.patch(1, json!({"data_parallel_size": 1}));
    assert_eq!(f.loads("m"), [(1, 0, 1)]);
    assert_eq!((f.core.live_bookings(), f.core.ended_bookings().rank_left), (1, 1), "its id is free");
    assert_eq!(f.core.free_reservation("r1").unwrap_err().reason(), "not_found");
    f.patch(1, json!({"data_parallel_size": 3}));
    assert_eq!(f.loads("m"), [(1, 0, 1), (1, 1, 0), (1, 2, 0)]);
    assert_eq!((f.cached("m", (1, 0), &[1]), f.cached("m", (1, 1), &[2])), (Some(1), Some(0)));
    f.patch(1, json!({"data_parallel_start_rank": 1, "data_parallel_size": 1}));
    assert_eq!(f.loads("m"), [(1, 1, 0)]);
    assert_eq!(f.core.free_reservation("r0").unwrap_err().reason(), "not_found");
}

#[test]
fn moving_a_worker_leaves_nothing_behind() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.upsert(worker(2, 1));
    store(&f.sources.sink(1, 0), 0, &[1, 2]);
    let mut request = select_request("m", &[1, 2]);
    request.selection_id = Some("a".to_owned());
    assert_eq!(block_on(f.core.select_and_reserve(request)).unwrap().worker_id, 1);
    f.sources.take();
    f.upsert(with(worker(1, 1), json!({"model_name": "n"})));
    assert_eq!(f.sources.take(), [Call::Detach(1, 0), attach(1, 0)]);
    assert_eq!(f.loads("m"), [(2, 0, 0)]);
    assert_eq!(f.loads("n"), [(1, 0, 0)]);
    assert_eq!(f.cached("m", (1, 0), &[1, 2]), None);
    assert_eq!(f.cached("n", (1, 0), &[1, 2]), Some(0));
    assert_eq!(f.core.free_reservation("a").unwrap_err().reason(), "not_found");
    // The last worker of a partition that moves away takes the partition with it.
    f.upsert(with(worker(2, 1), json!({"model_name": "n"})));
    assert!(!f.has_partition("m"));
    assert_eq!(f.core.schedulable_workers(), 2);
    let models: Vec<_> =
        f.core.workers(&PartitionFilter::default()).iter().map(|r| r.request.model_name.clone()).collect();
    assert_eq!(models, ["n", "n"]);
}

#[test]
fn ids_keep_all_their_bits() {
    let f = Fixture::new();
    let ids = [(1 << 53) + 1, (1 << 53) + 3, u64::MAX];
    for id in ids {
        f.upsert(worker(id, 1));
        store(&f.sources.sink(id, 0), 0, &[id]);
    }
    assert_eq!(f.loads("m").iter().map(|row| row.0).collect::<Vec<_>>(), ids);
    let dump = f.dump();
    let mut dumped: Vec<u64> =
        dump["m:default"]["events"].as_array().unwrap().iter().map(|e| e["worker_id"].as_u64().unwrap()).collect();
    dumped.sort_unstable();
    assert_eq!(dumped, ids);
    assert_eq!(f.cached("m", (u64::MAX, 0), &[-1]), Some(1));
}

// No answer names a rank that the last answered update took away.
#[test]
fn no_selection_lands_on_a_removed_rank() {
    use std::sync::atomic::AtomicBool;

    let f = Fixture::approximate();
    let base = |ranks: u32| {
        json!({"worker_id": 1, "model_name": "m", "endpoint": "e", "block_size": 4,
                                   "data_parallel_size": ranks})
    };
    f.upsert(base(4));
    let (bound, done) = (AtomicU64::new(4), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in 0..3_i64 {
            let (f, bound, done) = (&f, &bound, &done);
            scope.spawn(move || {
                let mut count = 0_i64;
                while !done.load(Ordering::Acquire) {
                    count += 1;
                    let before = bound.load(Ordering::Acquire);
                    let id = format!("{client}-{count}");
                    let answer = f.reserve("m", &id, &[client * 1_000_000 + count]);
                    let after = bound.load(Ordering::Acquire);
                    if let Ok(answer) = answer
                        && before == after
                    {
                        assert!(u64::from(answer.dp_rank) < before, "rank {} of {before}", answer.dp_rank);
                    }
                    let _freed_or_gone = f.core.free_reservation(&id);
                }
            });
        }
        for _ in 0..200 {
            for ranks in [2, 4] {
                // While the number is 4, ranks up to 3 may be answered: it grows before and shrinks after.
                if ranks == 4 {
                    bound.store(4, Ordering::Release);
                }
                f.upsert(base(ranks));
                bound.store(u64::from(ranks), Ordering::Release);
            }
        }
        done.store(true, Ordering::Release);
    });
    assert!(f.loads("m").iter().all(|row| row.2 == 0), "{:?}", f.loads("m"));
    assert_eq!(f.core.live_bookings(), 0);
}

#[test]
fn a_full_partition_refuses_and_a_freed_place_is_taken() {
    let f = Fixture::approximate();
    let base = |id: u64| {
        json!({"worker_id": id, "model_name": "m", "endpoint": "e", "block_size": 4,
                                "data_parallel_size": 4096})
    };
    let full = (1..=16).map(|id| f.upsert(base(id))).find(|record| record.lifecycle != Lifecycle::Schedulable);
    let full = full.expect("16 * 4096 ranks exceed 65,000");
    assert_eq!(reasons(&full), ["partition full"]);
    assert_eq!(f.core.schedulable_workers(), 15);
    let partition = f.core.partition("m", "default").unwrap();
    assert_eq!(partition.with_state(|state| state.load.len()).unwrap(), 15 * 4096);
    f.core.delete_worker(1).unwrap();
    f.clock.advance(Duration::from_secs(61));
    f.core.tick();
    assert_eq!(f.core.worker(16).unwrap().lifecycle, Lifecycle::Schedulable);
}

#[test]
fn ranks_that_nobody_registered_give_way_to_a_worker() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    store(&f.sources.sink(1, 0), 0, &[1, 2]);
    let partition = f.core.partition("m", "default").unwrap();
    let name = |rank: u32| WorkerWithDpRank::new(1 + u64::from(rank % 2), 1_000 + rank);
    let block = |rank: u32| [StoredBlock { name: u64::from(rank), local: 10 + u64::from(rank) }];
    let stored = (0..).map(|rank| partition.index.primary().store(name(rank), Tier::Device, None, &block(rank)));
    let room = stored.take_while(|outcome| *outcome == StoreOutcome::Applied).count();
    assert!(room > 60_000, "{room}");
    for id in 2..=300 {
        assert_eq!(f.upsert(worker(id, 1)).lifecycle, Lifecycle::Schedulable, "{id}");
    }
    assert_eq!(f.cached("m", (1, 0), &[1, 2]), Some(2), "what is registered stays");
}

#[test]
fn nothing_is_registered_while_shutting_down() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.core.begin_shutdown();
    let request = serde_json::from_value(worker(2, 1)).unwrap();
    assert_eq!(f.core.upsert_worker(request).unwrap_err().to_string(), "selection service is shutting down");
    assert!(f.core.patch_worker(1, Default::default()).is_err());
    let instance = crate::selection::instance::InstanceRank {
        instance_id: 3,
        dp_rank: 0,
        model_name: "m".to_owned(),
        routing_group: "default".to_owned(),
        block_size: 4,
        endpoint: "tcp://w3:0".to_owned(),
        replay_endpoint: None,
    };
    assert_eq!(f.core.register_instance(instance).unwrap_err().reason(), "unavailable");
    assert!(f.core.delete_worker(1).is_ok());
}

#[test]
fn settings_out_of_range_make_no_core() {
    let bad = || SelectionConfig { router_temperature: f64::NAN, ..SelectionConfig::default() };
    assert!(SelectionCore::try_new_local(bad()).is_err());
    let (clock, sources) = (Arc::new(ManualClock::default()), Arc::new(RecordedSources::default()));
    let policies: Arc<PolicyFactory> = Arc::new(|config, scope| builtin::default_policy(config, scope).into());
    assert!(SelectionCore::try_new_with_policies(bad(), clock, sources, policies).is_err());
}

#[test]
fn blocks_of_ranks_that_came_later_go_with_their_worker() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.upsert(worker(2, 1));
    f.upsert(worker(1, 2));
    store(&f.sources.sink(1, 1), 1, &[1]);
    assert_eq!(f.cached("m", (1, 1), &[1]), Some(1));
    f.core.delete_worker(1).unwrap();
    assert_eq!(f.cached("m", (1, 1), &[1]), None);
}
