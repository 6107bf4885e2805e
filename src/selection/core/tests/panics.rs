//! A panic inside a partition costs that call; the partition goes on, the others notice nothing.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::selection::{
    SelectionError,
    load::LoadTracker,
    partition::PartitionPolicy,
    policy::{PickRequest, Picked, SelectionPolicy},
};

/// Panics while its switch is on, in one model's partition, and for ever once it did.
struct Fragile {
    inner: Box<dyn SelectionPolicy>,
    switch: Arc<AtomicBool>,
    fragile: bool,
    spoilt: bool,
}

impl SelectionPolicy for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn pick(
        &mut self,
        request: &PickRequest<'_>,
        load: &mut LoadTracker,
        rng: &mut fastrand::Rng,
    ) -> Result<Picked, SelectionError> {
        self.spoilt |= self.fragile && self.switch.load(Ordering::Relaxed);
        assert!(!self.spoilt, "injected");
        self.inner.pick(request, load, rng)
    }
}

fn fixture() -> (Fixture, Arc<AtomicBool>) {
    let switch = Arc::new(AtomicBool::new(false));
    let policies: Arc<PolicyFactory> = {
        let switch = Arc::clone(&switch);
        Arc::new(move |config, scope| {
            let inner = builtin::default_policy(config, scope);
            let fragile = &*scope.key.model_name == "m";
            let policy = Fragile { inner, switch: Arc::clone(&switch), fragile, spoilt: false };
            PartitionPolicy::UnderLock(Box::new(policy)).into()
        })
    };
    let f = Fixture::with_policies(SelectionConfig { use_kv_events: false, ..SelectionConfig::default() }, policies);
    f.upsert(worker(1, 1));
    f.upsert(with(worker(2, 1), json!({"model_name": "n"})));
    (f, switch)
}

#[test]
fn a_panicking_policy_fails_its_request_only() {
    let (f, switch) = fixture();
    f.reserve("m", "before", &[1]).unwrap();
    switch.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(f.reserve("m", "during", &[2]).unwrap_err().reason(), "internal");
        assert!(f.core.failing_partitions().iter().any(|key| &*key.model_name == "m"));
        f.reserve("n", "other", &[2]).unwrap();
        f.core.free_reservation("other").unwrap();
    }
    assert_eq!(f.core.failing_partitions().len(), 1);
    assert!(f.core.can_select(), "the other partition can");
    f.core.delete_worker(2).unwrap();
    assert!(!f.core.can_select());
    assert_eq!(f.loads("m"), [(1, 0, 1)], "bookings stay");
    f.clock.advance(Duration::from_secs(2));
    f.core.tick();
    assert!(!f.core.can_select());
    // Nobody needs to send a request for the partition to come back.
    switch.store(false, Ordering::Relaxed);
    f.clock.advance(Duration::from_secs(2));
    f.core.tick();
    assert!(f.core.can_select());
    f.reserve("m", "during", &[2]).unwrap();
    assert!(f.core.failing_partitions().is_empty());
    assert_eq!(f.loads("m"), [(1, 0, 2)]);
    assert_eq!((f.core.partition("m", "default").unwrap().panics(), f.core.panics()), (2, 2));
    f.core.free_reservation("before").unwrap();
    f.core.free_reservation("during").unwrap();
}

#[test]
fn a_policy_that_panicked_is_replaced() {
    let (f, switch) = fixture();
    switch.store(true, Ordering::Relaxed);
    f.reserve("m", "a", &[1]).unwrap_err();
    switch.store(false, Ordering::Relaxed);
    f.reserve("m", "a", &[1]).unwrap();
}

#[test]
fn picks_that_panic_in_a_row_rebuild_the_partition() {
    let (f, switch) = fixture();
    f.reserve("m", "before", &[1]).unwrap();
    switch.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        f.reserve("m", "during", &[2]).unwrap_err();
    }
    switch.store(false, Ordering::Relaxed);
    assert_eq!(f.loads("m"), [(1, 0, 0)], "the tracker is new");
    f.core.tick();
    assert_eq!(f.core.live_bookings(), 0, "ids of lost bookings are free");
    f.reserve("m", "before", &[1]).unwrap();
}

#[test]
fn a_panic_under_the_lock_rebuilds_the_state() {
    let (f, _) = fixture();
    f.reserve("m", "a", &[1]).unwrap();
    let partition = f.core.partition("m", "default").unwrap();
    let result = partition.with_state(|state| {
        // Half a change: the worker's rank is gone from the tracker, the worker is not.
        state.load.remove_rank(WorkerWithDpRank::new(1, 0));
        panic!("injected");
    });
    assert_eq!(result.map(|(): ()| ()).unwrap_err().reason(), "internal");
    assert_eq!(f.loads("m"), [(1, 0, 0)]);
    f.reserve("m", "b", &[1]).unwrap();
    assert_eq!(f.loads("n"), [(2, 0, 0)]);
    assert!(f.core.failing_partitions().is_empty());
    // The rank's cached blocks are still the rank's.
    assert_eq!(f.cached("m", (1, 0), &[1]), Some(1));
}
