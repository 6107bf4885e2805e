//! The socket of a connection, with its activity noted and a limit on how long a client may take nothing. hyper's own
//! answers get a body on their way out.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::{activity::Activity, refusal};

pub(super) struct WatchedSocket<S> {
    socket: S,
    activity: Arc<Activity>,
    write_timeout: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// What goes out instead of what hyper wrote last, and how much of it is out.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S> WatchedSocket<S> {
    pub(super) fn new(socket: S, activity: Arc<Activity>, write_timeout: Duration) -> Self {
        Self { socket, activity, write_timeout, stalled: None, instead: None }
    }

    /// Notes progress, or gives up on a client that takes nothing.
    fn watch(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            self.activity.sent();
            return written;
        }
        let timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "client does not read")))
    }
}

impl<S: AsyncWrite + Unpin> WatchedSocket<S> {
    /// Writes `slices`, or what takes their place.
    fn poll_slices(&mut self, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.instead.is_none() && self.activity.is_between() {
            self.instead = refusal::with_body(slices).map(|bytes| (bytes, 0));
        }
        while let Some((bytes, out)) = &mut self.instead {
            let written = ready!(Pin::new(&mut self.socket).poll_write(context, &bytes[*out..]))?;
            *out += written;
            if written == 0 {
                return Poll::Ready(Ok(0));
            }
            if *out == bytes.len() {
                self.instead = None;
                return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
            }
        }
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedSocket<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buffer.filled().len();
        let read = Pin::new(&mut this.socket).poll_read(context, buffer);
        if buffer.filled().len() > filled {
            this.activity.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedSocket<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.poll_slices(context, &[io::IoSlice::new(bytes)]);
        this.watch(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.poll_slices(context, slices);
        this.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (client, server) = tokio::io::duplex(1024);
        let mut socket = WatchedSocket::new(server, Arc::new(Activity::new()), Duration::from_millis(20));
        let error = socket.write_all(&[0; 8 * 1024]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn every_piece_taken_starts_the_time_anew() {
        let (mut client, server) = tokio::io::duplex(1);
        let mut socket = WatchedSocket::new(server, Arc::new(Activity::new()), Duration::from_secs(3600));
        let mut piece = std::pin::pin!(socket.write_all(b"ab"));
        assert!(futures_util::poll!(piece.as_mut()).is_pending(), "no room for the second byte");
        client.read_exact(&mut [0]).await.expect("read");
        piece.await.expect("written");
        assert!(socket.stalled.is_none(), "progress forgets the stall");
    }
}
