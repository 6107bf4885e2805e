//! What the service knows: loads, overlaps, the dump, listeners.

use std::{io, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{App, FilterQuery, QueryResult, query};
use crate::{
    events::status::ListenerStatus,
    http::{
        body,
        decode::{decode_prompted, wire::LoadQuery},
        error::{ApiError, ErrorBody},
        reply,
    },
    selection::request::{OverlapScores, PartitionLoads, RankLoadRow},
};

/// Size of the pieces a dump is sent in.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces written ahead of the client.
const PIECES_AHEAD: usize = 8;
/// Longest time a client may leave a piece of a dump untaken.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// Load of every rank now, by partition.
#[utoipa::path(
    get, path = "/loads", tag = "inspection",
    params(FilterQuery),
    responses(
        (status = 200, description = "Partitions, sorted by model and group", body = Vec<PartitionLoads>),
        (status = 400, description = "A parameter is repeated", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn loads(
    State(app): State<App>,
    filter: QueryResult<FilterQuery>,
) -> Result<Response, ApiError> {
    let filter = query(filter)?.into();
    app.blocking(move |service| service.loads(&filter).map(|loads| reply::json(StatusCode::OK, &loads)))
        .await?
        .map_err(ApiError::from)
}

/// Load of every rank of a partition if it took the prompt.
#[utoipa::path(
    post, path = "/potential_loads", tag = "inspection",
    request_body = LoadQuery,
    responses(
        (status = 200, description = "A row a rank, sorted by worker and rank", body = Vec<RankLoadRow>),
        (status = 400, description = "Malformed JSON or prompt", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn potential_loads(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let query = load_query(&app, request).await?;
    let rows = app.blocking(move |service| service.potential_loads(&query.into())).await??;
    Ok(reply::json(StatusCode::OK, &rows))
}

/// What every rank of a partition has cached of the prompt.
#[utoipa::path(
    post, path = "/overlap_scores", tag = "inspection",
    request_body = LoadQuery,
    responses(
        (status = 200, description = "A row a rank, sorted by worker and rank", body = OverlapScores),
        (status = 400, description = "Malformed JSON or prompt", body = ErrorBody),
        (status = 422, description = "JSON of another shape", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    ),
)]
pub(in crate::http) async fn overlap_scores(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let query = load_query(&app, request).await?;
    let scores = app.blocking(move |service| service.overlap_scores(&query.into())).await??;
    Ok(reply::json(StatusCode::OK, &scores))
}

async fn load_query(app: &App, request: Request) -> Result<LoadQuery, ApiError> {
    let (head, content) = request.into_parts();
    let content = body::json(&head.headers, content, app.0.limits).await?;
    Ok(decode_prompted(&content)?)
}

/// Listeners for KV events: state, position, gaps, replays, restarts and drops of each rank's stream.
#[utoipa::path(
    get, path = "/listeners", tag = "inspection",
    responses((status = 200, description = "Sorted by worker and rank", body = Vec<ListenerStatus>)),
)]
pub(in crate::http) async fn listeners(State(app): State<App>) -> Result<Response, ApiError> {
    app.blocking(|service| reply::json(StatusCode::OK, &service.listeners())).await
}

/// Everything cached, by partition, in the shape other selectors recover from. Sent as it is written; an answer that
/// breaks off is not complete.
#[utoipa::path(
    get, path = "/dump", tag = "inspection",
    responses((status = 200, description = "Store events by `model:group`", body = serde_json::Value)),
)]
pub(in crate::http) async fn dump(State(app): State<App>) -> Result<Response, ApiError> {
    let permit =
        app.0.dumps.clone().acquire_owned().await.map_err(|_| ApiError::Internal("dump semaphore is closed"))?;
    let service = app.service().clone();
    let (pieces, mut receiver) = mpsc::channel(PIECES_AHEAD);
    let handle = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut writer = PieceWriter { piece: Vec::with_capacity(PIECE_BYTES), pieces, handle };
        let written = service.dump(&mut writer).and_then(|()| io::Write::flush(&mut writer));
        if let Err(error) = written {
            tracing::warn!(%error, "dump ended early");
            // The connection is broken off, so that nobody takes what was sent for the whole.
            writer.send(Err(error)).unwrap_or_default();
        }
    });
    let stream = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Collects what is written into pieces for the response.
struct PieceWriter {
    piece: Vec<u8>,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    handle: Handle,
}

impl PieceWriter {
    fn send(&mut self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sending = tokio::time::timeout(PIECE_TIMEOUT, self.pieces.send(piece));
        match self.handle.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "client left")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "client does not read")),
        }
    }
}

impl io::Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.send(Ok(Bytes::from(piece)))
    }
}
