//! The two ways to choose an engine: in turn, or by asking selectors over HTTP.
//!
//! Any selector takes any call: each call goes to the next one, whoever made the booking. One that does not answer is
//! left out until it is said to be back, and the next one is asked, as a balancer does.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use serde::Deserialize;
use serde_json::json;

use super::DemoError;

/// Longest time for one answer of a selector.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How requests find their engine.
#[derive(Debug)]
pub enum Routing {
    /// Each engine in turn.
    RoundRobin {
        /// Number of the next request.
        next: AtomicUsize,
        /// Engines.
        engines: usize,
    },
    /// By the choice of selectors.
    Selector(SelectorClient),
}

/// A chosen engine.
#[derive(Debug)]
pub struct Choice {
    /// Its number.
    pub engine: usize,
    /// Prompt tokens expected to be cached, when the router knows.
    pub expected_tokens: Option<u64>,
    /// The booking to complete and to free.
    booking: Option<String>,
}

impl Routing {
    /// In turn among `engines`.
    pub fn round_robin(engines: usize) -> Self {
        Self::RoundRobin { next: AtomicUsize::new(0), engines }
    }

    /// What became of the calls to selectors so far.
    pub fn calls(&self) -> Calls {
        match self {
            Self::Selector(selectors) => selectors.calls(),
            Self::RoundRobin { .. } => Calls::default(),
        }
    }

    /// The selector with this number answers again.
    pub fn is_back(&self, number: usize) {
        if let Self::Selector(selectors) = self
            && let Some(target) = selectors.selectors.get(number)
        {
            target.is_up.store(true, Ordering::Relaxed);
        }
    }

    /// Chooses an engine for `prompt`, and books it where the router keeps books.
    ///
    /// # Errors
    /// The selector did not answer, or named an engine that is not of the fleet.
    pub async fn choose(&self, prompt: &[u32]) -> Result<Choice, DemoError> {
        match self {
            Self::RoundRobin { next, engines } => {
                let engine = next.fetch_add(1, Ordering::Relaxed) % engines;
                Ok(Choice { engine, expected_tokens: None, booking: None })
            }
            Self::Selector(selector) => selector.choose(prompt).await,
        }
    }

    /// The first token of `choice` came.
    ///
    /// # Errors
    /// The selector did not answer.
    pub async fn prefill_complete(&self, choice: &Choice) -> Result<(), DemoError> {
        match (self, &choice.booking) {
            (Self::Selector(selector), Some(booking)) => selector.prefill_complete(booking).await,
            _ => Ok(()),
        }
    }

    /// The request of `choice` ended.
    ///
    /// # Errors
    /// The selector did not answer.
    pub async fn free(&self, choice: &Choice) -> Result<(), DemoError> {
        match (self, &choice.booking) {
            (Self::Selector(selector), Some(booking)) => selector.free(booking).await,
            _ => Ok(()),
        }
    }
}

/// A client of a set of selectors.
#[derive(Debug)]
pub struct SelectorClient {
    client: reqwest::Client,
    selectors: Vec<Target>,
    next: AtomicUsize,
    /// Calls that another selector had to answer.
    moved: AtomicU64,
    /// Calls about a booking that the selector did not know.
    unknown: AtomicU64,
    model: String,
    block_size: u64,
    /// Endpoints of the engines, by number.
    engines: Vec<String>,
}

#[derive(Debug)]
struct Target {
    url: String,
    is_up: AtomicBool,
    answered: AtomicU64,
}

/// What became of the calls so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Answers of each selector, and whether calls go to it now.
    pub selectors: Vec<(u64, bool)>,
    /// Calls that another selector had to answer, because the first one was gone.
    pub moved: u64,
    /// Calls about a booking that the selector did not know.
    pub unknown: u64,
}

/// An answer, read to its end.
struct Answer {
    status: reqwest::StatusCode,
    body: Vec<u8>,
    /// Another selector was asked before, which may have done what it was asked for.
    is_second: bool,
}

/// What is read of a selection.
#[derive(Debug, Deserialize)]
struct Selection {
    endpoint: String,
    overlap: Overlap,
}

#[derive(Debug, Deserialize)]
struct Overlap {
    longest_matched: u64,
}

impl SelectorClient {
    /// A client of the selectors at `urls`, whose workers are `engines`.
    pub fn new(client: reqwest::Client, urls: Vec<String>, model: &str, block_size: u32, engines: Vec<String>) -> Self {
        let target = |url| Target { url, is_up: AtomicBool::new(true), answered: AtomicU64::new(0) };
        Self {
            client,
            selectors: urls.into_iter().map(target).collect(),
            next: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            model: model.to_owned(),
            block_size: block_size.into(),
            engines,
        }
    }

    fn calls(&self) -> Calls {
        let of = |target: &Target| (target.answered.load(Ordering::Relaxed), target.is_up.load(Ordering::Relaxed));
        Calls {
            selectors: self.selectors.iter().map(of).collect(),
            moved: self.moved.load(Ordering::Relaxed),
            unknown: self.unknown.load(Ordering::Relaxed),
        }
    }

    /// The next selector that is up; any if none is.
    fn target(&self) -> &Target {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.selectors.len();
        let mut all = (0..count).map(|offset| &self.selectors[(first + offset) % count]);
        all.find(|target| target.is_up.load(Ordering::Relaxed)).unwrap_or(&self.selectors[first % count])
    }

    /// Sends a call to the next selector, and to the one after it where that does not answer.
    async fn call(&self, request: impl Fn(&str) -> reqwest::RequestBuilder) -> Result<Answer, DemoError> {
        let mut is_second = false;
        loop {
            let target = self.target();
            let exchange = async {
                let answer = request(&target.url).timeout(ANSWER_TIMEOUT).send().await?;
                Ok((answer.status(), answer.bytes().await?.to_vec()))
            };
            match exchange.await {
                Ok((status, body)) => {
                    target.answered.fetch_add(1, Ordering::Relaxed);
                    return Ok(Answer { status, body, is_second });
                }
                // Two tries for each are enough.
                Err(error) if is_second && !self.is_any_up() => return Err(DemoError::http("selector", error)),
                Err(_) => {
                    target.is_up.store(false, Ordering::Relaxed);
                    self.moved.fetch_add(1, Ordering::Relaxed);
                    is_second = true;
                }
            }
        }
    }

    fn is_any_up(&self) -> bool {
        self.selectors.iter().any(|target| target.is_up.load(Ordering::Relaxed))
    }

    async fn choose(&self, prompt: &[u32]) -> Result<Choice, DemoError> {
        let id = format!("demo-{:016x}", fastrand::u64(..));
        let body = json!({"model_name": self.model, "selection_id": id, "token_ids": prompt});
        let ask = |url: &str| self.client.post(format!("{url}/select_and_reserve")).json(&body);
        let mut answer = self.call(ask).await?;
        if answer.is_second && answer.status == reqwest::StatusCode::CONFLICT {
            // The selector that went had booked it and could not say where: that booking ends, another takes its id.
            self.free(&id).await?;
            answer = self.call(ask).await?;
        }
        if !answer.status.is_success() {
            let text = String::from_utf8_lossy(&answer.body);
            return Err(DemoError::Answer(format!("selector answered {}: {text}", answer.status)));
        }
        let selection: Selection = serde_json::from_slice(&answer.body)
            .map_err(|error| DemoError::Answer(format!("selector answered what is no selection: {error}")))?;
        let engine = self.engines.iter().position(|endpoint| *endpoint == selection.endpoint);
        let engine = engine
            .ok_or_else(|| DemoError::Answer(format!("selector chose {}, no engine of ours", selection.endpoint)))?;
        // An engine computes at least the block of the last token.
        let usable = (prompt.len() as u64).saturating_sub(1) / self.block_size * self.block_size;
        Ok(Choice { engine, expected_tokens: Some(selection.overlap.longest_matched.min(usable)), booking: Some(id) })
    }

    async fn prefill_complete(&self, booking: &str) -> Result<(), DemoError> {
        self.lifecycle(|url| self.client.post(format!("{url}/reservations/{booking}/prefill_complete"))).await
    }

    async fn free(&self, booking: &str) -> Result<(), DemoError> {
        self.lifecycle(|url| self.client.delete(format!("{url}/reservations/{booking}"))).await
    }

    async fn lifecycle(&self, request: impl Fn(&str) -> reqwest::RequestBuilder) -> Result<(), DemoError> {
        let answer = self.call(request).await?;
        if answer.status == reqwest::StatusCode::NOT_FOUND {
            // Asked twice, the second may have heard it from the first.
            if !answer.is_second {
                self.unknown.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(());
        }
        if answer.status.is_success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&answer.body);
        Err(DemoError::Answer(format!("selector answered {}: {text}", answer.status)))
    }
}
