//! Routes that are there, or have the indexer's shape, with `--face indexer` alone (spec index 9).

use std::collections::BTreeSet;

use axum::{
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use parking_lot::Mutex;

use super::{App, FilterQuery, QueryResult, query};
use crate::http::{
    body,
    decode::{decode, indexer::IndexerPeerRequest},
    error::{ApiError, ErrorBody},
    reply::{self, StatusBody},
};
use crate::selection::SelectionError;

/// Peers that are remembered at most, and the longest URL of one.
const MAX_PEERS: usize = 1024;
const MAX_URL_BYTES: usize = 2048;

/// URLs of other indexers; remembered and listed, nothing is exchanged with them.
#[derive(Debug, Default)]
pub(super) struct RememberedPeers(Mutex<BTreeSet<String>>);

/// Instances, and workers with event streams, with the state of each listener.
pub(in crate::http) async fn workers(
    State(app): State<App>,
    filter: QueryResult<FilterQuery>,
) -> Result<Response, ApiError> {
    let filter = query(filter)?.into();
    let listed = app.blocking(move |service| service.instances(&filter)).await??;
    Ok(reply::json(StatusCode::OK, &listed))
}

/// The server answers: an empty body.
pub(in crate::http) async fn health() -> Response {
    Response::new(Body::empty())
}

/// Remembers another indexer's URL. There only with `--face indexer`.
#[utoipa::path(
    post, path = "/register_peer", tag = "indexer",
    request_body = IndexerPeerRequest,
    responses(
        (status = 201, description = "Remembered", body = StatusBody),
        (status = 400, description = "Malformed JSON, or too long", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 409, description = "Too many peers", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn register_peer(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let url = peer(&app, request).await?;
    if url.len() > MAX_URL_BYTES {
        return Err(SelectionError::BadRequest(format!("url must not exceed {MAX_URL_BYTES} bytes")).into());
    }
    let mut peers = app.0.remembered.0.lock();
    if peers.len() >= MAX_PEERS && !peers.contains(&url) {
        return Err(SelectionError::Conflict(format!("more than {MAX_PEERS} peers")).into());
    }
    peers.insert(url);
    Ok(reply::json(StatusCode::CREATED, &StatusBody { status: "ok" }))
}

/// Forgets another indexer's URL. There only with `--face indexer`.
#[utoipa::path(
    post, path = "/deregister_peer", tag = "indexer",
    request_body = IndexerPeerRequest,
    responses(
        (status = 200, description = "Forgotten", body = StatusBody),
        (status = 400, description = "Malformed JSON", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "Not known", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn deregister_peer(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let url = peer(&app, request).await?;
    if app.0.remembered.0.lock().remove(&url) {
        return Ok(reply::ok());
    }
    Err(SelectionError::NotFound("peer not found".to_owned()).into())
}

async fn peer(app: &App, request: Request) -> Result<String, ApiError> {
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let IndexerPeerRequest { url } = decode(&content)?;
    Ok(url)
}

/// The URLs, sorted. There only with `--face indexer`.
#[utoipa::path(
    get, path = "/peers", tag = "indexer",
    responses((status = 200, description = "URLs", body = Vec<String>)),
)]
pub(in crate::http) async fn peers(State(app): State<App>) -> Response {
    reply::json(StatusCode::OK, &*app.0.remembered.0.lock())
}

/// Answers as the indexer does: the log goes to standard error here, which nobody needs to reopen. There only with
/// `--face indexer`.
#[utoipa::path(
    post, path = "/reopen_logs", tag = "indexer",
    responses((status = 200, description = "Nothing to do", body = StatusBody)),
)]
pub(in crate::http) async fn reopen_logs() -> Response {
    reply::ok()
}
