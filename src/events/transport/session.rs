//! One side of a ZMTP connection without its socket: handshake, commands and message assembly.
//!
//! Bytes go in through [`Session::space`], events come out of [`Session::next`], and what must be sent collects in
//! [`Session::take_control`]. Invariant: whatever a peer sends, the state held is bounded by the limits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::{
    Message,
    codec::{COMMAND_LIMIT, FRAMES_LIMIT, FrameDecoder, ProtocolError, put_command, put_short_message, split_command},
    handshake::{GREETING_SIZE, SocketKind, greeting, put_ready, read_greeting, read_ready},
};

/// PINGs and answers to them beyond this many unsent bytes are left out: a peer that does not read gets no more.
const CONTROL_LIMIT: usize = 4 << 10;
/// Most bytes of a PING's context that are returned.
const PING_CONTEXT: usize = 16;

/// What the peer did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// The handshake is complete.
    Ready,
    /// A message, and the bytes that were read from the connection for it, commands before it included.
    Message(Message, usize),
    /// A subscription to a prefix.
    Subscribe(Bytes),
    /// The end of one.
    Cancel(Bytes),
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Ready,
    Traffic,
}

/// Protocol state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    kind: SocketKind,
    stage: Stage,
    decoder: FrameDecoder,
    max_message: usize,
    /// Frames of the message that is being received.
    partial: Message,
    partial_bytes: usize,
    /// Bytes received since the last complete message.
    consumed: usize,
    /// Frames of the last message: room to keep for the next one.
    typical_frames: usize,
    control: BytesMut,
    peer_minor: u8,
    peer_ttl: Option<Duration>,
}

impl Session {
    /// A new connection; the greeting waits in [`Self::take_control`].
    pub(super) fn new(kind: SocketKind, max_frame: usize, max_message: usize) -> Self {
        Self {
            kind,
            stage: Stage::Greeting,
            decoder: FrameDecoder::new(max_frame),
            max_message,
            partial: Vec::new(),
            partial_bytes: 0,
            consumed: 0,
            typical_frames: 1,
            control: BytesMut::from(&greeting()[..]),
            peer_minor: 0,
            peer_ttl: None,
        }
    }

    /// The buffer to read into.
    pub(super) fn space(&mut self) -> &mut BytesMut {
        self.decoder.space()
    }

    /// Notes that `read` bytes came where there was room for `space`.
    pub(super) fn filled(&mut self, read: usize, space: usize) {
        self.decoder.filled(read, space);
    }

    /// Nothing arrives now: gives memory back.
    pub(super) fn rest(&mut self) {
        self.decoder.rest();
    }

    /// Bytes to send before anything else, in order.
    pub(super) fn take_control(&mut self) -> Option<Bytes> {
        (!self.control.is_empty()).then(|| self.control.split().freeze())
    }

    /// Whether the peer knows PING and the SUBSCRIBE command (ZMTP 3.1).
    pub(super) fn peer_has_commands(&self) -> bool {
        self.peer_minor >= 1
    }

    /// How long the peer may hear nothing before it, too, wants the connection ended.
    pub(super) fn peer_ttl(&self) -> Option<Duration> {
        self.peer_ttl
    }

    /// Asks for messages whose first frame begins with `prefix`.
    pub(super) fn subscribe(&mut self, prefix: &[u8]) {
        if self.peer_has_commands() {
            put_command(&mut self.control, "SUBSCRIBE", prefix);
        } else {
            put_short_message(&mut self.control, 1, prefix);
        }
    }

    /// Asks the peer to answer, and to give up after `ttl` of silence.
    pub(super) fn ping(&mut self, ttl: Duration) {
        let tenths = u16::try_from(ttl.as_millis() / 100).unwrap_or(u16::MAX);
        if self.control.len() >= CONTROL_LIMIT {
            return;
        }
        put_command(&mut self.control, "PING", &tenths.to_be_bytes());
    }

    /// The next event in what was received.
    pub(super) fn next(&mut self) -> Result<Option<Incoming>, ProtocolError> {
        loop {
            if self.stage == Stage::Greeting {
                let Some(minor) = read_greeting(self.decoder.input())? else { return Ok(None) };
                self.decoder.skip(GREETING_SIZE);
                self.peer_minor = minor;
                put_ready(&mut self.control, self.kind);
                self.stage = Stage::Ready;
            }
            let before = self.decoder.input().len();
            let Some(frame) = self.decoder.next()? else { return Ok(None) };
            self.consumed = self.consumed.saturating_add(before - self.decoder.input().len());
            if self.stage == Stage::Ready {
                if !frame.command {
                    return Err(ProtocolError::NotReady);
                }
                read_ready(self.kind, &frame.body)?;
                self.stage = Stage::Traffic;
                return Ok(Some(Incoming::Ready));
            }
            // Commands may stand between the frames of a message: libzmq's heartbeat timer does not wait for its end.
            let event = if frame.command { self.command(&frame.body)? } else { self.frame(frame.more, frame.body)? };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    fn frame(&mut self, more: bool, body: Bytes) -> Result<Option<Incoming>, ProtocolError> {
        self.partial_bytes = self.partial_bytes.saturating_add(body.len());
        if self.partial_bytes > self.max_message {
            return Err(ProtocolError::MessageSize(self.max_message));
        }
        if self.partial.len() == FRAMES_LIMIT {
            return Err(ProtocolError::Frames);
        }
        if self.partial.is_empty() {
            self.partial.reserve_exact(self.typical_frames);
        }
        self.partial.push(body);
        if more {
            return Ok(None);
        }
        self.partial_bytes = 0;
        let message = std::mem::take(&mut self.partial);
        self.typical_frames = message.len();
        let consumed = std::mem::take(&mut self.consumed);
        Ok(Some(match (self.kind, &message[..]) {
            (SocketKind::Pub, [only]) if only.first() == Some(&1) => Incoming::Subscribe(only.slice(1..)),
            (SocketKind::Pub, [only]) if only.first() == Some(&0) => Incoming::Cancel(only.slice(1..)),
            _ => Incoming::Message(message, consumed),
        }))
    }

    fn command(&mut self, body: &Bytes) -> Result<Option<Incoming>, ProtocolError> {
        let (name, body) = split_command(body)?;
        match (&name[..], self.kind) {
            (b"PING", _) => {
                let Some((ttl, context)) = body.split_first_chunk::<2>() else {
                    return Err(ProtocolError::Command("PING"));
                };
                let tenths = u16::from_be_bytes(*ttl);
                self.peer_ttl = (tenths > 0).then(|| Duration::from_millis(u64::from(tenths) * 100));
                if self.control.len() < CONTROL_LIMIT {
                    put_command(&mut self.control, "PONG", &context[..context.len().min(PING_CONTEXT)]);
                }
            }
            (b"SUBSCRIBE", SocketKind::Pub) => return Ok(Some(Incoming::Subscribe(body))),
            (b"CANCEL", SocketKind::Pub) => return Ok(Some(Incoming::Cancel(body))),
            (b"ERROR", _) => {
                // After the handshake a peer may still refuse; it closes by itself, so its text is all that is lost.
                tracing::debug!(bytes = body.len(), "peer sent ERROR");
            }
            // PONG has done its work by arriving; commands of later versions are passed over.
            _ => {}
        }
        Ok(None)
    }

    /// For peers that only subscribe: what they may send is small.
    pub(super) fn for_publisher() -> Self {
        Self::new(SocketKind::Pub, COMMAND_LIMIT, COMMAND_LIMIT)
    }

    /// Adds bytes as if they had been read.
    #[cfg(any(test, fuzzing))]
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let space = self.space();
        let room = space.capacity() - space.len();
        space.extend_from_slice(bytes);
        self.filled(bytes.len(), room.max(bytes.len()));
    }
}

#[cfg(test)]
#[path = "session/tests.rs"]
mod tests;
