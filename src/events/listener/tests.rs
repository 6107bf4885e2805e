//! Streams over real sockets: joins, gaps, replays, restarts.

mod contradictions;
mod engine;
mod gaps;
mod joins;
mod restarts;
mod supervision;
mod takeovers;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::*;
use crate::{
    events::{
        status::ListenerStatus,
        supervisor::ListenerSupervisor,
        testing::{TestTarget, pack},
    },
    selection::ingest::EventSource,
};
use engine::{Publisher, Replay, Ring};

/// Waits for a condition, with a deadline that only a broken test meets.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A listener of rank 0 of worker 1 and what it fills.
struct Rig {
    supervisor: ListenerSupervisor,
    target: Arc<TestTarget>,
}

impl Rig {
    fn new(endpoint: &str, replay: Option<&str>) -> Self {
        Self::with(endpoint, replay, config())
    }

    fn with(endpoint: &str, replay: Option<&str>, config: ListenerConfig) -> Self {
        let supervisor = ListenerSupervisor::new(Handle::current(), config);
        let target = Arc::new(TestTarget::new(4));
        supervisor.start(source(endpoint, replay), Arc::clone(&target));
        Self { supervisor, target }
    }

    fn status(&self) -> ListenerStatus {
        self.supervisor.statuses().remove(0)
    }

    /// Leading blocks held of the chain of [`block`]s from `first` on.
    fn depth(&self, first: u32, blocks: u32) -> u32 {
        let tokens: Vec<u32> = (first..first + blocks).flat_map(|number| [number; 4]).collect();
        self.target.device(&tokens)
    }

    async fn position(&self, at: u64) {
        until(&format!("position {at}: {:?}", self.status()), || self.status().position == Some(at)).await;
    }
}

/// Short deadlines where a test waits for one to pass.
fn config() -> ListenerConfig {
    let mut config = ListenerConfig::default();
    config.replay.answer_timeout = Duration::from_millis(400);
    config.transport.reconnect_min = Duration::from_millis(10);
    config.transport.reconnect_max = Duration::from_millis(50);
    config.second_look = Duration::from_secs(3600);
    config.restart_min = Duration::from_millis(10);
    config.on_the_way = Duration::from_millis(300);
    config
}

fn source(endpoint: &str, replay: Option<&str>) -> EventSource {
    EventSource { worker_id: 1, dp_rank: 0, endpoint: endpoint.to_owned(), replay_endpoint: replay.map(str::to_owned) }
}

/// Block `number`, all of whose tokens are that number; its name is the number.
fn block(number: u32, parent: Option<u32>) -> Value {
    json!(["BlockStored", [number], parent, vec![number; 4], 4, null, "GPU"])
}

/// A batch that continues the chain that starts at `first`; `salt` keeps batches of two processes apart.
fn link(number: u32, first: u32, salt: u32) -> Vec<u8> {
    pack(&json!([f64::from(salt) + 0.5, [block(number, (number > first).then(|| number - 1))], 0]))
}

/// Batches 0.. of one process, each a link of the chain from `first`.
fn history(first: u32, len: u32) -> Vec<(u64, Vec<u8>)> {
    (0..len).map(|i| (u64::from(i), link(first + i, first, first))).collect()
}
