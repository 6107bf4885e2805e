//! The demo: mock engines publish real KV events, a selector learns them from a workers file, users' sessions run
//! through it, and the same sessions run in turn over a second, equal fleet beside it.
//!
//! Everything is real but the engines' arithmetic: ZMQ and HTTP over loopback, the selector's own service, server and
//! file source. The workload, the counts and the picture are pure.

mod client;
pub mod fleet;
mod lane;
pub mod picture;
pub mod routing;
pub mod tally;
pub mod workload;

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::{
    fleet::{Fleet, Selector},
    lane::Lane,
    picture::{Progress, Sides},
    routing::{Routing, SelectorClient},
    tally::Snapshot,
    workload::WorkloadConfig,
};
use crate::{
    engine::{EngineConfig, EngineError},
    service::BuildError,
};

/// Longest time until the selector knows every engine.
const LEARN_TIMEOUT: Duration = Duration::from_secs(15);
/// After this the requests still under way are given up: the demo ends within a minute on a machine that is busy too.
const OVERTIME: Duration = Duration::from_secs(15);

/// Why the demo could not run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A file or socket.
    #[error("could not set up the {what}")]
    Io {
        /// What was set up.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// An engine cannot start.
    #[error("could not start an engine")]
    Engine(#[from] EngineError),
    /// The selector's service cannot be built.
    #[error("could not start the selector")]
    Selector(#[from] BuildError),
    /// The HTTP client cannot be made, or an exchange failed.
    #[error("no answer from the {whom}: {source}")]
    Http {
        /// Who was asked.
        whom: &'static str,
        /// Why there is none.
        #[source]
        source: reqwest::Error,
    },
    /// An answer that is of no use.
    #[error("{0}")]
    Answer(String),
    /// The selector did not learn the engines.
    #[error("the selector did not hear every engine within {} s", LEARN_TIMEOUT.as_secs())]
    NotLearned,
}

impl DemoError {
    fn io(what: &'static str, source: std::io::Error) -> Self {
        Self::Io { what, source }
    }

    fn http(whom: &'static str, source: reqwest::Error) -> Self {
        Self::Http { whom, source }
    }

    /// A stable word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::Engine(_) => "engine",
            Self::Selector(_) => "selector",
            Self::Http { .. } => "http",
            Self::Answer(_) => "answer",
            Self::NotLearned => "not_learned",
        }
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// Engines on each side.
    pub engines: usize,
    /// Each of them.
    pub engine: EngineConfig,
    /// What the users do.
    pub workload: WorkloadConfig,
    /// Round after round, until stopped.
    pub forever: bool,
}

impl Default for DemoConfig {
    fn default() -> Self {
        let engine =
            EngineConfig { num_blocks: 1280, prefill_rate: 12_000.0, decode_rate: 100.0, ..EngineConfig::default() };
        Self { engines: 4, engine, workload: WorkloadConfig::default(), forever: false }
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By the selector's choice.
    pub selector: Snapshot,
    /// In turn.
    pub round_robin: Snapshot,
    /// Every planned request ended.
    pub complete: bool,
}

/// The demo's servers, ready for users.
pub struct Demo {
    config: DemoConfig,
    selector: Selector,
    /// The fleet the selector knows, and the one that is used in turn; held because engines end with their handle.
    fleets: [Fleet; 2],
    lanes: [Arc<Lane>; 2],
}

impl Demo {
    /// Starts both fleets and the selector, and waits until it hears every engine.
    ///
    /// # Errors
    /// Something cannot start.
    pub async fn start(config: DemoConfig) -> Result<Self, DemoError> {
        let fleets =
            [Fleet::start(config.engines, &config.engine).await?, Fleet::start(config.engines, &config.engine).await?];
        let selector = Selector::start(&fleets[0]).await?;
        let learned = async {
            while !selector.knows(&fleets[0]) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LEARN_TIMEOUT, learned).await.map_err(|_| DemoError::NotLearned)?;

        // The engines are on this machine, whatever proxy its environment names.
        let client =
            reqwest::Client::builder().no_proxy().build().map_err(|error| DemoError::http("HTTP client", error))?;
        let EngineConfig { model, block_size, .. } = &config.engine;
        let selects = SelectorClient::new(client.clone(), selector.url(), model, *block_size, fleets[0].urls());
        let lane = |routing, fleet: &Fleet| {
            Arc::new(Lane::new(client.clone(), routing, fleet.urls(), config.workload.answer_tokens))
        };
        let lanes =
            [lane(Routing::Selector(selects), &fleets[0]), lane(Routing::round_robin(config.engines), &fleets[1])];
        Ok(Self { config, selector, fleets, lanes })
    }

    /// The selector.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// The fleet that the selector knows.
    pub fn fleet(&self) -> &Fleet {
        &self.fleets[0]
    }

    /// Lets the users work until their last session ends, or for ever; `show` is called every `period`. Dropping the
    /// future stops them; [`Self::outcome`] then tells how far they came.
    pub async fn run(&self, period: Duration, mut show: impl FnMut(Progress, Sides<'_>)) {
        let start = Instant::now();
        let mut planned = 0;
        for round in 1.. {
            let workload = WorkloadConfig {
                seed: self.config.workload.seed.wrapping_add(round - 1),
                ..self.config.workload.clone()
            };
            let sessions = workload::sessions(&workload);
            let turns: usize = sessions.iter().map(|session| session.turns.len()).sum();
            planned += 2 * turns as u64;
            let round_start = Instant::now();
            let play = async {
                let [ours, theirs] = &self.lanes;
                tokio::join!(
                    Arc::clone(ours).play(&sessions, round_start),
                    Arc::clone(theirs).play(&sessions, round_start)
                )
            };
            let picture = async {
                let mut ticks = interval(period);
                // A late picture is followed by the next one at its own time, not by a burst.
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    let sides = self.lanes.each_ref().map(|lane| lane.tally().snapshot());
                    let [selector, round_robin] = &sides;
                    let ended = selector.ended() + round_robin.ended();
                    let round = self.config.forever.then_some(round);
                    let progress = Progress { elapsed: start.elapsed(), ended, planned, round };
                    show(progress, Sides { selector, round_robin });
                }
            };
            tokio::select! {
                _ = timeout(workload.duration + OVERTIME, play) => {}
                () = picture => {}
            }
            if !self.config.forever {
                return;
            }
        }
    }

    /// How far the users came.
    pub fn outcome(&self) -> Outcome {
        let [selector, round_robin] = self.lanes.each_ref().map(|lane| lane.tally().snapshot());
        let waiting = selector.total().in_flight + round_robin.total().in_flight;
        Outcome { selector, round_robin, complete: waiting == 0 }
    }

    /// Stops the servers.
    pub async fn stop(self) {
        drop(self.lanes);
        self.selector.stop().await;
    }
}
