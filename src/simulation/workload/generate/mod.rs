//! Generated workloads: each a pattern of reuse that routing policies differ on, with Poisson arrivals.
//!
//! The base rate of a workload is near what eight workers sustain under the default cost of the reference; the levels
//! are shares of it. A fleet of more workers gets the same rate for each and the same time, so more requests.

mod agentic;
mod decode;
mod hot;
mod tenants;

use std::sync::Arc;

use super::{BLOCK_SIZE, Demand, LEVELS, MOST_REQUESTS, SPAN, SPAN_DAYS, Session, Sessions, Turn, WorkloadError};
use crate::simulation::{Nanos, SECOND};

/// A generated workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generator {
    /// Many tenants, each with a long system prompt of its own, of very different frequency.
    Tenants,
    /// Long sessions of agents, whose prompts grow with every turn.
    Agentic,
    /// One long prefix takes a third of the requests, and two thirds in bursts.
    Hot,
    /// Short prompts and long answers: the memory of the engines binds, not their prefill.
    Decode,
}

impl Generator {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tenants, Self::Agentic, Self::Hot, Self::Decode];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenants => "tenants",
            Self::Agentic => "agentic",
            Self::Hot => "hot",
            Self::Decode => "decode",
        }
    }

    /// Requests a second for each worker, all turns counted, at a share of 1.
    pub fn base_rate(self) -> f64 {
        match self {
            Self::Tenants => 4.2,
            Self::Agentic => 4.0,
            Self::Hot => 3.6,
            Self::Decode => 2.6,
        }
    }

    /// Shares of the base rate at the levels.
    pub fn levels(self) -> [f64; LEVELS as usize] {
        match self {
            Self::Tenants => [0.6, 0.8, 0.97, 1.08],
            Self::Agentic => [0.22, 0.30, 0.36, 0.40],
            Self::Hot => [0.5, 0.68, 0.82, 0.9],
            Self::Decode => [0.42, 0.58, 0.70, 0.77],
        }
    }

    /// Seconds of arrivals.
    pub fn duration(self) -> f64 {
        match self {
            Self::Tenants => tenants::SECONDS,
            Self::Agentic => agentic::SECONDS,
            Self::Hot => hot::SECONDS,
            Self::Decode => decode::SECONDS,
        }
    }

    /// Expected turns of a session.
    fn turns(self) -> f64 {
        if self == Self::Agentic { agentic::TURNS } else { 1.0 }
    }

    /// Sessions a second of the whole fleet.
    fn session_rate(self, demand: &Demand) -> Result<f64, WorkloadError> {
        let requests_per_second = self.base_rate() * f64::from(demand.workers);
        let rate = demand.share(self.levels(), requests_per_second)? * requests_per_second;
        let requests = rate * self.duration();
        if requests > MOST_REQUESTS as f64 {
            return Err(WorkloadError::Requests { requests, most: MOST_REQUESTS });
        }
        // There is one session at least.
        if self.turns() / rate > (SPAN / SECOND) as f64 {
            return Err(WorkloadError::Span { days: SPAN_DAYS });
        }
        Ok(rate / self.turns())
    }

    /// Sessions of a demand; at least one.
    fn session_count(self, rate: f64) -> u64 {
        (rate * self.duration()).round().max(1.0) as u64
    }

    /// Requests of a demand; exact but for sessions of several turns.
    pub fn expected_requests(self, demand: &Demand) -> Result<u64, WorkloadError> {
        let sessions = self.session_count(self.session_rate(demand)?);
        Ok((sessions as f64 * self.turns()).round() as u64)
    }

    /// The sessions of a demand.
    pub fn sessions(self, demand: &Demand) -> Result<Sessions, WorkloadError> {
        let rate = self.session_rate(demand)?;
        let count = self.session_count(rate) as usize;
        let seed = demand.seed;
        Ok(match self {
            Self::Tenants => Box::new(tenants::sessions(seed, rate).take(count).map(Ok)),
            Self::Agentic => Box::new(agentic::sessions(seed, rate).take(count).map(Ok)),
            Self::Hot => Box::new(hot::sessions(seed, rate).take(count).map(Ok)),
            Self::Decode => Box::new(decode::sessions(seed, rate).take(count).map(Ok)),
        })
    }
}

/// Names blocks: each new one gets the next number.
#[derive(Debug, Default)]
struct Blocks {
    named: u64,
}

impl Blocks {
    /// The complete blocks of a prompt of `tokens` that starts with those of `prefix`, as far as it is long enough.
    fn prompt(&mut self, prefix: &[u64], tokens: u32) -> Arc<[u64]> {
        let blocks = (tokens / BLOCK_SIZE) as usize;
        let shared = prefix.len().min(blocks);
        let first = self.named;
        self.named += (blocks - shared) as u64;
        prefix[..shared].iter().copied().chain(first..self.named).collect()
    }

    /// Prefixes of `tokens` each that prompts share.
    fn prefixes(&mut self, count: u32, tokens: u32) -> Vec<Arc<[u64]>> {
        (0..count).map(|_| self.prompt(&[], tokens)).collect()
    }
}

/// A session of one turn.
fn single(id: u64, start: Nanos, prompt_tokens: u32, output_tokens: u32, blocks: Arc<[u64]>) -> Session {
    Session { id, start, turns: vec![Turn { think: 0, prompt_tokens, output_tokens, blocks }] }
}
