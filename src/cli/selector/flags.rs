//! Flags of `pointsman selector`: the reference's own, its router's by their frontend spelling, and ours.

use std::path::PathBuf;

use clap::Args;

use super::tracking::Algorithm;
use crate::{
    selection::{
        config::{ApproximateCachePolicy, QueuePolicy, SessionAffinityMode},
        queue::limits::{DEFAULT_MAX_REQUESTS, DEFAULT_MAX_TOKENS},
    },
    telemetry::readiness::ReadyRequirements,
};

/// Run a selector: the HTTP API, KV-event listeners and, with a workers file, its own discovery.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct SelectorArgs {
    #[command(flatten)]
    pub(super) http: HttpArgs,
    #[command(flatten)]
    pub(super) workers: WorkersArgs,
    #[cfg(feature = "controller")]
    #[command(flatten)]
    pub(super) kubernetes: KubernetesArgs,
    #[command(flatten)]
    pub(super) routing: RoutingArgs,
    #[command(flatten)]
    pub(super) policy: PolicyArgs,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    #[command(flatten)]
    pub(super) tracking: TrackingArgs,
    #[command(flatten)]
    pub(super) peers: PeerArgs,
}

impl SelectorArgs {
    /// Whether this selector discovers workers for itself.
    pub(super) fn discovers(&self) -> bool {
        #[cfg(feature = "controller")]
        let in_cluster = self.kubernetes.kubernetes_service.is_some();
        #[cfg(not(feature = "controller"))]
        let in_cluster = false;
        self.workers.workers_file.is_some() || in_cluster
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(super) struct HttpArgs {
    /// Address to bind
    #[arg(long, env = "POINTSMAN_HOST", default_value = "0.0.0.0")]
    pub host: std::net::IpAddr,
    /// HTTP port; 0 takes a free one and logs it
    // Not POINTSMAN_PORT: a Kubernetes Service named `pointsman` would set that to `tcp://...` in every pod.
    #[arg(long, env = "POINTSMAN_LISTEN_PORT", default_value_t = 8092)]
    pub port: u16,
    /// File whose first line is the bearer token that catalog and peer changes must carry
    #[arg(long, env = "POINTSMAN_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// Whose shapes /workers, /health, /metrics and the peer routes have
    #[arg(long, env = "POINTSMAN_FACE", value_enum, default_value_t)]
    pub face: crate::http::Face,
    /// What `/readyz` waits for, of index, catalog and peers [default: index, and catalog where workers are
    /// discovered]
    #[arg(long, env = "POINTSMAN_READY_REQUIRES", value_name = "WHAT,...")]
    pub ready_requires: Option<ReadyRequirements>,
    /// Seconds between failing `/readyz` and refusing requests on SIGTERM or SIGINT
    #[arg(long, env = "POINTSMAN_SHUTDOWN_DELAY", value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub shutdown_delay: std::time::Duration,
    /// Threads that serve requests and ingest events [default: one a processor]
    #[arg(long, env = "POINTSMAN_RUNTIME_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub runtime_threads: Option<u16>,
    /// Stop when standard input ends, as when the process that started this one is gone
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
    /// Accepted for the reference's command lines; events are ingested on the runtime's threads
    #[arg(long, env = "POINTSMAN_THREADS", value_name = "N", default_value_t = 4)]
    pub threads: usize,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workers")]
pub(super) struct WorkersArgs {
    /// Workers file (YAML or JSON) to follow; without one, workers come over HTTP
    #[arg(long, env = "POINTSMAN_WORKERS_FILE", value_name = "FILE")]
    pub workers_file: Option<PathBuf>,
    /// Name under which the file's workers are owned, as `file.NAME`
    #[arg(long, env = "POINTSMAN_CATALOG_NAME", value_name = "NAME", default_value = "default")]
    #[arg(value_parser = crate::cli::discover::catalog_name)]
    pub catalog_name: String,
}

#[cfg(feature = "controller")]
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Kubernetes, without operator")]
pub(super) struct KubernetesArgs {
    /// Service in the cluster whose endpoints are the workers, owned as `k8s.NAMESPACE.NAME`
    #[arg(long, env = "POINTSMAN_KUBERNETES_SERVICE", value_name = "NAME", conflicts_with = "workers_file")]
    pub kubernetes_service: Option<String>,
    /// The spec of a ModelPool (YAML) for them, selectorRef and workers left out [default: model `default`, port `http`,
    /// and engines are asked for the rest]
    #[arg(long, env = "POINTSMAN_KUBERNETES_POOL_FILE", value_name = "FILE", requires = "kubernetes_service")]
    pub kubernetes_pool_file: Option<PathBuf>,
    /// Service whose endpoints are the selectors of the mesh, this one among them
    #[arg(long, env = "POINTSMAN_KUBERNETES_PEER_SERVICE", value_name = "NAME")]
    #[arg(requires = "kubernetes_service", requires = "replica_sync_port")]
    pub kubernetes_peer_service: Option<String>,
    /// Namespace of both Services [default: the pod's]
    #[arg(long, env = "POINTSMAN_KUBERNETES_NAMESPACE", value_name = "NAME", requires = "kubernetes_service")]
    pub kubernetes_namespace: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Routing (each also by its DYN_* name, which the flag overrides)")]
pub(super) struct RoutingArgs {
    /// Learn caches from KV events (the default)
    #[arg(long, overrides_with = "no_router_kv_events")]
    pub router_kv_events: bool,
    /// Predict caches from own decisions instead of KV events [DYN_ROUTER_USE_KV_EVENTS=false]
    #[arg(long)]
    pub no_router_kv_events: bool,
    /// Credit for each cached block on the device [DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT, default: 1]
    #[arg(long, value_name = "X")]
    pub router_kv_overlap_score_credit: Option<f64>,
    /// How fast that credit shrinks with excess prefill load [DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY, default: 0]
    #[arg(long, value_name = "X")]
    pub router_kv_overlap_score_credit_decay: Option<f64>,
    /// Weight of the prefill term [DYN_ROUTER_PREFILL_LOAD_SCALE, default: 1]
    #[arg(long, value_name = "X")]
    pub router_prefill_load_scale: Option<f64>,
    /// Blocks added for each active request [DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT, default: 0]
    #[arg(long, value_name = "X")]
    pub router_decode_active_request_weight: Option<f64>,
    /// Credit for a block in host memory, 0 to 1 [DYN_ROUTER_HOST_CACHE_HIT_WEIGHT, default: 0.75]
    #[arg(long, value_name = "X")]
    pub router_host_cache_hit_weight: Option<f64>,
    /// Credit for a block on disk or remote, 0 to 1 [DYN_ROUTER_DISK_CACHE_HIT_WEIGHT, default: 0.25]
    #[arg(long, value_name = "X")]
    pub router_disk_cache_hit_weight: Option<f64>,
    /// Randomness of the choice; 0 takes the cheapest [DYN_ROUTER_TEMPERATURE, default: 0]
    #[arg(long, value_name = "X")]
    pub router_temperature: Option<f64>,
    /// Prompts count as prefill load until their prefill is done (the default)
    #[arg(long, overrides_with = "no_router_track_prefill_tokens")]
    pub router_track_prefill_tokens: bool,
    /// Prompts do not count as prefill load [DYN_ROUTER_TRACK_PREFILL_TOKENS=false]
    #[arg(long)]
    pub no_router_track_prefill_tokens: bool,
    /// Equal prompts share active blocks (the default)
    #[arg(long, conflicts_with = "no_router_assume_kv_reuse")]
    pub router_assume_kv_reuse: bool,
    /// Equal prompts never share active blocks [DYN_ROUTER_ASSUME_KV_REUSE=false]
    #[arg(long)]
    pub no_router_assume_kv_reuse: bool,
    /// Life of a predicted block without KV events, in seconds [DYN_ROUTER_TTL_SECS, default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub router_ttl_secs: Option<f64>,
    /// Life of a block predicted beside KV events, in seconds [DYN_ROUTER_PREDICTED_TTL_SECS, default: none]
    #[arg(long, value_name = "SECONDS")]
    pub router_predicted_ttl_secs: Option<f64>,
    /// How predicted blocks age, ttl or lru [DYN_ROUTER_APPROXIMATE_CACHE_POLICY, default: ttl]
    #[arg(long, value_name = "POLICY", value_parser = parse_cache_policy)]
    pub router_approximate_cache_policy: Option<ApproximateCachePolicy>,
    /// Silence of an event stream, without even a heartbeat, after which its rank's cached blocks earn no credit, as
    /// `30s`, `5m` or `1h` [default: never]
    #[arg(long, env = "POINTSMAN_KV_STALE_AFTER", value_name = "DURATION", value_parser = duration)]
    pub kv_stale_after: Option<std::time::Duration>,
    /// Prefill load, as a fraction of max_num_batched_tokens, from which requests wait [DYN_ROUTER_QUEUE_THRESHOLD,
    /// default: never]
    #[arg(long, value_name = "X")]
    pub router_queue_threshold: Option<f64>,
    /// Order of waiting requests, fcfs, lcfs or wspt [DYN_ROUTER_QUEUE_POLICY, default: fcfs]
    #[arg(long, value_name = "POLICY", value_parser = parse_queue_policy)]
    pub router_queue_policy: Option<QueuePolicy>,
    /// Requests that may wait in one partition; more are answered 429
    #[arg(long, env = "POINTSMAN_QUEUE_MAX_REQUESTS", value_name = "N", default_value_t = DEFAULT_MAX_REQUESTS)]
    pub queue_max_requests: u64,
    /// Prompt tokens that may wait in one partition; the request that crosses it still waits, more are answered 429
    #[arg(long, env = "POINTSMAN_QUEUE_MAX_TOKENS", value_name = "N", default_value_t = DEFAULT_MAX_TOKENS)]
    pub queue_max_tokens: u64,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Policies")]
pub(super) struct PolicyArgs {
    /// Policy document (YAML): policies by role, classes of the queue, router settings [DYN_ROUTER_POLICY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub router_policy_config: Option<String>,
    /// Instance of the document for prefill workers; `default` is the built-in policy [DYN_ROUTER_PREFILL_POLICY]
    #[arg(long, value_name = "INSTANCE")]
    pub router_prefill_policy: Option<String>,
    /// Instance of the document for decode workers; `default` is the built-in policy [DYN_ROUTER_DECODE_POLICY]
    #[arg(long, value_name = "INSTANCE")]
    pub router_decode_policy: Option<String>,
    /// Follow the policy document: a good change acts at once, a bad one keeps what is in force
    #[arg(long, env = "POINTSMAN_POLICY_WATCH", value_name = "BOOL", default_value_t = true)]
    #[arg(action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub policy_watch: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sessions and pending selections")]
pub(super) struct MemoryArgs {
    /// Seconds a session stays with its worker after its last request, 1 to 31536000 [default: no sessions]
    #[arg(long, env = "POINTSMAN_SESSION_AFFINITY_TTL_SECS", value_name = "SECONDS")]
    pub session_affinity_ttl_secs: Option<f64>,
    /// Whether a session's binding is law for its bookings (hard) or advice for the policy (soft)
    #[arg(long, alias = "session-affinity-mode", env = "DYN_ROUTER_SESSION_AFFINITY_MODE", value_name = "MODE")]
    #[arg(default_value = "hard", value_parser = parse_affinity_mode)]
    pub router_session_affinity_mode: SessionAffinityMode,
    /// Seconds a selection can be replayed by its id
    #[arg(long, env = "POINTSMAN_SELECTION_CACHE_TTL_SECS", value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub selection_cache_ttl_secs: std::time::Duration,
    /// Most selections that wait for their replay
    #[arg(long, env = "POINTSMAN_SELECTION_CACHE_MAX_ENTRIES", value_name = "N", default_value_t = 4096)]
    pub selection_cache_max_entries: usize,
    /// Most bytes that they may take together
    #[arg(long, env = "POINTSMAN_SELECTION_CACHE_MAX_BYTES", value_name = "BYTES", default_value_t = 268_435_456)]
    pub selection_cache_max_bytes: usize,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Tracking hashes")]
pub(super) struct TrackingArgs {
    /// public-xxh3-v1, or keyed-xxh3-v1 with a key [DYN_ROUTER_TRACKING_HASH, default: public-xxh3-v1]
    #[arg(long, value_name = "ALGORITHM", value_parser = Algorithm::parse)]
    pub router_tracking_hash: Option<Algorithm>,
    /// File of exactly 32 raw bytes [DYN_ROUTER_TRACKING_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub router_tracking_key_file: Option<String>,
    /// Name of the key's epoch [DYN_ROUTER_TRACKING_KEY_ID]
    #[arg(long, value_name = "ID")]
    pub router_tracking_key_id: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Other selectors")]
pub(super) struct PeerArgs {
    /// Base URLs of selectors or indexers whose index is taken over at start, and whose catalog too while nobody applies
    /// one here
    #[arg(long, env = "POINTSMAN_INDEXER_PEERS", value_name = "URL,...", value_delimiter = ',')]
    pub indexer_peers: Vec<String>,
    /// Port on which bookings and sessions are published to other selectors, on all interfaces [default: no replica
    /// sync]
    #[arg(long, env = "POINTSMAN_REPLICA_SYNC_LISTEN_PORT", value_name = "PORT", value_parser = nonzero_port)]
    pub replica_sync_port: Option<u16>,
    /// ZMQ endpoints on which other selectors publish, for example tcp://10.0.0.8:9092; more come over HTTP
    #[arg(long, env = "POINTSMAN_REPLICA_SYNC_PEERS", value_name = "ENDPOINT,...", value_delimiter = ',')]
    #[arg(requires = "replica_sync_port")]
    pub replica_sync_peers: Vec<String>,
    /// Address the publisher is bound to, * for all interfaces
    #[arg(long, env = "POINTSMAN_REPLICA_SYNC_HOST", value_name = "HOST", default_value = "*")]
    #[arg(requires = "replica_sync_port")]
    pub replica_sync_host: String,
    /// Base URL at which other selectors reach this one's HTTP API [default: the host they follow, and --port]
    #[arg(long, env = "POINTSMAN_ADVERTISE_URL", value_name = "URL", value_parser = base_url)]
    pub advertise_url: Option<String>,
    /// Seconds after which a booking of another selector that arrives late is ignored [default: never]
    #[arg(long, env = "POINTSMAN_PEER_STALE_AFTER", value_name = "SECONDS", value_parser = seconds)]
    pub peer_stale_after: Option<std::time::Duration>,
}

const AFTER_HELP: &str = "\
Examples:
  Follow a workers file:
    pointsman selector --workers-file workers.yaml

  Find workers in the cluster, without operator:
    pointsman selector --kubernetes-service vllm --kubernetes-pool-file pool.yaml

  Take workers over HTTP, without KV events:
    DYN_ROUTER_USE_KV_EVENTS=false pointsman selector --port 8092

  Be one of two replicas that know of each other's bookings:
    pointsman selector --replica-sync-port 9092 --replica-sync-peers tcp://10.0.0.8:9092

  Take over the index of a running selector, and keep sessions for ten minutes:
    pointsman selector --indexer-peers http://10.0.0.7:8092 --session-affinity-ttl-secs 600

  Choose by a policy document, and follow its changes:
    pointsman selector --workers-file workers.yaml --router-policy-config policy.yaml

  Stand in for the standalone indexer:
    pointsman selector --face indexer --port 8090";

/// Reads what a session's binding is.
fn parse_affinity_mode(word: &str) -> Result<SessionAffinityMode, String> {
    word.parse().map_err(|error: crate::selection::config::ConfigError| error.0)
}

/// Reads an order of waiting requests.
pub(super) fn parse_queue_policy(word: &str) -> Result<QueuePolicy, String> {
    match word {
        "fcfs" => Ok(QueuePolicy::Fcfs),
        "lcfs" => Ok(QueuePolicy::Lcfs),
        "wspt" => Ok(QueuePolicy::Wspt),
        other => Err(format!("unknown queue policy: {other:?}, expected 'fcfs', 'lcfs', or 'wspt'")),
    }
}

/// Reads how predicted blocks age.
pub(super) fn parse_cache_policy(word: &str) -> Result<ApproximateCachePolicy, String> {
    match word {
        "ttl" => Ok(ApproximateCachePolicy::Ttl),
        "lru" => Ok(ApproximateCachePolicy::Lru),
        other => Err(format!("unknown approximate cache policy {other:?}, expected 'ttl' or 'lru'")),
    }
}

/// Reads a span of seconds; fractions are fine.
pub(in crate::cli) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    std::time::Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

fn base_url(text: &str) -> Result<String, String> {
    let url = reqwest::Url::parse(text).map_err(|error| error.to_string())?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(text.trim_end_matches('/').to_owned()),
        _ => Err("an http or https URL is expected".to_owned()),
    }
}

/// Reads a span of time with its unit; a number alone is seconds. Zero is refused.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time: use ms, s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no span of time, such as 30s"))?;
    match std::time::Duration::try_from_secs_f64(number * scale) {
        Ok(span) if span.is_zero() => Err("the span must be longer than zero".to_owned()),
        other => other.map_err(|e| e.to_string()),
    }
}

fn nonzero_port(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(0) => Err("port must be greater than zero".to_owned()),
        Ok(port) => Ok(port),
        Err(e) => Err(e.to_string()),
    }
}
