//! The routes (spec http 2.1). Handlers decode, call one verb and encode; checks come in the order of spec http 2.2:
//! method and path, path parameters, admin token, media type, size, syntax, shape, then the verb's own.

pub(super) mod catalog;
pub(super) mod index;
pub(super) mod indexer;
pub(super) mod indexer_face;
pub(super) mod inspection;
pub(super) mod peers;
pub(super) mod policy;
pub(super) mod probes;
pub(super) mod reservations;
pub(super) mod selection;
mod stream;
pub(super) mod workers;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{
        DefaultBodyLimit, Path, Query,
        rejection::{PathRejection, QueryRejection},
    },
    http::{HeaderMap, header},
    response::IntoResponse,
    routing::{delete, get, patch, post, put},
};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tower_http::decompression::RequestDecompressionLayer;
use utoipa::IntoParams;

use super::{
    body::BodyLimits,
    config::{AdminToken, Face, HttpConfig},
    error::ApiError,
    metrics::HttpMetrics,
};
use crate::{selection::core::PartitionFilter, service::SelectionService};

/// Dumps written at the same time; more wait.
const CONCURRENT_DUMPS: usize = 4;
/// States sent to other replicas at the same time; more wait.
const CONCURRENT_STATES: usize = 8;

/// What handlers share.
#[derive(Clone)]
pub(super) struct App(Arc<AppState>);

struct AppState {
    service: SelectionService,
    admin_token: Option<AdminToken>,
    limits: BodyLimits,
    catalog_limits: BodyLimits,
    dumps: Arc<Semaphore>,
    /// Peers of the indexer's face.
    remembered: indexer_face::RememberedPeers,
    states: Arc<Semaphore>,
    metrics: Arc<HttpMetrics>,
    reader_grace: Duration,
    slowest_reader: u64,
}

impl App {
    pub(super) fn new(service: SelectionService, config: &HttpConfig, metrics: Arc<HttpMetrics>) -> Self {
        Self(Arc::new(AppState {
            service,
            admin_token: config.admin_token.clone(),
            limits: BodyLimits { bytes: config.max_body_bytes, time: config.body_timeout },
            catalog_limits: BodyLimits { bytes: config.max_catalog_bytes, time: config.body_timeout },
            dumps: Arc::new(Semaphore::new(CONCURRENT_DUMPS)),
            remembered: indexer_face::RememberedPeers::default(),
            states: Arc::new(Semaphore::new(CONCURRENT_STATES)),
            metrics,
            reader_grace: config.reader_grace,
            slowest_reader: config.slowest_reader.max(1),
        }))
    }

    pub(super) fn service(&self) -> &SelectionService {
        &self.0.service
    }

    /// Lets a mutating catalog or peer request pass.
    fn authorize(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(token) = &self.0.admin_token else { return Ok(()) };
        let offered = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()).and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
        });
        if token.matches(offered.unwrap_or_default()) { Ok(()) } else { Err(ApiError::Unauthorized) }
    }

    /// Runs a verb that takes locks or time, off the async threads. It runs to its end even when the client leaves.
    async fn blocking<R: Send + 'static>(
        &self,
        verb: impl FnOnce(&SelectionService) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        let service = self.0.service.clone();
        tokio::task::spawn_blocking(move || verb(&service)).await.map_err(|_| ApiError::Internal("a verb panicked"))
    }
}

/// All routes.
pub(super) fn router(app: App, config: &HttpConfig) -> Router {
    // The handler refuses what is passed on compressed: an error of the layer's own has no text and is not counted.
    let decompression = RequestDecompressionLayer::new().pass_through_unaccepted(true);
    let mut routes = Router::new();
    routes = match config.face {
        Face::Selector => {
            routes.route("/health", get(probes::health)).route("/workers", post(workers::upsert).get(workers::list))
        }
        Face::Indexer => routes
            .route("/health", get(indexer_face::health))
            .route("/workers", post(workers::upsert).get(indexer_face::workers))
            .route("/register_peer", post(indexer_face::register_peer))
            .route("/deregister_peer", post(indexer_face::deregister_peer))
            .route("/peers", get(indexer_face::peers))
            .route("/reopen_logs", post(indexer_face::reopen_logs)),
    };
    if config.pause_routes {
        routes = routes
            .route("/test/pause_listener", post(indexer::pause))
            .route("/test/resume_listener", post(indexer::resume));
    }
    routes
        .route("/register", post(indexer::register))
        .route("/unregister", post(indexer::unregister))
        .route("/query", post(indexer::query))
        .route("/query_by_hash", post(indexer::query_by_hash))
        .route("/ready", get(probes::ready))
        .route("/livez", get(probes::livez))
        .route("/readyz", get(probes::readyz))
        .route("/metrics", get(probes::metrics))
        .route("/openapi.json", get(probes::openapi))
        .route("/workers/{worker_id}", patch(workers::update).delete(workers::remove))
        .route("/select", post(selection::select))
        .route("/select_and_reserve", post(selection::select_and_reserve))
        .route("/reservations", post(reservations::create))
        .route("/reservations/{selection_id}", delete(reservations::free))
        .route("/reservations/{selection_id}/prefill_complete", post(reservations::prefill_complete))
        .route("/reservations/{selection_id}/output_block", post(reservations::output_block))
        .route("/loads", get(inspection::loads))
        .route("/queue", get(inspection::queue))
        .route("/potential_loads", post(inspection::potential_loads))
        .route("/overlap_scores", post(inspection::overlap_scores))
        .route("/dump", get(inspection::dump))
        .route("/listeners", get(inspection::listeners))
        .route("/policy", get(policy::status))
        .route("/catalog", get(catalog::status))
        .route("/catalog/{owner}", put(catalog::apply).layer(decompression))
        .route("/replica_sync/register_peer", post(peers::register))
        .route("/replica_sync/deregister_peer", post(peers::deregister))
        .route("/replica_sync/peers", get(peers::list))
        .route("/replica_sync/status", get(peers::status))
        .route("/replica_sync/state", get(peers::state))
        .route("/replica_sync/index", get(index::summary))
        .route("/replica_sync/index/chunk", get(index::chunk))
        .fallback(async || ApiError::RouteNotFound.into_response())
        .method_not_allowed_fallback(async || ApiError::MethodNotAllowed.into_response())
        // Bodies are read by handlers, with limits of their own.
        .layer(DefaultBodyLimit::disable())
        .with_state(app)
}

/// A path parameter, or why it cannot be decoded.
type PathResult<T> = Result<Path<T>, PathRejection>;

fn path<T>(result: PathResult<T>) -> Result<T, ApiError> {
    result.map(|Path(value)| value).map_err(|rejection| ApiError::Url(rejection.body_text()))
}

/// Query parameters, or why they cannot be decoded.
type QueryResult<T> = Result<Query<T>, QueryRejection>;

fn query<T>(result: QueryResult<T>) -> Result<T, ApiError> {
    result.map(|Query(value)| value).map_err(|rejection| ApiError::Url(rejection.body_text()))
}

/// Restricts a listing to exact names.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FilterQuery {
    /// Model name.
    model_name: Option<String>,
    /// Routing group.
    routing_group: Option<String>,
}

/// Asks for what is known of the ranks' streams.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TrustQuery {
    /// Show how far each rank's part of the index can be believed.
    #[serde(default)]
    trust: bool,
}

impl From<FilterQuery> for PartitionFilter {
    fn from(query: FilterQuery) -> Self {
        Self { model_name: query.model_name, routing_group: query.routing_group }
    }
}
