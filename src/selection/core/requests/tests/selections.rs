//! Selections and what they answer.

use super::*;

#[test]
fn readiness_texts() {
    let bed = Bed::new(approximate(|_| {}));
    let nobody = ("unavailable", "no schedulable workers are available".to_owned());
    assert_eq!(text(bed.select(request(prompt(1, 1)))), nobody);
    bed.worker(1, |worker| worker.model_name = "other".to_owned());
    let here = ("unavailable", "no schedulable workers for model=m routing_group=default".to_owned());
    assert_eq!(text(bed.select(request(prompt(1, 1)))), here);
    assert_eq!(text(bed.reserve(request(prompt(1, 1)))), here);
    assert_eq!(text(bed.book(named("x", 1, prompt(1, 1)))), here);
    // One that lacks something takes no request.
    bed.worker(2, |_| {});
    bed.core
        .patch_worker(2, serde_json::from_value(serde_json::json!({"block_size": 0})).expect("a patch"))
        .expect("known");
    assert_eq!(text(bed.select(request(prompt(1, 1)))), here);
    bed.core.delete_worker(1).expect("known");
    assert!(!bed.core.can_select());
    assert_eq!(text(bed.select(request(prompt(1, 1)))), nobody);
    bed.worker(1, |worker| worker.model_name = "other".to_owned());
    assert!(bed.core.can_select());
    bed.core.begin_shutdown();
    let stopping = ("unavailable", "selection service is shutting down".to_owned());
    assert_eq!(text(bed.select(request(prompt(1, 1)))), stopping);
    assert_eq!(text(bed.reserve(request(prompt(1, 1)))), stopping);
    assert_eq!(text(bed.book(replay("x"))), stopping);
    assert_eq!(text(bed.book(named("x", 1, prompt(1, 1)))), stopping);
}

#[test]
fn a_query_answers_and_books_nothing() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let answer = bed.select(request(tokens(1..=5))).expect("selected");
    assert_eq!((answer.worker_id, answer.dp_rank, &*answer.endpoint), (1, 0, "http://w1:8000"));
    assert_eq!((&*answer.model_name, &*answer.routing_group, answer.block_size), ("m", "default", 4));
    assert_eq!((answer.effective_prefill_tokens, answer.potential_decode_blocks), (5, 2));
    assert_eq!(answer.overlap.dp, BTreeMap::from([(0, 0)]));
    assert_eq!((answer.selection_id, answer.sequence_hashes, answer.isl_tokens), (None, None, None));
    assert_eq!((answer.worker_load, answer.decode_busy, answer.kv_hint), (None, None, None));
    bed.assert_idle();
}

#[test]
fn a_booking_echoes_the_prompt_and_shares_blocks() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let mut odd = prompt(1, 2);
    odd.sequence_hashes = Some(vec![-3, i64::MAX]);
    odd.isl_tokens = Some(7);
    let a = bed.reserve(booking("a", odd)).expect("booked");
    assert_eq!(a.selection_id.as_deref(), Some("a"));
    assert_eq!(a.sequence_hashes, Some(vec![-3, i64::MAX]));
    assert_eq!((a.isl_tokens, a.track_prefill_tokens, a.potential_decode_blocks), (Some(7), Some(true), 2));
    let b = bed.reserve(booking("b", tokens(1..=4))).expect("booked");
    assert_eq!(b.sequence_hashes, Some(vec![-3803038269031200164]));
    let c = bed.reserve(booking("c", tokens(1..=4))).expect("booked");
    assert_eq!((c.overlap.gpu, c.effective_prefill_tokens, c.potential_decode_blocks), (4, 0, 3));
    let empty = bed.reserve(booking("d", prompt(1, 0)));
    assert_eq!(text(empty), ("bad_request", "isl_tokens must be greater than 0".to_owned()));
    let empty = bed.reserve(booking("d", tokens([]))).expect("booked");
    assert_eq!((empty.sequence_hashes, empty.isl_tokens), (Some(vec![]), Some(0)));
    assert_eq!(bed.loads(), [(1, 0, 11, 3, 4)]);
}

#[test]
fn prefill_tracking_follows_request_then_configuration() {
    let bed = Bed::with_workers(approximate(|config| config.track_prefill_tokens = false), 1);
    let off = bed.reserve(booking("a", prompt(1, 2))).expect("booked");
    assert_eq!((off.track_prefill_tokens, off.effective_prefill_tokens), (Some(false), 8));
    let mut on = booking("b", prompt(10, 2));
    on.router_config_override = Some(RouterConfigOverride { track_prefill_tokens: Some(true), ..Default::default() });
    assert_eq!(bed.reserve(on).expect("booked").track_prefill_tokens, Some(true));
    assert_eq!(bed.loads(), [(1, 0, 8, 4, 2)]);
}

#[test]
fn a_taken_id_is_reported_before_anything_about_the_prompt() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    bed.reserve(booking("a", prompt(1, 1))).expect("booked");
    let taken = ("conflict", "selection a is already reserved or being reserved".to_owned());
    assert_eq!(text(bed.reserve(booking("a", PromptInput::default()))), taken);
    assert_eq!(text(bed.book(named("a", 1, prompt(1, 1)))), taken);
    bed.worker(2, |worker| worker.routing_group = "g".to_owned());
    let mut elsewhere = booking("a", prompt(1, 1));
    elsewhere.routing_group = "g".to_owned();
    assert_eq!(text(bed.reserve(elsewhere.clone())), taken, "ids are unique in the service");
    bed.core.free_reservation("a").expect("freed");
    bed.reserve(elsewhere).expect("booked");
}

#[test]
fn a_failed_booking_leaves_its_id_free() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let missing = ("bad_request", "block_hashes is required without token_ids".to_owned());
    assert_eq!(text(bed.reserve(booking("a", PromptInput::default()))), missing);
    let nobody = ("unavailable", "no endpoints available to route work".to_owned());
    assert_eq!(text(bed.reserve(booking_on(9, "a", prompt(1, 1)))), nobody);
    bed.assert_idle();
    bed.reserve(booking("a", prompt(1, 1))).expect("booked");
}

#[test]
fn generated_ids_are_random_uuids() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let id = |bed: &Bed| bed.reserve(request(prompt(1, 1))).expect("booked").selection_id.expect("an id");
    let (a, b) = (id(&bed), id(&bed));
    assert_ne!(a, b);
    for id in [a, b] {
        let uuid = uuid::Uuid::parse_str(&id).expect("a uuid");
        assert_eq!((uuid.get_version_num(), uuid.to_string()), (4, id.to_string()));
        bed.core.free_reservation(&id).expect("freed");
    }
    bed.assert_idle();
}

#[test]
fn pins_and_targets() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    let pinned = |worker, rank| {
        let mut request = request(prompt(1, 1));
        request.steering.pinned_worker = Some(WorkerWithDpRank::new(worker, rank));
        request
    };
    assert_eq!(bed.select(pinned(2, 0)).expect("selected").worker_id, 2);
    let nobody = ("unavailable", "no endpoints available to route work".to_owned());
    assert_eq!(text(bed.select(pinned(9, 0))), nobody);
    assert_eq!(text(bed.select(pinned(1, 1))), nobody);
    let mut outside = pinned(1, 0);
    outside.steering.allowed_worker_ids = Some([2].into());
    let refused = ("bad_request", "pinned worker 1 is not in allowed worker set".to_owned());
    assert_eq!(text(bed.select(outside.clone())), refused);
    outside.advisory = true;
    assert_eq!(text(bed.select(outside)), refused);
    let mut aimed = request(prompt(1, 1));
    aimed.steering.affinity_target = Some(AffinityTarget { worker_id: 2, dp_rank: None });
    assert!((0..20).all(|_| bed.select(aimed.clone()).expect("selected").worker_id == 2));
}

#[test]
fn advisory_selections_tell_the_load_before_the_request() {
    let config = approximate(|config| {
        config.decode_busy_threshold = Some(0.5);
        config.prefill_busy_threshold = Some(0.5);
    });
    let bed = Bed::new(config);
    bed.worker(1, |worker| {
        worker.fields.max_num_batched_tokens = Some(20);
        worker.fields.total_kv_blocks = Some(8);
    });
    let advisory = |blocks| SelectRequest { advisory: true, ..request(prompt(50, blocks)) };
    let idle = bed.select(advisory(4)).expect("selected");
    let load = idle.worker_load.expect("advisory");
    assert_eq!((load.active_prefill_tokens, load.prefill_token_capacity, load.total_kv_blocks), (0, 20, Some(8)));
    assert_eq!((load.prefill_busy, idle.decode_busy), (Some(false), Some(false)), "comparisons are strict");
    assert_eq!(bed.select(advisory(5)).expect("selected").decode_busy, Some(true));
    bed.reserve(booking("a", prompt(1, 3))).expect("booked");
    let busy = bed.select(advisory(1)).expect("selected").worker_load.expect("advisory");
    assert_eq!((busy.active_prefill_tokens, busy.prefill_busy), (12, Some(true)));
    bed.core
        .patch_worker(1, serde_json::from_value(serde_json::json!({"max_num_batched_tokens": 24})).expect("a patch"))
        .expect("known");
    let half = bed.select(advisory(1)).expect("selected").worker_load.expect("advisory");
    assert_eq!((half.active_prefill_tokens, half.prefill_busy), (12, Some(false)), "just as much as it may");
    bed.worker(2, |_| {});
    let mut other = advisory(1);
    other.steering.allowed_worker_ids = Some([2].into());
    let unknown = bed.select(other).expect("selected");
    let load = unknown.worker_load.expect("advisory");
    assert_eq!((load.prefill_token_capacity, load.total_kv_blocks, unknown.decode_busy), (10_000_000, None, None));
    assert!(
        bed.reserve(SelectRequest { advisory: true, ..booking("b", prompt(9, 1)) })
            .expect("booked")
            .worker_load
            .is_none()
    );
}

#[test]
fn overlap_spans_the_worker_and_prefill_the_rank() {
    let bed = Bed::new(with_events(|_| {}));
    bed.worker(3, |worker| worker.fields.data_parallel_size = Some(2));
    bed.sinks.store(3, 0, Tier::Device, &[1, 2], 0);
    bed.sinks.store(3, 1, Tier::Device, &[1, 2, 3], 0);
    bed.sinks.store(3, 1, Tier::HostPinned, &[1, 2, 3, 4], 3);
    bed.sinks.store(3, 1, Tier::Disk, &[1, 2, 3, 4, 5], 4);
    let pinned = |rank| {
        let mut request = request(prompt(1, 6));
        request.steering.pinned_worker = Some(WorkerWithDpRank::new(3, rank));
        bed.select(request).expect("selected")
    };
    for (rank, effective) in [(0, 24 - 8), (1, 24 - (12 + 3 + 1))] {
        let answer = pinned(rank);
        let overlap = answer.overlap;
        assert_eq!(overlap.dp, BTreeMap::from([(0, 8), (1, 12)]));
        assert_eq!((overlap.longest_matched, overlap.gpu, overlap.cpu, overlap.disk), (20, 12, 16, 20));
        assert_eq!((answer.dp_rank, answer.effective_prefill_tokens), (rank, effective));
    }
    bed.reserve(booking("a", prompt(1, 6))).expect("booked");
    assert_eq!(bed.requests(), 1, "bookings are not recorded in an event index");
    assert_eq!(pinned(0).overlap.dp, BTreeMap::from([(0, 8), (1, 12)]));
}

#[test]
fn the_predicted_overlay_wins_where_it_is_longer() {
    let bed = Bed::with_workers(with_events(|config| config.predicted_ttl = Some(Duration::from_secs(5))), 2);
    bed.sinks.store(1, 0, Tier::Device, &[1], 0);
    bed.sinks.store(1, 0, Tier::HostPinned, &[1, 2], 1);
    let overlap = |worker| {
        let mut request = request(prompt(1, 4));
        request.steering.allowed_worker_ids = Some([worker].into());
        bed.select(request).expect("selected").overlap
    };
    assert_eq!((overlap(1).gpu, overlap(1).cpu, overlap(2).gpu), (4, 8, 0));
    bed.reserve(booking_on(1, "a", prompt(1, 3))).expect("booked");
    assert_eq!(
        (overlap(1).gpu, overlap(1).cpu, overlap(2).gpu),
        (12, 16, 0),
        "lower tiers count from the confirmed match"
    );
    bed.core.free_reservation("a").expect("freed");
    assert_eq!(overlap(1).gpu, 12, "a prediction outlives its booking");
    bed.clock.advance(Duration::from_secs(6));
    bed.core.tick();
    assert_eq!((overlap(1).gpu, overlap(1).cpu), (4, 8));
}

#[test]
fn without_reuse_prompts_share_the_index_but_no_load() {
    let bed = Bed::with_workers(approximate(|config| config.assume_kv_reuse = false), 1);
    let a = bed.reserve(booking("a", tokens(1..=8))).expect("booked");
    let b = bed.reserve(booking("b", tokens(1..=8))).expect("booked");
    assert_ne!(a.sequence_hashes, b.sequence_hashes);
    assert_eq!((b.overlap.gpu, b.potential_decode_blocks), (8, 4));
    let mut reusing = booking("c", tokens(1..=8));
    reusing.router_config_override = Some(RouterConfigOverride { assume_kv_reuse: Some(true), ..Default::default() });
    let c = bed.reserve(reusing.clone()).expect("booked");
    reusing.selection_id = Some("d".to_owned());
    assert_eq!(bed.reserve(reusing).expect("booked").sequence_hashes, c.sequence_hashes);
    assert_eq!(bed.loads(), [(1, 0, 8, 6, 4)]);
}

#[test]
fn huge_prompts_are_refused_and_harm_nobody() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    for id in ["a", "b", "c"] {
        let mut huge = prompt(1, 1);
        huge.isl_tokens = Some(u64::MAX);
        let refused = ("bad_request", "isl_tokens must not exceed 1099511627776".to_owned());
        assert_eq!(text(bed.reserve(booking(id, huge.clone()))), refused);
        assert_eq!(
            text(bed.book(ReservationRequest { effective_prefill_tokens: Some(u64::MAX), ..named(id, 1, huge) })),
            refused
        );
    }
    let mut longest = prompt(1, 1);
    longest.isl_tokens = Some(1 << 40);
    for at in 0..100 {
        bed.reserve(booking(&at.to_string(), longest.clone())).expect("booked");
    }
    assert_eq!(bed.requests(), 100);
    bed.select(request(prompt(1, 1))).expect("the partition still selects");
}

#[test]
fn ties_are_spread_and_load_repels() {
    let bed = Bed::with_workers(approximate(|_| {}), 4);
    let mut counts = BTreeMap::new();
    for at in 0..400 {
        let id = at.to_string();
        let answer = bed.reserve(booking(&id, prompt(1_000 + at * 10, 2))).expect("booked");
        *counts.entry(answer.worker_id).or_insert(0) += 1;
        bed.core.free_reservation(&id).expect("freed");
    }
    assert!(counts.len() == 4 && counts.values().all(|count| (60..=140).contains(count)), "{counts:?}");
    for at in 0..50 {
        bed.reserve(booking_on(1, &format!("busy{at}"), prompt(100_000 + at * 10, 2))).expect("booked");
    }
    for at in 0..100 {
        let id = at.to_string();
        assert_ne!(bed.reserve(booking(&id, prompt(200_000 + at * 10, 2))).expect("booked").worker_id, 1);
        bed.core.free_reservation(&id).expect("freed");
    }
}

#[test]
fn a_deadline_that_has_passed_is_answered_at_once() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let mut late = booking("a", prompt(1, 1));
    late.steering.deadline_ms = Some(0);
    let exceeded = ("deadline_exceeded", "request deadline exceeded".to_owned());
    assert_eq!(text(bed.reserve(late.clone())), exceeded);
    late.selection_id = None;
    assert_eq!(text(bed.select(late.clone())), exceeded);
    late.advisory = true;
    bed.select(late).expect("advisory selections never wait");
    bed.assert_idle();
}

#[test]
fn explained_answers_name_every_rank() {
    let bed = Bed::with_workers(approximate(|_| {}), 3);
    let answer = bed.select(SelectRequest { explain: true, ..request(prompt(1, 1)) }).expect("selected");
    let explanation = answer.explain.expect("asked for");
    let workers: Vec<_> = explanation.candidates.iter().map(|candidate| candidate.worker_id).collect();
    assert_eq!((workers, explanation.ties), (vec![1, 2, 3], 3));
    assert!(bed.select(request(prompt(1, 1))).expect("selected").explain.is_none());
}
