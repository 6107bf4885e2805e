//! Errors as clients see them: a status and `{"error": text}` (spec http 2.2 and 18).

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{decode::BodyError, reply};
use crate::{
    mesh::PeerError,
    selection::{
        SelectionError,
        catalog::{CatalogError, SnapshotVersion},
        error::QueueRejection,
    },
    service::exports::ExportError,
};

/// Body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: String,
    /// The limit that refused a queued request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<QueueRejection>,
    /// What is in force, when a snapshot or delta was refused for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<CurrentSnapshot>,
}

/// What an owner has in force.
#[derive(Debug, Serialize, ToSchema)]
pub struct CurrentSnapshot {
    /// Order; absent when only the digest matters.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub version: Option<SnapshotVersion>,
    /// Digest.
    pub digest: String,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The verb failed.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A snapshot or delta was refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The body is not what the route takes.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The body has no JSON media type (415).
    #[error("Expected request with `Content-Type: application/json`")]
    MediaType,
    /// The body is compressed in a way that the route does not read (415).
    #[error("content-encoding `{0}` is not supported: send `zstd` or none")]
    ContentEncoding(String),
    /// The body is too long (413).
    #[error("Failed to buffer the request body: length limit exceeded")]
    TooLarge,
    /// The body broke off or does not decompress (400).
    #[error("Failed to buffer the request body: {0}")]
    BrokenBody(String),
    /// The body did not come in time (408).
    #[error("request body was not received in time")]
    BodyTimeout,
    /// Path or query cannot be decoded (400).
    #[error("{0}")]
    Url(String),
    /// A header cannot be decoded (400).
    #[error("{0}")]
    Header(&'static str),
    /// The admin token is missing or wrong (401).
    #[error("a valid admin bearer token is required")]
    Unauthorized,
    /// No such route (404).
    #[error("route not found")]
    RouteNotFound,
    /// Known route, other method (405); the router adds `Allow`.
    #[error("method not allowed")]
    MethodNotAllowed,
    /// Replica sync is off (409).
    #[error("replica sync is disabled")]
    ReplicaSyncDisabled,
    /// A peer that cannot be followed (400, or 503 when there are too many).
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The peer to remove is not followed (404).
    #[error("peer not found")]
    UnknownPeer,
    /// A chunk of an index snapshot cannot be had.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Start-up recovery is not over (503).
    #[error("start-up recovery is not complete")]
    Recovering,
    /// A part of the service failed; the text is for the log (500).
    #[error("internal error")]
    Internal(&'static str),
}

impl ApiError {
    /// The status it is answered with.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Selection(error) => selection_status(error),
            Self::Catalog(CatalogError::Stale { .. } | CatalogError::BaseMismatch { .. }) => StatusCode::CONFLICT,
            Self::Catalog(CatalogError::Invalid(_)) => StatusCode::BAD_REQUEST,
            Self::Catalog(CatalogError::Internal(_)) | Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Body(BodyError::Syntax(_)) | Self::BrokenBody(_) | Self::Url(_) | Self::Header(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::Body(BodyError::Shape(_)) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::MediaType | Self::ContentEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::RouteNotFound | Self::UnknownPeer => StatusCode::NOT_FOUND,
            Self::Peer(PeerError::TooMany) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Peer(_) => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::ReplicaSyncDisabled => StatusCode::CONFLICT,
            Self::Export(ExportError::NoPartition(_)) => StatusCode::NOT_FOUND,
            Self::Export(ExportError::Gone) => StatusCode::GONE,
            Self::Export(ExportError::Failed) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Recovering | Self::Export(ExportError::Busy) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Selection(error) => error.reason(),
            Self::Catalog(CatalogError::Stale { .. }) => "catalog_stale",
            Self::Catalog(CatalogError::BaseMismatch { .. }) => "catalog_base_mismatch",
            Self::Catalog(CatalogError::Invalid(_)) => "catalog_invalid",
            Self::Catalog(CatalogError::Internal(_)) | Self::Internal(_) => "internal",
            Self::Body(BodyError::Syntax(_)) => "body_syntax",
            Self::Body(BodyError::Shape(_)) => "body_shape",
            Self::MediaType => "media_type",
            Self::ContentEncoding(_) => "content_encoding",
            Self::TooLarge => "body_too_large",
            Self::BrokenBody(_) => "body_broken",
            Self::BodyTimeout => "body_timeout",
            Self::Url(_) => "url",
            Self::Header(_) => "header",
            Self::Unauthorized => "unauthorized",
            Self::RouteNotFound => "route_not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::ReplicaSyncDisabled => "replica_sync_disabled",
            Self::Peer(PeerError::TooMany) => "too_many_peers",
            Self::Peer(_) => "peer_endpoint",
            Self::UnknownPeer => "unknown_peer",
            Self::Export(error) => error.reason(),
            Self::Recovering => "recovering",
        }
    }
}

fn selection_status(error: &SelectionError) -> StatusCode {
    match error {
        SelectionError::BadRequest(_) => StatusCode::BAD_REQUEST,
        SelectionError::NotFound(_) => StatusCode::NOT_FOUND,
        SelectionError::Conflict(_) => StatusCode::CONFLICT,
        SelectionError::Overloaded(_) | SelectionError::QueueRejected(_) | SelectionError::DeadlineExceeded => {
            StatusCode::TOO_MANY_REQUESTS
        }
        SelectionError::Internal(_) | SelectionError::Classifier(_) => StatusCode::INTERNAL_SERVER_ERROR,
        SelectionError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Stable word of the error, carried to the metrics in the response's extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reason(pub &'static str);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        if let Self::Internal(what) = self {
            tracing::error!(what, "request failed");
        }
        let reason = Reason(self.reason());
        let status = self.status();
        let error = match &self {
            // A plugin's text is not for clients; it is in the log.
            Self::Selection(SelectionError::Classifier(_)) => "request classifier failed".to_owned(),
            _ => self.to_string(),
        };
        let mut body = ErrorBody { error, details: None, current: None };
        match &self {
            Self::Selection(SelectionError::QueueRejected(rejection)) => body.details = Some(rejection.clone()),
            Self::Catalog(CatalogError::Stale { current, digest, .. }) => {
                body.current = Some(CurrentSnapshot { version: Some(*current), digest: digest.clone() });
            }
            Self::Catalog(CatalogError::BaseMismatch { current, .. }) => {
                body.current = Some(CurrentSnapshot { version: None, digest: current.clone() });
            }
            _ => {}
        }
        let mut response = reply::json(status, &body);
        response.extensions_mut().insert(reason);
        match self {
            Self::Unauthorized => {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::ContentEncoding(_) => {
                response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("zstd"));
            }
            // What is left of the body is not read: the connection cannot carry another request.
            Self::TooLarge | Self::BodyTimeout | Self::BrokenBody(_) => {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}
