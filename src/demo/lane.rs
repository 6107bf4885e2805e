//! One side of the comparison: a fleet, a way to choose among it, and the workload that runs over both.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    DemoError, client,
    routing::{Choice, Routing},
    tally::{Finished, Tally},
    workload::Session,
};

/// One side.
#[derive(Debug)]
pub struct Lane {
    client: reqwest::Client,
    routing: Routing,
    /// Base URLs of the engines, by number.
    engines: Vec<String>,
    answer_tokens: usize,
    tally: Tally,
}

impl Lane {
    /// A side over `engines`, whose requests ask for `answer_tokens` tokens.
    pub fn new(client: reqwest::Client, routing: Routing, engines: Vec<String>, answer_tokens: usize) -> Self {
        let tally = Tally::new(engines.len());
        Self { client, routing, engines, answer_tokens, tally }
    }

    /// How its engines are chosen.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// The counts so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Plays `sessions`, whose times count from `start`. Dropping the future stops it.
    pub async fn play(self: Arc<Self>, sessions: &[Session], start: Instant) {
        let mut players = JoinSet::new();
        for session in sessions {
            players.spawn(Arc::clone(&self).play_session(session.clone(), start));
        }
        while let Some(ended) = players.join_next().await {
            if let Err(error) = ended {
                self.tally.failed(None, format!("a session broke off: {error}"));
            }
        }
    }

    /// One user: asks, waits for the answer, thinks, and asks again with everything said so far.
    async fn play_session(self: Arc<Self>, session: Session, start: Instant) {
        let mut prompt = session.system.to_vec();
        for turn in &session.turns {
            sleep_until(start + turn.at).await;
            prompt.extend_from_slice(&turn.message);
            match self.request(&prompt).await {
                Ok(answer) => prompt.extend(answer),
                // A user whose question failed asks the next one all the same.
                Err(()) => continue,
            }
        }
    }

    /// One request from the choice to the last token; the tokens.
    async fn request(&self, prompt: &[u32]) -> Result<Vec<u32>, ()> {
        let asked = Instant::now();
        let choice = self.routing.choose(prompt).await.map_err(|error| self.tally.failed(None, error.to_string()))?;
        let chosen = asked.elapsed();
        self.tally.started(choice.engine);
        let outcome = self.serve(prompt, &choice, asked).await;
        let freed = self.routing.free(&choice).await;
        let failed = |error: DemoError| self.tally.failed(Some(choice.engine), error.to_string());
        let (first_token, answer) = outcome.map_err(failed)?;
        freed.map_err(failed)?;
        self.tally.finished(Finished {
            engine: choice.engine,
            prompt_tokens: prompt.len() as u64,
            cached_tokens: answer.cached_tokens.unwrap_or(0),
            expected_tokens: choice.expected_tokens,
            first_token,
            choice: chosen,
        });
        Ok(answer.tokens)
    }

    /// Has the chosen engine answer, and tells the router when the first token came.
    async fn serve(
        &self,
        prompt: &[u32],
        choice: &Choice,
        asked: Instant,
    ) -> Result<(Duration, client::Streamed), DemoError> {
        let url = self.engines.get(choice.engine).ok_or_else(|| DemoError::Answer("no such engine".into()))?;
        let (first, first_came) = tokio::sync::oneshot::channel();
        let on_first = || {
            // Nobody listens any more only when the whole request is given up.
            let _given_up = first.send(asked.elapsed());
        };
        let completion = client::complete(&self.client, url, prompt, self.answer_tokens, on_first);
        let report = async {
            match first_came.await {
                Ok(first_token) => self.routing.prefill_complete(choice).await.map(|()| Some(first_token)),
                Err(_) => Ok(None),
            }
        };
        let (answer, reported) = tokio::join!(completion, report);
        let answer = answer?;
        let first_token = reported?.ok_or_else(|| DemoError::Answer("engine sent no token".into()))?;
        Ok((first_token, answer))
    }
}
