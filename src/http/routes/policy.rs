//! `/policy`: the policies in force.

use axum::{extract::State, http::StatusCode, response::Response};

use super::App;
use crate::{
    http::{error::ApiError, reply},
    service::PolicyStatus,
};

/// The policies in force: document, generation, instances by role, classes of the queue, and why the document that is
/// there now is not in force when it is refused.
#[utoipa::path(
    get, path = "/policy", tag = "inspection",
    responses((status = 200, description = "Also without a document", body = PolicyStatus)),
)]
pub(in crate::http) async fn status(State(app): State<App>) -> Result<Response, ApiError> {
    app.blocking(|service| reply::json(StatusCode::OK, &service.policy_status())).await
}
