//! The servers of the demo: mock engines, and a selector that learns them from a workers file.

use std::{
    fmt::Write,
    io,
    path::{Path, PathBuf},
};

use tokio::{net::TcpListener, sync::watch};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::DemoError;
use crate::{
    discovery::{
        apply::{self, ApplyOptions, InProcessTarget, TargetStatus},
        file::{FollowOptions, WorkersFile},
    },
    engine::{Encoding, EngineConfig, MockEngine},
    http::{self, HttpConfig},
    service::{SelectionService, SelectionServiceBuilder, ServiceConfig},
};

/// Owner of the workers in the selector's catalog.
const CATALOG_OWNER: &str = "file.demo";

/// Engines, numbered from 0, each with the encoding of another real one.
#[derive(Debug)]
pub struct Fleet {
    engines: Vec<MockEngine>,
}

impl Fleet {
    /// Starts `count` engines on free ports.
    ///
    /// # Errors
    /// An engine cannot start.
    pub async fn start(count: usize, config: &EngineConfig) -> Result<Self, DemoError> {
        let mut engines = Vec::with_capacity(count);
        for number in 0..count {
            let config = EngineConfig { encoding: encoding(number).0, ..config.clone() };
            engines.push(MockEngine::start(config).await?);
        }
        Ok(Self { engines })
    }

    /// The engines.
    pub fn engines(&self) -> &[MockEngine] {
        &self.engines
    }

    /// Base URLs, by number.
    pub fn urls(&self) -> Vec<String> {
        self.engines.iter().map(MockEngine::url).collect()
    }

    /// What the engine with `number` is called, and whose events it sends.
    pub fn label(number: usize) -> String {
        format!("engine-{number} {}", encoding(number).1)
    }

    /// The fleet as a workers file.
    pub fn workers_file(&self) -> String {
        let mut text = String::from("# Written by `pointsman demo`.\nversion: 1\n");
        if let Some(engine) = self.engines.first() {
            let config = engine.config();
            let line = format!(
                "defaults: {{model_name: {}, block_size: {}, max_num_batched_tokens: {}, total_kv_blocks: {}}}\n",
                config.model, config.block_size, config.max_batched_tokens, config.num_blocks
            );
            text.push_str(&line);
        }
        text.push_str("workers:\n");
        for (number, engine) in self.engines.iter().enumerate() {
            let events = engine.kv_events_endpoint(0).unwrap_or_default();
            let replay = engine.replay_endpoint(0).map(|at| format!(", replay: \"{at}\"")).unwrap_or_default();
            let entry = writeln!(
                text,
                "  - name: engine-{number}\n    endpoint: {}\n    kv_events: {{endpoint: \"{events}\"{replay}}}",
                engine.url()
            );
            entry.expect("writing to memory cannot fail");
        }
        text
    }
}

fn encoding(number: usize) -> (Encoding, &'static str) {
    const ALL: [(Encoding, &str); 4] = [
        (Encoding::VllmMap, "vLLM"),
        (Encoding::Sglang, "SGLang"),
        (Encoding::Trtllm, "TRT-LLM"),
        (Encoding::VllmArray, "vLLM<0.24"),
    ];
    ALL[number % ALL.len()]
}

/// A selector in this process: the same service, HTTP server and discovery that `pointsman selector` runs.
pub struct Selector {
    service: SelectionService,
    url: String,
    folder: TemporaryFolder,
    shutdown: CancellationToken,
    server: Option<http::Server>,
    _file: WorkersFile,
    _applied: AbortOnDropHandle<()>,
}

impl Selector {
    /// Starts a selector on a free port that follows a workers file with the fleet in it.
    ///
    /// # Errors
    /// The file cannot be written, or the service or its socket cannot be made.
    pub async fn start(fleet: &Fleet) -> Result<Self, DemoError> {
        let folder = TemporaryFolder::create().map_err(|source| DemoError::io("temporary folder", source))?;
        let path = folder.workers_file();
        std::fs::write(&path, fleet.workers_file()).map_err(|source| DemoError::io("workers file", source))?;

        let service = SelectionServiceBuilder::new(ServiceConfig::default()).build()?;
        let listener =
            TcpListener::bind("127.0.0.1:0").await.map_err(|source| DemoError::io("selector's socket", source))?;
        let shutdown = CancellationToken::new();
        let server = http::serve(service.clone(), HttpConfig::default(), listener, shutdown.clone())
            .map_err(|source| DemoError::io("selector's socket", source))?;
        let file = WorkersFile::follow(path, FollowOptions::default())
            .map_err(|source| DemoError::io("workers file", source))?;
        let applied = apply::run(
            InProcessTarget::new(service.clone(), CATALOG_OWNER.to_owned()),
            file.status(),
            ApplyOptions::default(),
            watch::Sender::new(TargetStatus::default()),
            shutdown.clone(),
        );
        Ok(Self {
            service,
            url: format!("http://{}", server.address()),
            folder,
            shutdown,
            server: Some(server),
            _file: file,
            _applied: AbortOnDropHandle::new(tokio::spawn(applied)),
        })
    }

    /// Its base URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The workers file it follows.
    pub fn workers_file(&self) -> PathBuf {
        self.folder.workers_file()
    }

    /// Whether it can choose among all of `fleet` and hears every engine.
    pub fn knows(&self, fleet: &Fleet) -> bool {
        let heard = fleet.engines().iter().all(|engine| engine.stats().iter().all(|rank| rank.subscribers > 0));
        heard && self.service.listeners().len() == fleet.engines().len() && self.service.can_select()
    }

    /// Stops serving and waits for the end.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        if let Some(server) = self.server.take() {
            server.finished().await;
        }
    }
}

/// A folder that goes with its owner.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn create() -> io::Result<Self> {
        let name = format!("pointsman-demo-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn workers_file(&self) -> PathBuf {
        self.path().join("workers.yaml")
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "temporary folder not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::file;

    #[tokio::test]
    async fn the_workers_file_is_one_that_selectors_take() {
        let fleet = Fleet::start(3, &EngineConfig::default()).await.unwrap();
        let workers = file::parse(&fleet.workers_file(), "workers.yaml").unwrap();
        assert_eq!(workers.len(), 3);
        let text = format!("{workers:?}");
        for engine in fleet.engines() {
            let endpoints = [engine.url(), engine.kv_events_endpoint(0).unwrap(), engine.replay_endpoint(0).unwrap()];
            assert!(endpoints.iter().all(|endpoint| text.contains(endpoint.as_str())), "{text}");
        }
    }
}
