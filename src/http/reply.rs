//! Answers.

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::selection::request::SelectResponse;

/// The media type of answers.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// `{"status":"ok"}`.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatusBody {
    /// `ok`.
    pub status: &'static str,
}

impl StatusBody {
    /// Done.
    pub const OK: Self = Self { status: "ok" };
}

/// Most bytes of a hash and its comma.
const HASH_BYTES: usize = 21;
/// Bytes of a usual answer.
const USUAL_BYTES: usize = 512;

/// An answer in JSON.
pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    json_sized(USUAL_BYTES, status, value)
}

/// A selection in JSON.
pub(super) fn selection(answer: &SelectResponse) -> Response {
    let hashes = answer.sequence_hashes.as_ref().map_or(0, Vec::len);
    json_sized(USUAL_BYTES + hashes * HASH_BYTES, StatusCode::OK, answer)
}

fn json_sized<T: Serialize>(expected_bytes: usize, status: StatusCode, value: &T) -> Response {
    let mut body = Vec::with_capacity(expected_bytes);
    match serde_json::to_writer(&mut body, value) {
        Ok(()) => bytes(status, Bytes::from(body)),
        Err(error) => {
            // Our own types have string keys and cannot fail.
            tracing::error!(%error, "an answer cannot be written as JSON");
            bytes(StatusCode::INTERNAL_SERVER_ERROR, Bytes::from_static(b"{\"error\":\"internal error\"}"))
        }
    }
}

/// `{"status":"ok"}` with status 200.
pub(super) fn ok() -> Response {
    bytes(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\"}"))
}

/// An answer of JSON text.
pub(super) fn bytes(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}
