//! Listeners and what they write.

use super::*;
use crate::selection::{
    index::{RemoveOutcome, StoreOutcome},
    testing::Lines,
    trust::Trust,
};

// DELETE clears, an unchanged upsert keeps, a changed endpoint resets that rank only.
#[test]
fn ranks_with_unchanged_endpoints_keep_listener_and_blocks() {
    let f = Fixture::new();
    f.upsert(worker(1, 2));
    assert_eq!(f.sources.take(), [attach(1, 0), attach(1, 1)]);
    let sinks = [f.sources.sink(1, 0), f.sources.sink(1, 1)];
    sinks.iter().zip(0..).for_each(|(sink, rank)| store(sink, rank, &[1, 2]));
    for change in
        [json!({}), json!({"endpoint": "http://other"}), json!({"taints": ["x"]}), json!({"total_kv_blocks": 9})]
    {
        f.patch(1, change.clone());
        f.upsert(with(worker(1, 2), change));
        assert_eq!(f.sources.take(), []);
    }
    assert_eq!((f.cached("m", (1, 0), &[1, 2]), f.cached("m", (1, 1), &[1, 2])), (Some(2), Some(2)));

    f.patch(1, json!({"kv_events_endpoints": {"0": "tcp://w1:0", "1": "tcp://w1:77"}}));
    assert_eq!(f.sources.take(), [Call::Detach(1, 1), Call::Attach(1, 1, "tcp://w1:77".into(), None)]);
    assert_eq!((f.cached("m", (1, 0), &[1, 2]), f.cached("m", (1, 1), &[1, 2])), (Some(2), Some(0)));
    store(&sinks[1], 1, &[1]);
    assert_eq!(f.cached("m", (1, 1), &[1]), Some(0), "the old listener writes nothing more");
    store(&f.sources.sink(1, 1), 1, &[1]);
    assert_eq!(f.cached("m", (1, 1), &[1]), Some(1));
}

#[test]
fn a_changed_replay_endpoint_starts_the_rank_over() {
    let f = Fixture::new();
    f.upsert(worker(1, 2));
    f.sources.take();
    (0..2).for_each(|rank| store(&f.sources.sink(1, rank), rank, &[1]));
    f.patch(1, json!({"replay_endpoints": {"1": "tcp://w1:99"}}));
    assert_eq!(
        f.sources.take(),
        [Call::Detach(1, 1), Call::Attach(1, 1, "tcp://w1:1".into(), Some("tcp://w1:99".into()))]
    );
    assert_eq!((f.cached("m", (1, 0), &[1]), f.cached("m", (1, 1), &[1])), (Some(1), Some(0)));
}

#[test]
fn shrinking_drops_the_blocks_of_ranks_that_go() {
    let f = Fixture::new();
    f.upsert(worker(1, 3));
    (0..3).for_each(|rank| store(&f.sources.sink(1, rank), rank, &[1]));
    f.sources.take();
    f.patch(1, json!({"data_parallel_size": 1}));
    assert_eq!(f.sources.take(), [Call::Detach(1, 1), Call::Detach(1, 2)]);
    assert_eq!(f.cached("m", (1, 0), &[1]), Some(1));
    assert_eq!(f.dump()["m:default"]["events"].as_array().unwrap().len(), 1);
}

#[test]
fn a_worker_that_breaks_loses_everything_and_starts_empty() {
    let f = Fixture::new();
    f.upsert(worker(1, 2));
    f.upsert(worker(2, 1));
    store(&f.sources.sink(1, 0), 0, &[1]);
    f.sources.take();
    assert_eq!(f.patch(1, json!({"endpoint": ""})).lifecycle, Lifecycle::Incomplete);
    assert_eq!(f.sources.take(), [Call::Detach(1, 0), Call::Detach(1, 1)]);
    assert_eq!(f.cached("m", (1, 0), &[1]), None);
    assert_eq!(f.patch(1, json!({"endpoint": "e"})).lifecycle, Lifecycle::Schedulable);
    assert_eq!(f.sources.take(), [attach(1, 0), attach(1, 1)]);
    assert_eq!(f.cached("m", (1, 0), &[1]), Some(0));
}

/// Checks, when a rank is detached, that selection lost it before.
struct OrderedSources(RecordedSources);

impl EventSources for OrderedSources {
    fn attach(&self, source: EventSource, sink: EventSink) {
        self.0.attach(source, sink);
    }

    fn detach(&self, worker_id: u64, dp_rank: u32) {
        assert!(!self.0.is_selectable(worker_id, dp_rank), "rank {dp_rank} was detached while selectable");
        self.0.detach(worker_id, dp_rank);
    }
}

#[test]
fn selection_loses_a_rank_before_its_listener_goes() {
    let sources = Arc::new(OrderedSources(RecordedSources::default()));
    let clock = Arc::new(ManualClock::default());
    let core = SelectionCore::try_new(SelectionConfig::default(), clock, sources.clone()).unwrap();
    *sources.0.core.lock() = Arc::downgrade(&core);
    let upsert = |request| core.upsert_worker(serde_json::from_value(request).unwrap()).unwrap();
    upsert(worker(1, 4));
    upsert(with(worker(1, 4), json!({"data_parallel_size": 2})));
    upsert(with(worker(1, 4), json!({"model_name": "n"})));
    upsert(with(worker(1, 4), json!({"endpoint": null})));
    upsert(worker(1, 4));
    core.delete_worker(1).unwrap();
    let detached = sources.0.take().iter().filter(|call| matches!(call, Call::Detach(..))).count();
    assert_eq!(detached, 2 + 2 + 4 + 4);
}

#[test]
fn ranks_named_by_events_alone_are_indexed_and_go_with_the_worker() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.upsert(worker(2, 1));
    let sink = f.sources.sink(1, 0);
    store(&sink, 7, &[1, 2]);
    store(&sink, u32::MAX, &[1]);
    assert_eq!(f.cached("m", (1, 7), &[1, 2]), Some(2));
    assert_eq!(f.cached("m", (1, u32::MAX), &[1]), Some(1));
    assert_eq!(f.loads("m"), [(1, 0, 0), (2, 0, 0)]);
    let answer = f.reserve("m", "a", &[1, 2]).unwrap();
    assert_eq!((answer.dp_rank, answer.overlap.gpu), (0, 0), "never selected, never credited");
    f.core.delete_worker(1).unwrap();
    assert_eq!(f.dump()["m:default"]["events"], json!([]));
}

#[test]
fn ranks_named_by_events_alone_are_bounded() {
    let f = Fixture::new();
    f.upsert(worker(1, 2));
    let block = [StoredBlock { name: 1, local: 1 }];
    let outcomes: Vec<_> =
        (2..200).map(|rank| f.sources.sink(1, rank % 2).store(rank, Tier::Device, None, &block)).collect();
    assert_eq!(outcomes.iter().filter(|&&outcome| outcome == StoreOutcome::Applied).count(), 64);
    assert!(outcomes[64..].iter().all(|&outcome| outcome == StoreOutcome::Full));
    // Known ones go on.
    assert_eq!(f.sources.sink(1, 0).store(2, Tier::HostPinned, None, &block), StoreOutcome::Applied);
}

#[test]
fn engine_local_rank_numbers_mean_the_rank_of_the_stream() {
    let f = Fixture::new();
    f.upsert(json!({"worker_id": 1, "model_name": "m", "endpoint": "e", "block_size": 4, "data_parallel_size": 2,
                    "data_parallel_start_rank": 8, "kv_events_endpoints": {"8": "tcp://h:8", "9": "tcp://h:9"}}));
    store(&f.sources.sink(1, 8), 8, &[1]);
    store(&f.sources.sink(1, 9), 1, &[1, 2]);
    assert_eq!((f.cached("m", (1, 8), &[1, 2]), f.cached("m", (1, 9), &[1, 2])), (Some(1), Some(2)));
    // On another stream the number is not that rank's.
    store(&f.sources.sink(1, 8), 1, &[3]);
    assert_eq!((f.cached("m", (1, 9), &[3]), f.cached("m", (1, 1), &[3])), (Some(0), Some(1)));
}

#[test]
fn reset_empties_what_the_stream_wrote_and_trust_is_by_rank() {
    let f = Fixture::new();
    f.upsert(worker(1, 2));
    let (first, second) = (f.sources.sink(1, 0), f.sources.sink(1, 1));
    store(&first, 0, &[1]);
    store(&first, 5, &[1]);
    store(&second, 1, &[1]);
    let partition = f.core.partition("m", "default").unwrap();
    first.set_trust(Trust::Partial);
    assert_eq!(partition.trust(WorkerWithDpRank::new(1, 0)), Trust::Partial);
    assert_eq!(partition.trust(WorkerWithDpRank::new(1, 1)), Trust::Unknown);
    first.reset();
    assert_eq!(f.cached("m", (1, 0), &[1]), Some(0));
    assert_eq!(f.cached("m", (1, 5), &[1]), None);
    assert_eq!(f.cached("m", (1, 1), &[1]), Some(1));
    first.set_trust(Trust::Unknown);
    assert_eq!(partition.trust(WorkerWithDpRank::new(1, 0)), Trust::Unknown);
    first.set_trust(Trust::Partial);
    f.patch(1, json!({"kv_events_endpoints": {"0": "tcp://w1:9", "1": "tcp://w1:1"}}));
    assert_eq!(partition.trust(WorkerWithDpRank::new(1, 0)), Trust::Unknown, "a new listener knows nothing");
}

#[test]
fn a_closed_sink_writes_nothing() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.upsert(worker(2, 1));
    let sink = f.sources.sink(1, 0);
    store(&sink, 0, &[1]);
    f.core.delete_worker(1).unwrap();
    assert!(sink.is_closed());
    let block = [StoredBlock { name: 1, local: 1 }];
    assert_eq!(sink.store(0, Tier::Device, None, &block), StoreOutcome::Full);
    assert_eq!(sink.remove(0, Tier::Device, &[1]), RemoveOutcome { removed: 0, unknown: 1 });
    sink.clear(0);
    sink.reset();
    sink.set_trust(Trust::Partial);
    assert_eq!(f.dump()["m:default"]["events"], json!([]));
    // The same worker again: nothing of its former life.
    f.upsert(worker(1, 1));
    assert_eq!(f.cached("m", (1, 0), &[1]), Some(0));
    store(&sink, 0, &[1]);
    assert_eq!(f.cached("m", (1, 0), &[1]), Some(0));
}

// The close of a sink waits for the write in progress, so that blocks cannot appear after a worker has left.
#[test]
fn writers_and_deletes_race_cleanly() {
    let f = Fixture::new();
    f.upsert(worker(2, 1));
    for round in 0..50 {
        f.upsert(worker(1, 1));
        let sink = f.sources.sink(1, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The limit only matters to a core that never closes the sink.
                for _ in 0..1_000_000 {
                    if sink.is_closed() {
                        break;
                    }
                    store(&sink, 0, &[1, 2, 3]);
                }
            });
            if round % 2 == 0 {
                while f.cached("m", (1, 0), &[1]) == Some(0) {
                    std::thread::yield_now();
                }
            }
            f.core.delete_worker(1).unwrap();
            assert_eq!(f.dump()["m:default"]["events"], json!([]));
        });
        assert_eq!(f.dump()["m:default"]["events"], json!([]));
    }
}

#[test]
fn an_endpoint_that_serves_two_ranks_is_warned_of() {
    let f = Fixture::new();
    let shared = with(worker(2, 1), json!({"kv_events_endpoints": {"0": "tcp://w1:0"}}));
    assert_eq!(Lines::of(|| drop(f.upsert(worker(1, 1)))), 0);
    assert_eq!(Lines::of(|| drop(f.upsert(shared.clone()))), 1);
    f.core.delete_worker(2).unwrap();
    f.patch(1, json!({"kv_events_endpoints": {"0": "tcp://w1:9"}}));
    assert_eq!(Lines::of(|| drop(f.upsert(shared))), 0, "nobody else has it any more");
    f.core.delete_worker(2).unwrap();
    f.patch(1, json!({"kv_events_endpoints": {"0": "tcp://w1:0"}}));
    f.core.delete_worker(1).unwrap();
    assert_eq!(Lines::of(|| drop(f.upsert(worker(1, 1)))), 0);
}

#[test]
fn a_worker_that_comes_back_is_not_trusted_for_what_it_was() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    f.upsert(worker(2, 1));
    f.sources.sink(1, 0).set_trust(Trust::Partial);
    f.core.delete_worker(1).unwrap();
    let partition = f.core.partition("m", "default").unwrap();
    assert_eq!(partition.trust(WorkerWithDpRank::new(1, 0)), Trust::Unknown);
}
