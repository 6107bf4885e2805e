//! One data-parallel rank at work: its scheduler, the time its steps take, and its event stream.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};

use super::{
    config::EngineConfig,
    encode::Encoder,
    event::Namespace,
    scheduler::{Output, Request, Scheduler, SchedulerConfig, Step, SubmitError},
    stream::EventStream,
};

/// What a rank has done and is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RankStats {
    /// The rank.
    pub data_parallel_rank: u32,
    /// Number its next event batch will have.
    pub next_sequence: u64,
    /// Device blocks.
    pub blocks: usize,
    /// Device blocks that running requests use.
    pub blocks_in_use: usize,
    /// Distinct block hashes held on the device.
    pub blocks_cached: usize,
    /// Cached blocks given up for others.
    pub blocks_evicted: u64,
    /// Requests running.
    pub running: usize,
    /// Requests waiting.
    pub waiting: usize,
    /// Times a running request had to give its blocks back.
    pub preemptions: u64,
    /// Requests admitted.
    pub requests: u64,
    /// Their prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens that were cached.
    pub cached_tokens: u64,
    /// Subscribers of its events.
    pub subscribers: usize,
    /// Event messages dropped because a subscriber was behind.
    pub events_dropped: u64,
}

/// One rank.
#[derive(Debug)]
pub(super) struct Rank {
    number: u32,
    state: Mutex<State>,
    work: Notify,
    stream: EventStream,
    encoder: Encoder,
}

#[derive(Debug)]
struct State {
    scheduler: Scheduler,
    waiters: HashMap<u64, mpsc::UnboundedSender<Output>>,
    next_id: u64,
    stats: RankStats,
}

impl Rank {
    /// An idle rank whose hash chains start with `hash_seed`.
    pub(super) fn new(number: u32, config: &EngineConfig, hash_seed: u64, stream: EventStream) -> Self {
        let block_size = config.block_size as usize;
        let scheduler = Scheduler::new(SchedulerConfig {
            block_size,
            num_blocks: config.num_blocks,
            host_blocks: config.host_blocks,
            max_batched_tokens: config.max_batched_tokens,
            max_running: config.max_running,
            hash_seed,
        });
        let stats = RankStats { data_parallel_rank: number, ..RankStats::default() };
        Self {
            number,
            state: Mutex::new(State { scheduler, waiters: HashMap::new(), next_id: 0, stats }),
            work: Notify::new(),
            stream,
            encoder: Encoder { encoding: config.encoding, byte_hashes: config.byte_hashes, block_size },
        }
    }

    /// The event stream.
    pub(super) fn stream(&self) -> &EventStream {
        &self.stream
    }

    /// Requests here, running and waiting.
    pub(super) fn load(&self) -> usize {
        let state = self.state.lock();
        state.scheduler.running() + state.scheduler.waiting()
    }

    /// Queues a request; its tokens come over the receiver, which closes early when the engine restarts. A receiver
    /// that is dropped cancels the request.
    pub(super) fn submit(
        &self,
        prompt: Vec<u32>,
        max_tokens: usize,
        namespace: Namespace,
    ) -> Result<mpsc::UnboundedReceiver<Output>, SubmitError> {
        let mut state = self.state.lock();
        let id = state.next_id;
        let prompt_tokens = prompt.len() as u64;
        state.scheduler.submit(Request { id, prompt, max_tokens, namespace })?;
        state.next_id += 1;
        state.stats.requests += 1;
        state.stats.prompt_tokens += prompt_tokens;
        let (sender, receiver) = mpsc::unbounded_channel();
        state.waiters.insert(id, sender);
        drop(state);
        self.work.notify_one();
        Ok(receiver)
    }

    /// Prompt tokens of `prompt` that are cached now.
    pub(super) fn cached_tokens(&self, prompt: &[u32], namespace: &Namespace) -> usize {
        self.state.lock().scheduler.cached_tokens(prompt, namespace)
    }

    /// Forgets all cached content.
    pub(super) fn clear(&self) {
        self.state.lock().scheduler.clear();
        self.work.notify_one();
    }

    /// Its counts.
    pub(super) fn stats(&self) -> RankStats {
        let state = self.state.lock();
        let (scheduler, cache) = (&state.scheduler, state.scheduler.cache());
        RankStats {
            next_sequence: self.stream.ring().lock().next(),
            blocks: cache.len(),
            blocks_in_use: cache.len() - cache.free(),
            blocks_cached: cache.cached(),
            blocks_evicted: cache.evicted(),
            running: scheduler.running(),
            waiting: scheduler.waiting(),
            preemptions: scheduler.preemptions(),
            subscribers: self.stream.publisher().subscribers(),
            events_dropped: self.stream.publisher().dropped(),
            ..state.stats.clone()
        }
    }

    /// Runs steps for ever: each takes its time, then its events are published and its tokens given out.
    pub(super) async fn run(self: Arc<Self>, config: EngineConfig) {
        loop {
            let Some(step) = self.step() else {
                self.work.notified().await;
                continue;
            };
            let time = config.step_time(step.prefill_tokens, step.decoding > 0);
            if time.is_zero() {
                tokio::task::yield_now().await;
            } else {
                sleep(time).await;
            }
            self.publish(&step);
            self.give_out(&step);
        }
    }

    fn step(&self) -> Option<Step> {
        let mut state = self.state.lock();
        let State { scheduler, waiters, .. } = &mut *state;
        waiters.retain(|id, waiter| {
            let open = !waiter.is_closed();
            if !open {
                scheduler.abort(*id);
            }
            open
        });
        scheduler.step()
    }

    fn publish(&self, step: &Step) {
        if !step.events.is_empty() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.stream.publish(self.encoder.batch(now.as_secs_f64(), &step.events, Some(self.number)));
        }
    }

    fn give_out(&self, step: &Step) {
        let mut state = self.state.lock();
        for output in &step.outputs {
            let State { waiters, stats, .. } = &mut *state;
            let Some(waiter) = waiters.get(&output.id) else { continue };
            // A waiter that is gone is noticed before the next step.
            let _gone = waiter.send(*output);
            if output.finished {
                stats.cached_tokens += output.cached_tokens as u64;
                waiters.remove(&output.id);
            }
        }
    }
}
