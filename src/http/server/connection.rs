//! One connection.

use std::{convert::Infallible, pin::pin, sync::Arc};

use axum::{extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{
    activity::{Activity, Overdue},
    socket::WatchedSocket,
};
use crate::http::HttpConfig;

/// Serves requests by `handle` until the client leaves, waits too long, or `drain` comes. A reason is given when this side
/// ended the connection.
pub(super) async fn serve<F: Future<Output = Response>>(
    handle: impl Fn(Request<Incoming>) -> F,
    config: &HttpConfig,
    socket: TcpStream,
    drain: CancellationToken,
) -> Option<&'static str> {
    // Answers are small and complete: waiting for more of them only adds latency. An error here is the connection's end,
    // which the first read reports.
    socket.set_nodelay(true).ok();
    let activity = Arc::new(Activity::new());
    let socket = WatchedSocket::new(socket, activity.clone(), config.write_timeout);
    let service = service_fn(|request| {
        let (activity, answer) = (activity.clone(), handle(request));
        async move {
            let _in_flight = activity.begin();
            Ok::<_, Infallible>(answer.await)
        }
    });
    // Heads and idle time are watched here: hyper knows one limit for both, and makes a timer for every request.
    let connection = http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(socket), service);
    let mut connection = pin!(connection);
    let mut check = tokio::time::interval(config.header_timeout.min(config.idle_timeout) / 2);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = false;
    loop {
        tokio::select! {
            // Broken connections are everyday events; what is no HTTP is worth a count.
            ended = connection.as_mut() => return ended.err().filter(hyper::Error::is_parse).map(|error| {
                if error.is_parse_too_large() { "head_too_large" } else { "malformed_head" }
            }),
            () = drain.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = check.tick() => match activity.overdue(config.header_timeout, config.idle_timeout) {
                None => {}
                Some(Overdue::Head) => return Some("head_timeout"),
                Some(Overdue::Idle) => return Some("idle_timeout"),
            },
        }
    }
}
