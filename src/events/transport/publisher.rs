//! PUB: one bound address, any number of subscribers, each with a bounded queue of its own.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Message, TransportConfig, TransportError,
    codec::encode_message,
    connection::Connection,
    endpoint::{Endpoint, Listener, Stream},
    session::Incoming,
    topics::Topics,
};

/// Most connections at a time, those in their handshake included.
const MAX_CONNECTIONS: usize = 16_384;
/// Bytes handed to a connection at a time; the rest stays in its bounded queue.
const HAND_OVER: usize = 256 << 10;
/// Pause after the system refused a connection (no file handles left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A PUB socket bound to one address. Clones are the same socket; it closes with the last one, unsent messages
/// with it.
#[derive(Clone, Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    /// Ends the listener and all connections with the last clone.
    _task: Arc<AbortOnDropHandle<()>>,
}

/// Counts since the start of a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherStats {
    /// Subscribers with at least one subscription, now.
    pub subscribers: usize,
    /// Messages dropped because a subscriber's queue was full.
    pub dropped: u64,
    /// Messages that waited for a subscriber whose connection ended.
    pub lost_at_disconnect: u64,
    /// Connections that were refused, broke the protocol, or failed in their handshake.
    pub refused: u64,
}

#[derive(Debug)]
struct Shared {
    config: TransportConfig,
    endpoint: String,
    local_addr: SocketAddr,
    outlets: RwLock<Vec<Arc<Outlet>>>,
    dropped: AtomicU64,
    lost_at_disconnect: AtomicU64,
    refused: AtomicU64,
}

/// The queue of one subscriber.
#[derive(Debug, Default)]
struct Outlet {
    state: Mutex<OutletState>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct OutletState {
    topics: Topics,
    queue: VecDeque<Bytes>,
    bytes: usize,
    /// Bytes the connection took and has not written.
    unsent: usize,
}

impl Publisher {
    /// Binds `tcp://HOST:PORT` (`*` = all interfaces of both families, port 0 or `*` = any) or `ipc://PATH`.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(endpoint: &str, config: TransportConfig) -> Result<Self, TransportError> {
        let parsed = Endpoint::parse_bind(endpoint)?;
        let listener = Listener::bind(&parsed).await?;
        let local_addr = listener.local_addr();
        let endpoint = match (&parsed, local_addr) {
            (Endpoint::Tcp { host, .. }, Some(address)) if host == "*" || address.ip().is_unspecified() => {
                format!("tcp://127.0.0.1:{}", address.port())
            }
            (Endpoint::Tcp { host, .. }, Some(address)) => {
                Endpoint::Tcp { host: host.clone(), port: address.port() }.to_string()
            }
            (other, _) => other.to_string(),
        };
        let shared = Arc::new(Shared {
            config,
            endpoint,
            local_addr: local_addr.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            outlets: RwLock::default(),
            dropped: AtomicU64::new(0),
            lost_at_disconnect: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared, _task: Arc::new(AbortOnDropHandle::new(task)) })
    }

    /// The bound TCP address; an ipc socket has none and gives 0.0.0.0:0.
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local_addr
    }

    /// An endpoint that reaches this socket from the same host.
    pub fn endpoint(&self) -> &str {
        &self.shared.endpoint
    }

    /// Queues a message for every subscriber whose prefix matches its first frame; never waits. A subscriber that is
    /// behind loses the newest. A message without frames goes nowhere.
    pub fn publish(&self, message: Message) {
        let Some(topic) = message.first() else { return };
        let config = &self.shared.config;
        let mut encoded = None;
        for outlet in self.shared.outlets.read().iter() {
            let mut state = outlet.state.lock();
            if !state.topics.matches(topic) {
                continue;
            }
            let wire = encoded.get_or_insert_with(|| encode_message(&message));
            if state.queue.len() >= config.queue_messages
                || (state.bytes.saturating_add(wire.len()) > config.queue_bytes && state.bytes > 0)
            {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            state.bytes += wire.len();
            state.queue.push_back(wire.clone());
            let first = state.queue.len() == 1;
            drop(state);
            if first {
                outlet.filled.notify_one();
            }
        }
    }

    /// Whether a connection has not taken all that was published for it.
    pub fn has_queued(&self) -> bool {
        self.shared.outlets.read().iter().any(|outlet| !outlet.state.lock().queue.is_empty())
    }

    /// Subscribers connected now that asked for something: what is published next reaches them.
    pub fn subscribers(&self) -> usize {
        self.shared.outlets.read().iter().filter(|outlet| !outlet.state.lock().topics.is_empty()).count()
    }

    /// Messages dropped since the start because subscribers were behind.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// All counts.
    pub fn stats(&self) -> PublisherStats {
        PublisherStats {
            subscribers: self.subscribers(),
            dropped: self.dropped(),
            lost_at_disconnect: self.shared.lost_at_disconnect.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
        }
    }

    /// Waits, at most `limit`, until everything queued was given to the kernel; `false` when something is left. For
    /// a publisher that ends.
    pub async fn drain(&self, limit: Duration) -> bool {
        let empty = || {
            self.shared.outlets.read().iter().all(|outlet| {
                let state = outlet.state.lock();
                state.queue.is_empty() && state.unsent == 0
            })
        };
        let wait = async {
            while !empty() {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(limit, wait).await.is_ok()
    }
}

/// Accepts subscribers for ever.
async fn accept(listener: Listener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(shared.config.heartbeat_timeout) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok(stream) if connections.len() < MAX_CONNECTIONS => {
                let shared = Arc::clone(&shared);
                connections.spawn(async move { serve(stream, &shared).await });
            }
            Ok(_) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(%error, endpoint = %shared.endpoint, "could not accept a subscriber");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one subscriber to the end of its connection.
async fn serve(stream: Stream, shared: &Shared) {
    let mut connection = match Connection::accept(stream, &shared.config).await {
        Ok(connection) => connection,
        Err(error) => return shared.refuse(&error),
    };
    let registered = Registered::new(shared);
    if let Err(error) = pump(&mut connection, &registered.outlet).await
        && !matches!(error, TransportError::Io { .. })
    {
        shared.refuse(&error);
    }
}

impl Shared {
    fn refuse(&self, error: &TransportError) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%error, reason = error.reason(), endpoint = %self.endpoint, "subscriber refused");
    }
}

/// Moves subscriptions in and messages out.
async fn pump(connection: &mut Connection, outlet: &Outlet) -> Result<(), TransportError> {
    loop {
        while let Some(incoming) = connection.next()? {
            match incoming {
                Incoming::Subscribe(prefix) => outlet.state.lock().topics.add(&prefix)?,
                Incoming::Cancel(prefix) => outlet.state.lock().topics.remove(&prefix),
                // What else a subscriber says, a PUB socket does not hear.
                Incoming::Ready | Incoming::Message(..) => {}
            }
        }
        outlet.hand_over(connection);
        tokio::select! {
            progress = connection.progress() => progress?,
            () = outlet.filled.notified() => {}
        }
    }
}

impl Outlet {
    /// Moves queued messages to the connection while it has little to write.
    fn hand_over(&self, connection: &mut Connection) {
        let mut state = self.state.lock();
        while connection.unsent() < HAND_OVER {
            let Some(wire) = state.queue.pop_front() else { break };
            state.bytes -= wire.len();
            connection.queue(wire);
        }
        state.unsent = connection.unsent();
    }
}

/// An outlet that receives while this lives.
struct Registered<'a> {
    shared: &'a Shared,
    outlet: Arc<Outlet>,
}

impl<'a> Registered<'a> {
    fn new(shared: &'a Shared) -> Self {
        let outlet = Arc::new(Outlet::default());
        shared.outlets.write().push(Arc::clone(&outlet));
        Self { shared, outlet }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.shared.outlets.write().retain(|other| !Arc::ptr_eq(other, &self.outlet));
        let left = self.outlet.state.lock().queue.len();
        self.shared.lost_at_disconnect.fetch_add(left as u64, Ordering::Relaxed);
    }
}
