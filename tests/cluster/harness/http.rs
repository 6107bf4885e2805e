//! HTTP/1.1 to pods and Services, which a machine that is a node reaches by their addresses. A connection counts the bytes
//! that it was sent, so that it is known whether any of an answer came.

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, client::conn::http1::SendRequest, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};

use super::cluster::Cluster;

/// Longest time for a connection to be made.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest time for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Whether the request was sent, as far as is known.
    pub was_sent: bool,
    /// Whether any byte of one came.
    pub had_begun: bool,
    pub why: String,
}

/// A connection, made.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    received: Arc<AtomicU64>,
    authority: String,
    /// Requests sent so far.
    pub uses: u32,
}

impl Connection {
    /// Connects. A failure counts as a request that was sent: a client that asks for more connections than it repeats
    /// requests would hide that nobody listens.
    ///
    /// # Errors
    /// Nobody listens, or not in time.
    pub async fn open(target: SocketAddr) -> Result<Self, Broken> {
        let broken = |why: String| Broken { was_sent: true, had_begun: false, why };
        let stream = timeout(CONNECT, TcpStream::connect(target)).await;
        let stream = stream.map_err(|_| broken("connect: no answer in time".into()))?;
        let stream = stream.map_err(|e| broken(format!("connect: {e}")))?;
        stream.set_nodelay(true).map_err(|e| broken(e.to_string()))?;
        let received = Arc::<AtomicU64>::default();
        let stream = TokioIo::new(Counted { stream, received: Arc::clone(&received) });
        let (sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|e| broken(format!("handshake: {e}")))?;
        // Ends with the connection, or with the sender; what went wrong is told to the request.
        tokio::spawn(connection);
        Ok(Self { sender, received, authority: target.to_string(), uses: 0 })
    }

    /// Whether the other side still has it open, as far as is known.
    pub async fn is_usable(&mut self) -> bool {
        !self.sender.is_closed() && self.sender.ready().await.is_ok()
    }

    /// Sends a request and reads its whole answer.
    ///
    /// # Errors
    /// The answer did not come, or not all of it. The connection is then of no more use.
    pub async fn exchange(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, Broken> {
        self.uses += 1;
        let before = self.received.load(Ordering::Acquire);
        let outcome = timeout(ANSWER, self.send(method, path, body)).await;
        let (was_sent, why) = match outcome {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err((was_sent, why))) => (was_sent, why),
            Err(_) => (true, "no answer in time".to_owned()),
        };
        Err(Broken { was_sent, had_begun: self.received.load(Ordering::Acquire) != before, why })
    }

    /// The error tells whether the request was sent.
    async fn send(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, (bool, String)> {
        let mut request = hyper::Request::builder().method(method).uri(path).header(header::HOST, &self.authority);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
        let request = request.body(Full::new(body)).map_err(|e| (false, e.to_string()))?;
        let answer = self.sender.try_send_request(request).await.map_err(|mut e| {
            let unsent = e.take_message().is_some();
            (!unsent, chain(e.error()))
        })?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|e| (true, chain(&e)))?;
        Ok(Answer { status, body: body.to_bytes() })
    }
}

/// An error with its causes: hyper's own text does not name them.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string);
    causes.collect::<Vec<_>>().join(": ")
}

/// One request on a connection of its own.
///
/// # Errors
/// There was no answer.
pub fn call(host: IpAddr, port: u16, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, String> {
    let method = Method::from_bytes(method.as_bytes()).map_err(|e| e.to_string())?;
    Cluster::get().block_on(async {
        let exchange =
            async { Connection::open((host, port).into()).await?.exchange(method.clone(), path, body).await };
        exchange.await.map_err(|e| format!("{method} http://{host}:{port}{path}: {}", e.why))
    })
}

struct Counted {
    stream: TcpStream,
    received: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.received.fetch_add((buf.filled().len() - before) as u64, Ordering::AcqRel);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
