//! ZMTP over TCP and IPC for sockets that face others: SUB, DEALER and PUB of our own (design section 8).
//!
//! Every socket has a frame limit, heartbeats, its own reconnect with the name looked up again, and bounded queues
//! that count what they drop.

pub(crate) mod backoff;
mod codec;
mod connection;
mod dealer;
mod endpoint;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod heartbeat;
mod inbox;
mod publisher;
mod session;
mod subscriber;
mod topics;

use std::time::Duration;

use bytes::Bytes;

#[cfg(feature = "server")]
pub(crate) use self::endpoint::listen_tcp;
pub use self::{
    dealer::Dealer,
    publisher::{Publisher, PublisherStats},
    subscriber::Subscriber,
};

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
    /// This side ended the connection.
    #[error("closed on request")]
    Closed,
}

impl TransportError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Endpoint(_) => "endpoint",
            Self::Io { .. } => "io",
            Self::Protocol(_) => "protocol",
            Self::Timeout(_) => "timeout",
            Self::Closed => "closed",
        }
    }
}

/// What a subscriber reports, in order.
#[derive(Debug)]
pub enum SubscriberEvent {
    /// A connection is up and the subscription was sent; messages that follow came over it.
    Connected,
    /// The connection ended or an attempt to connect failed; the socket tries again by itself. Of several in a row
    /// that nobody read in between only the newest is kept.
    Disconnected(TransportError),
    /// A message.
    Message(Message),
    /// So many messages were dropped here because the reader was behind.
    Dropped(u64),
}
