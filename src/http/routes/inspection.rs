//! What the service knows: loads, overlaps, the dump, listeners.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;

use super::{App, FilterQuery, QueryResult, TrustQuery, query, stream};
use crate::{
    events::status::ListenerStatus,
    http::{
        body,
        decode::{decode_prompted, wire::LoadQuery},
        error::{ApiError, ErrorBody},
        reply,
    },
    selection::{
        ingest::Trust,
        queue::report::PartitionQueue,
        request::{OverlapRow, OverlapScores, PartitionLoads, RankLoadRow, SharedCacheReport},
    },
};

/// Load of every rank now, by partition.
#[utoipa::path(
    get, path = "/loads", tag = "inspection",
    params(FilterQuery),
    responses(
        (status = 200, description = "Partitions, sorted by model and group", body = Vec<PartitionLoads>),
        (status = 400, description = "A parameter is repeated", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn loads(
    State(app): State<App>,
    filter: QueryResult<FilterQuery>,
) -> Result<Response, ApiError> {
    let filter = query(filter)?.into();
    app.blocking(move |service| service.loads(&filter).map(|loads| reply::json(StatusCode::OK, &loads)))
        .await?
        .map_err(ApiError::from)
}

/// Requests that wait, by partition and policy class: how many, how long, and what limits them.
#[utoipa::path(
    get, path = "/queue", tag = "inspection",
    params(FilterQuery),
    responses(
        (status = 200, description = "Partitions, sorted by model and group", body = Vec<PartitionQueue>),
        (status = 400, description = "A parameter is repeated", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn queue(
    State(app): State<App>,
    filter: QueryResult<FilterQuery>,
) -> Result<Response, ApiError> {
    let filter = query(filter)?.into();
    app.blocking(move |service| service.queues(&filter).map(|queues| reply::json(StatusCode::OK, &queues)))
        .await?
        .map_err(ApiError::from)
}

/// Load of every rank of a partition if it took the prompt.
#[utoipa::path(
    post, path = "/potential_loads", tag = "inspection",
    request_body = LoadQuery,
    responses(
        (status = 200, description = "A row a rank, sorted by worker and rank", body = Vec<RankLoadRow>),
        (status = 400, description = "Malformed JSON or prompt", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn potential_loads(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let query = load_query(&app, request).await?;
    let rows = app.blocking(move |service| service.potential_loads(&query.into())).await??;
    Ok(reply::json(StatusCode::OK, &rows))
}

/// A row with what is known of its rank's stream.
#[derive(Serialize)]
struct TrustedRow<'a> {
    #[serde(flatten)]
    row: &'a OverlapRow,
    trust: Trust,
    trust_age_seconds: Option<f64>,
}

/// The scores with rows of that kind.
#[derive(Serialize)]
struct TrustedScores<'a> {
    block_size: u32,
    num_blocks: u64,
    workers: Vec<TrustedRow<'a>>,
    shared_cache: &'a SharedCacheReport,
}

/// What every rank of a partition has cached of the prompt; with `trust=true` each row also has `trust` and
/// `trust_age_seconds`.
#[utoipa::path(
    post, path = "/overlap_scores", tag = "inspection",
    params(TrustQuery),
    request_body = LoadQuery,
    responses(
        (status = 200, description = "A row a rank, sorted by worker and rank", body = OverlapScores),
        (status = 400, description = "Malformed JSON or prompt", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn overlap_scores(
    State(app): State<App>,
    shown: QueryResult<TrustQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let TrustQuery { trust } = query(shown)?;
    let query = load_query(&app, request).await?;
    let scores = app.blocking(move |service| service.overlap_scores(&query.into())).await??;
    if !trust {
        return Ok(reply::json(StatusCode::OK, &scores));
    }
    let trusts = app.service().trusts();
    let workers = scores.workers.iter().map(|row| {
        let known = trusts.get(&(row.worker_id, row.dp_rank));
        let trust = known.map_or(Trust::Unknown, |known| known.trust);
        TrustedRow { row, trust, trust_age_seconds: known.map(|known| known.trust_age_seconds) }
    });
    let OverlapScores { block_size, num_blocks, ref shared_cache, .. } = scores;
    let scores = TrustedScores { block_size, num_blocks, workers: workers.collect(), shared_cache };
    Ok(reply::json(StatusCode::OK, &scores))
}

async fn load_query(app: &App, request: Request) -> Result<LoadQuery, ApiError> {
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    Ok(decode_prompted(&content)?)
}

/// Listeners for KV events: state, position, gaps, replays, restarts and drops of each rank's stream.
#[utoipa::path(
    get, path = "/listeners", tag = "inspection",
    responses((status = 200, description = "Sorted by worker and rank", body = Vec<ListenerStatus>)),
)]
pub(in crate::http) async fn listeners(State(app): State<App>) -> Result<Response, ApiError> {
    app.blocking(|service| reply::json(StatusCode::OK, &service.listeners())).await
}

/// Everything cached, by partition, in the shape other selectors recover from. Sent as it is written; an answer that
/// breaks off is not complete.
#[utoipa::path(
    get, path = "/dump", tag = "inspection",
    responses((status = 200, description = "Store events by `model:group`", body = serde_json::Value)),
)]
pub(in crate::http) async fn dump(State(app): State<App>) -> Result<Response, ApiError> {
    let permit =
        app.0.dumps.clone().acquire_owned().await.map_err(|_| ApiError::Internal("dump semaphore is closed"))?;
    let service = app.service().clone();
    let stream = stream::pieces(&app, "dump", move |writer| {
        let _permit = permit;
        service.dump(writer)
    });
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
