//! SUB: one endpoint, connected for ever.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    SubscriberEvent, TransportConfig, TransportError, backoff::Backoff, connection::Connection, endpoint::Endpoint,
    handshake::SocketKind, inbox::Inbox, session::Incoming,
};

/// A SUB socket connected to one endpoint; connects before the publisher exists, and for ever.
#[derive(Debug)]
pub struct Subscriber {
    shared: Arc<Shared>,
    taken: VecDeque<SubscriberEvent>,
    /// Ends the connection with the socket.
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    reconnect: Notify,
    connected: watch::Sender<bool>,
    origin: Instant,
    /// Milliseconds from the origin to the last bytes received.
    heard: AtomicU64,
}

impl Shared {
    fn heard_at(&self, at: Instant) {
        let millis = at.saturating_duration_since(self.origin).as_millis();
        self.heard.store(u64::try_from(millis).unwrap_or(u64::MAX), Relaxed);
    }
}

impl Subscriber {
    /// Starts connecting. `topics` are prefixes; one empty prefix takes everything. The name is looked up again at
    /// each attempt.
    ///
    /// # Errors
    /// The endpoint cannot be parsed or its scheme is not supported.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn connect(endpoint: &str, topics: &[&[u8]], config: TransportConfig) -> Result<Self, TransportError> {
        let endpoint = Endpoint::parse(endpoint)?;
        let inbox = Inbox::new(config.queue_messages, config.queue_bytes);
        let shared = Arc::new(Shared {
            inbox,
            reconnect: Notify::new(),
            connected: watch::Sender::new(false),
            origin: Instant::now(),
            heard: AtomicU64::new(0),
        });
        let topics = topics.iter().map(|topic| topic.to_vec()).collect();
        let task = tokio::spawn(run(endpoint, topics, config, Arc::clone(&shared)));
        Ok(Self { shared, taken: VecDeque::new(), _task: AbortOnDropHandle::new(task) })
    }

    /// The next event. Cancel-safe. Never ends: the socket lives until dropped.
    pub async fn recv(&mut self) -> SubscriberEvent {
        loop {
            if let Some(event) = self.taken.pop_front() {
                return event;
            }
            if !self.shared.inbox.take(&mut self.taken) {
                self.shared.inbox.ready().await;
            }
        }
    }

    /// Ends the current connection and makes a new one at once.
    pub fn reconnect(&self) {
        self.shared.reconnect.notify_one();
    }

    /// Whether a connection is up, whatever of it was read.
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.shared.connected.subscribe()
    }

    /// When the publisher last sent anything, answers to heartbeats included; the start before that.
    pub fn heard(&self) -> Instant {
        self.shared.origin + Duration::from_millis(self.shared.heard.load(Relaxed))
    }

    /// Messages received that nobody has read yet; events between them count too.
    pub fn queued(&self) -> usize {
        self.taken.len() + self.shared.inbox.messages()
    }

    /// Messages dropped since the start because the reader was behind.
    pub fn dropped(&self) -> u64 {
        self.shared.inbox.dropped()
    }
}

/// Connects, reads until the connection ends, and again.
async fn run(endpoint: Endpoint, topics: Vec<Vec<u8>>, config: TransportConfig, shared: Arc<Shared>) {
    let mut backoff = Backoff::new(config.reconnect_min, config.reconnect_max);
    loop {
        let attempt = async {
            let mut connection = Connection::open(&endpoint, SocketKind::Sub, &config).await?;
            for topic in &topics {
                connection.subscribe(topic);
            }
            connection.flush().await?;
            shared.inbox.push_change(SubscriberEvent::Connected);
            shared.connected.send_replace(true);
            read(&mut connection, &shared, &mut backoff).await
        };
        let (error, asked) = tokio::select! {
            Err(error) = attempt => (error, false),
            () = shared.reconnect.notified() => (TransportError::Closed, true),
        };
        shared.connected.send_replace(false);
        tracing::debug!(%endpoint, reason = error.reason(), %error, "subscription ended");
        shared.inbox.push_change(SubscriberEvent::Disconnected(error));
        if !asked {
            tokio::select! {
                () = sleep(backoff.next_pause()) => {}
                () = shared.reconnect.notified() => {}
            }
        }
    }
}

/// Reads one connection to its end.
async fn read(
    connection: &mut Connection,
    shared: &Shared,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, TransportError> {
    let since = Instant::now();
    let mut batch = Vec::new();
    loop {
        // What came before an error is delivered before it.
        let outcome = loop {
            match connection.next() {
                Ok(Some(Incoming::Message(message, consumed))) => batch.push((message, consumed)),
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if !batch.is_empty() {
            shared.inbox.push_messages(&mut batch);
            backoff.reset();
        }
        outcome?;
        let progress = connection.progress().await;
        // A publisher that may be idle for hours has still proved itself by staying.
        backoff.reset_after(since.elapsed());
        progress?;
        shared.heard_at(connection.last_received());
    }
}
