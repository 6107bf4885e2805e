//! One rank's scheduler: continuous batching under a token budget, over the block pool. Pure: [`Scheduler::step`] says
//! what one engine step did, its owner gives the step its time.
//!
//! As in vLLM, a request's prefix is looked up when it is admitted, its full blocks enter the prefix cache in the step
//! that computes them, the block of its last token is always computed, and when blocks run out the youngest running
//! request gives its blocks back and is computed again later.

use std::collections::VecDeque;

use xxhash_rust::xxh3::xxh3_64;

use super::{
    cache::{BlockCache, BlockId, extend_block_hashes},
    event::{KvEvent, Namespace},
};

/// Generated tokens are below this.
const VOCABULARY: u64 = 32_000;

/// Sizes and limits of a rank.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Tokens a block.
    pub block_size: usize,
    /// Device blocks.
    pub num_blocks: u32,
    /// Blocks of evicted content kept in host memory.
    pub host_blocks: u32,
    /// Tokens computed in one step at most.
    pub max_batched_tokens: usize,
    /// Requests running at a time at most.
    pub max_running: usize,
    /// Start of every hash chain.
    pub hash_seed: u64,
}

/// A request as the scheduler sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Chosen by the caller, unique among live requests.
    pub id: u64,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens to generate, at least one.
    pub max_tokens: usize,
    /// What it shares a cache with.
    pub namespace: Namespace,
}

/// Why a request cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// No tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Prompt and output do not fit into the pool even alone.
    #[error("{needed} blocks are needed for prompt and output, the cache has {available}")]
    TooLong {
        /// Blocks for all tokens.
        needed: usize,
        /// Blocks of the pool.
        available: usize,
    },
}

/// A token that a step produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// The request.
    pub id: u64,
    /// Its next token.
    pub token: u32,
    /// Prompt tokens that were cached when it was admitted.
    pub cached_tokens: usize,
    /// This was its last token.
    pub finished: bool,
}

/// What one engine step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Prompt tokens computed.
    pub prefill_tokens: usize,
    /// Requests that were decoding.
    pub decoding: usize,
    /// Tokens produced, one a request.
    pub outputs: Vec<Output>,
    /// Changes of the cache.
    pub events: Vec<KvEvent>,
}

#[derive(Debug)]
struct Sequence {
    request: Request,
    /// Prompt and output so far.
    tokens: Vec<u32>,
    hashes: Vec<u64>,
    /// Identity of the prompt: equal prompts get equal answers on every engine.
    digest: u64,
    blocks: Vec<BlockId>,
    /// Tokens whose keys and values are in the blocks.
    computed: usize,
    /// Blocks already in the prefix cache.
    stored: usize,
    /// Set at the first admission only: later ones find the request's own blocks.
    cached_tokens: Option<usize>,
    /// The cache was cleared under it: what it computes on has no parent any more and is not cached.
    detached: bool,
}

/// One rank.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    cache: BlockCache,
    waiting: VecDeque<Sequence>,
    /// Oldest first.
    running: Vec<Sequence>,
    preemptions: u64,
}

impl Scheduler {
    /// An idle rank with an empty cache.
    pub fn new(config: SchedulerConfig) -> Self {
        let cache = BlockCache::new(config.num_blocks, config.host_blocks);
        Self { config, cache, waiting: VecDeque::new(), running: Vec::new(), preemptions: 0 }
    }

    /// The pool.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Requests running.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests waiting.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Times a running request had to give its blocks back.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Prompt tokens of `prompt` that an admission now would find cached.
    pub fn cached_tokens(&self, prompt: &[u32], namespace: &Namespace) -> usize {
        let mut hashes = Vec::new();
        extend_block_hashes(&mut hashes, self.config.hash_seed, self.config.block_size, namespace, prompt);
        let usable = &hashes[..self.usable_blocks(prompt.len())];
        let device = self.cache.prefix(usable);
        (device + self.cache.host_prefix(&usable[device..])) * self.config.block_size
    }

    /// Queues a request.
    ///
    /// # Errors
    /// It can never run.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let max_tokens = request.max_tokens.max(1);
        let longest = request.prompt.len().saturating_add(max_tokens - 1);
        let (needed, available) = (longest.div_ceil(self.config.block_size), self.cache.len());
        if needed > available {
            return Err(SubmitError::TooLong { needed, available });
        }
        let bytes: Vec<u8> = request.prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.waiting.push_back(Sequence {
            tokens: request.prompt.clone(),
            hashes: Vec::new(),
            digest: xxh3_64(&bytes),
            blocks: Vec::new(),
            computed: 0,
            stored: 0,
            cached_tokens: None,
            detached: false,
            request: Request { max_tokens, ..request },
        });
        Ok(())
    }

    /// Drops a request; nothing happens when it is not here.
    pub fn abort(&mut self, id: u64) {
        self.waiting.retain(|sequence| sequence.request.id != id);
        if let Some(index) = self.running.iter().position(|sequence| sequence.request.id == id) {
            let sequence = self.running.remove(index);
            self.cache.release(&sequence.blocks);
        }
    }

    /// Forgets all cached content; running requests go on.
    pub fn clear(&mut self) {
        self.cache.clear();
        for sequence in &mut self.running {
            sequence.detached = true;
        }
    }

    /// Runs one step; `None` when there is nothing to compute and nothing to tell.
    pub fn step(&mut self) -> Option<Step> {
        let mut step = Step::default();
        let mut budget = self.config.max_batched_tokens.max(1);
        let preempted = self.continue_running(&mut step, &mut budget);
        if !preempted {
            self.admit(&mut step, &mut budget);
        }
        self.finish(&mut step);
        step.events = self.cache.take_events();
        (step.prefill_tokens > 0 || step.decoding > 0 || !step.events.is_empty()).then_some(step)
    }

    /// Blocks of a prompt that may come from the cache: its last token is always computed.
    fn usable_blocks(&self, tokens: usize) -> usize {
        tokens.saturating_sub(1) / self.config.block_size
    }

    /// Computes on what runs already; says whether somebody had to give way.
    fn continue_running(&mut self, step: &mut Step, budget: &mut usize) -> bool {
        let mut preempted = false;
        let mut index = 0;
        while index < self.running.len() && *budget > 0 {
            let sequence = &self.running[index];
            let count = (sequence.tokens.len() - sequence.computed).min(*budget);
            let needed = self.missing_blocks(sequence, count);
            match self.cache.allocate(needed) {
                Some(blocks) => {
                    let sequence = &mut self.running[index];
                    sequence.blocks.extend(blocks);
                    self.compute(index, count, step);
                    *budget -= count;
                    index += 1;
                }
                None => {
                    // The youngest gives way, this one itself if it is the youngest.
                    let Some(mut youngest) = self.running.pop() else { break };
                    self.cache.release(&youngest.blocks);
                    youngest.blocks.clear();
                    (youngest.computed, youngest.stored) = (0, 0);
                    youngest.detached = false;
                    self.waiting.push_front(youngest);
                    self.preemptions += 1;
                    preempted = true;
                }
            }
        }
        preempted
    }

    /// Starts waiting requests, in order, while budget, places and blocks last.
    fn admit(&mut self, step: &mut Step, budget: &mut usize) {
        while *budget > 0 && self.running.len() < self.config.max_running {
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            self.extend_hashes(&mut sequence);
            let size = self.config.block_size;
            let usable = &sequence.hashes[..self.usable_blocks(sequence.tokens.len())];
            let on_device = self.cache.prefix(usable);
            let on_host = self.cache.host_prefix(&usable[on_device..]);
            let known = (on_device + on_host) * size;
            let count = (sequence.tokens.len() - known).min(*budget);
            let referenced = self.cache.reference(&usable[..on_device]);
            let needed = (known + count).div_ceil(size) - on_device;
            let Some(new) = self.cache.allocate(needed) else {
                self.cache.release(&referenced);
                self.waiting.push_front(sequence);
                return;
            };
            self.cache.load_from_host(&usable[on_device..on_device + on_host]);
            sequence.blocks = referenced;
            sequence.blocks.extend(new);
            (sequence.computed, sequence.stored) = (known, on_device);
            sequence.cached_tokens.get_or_insert(known);
            self.running.push(sequence);
            self.compute(self.running.len() - 1, count, step);
            *budget -= count;
        }
    }

    /// Computes `count` tokens of a running request, whose blocks are there.
    fn compute(&mut self, index: usize, count: usize, step: &mut Step) {
        let mut sequence = self.running.swap_remove(index);
        let in_prompt = sequence.request.prompt.len().saturating_sub(sequence.computed).min(count);
        step.prefill_tokens += in_prompt;
        step.decoding += usize::from(in_prompt == 0);
        sequence.computed += count;
        self.extend_hashes(&mut sequence);
        let full = sequence.computed / self.config.block_size;
        if full > sequence.stored && !sequence.detached {
            let (from, size) = (sequence.stored, self.config.block_size);
            self.cache.store(
                &sequence.blocks[from..full],
                &sequence.hashes[from..full],
                from.checked_sub(1).map(|index| sequence.hashes[index]),
                &sequence.tokens[from * size..full * size],
                &sequence.request.namespace,
            );
            sequence.stored = full;
        }
        if sequence.computed == sequence.tokens.len() {
            let token = next_token(sequence.digest, sequence.tokens.len());
            sequence.tokens.push(token);
            step.outputs.push(Output {
                id: sequence.request.id,
                token,
                cached_tokens: sequence.cached_tokens.unwrap_or(0),
                finished: sequence.tokens.len() == sequence.request.prompt.len() + sequence.request.max_tokens,
            });
        }
        // Back to its place: the order of age decides who gives way.
        self.running.push(sequence);
        let last = self.running.len() - 1;
        self.running.swap(index, last);
    }

    /// Frees what is done.
    fn finish(&mut self, step: &mut Step) {
        for output in step.outputs.iter().filter(|output| output.finished) {
            if let Some(index) = self.running.iter().position(|sequence| sequence.request.id == output.id) {
                let sequence = self.running.remove(index);
                self.cache.release(&sequence.blocks);
            }
        }
    }

    fn missing_blocks(&self, sequence: &Sequence, count: usize) -> usize {
        (sequence.computed + count).div_ceil(self.config.block_size).saturating_sub(sequence.blocks.len())
    }

    fn extend_hashes(&self, sequence: &mut Sequence) {
        let (seed, size) = (self.config.hash_seed, self.config.block_size);
        extend_block_hashes(&mut sequence.hashes, seed, size, &sequence.request.namespace, &sequence.tokens);
    }
}

/// The token at `position` of the answer to the prompt with `digest`.
fn next_token(digest: u64, position: usize) -> u32 {
    let mut bytes = digest.to_le_bytes().to_vec();
    bytes.extend_from_slice(&position.to_le_bytes());
    (xxh3_64(&bytes) % VOCABULARY) as u32
}

#[cfg(test)]
mod tests;
