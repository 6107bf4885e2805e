//! A simulated inference engine: continuous batching, chunked prefill and a prefix cache, in virtual time.
//!
//! The engine works in steps. A step takes one token for every sequence that decodes, then gives what is left of the
//! token budget to the prefills under way in the order of their admission, then admits waiting requests, first come
//! first served: when the first does not fit, none behind it is looked at. A request is admitted when its whole prompt
//! and its whole output fit into the KV cache; nothing is preempted. A step lasts
//!
//! ```text
//! step_base + max(step_floor, tokens x per_token) + sum(chunk x mean context) x attention + context x decode_context
//! ```
//!
//! where `context` is what the decoding sequences read. The first token comes with the step that ends the prefill, each
//! further one with the next step.
//!
//! Complete blocks of prompts are reusable from the end of the step that computed them; those that the answer completes,
//! where a request names them, from its end. Running requests pin the blocks they hit or stored; what nobody pins is
//! evicted, least recently used first and the tail of a chain before its head. A prompt that is cached whole still
//! computes its last token. Two requests that compute one block at the same time both compute it, and the second copy
//! dies with its request.
//!
//! Invariants: a step is decided at its start from what was submitted before, and its duration never changes after;
//! every result depends on the calls alone; time is counted in picoseconds inside, so that skipping many steps at once
//! gives the same instants as taking them one by one.

mod cache;
mod schedule;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use self::schedule::Engine;
use super::{MILLISECOND, Nanos, SECOND};

/// What an engine is made of. The defaults stand for a dense model of 70 billion parameters on four GPUs: about 13,300
/// tokens a second in short prompts, 9,000 in long ones, and 15 ms for a decode step without context.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Tokens a step may compute.
    pub token_budget: u32,
    /// Part of a step that depends on nothing.
    pub step_base: Nanos,
    /// Least time of the linear part of a step.
    pub step_floor: Nanos,
    /// Time of a token in the linear part, in nanoseconds.
    pub per_token: f64,
    /// Time of a token of a prefill chunk and a token of its mean context, in nanoseconds.
    pub attention: f64,
    /// Time of a token of context of a decoding sequence, in nanoseconds a step.
    pub decode_context: f64,
    /// KV cache, in blocks.
    pub kv_blocks: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Sequences that may run at once; no more than the token budget count.
    pub max_sequences: u32,
    /// Every time is divided by this: 0.5 is an engine of half the speed.
    pub speed: f64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            token_budget: 2048,
            step_base: 3 * MILLISECOND,
            step_floor: 12 * MILLISECOND,
            per_token: 75_000.0,
            attention: 1.5,
            decode_context: 30.0,
            kv_blocks: 2000,
            block_size: 512,
            max_sequences: 1024,
            speed: 1.0,
        }
    }
}

impl EngineConfig {
    /// Whether every number is in a range that an engine can have: counts of 1 or more, times of a step up to a minute,
    /// times of a token up to 10 ms, and a speed of 0.001 to 1,000.
    pub fn check(&self) -> Result<(), EngineError> {
        let per_token = 0.0..=1e7;
        let faults = [
            ("token_budget", !(1..=1 << 24).contains(&self.token_budget)),
            ("step_base", self.step_base > 60 * SECOND),
            ("step_floor", self.step_floor > 60 * SECOND),
            ("per_token", !per_token.contains(&self.per_token)),
            ("attention", !per_token.contains(&self.attention)),
            ("decode_context", !per_token.contains(&self.decode_context)),
            ("kv_blocks", self.kv_blocks == 0),
            ("block_size", !(1..=1 << 16).contains(&self.block_size)),
            ("max_sequences", self.max_sequences == 0),
            ("speed", !(1e-3..=1e3).contains(&self.speed)),
        ];
        match faults.into_iter().find(|&(_, wrong)| wrong) {
            Some((field, _)) => Err(EngineError::Config { field }),
            None => Ok(()),
        }
    }

    /// Time to the first token on an idle engine for `prompt_tokens` of which `cached_tokens` need not be computed.
    ///
    /// At least one token is computed, so this is the time of one step or more.
    pub fn idle_ttft(&self, prompt_tokens: u32, cached_tokens: u32) -> Nanos {
        let cost = schedule::StepCost::new(self);
        let mut done = cached_tokens.min(prompt_tokens.saturating_sub(1));
        let mut time = 0;
        while done < prompt_tokens {
            let chunk = (prompt_tokens - done).min(self.token_budget.max(1));
            time = cost.duration(chunk, schedule::attention_pairs(done, chunk), 0).saturating_add(time);
            done += chunk;
        }
        schedule::nanos(time)
    }
}

/// A request, as an engine sees it.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// Name in the events of this request; the engine needs nothing of it.
    pub id: u32,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens to generate; 0 counts as 1.
    pub output_tokens: u32,
    /// Ids of the complete blocks of the prompt, in order, and behind them, as far as they are to be reusable, of those
    /// that the answer completes; its last token is never computed. An id stands for its block and everything before it.
    pub blocks: Arc<[u64]>,
}

/// What happens in an engine and can be known outside; each at the end of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineEvent {
    /// The prefill of a request ended and its first token is there.
    FirstToken {
        /// [`EngineRequest::id`].
        request: u32,
        /// End of the step.
        at: Nanos,
    },
    /// The last token of a request is there.
    Finished {
        /// [`EngineRequest::id`].
        request: u32,
        /// End of the step.
        at: Nanos,
    },
    /// Blocks became reusable: consecutive ones of one prompt.
    Stored {
        /// End of the step.
        at: Nanos,
        /// Block before the first of `blocks` in the prompt, if that is not the first of the prompt.
        parent: Option<u64>,
        /// Ids, none of which was cached before.
        blocks: Vec<u64>,
    },
    /// Blocks were evicted.
    Removed {
        /// End of the step they made room for.
        at: Nanos,
        /// Ids, in the order of eviction.
        blocks: Vec<u64>,
    },
}

impl EngineEvent {
    /// When it happened.
    pub fn at(&self) -> Nanos {
        match self {
            Self::FirstToken { at, .. }
            | Self::Finished { at, .. }
            | Self::Stored { at, .. }
            | Self::Removed { at, .. } => *at,
        }
    }
}

/// Sums of an engine since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Tokens of prompts that were computed.
    pub computed_prefill_tokens: u64,
    /// Complete blocks of admitted prompts.
    pub prompt_blocks: u64,
    /// Those of them that were found in the cache.
    pub hit_blocks: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Steps that ended.
    pub steps: u64,
    /// Time in steps that ended.
    pub busy_time: Nanos,
    /// Most sequences that ran at once.
    pub peak_running: u32,
    /// Most requests that waited for admission at once.
    pub peak_waiting: u32,
}

/// What an engine does not take: a request, or what it is made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A number of its configuration is out of range.
    #[error("{field} of the engine is out of range")]
    Config {
        /// The field of [`EngineConfig`].
        field: &'static str,
    },
    /// It could never be admitted.
    #[error("request needs {needed} KV blocks, the engine has {available}")]
    TooLarge {
        /// Blocks for the whole prompt and the whole output.
        needed: u64,
        /// Blocks of the engine.
        available: u32,
    },
    /// Prompt and answer are shorter than their complete blocks.
    #[error("prompt and answer of {tokens} tokens cannot have {blocks} complete blocks")]
    Blocks {
        /// Tokens of the prompt, and of the answer but for its last.
        tokens: u64,
        /// Complete blocks named.
        blocks: usize,
    },
}
