//! Bodies of the engine's HTTP routes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{config::EngineConfig, event::Namespace, mock::CompletionRequest};

/// Tokens generated when a request names no number, as in the OpenAI API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// `POST /v1/completions`. Fields that change nothing here (temperature and the like) are passed over.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionBody {
    model: Option<String>,
    prompt: Prompt,
    max_tokens: Option<usize>,
    #[serde(default)]
    pub stream: bool,
    #[serde(default)]
    pub stream_options: StreamOptions,
    /// Tenant's salt, as in vLLM.
    cache_salt: Option<String>,
    data_parallel_rank: Option<u32>,
    /// Whether choices carry their token ids, as in vLLM.
    #[serde(default)]
    pub return_token_ids: bool,
}

/// What a stream ends with.
#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub include_usage: bool,
}

/// A prompt as token ids or as text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Tokens(Vec<u32>),
    OneOfOne([Vec<u32>; 1]),
    Text(String),
}

impl CompletionBody {
    /// The request; `header_rank` counts when the body names no rank.
    pub(super) fn into_request(self, config: &EngineConfig, header_rank: Option<u32>) -> CompletionRequest {
        let prompt = match self.prompt {
            Prompt::Tokens(tokens) | Prompt::OneOfOne([tokens]) => tokens,
            // One token a byte: enough for texts to share prefixes.
            Prompt::Text(text) => text.bytes().map(u32::from).collect(),
        };
        let lora_name = self.model.filter(|model| *model != config.model).map(Into::into);
        CompletionRequest {
            prompt,
            max_tokens: self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
            namespace: Namespace { lora_name, cache_salt: self.cache_salt.map(Into::into) },
            rank: self.data_parallel_rank.or(header_rank),
        }
    }
}

/// `usage` of an answer.
#[derive(Debug, Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl Usage {
    pub(super) fn new(prompt_tokens: usize, completion_tokens: usize, cached_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

/// One answer, or one chunk of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Answer<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The one choice of an answer.
#[derive(Debug, Serialize)]
pub(super) struct Choice {
    pub index: u32,
    pub text: String,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

impl Choice {
    /// `tokens` as text and, when asked for, as numbers.
    pub(super) fn new(tokens: &[u32], finished: bool, with_ids: bool) -> Self {
        let text = tokens.iter().map(|token| format!(" t{token}")).collect();
        Self {
            index: 0,
            text,
            finish_reason: finished.then_some("length"),
            token_ids: with_ids.then(|| tokens.to_vec()),
        }
    }
}

/// `GET /kv_event_sources` as vLLM answers it: the configuration of every rank's publisher.
pub(super) fn kv_event_sources(config: &EngineConfig, ports: impl Iterator<Item = (u16, Option<u16>)>) -> Value {
    let host = bind_host(config);
    let sources = (0u32..).zip(ports).map(|(rank, (events, replay))| {
        let source = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": format!("tcp://{host}:{events}"),
            "replay_endpoint": replay.map(|port| format!("tcp://{host}:{port}")),
            "buffer_steps": config.replay_batches,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": config.topic,
        });
        (rank.to_string(), source)
    });
    Value::Object(sources.collect())
}

/// `GET /server_info` as SGLang answers it, as far as event consumers read it.
pub(super) fn server_info(config: &EngineConfig, mut ports: impl Iterator<Item = (u16, Option<u16>)>) -> Value {
    let (events, replay) = ports.next().unwrap_or_default();
    let mut kv_events = json!({
        "publisher": "zmq",
        "endpoint_host": bind_host(config),
        "endpoint_port_base": events,
        "topic": config.topic,
        "block_size": config.block_size,
        "dp_size": config.ranks,
    });
    if let Some(replay) = replay {
        kv_events["replay_endpoint_port_base"] = replay.into();
    }
    json!({
        "model_path": config.model,
        "served_model_name": config.model,
        "page_size": config.block_size,
        "dp_size": config.ranks,
        "max_total_num_tokens": u64::from(config.num_blocks) * u64::from(config.block_size),
        "kv_events": kv_events,
    })
}

/// The host as engines write it into their endpoints.
fn bind_host(config: &EngineConfig) -> String {
    match config.host.as_str() {
        "0.0.0.0" | "::" => "*".into(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    }
}
