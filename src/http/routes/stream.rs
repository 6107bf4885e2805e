//! Answers that are sent as they are written.
//!
//! Invariants: what is written ahead of the client is bounded; a client that does not read ends the work; an answer
//! that fails is broken off, so that nobody takes what was sent for the whole.

use std::{io, time::Duration};

use async_compression::tokio::bufread::ZstdEncoder;
use axum::body::Body;
use bytes::Bytes;
use futures_util::Stream;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::io::{ReaderStream, StreamReader};

/// Size of the pieces an answer is sent in.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces written ahead of the client.
const PIECES_AHEAD: usize = 8;
/// Longest time a client may leave a piece untaken.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// What `write` writes, on a thread of its own, in pieces. `what` names the answer in the log.
pub(super) fn pieces(
    what: &'static str,
    write: impl FnOnce(&mut PieceWriter) -> io::Result<()> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (pieces, mut receiver) = mpsc::channel(PIECES_AHEAD);
    let handle = Handle::current();
    tokio::task::spawn_blocking(move || {
        let mut writer = PieceWriter { piece: Vec::with_capacity(PIECE_BYTES), pieces, handle };
        let written = write(&mut writer).and_then(|()| io::Write::flush(&mut writer));
        if let Err(error) = written {
            tracing::warn!(%error, "{what} ended early");
            writer.send(Err(error)).unwrap_or_default();
        }
    });
    futures_util::stream::poll_fn(move |context| receiver.poll_recv(context))
}

/// The pieces as one zstd frame.
pub(super) fn compressed(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    Body::from_stream(ReaderStream::with_capacity(ZstdEncoder::new(StreamReader::new(Box::pin(pieces))), PIECE_BYTES))
}

/// Collects what is written into pieces for the response.
pub(super) struct PieceWriter {
    piece: Vec<u8>,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    handle: Handle,
}

impl PieceWriter {
    fn send(&mut self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sending = tokio::time::timeout(PIECE_TIMEOUT, self.pieces.send(piece));
        match self.handle.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "client left")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "client does not read")),
        }
    }
}

impl io::Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.send(Ok(Bytes::from(piece)))
    }
}
