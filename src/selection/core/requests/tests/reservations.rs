//! Bookings of a named rank and of cached selections.

use super::*;

fn pending(id: &str) -> (&'static str, String) {
    let text = format!(
        "no pending selection {id} for model=m routing_group=default (expired, already used, or never selected)"
    );
    ("not_found", text)
}

#[test]
fn a_replay_books_what_the_selection_said() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    let mut selection = booking_on(2, "s", prompt(1, 3));
    selection.prompt.isl_tokens = Some(10);
    bed.select(selection).expect("selected");
    bed.assert_idle();
    let answer = bed.book(replay("s")).expect("booked");
    assert_eq!(
        (&*answer.selection_id, answer.worker_id, answer.dp_rank, &*answer.endpoint),
        ("s", 2, 0, "http://w2:8000")
    );
    assert_eq!(bed.loads(), [(1, 0, 0, 0, 0), (2, 0, 10, 3, 1)]);
    assert_eq!(text(bed.book(replay("s"))), pending("s"), "an entry is used once");
    let cached = bed.select(request(prompt(1, 3))).expect("selected");
    assert_eq!((cached.worker_id, cached.overlap.gpu), (2, 12), "the booking was recorded");
}

#[test]
fn the_newest_selection_of_an_id_wins() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    bed.select(booking("s", prompt(1, 1))).expect("selected");
    bed.select(booking("s", prompt(10, 5))).expect("selected");
    bed.book(replay("s")).expect("booked");
    assert_eq!(bed.loads(), [(1, 0, 20, 5, 1)]);
}

#[test]
fn selections_are_scoped_by_partition_and_age() {
    let bed = Bed::with_workers(approximate(|config| config.selection_cache_ttl = Duration::from_secs(2)), 1);
    bed.worker(2, |worker| worker.routing_group = "g".to_owned());
    bed.select(booking("s", prompt(1, 1))).expect("selected");
    let elsewhere = ReservationRequest { routing_group: "g".to_owned(), ..replay("s") };
    let (reason, text_) = text(bed.book(elsewhere));
    assert_eq!(reason, "not_found");
    assert!(text_.starts_with("no pending selection s for model=m routing_group=g "), "{text_}");
    let unknown = ReservationRequest { model_name: "nobody".to_owned(), ..replay("s") };
    assert_eq!(text(bed.book(unknown)).0, "not_found", "the cache is asked before readiness");
    bed.clock.advance(Duration::from_millis(2_001));
    assert_eq!(text(bed.book(replay("s"))), pending("s"));
}

#[test]
fn a_conflict_leaves_the_selection_for_a_retry() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    bed.select(booking("s", prompt(1, 2))).expect("selected");
    bed.reserve(booking("s", prompt(10, 1))).expect("booked");
    for _ in 0..2 {
        assert_eq!(text(bed.book(replay("s"))).0, "conflict");
    }
    bed.core.free_reservation("s").expect("freed");
    bed.book(replay("s")).expect("booked");
    assert_eq!(bed.loads(), [(1, 0, 8, 2, 1)]);
}

#[test]
fn a_rank_that_left_cannot_be_replayed() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    bed.worker(2, |_| {});
    bed.select(booking_on(2, "s", prompt(1, 2))).expect("selected");
    bed.core.delete_worker(2).expect("deleted");
    let gone = ("not_found", "schedulable worker 2 (dp_rank 0) not found for model=m routing_group=default".to_owned());
    assert_eq!(text(bed.book(replay("s"))), gone);
    bed.worker(2, |_| {});
    bed.book(replay("s")).expect("the entry was kept for a retry");
}

#[test]
fn named_bookings_are_checked_in_order() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let refused = |text: &str| ("bad_request", text.to_owned());
    let mut input = PromptInput::default();
    let missing = refused("sequence_hashes is required without token_ids");
    assert_eq!(text(bed.book(named("e", 9, input.clone()))), missing);
    input.sequence_hashes = Some(vec![1, 2]);
    assert_eq!(text(bed.book(named("e", 9, input.clone()))), refused("isl_tokens is required without token_ids"));
    input.isl_tokens = Some(4);
    let greedy = ReservationRequest { effective_prefill_tokens: Some(5), ..named("e", 9, input.clone()) };
    assert_eq!(text(bed.book(greedy)), refused("effective_prefill_tokens (5) must not exceed isl_tokens (4)"));
    let unknown = "schedulable worker 9 not found for model=m routing_group=default".to_owned();
    assert_eq!(text(bed.book(named("e", 9, input.clone()))), ("not_found", unknown));
    input.block_hashes = Some(vec![1]);
    let lengths = refused("block_hashes length 1 must match sequence_hashes length 2");
    assert_eq!(text(bed.book(named("e", 1, input.clone()))), lengths);
    input.block_hashes = None;
    let rank = ReservationRequest { dp_rank: Some(1), ..named("e", 1, input.clone()) };
    let no_rank = "Worker WorkerWithDpRank { worker_id: 1, dp_rank: 1 } not found".to_owned();
    assert_eq!(text(bed.book(rank)), ("not_found", no_rank));
    bed.assert_idle();
    bed.book(named("e", 1, input.clone())).expect("block hashes are optional");
    assert_eq!(text(bed.book(named("e", 1, input))).0, "conflict");
}

#[test]
fn only_an_index_that_records_compares_the_hashes_of_a_named_booking() {
    let bed = Bed::with_workers(with_events(|_| {}), 1);
    let mut input = prompt(1, 1);
    input.sequence_hashes = Some(vec![5, 6]);
    input.isl_tokens = Some(0);
    bed.book(named("e", 1, input)).expect("booked");
    assert_eq!(bed.loads(), [(1, 0, 0, 2, 1)]);
}

#[test]
fn the_stated_prefill_is_what_a_named_booking_counts() {
    let bed = Bed::with_workers(approximate(|_| {}), 1);
    let untracked = || RouterConfigOverride { track_prefill_tokens: Some(false), ..Default::default() };
    let mut at = 0;
    let mut prefill = |change: fn(&mut ReservationRequest), over: Option<RouterConfigOverride>| {
        at += 10;
        let mut request = named("a", 1, prompt(at, 2));
        request.router_config_override = over;
        change(&mut request);
        bed.book(request).expect("booked");
        let load = bed.loads()[0];
        bed.core.free_reservation("a").expect("freed");
        assert_eq!((load.3, load.4), (2, 1));
        load.2
    };
    assert_eq!(prefill(|r| r.effective_prefill_tokens = Some(5), None), 5);
    assert_eq!(prefill(|r| r.effective_prefill_tokens = Some(5), Some(untracked())), 5, "a stated value counts");
    assert_eq!(prefill(|_| {}, None), 0, "nothing is derived from the length");
    assert_eq!(prefill(|r| r.track_prefill_tokens = Some(true), None), 0);
    let both: fn(&mut ReservationRequest) = |r| {
        r.effective_prefill_tokens = Some(5);
        r.track_prefill_tokens = Some(false);
    };
    assert_eq!(prefill(both, None), 0);
    bed.assert_idle();
}

#[test]
fn named_bookings_teach_an_index_of_own_decisions() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    bed.book(named("a", 2, tokens(1..=8))).expect("booked");
    let mut unknown_content = prompt(50, 2);
    unknown_content.block_hashes = None;
    bed.book(named("b", 2, unknown_content)).expect("booked");
    let cached = |prompt| {
        let mut request = request(prompt);
        request.steering.allowed_worker_ids = Some([2].into());
        bed.select(request).expect("selected").overlap.gpu
    };
    assert_eq!((cached(tokens(1..=8)), cached(prompt(50, 2))), (8, 0));
}

#[test]
fn a_named_booking_throws_the_cached_selection_away_even_when_it_fails() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    bed.select(booking_on(1, "x", prompt(1, 1))).expect("selected");
    bed.book(named("x", 2, prompt(10, 1))).expect("booked");
    bed.core.free_reservation("x").expect("freed");
    assert_eq!(text(bed.book(replay("x"))), pending("x"));
    bed.select(booking_on(1, "x", prompt(1, 1))).expect("selected");
    assert_eq!(text(bed.book(named("x", 9, prompt(10, 1)))).0, "not_found");
    assert_eq!(text(bed.book(replay("x"))), pending("x"));
    bed.assert_idle();
}

#[test]
fn a_duplicate_id_changes_nothing_wherever_it_points() {
    let bed = Bed::with_workers(approximate(|_| {}), 2);
    bed.book(named("x", 1, prompt(1, 1))).expect("booked");
    assert_eq!(text(bed.book(named("x", 2, prompt(1, 1)))).0, "conflict");
    assert_eq!(bed.loads(), [(1, 0, 0, 1, 1), (2, 0, 0, 0, 0)]);
    bed.core.free_reservation("x").expect("freed");
    bed.book(named("x", 2, prompt(1, 1))).expect("a freed id is free");
    assert_eq!(bed.loads(), [(1, 0, 0, 0, 0), (2, 0, 0, 1, 1)]);
}
