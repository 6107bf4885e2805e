//! `/livez`, `/readyz` and `/metrics` of the operator.
//!
//! Live: the election and, while leading, the term have shown signs of life. Ready: the cluster has been listed in full.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use crate::{
    kubernetes::source::Sets,
    telemetry::metrics::{CONTENT_TYPE, Metrics},
};

/// Longest time without a sign of life of a term.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// What the probes are answered from.
#[derive(Clone, Debug)]
pub(super) struct Health {
    sets: watch::Receiver<Arc<Sets>>,
    started: Instant,
    /// Milliseconds from `started` to the last sign of life of the term; 0 while there is no term.
    beat: Arc<AtomicU64>,
}

impl Health {
    pub(super) fn new(sets: watch::Receiver<Arc<Sets>>) -> Self {
        Self { sets, started: Instant::now(), beat: Arc::default() }
    }

    /// A sign of life of the term.
    pub(super) fn beat(&self) {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat.store(elapsed.max(1), Ordering::Relaxed);
    }

    /// The term is over.
    pub(super) fn rest(&self) {
        self.beat.store(0, Ordering::Relaxed);
    }

    pub(super) fn routes(self, metrics: Metrics) -> Router {
        let shown = Arc::new(metrics);
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(async move || scrape(&shown)))
            .with_state(self)
    }

    fn silence(&self) -> Duration {
        match self.beat.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            beat => self.started.elapsed().saturating_sub(Duration::from_millis(beat)),
        }
    }
}

async fn livez(State(health): State<Health>) -> Response {
    let silence = health.silence();
    let live = silence <= LONGEST_SILENCE;
    let reasons = if live { Vec::new() } else { vec![format!("no sign of life for {} s", silence.as_secs())] };
    answer(live, json!({ "live": live, "reasons": reasons }))
}

async fn readyz(State(health): State<Health>) -> Response {
    // This receiver never marks what it sees: it differs from the start once something was published.
    let published = matches!(health.sets.has_changed(), Ok(true));
    let ready = published && health.sets.borrow().values().all(|set| set.snapshot.is_some());
    let reasons = if ready { Vec::new() } else { vec!["the cluster has not been listed in full yet"] };
    answer(ready, json!({ "ready": ready, "reasons": reasons }))
}

fn answer(good: bool, body: serde_json::Value) -> Response {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

fn scrape(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
