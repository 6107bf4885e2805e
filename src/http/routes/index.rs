//! `/replica_sync/index`: the KV index for selectors that start (design section 6, 9.6). Guarded like the other routes of
//! the mesh that carry something: it shows what every tenant has cached.

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{App, QueryResult, query};
use crate::{
    http::{
        error::{ApiError, ErrorBody},
        reply,
    },
    selection::PartitionKey,
};

/// What there is to take: partitions and ranks with their number of blocks, the position of their stream and how far
/// they can be believed. `ready` is false, and nothing is offered, until this selector's own recovery is over.
#[utoipa::path(
    get, path = "/replica_sync/index", tag = "replica sync",
    responses(
        (status = 200, description = "Version, instance id, partitions", body = serde_json::Value),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn summary(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    app.authorize(request.headers())?;
    app.blocking(|service| reply::json(StatusCode::OK, &service.index_summary())).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ChunkQuery {
    /// Partition to begin an export of.
    model_name: Option<String>,
    /// Its routing group.
    routing_group: Option<String>,
    /// Export to go on with, as its first chunk names it.
    export: Option<String>,
    /// Chunk of that export: the next one, or the newest again.
    chunk: Option<u64>,
}

/// One chunk of an index snapshot, compressed with zstd. Without `export` a snapshot of the partition begins, and its
/// first chunk comes; the others are asked for one by one until one says that it is the last. A chunk that was lost on
/// its way is asked for again. An export that nobody asks for is forgotten after a minute.
#[utoipa::path(
    get, path = "/replica_sync/index/chunk", tag = "replica sync",
    params(ChunkQuery),
    responses(
        (status = 200, description = "The chunk", body = Vec<u8>, content_type = "application/zstd"),
        (status = 400, description = "A parameter is missing or malformed", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "No such partition, or it has no event streams", body = ErrorBody),
        (status = 410, description = "The export is over, forgotten, or not at this chunk", body = ErrorBody),
        (status = 503, description = "Start-up recovery is not over, or too many exports", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn chunk(
    State(app): State<App>,
    parameters: QueryResult<ChunkQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let ChunkQuery { model_name, routing_group, export, chunk } = query(parameters)?;
    app.authorize(request.headers())?;
    if !app.service().is_recovered() {
        return Err(ApiError::Recovering);
    }
    let content: Bytes = match (export, chunk) {
        (Some(export), Some(chunk)) => {
            app.blocking(move |service| service.index_export_chunk(&export, chunk)).await??
        }
        (None, None) => {
            let name = |name: Option<String>| name.unwrap_or_else(|| "default".to_owned());
            let key = PartitionKey::new(name(model_name), name(routing_group));
            app.blocking(move |service| service.begin_index_export(&key)).await??
        }
        _ => return Err(ApiError::Url("`export` and `chunk` belong together".to_owned())),
    };
    let mut response = Response::new(Body::from(content));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zstd"));
    Ok(response)
}
