//! The step loop: what a step computes, how long it lasts, and what is known at its end.
//!
//! Owns the clock of one engine. Stretches in which nothing but decoding happens are skipped in closed form: the
//! duration of their steps grows by the same amount each.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use super::{EngineConfig, EngineError, EngineEvent, EngineRequest, EngineStats, cache::PrefixCache};
use crate::simulation::Nanos;

/// Picoseconds: 64 bits last for 213 days. Sums saturate there, beyond what a fleet goes on for.
type Picos = u64;

const PICOS: Picos = 1000;

/// The first whole nanosecond that is not before `time`.
pub(super) fn nanos(time: Picos) -> Nanos {
    time.div_ceil(PICOS)
}

/// Twice the pairs of a token of a chunk and a token before it, for `chunk` tokens after `context`.
pub(super) fn attention_pairs(context: u32, chunk: u32) -> u64 {
    u64::from(chunk) * (2 * u64::from(context) + u64::from(chunk))
}

/// The constants of a step, in picoseconds and with the speed in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepCost {
    base: Picos,
    floor: Picos,
    per_token: Picos,
    /// Of two pairs, so that a mean context of half a token has a whole price.
    two_pairs: Picos,
    decode_context: Picos,
}

impl StepCost {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let picos = |nanos: f64| (nanos * PICOS as f64 / config.speed).round() as Picos;
        Self {
            base: picos(config.step_base as f64),
            floor: picos(config.step_floor as f64),
            per_token: picos(config.per_token),
            two_pairs: picos(config.attention),
            decode_context: picos(config.decode_context),
        }
    }

    /// Duration of a step of `tokens`, with twice its pairs of attention and the context of its decodes.
    pub(super) fn duration(&self, tokens: u32, pairs: u64, context: u64) -> Picos {
        self.base
            .saturating_add(self.floor.max(u64::from(tokens).saturating_mul(self.per_token)))
            .saturating_add(pairs.saturating_mul(self.two_pairs) / 2)
            .saturating_add(context.saturating_mul(self.decode_context))
    }
}

/// The step under way.
#[derive(Debug, Clone, Copy)]
struct Step {
    start: Picos,
    end: Picos,
}

/// A sequence that runs.
struct Sequence {
    request: u32,
    prompt: u32,
    output: u32,
    chain: Arc<[u64]>,
    /// Tokens of the prompt that are in the cache.
    computed: u32,
    /// Blocks of the chain that were hit, stored or found stored.
    settled: u32,
    /// Blocks of the cache that it pins, in order.
    held: Vec<u32>,
    /// Blocks that it has for itself.
    own: u32,
    /// Place in the order of admission.
    order: u64,
}

/// When a sequence ends: after which step; then its order, then where it is.
type Completion = Reverse<(u64, u64, u32)>;

/// A simulated engine. See the [module](super) for what it does.
pub struct Engine {
    cost: StepCost,
    token_budget: u32,
    block_size: u32,
    kv_blocks: u32,
    max_sequences: u32,
    cache: PrefixCache,
    waiting: VecDeque<EngineRequest>,
    sequences: Vec<Sequence>,
    vacant: Vec<u32>,
    /// Sequences whose prompt is not computed, in order of admission.
    prefilling: VecDeque<u32>,
    completions: BinaryHeap<Completion>,
    admitted: u64,
    /// Sequences that decode, and what they read in the next step.
    decoding: u32,
    context: u64,
    step: Option<Step>,
    /// The step under way only decodes, and so will those after it until a sequence ends.
    quiet: bool,
    /// Tokens of the step under way for each of the first of `prefilling`.
    chunks: Vec<u32>,
    /// Blocks that had to go for it.
    evicted: Vec<u64>,
    busy: Picos,
    stats: EngineStats,
}

impl Engine {
    /// An idle engine with an empty cache. The configuration has to pass its [check](EngineConfig::check).
    pub fn new(config: &EngineConfig) -> Self {
        let token_budget = config.token_budget.max(1);
        Self {
            cost: StepCost::new(config),
            token_budget,
            block_size: config.block_size.max(1),
            kv_blocks: config.kv_blocks,
            max_sequences: config.max_sequences.clamp(1, token_budget),
            cache: PrefixCache::new(config.kv_blocks),
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            vacant: Vec::new(),
            prefilling: VecDeque::new(),
            completions: BinaryHeap::new(),
            admitted: 0,
            decoding: 0,
            context: 0,
            step: None,
            quiet: false,
            chunks: Vec::new(),
            evicted: Vec::new(),
            busy: 0,
            stats: EngineStats::default(),
        }
    }

    /// Queues a request at `now`. An idle engine starts a step at once; otherwise the request is looked at when the
    /// step under way ends. Steps that end by `now` have to be [run](Self::run) before.
    pub fn submit(&mut self, request: EngineRequest, now: Nanos) -> Result<(), EngineError> {
        let EngineRequest { prompt_tokens, output_tokens, ref blocks, .. } = request;
        let tokens = u64::from(prompt_tokens) + u64::from(output_tokens.saturating_sub(1));
        if blocks.len() as u64 * u64::from(self.block_size) > tokens {
            return Err(EngineError::Blocks { tokens, blocks: blocks.len() });
        }
        let needed = self.blocks_for(prompt_tokens, output_tokens);
        if needed > u64::from(self.kv_blocks) {
            return Err(EngineError::TooLarge { needed, available: self.kv_blocks });
        }
        debug_assert!(self.step.is_none_or(|step| step.end > now * PICOS), "steps that ended were not run");
        self.waiting.push_back(EngineRequest {
            prompt_tokens: prompt_tokens.max(1),
            output_tokens: output_tokens.max(1),
            ..request
        });
        self.stats.peak_waiting = self.stats.peak_waiting.max(self.waiting.len() as u32);
        match self.step {
            Some(_) => self.quiet = false,
            None => self.plan(now * PICOS),
        }
        Ok(())
    }

    /// When something outside may next hear of this engine if nothing else is submitted; `None` when it is idle.
    pub fn next(&self) -> Option<Nanos> {
        let step = self.step?;
        let end =
            if self.quiet { step.start.saturating_add(self.stretch(self.steps_to_completion())) } else { step.end };
        Some(nanos(end))
    }

    /// Takes all steps that end by `until`, and appends what they made known in the order of time.
    pub fn run(&mut self, until: Nanos, out: &mut Vec<EngineEvent>) {
        let until = until.saturating_mul(PICOS);
        while let Some(step) = self.step.filter(|step| step.end <= until) {
            if self.quiet && self.skip(step, until) {
                continue;
            }
            self.complete(step, out);
            self.plan(step.end);
        }
    }

    /// Sums of the steps that ended.
    pub fn stats(&self) -> EngineStats {
        EngineStats { busy_time: nanos(self.busy), ..self.stats }
    }

    /// Requests that wait for admission.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that are admitted and not finished.
    pub fn running(&self) -> usize {
        self.decoding as usize + self.prefilling.len()
    }

    fn blocks_for(&self, prompt: u32, output: u32) -> u64 {
        (u64::from(prompt.max(1)) + u64::from(output.max(1))).div_ceil(u64::from(self.block_size))
    }

    /// Steps up to and with the one that ends the first sequence, when all that run decode.
    fn steps_to_completion(&self) -> u64 {
        let Reverse((step, ..)) = self.completions.peek().expect("a step without prefill has a sequence that decodes");
        step - self.stats.steps
    }

    /// Duration of the next `steps` steps that do nothing but decode.
    fn stretch(&self, steps: u64) -> Picos {
        let first = self.cost.duration(self.decoding, 0, self.context);
        let growth = u64::from(self.decoding).saturating_mul(self.cost.decode_context);
        steps.saturating_mul(first).saturating_add(growth.saturating_mul(steps * steps.saturating_sub(1) / 2))
    }

    /// Passes over steps that only decode, end nobody and are over by `until`; leaves the next one under way.
    /// Whether there was any.
    fn skip(&mut self, step: Step, until: Picos) -> bool {
        let quiet = self.steps_to_completion() - 1;
        if quiet == 0 {
            return false;
        }
        let time = until - step.start;
        let steps = if self.stretch(quiet) <= time {
            quiet
        } else {
            // The last number of steps whose duration is no more than the time there is.
            let (mut within, mut beyond) = (1, quiet);
            while within + 1 < beyond {
                let middle = within + (beyond - within) / 2;
                if self.stretch(middle) <= time { within = middle } else { beyond = middle }
            }
            within
        };
        let duration = self.stretch(steps);
        self.busy = self.busy.saturating_add(duration);
        self.stats.steps += steps;
        self.context += steps * u64::from(self.decoding);
        let start = step.start + duration;
        self.step = Some(Step { start, end: start.saturating_add(self.stretch(1)) });
        true
    }

    /// Decides the step that starts at `start`, if there is anything to do.
    fn plan(&mut self, start: Picos) {
        self.chunks.clear();
        let mut budget = self.token_budget - self.decoding;
        let mut pairs = 0;
        for &slot in &self.prefilling {
            if budget == 0 {
                break;
            }
            let sequence = &self.sequences[slot as usize];
            let chunk = budget.min(sequence.prompt - sequence.computed);
            pairs += attention_pairs(sequence.computed, chunk);
            budget -= chunk;
            self.chunks.push(chunk);
        }
        while budget > 0 && self.running() < self.max_sequences as usize {
            let Some(slot) = self.admit() else { break };
            let sequence = &self.sequences[slot as usize];
            let chunk = budget.min(sequence.prompt - sequence.computed);
            pairs += attention_pairs(sequence.computed, chunk);
            budget -= chunk;
            self.chunks.push(chunk);
            self.prefilling.push_back(slot);
        }
        let tokens = self.token_budget - budget;
        // Whoever waits now does not fit, and will not before a sequence ends.
        self.quiet = self.chunks.is_empty();
        self.step = (tokens > 0).then(|| {
            let end = start.saturating_add(self.cost.duration(tokens, pairs, self.context));
            Step { start, end }
        });
        self.stats.peak_running = self.stats.peak_running.max(self.running() as u32);
    }

    /// Lets the first of those that wait run, if it fits.
    fn admit(&mut self) -> Option<u32> {
        let request = self.waiting.front()?;
        let total = self.blocks_for(request.prompt_tokens, request.output_tokens) as u32;
        let slot = self.vacant.last().copied();
        let mut held = match slot {
            Some(slot) => std::mem::take(&mut self.sequences[slot as usize].held),
            None => Vec::new(),
        };
        let prompt_blocks = request.blocks.len().min((request.prompt_tokens / self.block_size) as usize);
        let fits = self.cache.reserve(&request.blocks[..prompt_blocks], total, &mut held, &mut self.evicted);
        if !fits {
            if let Some(slot) = slot {
                self.sequences[slot as usize].held = held;
            }
            return None;
        }
        let request = self.waiting.pop_front()?;
        let hits = held.len() as u32;
        self.stats.prompt_blocks += prompt_blocks as u64;
        self.stats.hit_blocks += u64::from(hits);
        let sequence = Sequence {
            request: request.id,
            prompt: request.prompt_tokens,
            output: request.output_tokens,
            chain: request.blocks,
            computed: (hits * self.block_size).min(request.prompt_tokens - 1),
            settled: hits,
            held,
            own: total - hits,
            order: self.admitted,
        };
        self.admitted += 1;
        Some(match slot {
            Some(slot) => {
                self.vacant.pop();
                self.sequences[slot as usize] = sequence;
                slot
            }
            None => {
                self.sequences.push(sequence);
                (self.sequences.len() - 1) as u32
            }
        })
    }

    /// Ends the step under way.
    fn complete(&mut self, step: Step, out: &mut Vec<EngineEvent>) {
        let at = nanos(step.end);
        self.busy = self.busy.saturating_add(step.end - step.start);
        self.stats.steps += 1;
        if !self.evicted.is_empty() {
            self.stats.evictions += self.evicted.len() as u64;
            out.push(EngineEvent::Removed { at, blocks: std::mem::take(&mut self.evicted) });
        }
        self.context += u64::from(self.decoding);
        for index in 0..self.chunks.len() {
            // All but the last of the chunks end their prefill, so the first of the list is always the one.
            let slot = self.prefilling[0];
            self.advance(slot, self.chunks[index], at, out);
        }
        while let Some(&Reverse((due, _, slot))) = self.completions.peek() {
            if due > self.stats.steps {
                break;
            }
            self.completions.pop();
            self.decoding -= 1;
            let sequence = &self.sequences[slot as usize];
            self.context -= u64::from(sequence.prompt) + u64::from(sequence.output);
            self.finish(slot, at, out);
        }
    }

    /// Adds a chunk to the first sequence of `prefilling`.
    fn advance(&mut self, slot: u32, chunk: u32, at: Nanos, out: &mut Vec<EngineEvent>) {
        let sequence = &mut self.sequences[slot as usize];
        sequence.computed += chunk;
        self.stats.computed_prefill_tokens += u64::from(chunk);
        let computed = sequence.computed;
        self.store(slot, (computed / self.block_size) as usize, at, out);
        let sequence = &self.sequences[slot as usize];
        if sequence.computed < sequence.prompt {
            return;
        }
        self.prefilling.pop_front();
        out.push(EngineEvent::FirstToken { request: sequence.request, at });
        if sequence.output == 1 {
            self.finish(slot, at, out);
            return;
        }
        self.decoding += 1;
        self.context += u64::from(sequence.prompt) + 1;
        let due = self.stats.steps + u64::from(sequence.output) - 1;
        self.completions.push(Reverse((due, sequence.order, slot)));
    }

    /// Makes the blocks of a sequence reusable up to the first `complete` of them.
    fn store(&mut self, slot: u32, complete: usize, at: Nanos, out: &mut Vec<EngineEvent>) {
        let sequence = &mut self.sequences[slot as usize];
        let complete = complete.min(sequence.chain.len());
        let mut stored = Vec::new();
        let mut parent = None;
        for place in sequence.settled as usize..complete {
            let id = sequence.chain[place];
            match self.cache.store(id) {
                Some(block) => {
                    if stored.is_empty() {
                        parent = place.checked_sub(1).map(|before| sequence.chain[before]);
                        stored.reserve_exact(complete - place);
                    }
                    stored.push(id);
                    sequence.held.push(block);
                    sequence.own -= 1;
                }
                None if stored.is_empty() => {}
                None => out.push(EngineEvent::Stored { at, parent, blocks: std::mem::take(&mut stored) }),
            }
        }
        sequence.settled = sequence.settled.max(complete as u32);
        if !stored.is_empty() {
            out.push(EngineEvent::Stored { at, parent, blocks: stored });
        }
    }

    /// Ends a sequence that is in no list any more.
    fn finish(&mut self, slot: u32, at: Nanos, out: &mut Vec<EngineEvent>) {
        self.store(slot, usize::MAX, at, out);
        let sequence = &mut self.sequences[slot as usize];
        out.push(EngineEvent::Finished { request: sequence.request, at });
        self.cache.release(&sequence.held, sequence.own);
        sequence.held.clear();
        sequence.chain = Arc::default();
        self.vacant.push(slot);
    }
}
