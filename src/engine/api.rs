//! The engine's HTTP face: completions, what operators and routers ask engines for, and switches for tests.

use std::{convert::Infallible, sync::Arc, time::SystemTime};

use axum::{
    Json, Router,
    extract::{Query, State, rejection::JsonRejection},
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    mock::{Completion, EngineError, Shared},
    wire::{Answer, Choice, CompletionBody, Usage, kv_event_sources, server_info},
};

/// Header that names a rank, as in vLLM.
const RANK_HEADER: &str = "x-data-parallel-rank";
/// Prompts of a million token ids fit.
const BODY_LIMIT: usize = 16 << 20;

type Engine = State<Arc<Shared>>;

impl IntoResponse for EngineError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Request(_) | Self::Rank { .. } | Self::Config(_) => StatusCode::BAD_REQUEST,
            Self::Restarted => StatusCode::SERVICE_UNAVAILABLE,
            Self::Bind { .. } | Self::Socket { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        refused(status, &self.to_string())
    }
}

/// An error in the shape of the OpenAI API.
fn refused(status: StatusCode, message: &str) -> Response {
    let body = json!({"error": {"message": message, "type": "invalid_request_error", "code": status.as_u16()}});
    (status, Json(body)).into_response()
}

/// Serves until the engine ends.
pub(super) async fn serve(listener: TcpListener, engine: Arc<Shared>) {
    use axum::serve::ListenerExt;
    let router = Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route(
            "/kv_event_sources",
            get(async |State(engine): Engine| Json(kv_event_sources(engine.config(), engine.ports()))),
        )
        .route("/server_info", get(async |State(engine): Engine| Json(server_info(engine.config(), engine.ports()))))
        .route(
            "/get_server_info",
            get(async |State(engine): Engine| Json(server_info(engine.config(), engine.ports()))),
        )
        .route("/admin/restart", post(restart))
        .route("/admin/clear", post(clear))
        .route("/admin/lose", post(lose))
        .route("/admin/stats", get(async |State(engine): Engine| Json(engine.stats())))
        .layer(axum::extract::DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(engine);
    let listener = listener.tap_io(|stream| {
        // Without it a short answer waits for the peer's acknowledgement; a socket that refuses is merely slower.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
    });
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "mock engine's HTTP server ended");
    }
}

async fn health(State(engine): Engine) -> StatusCode {
    if engine.is_up() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn models(State(engine): Engine) -> Json<Value> {
    let model = &engine.config().model;
    Json(json!({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "pointsman"}]}))
}

async fn restart(State(engine): Engine) -> Response {
    // On a task of its own: a client that hangs up must not leave the engine half restarted.
    match tokio::spawn(async move { engine.restart().await }).await {
        Ok(Ok(())) => Json(json!({"restarted": true})).into_response(),
        Ok(Err(error)) => error.into_response(),
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn clear(State(engine): Engine) -> Json<Value> {
    engine.each_rank(|rank| rank.clear());
    Json(json!({"cleared": true}))
}

#[derive(Debug, Deserialize)]
struct Lose {
    batches: u64,
}

async fn lose(State(engine): Engine, Query(query): Query<Lose>) -> Json<Value> {
    engine.each_rank(|rank| rank.stream().lose(query.batches));
    Json(json!({"losing": query.batches}))
}

async fn completions(
    State(engine): Engine,
    headers: HeaderMap,
    body: Result<Json<CompletionBody>, JsonRejection>,
) -> Response {
    let Json(body) = match body {
        Ok(body) => body,
        Err(rejection) => return refused(rejection.status(), &rejection.body_text()),
    };
    let header_rank = match headers.get(RANK_HEADER).map(|value| value.to_str().unwrap_or_default().parse()) {
        None => None,
        Some(Ok(rank)) => Some(rank),
        Some(Err(_)) => return refused(StatusCode::BAD_REQUEST, "x-data-parallel-rank is not a rank"),
    };
    let (stream, include_usage, with_ids) = (body.stream, body.stream_options.include_usage, body.return_token_ids);
    let request = body.into_request(engine.config(), header_rank);
    let prompt_tokens = request.prompt.len();
    let completion = match engine.complete(request) {
        Ok(completion) => completion,
        Err(error) => return error.into_response(),
    };
    let face = Face { engine, id: format!("cmpl-{}", uuid::Uuid::new_v4().simple()), created: unix_time() };
    if stream {
        face.stream(completion, prompt_tokens, include_usage, with_ids)
    } else {
        face.whole(completion, prompt_tokens, with_ids).await
    }
}

/// What all parts of one answer share.
struct Face {
    engine: Arc<Shared>,
    id: String,
    created: u64,
}

impl Face {
    fn answer(&self, choices: Vec<Choice>, usage: Option<Usage>) -> Answer<'_> {
        let model = &self.engine.config().model;
        Answer { id: &self.id, object: "text_completion", created: self.created, model, choices, usage }
    }

    async fn whole(&self, completion: Completion, prompt_tokens: usize, with_ids: bool) -> Response {
        match completion.finish().await {
            Ok(done) => {
                let usage = Usage::new(prompt_tokens, done.tokens.len(), done.cached_tokens);
                let choice = Choice::new(&done.tokens, true, with_ids);
                Json(self.answer(vec![choice], Some(usage))).into_response()
            }
            Err(error) => error.into_response(),
        }
    }

    /// A token an event, then the usage if asked for, then the end mark.
    fn stream(self, completion: Completion, prompt_tokens: usize, include_usage: bool, with_ids: bool) -> Response {
        enum Stage {
            Tokens(Completion, usize),
            Usage(usize, usize),
            End,
        }
        let events = futures_util::stream::unfold(Some(Stage::Tokens(completion, 0)), move |stage| {
            let data = |answer: &Answer<'_>| {
                Event::default().data(serde_json::to_string(answer).expect("an answer is plain data"))
            };
            let face = Face { engine: Arc::clone(&self.engine), id: self.id.clone(), created: self.created };
            async move {
                let (event, next) = match stage? {
                    Stage::Tokens(mut completion, count) => {
                        // A stream that the restart cut off ends without its end mark.
                        let output = completion.next().await?;
                        let choice = Choice::new(&[output.token], output.finished, with_ids);
                        let next = match (output.finished, include_usage) {
                            (false, _) => Stage::Tokens(completion, count + 1),
                            (true, true) => Stage::Usage(count + 1, output.cached_tokens),
                            (true, false) => Stage::End,
                        };
                        (data(&face.answer(vec![choice], None)), Some(next))
                    }
                    Stage::Usage(count, cached) => {
                        let usage = Usage::new(prompt_tokens, count, cached);
                        (data(&face.answer(Vec::new(), Some(usage))), Some(Stage::End))
                    }
                    Stage::End => (Event::default().data("[DONE]"), None),
                };
                Some((Ok::<_, Infallible>(event), next))
            }
        });
        Sse::new(events).into_response()
    }
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
