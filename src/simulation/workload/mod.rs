//! What is asked of a simulated fleet: traces of real services and generated workloads, brought to a load, and recorded
//! sessions as they are.
//!
//! A workload is a list of sessions in the order of their start. A request of an open loop is a session of one turn;
//! in a session of several, each turn starts a think time after the end of the one before, so a slow fleet is asked
//! less. Prompts are named by the ids of their complete blocks; equal ids mean an equal prompt up to there.
//!
//! Invariants: sessions come in order of start and the same seed gives the same sessions; a trace is read as a stream,
//! and what is kept of it does not grow with its prompts.

mod blocks;
mod error;
mod generate;
mod lines;
mod profile;
mod random;
mod recorded;
#[cfg(test)]
mod tests;
mod trace;

use std::sync::Arc;

pub use self::{
    error::{LineError, WorkloadError},
    generate::Generator,
    profile::Profile,
    recorded::Recorded,
    trace::{Trace, TraceSummary},
};
use super::{Nanos, SECOND};

/// Tokens of a block in traces and generated workloads.
pub const BLOCK_SIZE: u32 = 512;

/// Share of the arrivals, counted from the first, that figures leave out: caches and queues fill in that time.
pub const WARM_UP: f64 = 0.1;

/// Load levels of a workload: 1 to this.
pub const LEVELS: u8 = 4;

/// Prompt tokens a second that a worker is taken to compute, where the load of a trace is a share of what the fleet
/// can.
pub const PREFILL_RATE: f64 = 12_500.0;

/// Days that arrivals may be spread over, before and after they are brought to a load.
const SPAN_DAYS: u64 = 100;
const SPAN: Nanos = SPAN_DAYS * 86_400 * SECOND;

/// Requests that a generated workload may have; each takes memory until the end of a run.
const MOST_REQUESTS: u64 = 50_000_000;

/// One request of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Time from the end of the turn before to the arrival of this one; 0 for the first.
    pub think: Nanos,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens to generate, at least 1.
    pub output_tokens: u32,
    /// Ids of the complete blocks of the prompt, in order, and perhaps of those that the answer completes; the workload
    /// says of [how many tokens](Workload::block_size).
    pub blocks: Arc<[u64]>,
}

impl Turn {
    /// Those of [`blocks`](Self::blocks) that belong to the prompt.
    pub fn prompt_blocks(&self, block_size: u32) -> &[u64] {
        let complete = (self.prompt_tokens / block_size.max(1)) as usize;
        &self.blocks[..complete.min(self.blocks.len())]
    }
}

/// Requests that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Name for policies that keep a session on its worker. Sessions of a trace may share one: there it is inferred.
    pub id: u64,
    /// Arrival of the first turn.
    pub start: Nanos,
    /// At least one.
    pub turns: Vec<Turn>,
}

/// Sessions in order of start. A trace can fail on the way.
pub type Sessions = Box<dyn Iterator<Item = Result<Session, WorkloadError>> + Send>;

/// How much is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// 1, easy, to 4, where the default cost of the reference has long queues on eight workers.
    Level(u8),
    /// Of a trace, the share of [`PREFILL_RATE`] times the workers that its tokens need which no cache could save; of
    /// a generated workload, the multiple of its base rate.
    Share(f64),
    /// Requests a second of the whole fleet.
    Rate(f64),
}

/// What a workload is scaled to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Workers of the fleet, at least 1.
    pub workers: u32,
    /// How much is asked of them.
    pub load: Load,
    /// Of everything that is drawn.
    pub seed: u64,
    /// Time by which each request of a trace is put off at random, uniform up to this and in the time of the trace.
    /// `None`: the step of its timestamps if they are rounded, or nothing. Generated workloads have no use for it.
    pub jitter: Option<Nanos>,
}

/// A workload that can be brought to any load.
#[derive(Debug, Clone)]
pub enum Workload {
    /// Recorded requests.
    Trace(Arc<Trace>),
    /// Drawn ones.
    Generated(Generator),
    /// Sessions of a file, at the load it says.
    Recorded(Arc<Recorded>),
}

impl Workload {
    /// Name in tables.
    pub fn name(&self) -> &str {
        match self {
            Self::Trace(trace) => trace.name(),
            Self::Generated(generator) => generator.name(),
            Self::Recorded(recorded) => recorded.name(),
        }
    }

    /// Requests, all turns counted, that the sessions of `demand` have. Exact for traces and sessions of one turn,
    /// the expectation for others.
    pub fn expected_requests(&self, demand: &Demand) -> Result<u64, WorkloadError> {
        match self {
            Self::Trace(trace) => Ok(trace.summary().requests),
            Self::Generated(generator) => generator.expected_requests(demand),
            Self::Recorded(recorded) => Ok(recorded.requests()),
        }
    }

    /// The sessions, from the first.
    pub fn sessions(&self, demand: &Demand) -> Result<Sessions, WorkloadError> {
        match self {
            Self::Trace(trace) => trace.sessions(demand),
            Self::Generated(generator) => generator.sessions(demand),
            Self::Recorded(recorded) => Ok(recorded.sessions()),
        }
    }

    /// What is done to it that nobody asked for: requests of a trace with rounded timestamps are put off.
    pub fn note(&self) -> Option<String> {
        let Self::Trace(trace) = self else { return None };
        let step = trace.summary().quantum? as f64 / SECOND as f64;
        Some(format!(
            "{}: timestamps are rounded to {step} s, so each request is put off by up to that at random (--jitter)",
            trace.name()
        ))
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Trace(_) | Self::Generated(_) => BLOCK_SIZE,
            Self::Recorded(recorded) => recorded.block_size(),
        }
    }
}

impl Demand {
    /// The load as a share: of the prefill rate or of a base rate, as [`Load::Share`] has it.
    ///
    /// `levels` are the shares of the levels, `requests_per_second` what a share of 1 is for the whole fleet.
    fn share(&self, levels: [f64; LEVELS as usize], requests_per_second: f64) -> Result<f64, WorkloadError> {
        let share = match self.load {
            Load::Level(level) => {
                let place = usize::from(level).checked_sub(1);
                *place.and_then(|place| levels.get(place)).ok_or(WorkloadError::Level { level })?
            }
            Load::Share(share) => share,
            Load::Rate(rate) => rate / requests_per_second,
        };
        if share.is_finite() && share > 0.0 && self.workers > 0 { Ok(share) } else { Err(WorkloadError::Load) }
    }
}
