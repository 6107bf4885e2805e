//! ZMTP over TCP and IPC for sockets that face others: SUB, DEALER and PUB of our own (design section 8).
//!
//! Every socket has a frame limit, heartbeats, its own reconnect with the name looked up again, and bounded queues
//! that count what they drop.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

/// One message: its frames.
pub type Message = Vec<Bytes>;

/// Limits and timings of a socket.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Largest frame accepted, in bytes.
    pub max_frame_bytes: usize,
    /// Largest message accepted, in bytes over all frames.
    pub max_message_bytes: usize,
    /// Time for TCP connect and handshake.
    pub connect_timeout: Duration,
    /// Interval of PING.
    pub heartbeat_interval: Duration,
    /// Silence after a PING that ends the connection.
    pub heartbeat_timeout: Duration,
    /// First pause before a reconnect; doubles.
    pub reconnect_min: Duration,
    /// Longest pause before a reconnect.
    pub reconnect_max: Duration,
    /// Messages kept for a reader or subscriber that is behind.
    pub queue_messages: usize,
    /// Bytes kept for it.
    pub queue_bytes: usize,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            max_frame_bytes: 64 << 20,
            max_message_bytes: 128 << 20,
            connect_timeout: Duration::from_secs(5),
            heartbeat_interval: Duration::from_secs(5),
            heartbeat_timeout: Duration::from_secs(15),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            queue_messages: 100_000,
            queue_bytes: 256 << 20,
        }
    }
}

/// Why a socket operation failed.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The endpoint cannot be used.
    #[error("{0}")]
    Endpoint(String),
    /// The connection failed or ended.
    #[error("{context}")]
    Io {
        /// What was tried.
        context: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The peer broke the protocol or a limit.
    #[error("peer violated the protocol: {0}")]
    Protocol(String),
    /// A deadline passed.
    #[error("timed out: {0}")]
    Timeout(&'static str),
}

impl TransportError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Endpoint(_) => "endpoint",
            Self::Io { .. } => "io",
            Self::Protocol(_) => "protocol",
            Self::Timeout(_) => "timeout",
        }
    }
}

/// What a subscriber reports, in order.
#[derive(Debug)]
pub enum SubscriberEvent {
    /// A connection is up and the subscription was sent; messages that follow came over it.
    Connected,
    /// The connection ended; the socket reconnects by itself.
    Disconnected(TransportError),
    /// A message.
    Message(Message),
    /// So many messages were dropped here because the reader was behind.
    Dropped(u64),
}

/// A SUB socket connected to one endpoint; connects before the publisher exists, and for ever.
#[derive(Debug)]
pub struct Subscriber {}

impl Subscriber {
    /// Starts connecting. `topics` are prefixes; one empty prefix takes everything.
    ///
    /// # Errors
    /// The endpoint cannot be parsed or its scheme is not supported.
    pub fn connect(endpoint: &str, topics: &[&[u8]], config: TransportConfig) -> Result<Self, TransportError> {
        let _ = (endpoint, topics, config);
        todo!()
    }

    /// The next event. Cancel-safe. Never ends: the socket lives until dropped.
    pub async fn recv(&mut self) -> SubscriberEvent {
        todo!()
    }

    /// Ends the current connection and makes a new one at once.
    pub fn reconnect(&self) {
        todo!()
    }
}

/// A DEALER connected to one endpoint for one exchange.
#[derive(Debug)]
pub struct Dealer {}

impl Dealer {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// Endpoint, connection, protocol or time.
    pub async fn connect(endpoint: &str, config: TransportConfig) -> Result<Self, TransportError> {
        let _ = (endpoint, config);
        todo!()
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn send(&mut self, message: Message) -> Result<(), TransportError> {
        let _ = message;
        todo!()
    }

    /// The next message. Cancel-safe. Bounded: reading stops while nobody calls this.
    ///
    /// # Errors
    /// The connection ended or the peer broke the protocol.
    pub async fn recv(&mut self) -> Result<Message, TransportError> {
        todo!()
    }
}

/// A PUB socket bound to one address.
#[derive(Clone, Debug)]
pub struct Publisher {
    shared: Arc<()>,
}

impl Publisher {
    /// Binds `tcp://HOST:PORT` (`*` = all interfaces, port 0 = any).
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(endpoint: &str, config: TransportConfig) -> Result<Self, TransportError> {
        let _ = (endpoint, config);
        todo!()
    }

    /// The bound address.
    pub fn local_addr(&self) -> std::net::SocketAddr {
        let _ = &self.shared;
        todo!()
    }

    /// Queues a message for every subscriber whose prefix matches its first frame; never waits. A subscriber that is
    /// behind loses the newest.
    pub fn publish(&self, message: Message) {
        let _ = message;
        todo!()
    }

    /// Subscribers connected now.
    pub fn subscribers(&self) -> usize {
        todo!()
    }

    /// Messages dropped since the start because subscribers were behind.
    pub fn dropped(&self) -> u64 {
        todo!()
    }
}
