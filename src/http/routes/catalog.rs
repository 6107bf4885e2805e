//! `/catalog`: whole desired sets, by owner (design section 6).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use utoipa::{IntoParams, ToSchema};

use super::{App, PathResult, QueryResult, path, query};
use crate::{
    http::{
        body,
        decode::decode,
        error::{ApiError, ErrorBody},
        reply,
    },
    selection::{
        catalog::{CatalogDelta, CatalogError, CatalogReport, CatalogSnapshot, CatalogStatus},
        core::PartitionFilter,
        worker::{Lifecycle, WorkerRecord, WorkerRequest, WorkerState},
    },
    service::SelectionService,
};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct StatusQuery {
    /// Show every record too.
    #[serde(default)]
    workers: bool,
}

/// One record with its owner.
#[derive(Debug, Serialize, ToSchema)]
pub struct OwnedWorker {
    /// Who registered it.
    owner: Arc<str>,
    /// Active or draining, as the owner wants it.
    state: WorkerState,
    /// Where it stands.
    lifecycle: Lifecycle,
    /// Why it is not schedulable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_schedulable_reasons: Vec<String>,
    /// What was sent.
    #[serde(flatten)]
    request: Arc<WorkerRequest>,
}

impl From<Arc<WorkerRecord>> for OwnedWorker {
    fn from(record: Arc<WorkerRecord>) -> Self {
        let record = Arc::unwrap_or_clone(record);
        Self {
            owner: record.owner,
            state: record.state,
            lifecycle: record.lifecycle,
            not_schedulable_reasons: record.not_schedulable_reasons,
            request: record.request,
        }
    }
}

/// All owners, and on demand their records.
#[derive(Debug, Serialize, ToSchema)]
pub struct CatalogBody {
    #[serde(flatten)]
    status: CatalogStatus,
    /// Records, with `?workers=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<Vec<OwnedWorker>>,
}

/// What `PUT /catalog/{owner}` takes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used: a body is told apart by `base_digest`")]
pub enum CatalogUpdate {
    /// The complete desired set.
    Snapshot(CatalogSnapshot),
    /// A change against a digest that is in force.
    Delta(CatalogDelta),
}

/// Owners with epoch, generation and digest.
#[utoipa::path(
    get, path = "/catalog", tag = "catalog",
    params(StatusQuery),
    responses(
        (status = 200, description = "Owners, sorted by name", body = CatalogBody),
        (status = 400, description = "A parameter cannot be read", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn status(
    State(app): State<App>,
    parameters: QueryResult<StatusQuery>,
) -> Result<Response, ApiError> {
    let StatusQuery { workers } = query(parameters)?;
    app.blocking(move |service| {
        let status = service.catalog()?;
        let workers = workers.then(|| service.workers(&PartitionFilter::default())).transpose()?;
        let workers = workers.map(|records| records.into_iter().map(OwnedWorker::from).collect());
        Ok(reply::json(StatusCode::OK, &CatalogBody { status, workers }))
    })
    .await?
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ApplyQuery {
    /// Take over the records of this owner. Not with a delta.
    adopt: Option<String>,
}

/// Applies an owner's complete desired set, or a delta against the set in force (409: send the whole). The body may be
/// compressed with zstd and has a limit of its own. An empty set removes the owner.
#[utoipa::path(
    put, path = "/catalog/{owner}", tag = "catalog",
    params(("owner" = String, Path, description = "Owner, e.g. `file.default`"), ApplyQuery),
    request_body = CatalogUpdate,
    responses(
        (status = 200, description = "Applied; what became of each record", body = CatalogReport),
        (status = 400, description = "Malformed JSON or snapshot", body = ErrorBody),
        (status = 401, description = "Admin token missing or wrong", body = ErrorBody),
        (status = 409, description = "Older than what is in force, or a delta from another digest", body = ErrorBody),
        (status = 413, description = "Too long", body = ErrorBody),
        (status = 415, description = "No JSON, or compressed in another way", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn apply(
    State(app): State<App>,
    owner: PathResult<String>,
    parameters: QueryResult<ApplyQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let owner = path(owner)?;
    let ApplyQuery { adopt } = query(parameters)?;
    let (head, content) = request.into_parts();
    app.authorize(&head.headers)?;
    check_decompressed(&head.headers)?;
    let content = body::json(&head.headers, content, app.0.catalog_limits).await?;
    app.blocking(move |service| {
        let report = apply_body(service, &owner, adopt.as_deref(), &content)?;
        Ok(reply::json(StatusCode::OK, &report))
    })
    .await?
}

/// Refuses a body that is still compressed: the layer takes the header off what it decompresses.
fn check_decompressed(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            Err(ApiError::ContentEncoding(String::from_utf8_lossy(encoding.as_bytes()).into_owned()))
        }
        _ => Ok(()),
    }
}

/// What tells a delta from a snapshot.
#[derive(Deserialize)]
struct Kind {
    base_digest: Option<IgnoredAny>,
}

fn apply_body(
    service: &SelectionService,
    owner: &str,
    adopt: Option<&str>,
    content: &[u8],
) -> Result<CatalogReport, ApiError> {
    let Kind { base_digest } = decode(content)?;
    if base_digest.is_none() {
        let snapshot: CatalogSnapshot = decode(content)?;
        return Ok(service.apply_catalog(owner, snapshot, adopt)?);
    }
    if adopt.is_some() {
        return Err(CatalogError::Invalid("a delta cannot adopt: send the whole snapshot".to_owned()).into());
    }
    let delta: CatalogDelta = decode(content)?;
    Ok(service.apply_catalog_delta(owner, delta)?)
}
