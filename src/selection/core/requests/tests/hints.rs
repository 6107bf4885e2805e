//! KV hints of a booking.

use super::*;

/// Workers 1, 2 and both ranks of 3 are decode workers, 4 is not; they hold 3, 1, 2, 3 and 4 blocks.
fn bed(config: SelectionConfig) -> Bed {
    let bed = Bed::new(config);
    for id in 1..=4 {
        hinting(&bed, id, |_| {});
    }
    let content = [11, 12, 13, 14];
    for (worker, rank, blocks) in [(1, 0, 3), (2, 0, 1), (3, 0, 2), (3, 1, 3), (4, 0, 4)] {
        bed.sinks.store(worker, rank, Tier::Device, &content[..blocks], 0);
    }
    bed
}

fn hinting(bed: &Bed, id: u64, change: impl FnOnce(&mut WorkerFields)) {
    bed.worker(id, |worker| {
        let ranks = if id == 3 { 2 } else { 1 };
        worker.fields.data_parallel_size = Some(ranks);
        worker.fields.router_hint_worker_type = Some(if id == 4 { "prefill" } else { "decode" }.to_owned());
        worker.fields.router_hint_source_control_endpoints =
            (0..ranks).map(|rank| (rank, format!("tcp://w{id}:560{rank}"))).collect();
        change(&mut worker.fields);
    });
}

/// (endpoint, blocks) of the hint of a booking pinned to a rank.
fn hint(bed: &Bed, worker: u64, rank: u32, id: &str) -> Option<(String, usize)> {
    let mut request = booking(id, prompt(11, 5));
    request.steering.pinned_worker = Some(WorkerWithDpRank::new(worker, rank));
    let answer = bed.reserve(request).expect("booked");
    bed.core.free_reservation(id).expect("freed");
    let hint = answer.kv_hint?;
    assert_eq!((hint.protocol_version, &*hint.message_id, hint.actions.len()), ("0.1", id, 1));
    let action = &hint.actions[0];
    assert_eq!((action.action_id, action.action_type, action.action_version), ("a1", "kv.fetch", "1.0"));
    Some((action.payload.source_control_endpoint.clone(), action.payload.block_hashes.len()))
}

fn from(endpoint: &str, blocks: usize) -> Option<(String, usize)> {
    Some((endpoint.to_owned(), blocks))
}

#[test]
fn the_longest_prefix_of_the_same_type_wins_and_ties_go_to_the_smallest_rank() {
    let bed = bed(with_events(|_| {}));
    assert_eq!(hint(&bed, 2, 0, "h2"), from("tcp://w1:5600", 3));
    assert_eq!(hint(&bed, 1, 0, "h1"), None, "nobody of its type holds more");
    assert_eq!(hint(&bed, 3, 0, "h30"), from("tcp://w1:5600", 3));
    assert_eq!(hint(&bed, 4, 0, "h4"), None);
    let query = SelectRequest { selection_id: None, ..booking("", prompt(11, 5)) };
    assert!(bed.select(query).expect("selected").kv_hint.is_none(), "bookings only");
}

#[test]
fn sources_need_a_type_an_endpoint_and_events_of_their_own() {
    let bed = bed(with_events(|_| {}));
    hinting(&bed, 1, |fields| fields.kv_event_source_mode = Some("state_agent_v2".to_owned()));
    assert_eq!(hint(&bed, 2, 0, "a"), from("tcp://w3:5601", 3));
    hinting(&bed, 3, |fields| {
        fields.router_hint_source_control_endpoints.insert(1, String::new());
    });
    assert_eq!(hint(&bed, 2, 0, "b"), from("tcp://w3:5600", 2));
    assert_eq!(hint(&bed, 3, 1, "own"), None);
    hinting(&bed, 3, |fields| fields.router_hint_source_control_endpoints.clear());
    assert_eq!(hint(&bed, 2, 0, "c"), None);
    hinting(&bed, 4, |fields| fields.router_hint_worker_type = Some("decode".to_owned()));
    assert_eq!(hint(&bed, 2, 0, "d"), from("tcp://w4:5600", 4));
    assert_eq!(hint(&bed, 1, 0, "e"), from("tcp://w4:5600", 4), "a state agent's worker may be a target");
    hinting(&bed, 2, |fields| fields.router_hint_worker_type = Some(String::new()));
    assert_eq!(hint(&bed, 2, 0, "f"), None);
}

#[test]
fn host_memory_counts_and_disk_does_not() {
    let bed = bed(with_events(|_| {}));
    bed.sinks.store(3, 0, Tier::HostPinned, &[11, 12, 13, 14], 2);
    assert_eq!(hint(&bed, 1, 0, "a"), from("tcp://w3:5600", 4));
    assert_eq!(hint(&bed, 3, 1, "b"), from("tcp://w3:5600", 4), "another rank of the same worker is fine");
    bed.sinks.store(2, 0, Tier::Disk, &[11, 12, 13, 14, 15], 1);
    assert_eq!(hint(&bed, 1, 0, "c"), from("tcp://w3:5600", 4));
    bed.sinks.store(1, 0, Tier::HostPinned, &[11, 12, 13, 14], 3);
    assert_eq!(hint(&bed, 1, 0, "d"), None, "the bar is the rank's own device and host prefix");
}

#[test]
fn the_names_are_the_engines_own() {
    let bed = bed(with_events(|_| {}));
    let mut request = booking("a", prompt(11, 5));
    request.steering.pinned_worker = Some(WorkerWithDpRank::new(2, 0));
    let hint = bed.reserve(request).expect("booked").kv_hint.expect("a hint");
    let mut names = Vec::new();
    crate::selection::hash::sequence_hashes(&[11, 12, 13], &mut names);
    assert_eq!(hint.actions[0].payload.block_hashes, names);
}

#[test]
fn predictions_cannot_be_fetched() {
    let bed = bed(with_events(|config| config.predicted_ttl = Some(Duration::from_secs(5))));
    assert_eq!(hint(&bed, 2, 0, "a"), None);
}

#[test]
fn ties_go_to_the_smallest_rank_whoever_came_first() {
    let bed = Bed::new(with_events(|_| {}));
    for id in [3, 2, 1] {
        hinting(&bed, id, |_| {});
        bed.sinks.store(id, 0, Tier::Device, &[11, 12, 13][..if id == 2 { 1 } else { 3 }], 0);
    }
    assert_eq!(hint(&bed, 2, 0, "a"), from("tcp://w1:5600", 3));
}
