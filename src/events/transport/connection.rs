//! A [`Session`] on a socket: reading, writing and heartbeats of one connection, driven by its owner.
//!
//! Invariants: every method is cancel-safe (all state is in the struct); nothing is read while complete events wait.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::{
    TransportConfig, TransportError,
    codec::ProtocolError,
    endpoint::{Endpoint, Stream},
    handshake::SocketKind,
    heartbeat::{Beat, Heartbeat},
    session::{Incoming, Session},
};

/// Buffers handed to the kernel in one call.
const WRITE_SLICES: usize = 64;
/// While more than this many bytes are unsent, commands wait in the session, which bounds them: a peer that sends PING
/// and reads nothing cannot make the output grow.
const CONTROL_AFTER: usize = 512 << 10;

impl From<ProtocolError> for TransportError {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// One connection past its handshake.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    session: Session,
    out: VecDeque<Bytes>,
    out_bytes: usize,
    heartbeat: Heartbeat,
    heartbeat_timeout: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    /// Connects to `endpoint` and shakes hands, all within `config.connect_timeout`.
    pub(super) async fn open(
        endpoint: &Endpoint,
        kind: SocketKind,
        config: &TransportConfig,
    ) -> Result<Self, TransportError> {
        let deadline = Instant::now() + config.connect_timeout;
        let stream = endpoint.connect(deadline, config.heartbeat_timeout).await?;
        let session = Session::new(kind, config.max_frame_bytes, config.max_message_bytes);
        Self::shake_hands(stream, session, deadline, config).await
    }

    /// Shakes hands with a subscriber that connected, within `config.connect_timeout`.
    pub(super) async fn accept(stream: Stream, config: &TransportConfig) -> Result<Self, TransportError> {
        let deadline = Instant::now() + config.connect_timeout;
        Self::shake_hands(stream, Session::for_publisher(), deadline, config).await
    }

    async fn shake_hands(
        stream: Stream,
        session: Session,
        deadline: Instant,
        config: &TransportConfig,
    ) -> Result<Self, TransportError> {
        let heartbeat = Heartbeat::new(Instant::now(), Duration::ZERO, config.heartbeat_timeout, false);
        let timer = Box::pin(sleep_until(deadline));
        let mut connection = Self {
            stream,
            session,
            out: VecDeque::new(),
            out_bytes: 0,
            heartbeat,
            heartbeat_timeout: config.heartbeat_timeout,
            timer,
        };
        let shaken = async {
            while connection.next()?.is_none() {
                connection.progress().await?;
            }
            // Our READY may still wait; nothing may overtake it.
            connection.flush().await?;
            Ok::<(), TransportError>(())
        };
        timeout_at(deadline, shaken).await.map_err(|_| TransportError::Timeout("handshake"))??;
        let has_ping = connection.session.peer_has_commands();
        let now = Instant::now();
        connection.heartbeat = Heartbeat::new(now, config.heartbeat_interval, config.heartbeat_timeout, has_ping);
        connection.timer.as_mut().reset(now);
        Ok(connection)
    }

    /// The next event in what was read.
    pub(super) fn next(&mut self) -> Result<Option<Incoming>, TransportError> {
        Ok(self.session.next()?)
    }

    /// Asks for messages with `prefix`.
    pub(super) fn subscribe(&mut self, prefix: &[u8]) {
        self.session.subscribe(prefix);
    }

    /// Adds encoded bytes to what is to be written.
    pub(super) fn queue(&mut self, bytes: Bytes) {
        self.out_bytes += bytes.len();
        self.out.push_back(bytes);
    }

    /// When bytes last came.
    pub(super) fn last_received(&self) -> Instant {
        self.heartbeat.last_received()
    }

    /// Bytes not written yet.
    pub(super) fn unsent(&self) -> usize {
        self.out_bytes
    }

    fn queue_control(&mut self) {
        if self.out_bytes <= CONTROL_AFTER
            && let Some(bytes) = self.session.take_control()
        {
            self.queue(bytes);
        }
    }

    /// Writes and reads until bytes arrived or everything queued is written; sends and judges heartbeats meanwhile.
    pub(super) async fn progress(&mut self) -> Result<(), TransportError> {
        poll_fn(|cx| self.poll_progress(cx)).await
    }

    /// Writes everything queued, reading nothing.
    pub(super) async fn flush(&mut self) -> Result<(), TransportError> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.poll_heartbeat(cx)?;
        self.queue_control();
        let had_output = !self.out.is_empty();
        let written = self.poll_flush(cx)?;
        let space = self.session.space();
        let room = space.capacity() - space.len();
        match self.stream.poll_read(cx, space) {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(closed(io::ErrorKind::UnexpectedEof.into()))),
            Poll::Ready(Ok(read)) => {
                self.session.filled(read, room);
                self.heartbeat.received(Instant::now());
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(closed(error))),
            Poll::Pending if had_output && written.is_ready() => Poll::Ready(Ok(())),
            Poll::Pending => {
                self.session.rest();
                Poll::Pending
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.queue_control();
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
            let count = self.out.len().min(WRITE_SLICES);
            for (slice, bytes) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(bytes);
            }
            let mut written = match ready!(self.stream.poll_write(cx, &slices[..count])) {
                Ok(0) => return Poll::Ready(Err(closed(io::ErrorKind::WriteZero.into()))),
                Ok(written) => written,
                Err(error) => return Poll::Ready(Err(closed(error))),
            };
            self.out_bytes = self.out_bytes.saturating_sub(written);
            while let Some(front) = self.out.front_mut() {
                if written < front.len() {
                    front.advance(written);
                    break;
                }
                written -= front.len();
                self.out.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_heartbeat(&mut self, cx: &mut Context<'_>) -> Result<(), TransportError> {
        while self.timer.as_mut().poll(cx).is_ready() {
            match self.heartbeat.beat(Instant::now(), self.session.peer_ttl()) {
                Beat::Wait(until) => self.timer.as_mut().reset(until),
                Beat::Ping => self.session.ping(self.heartbeat_timeout),
                Beat::Dead => return Err(TransportError::Timeout("heartbeat")),
            }
        }
        Ok(())
    }
}

fn closed(source: io::Error) -> TransportError {
    TransportError::Io { context: "the connection ended".into(), source }
}
