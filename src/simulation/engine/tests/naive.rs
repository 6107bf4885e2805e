//! The engine once more, in the most obvious way: every step is taken, everything is looked for.

use std::collections::VecDeque;

use crate::simulation::{
    Nanos,
    engine::{EngineConfig, EngineEvent, EngineRequest, EngineStats},
};

struct Cached {
    id: u64,
    pins: u32,
    /// Turn of its last release.
    released: u64,
}

struct Running {
    request: EngineRequest,
    computed: u32,
    generated: u32,
    /// Blocks looked at: hit, stored, or found to be there.
    settled: usize,
    pinned: Vec<u64>,
    own: u64,
}

pub(super) struct Naive {
    config: EngineConfig,
    waiting: VecDeque<EngineRequest>,
    running: Vec<Running>,
    cached: Vec<Cached>,
    releases: u64,
    /// Start and end in picoseconds, and the chunk of each that runs: none for one that decodes.
    step: Option<(u128, u128, Vec<u32>, Vec<u64>)>,
    busy: u128,
    pub(super) stats: EngineStats,
}

impl Naive {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            config: config.clone(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            cached: Vec::new(),
            releases: 0,
            step: None,
            busy: 0,
            stats: EngineStats::default(),
        }
    }

    pub(super) fn submit(&mut self, request: EngineRequest, now: Nanos) {
        self.waiting.push_back(request);
        self.stats.peak_waiting = self.stats.peak_waiting.max(self.waiting.len() as u32);
        if self.step.is_none() {
            self.plan(u128::from(now) * 1000);
        }
    }

    pub(super) fn run(&mut self, until: Nanos, out: &mut Vec<EngineEvent>) {
        while let Some((_, end, ..)) = self.step {
            if end > u128::from(until) * 1000 {
                break;
            }
            self.complete(out);
            self.plan(end);
        }
        self.stats.busy_time = self.busy.div_ceil(1000) as Nanos;
    }

    fn free(&self) -> u64 {
        let own: u64 = self.running.iter().map(|running| running.own).sum();
        u64::from(self.config.kv_blocks) - self.cached.len() as u64 - own
    }

    fn find(&mut self, id: u64) -> Option<&mut Cached> {
        self.cached.iter_mut().find(|cached| cached.id == id)
    }

    fn plan(&mut self, start: u128) {
        let config = self.config.clone();
        let decodes = |running: &Running| running.computed == running.request.prompt_tokens;
        let mut budget = config.token_budget - self.running.iter().filter(|r| decodes(r)).count() as u32;
        let context: u128 = self
            .running
            .iter()
            .filter(|running| decodes(running))
            .map(|running| u128::from(running.request.prompt_tokens + running.generated))
            .sum();
        let mut chunks = Vec::new();
        for running in &self.running {
            let chunk = budget.min(running.request.prompt_tokens - running.computed);
            budget -= chunk;
            chunks.push(chunk);
        }
        let mut evicted = Vec::new();
        while budget > 0 && (self.running.len() as u32) < config.max_sequences {
            let Some(request) = self.waiting.front().cloned() else { break };
            let tokens = u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
            let complete = (request.prompt_tokens / config.block_size) as usize;
            let prompt = &request.blocks[..complete.min(request.blocks.len())];
            let pinned: Vec<u64> =
                prompt.iter().copied().take_while(|&id| self.cached.iter().any(|c| c.id == id)).collect();
            let own = tokens.div_ceil(u64::from(config.block_size)) - pinned.len() as u64;
            let idle = self.cached.iter().filter(|c| c.pins == 0 && !pinned.contains(&c.id)).count() as u64;
            if own > self.free() + idle {
                break;
            }
            self.waiting.pop_front();
            for &id in &pinned {
                self.find(id).unwrap().pins += 1;
            }
            while self.free() < own {
                let idle = self.cached.iter().enumerate().filter(|(_, cached)| cached.pins == 0);
                let (place, _) = idle.min_by_key(|(_, cached)| cached.released).unwrap();
                evicted.push(self.cached.remove(place).id);
            }
            self.stats.prompt_blocks += complete.min(request.blocks.len()) as u64;
            self.stats.hit_blocks += pinned.len() as u64;
            let hit = pinned.len() as u32 * config.block_size;
            let computed = if hit < request.prompt_tokens { hit } else { request.prompt_tokens - 1 };
            let chunk = budget.min(request.prompt_tokens - computed);
            budget -= chunk;
            chunks.push(chunk);
            let settled = pinned.len();
            self.running.push(Running { request, computed, generated: 0, settled, pinned, own });
        }
        self.stats.peak_running = self.stats.peak_running.max(self.running.len() as u32);
        self.step = None;
        if self.running.is_empty() {
            return;
        }
        let picos = |nanos: f64| (nanos * 1000.0 / config.speed).round() as u128;
        let linear = u128::from(config.token_budget - budget) * picos(config.per_token);
        let pairs: u128 = self
            .running
            .iter()
            .zip(&chunks)
            .map(|(running, &chunk)| u128::from(chunk) * (2 * u128::from(running.computed) + u128::from(chunk)))
            .sum();
        let duration = picos(config.step_base as f64)
            + linear.max(picos(config.step_floor as f64))
            + pairs * picos(config.attention) / 2
            + context * picos(config.decode_context);
        self.step = Some((start, start + duration, chunks, evicted));
    }

    fn complete(&mut self, out: &mut Vec<EngineEvent>) {
        let (start, end, chunks, evicted) = self.step.take().unwrap();
        let at = end.div_ceil(1000) as Nanos;
        self.busy += end - start;
        self.stats.steps += 1;
        self.stats.evictions += evicted.len() as u64;
        if !evicted.is_empty() {
            out.push(EngineEvent::Removed { at, blocks: evicted });
        }
        let decoding: Vec<bool> = self.running.iter().map(|r| r.computed == r.request.prompt_tokens).collect();
        let mut ended = Vec::new();
        for place in 0..self.running.len() {
            if decoding[place] {
                continue;
            }
            self.stats.computed_prefill_tokens += u64::from(chunks[place]);
            let running = &mut self.running[place];
            running.computed += chunks[place];
            let complete = (running.computed / self.config.block_size) as usize;
            self.store(place, complete, at, out);
            let running = &mut self.running[place];
            if running.computed == running.request.prompt_tokens {
                running.generated = 1;
                let request = running.request.id;
                out.push(EngineEvent::FirstToken { request, at });
                if running.request.output_tokens == 1 {
                    self.store(place, usize::MAX, at, out);
                    out.push(EngineEvent::Finished { request, at });
                    self.release(place);
                    ended.push(place);
                }
            }
        }
        for (place, _) in decoding.iter().enumerate().filter(|(_, decodes)| **decodes) {
            let running = &mut self.running[place];
            running.generated += 1;
            if running.generated == running.request.output_tokens {
                let request = running.request.id;
                self.store(place, usize::MAX, at, out);
                out.push(EngineEvent::Finished { request, at });
                self.release(place);
                ended.push(place);
            }
        }
        let mut place = 0;
        self.running.retain(|_| {
            place += 1;
            !ended.contains(&(place - 1))
        });
    }

    fn store(&mut self, place: usize, complete: usize, at: Nanos, out: &mut Vec<EngineEvent>) {
        let running = &mut self.running[place];
        let chain = running.request.blocks.clone();
        let new: Vec<usize> = (running.settled..complete.min(chain.len()))
            .filter(|&block| !self.cached.iter().any(|cached| cached.id == chain[block]))
            .collect();
        for run in new.chunk_by(|block, next| block + 1 == *next) {
            let parent = run[0].checked_sub(1).map(|before| chain[before]);
            out.push(EngineEvent::Stored { at, parent, blocks: run.iter().map(|&block| chain[block]).collect() });
        }
        for &block in &new {
            self.cached.push(Cached { id: chain[block], pins: 1, released: 0 });
            running.pinned.push(chain[block]);
            running.own -= 1;
        }
        running.settled = running.settled.max(complete.min(chain.len()));
    }

    fn release(&mut self, place: usize) {
        for id in std::mem::take(&mut self.running[place].pinned).into_iter().rev() {
            self.releases += 1;
            let released = self.releases;
            let cached = self.find(id).expect("pinned blocks are not evicted");
            cached.pins -= 1;
            cached.released = released;
        }
        self.running[place].own = 0;
    }
}
