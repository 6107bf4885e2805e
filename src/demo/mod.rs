//! The demo: mock engines publish real KV events, selectors learn them from a workers file and follow each other, users'
//! sessions run through them, and the same sessions run in turn over a second, equal fleet beside them. One selector is
//! killed on the way.
//!
//! Everything is real but the engines' arithmetic: ZMQ and HTTP over loopback, selectors as processes of their own. The
//! workload, the counts, the comparison of selectors and the picture are pure.

mod client;
pub mod drill;
pub mod fleet;
pub mod knowledge;
mod lane;
pub mod picture;
pub mod routing;
pub mod selectors;
pub mod tally;
pub mod workload;

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::{
    drill::Drill,
    fleet::Fleet,
    lane::Lane,
    picture::{Progress, SelectorView, Selectorship, Sides},
    routing::{Calls, Routing, SelectorClient},
    selectors::Selectors,
    tally::Snapshot,
    workload::WorkloadConfig,
};
use crate::engine::{EngineConfig, EngineError};

/// Longest time until every selector knows every engine and every other selector.
const LEARN_TIMEOUT: Duration = Duration::from_secs(15);
/// After this the requests still under way are given up: the demo ends within a minute on a machine that is busy too.
const OVERTIME: Duration = Duration::from_secs(15);

/// When a selector is killed, and for how long, as shares of the time in which users ask.
const KILL_AT: f64 = 0.4;
const AWAY: f64 = 0.1;
/// Time between two looks at the selectors.
const WATCH: Duration = Duration::from_millis(200);
/// Longest time, after the last request, until all selectors know the same.
const AGREE_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// The selectors did not learn the engines, or each other.
    #[error("the selectors did not hear every engine and each other within {} s", LEARN_TIMEOUT.as_secs())]
    NotLearned,
    /// A selector that was killed did not start again in time.
    #[error("the selector that was killed was not ready again in time")]
    NotBack,
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
            Self::Http { .. } => "http",
            Self::Answer(_) => "answer",
            Self::NotLearned => "not_learned",
            Self::NotBack => "not_back",
        }
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// The program whose selectors are started: `PROGRAM selector ...`.
    pub program: PathBuf,
    /// Selectors; with more than one, one is killed on the way and started again.
    pub selectors: usize,
    /// Engines on each side.
    pub engines: usize,
    /// Each of them.
    pub engine: EngineConfig,
    /// What the users do.
    pub workload: WorkloadConfig,
    /// Round after round, until stopped.
    pub forever: bool,
}

impl DemoConfig {
    /// The usual sizes, with selectors of `program`.
    pub fn new(program: PathBuf) -> Self {
        let engine =
            EngineConfig { num_blocks: 1280, prefill_rate: 12_000.0, decode_rate: 100.0, ..EngineConfig::default() };
        Self { program, selectors: 3, engines: 4, engine, workload: WorkloadConfig::default(), forever: false }
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By the selectors' choice.
    pub selector: Snapshot,
    /// In turn.
    pub round_robin: Snapshot,
    /// The selectors, and what became of the one that was killed.
    pub selectors: Selectorship,
    /// Every planned request ended.
    pub complete: bool,
}

/// What selectors were seen to do.
#[derive(Debug, Default)]
struct Seen {
    /// Live bookings of each; `None` while it does not answer.
    bookings: Vec<Option<u64>>,
    /// The last drill.
    drill: Option<Drill>,
    /// Why a drill failed.
    failure: Option<String>,
    /// After the last request: whether all know the same, with so many blocks, and no booking is left.
    agreed: Option<Result<u64, String>>,
}

/// The demo's servers, ready for users.
pub struct Demo {
    config: DemoConfig,
    selectors: Selectors,
    seen: Mutex<Seen>,
    /// The fleet the selectors know, and the one that is used in turn; held because engines end with their handle.
    fleets: [Fleet; 2],
    lanes: [Arc<Lane>; 2],
}

impl Demo {
    /// Starts both fleets and the selectors, and waits until these hear every engine and each other.
    ///
    /// # Errors
    /// Something cannot start.
    pub async fn start(config: DemoConfig) -> Result<Self, DemoError> {
        let fleets =
            [Fleet::start(config.engines, &config.engine).await?, Fleet::start(config.engines, &config.engine).await?];
        // All is on this machine, whatever proxy its environment names.
        let client =
            reqwest::Client::builder().no_proxy().build().map_err(|error| DemoError::http("HTTP client", error))?;
        let count = config.selectors.max(1);
        let selectors = Selectors::start(count, config.program.clone(), &fleets[0].workers_file(), client.clone())?;
        let learned = async {
            for number in 0..count {
                selectors.ready(number).await?;
            }
            selectors.meshed().await;
            while !fleets[0].is_heard_by(count) {
                sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, DemoError>(())
        };
        timeout(LEARN_TIMEOUT, learned).await.map_err(|_| DemoError::NotLearned)??;

        let EngineConfig { model, block_size, .. } = &config.engine;
        let selects = SelectorClient::new(client.clone(), selectors.urls(), model, *block_size, fleets[0].urls());
        let lane = |routing, fleet: &Fleet| {
            Arc::new(Lane::new(client.clone(), routing, fleet.urls(), config.workload.answer_tokens))
        };
        let lanes =
            [lane(Routing::Selector(selects), &fleets[0]), lane(Routing::round_robin(config.engines), &fleets[1])];
        let seen = Mutex::new(Seen { bookings: vec![Some(0); count], ..Seen::default() });
        Ok(Self { config, selectors, seen, fleets, lanes })
    }

    /// The selectors.
    pub fn selectors(&self) -> &Selectors {
        &self.selectors
    }

    /// The fleet that the selectors know.
    pub fn fleet(&self) -> &Fleet {
        &self.fleets[0]
    }

    /// Lets the users work until their last session ends, or for ever; `show` is called every `period`. Dropping the
    /// future stops them; [`Self::outcome`] then tells how far they came.
    pub async fn run(&self, period: Duration, mut show: impl FnMut(Progress, Sides<'_>, &Selectorship)) {
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
                    Arc::clone(theirs).play(&sessions, round_start),
                    self.drill(round as usize, workload.duration),
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
                    show(progress, Sides { selector, round_robin }, &self.selectorship());
                }
            };
            tokio::select! {
                _ = timeout(workload.duration + OVERTIME, play) => {}
                () = picture => {}
                () = self.watch() => {}
            }
            if !self.config.forever {
                break;
            }
        }
        let agreed = self.agreement().await;
        let mut seen = self.seen.lock();
        if agreed.is_ok() {
            seen.bookings.fill(Some(0));
        }
        seen.agreed = Some(agreed);
    }

    /// Kills a selector of several in the middle of a round of `duration`, and starts it again; another one each round.
    async fn drill(&self, round: usize, duration: Duration) {
        let count = self.selectors.count();
        if count < 2 {
            return;
        }
        sleep(duration.mul_f64(KILL_AT)).await;
        let routing = self.lanes[0].routing();
        let drill = drill::run(&self.selectors, routing, round % count, duration.mul_f64(AWAY)).await;
        let mut seen = self.seen.lock();
        match drill {
            Ok(drill) => seen.drill = Some(drill),
            Err(error) => seen.failure = Some(error.to_string()),
        }
    }

    /// Looks at the selectors' bookings all the time.
    async fn watch(&self) {
        loop {
            for number in 0..self.selectors.count() {
                let live = self.selectors.live_bookings(number).await;
                if let Some(bookings) = self.seen.lock().bookings.get_mut(number) {
                    *bookings = live;
                }
            }
            sleep(WATCH).await;
        }
    }

    /// Whether all selectors end up knowing the same, and no booking: the number of their blocks.
    async fn agreement(&self) -> Result<u64, String> {
        let until = Instant::now() + AGREE_TIMEOUT;
        loop {
            let outcome = self.agree().await;
            if outcome.is_ok() || Instant::now() > until {
                return outcome;
            }
            sleep(WATCH).await;
        }
    }

    async fn agree(&self) -> Result<u64, String> {
        let mut all = Vec::new();
        for number in 0..self.selectors.count() {
            all.push(self.selectors.knowledge(number).await.map_err(|error| error.to_string())?);
        }
        if all.windows(2).all(|pair| pair[0] == pair[1]) && all.iter().all(|one| one.live() == 0) {
            return Ok(all.first().map_or(0, |one| one.blocks.len() as u64));
        }
        let each = all.iter().map(|one| format!("{} bookings and {} blocks", one.live(), one.blocks.len()));
        Err(format!("the selectors know different things: {}", each.collect::<Vec<_>>().join("; ")))
    }

    fn selectorship(&self) -> Selectorship {
        let Calls { selectors, moved, unknown } = self.lanes[0].routing().calls();
        let seen = self.seen.lock();
        let view = |((answered, is_up), bookings): ((u64, bool), &Option<u64>)| SelectorView {
            answered,
            bookings: bookings.filter(|_| is_up),
        };
        Selectorship {
            selectors: selectors.into_iter().zip(&seen.bookings).map(view).collect(),
            moved,
            unknown,
            drill: seen.drill,
            failure: seen.failure.clone(),
            agreed: seen.agreed.clone(),
        }
    }

    /// How far the users came.
    pub fn outcome(&self) -> Outcome {
        let [selector, round_robin] = self.lanes.each_ref().map(|lane| lane.tally().snapshot());
        let waiting = selector.total().in_flight + round_robin.total().in_flight;
        Outcome { selector, round_robin, selectors: self.selectorship(), complete: waiting == 0 }
    }

    /// Stops the servers.
    pub async fn stop(self) {
        drop(self.lanes);
        self.selectors.stop().await;
    }
}
