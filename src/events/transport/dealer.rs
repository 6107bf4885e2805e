//! DEALER: one connection for one exchange with a ROUTER.

use tokio::time::timeout;

use super::{
    Message, TransportConfig, TransportError, codec::encode_message, connection::Connection, endpoint::Endpoint,
    handshake::SocketKind, session::Incoming,
};

/// A DEALER connected to one endpoint for one exchange. It does not reconnect: after an error make a new one, so that
/// answers of a former exchange are never read as answers to the next.
#[derive(Debug)]
pub struct Dealer {
    connection: Connection,
    config: TransportConfig,
}

impl Dealer {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// Endpoint, connection, protocol or time.
    pub async fn connect(endpoint: &str, config: TransportConfig) -> Result<Self, TransportError> {
        let endpoint = Endpoint::parse(endpoint)?;
        let connection = Connection::open(&endpoint, SocketKind::Dealer, &config).await?;
        Ok(Self { connection, config })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The connection ended, the peer took nothing for the heartbeat's timeout, or the message has no frame.
    pub async fn send(&mut self, message: Message) -> Result<(), TransportError> {
        if message.is_empty() {
            return Err(TransportError::Protocol("a message has at least one frame".into()));
        }
        self.connection.queue(encode_message(&message));
        let sent = timeout(self.config.heartbeat_timeout, self.connection.flush()).await;
        sent.map_err(|_| TransportError::Timeout("send"))?
    }

    /// The next message. Cancel-safe. Bounded: reading stops while nobody calls this.
    ///
    /// # Errors
    /// The connection ended or the peer broke the protocol.
    pub async fn recv(&mut self) -> Result<Message, TransportError> {
        loop {
            match self.connection.next()? {
                Some(Incoming::Message(message, _)) => return Ok(message),
                Some(_) => {}
                None => self.connection.progress().await?,
            }
        }
    }
}
