//! Metrics of requests and connections.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};

use super::{config::Face, operations::Operation};
use crate::telemetry::metrics::Metrics;

/// Upper bounds of the latency histogram, in seconds: a selection takes tens of microseconds, a large snapshot seconds.
const LATENCY_BOUNDS: [f64; 16] =
    [25e-6, 50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.6e-3, 3.2e-3, 6.4e-3, 12.8e-3, 25.6e-3, 0.1, 0.5, 2.0, 10.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    method: &'static str,
    route: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabel {
    answer: &'static str,
}

/// Counters and histograms of the server.
#[derive(Debug)]
pub(super) struct HttpMetrics {
    requests: Family<RequestLabels, Counter>,
    errors: Family<ReasonLabel, Counter>,
    /// By operation number: found without hashing labels.
    latency: Vec<Histogram>,
    /// Requests in progress.
    pub in_flight: Gauge,
    /// Connections open.
    pub connections: Gauge,
    closed: Family<ReasonLabel, Counter>,
    slow_readers: Family<AnswerLabel, Counter>,
    indexer: Option<IndexerMetrics>,
}

/// Requests under the standalone indexer's names, for its dashboards.
#[derive(Debug)]
struct IndexerMetrics {
    requests: Family<EndpointMethod, Counter>,
    errors: Family<EndpointClass, Counter>,
    latency: Family<Endpoint, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointMethod {
    endpoint: &'static str,
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointClass {
    endpoint: &'static str,
    status_class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Endpoint {
    endpoint: &'static str,
}

impl IndexerMetrics {
    fn register(metrics: &Metrics) -> Self {
        let latency = || Histogram::new(exponential_buckets(1e-4, 2.0, 20));
        let this = Self {
            requests: Family::default(),
            errors: Family::default(),
            latency: Family::new_with_constructor(latency),
        };
        metrics.register_named(|registry| {
            registry.register("dynamo_kvindexer_requests", "Total HTTP requests", this.requests.clone());
            registry.register("dynamo_kvindexer_errors", "HTTP error responses (4xx/5xx)", this.errors.clone());
            let name = "dynamo_kvindexer_request_duration_seconds";
            registry.register(name, "HTTP request latency", this.latency.clone());
        });
        this
    }

    fn answered(&self, operation: Operation, status: StatusCode, time: Duration) {
        if operation == Operation::OTHER {
            return;
        }
        let (method, endpoint) = operation.labels();
        self.requests.get_or_create(&EndpointMethod { endpoint, method }).inc();
        let class = if status.is_client_error() { Some("4xx") } else { status.is_server_error().then_some("5xx") };
        if let Some(status_class) = class {
            self.errors.get_or_create(&EndpointClass { endpoint, status_class }).inc();
        }
        self.latency.get_or_create(&Endpoint { endpoint }).observe(time.as_secs_f64());
    }
}

impl HttpMetrics {
    /// Registers them.
    pub fn register(metrics: &Metrics, face: Face) -> Arc<Self> {
        let latency: Family<OperationLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(LATENCY_BOUNDS));
        let by_operation = Operation::all().map(|operation| {
            let (method, route) = operation.labels();
            latency.get_or_create_owned(&OperationLabels { method, route })
        });
        let this = Self {
            requests: Family::default(),
            errors: Family::default(),
            latency: by_operation.collect(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            closed: Family::default(),
            slow_readers: Family::default(),
            indexer: (face == Face::Indexer).then(|| IndexerMetrics::register(metrics)),
        };
        metrics.register(|registry| {
            let http = registry.sub_registry_with_prefix("http");
            http.register("requests", "Requests answered", this.requests.clone());
            http.register("request_errors", "Requests answered with an error, by reason", this.errors.clone());
            http.register("request_seconds", "Time from a request's head to its answer", latency);
            http.register("requests_in_flight", "Requests in progress", this.in_flight.clone());
            http.register("connections", "Open connections", this.connections.clone());
            let help = "Long answers broken off because the client read too slowly";
            http.register("slow_readers", help, this.slow_readers.clone());
            http.register("connections_closed", "Connections ended by the server, by reason", this.closed.clone());
        });
        Arc::new(this)
    }

    /// A request was answered.
    pub fn answered(&self, operation: Operation, status: StatusCode, reason: Option<&'static str>, time: Duration) {
        let (method, route) = operation.labels();
        self.requests.get_or_create(&RequestLabels { method, route, status: status.as_u16() }).inc();
        if let Some(reason) = reason {
            self.errors.get_or_create(&ReasonLabel { reason }).inc();
        }
        self.latency[operation.index()].observe(time.as_secs_f64());
        if let Some(indexer) = &self.indexer {
            indexer.answered(operation, status, time);
        }
    }

    /// A long answer was broken off.
    pub fn slow_reader(&self, answer: &'static str) {
        self.slow_readers.get_or_create(&AnswerLabel { answer }).inc();
    }

    /// The server ended a connection, or refused it.
    pub fn connection_closed(&self, reason: &'static str) {
        self.closed.get_or_create(&ReasonLabel { reason }).inc();
    }
}
