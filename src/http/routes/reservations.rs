//! `/reservations`: booking a decision, and the life of a booking.

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};

use super::{App, PathResult, path};
use crate::{
    http::{
        body,
        decode::{
            decode, decode_prompted,
            wire::{OutputBlockRequest, ReservationRequest},
        },
        error::{ApiError, ErrorBody},
        reply::{self, StatusBody},
    },
    selection::request::ReservationResponse,
};

/// Books a named rank, or, without `worker_id`, the cached selection of the id.
#[utoipa::path(
    post, path = "/reservations", tag = "reservations",
    request_body = ReservationRequest,
    responses(
        (status = 201, description = "Booked", body = ReservationResponse),
        (status = 400, description = "Malformed JSON, contradicting numbers, or a session that moved", body = ErrorBody),
        (status = 404, description = "Worker, rank or cached selection not found", body = ErrorBody),
        (status = 409, description = "The id is booked or being booked", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn create(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let decoded: ReservationRequest = decode_prompted(&content)?;
    drop(content);
    let answer = app.service().create_reservation(decoded.into()).await?;
    Ok(reply::json(StatusCode::CREATED, &answer))
}

/// The prefill of a booking is done: its prefill load is gone. Repeats are fine; a body is not read.
#[utoipa::path(
    post, path = "/reservations/{selection_id}/prefill_complete", tag = "reservations",
    params(("selection_id" = String, Path, description = "Id of the booking")),
    responses(
        (status = 200, description = "Done", body = StatusBody),
        (status = 404, description = "No such booking", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn prefill_complete(
    State(app): State<App>,
    selection_id: PathResult<String>,
) -> Result<Response, ApiError> {
    app.service().prefill_complete(&path(selection_id)?)?;
    before_its_answer(&app).await;
    Ok(reply::ok())
}

/// A booking produced one block of output.
#[utoipa::path(
    post, path = "/reservations/{selection_id}/output_block", tag = "reservations",
    params(("selection_id" = String, Path, description = "Id of the booking")),
    request_body = OutputBlockRequest,
    responses(
        (status = 200, description = "Counted", body = StatusBody),
        (status = 400, description = "Malformed JSON, or a fraction outside 0 to 1", body = ErrorBody),
        (status = 404, description = "No such booking", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn output_block(
    State(app): State<App>,
    selection_id: PathResult<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let selection_id = path(selection_id)?;
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    let OutputBlockRequest { decay_fraction } = decode(&content)?;
    app.service().add_output_block(&selection_id, decay_fraction)?;
    Ok(reply::ok())
}

/// Ends a booking: its blocks, prefill load and session lease are gone when this is answered.
#[utoipa::path(
    delete, path = "/reservations/{selection_id}", tag = "reservations",
    params(("selection_id" = String, Path, description = "Id of the booking")),
    responses(
        (status = 200, description = "Ended", body = StatusBody),
        (status = 404, description = "No such booking", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn free(
    State(app): State<App>,
    selection_id: PathResult<String>,
) -> Result<Response, ApiError> {
    app.service().free_reservation(&path(selection_id)?)?;
    before_its_answer(&app).await;
    Ok(reply::ok())
}

/// A call that is answered is not repeated, so other replicas should hear of it first. A booking needs no such thing: one
/// that nobody heard of does no harm.
async fn before_its_answer(app: &App) {
    if let Some(mesh) = app.service().mesh() {
        mesh.let_out().await;
    }
}

#[cfg(test)]
mod tests;
