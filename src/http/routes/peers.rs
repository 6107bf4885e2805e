//! `/replica_sync`: the replica mesh.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    App, QueryResult, query,
    stream::{self, PieceWriter},
};
use crate::{
    http::{
        body,
        decode::{decode, wire::PeerRequest},
        error::{ApiError, ErrorBody},
        reply::{self, StatusBody},
    },
    mesh::{Mesh, MeshStatus, StateQuery, state_frames},
    selection::PartitionKey,
    service::SelectionService,
};

/// Registers a peer's publisher.
#[utoipa::path(
    post, path = "/replica_sync/register_peer", tag = "replica sync",
    request_body = PeerRequest,
    responses(
        (status = 201, description = "Registered", body = StatusBody),
        (status = 200, description = "Was registered already", body = StatusBody),
        (status = 400, description = "No ZMQ endpoint, or one the socket refuses", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 409, description = "Replica sync is disabled", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 503, description = "The service stops, or has 4,096 peers", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn register(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let endpoint = endpoint(&app, request).await?;
    let is_new = mesh(app.service())?.register_peer(&endpoint)?;
    Ok(reply::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &StatusBody::OK))
}

/// Removes a peer's publisher. What it had booked stays.
#[utoipa::path(
    post, path = "/replica_sync/deregister_peer", tag = "replica sync",
    request_body = PeerRequest,
    responses(
        (status = 200, description = "Removed", body = StatusBody),
        (status = 400, description = "No ZMQ endpoint", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "Not registered", body = ErrorBody),
        (status = 409, description = "Replica sync is disabled", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn deregister(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let endpoint = endpoint(&app, request).await?;
    if mesh(app.service())?.deregister_peer(&endpoint)? {
        Ok(reply::json(StatusCode::OK, &StatusBody::OK))
    } else {
        Err(ApiError::UnknownPeer)
    }
}

async fn endpoint(app: &App, request: Request) -> Result<String, ApiError> {
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let PeerRequest { endpoint } = decode(&content)?;
    Ok(endpoint)
}

fn mesh(service: &SelectionService) -> Result<&Mesh, ApiError> {
    service.mesh().ok_or(ApiError::ReplicaSyncDisabled)
}

/// Endpoints of registered peers, sorted.
#[utoipa::path(
    get, path = "/replica_sync/peers", tag = "replica sync",
    responses((status = 200, description = "ZMQ endpoints", body = Vec<String>)),
)]
pub(in crate::http) async fn list(State(app): State<App>) -> Response {
    let peers = app.service().mesh().map(Mesh::peers).unwrap_or_default();
    reply::json(StatusCode::OK, &peers)
}

/// The mesh: this replica, and every peer with state, sequence, lag, gaps, repairs and divergence.
#[utoipa::path(
    get, path = "/replica_sync/status", tag = "replica sync",
    responses((status = 200, description = "Also when replica sync is disabled", body = MeshStatus)),
)]
pub(in crate::http) async fn status(State(app): State<App>) -> Response {
    reply::json(StatusCode::OK, &app.service().mesh_status())
}

/// What part of a replica's state is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ReplicaStateQuery {
    /// Model name.
    model_name: String,
    /// Routing group.
    routing_group: String,
    /// Bookings and sessions this router id made; all when absent.
    origin: Option<u64>,
    /// Only bookings published after this sequence number of their maker.
    since: Option<u64>,
}

/// Live bookings and session bindings of a partition, for another replica: frames of a four-byte length and a
/// MessagePack map each. An answer without its last frame is not complete.
#[utoipa::path(
    get, path = "/replica_sync/state", tag = "replica sync", params(ReplicaStateQuery),
    responses(
        (status = 200, description = "Frames, compressed where zstd is accepted", body = Vec<u8>,
         content_type = "application/octet-stream"),
        (status = 400, description = "The query cannot be read", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 409, description = "Replica sync is disabled", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn state(
    State(app): State<App>,
    headers: HeaderMap,
    asked: QueryResult<ReplicaStateQuery>,
) -> Result<Response, ApiError> {
    app.authorize(&headers)?;
    let ReplicaStateQuery { model_name, routing_group, origin, since } = query(asked)?;
    mesh(app.service())?;
    let permit =
        app.0.states.clone().acquire_owned().await.map_err(|_| ApiError::Internal("state semaphore is closed"))?;
    let asked = StateQuery { partition: PartitionKey::new(model_name, routing_group), origin, since };
    let core = app.service().core().clone();
    let pieces = stream::pieces(&app, "state", move |writer: &mut PieceWriter| {
        let _permit = permit;
        state_frames(core, asked).try_for_each(|frame| std::io::Write::write_all(writer, &frame))
    });
    let zstd = headers.get(header::ACCEPT_ENCODING).is_some_and(|accepted| {
        accepted.to_str().is_ok_and(|accepted| accepted.split(',').any(|coding| coding.trim().starts_with("zstd")))
    });
    let mut response = Response::new(if zstd { stream::compressed(pieces) } else { Body::from_stream(pieces) });
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if zstd {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"));
    }
    Ok(response)
}
