//! Health, readiness, metrics and the OpenAPI document.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use crate::{
    http::{
        error::{ApiError, ErrorBody},
        openapi,
        reply::{self, StatusBody},
        schemas::WorkerRecordSchema,
    },
    selection::{core::PartitionFilter, worker::WorkerRecord},
    service::{LivenessReport, ReadinessReport},
    telemetry::metrics::CONTENT_TYPE,
};

/// Answer of `/ready`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReadyBody {
    /// A selection can be made: alive, not going down, and a worker is schedulable.
    ready: bool,
    /// Schedulable workers.
    schedulable_workers: u64,
    /// All records.
    #[schema(value_type = Vec<WorkerRecordSchema>)]
    workers: Vec<Arc<WorkerRecord>>,
}

/// The server answers.
#[utoipa::path(
    get, path = "/health", tag = "probes",
    responses(
        (status = 200, description = "It does", body = StatusBody),
        (status = 503, description = "Start-up recovery is not over", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn health() -> Response {
    reply::ok()
}

/// Whether a selection can be made at all, with every worker. `/readyz` is the probe for orchestrators.
#[utoipa::path(
    get, path = "/ready", tag = "probes",
    responses(
        (status = 200, description = "It can", body = ReadyBody),
        (status = 503, description = "It cannot", body = ReadyBody),
    ),
)]
pub(in crate::http) async fn ready(State(app): State<App>) -> Result<Response, ApiError> {
    app.blocking(|service| {
        let ready = service.can_select();
        let schedulable_workers = service.core().schedulable_workers();
        let workers = service.workers(&PartitionFilter::default())?;
        Ok(reply::json(probe_status(ready), &ReadyBody { ready, schedulable_workers, workers }))
    })
    .await?
}

/// Whether the process does its work; a restart is the cure when not.
#[utoipa::path(
    get, path = "/livez", tag = "probes",
    responses(
        (status = 200, description = "It does", body = LivenessReport),
        (status = 503, description = "It does not, and why", body = LivenessReport),
    ),
)]
pub(in crate::http) async fn livez(State(app): State<App>) -> Response {
    let report = app.service().liveness();
    reply::json(probe_status(report.live), &report)
}

/// Whether requests should be sent here.
#[utoipa::path(
    get, path = "/readyz", tag = "probes",
    responses(
        (status = 200, description = "They should", body = ReadinessReport),
        (status = 503, description = "Not yet, or not any more", body = ReadinessReport),
    ),
)]
pub(in crate::http) async fn readyz(State(app): State<App>) -> Response {
    let report = app.service().readiness();
    reply::json(probe_status(report.ready), &report)
}

fn probe_status(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Metrics, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "probes",
    responses((status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text")),
)]
pub(in crate::http) async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let text = app.blocking(|service| service.metrics().encode()).await?;
    let text = text.map_err(|_| ApiError::Internal("metrics cannot be written"))?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    Ok(response)
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "probes",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value)),
)]
pub(in crate::http) async fn openapi() -> Response {
    reply::bytes(StatusCode::OK, Bytes::from_static(openapi::text().as_bytes()))
}
