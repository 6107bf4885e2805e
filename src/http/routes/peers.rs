//! `/replica_sync`: peers of the replica mesh. Sync is off in this service, and says so.

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};

use super::App;
use crate::http::{
    body,
    decode::{decode, wire::PeerRequest},
    error::{ApiError, ErrorBody},
    reply::{self, StatusBody},
};

/// Registers a peer's publisher.
#[utoipa::path(
    post, path = "/replica_sync/register_peer", tag = "replica sync",
    request_body = PeerRequest,
    responses(
        (status = 201, description = "Registered", body = StatusBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 409, description = "Replica sync is disabled", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn register(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    refuse(&app, request).await
}

/// Removes a peer's publisher.
#[utoipa::path(
    post, path = "/replica_sync/deregister_peer", tag = "replica sync",
    request_body = PeerRequest,
    responses(
        (status = 200, description = "Removed", body = StatusBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 409, description = "Replica sync is disabled", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn deregister(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    refuse(&app, request).await
}

async fn refuse(app: &App, request: Request) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let PeerRequest { endpoint: _ } = decode(&content)?;
    Err(ApiError::ReplicaSyncDisabled)
}

/// Endpoints of registered peers, sorted.
#[utoipa::path(
    get, path = "/replica_sync/peers", tag = "replica sync",
    responses((status = 200, description = "ZMQ endpoints", body = Vec<String>)),
)]
pub(in crate::http) async fn list() -> Response {
    reply::json(StatusCode::OK, &[""; 0])
}
