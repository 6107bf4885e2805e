//! ZMTP 3.x framing, without sockets: bytes in, frames out; messages in, bytes out.
//!
//! Invariants: memory follows the bytes that arrived, never the sizes a peer claims; a frame or message beyond the
//! limits is an error as soon as its header is read; bodies are slices of the read buffer, not copies.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Message;

/// More frames of the same message follow.
const FLAG_MORE: u8 = 0x01;
/// The size takes eight bytes.
const FLAG_LONG: u8 = 0x02;
/// The frame is a command.
const FLAG_COMMAND: u8 = 0x04;

/// Largest command accepted, in bytes: far above any READY or SUBSCRIBE in use.
pub(super) const COMMAND_LIMIT: usize = 64 << 10;
/// Most frames accepted in one message: an engine or a mesh peer sends two to five.
pub(super) const FRAMES_LIMIT: usize = 1024;

/// Smallest and largest read buffer, in bytes. An idle connection keeps at most the smallest.
const MIN_CHUNK: usize = 4 << 10;
const MAX_CHUNK: usize = 64 << 10;

/// What a peer did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    /// The first bytes are no ZMTP signature.
    #[error("no ZMTP signature")]
    Signature,
    /// A revision before ZMTP 3.
    #[error("ZMTP revision {0} is older than 3.0")]
    Version(u8),
    /// Another mechanism than NULL.
    #[error("security mechanism `{0}` is not supported")]
    Mechanism(String),
    /// Something else than READY in its place.
    #[error("expected READY")]
    NotReady,
    /// The peer refused us.
    #[error("refused by the peer: {0}")]
    Refused(String),
    /// The socket types do not fit.
    #[error("peer is a `{0}` socket")]
    SocketType(String),
    /// A command that cannot be read.
    #[error("malformed {0} command")]
    Command(&'static str),
    /// Reserved bits in the flags, or a command that claims to continue.
    #[error("frame flags {0:#04x}")]
    Flags(u8),
    /// A frame over the limit.
    #[error("frame of {claimed} bytes is over the limit of {limit}")]
    FrameSize {
        /// The size in its header.
        claimed: u64,
        /// The limit.
        limit: usize,
    },
    /// A message over the limit.
    #[error("message is over the limit of {0} bytes")]
    MessageSize(usize),
    /// A message of too many frames.
    #[error("message of more than {FRAMES_LIMIT} frames")]
    Frames,
    /// Too many or too long subscriptions.
    #[error("too many subscriptions")]
    Subscriptions,
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// More frames of the message follow.
    pub more: bool,
    /// A command, not a part of a message.
    pub command: bool,
    /// Its bytes.
    pub body: Bytes,
}

/// Cuts a byte stream into frames.
#[derive(Debug)]
pub(super) struct FrameDecoder {
    input: BytesMut,
    max_frame: usize,
    /// Size of the next read buffer; follows the size of the reads.
    chunk: usize,
    /// Size of the allocation `input` is in.
    allocated: usize,
    /// Bytes the frame begun in `input` still lacks.
    missing: usize,
}

impl FrameDecoder {
    /// A decoder that refuses message frames of more than `max_frame` bytes.
    pub(super) fn new(max_frame: usize) -> Self {
        Self { input: BytesMut::new(), max_frame, chunk: MIN_CHUNK, allocated: 0, missing: 0 }
    }

    /// The buffer to read into, with room. Grows at most to three times what a peer has really sent.
    pub(super) fn space(&mut self) -> &mut BytesMut {
        let spare = self.input.capacity() - self.input.len();
        // A frame larger than the buffer gets the room it lacks, as far as as much has already come.
        let wanted = self.chunk.max(self.missing.min(2 * self.input.len()));
        if spare < (wanted / 4).max(512) {
            self.input.reserve(wanted);
            self.allocated = self.input.capacity();
        }
        &mut self.input
    }

    /// Notes that a read brought `read` bytes, where the buffer had room for `space`.
    pub(super) fn filled(&mut self, read: usize, space: usize) {
        if read == space {
            self.chunk = (self.chunk * 2).min(MAX_CHUNK);
        } else if read < self.chunk / 4 {
            self.chunk = (self.chunk / 2).max(MIN_CHUNK);
        }
    }

    /// Gives a large read buffer back while nothing arrives.
    pub(super) fn rest(&mut self) {
        if self.input.is_empty() && self.allocated > MIN_CHUNK {
            self.input = BytesMut::new();
            self.allocated = 0;
        }
    }

    /// Bytes not yet cut.
    pub(super) fn input(&self) -> &[u8] {
        &self.input
    }

    /// Passes over `count` bytes that are no frame (the greeting).
    pub(super) fn skip(&mut self, count: usize) {
        self.input.advance(count);
    }

    /// The next complete frame.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, ProtocolError> {
        self.missing = 0;
        let Some(&flags) = self.input.first() else { return Ok(None) };
        let command = flags & FLAG_COMMAND != 0;
        let more = flags & FLAG_MORE != 0;
        if flags & !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND) != 0 || (command && more) {
            return Err(ProtocolError::Flags(flags));
        }
        let (header, claimed) = if flags & FLAG_LONG != 0 {
            let Some(size) = self.input.get(1..9).and_then(|size| <[u8; 8]>::try_from(size).ok()) else {
                return Ok(None);
            };
            (9, u64::from_be_bytes(size))
        } else {
            let Some(&size) = self.input.get(1) else { return Ok(None) };
            (2, u64::from(size))
        };
        let limit = if command { COMMAND_LIMIT } else { self.max_frame };
        let size = match usize::try_from(claimed) {
            Ok(size) if size <= limit => size,
            _ => return Err(ProtocolError::FrameSize { claimed, limit }),
        };
        let present = self.input.len() - header;
        if present < size {
            self.missing = size - present;
            return Ok(None);
        }
        self.input.advance(header);
        let body = if size == 0 { Bytes::new() } else { self.input.split_to(size).freeze() };
        Ok(Some(Frame { more, command, body }))
    }
}

/// Writes a frame header.
fn put_header(out: &mut BytesMut, flags: u8, size: usize) {
    match u8::try_from(size) {
        Ok(short) => out.put_slice(&[flags, short]),
        Err(_) => {
            out.put_u8(flags | FLAG_LONG);
            out.put_u64(size as u64);
        }
    }
}

/// Bytes a frame of `size` takes on the wire.
pub(super) fn wire_size(size: usize) -> usize {
    size + if size > usize::from(u8::MAX) { 9 } else { 2 }
}

/// A message as it goes over the wire.
pub(super) fn encode_message(message: &Message) -> Bytes {
    let mut out = BytesMut::with_capacity(message.iter().map(|frame| wire_size(frame.len())).sum());
    for (index, frame) in message.iter().enumerate() {
        let flags = if index + 1 < message.len() { FLAG_MORE } else { 0 };
        put_header(&mut out, flags, frame.len());
        out.put_slice(frame);
    }
    out.freeze()
}

/// Appends the command `name` with `body`.
pub(super) fn put_command(out: &mut BytesMut, name: &str, body: &[u8]) {
    put_header(out, FLAG_COMMAND, 1 + name.len() + body.len());
    out.put_u8(name.len() as u8);
    out.put_slice(name.as_bytes());
    out.put_slice(body);
}

/// Appends a message of one frame, `first` and `rest` joined.
pub(super) fn put_short_message(out: &mut BytesMut, first: u8, rest: &[u8]) {
    put_header(out, 0, 1 + rest.len());
    out.put_u8(first);
    out.put_slice(rest);
}

/// Name and body of a command.
pub(super) fn split_command(body: &Bytes) -> Result<(Bytes, Bytes), ProtocolError> {
    let length = usize::from(*body.first().ok_or(ProtocolError::Command("empty"))?);
    if body.len() < 1 + length {
        return Err(ProtocolError::Command("truncated"));
    }
    Ok((body.slice(1..1 + length), body.slice(1 + length..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(decoder: &mut FrameDecoder, bytes: &[u8]) {
        decoder.space();
        decoder.input.extend_from_slice(bytes);
    }

    fn message(frames: &[&[u8]]) -> Message {
        frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
    }

    #[test]
    fn frames_survive_every_split_of_the_stream() {
        let long = vec![7u8; 300];
        let wire = encode_message(&message(&[b"", b"topic", &long]));
        assert_eq!(wire.len(), 2 + 7 + 309);
        for cut in 0..=wire.len() {
            let mut decoder = FrameDecoder::new(1 << 20);
            let mut frames = Vec::new();
            for part in [&wire[..cut], &wire[cut..]] {
                feed(&mut decoder, part);
                while let Some(frame) = decoder.next().unwrap() {
                    frames.push(frame);
                }
            }
            let seen: Vec<_> = frames.iter().map(|frame| (frame.more, frame.body.to_vec())).collect();
            assert_eq!(seen, [(true, vec![]), (true, b"topic".to_vec()), (false, long.clone())], "cut at {cut}");
        }
    }

    #[test]
    fn sizes_at_the_edges_of_the_short_form_are_exact() {
        for size in [0usize, 1, 254, 255, 256, 65_535, 65_536] {
            let wire = encode_message(&message(&[&vec![1u8; size]]));
            assert_eq!(wire.len(), wire_size(size));
            let mut decoder = FrameDecoder::new(1 << 20);
            feed(&mut decoder, &wire);
            assert_eq!(decoder.next().unwrap().unwrap().body.len(), size);
            assert_eq!(decoder.next(), Ok(None));
        }
    }

    #[test]
    fn a_claim_costs_nothing_and_one_over_the_limit_is_refused_from_its_header() {
        let mut decoder = FrameDecoder::new(64 << 20);
        let mut header = vec![FLAG_LONG];
        header.extend_from_slice(&(1u64 << 63).to_be_bytes());
        feed(&mut decoder, &header);
        assert_eq!(decoder.next(), Err(ProtocolError::FrameSize { claimed: 1 << 63, limit: 64 << 20 }));

        let mut decoder = FrameDecoder::new(64 << 20);
        header[1..].copy_from_slice(&(64u64 << 20).to_be_bytes());
        feed(&mut decoder, &header);
        assert_eq!(decoder.next(), Ok(None));
        assert!(decoder.space().capacity() <= 2 * MIN_CHUNK, "room for {}", decoder.space().capacity());
    }

    #[test]
    fn reserved_flags_and_a_continued_command_are_refused() {
        for flags in [0x08u8, 0x80, 0xff, FLAG_COMMAND | FLAG_MORE] {
            let mut decoder = FrameDecoder::new(1024);
            feed(&mut decoder, &[flags, 1, 0]);
            assert_eq!(decoder.next(), Err(ProtocolError::Flags(flags)));
        }
    }

    #[test]
    fn a_resting_decoder_gives_its_large_buffer_back_and_keeps_a_begun_frame() {
        let mut decoder = FrameDecoder::new(1 << 20);
        for _ in 0..20 {
            let space = decoder.space().capacity();
            decoder.filled(space, space);
        }
        assert_eq!(decoder.chunk, MAX_CHUNK);
        decoder.input = BytesMut::new();
        feed(&mut decoder, &[0, 2, b'a']);
        decoder.rest();
        assert_eq!(decoder.next(), Ok(None));
        feed(&mut decoder, b"b");
        assert_eq!(decoder.next().unwrap().unwrap().body, "ab");
        decoder.rest();
        assert_eq!(decoder.input.capacity(), 0);
    }

    #[test]
    fn a_command_is_split_into_name_and_body() {
        let mut out = BytesMut::new();
        put_command(&mut out, "SUBSCRIBE", b"kv");
        let mut decoder = FrameDecoder::new(16);
        feed(&mut decoder, &out);
        let frame = decoder.next().unwrap().unwrap();
        assert!(frame.command && !frame.more);
        assert_eq!(split_command(&frame.body).unwrap(), (Bytes::from("SUBSCRIBE"), Bytes::from("kv")));
        for broken in [&b""[..], b"\x05PIN"] {
            assert!(split_command(&Bytes::copy_from_slice(broken)).is_err());
        }
    }
}
