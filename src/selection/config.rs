//! Settings of the core, validated once (spec scheduling 1.2, spec http 1).

use std::{str::FromStr, sync::Arc, time::Duration};

mod tracking;

use tracking::check_key_id;
pub use tracking::{TrackingAlgorithm, TrackingOptions};

pub use super::{error::ConfigError, hash::TrackingHash, queue::QueuePolicy};
use super::{
    policy::classifier::parameters::RequestClassifierConfig,
    policy::instances::{WorkerSelectionConfig, WorkerSelectionOverrides},
    queue::{QueueLimits, profile::PolicyProfiles},
    request::RouterConfigOverride,
};

/// How own decisions age out of the approximate index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApproximateCachePolicy {
    /// By time.
    #[default]
    Ttl,
    /// By capacity; falls back to time here, as the reference does.
    Lru,
}

impl FromStr for ApproximateCachePolicy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "ttl" => Ok(Self::Ttl),
            "lru" => Ok(Self::Lru),
            _ => Err(ConfigError(format!("unknown approximate cache policy {text:?}, expected 'ttl' or 'lru'"))),
        }
    }
}

/// What a session's binding is to the selections of that session (spec plugins 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAffinityMode {
    /// Law: bookings go to the bound rank, or fail when a constraint forbids it.
    #[default]
    Hard,
    /// Advice: the policy sees the binding as its affinity target and may choose another rank, to which the session is
    /// bound once that booking stands.
    Soft,
}

impl FromStr for SessionAffinityMode {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "hard" => Ok(Self::Hard),
            "soft" => Ok(Self::Soft),
            _ => Err(ConfigError(format!("invalid session affinity mode {text:?}; expected 'hard' or 'soft'"))),
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
    /// Policy classes; a model without a profile gets one class of `queue_threshold` and `queue_policy`.
    pub profiles: PolicyProfiles,
    /// The `worker_selection` section of the policy document.
    pub worker_selection: Option<Arc<WorkerSelectionConfig>>,
    /// Choices by flag and environment, which go before it.
    pub worker_selection_overrides: WorkerSelectionOverrides,
    /// The `request_classifier` section of the policy document.
    pub request_classifier: Option<Arc<RequestClassifierConfig>>,
    /// Most that waits in one partition.
    pub queue_limits: QueueLimits,
    /// Wait after which a request's cached blocks are looked up again; `None` = never.
    pub overlap_refresh_after: Option<Duration>,
    pub prefill_busy_threshold: Option<f64>,
    pub decode_busy_threshold: Option<f64>,
    pub active_request_expiry: Option<Duration>,
    pub session_affinity_ttl: Option<Duration>,
    pub session_affinity_mode: SessionAffinityMode,
    pub selection_cache_ttl: Duration,
    pub selection_cache_max_entries: usize,
    pub selection_cache_max_bytes: usize,
    /// Seed of tie breaks and random hashes; random when absent.
    pub seed: Option<u64>,
}

/// Wait after which a request's cached blocks are looked up again, unless set otherwise.
const DEFAULT_OVERLAP_REFRESH_AFTER: Duration = Duration::from_secs(10);

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
            profiles: PolicyProfiles::default(),
            worker_selection: None,
            worker_selection_overrides: WorkerSelectionOverrides::default(),
            request_classifier: None,
            queue_limits: QueueLimits::default(),
            overlap_refresh_after: Some(DEFAULT_OVERLAP_REFRESH_AFTER),
            prefill_busy_threshold: None,
            decode_busy_threshold: None,
            active_request_expiry: Some(Duration::from_secs(300)),
            session_affinity_ttl: None,
            session_affinity_mode: SessionAffinityMode::Hard,
            selection_cache_ttl: Duration::from_secs(120),
            selection_cache_max_entries: 4096,
            selection_cache_max_bytes: 268_435_456,
            seed: None,
        }
    }
}

impl RouterConfigOverride {
    /// Checks ranges, as decoding a request does.
    ///
    /// # Errors
    /// The first violation, in the words of spec http 3.2.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check(self.overlap_score_credit.is_none_or(finite_non_negative), || CREDIT_TEXT.to_owned())?;
        for (name, value) in [
            ("prefill_load_scale", self.prefill_load_scale),
            ("prefill_load_scale", self.overlap_score_weight),
            ("router_temperature", self.router_temperature),
        ] {
            check(value.is_none_or(finite_non_negative), || format!("{name} must be finite and non-negative"))?;
        }
        check(self.shared_cache_multiplier.is_none_or(|v| (0.0..=1.0).contains(&v)), || {
            "shared_cache_multiplier must be between 0 and 1".to_owned()
        })
    }
}

/// Longest a session may stay bound while idle, in seconds.
pub const MAX_SESSION_AFFINITY_TTL_SECS: u64 = 31_536_000;

impl SelectionConfig {
    /// Checks ranges and combinations.
    ///
    /// # Errors
    /// The first violation, in the words of spec scheduling 1.2.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check(finite_non_negative(self.overlap_score_credit), || CREDIT_TEXT.to_owned())?;
        for (name, value) in [
            ("overlap_score_credit_decay", self.overlap_score_credit_decay),
            ("prefill_load_scale", self.prefill_load_scale),
            ("decode_active_request_weight", self.decode_active_request_weight),
            ("router_temperature", self.router_temperature),
        ] {
            check(finite_non_negative(value), || format!("{name} must be finite and non-negative"))?;
        }
        for (name, value) in [
            ("host_cache_hit_weight", self.host_cache_hit_weight),
            ("disk_cache_hit_weight", self.disk_cache_hit_weight),
        ] {
            check((0.0..=1.0).contains(&value), || format!("{name} must be between 0 and 1"))?;
        }
        for (name, value) in [
            ("router_queue_threshold", self.queue_threshold),
            ("conditional_disagg_prefill_busy_threshold", self.prefill_busy_threshold),
            ("conditional_disagg_decode_busy_threshold", self.decode_busy_threshold),
        ] {
            // Infinity is a threshold nothing exceeds; only NaN and negative values are refused.
            check(value.is_none_or(|v| v >= 0.0), || format!("{name} must be greater than or equal to 0"))?;
        }
        check(self.predicted_ttl.is_none() || self.use_kv_events, || {
            "router_predicted_ttl_secs requires use_kv_events=true; an approximate index predicts already".to_owned()
        })?;
        check(self.approximate_cache_policy != ApproximateCachePolicy::Lru || !self.use_kv_events, || {
            "router_approximate_cache_policy=lru requires use_kv_events=false; the local side indexer is TTL-only"
                .to_owned()
        })?;
        if let Some(ttl) = self.session_affinity_ttl {
            check(
                (Duration::from_secs(1)..=Duration::from_secs(MAX_SESSION_AFFINITY_TTL_SECS)).contains(&ttl),
                || format!("session_affinity_ttl_secs must be between 1 and {MAX_SESSION_AFFINITY_TTL_SECS}"),
            )?;
        }
        if let TrackingHash::KeyedXxh3V1 { key_id, .. } = &self.tracking_hash {
            check_key_id(Some(key_id))?;
        }
        Ok(())
    }

    /// The deprecated single weight: sets the prefill scale, and the credit to 0 when it is 0.
    pub fn set_overlap_score_weight(&mut self, weight: f64) {
        self.prefill_load_scale = weight;
        if weight == 0.0 {
            self.overlap_score_credit = 0.0;
        }
    }
}

const CREDIT_TEXT: &str = "overlap_score_credit must be a finite, non-negative number";

fn finite_non_negative(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

fn check(ok: bool, text: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if ok { Ok(()) } else { Err(ConfigError(text())) }
}

/// `1 true yes on` and `0 false no off`, in any case, surrounding blanks ignored; `None` for anything else.
pub fn parse_bool(text: &str) -> Option<bool> {
    let text = text.trim();
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(["1", "true", "yes", "on"]) {
        Some(true)
    } else if is(["0", "false", "no", "off"]) {
        Some(false)
    } else {
        None
    }
}

/// A setting in seconds. Values beyond what a [`Duration`] holds saturate.
///
/// # Errors
/// Negative or not a number; the text names `field`.
pub fn seconds(field: &str, secs: f64) -> Result<Duration, ConfigError> {
    check(secs >= 0.0, || format!("{field} must be greater than or equal to 0"))?;
    Ok(Duration::try_from_secs_f64(secs).unwrap_or(Duration::MAX))
}

/// Wait before cached blocks are looked up again, from its environment text: seconds, where zero, less, or what is no
/// span of time means never, and what is no number means the default of 10.
///
/// # Errors
/// What is no number; the default counts.
pub fn overlap_refresh_after(text: &str) -> Result<Option<Duration>, Duration> {
    let secs: f64 = text.parse().map_err(|_| DEFAULT_OVERLAP_REFRESH_AFTER)?;
    Ok(Duration::try_from_secs_f64(secs).ok().filter(|span| !span.is_zero()))
}

/// Age of stale bookings from its environment text: whole seconds above 0, else the default of 300.
pub fn active_request_expiry(text: &str) -> Duration {
    match text.parse::<u64>() {
        Ok(secs) if secs > 0 => Duration::from_secs(secs),
        _ => Duration::from_secs(300),
    }
}

#[cfg(test)]
mod tests;
