//! A server for the few routes of a process that is no selector: state, metrics, liveness.
//!
//! It has the selector's limits on heads, idle time and unread answers, and few connections; it ends at once.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::{ACCEPT_PAUSE, TOO_MANY_CONNECTIONS, connection};
use crate::http::{HttpConfig, error::ApiError};

/// Connections that are open at once: scrapes, probes and a few people.
const MAX_CONNECTIONS: usize = 128;

/// Serves `routes` on `listener` until `shutdown`. A path that is none of them is 404 in JSON.
pub async fn serve_routes(routes: Router, listener: TcpListener, shutdown: CancellationToken) {
    let routes = routes.fallback(|| async { ApiError::RouteNotFound.into_response() });
    let limit = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let config = Arc::new(HttpConfig::default());
    // Dropped at the end, and every connection with it.
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
            () = shutdown.cancelled() => return,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else {
            // A fresh socket has room for this; a client that cannot take it is no loss.
            socket.try_write(TOO_MANY_CONNECTIONS).ok();
            continue;
        };
        let (routes, config, drain) = (routes.clone(), config.clone(), shutdown.clone());
        open.spawn(async move {
            let _permit = permit;
            let handle = |request: axum::extract::Request<hyper::body::Incoming>| {
                let mut routes = routes.clone();
                async move {
                    let answer: Result<Response, std::convert::Infallible> = routes.call(request.map(Body::new)).await;
                    answer.unwrap_or_else(|never| match never {})
                }
            };
            connection::serve(handle, &config, socket, drain).await;
        });
    }
}
