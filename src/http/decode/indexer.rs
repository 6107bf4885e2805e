//! Bodies of the standalone indexer's routes (spec index 9).

use serde::Deserialize;
use utoipa::ToSchema;

use super::{BodyError, decode, decode_fast, wire::Prompted};
use crate::selection::{
    instance::{InstanceRank, InstanceRemoval},
    request::PromptInput,
};

fn default_name() -> String {
    "default".to_owned()
}

/// `POST /register`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RegisterRequest {
    /// The instance; shares its numbers with workers.
    pub instance_id: u64,
    /// ZMQ endpoint of the publisher.
    pub endpoint: String,
    /// Model name.
    pub model_name: String,
    /// Tokens a block.
    pub block_size: u32,
    /// Routing group.
    #[serde(default = "default_name")]
    pub routing_group: String,
    /// Rank; 0 when absent.
    pub dp_rank: Option<u32>,
    /// ZMQ endpoint of the replay socket.
    pub replay_endpoint: Option<String>,
}

impl From<RegisterRequest> for InstanceRank {
    fn from(wire: RegisterRequest) -> Self {
        Self {
            instance_id: wire.instance_id,
            dp_rank: wire.dp_rank.unwrap_or(0),
            model_name: wire.model_name,
            routing_group: wire.routing_group,
            block_size: wire.block_size,
            endpoint: wire.endpoint,
            replay_endpoint: wire.replay_endpoint,
        }
    }
}

/// `POST /unregister`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct UnregisterRequest {
    /// The instance.
    pub instance_id: u64,
    /// Model it is registered for.
    pub model_name: String,
    /// Group it is registered for; any when absent.
    pub routing_group: Option<String>,
    /// One rank only; counts with a routing group alone.
    pub dp_rank: Option<u32>,
}

impl From<UnregisterRequest> for InstanceRemoval {
    fn from(wire: UnregisterRequest) -> Self {
        Self {
            instance_id: wire.instance_id,
            model_name: wire.model_name,
            routing_group: wire.routing_group,
            dp_rank: wire.dp_rank,
        }
    }
}

/// `POST /query`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct QueryRequest {
    /// Prompt.
    pub token_ids: Vec<u32>,
    /// Model name.
    pub model_name: String,
    /// Routing group.
    #[serde(default = "default_name")]
    pub routing_group: String,
    /// LoRA adapter; empty equals absent.
    pub lora_name: Option<String>,
    /// Cache salt; empty equals absent.
    pub cache_salt: Option<String>,
}

/// `POST /query_by_hash`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct HashQueryRequest {
    /// Content hashes of whole blocks, bits of a u64; adapter and salt are in them.
    pub block_hashes: Vec<i64>,
    /// Model name.
    pub model_name: String,
    /// Routing group.
    #[serde(default = "default_name")]
    pub routing_group: String,
    /// Refused, whatever it is.
    pub cache_salt: Option<String>,
}

/// `POST /test/pause_listener`, `POST /test/resume_listener`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ListenerRequest {
    /// The instance.
    pub instance_id: u64,
    /// Rank; 0 when absent.
    pub dp_rank: Option<u32>,
}

/// `POST /register_peer`, `POST /deregister_peer`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct IndexerPeerRequest {
    /// Base URL of another indexer.
    pub url: String,
}

/// What both queries share, their arrays read apart.
#[derive(Deserialize)]
struct Query {
    model_name: String,
    #[serde(default = "default_name")]
    routing_group: String,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    #[serde(skip)]
    prompt: PromptInput,
}

impl Prompted for Query {
    fn prompt_mut(&mut self) -> &mut PromptInput {
        &mut self.prompt
    }
}

/// Decodes a query by tokens.
///
/// # Errors
/// [`BodyError`].
pub fn decode_query(body: &[u8]) -> Result<QueryRequest, BodyError> {
    match decode_fast::<Query>(body) {
        Some(Query { model_name, routing_group, lora_name, cache_salt, prompt }) if prompt.token_ids.is_some() => {
            let token_ids = prompt.token_ids.unwrap_or_default();
            Ok(QueryRequest { token_ids, model_name, routing_group, lora_name, cache_salt })
        }
        _ => decode(body),
    }
}

/// Decodes a query by hashes.
///
/// # Errors
/// [`BodyError`].
pub fn decode_hash_query(body: &[u8]) -> Result<HashQueryRequest, BodyError> {
    match decode_fast::<Query>(body) {
        // The adapter is no member of this body, so its type does not matter.
        Some(Query { model_name, routing_group, cache_salt, prompt, .. }) if prompt.block_hashes.is_some() => {
            let block_hashes = prompt.block_hashes.unwrap_or_default();
            Ok(HashQueryRequest { block_hashes, model_name, routing_group, cache_salt })
        }
        _ => decode(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_reading_a_query_agree() {
        for body in [
            r#"{"model_name": "m", "token_ids": [1, 2, 4294967295]}"#,
            r#"{"token_ids": [], "model_name": "m", "routing_group": "g", "lora_name": "l", "cache_salt": null}"#,
            r#"{"model_name": "m", "token_ids": [1, -2]}"#,
            r#"{"model_name": "m"}"#,
            r#"{"model_name": "m", "token_ids": null}"#,
            r#"{"token_ids": [1]}"#,
            r#"{"model_name": "m", "token_ids": [1], "routing_group": null}"#,
            r#"{"model_name": "m", "token_ids": [1], "token_ids": [2]}"#,
            r#"{"model_name": "m", "token_ids": [1], "block_hashes": "x"}"#,
            r#"{"model_name": "m", "token_ids": [1"#,
        ] {
            let plain = decode::<QueryRequest>(body.as_bytes()).map(|query| format!("{query:?}"));
            assert_eq!(decode_query(body.as_bytes()).map(|query| format!("{query:?}")), plain, "{body}");
        }
        for body in [
            r#"{"model_name": "m", "block_hashes": [-1, 9223372036854775807]}"#,
            r#"{"model_name": "m", "block_hashes": [9223372036854775808]}"#,
            r#"{"model_name": "m", "block_hashes": [1], "cache_salt": 7}"#,
            r#"{"model_name": "m", "block_hashes": [1], "lora_name": 7}"#,
            r#"{"model_name": "m", "token_ids": [1]}"#,
        ] {
            let plain = decode::<HashQueryRequest>(body.as_bytes()).map(|query| format!("{query:?}"));
            assert_eq!(decode_hash_query(body.as_bytes()).map(|query| format!("{query:?}")), plain, "{body}");
        }
    }
}
