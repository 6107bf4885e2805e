//! The server: accepts connections, serves the routes on them, and drains. `side` does it for a process that is no
//! selector and has a few routes of its own.
//!
//! Invariants: connections, heads, bodies, idle time and unread answers all have limits; a panic in a handler is that
//! request's 500; after the word to stop the server ends within its delay plus its drain time.

mod activity;
mod connection;
mod refusal;
mod side;
mod socket;

pub use side::serve_routes;

use std::{io, net::SocketAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use hyper::body::Incoming;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;

use super::{
    config::{Face, HttpConfig},
    error::{ApiError, Reason},
    metrics::HttpMetrics,
    operations::Operation,
    routes::{self, App},
};
use crate::service::SelectionService;

/// Answer to a connection beyond the limit.
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
content-length: 38\r\nconnection: close\r\n\r\n{\"error\":\"connection limit is reached\"}";
/// First pause after a failed accept (no descriptors left, for example); doubles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);
const MAX_ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<Drained>,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut off because the drain time was over.
    pub cut_off: usize,
}

impl Server {
    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server has drained.
    pub async fn finished(self) -> Drained {
        // The task is never aborted, and panics of requests are contained.
        self.task.await.unwrap_or(Drained { cut_off: 0 })
    }
}

/// Serves `service` on `listener` until `shutdown`, then drains and stops the service.
///
/// # Errors
/// The listener's address cannot be read.
pub fn serve(
    service: SelectionService,
    config: HttpConfig,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> io::Result<Server> {
    let address = listener.local_addr()?;
    let api = Api::new(service, &config);
    let task = tokio::spawn(run(api, config, listener, shutdown));
    Ok(Server { address, task })
}

/// The routes with what surrounds them: the gate of start-up recovery, containment of panics, metrics.
#[derive(Clone)]
pub(super) struct Api {
    app: App,
    router: Router,
    metrics: Arc<HttpMetrics>,
}

impl Api {
    fn new(service: SelectionService, config: &HttpConfig) -> Self {
        let metrics = HttpMetrics::register(service.metrics(), config.face);
        if config.face == Face::Indexer {
            service.register_instance_metrics();
        }
        let app = App::new(service, config, metrics.clone());
        Self { router: routes::router(app.clone(), config), app, metrics }
    }

    async fn handle(&self, request: Request<Incoming>) -> Response {
        let started = Instant::now();
        let operation = Operation::of(request.method(), request.uri().path());
        self.metrics.in_flight.inc();
        let mut response = if operation.open_during_recovery() || self.app.service().is_recovered() {
            let mut router = self.router.clone();
            let answer = AssertUnwindSafe(async move { router.call(request.map(Body::new)).await });
            match answer.catch_unwind().await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => ApiError::Internal("a handler panicked").into_response(),
            }
        } else {
            ApiError::Recovering.into_response()
        };
        self.metrics.in_flight.dec();
        if self.app.service().is_shutting_down() {
            // A client that goes on asking is led elsewhere before what it has open is closed under a request.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let reason = response.extensions().get::<Reason>().map(|reason| reason.0);
        self.metrics.answered(operation, response.status(), reason, started.elapsed());
        response
    }
}

async fn run(api: Api, config: HttpConfig, listener: TcpListener, shutdown: CancellationToken) -> Drained {
    let config = Arc::new(config);
    let connections = Connections {
        api: api.clone(),
        config: config.clone(),
        limit: Arc::new(Semaphore::new(config.max_connections)),
        open: TaskTracker::new(),
        drain: CancellationToken::new(),
        cut: CancellationToken::new(),
    };
    let service = api.app.service();
    tokio::select! {
        () = accept(&listener, &connections) => {}
        () = async {
            shutdown.cancelled().await;
            service.begin_shutdown();
            tracing::info!(delay = ?config.shutdown_delay, drain = ?config.drain_timeout, "shutting down");
            // Whoever still sends requests learns from the failing probe that it should not.
            tokio::time::sleep(config.shutdown_delay).await;
        } => {}
    }
    drop(listener);
    service.close_queues();
    let drained = connections.drain(config.drain_timeout).await;
    service.stop().await;
    drained
}

async fn accept(listener: &TcpListener, connections: &Connections) {
    let mut pause = ACCEPT_PAUSE;
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                pause = ACCEPT_PAUSE;
                connections.open(socket);
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                connections.api.metrics.connection_closed("accept_failed");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_ACCEPT_PAUSE);
            }
        }
    }
}

/// Whether the error belongs to the connection that was to be accepted, not to the listener.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The open connections.
struct Connections {
    api: Api,
    config: Arc<HttpConfig>,
    limit: Arc<Semaphore>,
    open: TaskTracker,
    /// Finish the request in progress, then close.
    drain: CancellationToken,
    /// Close at once.
    cut: CancellationToken,
}

impl Connections {
    fn open(&self, socket: TcpStream) {
        let Ok(permit) = self.limit.clone().try_acquire_owned() else {
            self.api.metrics.connection_closed("limit");
            // A fresh socket has room for this; a client that cannot take it is no loss.
            socket.try_write(TOO_MANY_CONNECTIONS).ok();
            return;
        };
        let (api, config) = (self.api.clone(), self.config.clone());
        let (drain, cut) = (self.drain.clone(), self.cut.clone());
        self.open.spawn(async move {
            let _permit = permit;
            api.metrics.connections.inc();
            tokio::select! {
                ended = connection::serve(|request| api.handle(request), &config, socket, drain) => {
                    if let Some(reason) = ended {
                        api.metrics.connection_closed(reason);
                    }
                }
                () = cut.cancelled() => api.metrics.connection_closed("drain_timeout"),
            }
            api.metrics.connections.dec();
        });
    }

    /// Lets requests in progress finish, at most for `limit`, then closes what is left.
    async fn drain(self, limit: Duration) -> Drained {
        self.drain.cancel();
        self.open.close();
        if timeout(limit, self.open.wait()).await.is_ok() {
            return Drained { cut_off: 0 };
        }
        let cut_off = self.open.len();
        tracing::warn!(cut_off, "drain time is over");
        self.cut.cancel();
        self.open.wait().await;
        Drained { cut_off }
    }
}
