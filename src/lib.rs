//! Pointsman decides which LLM inference worker each request goes to, from what is in every worker's KV cache and from
//! what every worker is doing. It never touches the request or the response.
//!
//! | module | owns | feature |
//! |---|---|---|
//! | [`selection`] | the core: prefix index, load, policies, sessions, reservations | none |
//! | [`plugins`] | the policy API under the names of the reference | none |
//! | [`events`] | engines' KV events: transport, decoding, listeners | `service` |
//! | [`mesh`] | replicas: bookings and sessions published and mirrored, losses repaired | `service` |
//! | [`service`] | the embeddable service: core, listeners, recovery, shutdown | `service` |
//! | [`discovery`] | snapshots of workers, the workers file, targets | `service` |
//! | [`telemetry`] | logs, metrics, readiness | `service` |
//! | [`http`] | the HTTP API | `server` |
//! | [`demo`] | the whole on one machine: engines, selector, users, comparison | `server` |
//! | [`engine`] | a stand-in engine with a real KV cache and real events | `server` |
//! | [`simulation`] | routing policies under simulated load: engines and workloads in virtual time | `server` |
//! | [`kubernetes`] | API types, the cluster as a source of workers, the operator | `controller` |
//! | [`cli`] | one file a subcommand | `server` |
//!
//! The arrows point one way: `cli -> {http, kubernetes, discovery} -> service -> {mesh, events} -> selection`.

mod paths;
pub mod plugins;
pub mod selection;

#[doc(hidden)]
pub use paths::{config, protocols, scheduling, selector, services};
pub use plugins::worker_selection::{
    ScoredWorkerCandidate, SessionContext, SharedCacheHits, WorkerCacheInput, WorkerCacheInputs, WorkerCandidate,
    WorkerCandidates, WorkerFilter, WorkerInputView, WorkerInputs, WorkerLoadInput, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionInputTrigger, WorkerSelectionPolicy, WorkerSelectionPolicyError,
    WorkerSelectionPolicyFactory,
};
pub use selection::{
    config::SelectionConfig as KvRouterConfig, policy::stages::RoutingPartitionRef, request::RouterConfigOverride,
    worker::WorkerRole as WorkerType,
};

#[cfg(feature = "service")]
pub mod discovery;
#[cfg(feature = "service")]
pub mod events;
#[cfg(feature = "service")]
pub mod mesh;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "service")]
pub mod telemetry;

#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod demo;
#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod simulation;

#[cfg(feature = "controller")]
pub mod kubernetes;
