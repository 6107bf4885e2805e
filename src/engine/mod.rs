//! A stand-in engine: KV cache, scheduler and event streams of an inference engine without its model, for demos, tests
//! and load.
//!
//! [`cache`], [`scheduler`] and `encode` are pure. A rank gives steps their time and publishes their events, a replay
//! socket answers from the ring of past batches, and the HTTP face serves completions and what operators ask engines
//! for. Invariant: a batch is in the replay ring before a subscriber can see it.

mod api;
pub mod cache;
mod config;
mod encode;
pub mod event;
mod mock;
mod rank;
mod replay;
pub mod scheduler;
mod stream;
mod wire;

pub use self::{
    config::{EngineConfig, REPLAY_BATCHES, ReplayForm},
    encode::{Encoder, Encoding},
    mock::{Completed, Completion, CompletionRequest, EngineError, MockEngine},
    rank::RankStats,
};
