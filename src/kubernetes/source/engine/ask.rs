//! Asking engines over HTTP. One task an incarnation, until it answers: every call has a timeout, every answer a limit,
//! pauses between attempts grow, and few engines are asked at a time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    Answer, EngineFacts, EngineKey,
    parse::{self, METRICS},
};
use crate::{events::transport::backoff::Backoff, telemetry::causes::innermost};

/// Longest wait for one answer, its body included.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest body that is read; vLLM's metrics are the longest.
const MAX_BODY: usize = 8 << 20;
/// Engines asked at a time.
const AT_A_TIME: usize = 16;
/// Pauses between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// Tasks that ask, by engine. Ends them when dropped.
#[derive(Debug)]
pub struct Askers {
    http: Result<reqwest::Client, String>,
    tasks: HashMap<EngineKey, JoinHandle<()>>,
    answers: mpsc::Sender<(EngineKey, Answer)>,
    slots: Arc<Semaphore>,
}

impl Askers {
    /// Nobody is asked yet; answers go to `answers`.
    pub fn new(answers: mpsc::Sender<(EngineKey, Answer)>) -> Self {
        let http = reqwest::Client::builder()
            // Engines are in the cluster: a proxy of the environment is not asked.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CALL_TIMEOUT)
            .build()
            .map_err(|error| error.to_string());
        Self { http, tasks: HashMap::new(), answers, slots: Arc::new(Semaphore::new(AT_A_TIME)) }
    }

    /// Asks `wanted`, by base URL, that nobody asks yet, and stops asking all others.
    pub fn want(&mut self, wanted: &BTreeMap<EngineKey, String>) {
        self.tasks.retain(|key, task| {
            // One that ended and is wanted again has told somebody who is gone.
            let keep = wanted.contains_key(key) && !task.is_finished();
            if !keep {
                task.abort();
            }
            keep
        });
        for (key, url) in wanted {
            if self.tasks.contains_key(key) {
                continue;
            }
            let (key, url) = (key.clone(), url.clone());
            let task = ask_until_told(self.http.clone(), key.clone(), url, self.answers.clone(), self.slots.clone());
            self.tasks.insert(key, tokio::spawn(task));
        }
    }
}

impl Drop for Askers {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

async fn ask_until_told(
    http: Result<reqwest::Client, String>,
    key: EngineKey,
    url: String,
    answers: mpsc::Sender<(EngineKey, Answer)>,
    slots: Arc<Semaphore>,
) {
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
    loop {
        let told = match &http {
            Ok(http) => {
                let Ok(_slot) = slots.acquire().await else { return };
                ask(http, &url).await
            }
            Err(error) => Err(error.clone()),
        };
        let is_told = told.is_ok();
        let answer = told.map_or_else(|error| Answer::Failed(format!("{url}: {error}")), Answer::Facts);
        if answers.send((key.clone(), answer)).await.is_err() || is_told {
            return;
        }
        sleep(backoff.next_pause()).await;
    }
}

/// Asks by SGLang's route, then by vLLM's.
async fn ask(http: &reqwest::Client, url: &str) -> Result<EngineFacts, String> {
    let body = get(http, &format!("{url}/server_info")).await?;
    // vLLM has this route too, in its development mode, with other content.
    if let Some(facts) = body.map(|body| parse::server_info(&body)).transpose()?.flatten() {
        return Ok(facts);
    }
    let body = get(http, &format!("{url}/kv_event_sources")).await?;
    let facts = body.map(|body| parse::kv_event_sources(&body)).transpose()?.flatten();
    let mut facts = facts.ok_or("neither /server_info nor /kv_event_sources says where events are published")?;
    if let Some(body) = get(http, &format!("{url}/metrics")).await? {
        let (block_size, total_kv_blocks) = parse::cache_config(&String::from_utf8_lossy(&body));
        facts.block_size = block_size;
        facts.block_size_route = block_size.map(|_| METRICS);
        facts.total_kv_blocks = total_kv_blocks;
    }
    Ok(facts)
}

/// The body at `url`; none where there is no such route.
async fn get(http: &reqwest::Client, url: &str) -> Result<Option<Vec<u8>>, String> {
    let call = async {
        let mut response = http.get(url).send().await.map_err(|error| innermost(&error))?;
        let status = response.status().as_u16();
        match status {
            200 => {}
            404 | 405 => return Ok(None),
            _ => return Err(format!("{} answers {status}", response.url().path())),
        }
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| innermost(&error))? {
            if body.len() + piece.len() > MAX_BODY {
                return Err(format!("{} answers with more than {MAX_BODY} bytes", response.url().path()));
            }
            body.extend_from_slice(&piece);
        }
        Ok(Some(body))
    };
    match timeout(CALL_TIMEOUT, call).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no answer within {} s", CALL_TIMEOUT.as_secs())),
    }
}
