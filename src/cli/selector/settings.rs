//! Defaults, environment, flags and policy document put together (spec scheduling 1.1): the document's `router:` section
//! wins over a flag, a flag over a `DYN_*` name, and that over the default. Ranges that belong to the core are checked by
//! the core.

use std::time::Duration;

use super::{
    flags::{SelectorArgs, parse_cache_policy, parse_queue_policy},
    policy::{self, Policies},
    tracking::{self, Algorithm},
};
use crate::{
    cli::environment::Environment,
    selection::{
        SelectionConfig,
        config::{ApproximateCachePolicy, SessionAffinityMode, TrackingHash, overlap_refresh_after},
        policy::{
            document::{RouterSettings, check_combination},
            registry::RouterPluginRegistry,
        },
        queue::QueueLimits,
    },
};

/// What the reference takes a stale booking's age to be when the variable is no positive integer.
const DEFAULT_EXPIRY_SECS: u64 = 300;
/// Bounds of a session's time to live, inclusive, in seconds.
const SESSION_TTL_SECS: std::ops::RangeInclusive<f64> = 1.0..=31_536_000.0;

/// The merged settings, and what a user should hear about them.
#[derive(Debug)]
pub struct Settings {
    /// For the core, not yet validated by it.
    pub selection: SelectionConfig,
    /// Lines for the log, most important first.
    pub warnings: Vec<String>,
    /// Policies by role, and the document they are from.
    pub policies: Policies,
}

/// Merges. The policy document is read, and what it chooses is looked up in `registry`.
///
/// # Errors
/// The text of the first setting that is refused.
pub fn resolve(
    args: &SelectorArgs,
    env: &Environment<'_>,
    registry: &RouterPluginRegistry,
) -> Result<Settings, String> {
    let mut warnings = env.deprecations();
    let document = policy::load(&args.policy, env)?;
    check_settings_without_effect(env, &mut warnings)?;

    let mut selection = SelectionConfig::default();
    apply_environment(&mut selection, env, &mut warnings)?;
    apply_flags(&mut selection, args)?;

    // The environment's word is checked even where a flag replaces it, as in the reference.
    let inherited = env.word("DYN_ROUTER_TRACKING_HASH", Algorithm::parse)?;
    let modelled = env.word("DYN_ROUTER_PREFILL_LOAD_MODEL", |word| match word {
        "none" | "ais" | "aic" => Ok(word.to_owned()),
        other => Err(format!("unknown prefill load model: {other:?}, expected 'none' or 'ais'")),
    })?;
    let tracking = &args.tracking;
    let algorithm = tracking.router_tracking_hash.or(inherited).unwrap_or(Algorithm::Public);
    let key_file = tracking.router_tracking_key_file.clone().or_else(|| env.text("DYN_ROUTER_TRACKING_KEY_FILE"));
    let key_id = tracking.router_tracking_key_id.clone().or_else(|| env.text("DYN_ROUTER_TRACKING_KEY_ID"));
    let given = RouterSettings {
        router_tracking_hash: Some(algorithm.word().to_owned()),
        router_tracking_key_file: Some(key_file),
        router_tracking_key_id: Some(key_id),
        router_prefill_load_model: Some(modelled.unwrap_or_else(|| "none".to_owned())),
        ..given_settings(&selection, env)
    };
    let router = match &document {
        Some(document) => document.router.or(&given),
        None => given.clone(),
    };
    check_combination(&router)?;
    apply_router(&mut selection, &router)?;
    selection.tracking_hash = tracking_hash(&router)?;
    if selection.session_affinity_mode == SessionAffinityMode::Soft && selection.session_affinity_ttl.is_none() {
        warnings.push("soft session affinity has no effect without --session-affinity-ttl-secs".to_owned());
    }
    let policies = policy::resolve(args, env, registry, &mut selection, document, given, &mut warnings)?;
    Ok(Settings { selection, warnings, policies })
}

/// The settings a document may decide, as flags and environment leave them.
fn given_settings(config: &SelectionConfig, env: &Environment<'_>) -> RouterSettings {
    let word = match config.approximate_cache_policy {
        ApproximateCachePolicy::Ttl => "ttl",
        ApproximateCachePolicy::Lru => "lru",
    };
    let boolean = |name: &str, default: bool| Some(env.boolean(name).unwrap_or(default));
    RouterSettings {
        host_cache_hit_weight: Some(config.host_cache_hit_weight),
        disk_cache_hit_weight: Some(config.disk_cache_hit_weight),
        use_kv_events: Some(config.use_kv_events),
        router_replica_sync: boolean("DYN_ROUTER_REPLICA_SYNC", false),
        router_track_active_blocks: boolean("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", true),
        router_track_output_blocks: boolean("DYN_ROUTER_TRACK_OUTPUT_BLOCKS", false),
        router_assume_kv_reuse: Some(config.assume_kv_reuse),
        router_track_prefill_tokens: Some(config.track_prefill_tokens),
        router_tracking_hash: None,
        router_tracking_key_file: None,
        router_tracking_key_id: None,
        router_prefill_load_model: None,
        router_ttl_secs: Some(config.ttl.as_secs_f64()),
        router_approximate_cache_policy: Some(word.to_owned()),
        router_event_threads: Some(env.number("DYN_ROUTER_EVENT_THREADS").unwrap_or(4)),
        use_remote_indexer: boolean("DYN_USE_REMOTE_INDEXER", false),
        serve_indexer: Some(false),
        enable_session_prefix_index: boolean("DYN_ENABLE_SESSION_PREFIX_INDEX", false),
        shared_cache_type: Some(env.text("DYN_SHARED_CACHE_TYPE").unwrap_or_else(|| "none".to_owned())),
        router_predicted_ttl_secs: Some(config.predicted_ttl.map(|ttl| ttl.as_secs_f64())),
    }
}

/// The settings that act here. The others are the frontend's: they are checked, and say nothing to a selector.
fn apply_router(config: &mut SelectionConfig, router: &RouterSettings) -> Result<(), String> {
    for (place, value) in [
        (&mut config.host_cache_hit_weight, router.host_cache_hit_weight),
        (&mut config.disk_cache_hit_weight, router.disk_cache_hit_weight),
    ] {
        *place = value.unwrap_or(*place);
    }
    for (place, value) in [
        (&mut config.use_kv_events, router.use_kv_events),
        (&mut config.assume_kv_reuse, router.router_assume_kv_reuse),
        (&mut config.track_prefill_tokens, router.router_track_prefill_tokens),
    ] {
        *place = value.unwrap_or(*place);
    }
    if let Some(seconds) = router.router_ttl_secs {
        config.ttl = lifetime("router_ttl_secs", seconds)?;
    }
    if let Some(seconds) = router.router_predicted_ttl_secs {
        config.predicted_ttl = seconds.map(|seconds| lifetime("router_predicted_ttl_secs", seconds)).transpose()?;
    }
    if let Some(word) = &router.router_approximate_cache_policy {
        config.approximate_cache_policy = parse_cache_policy(word)?;
    }
    Ok(())
}

fn tracking_hash(router: &RouterSettings) -> Result<TrackingHash, String> {
    let algorithm = router.router_tracking_hash.as_deref().map(Algorithm::parse).transpose()?;
    let key_file = router.router_tracking_key_file.clone().flatten();
    let key_id = router.router_tracking_key_id.clone().flatten();
    tracking::resolve(algorithm.unwrap_or(Algorithm::Public), key_file.as_deref(), key_id)
}

fn apply_environment(
    config: &mut SelectionConfig,
    env: &Environment<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    fn set<T>(place: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *place = value;
        }
    }
    set(&mut config.overlap_score_credit, env.number("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT"));
    set(&mut config.overlap_score_credit_decay, env.number("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY"));
    set(&mut config.prefill_load_scale, env.number("DYN_ROUTER_PREFILL_LOAD_SCALE"));
    set(&mut config.decode_active_request_weight, env.number("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT"));
    set(&mut config.host_cache_hit_weight, env.number("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT"));
    set(&mut config.disk_cache_hit_weight, env.number("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT"));
    set(&mut config.router_temperature, env.number("DYN_ROUTER_TEMPERATURE"));
    // The weight of old replaces the scale; 0 also switches cache credit off.
    let legacy: Option<f64> =
        env.number("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT").or_else(|| env.number("DYN_OVERLAP_SCORE_WEIGHT"));
    if let Some(weight) = legacy {
        config.prefill_load_scale = weight;
        if weight == 0.0 {
            config.overlap_score_credit = 0.0;
        }
    }
    set(
        &mut config.use_kv_events,
        env.boolean("DYN_ROUTER_USE_KV_EVENTS").or_else(|| env.boolean("DYN_USE_KV_EVENTS")),
    );
    set(&mut config.assume_kv_reuse, env.boolean("DYN_ROUTER_ASSUME_KV_REUSE"));
    set(&mut config.track_prefill_tokens, env.boolean("DYN_ROUTER_TRACK_PREFILL_TOKENS"));
    set(&mut config.approximate_cache_policy, env.word("DYN_ROUTER_APPROXIMATE_CACHE_POLICY", parse_cache_policy)?);
    set(&mut config.queue_policy, env.word("DYN_ROUTER_QUEUE_POLICY", parse_queue_policy)?);
    config.queue_threshold = env.number("DYN_ROUTER_QUEUE_THRESHOLD");
    if config.queue_threshold.is_none()
        && let Some(text) = env.trimmed("DYN_ROUTER_QUEUE_THRESHOLD").filter(|text| text != "None")
    {
        // The reference starts without a word; nobody should learn of it under load. `None` is how people unset it.
        warnings.push(format!("DYN_ROUTER_QUEUE_THRESHOLD={text:?} is no number: QUEUEING IS OFF, nothing ever waits"));
    }
    if let Some(text) = env.text("DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS") {
        config.overlap_refresh_after = overlap_refresh_after(&text).unwrap_or_else(|default| {
            warnings.push(format!(
                "DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS={text:?} is no number of seconds; using {}",
                default.as_secs()
            ));
            Some(default)
        });
    }
    config.prefill_busy_threshold = env.number("DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD");
    config.decode_busy_threshold = env.number("DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD");
    if let Some(seconds) = env.number("DYN_ROUTER_TTL_SECS") {
        config.ttl = lifetime("router_ttl_secs", seconds)?;
    }
    if let Some(seconds) = env.number("DYN_ROUTER_PREDICTED_TTL_SECS") {
        config.predicted_ttl = Some(lifetime("router_predicted_ttl_secs", seconds)?);
    }
    if let Some(text) = env.text("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS") {
        let seconds = text.parse().ok().filter(|s| *s > 0).unwrap_or_else(|| {
            warnings.push(format!(
                "DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS={text:?} is no positive integer; using {DEFAULT_EXPIRY_SECS}"
            ));
            DEFAULT_EXPIRY_SECS
        });
        config.active_request_expiry = Some(Duration::from_secs(seconds));
    }
    Ok(())
}

fn apply_flags(config: &mut SelectionConfig, args: &SelectorArgs) -> Result<(), String> {
    let routing = &args.routing;
    for (place, flag) in [
        (&mut config.overlap_score_credit, routing.router_kv_overlap_score_credit),
        (&mut config.overlap_score_credit_decay, routing.router_kv_overlap_score_credit_decay),
        (&mut config.prefill_load_scale, routing.router_prefill_load_scale),
        (&mut config.decode_active_request_weight, routing.router_decode_active_request_weight),
        (&mut config.host_cache_hit_weight, routing.router_host_cache_hit_weight),
        (&mut config.disk_cache_hit_weight, routing.router_disk_cache_hit_weight),
        (&mut config.router_temperature, routing.router_temperature),
    ] {
        *place = flag.unwrap_or(*place);
    }
    for (place, yes, no) in [
        (&mut config.use_kv_events, routing.router_kv_events, routing.no_router_kv_events),
        (&mut config.assume_kv_reuse, routing.router_assume_kv_reuse, routing.no_router_assume_kv_reuse),
        (&mut config.track_prefill_tokens, routing.router_track_prefill_tokens, routing.no_router_track_prefill_tokens),
    ] {
        *place = (*place || yes) && !no;
    }
    if let Some(policy) = routing.router_approximate_cache_policy {
        config.approximate_cache_policy = policy;
    }
    if let Some(policy) = routing.router_queue_policy {
        config.queue_policy = policy;
    }
    config.queue_threshold = routing.router_queue_threshold.or(config.queue_threshold);
    config.queue_limits = QueueLimits { requests: routing.queue_max_requests, tokens: routing.queue_max_tokens };
    if let Some(seconds) = routing.router_ttl_secs {
        config.ttl = lifetime("router_ttl_secs", seconds)?;
    }
    if let Some(seconds) = routing.router_predicted_ttl_secs {
        config.predicted_ttl = Some(lifetime("router_predicted_ttl_secs", seconds)?);
    }
    let memory = &args.memory;
    config.session_affinity_ttl = memory
        .session_affinity_ttl_secs
        .map(|seconds| {
            if SESSION_TTL_SECS.contains(&seconds) {
                Ok(Duration::from_secs_f64(seconds))
            } else {
                Err("session_affinity_ttl_secs must be between 1 and 31536000".to_owned())
            }
        })
        .transpose()?;
    config.session_affinity_mode = memory.router_session_affinity_mode;
    config.selection_cache_ttl = memory.selection_cache_ttl_secs;
    config.selection_cache_max_entries = memory.selection_cache_max_entries;
    config.selection_cache_max_bytes = memory.selection_cache_max_bytes;
    Ok(())
}

/// A time to live; what is past the end of time is for ever.
fn lifetime(field: &str, seconds: f64) -> Result<Duration, String> {
    if seconds >= 0.0 {
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    } else {
        Err(format!("{field} must be greater than or equal to 0"))
    }
}

/// Settings the reference reads and checks, but that act in its frontend or nowhere in a selection service.
fn check_settings_without_effect(env: &Environment<'_>, warnings: &mut Vec<String>) -> Result<(), String> {
    env.word("DYN_SHARED_CACHE_TYPE", |word| match word {
        "none" => Ok(()),
        "hicache" => {
            warnings.push("DYN_SHARED_CACHE_TYPE=hicache has no effect: a selector has no shared cache".to_owned());
            Ok(())
        }
        other => Err(format!("unknown shared_cache_type: {other:?}, expected 'none' or 'hicache'")),
    })?;
    let between = |name: &str, field: &str| match env.number::<f64>(name) {
        Some(x) if !(0.0..=1.0).contains(&x) => Err(format!("{field} must be between 0 and 1")),
        _ => Ok(()),
    };
    between("DYN_SHARED_CACHE_MULTIPLIER", "shared_cache_multiplier")?;
    between("DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD", "conditional_disagg_eff_isl_ratio_threshold")?;
    check_conditional_disaggregation(env)
}

fn check_conditional_disaggregation(env: &Environment<'_>) -> Result<(), String> {
    if env.boolean("DYN_ROUTER_CONDITIONAL_DISAGG") != Some(true) {
        return Ok(());
    }
    // An unknown policy word is ignored here, the one enumeration that is lenient.
    let policy = match env.text("DYN_ROUTER_CONDITIONAL_DISAGG_POLICY").as_deref() {
        Some("prefill_load") => "PrefillLoad",
        Some("isl_or_load") => "IslOrLoad",
        _ => return Ok(()),
    };
    let thresholds = ["DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD", "DYN_ROUTER_QUEUE_THRESHOLD"];
    if thresholds.iter().any(|name| env.number::<f64>(name).is_some()) {
        return Ok(());
    }
    Err(format!(
        "conditional_disagg policy={policy} needs prefill_busy_threshold: set {} or {}",
        thresholds[0], thresholds[1]
    ))
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
