//! Starting, stopping and failing.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;
use crate::selection::{
    Tier,
    index::{RemoveOutcome, StoreOutcome, StoredBlock},
    ingest::EventSources,
};

/// Panics at a block, once.
struct Fragile {
    inner: Arc<TestTarget>,
    at: u64,
    armed: AtomicBool,
}

impl EventTarget for Fragile {
    fn block_size(&self) -> u32 {
        self.inner.block_size()
    }

    fn registered_rank(&self) -> u32 {
        self.inner.registered_rank()
    }

    fn store(&self, dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        assert!(blocks[0].name != self.at || !self.armed.swap(false, Relaxed), "as the test wants it");
        self.inner.store(dp_rank, tier, parent, blocks)
    }

    fn remove(&self, dp_rank: u32, tier: Tier, names: &[u64]) -> RemoveOutcome {
        self.inner.remove(dp_rank, tier, names)
    }

    fn clear(&self, dp_rank: u32) {
        self.inner.clear(dp_rank);
    }

    fn reset(&self) {
        self.inner.reset();
    }

    fn set_trust(&self, trust: Trust) {
        self.inner.set_trust(trust);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_costs_one_batch_and_a_pause() {
    let publisher = Publisher::bind();
    let supervisor = ListenerSupervisor::new(Handle::current(), config());
    let target = Arc::new(TestTarget::new(4));
    let fragile = Fragile { inner: Arc::clone(&target), at: 101, armed: AtomicBool::new(true) };
    supervisor.start(source(&publisher.endpoint, None), fragile);
    let rig = Rig { supervisor, target };
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    rig.position(0).await;
    publisher.send(1, &link(101, 100, 1));
    until("it has started again", || rig.status().connects == 2).await;
    publisher.subscribed().await;
    publisher.send(2, &link(200, 200, 1));
    rig.position(2).await;
    let status = rig.status();
    assert_eq!((rig.depth(100, 2), rig.depth(200, 1)), (1, 1));
    assert_eq!((status.listener_restarts, status.trust, status.gaps), (1, Trust::Partial, 0));
    assert!(status.last_error.unwrap().contains("as the test wants it"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_cannot_be_used_is_told() {
    let rig = Rig::new("udp://127.0.0.1:5557", None);
    until("it failed", || rig.status().state == ListenerState::Failed).await;
    assert!(rig.status().last_error.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn detaching_and_shutting_down_end_the_tasks() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    let weak = Arc::downgrade(&rig.target);
    let Rig { supervisor, target } = rig;
    drop(target);
    publisher.subscribed().await;
    supervisor.detach(1, 0);
    assert!(supervisor.statuses().is_empty());
    until("the task let go of its target", || weak.strong_count() == 0).await;

    let target = Arc::new(TestTarget::new(4));
    supervisor.start(source(&publisher.endpoint, None), Arc::clone(&target));
    supervisor.shutdown().await;
    assert_eq!(Arc::strong_count(&target), 1);
    supervisor.start(source(&publisher.endpoint, None), Arc::clone(&target));
    assert!(supervisor.statuses().is_empty(), "nothing starts after shutdown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_source_replaces_its_listener() {
    let (one, two) = (Publisher::bind(), Publisher::bind());
    let rig = Rig::new(&one.endpoint, None);
    one.subscribed().await;
    rig.supervisor.start(source(&two.endpoint, None), Arc::clone(&rig.target));
    two.subscribed().await;
    two.send(0, &link(100, 100, 1));
    rig.position(0).await;
    assert_eq!((rig.supervisor.statuses().len(), rig.status().endpoint), (1, two.endpoint.clone()));
}

#[tokio::test(flavor = "multi_thread")]
async fn held_listeners_keep_what_is_published_meanwhile() {
    let publisher = Publisher::bind();
    let supervisor = ListenerSupervisor::held(Handle::current(), config());
    let target = Arc::new(TestTarget::new(4));
    supervisor.start(source(&publisher.endpoint, None), Arc::clone(&target));
    let rig = Rig { supervisor, target };
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    assert_eq!(rig.status().state, ListenerState::Waiting);
    rig.supervisor.open();
    rig.position(0).await;
    assert_eq!(rig.depth(100, 1), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_labels_of_reasons_alone() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    let mut registry = prometheus_client::registry::Registry::default();
    rig.supervisor.register(&mut registry);
    publisher.subscribed().await;
    publisher.send(0, &pack(&json!([1.5, [block(100, None), ["BlockPinned"]], 0])));
    rig.position(0).await;
    rig.supervisor.detach(1, 0);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "pointsman_events_stored_blocks_total 1",
        "pointsman_events_dropped_total{reason=\"unknown_type\"} 1",
        "pointsman_events_dropped_total{reason=\"framing\"} 0",
        "pointsman_events_listeners{state=\"live\"} 0",
        "pointsman_events_lag_messages 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(!text.contains("worker"), "{text}");
}
