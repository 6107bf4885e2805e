//! The state of `discover` by HTTP: `/status`, `/metrics`, `/livez`.

use std::{net::IpAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::super::CliError;
use crate::{
    discovery::fleet::Fleet,
    http,
    telemetry::metrics::{CONTENT_TYPE, Metrics},
};

/// Binds the port; the future serves it until `stop`.
///
/// # Errors
/// The address cannot be bound.
pub(super) async fn serve(
    host: IpAddr,
    port: u16,
    fleet: Fleet,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, CliError> {
    let failed = |error| CliError::Failed(format!("cannot listen on {host} port {port}: {error}"));
    let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(CliError::failed)?;
    tracing::info!(%address, "state is told");
    Ok(http::serve_routes(routes(fleet, metrics), listener, stop))
}

fn routes(fleet: Fleet, metrics: Metrics) -> Router {
    let shown = Arc::new(metrics);
    Router::new()
        .route("/status", get(|State(fleet): State<Fleet>| async move { Json(fleet.state()) }))
        .route("/livez", get(livez))
        .route("/metrics", get(async move || scrape(&shown)))
        .with_state(fleet)
}

async fn livez(State(fleet): State<Fleet>) -> Response {
    if fleet.is_followed() {
        return Json(json!({ "live": true, "reasons": [] })).into_response();
    }
    let body = json!({ "live": false, "reasons": ["the workers file is not followed any more"] });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

fn scrape(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
