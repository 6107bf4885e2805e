//! What a workload is made of, and what no routing could better: the time to the first token on idle workers that share
//! a cache without bound.

use super::{BLOCK_SIZE, Session, WorkloadError, blocks::BlockSet};
use crate::simulation::{Nanos, engine::EngineConfig};

/// Sums over the requests of a workload, in the order of its sessions.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Requests, all turns counted.
    pub requests: u64,
    /// Sessions.
    pub sessions: u64,
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Complete blocks of the prompts.
    pub blocks: u64,
    /// Those of them that an unbounded shared cache has.
    pub cached_blocks: u64,
    /// Prompt tokens that such a cache does not save; the last token of a prompt is always computed.
    pub uncached_tokens: u64,
    /// Start of the last session.
    pub last_start: Nanos,
    /// Time to the first token with such a cache and nobody else on the worker, sorted.
    ttft: Vec<Nanos>,
}

impl Profile {
    /// Takes a workload in.
    pub fn of(
        sessions: impl IntoIterator<Item = Result<Session, WorkloadError>>,
        engine: &EngineConfig,
    ) -> Result<Self, WorkloadError> {
        let mut profile = Self::default();
        let mut seen = BlockSet::default();
        for session in sessions {
            let session = session?;
            profile.sessions += 1;
            profile.last_start = session.start;
            for turn in &session.turns {
                let hits = seen.extend(turn.prompt_blocks(BLOCK_SIZE));
                let cached = (hits * BLOCK_SIZE).min(turn.prompt_tokens - 1);
                profile.requests += 1;
                profile.prompt_tokens += u64::from(turn.prompt_tokens);
                profile.output_tokens += u64::from(turn.output_tokens);
                profile.blocks += turn.blocks.len() as u64;
                profile.cached_blocks += u64::from(hits);
                profile.uncached_tokens += u64::from(turn.prompt_tokens - cached);
                profile.ttft.push(engine.idle_ttft(turn.prompt_tokens, cached));
            }
        }
        profile.ttft.sort_unstable();
        Ok(profile)
    }

    /// The time to the first token that a share `quantile` of the requests is below; 0 without requests.
    pub fn ttft(&self, quantile: f64) -> Nanos {
        let place = (self.ttft.len() as f64 * quantile) as usize;
        self.ttft.get(place.min(self.ttft.len().saturating_sub(1))).copied().unwrap_or(0)
    }
}
