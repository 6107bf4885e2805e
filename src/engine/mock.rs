//! The engine as a whole: its ranks, its sockets, and what becomes of them at a restart.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use tokio::{net::TcpListener, sync::mpsc, time::sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    api,
    config::EngineConfig,
    event::Namespace,
    rank::{Rank, RankStats},
    replay::{self, ReplaySource},
    scheduler::{Output, SubmitError},
    stream::EventStream,
};
use crate::events::transport::{Publisher, TransportConfig, TransportError, listen_tcp};

/// How long a restart waits for the sockets of the former incarnation to be gone.
const REBIND_TIMEOUT: Duration = Duration::from_secs(10);
const REBIND_PAUSE: Duration = Duration::from_millis(5);

/// Why an engine could not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A setting is out of range.
    #[error("{0}")]
    Config(String),
    /// An address cannot be bound.
    #[error("could not bind {what}")]
    Bind {
        /// Which socket.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An event or replay socket failed.
    #[error("could not open the {what} socket")]
    Socket {
        /// Which socket.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request cannot be served.
    #[error(transparent)]
    Request(#[from] SubmitError),
    /// No such rank.
    #[error("data-parallel rank {rank} is not below {ranks}")]
    Rank {
        /// The rank asked for.
        rank: u32,
        /// Ranks of the engine.
        ranks: u32,
    },
    /// The engine restarted before the request was done.
    #[error("the engine restarted")]
    Restarted,
}

impl EngineError {
    /// A stable word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Config(_) => "config",
            Self::Bind { .. } => "bind",
            Self::Socket { .. } => "socket",
            Self::Request(_) => "request",
            Self::Rank { .. } => "rank",
            Self::Restarted => "restarted",
        }
    }
}

/// A completion to compute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletionRequest {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens to generate, at least one.
    pub max_tokens: usize,
    /// What it shares a cache with.
    pub namespace: Namespace,
    /// The rank; `None` takes the one with the fewest requests.
    pub rank: Option<u32>,
}

/// A completion under way. Dropping it cancels the request.
#[derive(Debug)]
pub struct Completion {
    rank: u32,
    outputs: mpsc::UnboundedReceiver<Output>,
}

/// A finished completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The rank that served it.
    pub rank: u32,
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// Prompt tokens that were cached.
    pub cached_tokens: usize,
}

impl Completion {
    /// The rank that serves it.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The next token; `None` when the engine restarted. Cancel-safe.
    pub async fn next(&mut self) -> Option<Output> {
        self.outputs.recv().await
    }

    /// Waits for all tokens.
    ///
    /// # Errors
    /// [`EngineError::Restarted`].
    pub async fn finish(mut self) -> Result<Completed, EngineError> {
        let mut tokens = Vec::new();
        while let Some(output) = self.next().await {
            tokens.push(output.token);
            if output.finished {
                return Ok(Completed { rank: self.rank, tokens, cached_tokens: output.cached_tokens });
            }
        }
        Err(EngineError::Restarted)
    }
}

/// An engine. Clones are the same one; it ends with the last.
#[derive(Clone, Debug)]
pub struct MockEngine {
    shared: Arc<Shared>,
    _http: Arc<AbortOnDropHandle<()>>,
}

/// What the HTTP face holds of the engine.
#[derive(Debug)]
pub(super) struct Shared {
    config: EngineConfig,
    http_addr: SocketAddr,
    /// Ports of all ranks, kept over restarts.
    ports: Vec<RankPorts>,
    /// `None` while a restart is going on.
    incarnation: RwLock<Option<Incarnation>>,
    restarting: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
struct RankPorts {
    events: u16,
    replay: Option<u16>,
}

/// All that a restart throws away.
#[derive(Debug)]
struct Incarnation {
    ranks: Vec<Arc<Rank>>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl MockEngine {
    /// Binds all sockets and starts.
    ///
    /// # Errors
    /// A setting out of range, or an address that cannot be bound.
    pub async fn start(config: EngineConfig) -> Result<Self, EngineError> {
        config.validate().map_err(EngineError::Config)?;
        let http = bind(&config.host, config.port, "HTTP", Duration::ZERO).await?;
        let http_addr = local_addr(&http, "HTTP")?;
        let wanted: Vec<RankPorts> = (0..config.ranks)
            .map(|rank| RankPorts {
                events: offset(config.kv_events_port, rank),
                replay: config.replay_port.map(|port| offset(port, rank)),
            })
            .collect();
        let (incarnation, ports) = Incarnation::start(&config, &wanted, Duration::ZERO).await?;
        let shared = Arc::new(Shared {
            config,
            http_addr,
            ports,
            incarnation: RwLock::new(Some(incarnation)),
            restarting: tokio::sync::Mutex::default(),
        });
        let serving = tokio::spawn(api::serve(http, Arc::clone(&shared)));
        Ok(Self { shared, _http: Arc::new(AbortOnDropHandle::new(serving)) })
    }

    /// The settings it runs with.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// The HTTP address.
    pub fn http_addr(&self) -> SocketAddr {
        self.shared.http_addr
    }

    /// The HTTP base URL, from the same machine.
    pub fn url(&self) -> String {
        format!("http://{}:{}", self.shared.reachable_host(), self.shared.http_addr.port())
    }

    /// The ZMQ endpoint of `rank`'s events, from the same machine.
    pub fn kv_events_endpoint(&self, rank: u32) -> Option<String> {
        self.shared.ports.get(rank as usize).map(|ports| self.shared.tcp_endpoint(ports.events))
    }

    /// The ZMQ endpoint of `rank`'s replay socket, from the same machine.
    pub fn replay_endpoint(&self, rank: u32) -> Option<String> {
        let port = self.shared.ports.get(rank as usize)?.replay?;
        Some(self.shared.tcp_endpoint(port))
    }

    /// Starts a completion.
    ///
    /// # Errors
    /// The request cannot be served, or the engine is restarting.
    pub fn complete(&self, request: CompletionRequest) -> Result<Completion, EngineError> {
        self.shared.complete(request)
    }

    /// Prompt tokens that a request to `rank` would find cached now.
    pub fn cached_tokens(&self, rank: u32, prompt: &[u32], namespace: &Namespace) -> usize {
        let incarnation = self.shared.incarnation.read();
        let found = incarnation.as_ref().and_then(|incarnation| incarnation.ranks.get(rank as usize));
        found.map_or(0, |rank| rank.cached_tokens(prompt, namespace))
    }

    /// Ends every request and starts again at the same addresses: an empty cache, sequence numbers from 0, nothing to
    /// replay.
    ///
    /// # Errors
    /// An address cannot be bound again.
    pub async fn restart(&self) -> Result<(), EngineError> {
        self.shared.restart().await
    }

    /// Forgets all cached content and tells so.
    pub fn clear(&self) {
        self.shared.each_rank(|rank| rank.clear());
    }

    /// Leaves the next `batches` of every rank out of its live stream, for tests of gaps and replay.
    pub fn lose(&self, batches: u64) {
        self.shared.each_rank(|rank| rank.stream().lose(batches));
    }

    /// Counts of every rank since the last restart.
    pub fn stats(&self) -> Vec<RankStats> {
        self.shared.stats()
    }
}

impl Shared {
    pub(super) fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Event and replay port of every rank.
    pub(super) fn ports(&self) -> impl Iterator<Item = (u16, Option<u16>)> + '_ {
        self.ports.iter().map(|ports| (ports.events, ports.replay))
    }

    pub(super) fn is_up(&self) -> bool {
        self.incarnation.read().is_some()
    }

    pub(super) fn each_rank(&self, act: impl Fn(&Rank)) {
        if let Some(incarnation) = &*self.incarnation.read() {
            incarnation.ranks.iter().for_each(|rank| act(rank));
        }
    }

    pub(super) fn stats(&self) -> Vec<RankStats> {
        let incarnation = self.incarnation.read();
        incarnation.iter().flat_map(|incarnation| &incarnation.ranks).map(|rank| rank.stats()).collect()
    }

    pub(super) fn complete(&self, request: CompletionRequest) -> Result<Completion, EngineError> {
        let incarnation = self.incarnation.read();
        let ranks = &incarnation.as_ref().ok_or(EngineError::Restarted)?.ranks;
        let chosen = match request.rank {
            Some(rank) => rank,
            None => (0..).zip(ranks).min_by_key(|(_, rank)| rank.load()).map_or(0, |(number, _)| number),
        };
        let count = self.config.ranks;
        let rank = ranks.get(chosen as usize).ok_or(EngineError::Rank { rank: chosen, ranks: count })?;
        let outputs = rank.submit(request.prompt, request.max_tokens, request.namespace)?;
        Ok(Completion { rank: chosen, outputs })
    }

    pub(super) async fn restart(&self) -> Result<(), EngineError> {
        let _one_at_a_time = self.restarting.lock().await;
        drop(self.incarnation.write().take());
        let (incarnation, _) = Incarnation::start(&self.config, &self.ports, REBIND_TIMEOUT).await?;
        *self.incarnation.write() = Some(incarnation);
        Ok(())
    }

    fn reachable_host(&self) -> String {
        match self.config.host.as_str() {
            "*" | "0.0.0.0" => "127.0.0.1".into(),
            "::" => "[::1]".into(),
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        }
    }

    fn tcp_endpoint(&self, port: u16) -> String {
        format!("tcp://{}:{port}", self.reachable_host())
    }
}

impl Incarnation {
    /// Binds the sockets of all ranks at `wanted` (0 = any port) and starts them; the ports they got.
    async fn start(
        config: &EngineConfig,
        wanted: &[RankPorts],
        patience: Duration,
    ) -> Result<(Self, Vec<RankPorts>), EngineError> {
        let seed = config.hash_seed.unwrap_or_else(|| fastrand::u64(..));
        let (mut ranks, mut tasks, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        for (number, wanted) in (0..).zip(wanted) {
            let publisher = bind_publisher(config, wanted.events, patience).await?;
            let mut bound = RankPorts { events: publisher.local_addr().port(), replay: None };
            let stream = EventStream::new(publisher, &config.topic, config.replay_batches);
            if let Some(port) = wanted.replay {
                let listener = bind(&config.host, port, "replay", patience).await?;
                bound.replay = Some(local_addr(&listener, "replay")?.port());
                let source = ReplaySource {
                    ring: Arc::clone(stream.ring()),
                    topic: stream.topic().clone(),
                    form: config.replay_form,
                };
                let served = replay::serve(listener, source).await;
                tasks.push(served.map_err(|error| EngineError::Socket { what: "replay", source: Box::new(error) })?);
            }
            let rank = Arc::new(Rank::new(number, config, seed, stream));
            tasks.push(AbortOnDropHandle::new(tokio::spawn(Arc::clone(&rank).run(config.clone()))));
            ranks.push(rank);
            ports.push(bound);
        }
        Ok((Self { ranks, _tasks: tasks }, ports))
    }
}

/// Port of `rank`; any for any.
fn offset(port: u16, rank: u32) -> u16 {
    // `EngineConfig::validate` made sure that the sum fits.
    if port == 0 { 0 } else { port.saturating_add(u16::try_from(rank).unwrap_or(u16::MAX)) }
}

fn local_addr(listener: &TcpListener, what: &str) -> Result<SocketAddr, EngineError> {
    listener.local_addr().map_err(|source| EngineError::Bind { what: what.to_owned(), source })
}

/// Listens. An address in use is tried again for `patience`.
async fn bind(host: &str, port: u16, what: &str, patience: Duration) -> Result<TcpListener, EngineError> {
    let start = Instant::now();
    loop {
        match listen_tcp(host, port).await {
            Ok(listener) => return Ok(listener),
            Err(error) if in_use(&error) && start.elapsed() < patience => sleep(REBIND_PAUSE).await,
            Err(source) => return Err(EngineError::Bind { what: format!("the {what} port {host}:{port}"), source }),
        }
    }
}

/// The same for an event socket.
async fn bind_publisher(config: &EngineConfig, port: u16, patience: Duration) -> Result<Publisher, EngineError> {
    let host = if config.host.contains(':') { format!("[{}]", config.host) } else { config.host.clone() };
    let endpoint = format!("tcp://{host}:{port}");
    let start = Instant::now();
    loop {
        match Publisher::bind(&endpoint, TransportConfig::default()).await {
            Ok(publisher) => return Ok(publisher),
            Err(TransportError::Io { source, .. }) if in_use(&source) && start.elapsed() < patience => {
                sleep(REBIND_PAUSE).await;
            }
            Err(error) => return Err(EngineError::Socket { what: "kv events", source: Box::new(error) }),
        }
    }
}

fn in_use(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::AddrInUse
}
