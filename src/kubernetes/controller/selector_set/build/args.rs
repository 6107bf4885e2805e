//! The command line of a selector.

use kube::ResourceExt;

use super::{ADMIN_TOKEN_PATH, POLICY_PATH, TRACKING_KEY_PATH, peers_name};
use crate::kubernetes::api::{SelectorSet, selector_set::Router};

/// Flags that `router.extraArgs` may not have: the operator sets them, or they would make something else of the process.
const RESERVED: [&str; 19] = [
    "host",
    "port",
    "ready-requires",
    "shutdown-delay",
    "admin-token-file",
    "face",
    "end-with-stdin",
    "workers-file",
    "catalog-name",
    "router-policy-config",
    "policy-watch",
    "router-tracking-hash",
    "router-tracking-key-file",
    "router-tracking-key-id",
    "indexer-peers",
    "replica-sync-port",
    "replica-sync-peers",
    "replica-sync-host",
    "advertise-url",
];
/// Beginning of flags by which a selector would discover for itself.
const RESERVED_PREFIX: &str = "kubernetes-";
/// Flags that a field of the spec stands for.
const FIELDS: [(&str, &str); 12] = [
    ("router-kv-events", "router.kvEvents"),
    ("no-router-kv-events", "router.kvEvents"),
    ("router-ttl-secs", "router.predictedBlockTtlSeconds"),
    ("router-queue-threshold", "router.queueThreshold"),
    ("router-queue-policy", "router.queuePolicy"),
    ("router-temperature", "router.temperature"),
    ("session-affinity-ttl-secs", "sessionAffinityTtlSeconds"),
    ("selection-cache-ttl-secs", "selectionCache.ttlSeconds"),
    ("selection-cache-max-entries", "selectionCache.maxEntries"),
    ("selection-cache-max-bytes", "selectionCache.maxBytes"),
    ("peer-stale-after", "replicaSync.staleAfterSeconds"),
    ("router-prefill-policy", "router.document"),
];

/// What the selector of `set` is started with, from its subcommand on; one word a flag.
pub fn arguments(set: &SelectorSet) -> Vec<String> {
    let spec = &set.spec;
    let mut args = vec![
        "selector".to_owned(),
        "--host=0.0.0.0".to_owned(),
        format!("--port={}", spec.ports.http),
        "--ready-requires=index,catalog,peers".to_owned(),
        format!("--shutdown-delay={}", spec.shutdown_delay_seconds),
        format!("--router-policy-config={POLICY_PATH}"),
        "--policy-watch=true".to_owned(),
        format!("--indexer-peers=http://{}:{}", peers_host(set), spec.ports.http),
    ];
    let mut flag = |name: &str, value: Option<String>| {
        args.extend(value.map(|value| format!("--{name}={value}")));
    };
    let sync = spec.replica_sync.clone().unwrap_or_default();
    if sync.enabled {
        flag("replica-sync-port", Some(spec.ports.replica_sync.to_string()));
        flag("replica-sync-peers", (!sync.peers.is_empty()).then(|| sync.peers.join(",")));
        flag("peer-stale-after", sync.stale_after_seconds.map(|seconds| seconds.to_string()));
    }
    flag("admin-token-file", spec.admin_token_secret_ref.as_ref().map(|_| ADMIN_TOKEN_PATH.to_owned()));
    if let Some(tracking) = &spec.tracking_hash {
        flag("router-tracking-hash", Some("keyed-xxh3-v1".to_owned()));
        flag("router-tracking-key-file", Some(TRACKING_KEY_PATH.to_owned()));
        flag("router-tracking-key-id", Some(tracking.key_id.clone()));
    }
    flag("session-affinity-ttl-secs", spec.session_affinity_ttl_seconds.map(|seconds| seconds.to_string()));
    if let Some(cache) = &spec.selection_cache {
        flag("selection-cache-ttl-secs", cache.ttl_seconds.map(|seconds| seconds.to_string()));
        flag("selection-cache-max-entries", cache.max_entries.map(|entries| entries.to_string()));
        flag("selection-cache-max-bytes", cache.max_bytes.map(|bytes| bytes.to_string()));
    }
    if let Some(router) = &spec.router {
        args.extend(of_router(router));
    }
    args
}

fn of_router(router: &Router) -> Vec<String> {
    let mut args = Vec::new();
    if let Some(events) = router.kv_events {
        args.push(if events { "--router-kv-events" } else { "--no-router-kv-events" }.to_owned());
    }
    let mut flag = |name: &str, value: Option<String>| {
        args.extend(value.map(|value| format!("--{name}={value}")));
    };
    flag("router-ttl-secs", router.predicted_block_ttl_seconds.map(|seconds| seconds.to_string()));
    flag("router-queue-threshold", router.queue_threshold.map(|threshold| threshold.to_string()));
    flag("router-queue-policy", router.queue_policy.map(|policy| policy.as_str().to_owned()));
    flag("router-temperature", router.temperature.map(|temperature| temperature.to_string()));
    args.extend(router.extra_args.iter().cloned());
    args
}

/// The name under which the set's selectors are asked for what they have: one address a selector, ready or not.
fn peers_host(set: &SelectorSet) -> String {
    format!("{}.{}.svc", peers_name(&set.name_any()), set.namespace().unwrap_or_default())
}

/// What is wrong with flags that somebody adds, a sentence each.
pub fn refused(extra: &[String]) -> Vec<String> {
    extra.iter().filter_map(|word| refuse(word)).collect()
}

fn refuse(word: &str) -> Option<String> {
    let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
        return Some(format!("router.extraArgs: {word:?} is no flag; each is one word, as --name=value"));
    };
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    if let Some((_, field)) = FIELDS.iter().find(|(known, _)| *known == name) {
        return Some(format!("router.extraArgs: use {field} instead of --{name}"));
    }
    let reserved = RESERVED.contains(&name) || name.starts_with(RESERVED_PREFIX);
    reserved.then(|| format!("router.extraArgs: --{name} is set by the operator"))
}

/// What a selector of this version says of a command line that it does not take.
pub fn unusable(args: &[String]) -> Option<String> {
    let line = std::iter::once("pointsman").chain(args.iter().map(String::as_str));
    let error = crate::cli::command().try_get_matches_from(line).err()?;
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    Some(format!("router.extraArgs: {}", first.strip_prefix("error: ").unwrap_or(first)))
}
