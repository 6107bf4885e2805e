//! Periodic work.

use super::*;

#[test]
fn bookings_expire_and_free_their_ids() {
    let f = Fixture::with(SelectionConfig {
        use_kv_events: false,
        active_request_expiry: Some(Duration::from_secs(2)),
        ..SelectionConfig::default()
    });
    f.upsert(worker(1, 1));
    f.reserve("m", "a", &[1]).unwrap();
    f.clock.advance(Duration::from_secs(3));
    f.core.tick();
    assert_eq!(f.core.live_bookings(), 1, "expiry has a period of its own");
    f.clock.advance(Duration::from_secs(60));
    f.core.tick();
    assert_eq!(f.loads("m"), [(1, 0, 0)]);
    assert_eq!(f.core.live_bookings(), 0);
    assert!(f.reserve("m", "a", &[1]).is_ok());
}

#[test]
fn approximate_blocks_expire_after_their_ttl() {
    let f = Fixture::with(SelectionConfig {
        use_kv_events: false,
        ttl: Duration::from_secs(2),
        ..SelectionConfig::default()
    });
    f.upsert(worker(1, 1));
    f.reserve("m", "a", &[1, 2]).unwrap();
    f.core.free_reservation("a").unwrap();
    f.clock.advance(Duration::from_millis(1900));
    f.core.tick();
    assert_eq!(f.cached("m", (1, 0), &[1, 2]), Some(2));
    f.clock.advance(Duration::from_millis(300));
    f.core.tick();
    assert_eq!(f.cached("m", (1, 0), &[1, 2]), Some(0));
}

#[test]
fn idle_sessions_are_reaped() {
    let f = Fixture::with(SelectionConfig {
        use_kv_events: false,
        session_affinity_ttl: Some(Duration::from_secs(5)),
        ..SelectionConfig::default()
    });
    f.upsert(worker(1, 1));
    let mut request = select_request("m", &[1]);
    (request.selection_id, request.session_id) = (Some("a".to_owned()), Some("s".to_owned()));
    block_on(f.core.select_and_reserve(request)).unwrap();
    f.core.free_reservation("a").unwrap();
    let partition = f.core.partition("m", "default").unwrap();
    assert_eq!(partition.sessions.len(), 1);
    for _ in 0..2 {
        f.clock.advance(Duration::from_secs(30));
        f.core.tick();
    }
    assert_eq!(partition.sessions.len(), 0);
}

#[test]
fn expiry_keeps_its_period() {
    let f = Fixture::with(SelectionConfig {
        use_kv_events: false,
        active_request_expiry: Some(Duration::from_secs(2)),
        ..SelectionConfig::default()
    });
    f.upsert(worker(1, 1));
    f.clock.advance(Duration::from_secs(60));
    f.core.tick();
    f.reserve("m", "a", &[1]).unwrap();
    f.clock.advance(Duration::from_secs(59));
    f.core.tick();
    assert_eq!(f.core.live_bookings(), 1, "not due again");
    f.clock.advance(Duration::from_secs(1));
    f.core.tick();
    assert_eq!(f.core.live_bookings(), 0);
}

#[test]
fn rows_without_a_booking_and_old_selections_are_swept() {
    let f = Fixture::approximate();
    f.upsert(worker(1, 1));
    block_on(f.core.select(SelectRequest { selection_id: Some("s".to_owned()), ..select_request("m", &[1]) })).unwrap();
    f.reserve("m", "a", &[1]).unwrap();
    let partition = f.core.partition("m", "default").unwrap();
    let attempt = f.core.bookings.find("a").unwrap().attempt;
    assert!(partition.with_state(|state| state.load.free(attempt, f.core.now())).unwrap());
    assert_eq!((f.core.pending_selections().0, f.core.live_bookings()), (1, 1));
    f.clock
        .advance(SelectionConfig::default().selection_cache_ttl.max(Duration::from_secs(60)) + Duration::from_secs(1));
    f.core.tick();
    assert_eq!((f.core.pending_selections().0, f.core.live_bookings()), (0, 0));
}
