//! The operator: SelectorSets made and kept, their selectors served with catalog and peers, statuses told.
//!
//! | module | owns |
//! |---|---|
//! | [`selector_set`] | the reconcile of a SelectorSet: dereference, validate, build, apply |
//! | [`apply`] | writing owned objects, and only differences |
//! | [`fleet`] | the selectors of every set: catalog and peers |
//! | [`status`] | what statuses say; pure |
//! | [`writer`] | writing statuses, and only differences |
//! | [`notices`] | Kubernetes Events |
//! | [`lease`] | leader election |
//! | `term` | what is done while this process leads |
//! | `external` | the finalizer of External sets |
//! | `health`, `metrics` | `/livez`, `/readyz`, `/metrics` |
//!
//! Invariants: only the leader writes, but for the Lease; two leaders for a moment do no harm, because catalogs are
//! ordered by epoch and objects are applied from the spec alone; nothing is written without a difference.

pub mod apply;
mod external;
pub mod fleet;
mod health;
pub mod lease;
mod metrics;
pub mod notices;
pub mod selector_set;
pub mod status;
mod term;
pub mod writer;

use std::{net::IpAddr, sync::Arc};

use kube::{Client, runtime::events::Reporter};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::{
    health::Health,
    lease::{Election, Leadership, LeaseOptions},
    term::{Term, TermOptions},
};
use super::{
    api::constants::FIELD_MANAGER,
    source::{ClusterSource, SourceOptions},
};
use crate::{http, telemetry::metrics::Metrics};

/// How the operator runs.
#[derive(Clone)]
pub struct ControllerOptions {
    /// The one namespace it works in; all of them when none. Nodes are read in the latter case alone.
    pub namespace: Option<String>,
    /// What reaches the objects of SelectorSets.
    pub sets: selector_set::Options,
    /// Which Lease, and who asks for it.
    pub lease: LeaseOptions,
    /// Address of `/livez`, `/readyz` and `/metrics`.
    pub host: IpAddr,
    /// Port of them; 0 takes a free one and logs it.
    pub port: u16,
}

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The port cannot be bound.
    #[error("cannot listen on {host} port {port}")]
    Listen {
        /// Address.
        host: IpAddr,
        /// Port.
        port: u16,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A task that should go on for ever ended; only a new process helps.
    #[error("{0} ended by itself")]
    Ended(&'static str),
}

/// Runs the operator until `stop`; `plain` is a client that does not repeat calls by itself: the Lease and the watches have
/// pauses of their own.
///
/// # Errors
/// The port cannot be bound; a task of it died.
pub async fn run(
    client: Client,
    plain: Client,
    options: ControllerOptions,
    stop: CancellationToken,
) -> Result<(), ControllerError> {
    let ControllerOptions { namespace, sets, lease, host, port } = options;
    let listen = |source| ControllerError::Listen { host, port, source };
    let listener = TcpListener::bind((host, port)).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    tracing::info!(%address, "health and metrics are told");

    let source = ClusterSource::start(plain.clone(), SourceOptions::new(namespace.clone(), namespace.is_none()), &stop);
    let identity = lease.identity.clone();
    let (election, mut leadership, raise) = Election::new(plain, lease);
    let shared = Arc::new(metrics::Counts::default());
    let shown = Metrics::default();
    metrics::register(&shown, shared.clone(), source.sets(), source.counters(), leadership.clone());
    let health = Health::new(source.sets());
    let side = stop.child_token();
    let served = tokio::spawn(http::serve_routes(health.clone().routes(shown), listener, side.clone()));
    // The Lease is given back after the term has ended, so that the next leader finds nobody at work.
    let elected = CancellationToken::new();
    let mut standing: JoinHandle<()> = tokio::spawn(election.run(elected.clone()));

    let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(identity) };
    let options = TermOptions { client, namespace, sets, reporter, raise, counts: shared, health };
    let outcome = loop {
        // What it said last would stand for ever.
        if standing.is_finished() {
            break Err(ControllerError::Ended("election"));
        }
        let epoch = leadership.borrow_and_update().epoch;
        let Some(epoch) = epoch else {
            tokio::select! {
                changed = leadership.changed() => if changed.is_err() { break Err(ControllerError::Ended("election")) },
                _ = &mut standing => break Err(ControllerError::Ended("election")),
                () = stop.cancelled() => break Ok(()),
            }
            continue;
        };
        let end = stop.child_token();
        let term = Term::new(options.clone(), epoch, end.clone()).run(source.sets(), leadership.clone());
        tokio::pin!(term);
        let ended = tokio::select! {
            outcome = &mut term => Some(outcome),
            () = lost(leadership.clone()) => None,
            () = stop.cancelled() => None,
        };
        end.cancel();
        let outcome = match ended {
            Some(outcome) => outcome,
            None => term.await,
        };
        // However the term ended, the Lease is given back.
        if outcome.is_err() || stop.is_cancelled() {
            break outcome;
        }
    };
    elected.cancel();
    if !standing.is_finished()
        && let Err(error) = standing.await
    {
        tracing::error!(%error, "the election ended badly");
    }
    side.cancel();
    if let Err(error) = served.await {
        tracing::error!(%error, "health and metrics ended badly");
    }
    outcome
}

/// Resolves when another leads.
async fn lost(mut leadership: tokio::sync::watch::Receiver<Leadership>) {
    // The election outlives the term: an error means it is gone, and with it the lead.
    while leadership.borrow_and_update().epoch.is_some() {
        if leadership.changed().await.is_err() {
            return;
        }
    }
}
