//! `/workers`: the catalog, worker by worker.

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};

use serde::Serialize;

use super::{App, FilterQuery, PathResult, QueryResult, TrustQuery, path, query};
use crate::{
    events::status::RankTrust,
    http::{
        body,
        decode::{
            decode,
            workers::{self, WorkerRequest},
        },
        error::{ApiError, ErrorBody},
        reply,
        schemas::WorkerRecordSchema,
    },
    selection::worker::{WorkerPatch, WorkerRecord},
};

/// Registers a worker, or replaces it whole. A record that lacks something is stored as `incomplete`, with reasons.
#[utoipa::path(
    post, path = "/workers", tag = "workers",
    request_body = WorkerRequest,
    responses(
        (status = 201, description = "Registered", body = WorkerRecordSchema),
        (status = 400, description = "Malformed JSON, or too many ranks", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn upsert(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let worker: WorkerRequest = decode(&content)?;
    let record = app.blocking(|service| service.upsert_worker(worker.into())).await??;
    Ok(reply::json(StatusCode::CREATED, &*record))
}

/// A record with what is known of its ranks' streams.
#[derive(Serialize)]
struct TrustedRecord<'a> {
    #[serde(flatten)]
    record: &'a WorkerRecord,
    trust: Vec<RankTrust>,
}

/// All workers, sorted by model, group and id; with `trust=true` each with a list `trust`, a row for each rank that has a
/// stream.
#[utoipa::path(
    get, path = "/workers", tag = "workers",
    params(FilterQuery, TrustQuery),
    responses(
        (status = 200, description = "Records", body = Vec<WorkerRecordSchema>),
        (status = 400, description = "A parameter is repeated", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn list(
    State(app): State<App>,
    filter: QueryResult<FilterQuery>,
    shown: QueryResult<TrustQuery>,
) -> Result<Response, ApiError> {
    let filter = query(filter)?.into();
    let TrustQuery { trust } = query(shown)?;
    app.blocking(move |service| {
        let records = service.workers(&filter)?;
        if !trust {
            return Ok(reply::json(StatusCode::OK, &records));
        }
        let trusts = service.trusts();
        let ranks = |id| trusts.range((id, 0)..=(id, u32::MAX)).map(|(_, trust)| *trust).collect();
        let records: Vec<_> =
            records.iter().map(|record| TrustedRecord { record, trust: ranks(record.request.worker_id) }).collect();
        Ok(reply::json(StatusCode::OK, &records))
    })
    .await?
}

/// Changes fields of a worker: a present value replaces, an absent or null one keeps.
#[utoipa::path(
    patch, path = "/workers/{worker_id}", tag = "workers",
    params(("worker_id" = u64, Path, description = "Worker")),
    request_body = WorkerPatch,
    responses(
        (status = 200, description = "Changed", body = WorkerRecordSchema),
        (status = 400, description = "Malformed JSON or id, or too many ranks", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "No such worker", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn update(
    State(app): State<App>,
    worker_id: PathResult<u64>,
    request: Request,
) -> Result<Response, ApiError> {
    let worker_id = path(worker_id)?;
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let patch = workers::patch(&content)?;
    let record = app.blocking(move |service| service.patch_worker(worker_id, patch)).await??;
    Ok(reply::json(StatusCode::OK, &*record))
}

/// Removes a worker. Its blocks and bookings are gone when this is answered.
#[utoipa::path(
    delete, path = "/workers/{worker_id}", tag = "workers",
    params(("worker_id" = u64, Path, description = "Worker")),
    responses(
        (status = 200, description = "Removed; lifecycle `unschedulable`", body = WorkerRecordSchema),
        (status = 400, description = "Malformed id", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 404, description = "No such worker", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn remove(
    State(app): State<App>,
    worker_id: PathResult<u64>,
    request: Request,
) -> Result<Response, ApiError> {
    let worker_id = path(worker_id)?;
    app.authorize(request.headers())?;
    let record = app.blocking(move |service| service.delete_worker(worker_id)).await??;
    Ok(reply::json(StatusCode::OK, &*record))
}
