//! The standalone indexer's routes that every face has (spec index 9): registration of instances, queries of the index.

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};

use super::App;
use crate::{
    http::{
        body,
        decode::{
            decode,
            indexer::{
                HashQueryRequest, ListenerRequest, QueryRequest, RegisterRequest, UnregisterRequest, decode_hash_query,
                decode_query,
            },
        },
        error::{ApiError, ErrorBody},
        reply::{self, StatusBody},
    },
    selection::{
        SelectionError,
        instance::{IndexQuery, IndexScores},
    },
};

/// Starts to index one rank of an instance: its events are followed, and no selection goes to it.
#[utoipa::path(
    post, path = "/register", tag = "indexer",
    request_body = RegisterRequest,
    responses(
        (status = 201, description = "Registered", body = StatusBody),
        (status = 400, description = "Malformed JSON or endpoint, block size 0, or too wide a span of ranks", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 409, description = "Registered already, a worker, another block size, or KV events are off", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn register(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let rank: RegisterRequest = decode(&content)?;
    app.blocking(|service| service.register_instance(rank.into())).await??;
    Ok(reply::json(StatusCode::CREATED, &StatusBody { status: "ok" }))
}

/// Forgets an instance, or one rank of it. Its blocks are gone when this is answered.
#[utoipa::path(
    post, path = "/unregister", tag = "indexer",
    request_body = UnregisterRequest,
    responses(
        (status = 200, description = "Forgotten", body = StatusBody),
        (status = 400, description = "Malformed JSON", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "Not registered, or not for this model and group", body = ErrorBody),
        (status = 409, description = "It is a worker", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn unregister(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let removal: UnregisterRequest = decode(&content)?;
    app.blocking(|service| service.unregister_instance(&removal.into())).await??;
    Ok(reply::ok())
}

/// What every instance and worker of a partition holds of a prompt, in tokens.
#[utoipa::path(
    post, path = "/query", tag = "indexer",
    request_body = QueryRequest,
    responses(
        (status = 200, description = "Those that hold something", body = IndexScores),
        (status = 400, description = "Malformed JSON", body = ErrorBody),
        (status = 404, description = "Nobody is registered for this model and group", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn query(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let QueryRequest { token_ids, model_name, routing_group, lora_name, cache_salt } = decode_query(&content)?;
    answer(&app, model_name, routing_group, IndexQuery::Tokens { token_ids, lora_name, cache_salt }).await
}

/// As `/query`, by the content hashes of the prompt's blocks.
#[utoipa::path(
    post, path = "/query_by_hash", tag = "indexer",
    request_body = HashQueryRequest,
    responses(
        (status = 200, description = "Those that hold something", body = IndexScores),
        (status = 400, description = "Malformed JSON, or a cache salt", body = ErrorBody),
        (status = 404, description = "Nobody is registered for this model and group", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn query_by_hash(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let query = decode_hash_query(&content)?;
    if query.cache_salt.is_some() {
        let text = "cache_salt is not accepted by /query_by_hash; \
                    block_hashes must already include the intended cache salt";
        return Err(SelectionError::BadRequest(text.to_owned()).into());
    }
    answer(&app, query.model_name, query.routing_group, IndexQuery::Hashes(query.block_hashes)).await
}

async fn answer(app: &App, model_name: String, group: String, query: IndexQuery) -> Result<Response, ApiError> {
    let scores = app.blocking(move |service| service.query_index(&model_name, &group, &query)).await??;
    Ok(reply::json(StatusCode::OK, &scores))
}

/// Makes a listener stand still: it unsubscribes, and keeps position and blocks. There only with
/// `DYN_KV_INDEXER_TEST_ENDPOINTS`.
#[utoipa::path(
    post, path = "/test/pause_listener", tag = "indexer",
    request_body = ListenerRequest,
    responses(
        (status = 200, description = "Paused", body = StatusBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "No such listener", body = ErrorBody),
        (status = 409, description = "Paused already", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn pause(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    set_paused(app, request, true).await
}

/// Lets a paused listener go on; what was published meanwhile comes by replay. There only with
/// `DYN_KV_INDEXER_TEST_ENDPOINTS`.
#[utoipa::path(
    post, path = "/test/resume_listener", tag = "indexer",
    request_body = ListenerRequest,
    responses(
        (status = 200, description = "Going on", body = StatusBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "No such listener", body = ErrorBody),
        (status = 409, description = "Not paused", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn resume(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    set_paused(app, request, false).await
}

async fn set_paused(app: App, request: Request, paused: bool) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let ListenerRequest { instance_id, dp_rank } = decode(&content)?;
    app.blocking(move |service| service.pause_instance(instance_id, dp_rank, paused)).await??;
    Ok(reply::ok())
}
