//! Settings of the core, validated once (spec scheduling 1.2, spec http 1).

use std::time::Duration;

/// How own decisions age out of the approximate index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApproximateCachePolicy {
    /// By time.
    #[default]
    Ttl,
    /// By capacity; falls back to time here, as the reference does.
    Lru,
}

/// Order of the queue's one synthetic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Last come, first served.
    Lcfs,
    /// Shortest uncached prompt first.
    Wspt,
}

/// How tracking hashes are made.
#[derive(Clone, Default)]
pub enum TrackingHash {
    /// Equal to the index's hashes.
    #[default]
    PublicXxh3V1,
    /// Keyed, so that tenants cannot correlate prompts.
    KeyedXxh3V1 {
        /// 32 raw bytes, wiped on drop, never printed.
        key: zeroize::Zeroizing<[u8; 32]>,
        /// Key epoch, not empty, no surrounding white space.
        key_id: String,
    },
}

impl std::fmt::Debug for TrackingHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PublicXxh3V1 => f.write_str("public-xxh3-v1"),
            Self::KeyedXxh3V1 { key_id, .. } => write!(f, "keyed-xxh3-v1(key_id={key_id}, key=redacted)"),
        }
    }
}

/// All settings of a core. `Default` is what an unconfigured selector runs.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "named after the settings of spec scheduling 1.2")]
pub struct SelectionConfig {
    pub overlap_score_credit: f64,
    pub overlap_score_credit_decay: f64,
    pub prefill_load_scale: f64,
    pub decode_active_request_weight: f64,
    pub host_cache_hit_weight: f64,
    pub disk_cache_hit_weight: f64,
    pub router_temperature: f64,
    pub use_kv_events: bool,
    pub assume_kv_reuse: bool,
    pub track_prefill_tokens: bool,
    pub tracking_hash: TrackingHash,
    pub ttl: Duration,
    pub approximate_cache_policy: ApproximateCachePolicy,
    pub predicted_ttl: Option<Duration>,
    pub queue_threshold: Option<f64>,
    pub queue_policy: QueuePolicy,
    pub prefill_busy_threshold: Option<f64>,
    pub decode_busy_threshold: Option<f64>,
    pub active_request_expiry: Option<Duration>,
    pub session_affinity_ttl: Option<Duration>,
    pub selection_cache_ttl: Duration,
    pub selection_cache_max_entries: usize,
    pub selection_cache_max_bytes: usize,
    /// Seed of tie breaks and random hashes; random when absent.
    pub seed: Option<u64>,
}

impl Default for SelectionConfig {
    fn default() -> Self {
        Self {
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            host_cache_hit_weight: 0.75,
            disk_cache_hit_weight: 0.25,
            router_temperature: 0.0,
            use_kv_events: true,
            assume_kv_reuse: true,
            track_prefill_tokens: true,
            tracking_hash: TrackingHash::PublicXxh3V1,
            ttl: Duration::from_secs(120),
            approximate_cache_policy: ApproximateCachePolicy::Ttl,
            predicted_ttl: None,
            queue_threshold: None,
            queue_policy: QueuePolicy::Fcfs,
            prefill_busy_threshold: None,
            decode_busy_threshold: None,
            active_request_expiry: Some(Duration::from_secs(300)),
            session_affinity_ttl: None,
            selection_cache_ttl: Duration::from_secs(120),
            selection_cache_max_entries: 4096,
            selection_cache_max_bytes: 268_435_456,
            seed: None,
        }
    }
}

/// A setting out of its range; the text names it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl SelectionConfig {
    /// Checks ranges and combinations.
    ///
    /// # Errors
    /// The first violation, in the words of spec scheduling 1.2.
    pub fn validate(&self) -> Result<(), ConfigError> {
        todo!()
    }
}
