//! The two ways to choose an engine: in turn, or by asking a selector over HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::json;

use super::DemoError;

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
    /// By a selector's choice.
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

/// A client of a selector.
#[derive(Debug)]
pub struct SelectorClient {
    client: reqwest::Client,
    url: String,
    model: String,
    block_size: u64,
    /// Endpoints of the engines, by number.
    engines: Vec<String>,
}

/// What is read of a selection.
#[derive(Debug, Deserialize)]
struct Selection {
    selection_id: String,
    endpoint: String,
    overlap: Overlap,
}

#[derive(Debug, Deserialize)]
struct Overlap {
    longest_matched: u64,
}

impl SelectorClient {
    /// A client of the selector at `url`, whose workers are `engines`.
    pub fn new(client: reqwest::Client, url: &str, model: &str, block_size: u32, engines: Vec<String>) -> Self {
        Self { client, url: url.to_owned(), model: model.to_owned(), block_size: block_size.into(), engines }
    }

    async fn choose(&self, prompt: &[u32]) -> Result<Choice, DemoError> {
        let body = json!({"model_name": self.model, "token_ids": prompt});
        let request = self.client.post(format!("{}/select_and_reserve", self.url)).json(&body);
        let answer = request.send().await.map_err(|error| DemoError::http("selector", error))?;
        let status = answer.status();
        if !status.is_success() {
            let text = answer.text().await.unwrap_or_default();
            return Err(DemoError::Answer(format!("selector answered {status}: {text}")));
        }
        let selection: Selection = answer.json().await.map_err(|error| DemoError::http("selector", error))?;
        let engine = self.engines.iter().position(|endpoint| *endpoint == selection.endpoint);
        let engine = engine
            .ok_or_else(|| DemoError::Answer(format!("selector chose {}, no engine of ours", selection.endpoint)))?;
        // An engine computes at least the block of the last token.
        let usable = (prompt.len() as u64).saturating_sub(1) / self.block_size * self.block_size;
        Ok(Choice {
            engine,
            expected_tokens: Some(selection.overlap.longest_matched.min(usable)),
            booking: Some(selection.selection_id),
        })
    }

    async fn prefill_complete(&self, booking: &str) -> Result<(), DemoError> {
        self.lifecycle(self.client.post(format!("{}/reservations/{booking}/prefill_complete", self.url))).await
    }

    async fn free(&self, booking: &str) -> Result<(), DemoError> {
        self.lifecycle(self.client.delete(format!("{}/reservations/{booking}", self.url))).await
    }

    async fn lifecycle(&self, request: reqwest::RequestBuilder) -> Result<(), DemoError> {
        let answer = request.send().await.and_then(reqwest::Response::error_for_status);
        answer.map(drop).map_err(|error| DemoError::http("selector", error))
    }
}
