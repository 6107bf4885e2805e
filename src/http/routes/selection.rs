//! `POST /select` and `POST /select_and_reserve`.

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{App, QueryResult, query};
use crate::{
    http::{
        body,
        decode::{
            decode_prompted,
            wire::{ReserveRequest, SelectRequest},
        },
        error::{ApiError, ErrorBody},
        reply,
    },
    selection::request,
};

/// Policy class of the queue.
const POLICY_CLASS_HEADER: &str = "x-dynamo-meta-policy-class";
/// Longest wait, in milliseconds.
const DEADLINE_HEADER: &str = "x-pointsman-deadline-ms";

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct SelectQuery {
    /// Report why: verdicts, inputs and cost by term of every candidate.
    #[serde(default)]
    explain: bool,
}

/// Chooses a worker rank for a prompt and books nothing. With a `selection_id` the decision can be booked by
/// `POST /reservations` until it expires.
#[utoipa::path(
    post, path = "/select", tag = "selection",
    params(
        SelectQuery,
        ("x-dynamo-meta-policy-class" = Option<String>, Header, description = "Policy class of the queue"),
        ("x-pointsman-deadline-ms" = Option<u64>, Header, description = "Longest wait, in milliseconds"),
    ),
    request_body = SelectRequest,
    responses(
        (status = 200, description = "The chosen rank", body = request::SelectResponse),
        (status = 400, description = "Malformed JSON, or a prompt or steering that contradicts itself", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 429, description = "Overloaded, queue full, or deadline passed", body = ErrorBody),
        (status = 503, description = "Nobody can take the request", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn select(
    State(app): State<App>,
    parameters: QueryResult<SelectQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let SelectQuery { explain } = query(parameters)?;
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let decoded: SelectRequest = decode_prompted(&content)?;
    drop(content);
    let advisory = decoded.advisory;
    let mut request = decoded.into_core(advisory);
    request.explain = explain;
    steer_by_headers(&mut request.steering, &head.headers)?;
    let answer = app.service().select(request).await?;
    Ok(reply::selection(&answer))
}

/// Chooses a worker rank for a prompt and books it. The booking lives until `DELETE /reservations/{selection_id}`, its
/// expiry, or the departure of its worker.
#[utoipa::path(
    post, path = "/select_and_reserve", tag = "selection",
    params(
        ("x-dynamo-meta-policy-class" = Option<String>, Header, description = "Policy class of the queue"),
        ("x-pointsman-deadline-ms" = Option<u64>, Header, description = "Longest wait, in milliseconds"),
    ),
    request_body = ReserveRequest,
    responses(
        (status = 200, description = "The booked rank", body = request::SelectResponse),
        (status = 400, description = "Malformed JSON, or a prompt, steering or session that contradicts itself", body = ErrorBody),
        (status = 409, description = "The id is booked or being booked", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 429, description = "Overloaded, queue full, or deadline passed", body = ErrorBody),
        (status = 500, description = "The policy or the request classifier failed", body = ErrorBody),
        (status = 503, description = "Nobody can take the request, or its classifier did not answer", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn select_and_reserve(
    State(app): State<App>,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let decoded: ReserveRequest = decode_prompted(&content)?;
    drop(content);
    let mut request = decoded.into_core(false);
    steer_by_headers(&mut request.steering, &head.headers)?;
    let answer = app.service().select_and_reserve(request).await?;
    Ok(reply::selection(&answer))
}

fn steer_by_headers(steering: &mut request::Steering, headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(class) = headers.get(POLICY_CLASS_HEADER)
        && let Ok(class) = class.to_str()
        && !class.trim().is_empty()
    {
        steering.policy_class = Some(class.trim().to_owned());
    }
    if let Some(deadline) = headers.get(DEADLINE_HEADER) {
        let millis: u64 = deadline
            .to_str()
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .ok_or(ApiError::Header("x-pointsman-deadline-ms must be a whole number of milliseconds"))?;
        steering.deadline_ms = Some(steering.deadline_ms.map_or(millis, |own| own.min(millis)));
    }
    Ok(())
}
