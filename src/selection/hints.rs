//! KV hints: where a chosen worker can fetch a longer prefix from (spec http 11), in the form that engines take.

use std::sync::Arc;

use serde::Serialize;

/// A hint in the wire form engines take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct KvHint {
    /// `"0.1"`.
    pub protocol_version: &'static str,
    /// The selection id.
    pub message_id: Arc<str>,
    /// One fetch.
    pub actions: Vec<KvHintAction>,
}

/// One action of a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct KvHintAction {
    /// `"a1"`.
    pub action_id: &'static str,
    /// `"kv.fetch"`.
    pub action_type: &'static str,
    /// `"1.0"`.
    pub action_version: &'static str,
    /// What and where from.
    pub payload: KvFetch,
}

/// What to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct KvFetch {
    /// Engine hashes of blocks `0..n` of the source's prefix.
    pub block_hashes: Vec<u64>,
    /// Control endpoint of the source rank.
    pub source_control_endpoint: String,
}
