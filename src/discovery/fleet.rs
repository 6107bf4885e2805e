//! How a source and its targets stand, in one picture: for people, scripts and probes.

use std::time::Duration;

use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    SourceStatus,
    apply::TargetStatus,
    wiring::{ReplicaSync, WiringStatus},
};

/// How often a change of state is looked for.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// What is watched of one selector.
#[derive(Clone, Debug)]
pub struct FleetMember {
    /// Its base URL.
    pub selector: String,
    /// How its catalog stands.
    pub catalog: watch::Receiver<TargetStatus>,
    /// How its peers stand.
    pub wiring: watch::Receiver<WiringStatus>,
}

/// A source and the selectors it is applied to.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// What the workers should be.
    pub source: SourceStatus,
    /// Owner of the workers.
    pub owner: String,
    /// The selectors, in the order they were named.
    pub members: Vec<FleetMember>,
}

/// The picture.
#[derive(Clone, Debug, Serialize)]
pub struct FleetState {
    /// Every selector has the source's newest snapshot and every peer it should have.
    pub agreed: bool,
    /// The source.
    pub source: SourceView,
    /// The selectors.
    pub targets: Vec<TargetView>,
}

/// The source in the picture.
#[derive(Clone, Debug, Serialize)]
pub struct SourceView {
    /// Owner of the workers.
    pub owner: String,
    /// Epoch of the last good snapshot.
    pub epoch: Option<u64>,
    /// Its generation.
    pub generation: Option<u64>,
    /// Its digest.
    pub digest: Option<String>,
    /// Its workers.
    pub workers: usize,
    /// Why what is there now cannot be read.
    pub error: Option<String>,
}

/// A selector in the picture.
#[derive(Clone, Debug, Serialize)]
pub struct TargetView {
    /// Its base URL.
    pub selector: String,
    /// Its catalog.
    pub catalog: CatalogView,
    /// Its peers.
    pub peers: PeersView,
}

/// How a catalog stands, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogState {
    /// Nothing was applied yet.
    Pending,
    /// The newest snapshot is in force.
    Applied,
    /// An older one is.
    Behind,
    /// The last pass failed.
    Failing,
    /// The selector does not answer.
    Unreachable,
}

/// The catalog of a selector.
#[derive(Clone, Debug, Serialize)]
pub struct CatalogView {
    /// How it stands.
    pub state: CatalogState,
    /// Generation of the snapshot last applied.
    pub generation: Option<u64>,
    /// Its digest.
    pub digest: Option<String>,
    /// Workers of it that take no bookings.
    pub not_schedulable: usize,
    /// Passes that succeeded.
    pub passes: u64,
    /// Passes that failed.
    pub failures: u64,
    /// Why the last pass or look failed; null after one that succeeded.
    pub last_error: Option<String>,
    /// Seconds since the selector was last known to have what was applied.
    pub last_success_seconds: Option<f64>,
}

/// A peer in the picture.
#[derive(Clone, Debug, Serialize)]
pub struct PeerProblem {
    /// Its publisher.
    pub endpoint: String,
    /// Why it is not registered or removed; null when that was not tried yet.
    pub reason: Option<String>,
}

/// The peers of a selector.
#[derive(Clone, Debug, Serialize)]
pub struct PeersView {
    /// How they stand: pending, unreachable, disabled, unsupported, wired, incomplete or clash.
    pub state: &'static str,
    /// Where others subscribe to it; null when it takes no part or did not answer yet.
    pub publisher: Option<String>,
    /// Its identity, where it tells one.
    pub instance_id: Option<String>,
    /// What marks its messages, where it tells that.
    pub router_id: Option<u64>,
    /// Endpoints that should be registered there.
    pub wanted: Vec<String>,
    /// Those of them that are.
    pub registered: Vec<String>,
    /// Those of them that are not.
    pub missing: Vec<PeerProblem>,
    /// Endpoints that should go and are still there.
    pub leaving: Vec<PeerProblem>,
    /// Endpoints that nobody of ours has and that are left alone.
    pub strangers: Vec<String>,
    /// Connected peers, where the selector tells.
    pub connected: Option<usize>,
    /// Selectors that have not answered yet, so that they are not wired here.
    pub awaited: Vec<String>,
    /// Addresses that lead to the same selector.
    pub same_as: Vec<String>,
    /// Other selectors that are said to publish at the same address.
    pub clashes: Vec<String>,
    /// Why the last look or pass failed; null after one that succeeded.
    pub last_error: Option<String>,
    /// Seconds since everything wanted was last seen to be there.
    pub last_success_seconds: Option<f64>,
}

impl Fleet {
    /// The picture now.
    pub fn state(&self) -> FleetState {
        let source = self.source.borrow().clone();
        let snapshot = source.snapshot.as_ref();
        let targets: Vec<TargetView> = self
            .members
            .iter()
            .map(|member| TargetView {
                selector: member.selector.clone(),
                catalog: CatalogView::new(&member.catalog.borrow(), snapshot.map(|s| s.digest())),
                peers: PeersView::new(&member.wiring.borrow()),
            })
            .collect();
        let is_settled = |(view, member): (&TargetView, &FleetMember)| {
            // What was planned before another's first answer is out of date.
            let is_wired = member.wiring.borrow().state().is_settled() && view.peers.awaited.is_empty();
            view.catalog.state == CatalogState::Applied && is_wired
        };
        FleetState {
            agreed: snapshot.is_some() && targets.iter().zip(&self.members).all(is_settled),
            source: SourceView {
                owner: self.owner.clone(),
                epoch: snapshot.map(|s| s.version.epoch),
                generation: snapshot.map(|s| s.version.generation),
                digest: snapshot.map(|s| s.digest().to_owned()),
                workers: snapshot.map_or(0, |s| s.workers().len()),
                error: source.error.as_deref().map(str::to_owned),
            },
            targets,
        }
    }

    /// Whether the source is still followed; when not, only a restart helps.
    pub fn is_followed(&self) -> bool {
        self.source.has_changed().is_ok()
    }

    /// Logs a line for each selector whose state changes, until `stop`.
    pub async fn report(self, stop: CancellationToken) {
        let mut ticks = interval(REPORT_INTERVAL);
        // A late line is as good as one in time.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut told: Vec<String> = vec![String::new(); self.members.len()];
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            for (view, told) in self.state().targets.iter().zip(&mut told) {
                let line = view.line();
                if line != *told {
                    tracing::info!(selector = view.selector, "{line}");
                    *told = line;
                }
            }
        }
    }
}

impl TargetView {
    /// One short line: `catalog 3 applied; peers wired, 2 of 2`.
    pub fn line(&self) -> String {
        let catalog = match (self.catalog.state, self.catalog.generation) {
            (CatalogState::Applied, Some(generation)) => format!("catalog {generation} applied"),
            (state, _) => format!("catalog {}", state.as_str()),
        };
        format!("{catalog}; peers {}", self.peers.words())
    }
}

impl CatalogState {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Applied => "applied",
            Self::Behind => "behind",
            Self::Failing => "failing",
            Self::Unreachable => "unreachable",
        }
    }
}

impl CatalogView {
    /// The picture of `status`, when `wanted` is the digest of the source's newest snapshot.
    pub fn new(status: &TargetStatus, wanted: Option<&str>) -> Self {
        let digest = status.applied.as_ref().map(|(_, digest)| digest.to_string());
        let state = match (&status.error, &status.away, &digest) {
            (Some(error), ..) if error.is_absence() => CatalogState::Unreachable,
            (Some(_), ..) => CatalogState::Failing,
            (None, Some(_), _) => CatalogState::Unreachable,
            (None, None, None) => CatalogState::Pending,
            (None, None, Some(digest)) if Some(digest.as_str()) == wanted => CatalogState::Applied,
            (None, None, Some(_)) => CatalogState::Behind,
        };
        Self {
            state,
            generation: status.applied.as_ref().map(|(version, _)| version.generation),
            digest,
            not_schedulable: status.report.not_schedulable.len(),
            passes: status.passes,
            failures: status.failures,
            last_error: status.error.as_ref().or(status.away.as_ref()).map(ToString::to_string),
            last_success_seconds: age(status.last_success),
        }
    }
}

impl PeersView {
    /// The picture of `status`.
    pub fn new(status: &WiringStatus) -> Self {
        let plan = &status.plan;
        let problem = |endpoint: &String| PeerProblem {
            endpoint: endpoint.clone(),
            reason: status.problems.iter().find(|(of, _)| of == endpoint).map(|(_, reason)| reason.clone()),
        };
        let urls = |urls: &[std::sync::Arc<str>]| urls.iter().map(ToString::to_string).collect();
        let look = status.look.as_ref();
        let takes_part = look.is_some_and(|l| l.sync == ReplicaSync::Enabled);
        Self {
            state: status.state().as_str(),
            publisher: status.publisher.clone().filter(|_| takes_part),
            instance_id: look.and_then(|l| l.instance_id.clone()),
            router_id: look.and_then(|l| l.router_id),
            wanted: plan.wanted.clone(),
            registered: plan.registered.iter().map(|(endpoint, _)| endpoint.clone()).collect(),
            missing: plan.register.iter().map(|(endpoint, _)| problem(endpoint)).collect(),
            leaving: plan.deregister.iter().map(problem).collect(),
            strangers: plan.strangers.clone(),
            connected: look.and_then(|l| l.connected).filter(|_| takes_part),
            awaited: urls(&plan.awaited),
            same_as: urls(&plan.same_as),
            clashes: urls(&plan.clashes),
            last_error: status.error.clone(),
            last_success_seconds: age(status.last_success),
        }
    }

    /// A few words: `wired, 2 of 2`.
    pub fn words(&self) -> String {
        if !matches!(self.state, "wired" | "incomplete") {
            return self.state.to_owned();
        }
        let words = format!("{}, {} of {}", self.state, self.registered.len(), self.wanted.len());
        if self.awaited.is_empty() { words } else { format!("{words}, waiting for {}", self.awaited.join(" ")) }
    }
}

fn age(at: Option<Instant>) -> Option<f64> {
    at.map(|at| at.elapsed().as_secs_f64())
}
