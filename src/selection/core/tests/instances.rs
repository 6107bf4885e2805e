//! Instances: indexed, never selected.

use super::*;
use crate::selection::{
    instance::{IndexQuery, IndexScores, InstanceRank, InstanceRemoval},
    worker::WorkerState,
};

fn rank(instance_id: u64, dp_rank: u32) -> InstanceRank {
    InstanceRank {
        instance_id,
        dp_rank,
        model_name: "m".to_owned(),
        routing_group: "default".to_owned(),
        block_size: 4,
        endpoint: format!("tcp://w{instance_id}:{}", dp_rank % 65_536),
        replay_endpoint: None,
    }
}

fn removal(instance_id: u64, group: Option<&str>, dp_rank: Option<u32>) -> InstanceRemoval {
    InstanceRemoval { instance_id, model_name: "m".to_owned(), routing_group: group.map(str::to_owned), dp_rank }
}

impl Fixture {
    fn register(&self, rank: InstanceRank) -> Result<(), String> {
        self.core.register_instance(rank).map_err(|e| e.to_string())
    }

    fn unregister(&self, removal: InstanceRemoval) -> Result<(), String> {
        self.core.unregister_instance(&removal).map_err(|e| e.to_string())
    }

    fn query(&self, locals: &[i64]) -> Result<IndexScores, String> {
        self.core.query_index("m", "default", &IndexQuery::Hashes(locals.to_vec())).map_err(|e| e.to_string())
    }

    fn state(&self, worker_id: u64) -> Option<(WorkerState, Lifecycle)> {
        self.core.worker(worker_id).map(|record| (record.state, record.lifecycle))
    }
}

#[test]
fn an_instance_is_indexed_and_never_selected() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    assert_eq!(f.sources.take(), [attach(1, 0)]);
    store(&f.sources.sink(1, 0), 0, &[1, 2]);
    assert_eq!(f.state(1), Some((WorkerState::Indexed, Lifecycle::Unschedulable)));
    let scores = f.query(&[1, 2, 3]).unwrap();
    assert_eq!(scores.scores, [(1, [(0, 8)].into())].into());
    assert_eq!((scores.instances[&1].gpu, scores.instances[&1].longest_matched), (8, 8));

    assert_eq!(f.core.schedulable_workers(), 0);
    assert!(f.reserve("m", "r", &[1, 2]).is_err());
    assert_eq!(f.loads("m"), []);
    // Not as long as it is alone; and not when another could serve.
    f.upsert(worker(2, 1));
    assert_eq!(f.reserve("m", "r", &[1, 2]).unwrap().worker_id, 2);
    assert_eq!(f.loads("m"), [(2, 0, 1)]);
    assert_eq!(f.cached("m", (1, 0), &[1, 2]), Some(2), "its blocks are shown as those of a stranger");
}

#[test]
fn the_partition_lives_as_long_as_its_last_instance() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    f.upsert(worker(2, 1));
    f.core.delete_worker(2).unwrap();
    assert!(f.has_partition("m"));
    f.unregister(removal(1, None, None)).unwrap();
    assert!(!f.has_partition("m"));
    assert_eq!(f.query(&[1]).unwrap_err(), "no indexer for model=m routing_group=default");
    assert_eq!(f.unregister(removal(1, None, None)).unwrap_err(), "instance 1 not found");
}

#[test]
fn ranks_need_not_be_neighbours_and_leave_one_by_one() {
    let f = Fixture::new();
    for dp_rank in [7, 2, 4000] {
        f.register(rank(1, dp_rank)).unwrap();
        store(&f.sources.sink(1, dp_rank), dp_rank, &[1]);
    }
    let ranks = |f: &Fixture| f.query(&[1]).unwrap().scores.get(&1).map(|ranks| ranks.keys().copied().collect());
    assert_eq!(ranks(&f), Some(vec![2, 7, 4000]));
    assert_eq!(f.register(rank(1, 7)).unwrap_err(), "instance 1 dp_rank 7 already registered");
    assert!(f.register(rank(1, 4098)).unwrap_err().contains("dp_rank 2 to 4098"));
    assert!(f.register(rank(3, u32::MAX)).unwrap_err().contains("spans at most 4096 ranks"));
    assert_eq!(
        f.unregister(removal(1, Some("default"), Some(3))).unwrap_err(),
        "instance 1 dp_rank 3 not found",
        "the span has it, no stream"
    );
    for (gone, left) in [(7, Some(vec![2, 4000])), (2, Some(vec![4000]))] {
        f.unregister(removal(1, Some("default"), Some(gone))).unwrap();
        assert_eq!(ranks(&f), left);
    }
    f.unregister(removal(1, None, Some(9))).unwrap();
    assert!(!f.has_partition("m"), "without a group the rank is not looked at");
}

#[test]
fn what_is_elsewhere_or_of_another_block_size_is_refused() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    let elsewhere = InstanceRank { model_name: "n".to_owned(), ..rank(1, 1) };
    assert_eq!(
        f.register(elsewhere).unwrap_err(),
        "instance 1 is already registered for model=m routing_group=default"
    );
    assert_eq!(
        f.register(InstanceRank { block_size: 8, ..rank(2, 0) }).unwrap_err(),
        "block_size mismatch for model=m routing_group=default: existing=4, requested=8"
    );
    assert_eq!(
        f.unregister(removal(1, Some("g"), None)).unwrap_err(),
        "instance 1 is registered for model=m routing_group=default"
    );
    for (change, text) in [
        (InstanceRank { endpoint: "udp://x".to_owned(), block_size: 0, ..rank(5, 0) }, "unsupported scheme `udp`"),
        (
            InstanceRank { replay_endpoint: Some("zzz".to_owned()), ..rank(5, 0) },
            "invalid replay endpoint `zzz`: invalid ZMQ endpoint `zzz`: missing scheme",
        ),
        (InstanceRank { block_size: 0, ..rank(5, 0) }, "block_size must be greater than 0"),
    ] {
        assert!(f.register(change).unwrap_err().contains(text), "{text}");
    }
    assert_eq!(f.state(5), None);
    assert_eq!(Fixture::approximate().register(rank(1, 0)).unwrap_err(), "this service takes no KV events");
}

#[test]
fn a_worker_takes_an_instances_place_and_not_the_other_way_round() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    f.sources.take();
    store(&f.sources.sink(1, 0), 0, &[1]);
    f.upsert(worker(1, 1));
    assert_eq!(f.sources.take(), [], "the stream is the same");
    assert_eq!(
        (f.state(1), f.cached("m", (1, 0), &[1])),
        (Some((WorkerState::Active, Lifecycle::Schedulable)), Some(1))
    );
    assert_eq!(f.register(rank(1, 0)).unwrap_err(), "instance 1 dp_rank 0 already registered");
    assert!(f.register(rank(1, 1)).unwrap_err().starts_with("instance 1 is a worker: "));
    assert!(f.unregister(removal(1, None, None)).unwrap_err().starts_with("instance 1 is a worker: "));
    f.core.delete_worker(1).unwrap();
    assert!(!f.has_partition("m"));
}

#[test]
fn an_instance_and_its_worker_agree_on_the_block_size_alone() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    let record = f.upsert(with(worker(2, 1), json!({"block_size": 8})));
    assert_eq!(record.lifecycle, Lifecycle::Incomplete, "{:?}", record.not_schedulable_reasons);
    let eagle = f.upsert(with(worker(3, 1), json!({"is_eagle": true, "worker_role": "prefill"})));
    assert_eq!(eagle.lifecycle, Lifecycle::Schedulable);
    f.register(rank(4, 0)).unwrap();
    assert_eq!(f.state(4), Some((WorkerState::Indexed, Lifecycle::Unschedulable)));
}

#[test]
fn a_worker_that_an_instance_kept_out_comes_in_when_it_goes() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    f.upsert(with(worker(2, 1), json!({"block_size": 8})));
    assert_eq!(f.state(2), Some((WorkerState::Active, Lifecycle::Incomplete)));
    f.unregister(removal(1, None, None)).unwrap();
    assert_eq!(f.state(2), Some((WorkerState::Active, Lifecycle::Schedulable)));
}

#[test]
fn replay_endpoints_come_and_go_with_their_rank() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    let replay = Some("tcp://w1:99".to_owned());
    f.register(InstanceRank { replay_endpoint: replay.clone(), ..rank(1, 1) }).unwrap();
    assert_eq!(f.sources.take(), [attach(1, 0), Call::Attach(1, 1, "tcp://w1:1".into(), replay)]);
    f.unregister(removal(1, Some("default"), Some(1))).unwrap();
    f.register(rank(1, 1)).unwrap();
    assert_eq!(f.sources.take(), [Call::Detach(1, 1), attach(1, 1)]);
}

#[test]
fn the_one_rank_of_a_worker_is_registered_by_its_single_endpoint() {
    let f = Fixture::new();
    let mut single = with(worker(1, 1), json!({"kv_events_endpoint": "tcp://w1:0"}));
    single.as_object_mut().unwrap().remove("kv_events_endpoints");
    f.upsert(single);
    assert_eq!(f.register(rank(1, 0)).unwrap_err(), "instance 1 dp_rank 0 already registered");
    assert!(f.register(rank(1, 1)).unwrap_err().starts_with("instance 1 is a worker: "));
}

#[test]
fn scores_tell_the_tiers_apart() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    f.register(rank(1, 1)).unwrap();
    store(&f.sources.sink(1, 0), 0, &[1]);
    let blocks: Vec<_> = [1, 2].map(|local| StoredBlock { name: local + 1000, local }).into();
    f.sources.sink(1, 1).store(1, Tier::HostPinned, None, &blocks);
    let scores = f.query(&[1, 2, 3]).unwrap();
    assert_eq!(scores.scores, [(1, [(0, 4)].into())].into(), "what is on the device");
    let held = &scores.instances[&1];
    assert_eq!(held.dp, [(0, 4), (1, 0)].into());
    assert_eq!((held.gpu, held.cpu, held.disk, held.longest_matched), (4, 8, 8, 8));
}

#[test]
fn tokens_are_asked_for_as_their_blocks() {
    let f = Fixture::new();
    f.register(rank(1, 0)).unwrap();
    let tokens: Vec<u32> = (0..9).collect();
    let mut locals = Vec::new();
    let seed = crate::selection::hash::block_seed(None, None);
    crate::selection::hash::block_hashes(&tokens, 4, false, seed, None, &mut locals);
    store(&f.sources.sink(1, 0), 0, &locals);
    let of = |token_ids: Vec<u32>| {
        let query = IndexQuery::Tokens { token_ids, lora_name: None, cache_salt: None };
        f.core.query_index("m", "default", &query).unwrap().scores
    };
    assert_eq!(of(tokens), [(1, [(0, 8)].into())].into());
    assert_eq!(of((1..9).collect()), [].into());
}
