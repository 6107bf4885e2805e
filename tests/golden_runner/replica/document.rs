//! The files of `golden/replica`, typed. An unknown member is an error, so that no step is skipped in silence.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// What one file holds.
pub enum Document {
    Scenarios(Vec<Scenario>),
    Capture(Capture),
    Vectors(Vec<Vector>),
    Startup(Vec<StartupCase>),
}

impl Document {
    /// Reads a file.
    pub fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Kind {
            kind: String,
        }
        #[derive(Deserialize)]
        struct Items<T> {
            #[serde(alias = "scenarios", alias = "vectors", alias = "cases")]
            items: Vec<T>,
        }
        let kind: Kind = serde_json::from_slice(bytes)?;
        Ok(match kind.kind.as_str() {
            "scenario" => Self::Scenarios(serde_json::from_slice::<Items<_>>(bytes)?.items),
            "capture" => Self::Capture(serde_json::from_slice(bytes)?),
            "hash" => Self::Vectors(serde_json::from_slice::<Items<_>>(bytes)?.items),
            "startup" => Self::Startup(serde_json::from_slice::<Items<_>>(bytes)?.items),
            other => return Err(serde::de::Error::custom(format!("unknown kind {other}"))),
        })
    }
}

/// Steps against one or two servers, with frames from peers that the runner plays.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    #[serde(default)]
    pub server: ServerSpec,
    #[serde(default)]
    pub servers: BTreeMap<String, ServerSpec>,
    #[serde(default = "one")]
    pub runner_peers: usize,
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Waits for a minute or more.
    #[serde(default)]
    pub slow: bool,
    pub steps: Vec<Step>,
    #[serde(rename = "about")]
    pub _about: Option<String>,
    #[serde(rename = "why")]
    pub _why: Option<String>,
    #[serde(rename = "tags")]
    pub _tags: Option<Vec<String>>,
}

fn one() -> usize {
    1
}

/// How a server is started.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// `runner:N`, `server:NAME` or an endpoint as it is.
    #[serde(default)]
    pub peers: Vec<String>,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default = "yes")]
    pub replica_sync: bool,
}

fn yes() -> bool {
    true
}

impl Default for ServerSpec {
    fn default() -> Self {
        Self { peers: Vec::new(), args: Vec::new(), env: BTreeMap::new(), replica_sync: true }
    }
}

/// One step; which one follows from the member that is present.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// The server of the step.
    pub on: Option<String>,
    pub http: Option<Http>,
    pub status: Option<u16>,
    pub expect: Option<Value>,
    pub error_contains: Option<String>,
    pub inject: Option<Inject>,
    pub flood: Option<Inject>,
    pub barrier: Option<Barrier>,
    pub loads: Option<Value>,
    pub timeout_ms: Option<u64>,
    pub potential_loads: Option<Value>,
    pub rows: Option<Value>,
    pub expect_frames: Option<Vec<Value>>,
    pub within_ms: Option<u64>,
    /// The two topics have queues of their own; only each of them is in order.
    pub unordered: bool,
    /// Variable to dotted path.
    pub save: BTreeMap<String, String>,
    pub drain_frames: Option<u64>,
    pub sync_outbound: Option<Partition>,
    pub pair_sync: Option<PairSync>,
    pub sleep_ms: Option<u64>,
    pub subscriptions: Option<Subscriptions>,
    pub start: Option<String>,
    pub stop: Option<String>,
    pub hard: bool,
    #[serde(rename = "decoded")]
    pub _decoded: Option<serde::de::IgnoredAny>,
    #[serde(rename = "why")]
    pub _why: Option<String>,
}

/// A call.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub method: String,
    pub path: String,
    pub body: Option<Value>,
    pub raw_b64: Option<String>,
}

/// Frames as they are, or a message to encode; `count` of them, `i` counting.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inject {
    #[serde(default)]
    pub peer: usize,
    pub frames: Option<Vec<String>>,
    pub topic: Option<String>,
    /// With its members in their order.
    pub msg: Option<rmpv::Value>,
    #[serde(default = "one")]
    pub count: usize,
}

/// A booking of the barrier worker sent by a peer: once it shows, all frames before it were handled.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Barrier {
    #[serde(default)]
    pub peer: usize,
    #[serde(default = "default_name")]
    pub model: String,
    #[serde(default = "default_block_size")]
    pub block_size: u32,
}

fn default_name() -> String {
    "default".into()
}

fn default_block_size() -> u32 {
    16
}

/// A partition of the default group.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    #[serde(default = "default_name")]
    pub model: String,
}

/// Waits until what one server books reaches the other.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSync {
    pub from: String,
    pub to: String,
    #[serde(default = "default_name")]
    pub model: String,
}

/// Topics a peer must see subscribed, or not.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscriptions {
    #[serde(default)]
    pub peer: usize,
    #[serde(default)]
    pub expect: Vec<String>,
    #[serde(default)]
    pub absent: Vec<String>,
}

/// Calls with the frames that the reference published for them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    pub server: ServerSpec,
    pub setup: Vec<Step>,
    pub steps: Vec<CaptureStep>,
    #[serde(default)]
    pub unordered_topics: bool,
    #[serde(rename = "kind")]
    pub _kind: String,
    #[serde(rename = "name")]
    pub _name: String,
    #[serde(rename = "about")]
    pub _about: String,
    #[serde(rename = "own_router_id")]
    pub _own_router_id: u64,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureStep {
    pub http: Http,
    pub response: CaptureResponse,
    pub frames: Vec<CaptureFrame>,
}

#[derive(Clone, Deserialize)]
pub struct CaptureResponse {
    pub status: u16,
}

#[derive(Clone, Deserialize)]
pub struct CaptureFrame {
    pub topic: String,
    pub payload_b64: String,
}

/// A prompt and its tracking hashes.
#[derive(Clone, Deserialize)]
pub struct Vector {
    pub name: String,
    pub algorithm: String,
    pub model_name: String,
    pub routing_group: String,
    pub block_size: u32,
    #[serde(default)]
    pub worker_is_eagle: bool,
    pub key_hex: Option<String>,
    pub key_id: Option<String>,
    pub prompt: Value,
    pub sequence_hashes: Vec<u64>,
}

/// A command line that must be refused, or accepted.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartupCase {
    pub name: String,
    pub server: ServerSpec,
    pub outcome: Outcome,
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    pub stderr_contains: Option<String>,
    pub must_not_print: Option<String>,
    #[serde(rename = "about")]
    pub _about: Option<String>,
    #[serde(rename = "why")]
    pub _why: Option<String>,
    #[serde(rename = "tags")]
    pub _tags: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Refused,
    Accepted,
}
