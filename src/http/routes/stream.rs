//! Answers that are sent as they are written.
//!
//! Invariants: what is written ahead of the client is bounded; a client that does not read, or reads more slowly than
//! is allowed, ends the work, so that few of them cannot hold what others wait for; an answer that fails is broken off, so
//! that nobody takes what was sent for the whole.

use std::{io, sync::Arc, time::Duration};

use async_compression::tokio::bufread::ZstdEncoder;
use axum::body::Body;
use bytes::Bytes;
use futures_util::Stream;
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::mpsc, time::Instant};
use tokio_util::io::{ReaderStream, StreamReader};

use super::App;

/// Size of the pieces an answer is sent in.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces written ahead of the client.
const PIECES_AHEAD: usize = 8;
/// What `write` writes, on a thread of its own, in pieces. `what` names the answer in log and metrics.
pub(super) fn pieces(
    app: &App,
    what: &'static str,
    write: impl FnOnce(&mut PieceWriter) -> io::Result<()> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (pieces, mut receiver) = mpsc::channel(PIECES_AHEAD);
    let failure = Arc::new(Mutex::new(None));
    let (failed, metrics) = (failure.clone(), app.0.metrics.clone());
    let mut writer = PieceWriter {
        piece: Vec::with_capacity(PIECE_BYTES),
        pieces,
        handle: Handle::current(),
        grace: app.0.reader_grace,
        slowest: app.0.slowest_reader,
        sent: 0,
        waited: Duration::ZERO,
    };
    tokio::task::spawn_blocking(move || {
        let written = write(&mut writer).and_then(|()| io::Write::flush(&mut writer));
        if let Err(error) = written {
            if error.kind() == io::ErrorKind::TimedOut {
                metrics.slow_reader(what);
            }
            tracing::warn!(%error, sent = writer.sent, "{what} ended early");
            // Before the channel closes with the writer: its end alone would look like the answer's.
            *failed.lock() = Some(error);
        }
    });
    futures_util::stream::poll_fn(move |context| {
        let piece = receiver.poll_recv(context);
        match failure.lock().take() {
            Some(error) => std::task::Poll::Ready(Some(Err(error))),
            None => piece.map(|piece| piece.map(Ok)),
        }
    })
}

/// The pieces as one zstd frame.
pub(super) fn compressed(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    Body::from_stream(ReaderStream::with_capacity(ZstdEncoder::new(StreamReader::new(Box::pin(pieces))), PIECE_BYTES))
}

/// Collects what is written into pieces for the response.
pub(super) struct PieceWriter {
    piece: Vec<u8>,
    pieces: mpsc::Sender<Bytes>,
    handle: Handle,
    /// Time the client may take whatever it reads.
    grace: Duration,
    /// Slowest it may read beyond that, in bytes a second.
    slowest: u64,
    /// Bytes taken from here.
    sent: u64,
    /// Time that took.
    waited: Duration,
}

impl PieceWriter {
    fn send(&mut self, piece: Bytes) -> io::Result<()> {
        let (length, began) = (piece.len() as u64, Instant::now());
        let allowed = self.grace + Duration::from_millis(self.sent.saturating_mul(1000) / self.slowest);
        let sending = tokio::time::timeout(allowed.saturating_sub(self.waited), self.pieces.send(piece));
        let taken = self.handle.block_on(sending);
        self.waited += began.elapsed();
        self.sent += length;
        match taken {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "client left")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "client reads too slowly")),
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
        self.send(Bytes::from(piece))
    }
}
