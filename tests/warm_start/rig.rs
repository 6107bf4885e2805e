//! What the tests share: engines under traffic, selectors, and what they hold.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use pointsman::engine::{CompletionRequest, EngineConfig, MockEngine};
use serde_json::{Value, json};

use super::program::{Selector, wait_for};

/// An engine that evicts all the time, as workers of model `m`.
pub async fn engine(replay: bool) -> Arc<MockEngine> {
    let config = EngineConfig {
        block_size: 4,
        num_blocks: 512,
        host_blocks: 64,
        prefill_rate: f64::INFINITY,
        decode_rate: f64::INFINITY,
        replay_port: replay.then_some(0),
        ..EngineConfig::default()
    };
    Arc::new(MockEngine::start(config).await.unwrap())
}

/// The record of an engine.
pub fn worker(worker_id: u64, engine: &MockEngine) -> Value {
    json!({
        "worker_id": worker_id, "model_name": "m", "endpoint": engine.url(), "block_size": 4,
        "kv_events_endpoint": engine.kv_events_endpoint(0).unwrap(), "replay_endpoint": engine.replay_endpoint(0),
    })
}

pub fn register(selector: &Selector, worker_id: u64, engine: &MockEngine) {
    let (status, record) = selector.call("POST", "/workers", Some(&worker(worker_id, engine)));
    assert_eq!((status, &record["lifecycle"]), (201, &json!("schedulable")), "{record}");
}

/// Requests that go on until it is stopped: prompts with shared beginnings, more than the caches hold.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Traffic {
    pub fn start(engines: &[Arc<MockEngine>]) -> Self {
        let seed = fastrand::u64(..);
        eprintln!("traffic seed {seed}");
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = engines.iter().zip(0..).map(|(engine, number)| {
            let (engine, stop, done) = (Arc::clone(engine), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed + number);
                while !stop.load(Ordering::Relaxed) {
                    let (chain, blocks) = (random.u32(0..40), random.u32(1..40));
                    let prompt = (0..4 * blocks + 1).map(|at| 1000 * chain + at).collect();
                    let request = CompletionRequest { prompt, max_tokens: 1, ..CompletionRequest::default() };
                    // A restart meanwhile ends it.
                    let finished = match engine.complete(request) {
                        Ok(completion) => completion.finish().await.is_ok(),
                        Err(_) => false,
                    };
                    done.fetch_add(u64::from(finished), Ordering::Relaxed);
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            })
        });
        let tasks = tasks.collect();
        Self { stop, done, tasks }
    }

    /// Waits until so many more requests are done.
    pub async fn go_on(&self, requests: u64) {
        let until = self.done.load(Ordering::Relaxed) + requests;
        while self.done.load(Ordering::Relaxed) < until {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    pub async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// Every block of a selector: worker, rank, tier, name, content.
pub fn held(selector: &Selector) -> BTreeSet<(u64, u64, String, u64, u64)> {
    let dump = selector.get("/dump");
    let mut held = BTreeSet::new();
    for partition in dump.as_object().unwrap_or_else(|| panic!("{dump}")).values() {
        for event in partition["events"].as_array().unwrap() {
            let number = |value: &Value| value.as_u64().unwrap();
            for block in event["event"]["data"]["stored"]["blocks"].as_array().unwrap() {
                held.insert((
                    number(&event["worker_id"]),
                    number(&event["event"]["dp_rank"]),
                    event["storage_tier"].as_str().unwrap().to_owned(),
                    number(&block["block_hash"]),
                    number(&block["tokens_hash"]),
                ));
            }
        }
    }
    held
}

/// Flags of a selector that starts from peers.
pub fn from_peers(peers: &[&str]) -> String {
    format!("--indexer-peers={}", peers.join(","))
}

/// Starts a selector that asks `peers`, and waits until it is ready; with the report of its recovery.
pub async fn join(directory: &std::path::Path, peers: &[&str], flags: &[&str]) -> (Selector, Value) {
    let peers = from_peers(peers);
    let flags: Vec<String> = std::iter::once(peers).chain(flags.iter().map(|flag| (*flag).to_owned())).collect();
    let directory = directory.to_owned();
    blocking(move || {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let selector = Selector::start(&directory, &flags, &[]);
        let report = ready(&selector);
        (selector, report)
    })
    .await
}

/// Waits until a selector is ready; the report of its recovery.
pub fn ready(selector: &Selector) -> Value {
    wait_for("readiness", || {
        let (status, answer) = selector.call("GET", "/readyz", None);
        (status == 200).then(|| answer["recovery"].clone())
    })
}

/// Runs what waits in its own way off the async threads.
pub async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Position of each worker's stream.
pub fn positions(selector: &Selector) -> Vec<(u64, Option<u64>)> {
    let listeners = selector.get("/listeners");
    let row = |row: &Value| (row["worker_id"].as_u64().unwrap(), row["position"].as_u64());
    listeners.as_array().unwrap().iter().map(row).collect()
}

/// Waits until two selectors have read the same streams to the same place, and compares what they hold.
pub fn agree(one: &Selector, other: &Selector) {
    wait_for("equal positions and blocks", || {
        let (here, there) = (positions(one), positions(other));
        (here == there && held(one) == held(other)).then_some(())
    });
    assert!(!held(one).is_empty());
}
