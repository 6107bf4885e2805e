//! Connections to the server under load: one each for hyper's HTTP/1.1 client, no pool and no retries in between.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, client::conn::http1::SendRequest, header};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::{net::TcpStream, time::timeout};

/// Longest time for a request; one that takes longer counts as an error.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer read, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// Where the server is.
#[derive(Clone, Debug)]
pub struct Server {
    address: SocketAddr,
    authority: header::HeaderValue,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl Answer {
    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The number of a field of the answer's outermost object, found without parsing the rest.
    pub fn number(&self, field: &str) -> Option<u64> {
        let key = format!("\"{field}\":");
        let at = memmem::find(&self.body, key.as_bytes())? + key.len();
        let digits = self.body[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        std::str::from_utf8(&self.body[at..at + digits]).ok()?.parse().ok()
    }
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No connection.
    #[error("cannot connect")]
    Connect,
    /// The connection broke, or the answer was too long.
    #[error("connection broke")]
    Broken,
    /// No answer in time.
    #[error("no answer in time")]
    Timeout,
}

impl CallError {
    /// A word for the report.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
        }
    }
}

impl Server {
    /// Resolves `url`, which must be plain `http://HOST:PORT`.
    ///
    /// # Errors
    /// A sentence for the user.
    pub async fn resolve(url: &str) -> Result<Self, String> {
        let wanted = || format!("`{url}` is not of the form http://HOST:PORT");
        let authority = url.trim_end_matches('/').strip_prefix("http://").ok_or_else(wanted)?;
        if authority.is_empty() || authority.contains(['/', '@']) {
            return Err(wanted());
        }
        let with_port = if authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        let addresses = tokio::net::lookup_host(&with_port).await.map_err(|e| format!("{with_port}: {e}"))?;
        // A name with an IPv6 address first may be served on IPv4 alone: take the one that answers.
        for address in addresses {
            if timeout(Duration::from_secs(3), TcpStream::connect(address)).await.is_ok_and(|c| c.is_ok()) {
                let authority = header::HeaderValue::from_str(authority).map_err(|_| wanted())?;
                return Ok(Self { address, authority });
            }
        }
        Err(format!("nobody answers at {url}"))
    }
}

/// One connection; made again when it breaks.
#[derive(Debug)]
pub struct Connection {
    server: Server,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// A connection that is made with its first request.
    pub fn new(server: Server) -> Self {
        Self { server, sender: None }
    }

    /// Sends a request and reads its whole answer.
    ///
    /// # Errors
    /// No answer; the next call connects anew.
    pub async fn call(&mut self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer, CallError> {
        let outcome = timeout(REQUEST_TIMEOUT, self.exchange(method, path, body)).await;
        let outcome = outcome.unwrap_or(Err(CallError::Timeout));
        if outcome.is_err() {
            self.sender = None;
        }
        outcome
    }

    async fn exchange(&mut self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer, CallError> {
        let sender = match self.sender.as_mut().filter(|sender| !sender.is_closed()) {
            Some(_) => self.sender.as_mut(),
            None => {
                let sender = connect(self.server.address).await?;
                Some(self.sender.insert(sender))
            }
        };
        let sender = sender.ok_or(CallError::Connect)?;
        sender.ready().await.map_err(|_| CallError::Broken)?;
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.server.authority);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|_| CallError::Broken)?;
        let answer = sender.send_request(request).await.map_err(|_| CallError::Broken)?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|_| CallError::Broken)?;
        Ok(Answer { status, body: body.to_bytes() })
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, CallError> {
    let stream = TcpStream::connect(address).await.map_err(|_| CallError::Connect)?;
    stream.set_nodelay(true).map_err(|_| CallError::Connect)?;
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| CallError::Connect)?;
    // Ends with the connection, or with the sender.
    tokio::spawn(connection);
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_answers() {
        let answer =
            Answer { status: 200, body: Bytes::from_static(b"{\"worker_id\":18446744073709551615,\"dp_rank\":0}") };
        assert_eq!(answer.number("worker_id"), Some(u64::MAX));
        assert_eq!(answer.number("dp_rank"), Some(0));
        assert_eq!(answer.number("isl_tokens"), None);
    }
}
