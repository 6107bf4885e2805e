//! Streams that go on where a peer's snapshot was cut, and streams that fall silent.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    events::{normalise::RankMemories, replay::fingerprint, takeover::Seed},
    selection::{Tier, WorkerWithDpRank, hash, index::StoredBlock},
};

/// A listener that waits, beside a rank that holds `links` blocks of the chain from 100.
fn held_rig(endpoint: &str, replay: Option<&str>, links: u32) -> Rig {
    let supervisor = ListenerSupervisor::held(Handle::current(), config());
    let target = Arc::new(TestTarget::new(4));
    let mut locals = Vec::new();
    let tokens: Vec<u32> = (100..100 + links).flat_map(|number| [number; 4]).collect();
    hash::block_hashes(&tokens, 4, false, hash::HASH_SEED, None, &mut locals);
    let blocks: Vec<_> = locals.iter().zip(100..).map(|(&local, name)| StoredBlock { name, local }).collect();
    target.index.store(WorkerWithDpRank::new(1, 0), Tier::Device, None, &blocks);
    target.said.lock().ranks.push(0);
    supervisor.start(source(endpoint, replay), Arc::clone(&target));
    Rig { supervisor, target }
}

/// The seed of a rank whose newest batch is `at` of [`history`].
fn seed(endpoint: &str, at: u32) -> Seed {
    let mark = fingerprint(&link(100 + at, 100, 100));
    let endpoint = Some(endpoint.to_owned());
    Seed { endpoint, position: Some((at.into(), mark)), memory: Vec::new(), trust: Trust::Complete }
}

fn open(rig: &Rig, seed: Seed) {
    rig.supervisor.open_with(BTreeMap::from([((1, 0), seed)]));
}

async fn queued(rig: &Rig, messages: u64) {
    until("the batches are queued", || rig.status().lag >= messages).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_meanwhile_is_cut_at_the_position() {
    let publisher = Publisher::bind();
    let rig = held_rig(&publisher.endpoint, None, 10);
    publisher.subscribed().await;
    for (seq, payload) in &history(100, 14)[6..] {
        publisher.send(*seq, payload);
    }
    queued(&rig, 8).await;
    assert_eq!(rig.status().position, None);
    open(&rig, seed(&publisher.endpoint, 9));
    rig.position(13).await;
    let status = rig.status();
    assert_eq!((rig.depth(100, 14), status.batches, status.dropped["duplicate"]), (14, 4, 4));
    assert_eq!((status.gaps, status.publisher_restarts, status.trust), (0, 0, Trust::Replayed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_after_the_position_is_asked_for_from_there() {
    let batches = history(100, 20);
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: batches[5..18].to_vec(), ..Ring::default() });
    let rig = held_rig(&publisher.endpoint, Some(&replay.endpoint), 10);
    publisher.subscribed().await;
    publisher.send(18, &batches[18].1);
    queued(&rig, 1).await;
    open(&rig, seed(&publisher.endpoint, 9));
    rig.position(18).await;
    let status = rig.status();
    assert_eq!((rig.depth(100, 19), status.replayed_batches, status.unfilled_gaps), (19, 8, 0));
    assert_eq!((status.trust, rig.target.said.lock().resets), (Trust::Replayed, 0));
    // From the newest known batch, which proves that the publisher is the same.
    assert_eq!(replay.ring.lock().starts(), [9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_without_a_replay_socket_is_told() {
    let batches = history(100, 20);
    let publisher = Publisher::bind();
    let rig = held_rig(&publisher.endpoint, None, 10);
    publisher.subscribed().await;
    publisher.send(18, &batches[18].1);
    queued(&rig, 1).await;
    open(&rig, seed(&publisher.endpoint, 9));
    rig.position(18).await;
    assert_eq!((rig.depth(100, 10), rig.status().unfilled_gaps, rig.status().trust), (10, 1, Trust::Partial));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_restarted_meanwhile_voids_the_position() {
    // Numbers that fall, a batch of the position's number that is another one, numbers below it after a while.
    for (numbers, expected) in [(vec![11, 12, 0, 1], 1), (vec![9, 10], 10)] {
        let publisher = Publisher::bind();
        let rig = held_rig(&publisher.endpoint, None, 10);
        publisher.subscribed().await;
        for &number in &numbers {
            publisher.send(number, &link(900 + number as u32, 900, 7));
        }
        queued(&rig, numbers.len() as u64).await;
        open(&rig, seed(&publisher.endpoint, 9));
        rig.position(expected).await;
        until("the restart is told", || rig.status().publisher_restarts == 1).await;
        assert_eq!((rig.depth(100, 1), rig.target.said.lock().resets), (0, 1), "{numbers:?}");
    }
    let publisher = Publisher::bind();
    let rig = held_rig(&publisher.endpoint, None, 10);
    publisher.subscribed().await;
    open(&rig, seed(&publisher.endpoint, 9));
    rig.position(9).await;
    // Once what could be on its way has come, a number below the position is of another process.
    until("the restart is told", || {
        publisher.send(0, &link(900, 900, 7));
        rig.status().publisher_restarts == 1
    })
    .await;
    rig.position(0).await;
    assert_eq!((rig.depth(100, 1), rig.depth(900, 1)), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_idle_engine_is_found_by_its_replay_socket() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(900, 3), ..Ring::default() });
    let rig = held_rig(&publisher.endpoint, Some(&replay.endpoint), 10);
    publisher.subscribed().await;
    open(&rig, seed(&publisher.endpoint, 9));
    rig.position(2).await;
    assert_eq!((rig.depth(100, 1), rig.depth(900, 3), rig.status().publisher_restarts), (0, 3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_of_another_endpoint_is_not_used() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(900, 3), ..Ring::default() });
    let rig = held_rig(&publisher.endpoint, Some(&replay.endpoint), 10);
    open(&rig, seed("tcp://127.0.0.1:1", 9));
    rig.position(2).await;
    assert_eq!((rig.depth(100, 1), rig.depth(900, 3)), (0, 3));
    assert_eq!((replay.ring.lock().starts(), rig.status().publisher_restarts), (vec![0], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_offered_ranks_wait() {
    let publisher = Publisher::bind();
    let rig = held_rig(&publisher.endpoint, None, 0);
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    queued(&rig, 1).await;
    rig.supervisor.offer(BTreeSet::from([(1, 0), (2, 0)]));
    queued(&rig, 1).await;
    assert_eq!((rig.status().position, rig.status().state), (None, ListenerState::Waiting));
    rig.supervisor.offer(BTreeSet::from([(2, 0)]));
    rig.position(0).await;
    // A seed that nobody takes is forgotten.
    open(&rig, seed(&publisher.endpoint, 9));
    assert_eq!((rig.supervisor.expire_seeds(), rig.supervisor.expire_seeds()), (vec![(1, 0)], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_salt_that_was_taught_before_the_cut_is_known() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    publisher.subscribed().await;
    let root = json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 1, 1, 1], "block_size": 4,
                      "cache_salt": "tenant"});
    let child = json!({"type": "BlockStored", "block_hashes": [2], "parent_block_hash": 1, "token_ids": [2, 2, 2, 2],
                       "block_size": 4});
    publisher.send(0, &pack(&json!([1.5, [root], 0])));
    rig.position(0).await;
    let cut = rig.supervisor.cuts().remove(&(1, 0)).unwrap();
    assert_eq!((cut.position.map(|(at, _)| at), cut.trust), (Some(0), Trust::Complete));
    let memory = cut.memory.unwrap();
    assert!(!memory.is_empty() && RankMemories::read(&memory).is_some());
    for at in 1..memory.len() {
        assert!(RankMemories::read(&memory[..at]).is_none(), "cut off after {at} bytes");
    }
    let second = held_rig(&publisher.endpoint, None, 0);
    publisher.subscribed().await;
    let endpoint = Some(publisher.endpoint.clone());
    open(&second, Seed { endpoint, position: cut.position, memory, trust: cut.trust });
    second.position(0).await;
    publisher.send(1, &pack(&json!([1.5, [child], 0])));
    for rig in [&rig, &second] {
        rig.position(1).await;
    }
    let tokens = [1, 1, 1, 1, 2, 2, 2, 2];
    let salted = crate::events::testing::Prompt { tokens: &tokens, salt: Some("tenant"), ..Default::default() };
    assert_eq!(rig.target.held(0, &salted).device, 2);
    // The root was stored before the snapshot, which this test leaves out: the child waits for it, under its tenant.
    let plain: Vec<u32> = vec![2; 4];
    assert_eq!(second.target.device(&plain), 0);
    second.target.index.store(
        WorkerWithDpRank::new(1, 0),
        Tier::Device,
        None,
        &[StoredBlock { name: 1, local: local_of(&[1; 4], "tenant") }],
    );
    assert_eq!(second.target.held(0, &salted).device, 2);
}

fn local_of(tokens: &[u32], salt: &str) -> u64 {
    let mut locals = Vec::new();
    hash::block_hashes(tokens, 4, false, hash::block_seed(None, Some(salt)), None, &mut locals);
    locals[0]
}

/// Silence that a test can wait for; heartbeats are rarer than it.
fn impatient() -> ListenerConfig {
    ListenerConfig { stale_after: Some(Duration::from_millis(300)), ..config() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_stale_until_its_next_batch() {
    let publisher = Publisher::bind();
    let rig = Rig::with(&publisher.endpoint, None, impatient());
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    rig.position(0).await;
    until("it is stale", || rig.status().trust == Trust::Stale).await;
    assert_eq!(rig.target.said.lock().trust, Trust::Stale);
    publisher.send(1, &link(101, 100, 1));
    until("it is believed again", || rig.status().trust == Trust::Complete).await;
    assert_eq!((rig.depth(100, 2), rig.target.said.lock().resets), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_has_nothing_new_proves_a_silent_stream_up_to_date() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(100, 3), ..Ring::default() });
    let rig = Rig::with(&publisher.endpoint, Some(&replay.endpoint), impatient());
    rig.position(2).await;
    until("it was asked again and again", || replay.ring.lock().requests.len() > 3).await;
    assert_eq!(rig.status().trust, Trust::Complete);
    replay.ring.lock().silent = true;
    until("it is stale", || rig.status().trust == Trust::Stale).await;
    replay.ring.lock().silent = false;
    until("it is believed again", || rig.status().trust == Trust::Complete).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_prove_an_idle_stream_alive() {
    let publisher = Publisher::bind();
    let mut config = ListenerConfig { stale_after: Some(Duration::from_secs(3)), ..config() };
    config.transport.heartbeat_interval = Duration::from_secs(3600);
    let deaf = Rig::with(&publisher.endpoint, None, config.clone());
    publisher.subscribed().await;
    config.transport.heartbeat_interval = Duration::from_millis(50);
    let rig = Rig::with(&publisher.endpoint, None, config);
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    rig.position(0).await;
    until("the one without heartbeats is stale", || deaf.status().trust == Trust::Stale).await;
    assert_eq!(rig.status().trust, Trust::Complete);
    drop(deaf);
    // A connection that broke proves nothing about what was missed.
    let publisher = Publisher::bind_at(&publisher.kill());
    publisher.subscribed().await;
    until("it is stale", || rig.status().trust == Trust::Stale).await;
    publisher.send(1, &link(101, 100, 1));
    until("it is believed again", || rig.status().trust == Trust::Complete).await;
}
