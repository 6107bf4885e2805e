//! Asking a peer: limits on time and length, a bearer token, errors with a reason.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header;
use tokio::time::timeout;

use super::{super::config::RecoveryConfig, RecoveryError};

/// One peer.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    config: RecoveryConfig,
}

impl Client {
    pub(super) fn new(peer: &str, config: &RecoveryConfig) -> Result<Self, RecoveryError> {
        // Peers are inside the cluster: a proxy of the environment is not asked.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(config.timeout)
            .build()
            .map_err(RecoveryError::Request)?;
        Ok(Self { http, base: peer.trim_end_matches('/').to_owned(), config: config.clone() })
    }

    /// The beginning of an answer. The admin token goes along where there is one.
    pub(super) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer, RecoveryError> {
        let limit = self.config.timeout;
        let mut request = self.http.get(format!("{}{path}", self.base)).query(query);
        if let Some(token) = &self.config.token {
            request = request.bearer_auth(token.reveal());
        }
        let response = within(limit, "waiting for an answer", request.send()).await?.map_err(RecoveryError::Request)?;
        if !response.status().is_success() {
            return Err(RecoveryError::Status(response.status().as_u16()));
        }
        if let Some(encoding) = response.headers().get(header::CONTENT_ENCODING)
            && encoding != "identity"
        {
            return Err(RecoveryError::Encoding(String::from_utf8_lossy(encoding.as_bytes()).into_owned()));
        }
        Ok(Answer { response, limit, total: 0, max_bytes: self.config.max_bytes })
    }

    /// A whole answer of at most `max_bytes`.
    pub(super) async fn get_whole(
        &self,
        path: &str,
        query: &[(&str, &str)],
        max_bytes: u64,
    ) -> Result<Vec<u8>, RecoveryError> {
        let mut answer = self.get(path, query).await?;
        answer.max_bytes = answer.max_bytes.min(max_bytes);
        let mut whole = Vec::new();
        while let Some(piece) = answer.next().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }
}

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct Answer {
    response: reqwest::Response,
    limit: Duration,
    total: u64,
    max_bytes: u64,
}

impl Answer {
    /// The next piece; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, RecoveryError> {
        let piece = within(self.limit, "between two pieces", self.response.chunk()).await?;
        let piece = piece.map_err(RecoveryError::Request)?;
        self.total = self.total.saturating_add(piece.as_ref().map_or(0, |piece| piece.len() as u64));
        if self.total > self.max_bytes {
            return Err(RecoveryError::TooLarge(self.max_bytes));
        }
        Ok(piece)
    }
}

async fn within<T>(limit: Duration, what: &'static str, work: impl Future<Output = T>) -> Result<T, RecoveryError> {
    timeout(limit, work).await.map_err(|_| RecoveryError::Timeout(what))
}
