//! Answers replay requests of one rank from its ring, over the ROUTER of the `zeromq` crate.
//!
//! As engines do: a request is exactly delimiter and start number; one request is served at a time, all batches from
//! the start on and then the end marker (number 2^64-1, empty payload). Anything else is ignored.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::{config::ReplayForm, stream::Ring};

/// Longest time for all answers to one request: a client that does not read must not keep the others waiting for ever.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);

/// What one rank answers with.
#[derive(Debug)]
pub(super) struct ReplaySource {
    pub ring: Arc<Mutex<Ring>>,
    pub topic: Bytes,
    pub form: ReplayForm,
}

/// Starts answering on `listener`; dropping the handle ends it.
pub(super) async fn serve(listener: TcpListener, source: ReplaySource) -> Result<AbortOnDropHandle<()>, ZmqError> {
    let mut socket = RouterSocket::new();
    let listener = listener.into_std().map_err(ZmqError::Network)?;
    socket.bind_listener(listener).await?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            match socket.recv().await {
                Ok(request) => {
                    let Some((identity, start)) = parse(&request) else { continue };
                    match timeout(SERVE_TIMEOUT, answer(&mut socket, &source, &identity, start)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(%error, start, "replay ended early"),
                        Err(_) => tracing::warn!(start, "replay client does not read"),
                    }
                }
                // One peer's failure; the socket lives on.
                Err(error) => {
                    tracing::debug!(%error, "replay request not received");
                    tokio::task::yield_now().await;
                }
            }
        }
    })))
}

/// Who asks, and from which number on.
fn parse(request: &ZmqMessage) -> Option<(Bytes, u64)> {
    let (Some(identity), Some(delimiter), Some(start), 3) =
        (request.get(0), request.get(1), request.get(2), request.len())
    else {
        return None;
    };
    let start = u64::from_be_bytes(start[..].try_into().ok()?);
    delimiter.is_empty().then(|| (identity.clone(), start))
}

async fn answer(
    socket: &mut RouterSocket,
    source: &ReplaySource,
    identity: &Bytes,
    start: u64,
) -> Result<(), ZmqError> {
    let batches = source.ring.lock().since(start);
    for (number, payload) in batches {
        socket.send(reply(source, identity, &source.topic, number, payload)).await?;
    }
    socket.send(reply(source, identity, &Bytes::new(), u64::MAX, Bytes::new())).await
}

fn reply(source: &ReplaySource, identity: &Bytes, topic: &Bytes, number: u64, payload: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(identity.clone());
    message.push_back(Bytes::new());
    if source.form == ReplayForm::WithTopic {
        message.push_back(topic.clone());
    }
    message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
    message.push_back(payload);
    message
}
