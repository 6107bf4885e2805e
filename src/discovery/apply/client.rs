//! One HTTP client for all calls to a target: timeouts, bounded answers, a bearer token, and errors with a reason.

use std::{io, time::Duration};

use async_compression::tokio::bufread::ZstdEncoder;
use reqwest::{Method, StatusCode, Url, header};
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use zeroize::Zeroizing;

use crate::{selection::catalog::SnapshotVersion, telemetry::causes::innermost};

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time for a call about one record, or a look.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a call that carries a whole catalog.
const CATALOG_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 512 << 20;
/// Longest answer about replica sync that is read, in bytes.
const MAX_SMALL_ANSWER: usize = 4 << 20;
/// Bodies from here on are compressed where the target reads that.
const COMPRESS_FROM: usize = 256 << 10;
/// How much of an error's text is kept.
const MAX_ERROR_TEXT: usize = 300;

/// Why a call gave no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No connection, or it broke.
    #[error("{call}: {reason}")]
    Transport {
        /// Method and path.
        call: String,
        /// The client's words.
        reason: String,
    },
    /// No answer in time.
    #[error("{call}: no answer in time")]
    Timeout {
        /// Method and path.
        call: String,
    },
    /// An error status.
    #[error("{call}: {status} {text}")]
    Status {
        /// Method and path.
        call: String,
        /// HTTP status.
        status: u16,
        /// The beginning of the answer.
        text: String,
        /// The version in force, where a catalog refused an older one.
        current: Option<SnapshotVersion>,
    },
    /// An answer of another shape, or one without end.
    #[error("{call}: unexpected answer: {reason}")]
    Answer {
        /// Method and path.
        call: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl ClientError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Transport { .. } => "transport",
            Self::Timeout { .. } => "timeout",
            Self::Status { status, .. } if *status >= 500 => "server_error",
            Self::Status { .. } => "client_error",
            Self::Answer { .. } => "answer",
        }
    }

    /// The status, where there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The version in force, where a catalog refused an older one and says so.
    pub(super) fn current(&self) -> Option<SnapshotVersion> {
        match self {
            Self::Status { status: 409, current, .. } => *current,
            _ => None,
        }
    }

    pub(super) fn unavailable(call: &str) -> Self {
        Self::Transport { call: call.to_owned(), reason: "not available".to_owned() }
    }
}

/// Calls one selector.
#[derive(Clone, Debug)]
pub struct RemoteClient {
    http: reqwest::Client,
    base: Url,
    token: Option<Token>,
}

#[derive(Clone)]
struct Token(Zeroizing<String>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("redacted")
    }
}

impl RemoteClient {
    /// Calls `base`, such as `http://10.0.0.7:8092`, with `token` as bearer.
    ///
    /// # Errors
    /// An address that is no http or https URL; a TLS set-up that fails.
    pub fn new(base: &str, token: Option<Zeroizing<String>>) -> Result<Self, String> {
        let mut base = Url::parse(base).map_err(|e| format!("`{base}` is no URL: {e}"))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(format!("`{base}` is not of the form http://HOST:PORT"));
        }
        // So that a path in the address is kept when calls add theirs.
        if !base.path().ends_with('/') {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        let http = reqwest::Client::builder()
            // Selectors are neighbours: a proxy for the outside world is not on the way to them.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            // A cut network on a connection that stands is noticed by what is not acknowledged, not by a slow answer.
            .tcp_user_timeout(CALL_TIMEOUT)
            .pool_idle_timeout(Duration::from_secs(60))
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Self { http, base, token: token.map(Token) })
    }

    /// The address, without a slash at its end.
    pub fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Host, as a URL writes it, and port.
    pub(in crate::discovery) fn host_and_port(&self) -> (&str, u16) {
        // Checked when this was made; http and https have a known port.
        (self.base.host_str().unwrap_or_default(), self.base.port_or_known_default().unwrap_or_default())
    }

    /// Sends a request about one record or none; `body` is JSON.
    ///
    /// # Errors
    /// Everything but a 2xx status.
    pub async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, ClientError> {
        let (mut request, call) = self.request(method, path);
        if !query.is_empty() {
            request = request.query(query);
        }
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        self.finish(request.timeout(CALL_TIMEOUT), call, MAX_ANSWER).await
    }

    /// Sends a request under `/replica_sync`; `body` is JSON.
    ///
    /// # Errors
    /// Everything but a 2xx status.
    pub(in crate::discovery) async fn call_replica_sync(
        &self,
        method: Method,
        verb: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, ClientError> {
        let (mut request, call) = self.request(method, &["replica_sync", verb]);
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        self.finish(request.timeout(CALL_TIMEOUT), call, MAX_SMALL_ANSWER).await
    }

    /// Sends a catalog, compressed when it is large.
    ///
    /// # Errors
    /// Everything but a 2xx status.
    pub async fn send_catalog(&self, path: &[&str], mut body: Vec<u8>) -> Result<Vec<u8>, ClientError> {
        let (mut request, call) = self.request(Method::PUT, path);
        request = request.header(header::CONTENT_TYPE, "application/json").timeout(CATALOG_TIMEOUT);
        if body.len() >= COMPRESS_FROM {
            let packed = compress(&body).await;
            body = packed.map_err(|e| ClientError::Transport { call: call.clone(), reason: e.to_string() })?;
            request = request.header(header::CONTENT_ENCODING, "zstd");
        }
        self.finish(request.body(body), call, MAX_ANSWER).await
    }

    fn request(&self, method: Method, path: &[&str]) -> (reqwest::RequestBuilder, String) {
        let call = format!("{method} {}/{}", self.address(), path.join("/"));
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.http.request(method, url);
        match &self.token {
            Some(Token(token)) => (request.bearer_auth(token.as_str()), call),
            None => (request, call),
        }
    }

    async fn finish(
        &self,
        request: reqwest::RequestBuilder,
        call: String,
        longest: usize,
    ) -> Result<Vec<u8>, ClientError> {
        let failed = |error: reqwest::Error| {
            if error.is_timeout() {
                ClientError::Timeout { call: call.clone() }
            } else {
                ClientError::Transport { call: call.clone(), reason: innermost(&error) }
            }
        };
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if answer.len() + chunk.len() > longest {
                let reason = format!("longer than {longest} bytes");
                return Err(ClientError::Answer { call, reason });
            }
            answer.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return Ok(answer);
        }
        let (text, current) = read_error(status, &answer);
        Err(ClientError::Status { call, status: status.as_u16(), text, current })
    }

    /// Reads an answer.
    pub(in crate::discovery) fn decode<T: DeserializeOwned>(
        &self,
        call: &str,
        answer: &[u8],
    ) -> Result<T, ClientError> {
        serde_json::from_slice(answer)
            .map_err(|e| ClientError::Answer { call: format!("{call} of {}", self.address()), reason: e.to_string() })
    }
}

async fn compress(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut packed = Vec::with_capacity(body.len() / 8);
    ZstdEncoder::with_quality(body, async_compression::Level::Fastest).read_to_end(&mut packed).await?;
    Ok(packed)
}

/// The text of an error answer: of ours and the reference's `{"error": "..."}`, else its beginning. With it the version
/// that ours names, if any.
fn read_error(status: StatusCode, answer: &[u8]) -> (String, Option<SnapshotVersion>) {
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        error: String,
        #[serde(default)]
        current: serde_json::Value,
    }
    let (text, current) = serde_json::from_slice::<ErrorBody>(answer).map_or_else(
        |_| (String::from_utf8_lossy(&answer[..answer.len().min(MAX_ERROR_TEXT * 4)]).into_owned(), None),
        // A delta that was refused for its digest names no version.
        |b| (b.error, serde_json::from_value(b.current).ok()),
    );
    if text.trim().is_empty() {
        return (status.canonical_reason().unwrap_or_default().to_owned(), current);
    }
    (text.chars().take(MAX_ERROR_TEXT).collect(), current)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> ClientError {
        ClientError::Status { call: "PUT".to_owned(), status, text: String::new(), current: None }
    }

    #[test]
    fn reasons_tell_whose_fault_it_was() {
        assert_eq!([499, 500].map(|code| status(code).reason()), ["client_error", "server_error"]);
    }

    #[test]
    fn the_text_of_an_error_is_what_the_answer_says() {
        let read = |answer: &str| read_error(StatusCode::NOT_FOUND, answer.as_bytes());
        assert_eq!(read(r#"{"error": "no such worker"}"#), ("no such worker".to_owned(), None));
        assert_eq!(read("404 page not found").0, "404 page not found");
        assert_eq!(read(" \n").0, "Not Found", "an empty answer");
        assert_eq!(read(&"x".repeat(100_000)).0, "x".repeat(MAX_ERROR_TEXT));
        let stale = read(r#"{"error": "stale", "current": {"epoch": 3, "generation": 9}}"#);
        assert_eq!(stale.1, Some(SnapshotVersion { epoch: 3, generation: 9 }));
    }
}
