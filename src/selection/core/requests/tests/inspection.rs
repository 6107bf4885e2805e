//! Loads, overlaps and advisory answers.

use super::*;
use crate::selection::request::{OverlapRow, RankLoadRow};

fn query(prompt: PromptInput) -> LoadQuery {
    LoadQuery { model_name: "m".to_owned(), routing_group: "default".to_owned(), prompt, router_config_override: None }
}

fn values(rows: &[RankLoadRow]) -> Vec<(u64, u32, u64, u64, u64)> {
    rows.iter()
        .map(|r| (r.worker_id, r.dp_rank, r.potential_prefill_tokens, r.potential_decode_blocks, r.active_requests))
        .collect()
}

#[test]
fn loads_are_sorted_and_filtered() {
    let bed = Bed::new(approximate(|_| {}));
    bed.worker(2, |worker| worker.model_name = "b".to_owned());
    bed.worker(1, |worker| {
        worker.model_name = "a".to_owned();
        worker.routing_group = "z".to_owned();
        worker.fields.data_parallel_size = Some(2);
    });
    bed.worker(3, |worker| {
        worker.model_name = "a".to_owned();
        worker.routing_group = "y".to_owned();
    });
    let names = |filter: &PartitionFilter| -> Vec<_> {
        let loads = bed.core.loads(filter);
        loads.iter().map(|p| format!("{}/{} {}", p.model_name, p.routing_group, p.loads.len())).collect()
    };
    assert_eq!(names(&PartitionFilter::default()), ["a/y 1", "a/z 2", "b/default 1"]);
    let some = PartitionFilter { model_name: Some("a".to_owned()), routing_group: Some("z".to_owned()) };
    assert_eq!(names(&some), ["a/z 2"]);
    let none = PartitionFilter { model_name: Some("c".to_owned()), routing_group: None };
    assert!(names(&none).is_empty());
}

#[test]
fn many_ranks_are_listed_in_order() {
    let bed = Bed::new(approximate(|_| {}));
    for id in 1..=3 {
        bed.worker(id, |worker| worker.fields.data_parallel_size = Some(300));
    }
    let rows = bed.loads();
    assert_eq!(rows.len(), 900);
    assert!(rows.is_sorted());
}

#[test]
fn potential_loads_add_the_prompt_to_every_rank() {
    let bed = Bed::new(with_events(|_| {}));
    bed.worker(1, |worker| worker.fields.data_parallel_size = Some(2));
    bed.worker(2, |_| {});
    bed.sinks.store(1, 1, Tier::Device, &[1], 0);
    bed.sinks.store(1, 1, Tier::HostPinned, &[1, 2, 3], 1);
    let mut input = prompt(1, 3);
    input.isl_tokens = Some(14);
    let mut on_2 = booking("r", input.clone());
    on_2.steering.pinned_worker = Some(WorkerWithDpRank::new(2, 0));
    bed.reserve(on_2).expect("booked");
    let rows = bed.core.potential_loads(&query(input.clone())).expect("ready");
    assert_eq!(values(&rows), [(1, 0, 14, 3, 0), (1, 1, 14 - 10, 3, 0), (2, 0, 28, 3, 1)]);
    let untracked = RouterConfigOverride { track_prefill_tokens: Some(false), ..Default::default() };
    let rows = bed.core.potential_loads(&LoadQuery { router_config_override: Some(untracked), ..query(input) });
    assert_eq!(values(&rows.expect("ready")), [(1, 0, 0, 3, 0), (1, 1, 0, 3, 0), (2, 0, 14, 3, 1)]);
}

#[test]
fn overlap_scores_are_cumulative_and_name_strangers_that_match() {
    let bed = Bed::with_workers(with_events(|_| {}), 2);
    bed.sinks.store(1, 0, Tier::Device, &[1, 2], 0);
    bed.sinks.store(1, 0, Tier::HostPinned, &[1, 2, 3], 2);
    bed.sinks.store(1, 0, Tier::Disk, &[1, 2, 3, 4], 3);
    bed.sinks.store(1, 0, Tier::External, &[1, 2, 3, 4, 5], 4);
    let stranger = bed.core.partition("m", "default").expect("exists");
    let block = crate::selection::index::StoredBlock { name: 1, local: 1 };
    stranger.index.primary().store(WorkerWithDpRank::new(1, 7), Tier::Device, None, &[block]);
    let scores = bed.core.overlap_scores(&query(prompt(1, 6))).expect("ready");
    assert_eq!((scores.block_size, scores.num_blocks), (4, 6));
    let row = |worker_id, dp_rank, [device, host, disk]: [u32; 3]| OverlapRow {
        worker_id,
        dp_rank,
        device_blocks: device,
        host_pinned_blocks: host,
        disk_blocks: disk,
        host_pinned_extension_blocks: host - device,
        disk_extension_blocks: disk - host,
        shared_beyond_device_blocks: None,
    };
    assert_eq!(scores.workers, [row(1, 0, [2, 3, 5]), row(1, 7, [1, 1, 1]), row(2, 0, [0, 0, 0])]);
}

#[test]
fn queries_are_checked_like_selections() {
    let bed = Bed::new(approximate(|_| {}));
    let nobody = ("unavailable", "no schedulable workers are available".to_owned());
    assert_eq!(text(bed.core.potential_loads(&query(prompt(1, 1)))), nobody);
    assert_eq!(text(bed.core.overlap_scores(&query(prompt(1, 1)))), nobody);
    bed.worker(1, |_| {});
    let missing = ("bad_request", "block_hashes is required without token_ids".to_owned());
    assert_eq!(text(bed.core.potential_loads(&query(PromptInput::default()))), missing);
    assert_eq!(text(bed.core.overlap_scores(&query(PromptInput::default()))), missing);
}
