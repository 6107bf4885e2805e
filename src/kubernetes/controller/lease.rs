//! Leader election by a Lease.
//!
//! Invariants: every write carries the `resourceVersion` it was decided on, so that of two that reach for the Lease one
//! wins; a holder acts until its own deadline, which by its own monotonic clock lies before the moment at which others
//! may take over; every acquisition has a larger epoch than all before it. Other holders' clocks are never compared with
//! ours: a Lease is free when it has not changed for its duration as seen from here.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{kubernetes::api::constants::ANNOTATION_PREFIX, telemetry::causes::chain};

/// Longest time for one call about the Lease.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Requests for a larger epoch that may wait.
const MAX_RAISES: usize = 64;

/// Which Lease, and who asks.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who asks; unique to this process.
    pub identity: String,
    /// How long others wait for a sign of life of the holder.
    pub duration: Duration,
}

/// Whether this process leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Epoch of the term; none while another leads.
    pub epoch: Option<u64>,
}

/// Why the Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The apiserver says no.
    #[error("the lease cannot be had")]
    Api(#[from] kube::Error),
    /// The apiserver does not answer.
    #[error("no answer about the lease in time")]
    Timeout,
}

/// Asks the holder for an epoch above one that a selector has seen.
#[derive(Clone, Debug)]
pub struct Raise(mpsc::Sender<u64>);

impl Raise {
    /// Asks for an epoch above `seen`. A request that finds many waiting is dropped: the next refusal repeats it.
    pub fn above(&self, seen: u64) {
        if self.0.try_send(seen).is_err() {
            tracing::debug!(seen, "a larger epoch is asked for already");
        }
    }
}

/// The election of this process.
#[derive(Debug)]
pub struct Election {
    api: Api<Lease>,
    options: LeaseOptions,
    state: watch::Sender<Leadership>,
    raises: mpsc::Receiver<u64>,
    /// What was last seen of another holder, and when it was first seen so.
    seen: Option<(Mark, Instant)>,
    held: Option<Held>,
}

/// The Lease while it is ours.
#[derive(Debug)]
struct Held {
    lease: Lease,
    epoch: u64,
    /// From here on others may take it.
    until: Instant,
}

/// What changes with every sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    holder: String,
    version: Option<String>,
}

/// What to do about a Lease that is another's or nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Take,
    Wait,
}

impl Election {
    /// An election that has not asked yet.
    pub fn new(client: Client, options: LeaseOptions) -> (Self, watch::Receiver<Leadership>, Raise) {
        let (state, leadership) = watch::channel(Leadership::default());
        let (ask, raises) = mpsc::channel(MAX_RAISES);
        let api = Api::namespaced(client, &options.namespace);
        (Self { api, options, state, raises, seen: None, held: None }, leadership, Raise(ask))
    }

    /// Stands for election until `stop`, then gives the Lease back. Whoever acts by [`Leadership`] must have ended by
    /// then, or end at its change.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let wait = self.round().await;
            let next = Instant::now() + wait;
            let deadline = self.held.as_ref().map(|held| held.until);
            tokio::select! {
                () = sleep_until(deadline.map_or(next, |until| next.min(until))) => {}
                Some(seen) = self.raises.recv() => self.raise(seen).await,
                () = stop.cancelled() => break,
            }
            if self.held.as_ref().is_some_and(|held| Instant::now() >= held.until) {
                tracing::error!("the lease was not renewed in time: not leading any more");
                self.lose();
            }
        }
        self.release().await;
    }

    /// One look or renewal; returns how long to wait for the next.
    async fn round(&mut self) -> Duration {
        let outcome = match self.held {
            Some(_) => self.renew(None).await,
            None => self.stand().await,
        };
        if let Err(error) = outcome {
            tracing::warn!(error = chain(&error), lease = self.options.name, "lease");
            return self.options.duration / 10;
        }
        if self.held.is_some() { self.options.duration / 3 } else { self.options.duration / 8 }
    }

    async fn stand(&mut self) -> Result<(), LeaseError> {
        let started = Instant::now();
        let Some(mut lease) = call(self.api.get_opt(&self.options.name)).await? else {
            let metadata = ObjectMeta { name: Some(self.options.name.clone()), ..ObjectMeta::default() };
            let mut lease = Lease { metadata, spec: None };
            let epoch = self.sign(&mut lease);
            return self.settle(call(self.api.create(&PostParams::default(), &lease)).await, epoch, started);
        };
        if self.claim(&lease, started) == Claim::Wait {
            return Ok(());
        }
        let epoch = self.sign(&mut lease);
        let name = self.options.name.clone();
        self.settle(call(self.api.replace(&name, &PostParams::default(), &lease)).await, epoch, started)
    }

    /// Whether `lease` may be taken: nobody has it, or its holder has shown no sign of life for its duration.
    fn claim(&mut self, lease: &Lease, now: Instant) -> Claim {
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|s| s.holder_identity.clone()).filter(|h| !h.is_empty());
        let Some(holder) = holder else { return Claim::Take };
        let mark = Mark { holder, version: lease.metadata.resource_version.clone() };
        match &self.seen {
            Some((seen, since)) if *seen == mark => {
                let seconds = spec.and_then(|s| s.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
                let duration = seconds.map_or(self.options.duration, Duration::from_secs);
                if now.duration_since(*since) >= duration { Claim::Take } else { Claim::Wait }
            }
            _ => {
                if self.seen.as_ref().is_none_or(|(seen, _)| seen.holder != mark.holder) {
                    tracing::info!(holder = mark.holder, "another process leads");
                }
                self.seen = Some((mark, now));
                Claim::Wait
            }
        }
    }

    /// Writes this process into `lease` as a new holder; returns the epoch of its term, above all before.
    fn sign(&self, lease: &mut Lease) -> u64 {
        let epoch = epoch_of(lease).saturating_add(1);
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        spec.acquire_time = Some(now.clone());
        write_epoch(lease, epoch);
        self.stamp(lease, now);
        epoch
    }

    fn stamp(&self, lease: &mut Lease, now: MicroTime) {
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.options.identity.clone());
        spec.lease_duration_seconds = i32::try_from(self.options.duration.as_secs()).ok();
        spec.renew_time = Some(now);
    }

    /// Renews the Lease, with `epoch` when it is to be raised.
    async fn renew(&mut self, epoch: Option<u64>) -> Result<(), LeaseError> {
        let started = Instant::now();
        let Some(held) = &self.held else { return Ok(()) };
        let mut lease = held.lease.clone();
        let epoch = epoch.unwrap_or(held.epoch);
        write_epoch(&mut lease, epoch);
        self.stamp(&mut lease, MicroTime(Timestamp::now()));
        let name = self.options.name.clone();
        let answer = call(self.api.replace(&name, &PostParams::default(), &lease)).await;
        if let Err(LeaseError::Api(kube::Error::Api(status))) = &answer
            && (status.is_conflict() || status.is_not_found())
        {
            return self.reread().await;
        }
        self.settle(answer, epoch, started)
    }

    /// Somebody else wrote the Lease, or removed it: it is still ours if it says so.
    async fn reread(&mut self) -> Result<(), LeaseError> {
        let lease = call(self.api.get_opt(&self.options.name)).await?;
        let is_ours = |lease: &Lease| {
            lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref()) == Some(&*self.options.identity)
        };
        match (lease.filter(is_ours), &mut self.held) {
            // An edit by hand, or an answer of ours that was lost: the next renewal builds on it.
            (Some(lease), Some(held)) => {
                held.lease = lease;
                Ok(())
            }
            _ => {
                tracing::warn!("the lease has another holder: not leading any more");
                self.lose();
                self.seen = None;
                Ok(())
            }
        }
    }

    /// Takes the answer to a write. A conflict is no error: another was faster.
    fn settle(&mut self, answer: Result<Lease, LeaseError>, epoch: u64, started: Instant) -> Result<(), LeaseError> {
        let lease = match answer {
            Ok(lease) => lease,
            Err(LeaseError::Api(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // Others count from when they see the write, which is after it was begun.
        let until = started + self.options.duration * 2 / 3;
        if self.held.is_none() {
            tracing::info!(epoch, identity = self.options.identity, "leading");
        }
        self.held = Some(Held { lease, epoch, until });
        self.seen = None;
        self.state.send_if_modified(|state| {
            let now = Leadership { epoch: Some(epoch) };
            let changed = *state != now;
            *state = now;
            changed
        });
        Ok(())
    }

    /// A selector knows a larger epoch: looks whether the Lease is still ours, and goes above it.
    async fn raise(&mut self, seen: u64) {
        let Some(held) = &self.held else { return };
        if held.epoch > seen {
            return;
        }
        tracing::warn!(epoch = held.epoch, seen, "a selector has seen a later epoch: raising ours, if we still lead");
        if let Err(error) = self.renew(Some(seen.saturating_add(1))).await {
            tracing::warn!(error = chain(&error), "the epoch could not be raised");
        }
    }

    fn lose(&mut self) {
        self.held = None;
        self.state.send_replace(Leadership::default());
    }

    /// Gives the Lease back, so that another need not wait.
    async fn release(mut self) {
        let Some(held) = self.held.take() else { return };
        self.state.send_replace(Leadership::default());
        let mut lease = held.lease;
        let spec = lease.spec.get_or_insert_default();
        *spec = LeaseSpec {
            holder_identity: None,
            lease_duration_seconds: Some(1),
            lease_transitions: spec.lease_transitions,
            ..LeaseSpec::default()
        };
        match call(self.api.replace(&self.options.name, &PostParams::default(), &lease)).await {
            Ok(_) => tracing::info!("lease given back"),
            Err(error) => tracing::warn!(error = chain(&error), "the lease was not given back"),
        }
    }
}

/// Where an epoch is kept that `leaseTransitions`, 31 bits wide, cannot hold.
fn epoch_annotation() -> String {
    format!("{ANNOTATION_PREFIX}epoch")
}

fn epoch_of(lease: &Lease) -> u64 {
    let transitions = lease.spec.as_ref().and_then(|s| s.lease_transitions).and_then(|t| u64::try_from(t).ok());
    let annotated = lease.metadata.annotations.as_ref().and_then(|a| a.get(&epoch_annotation())?.parse().ok());
    transitions.unwrap_or(0).max(annotated.unwrap_or(0))
}

fn write_epoch(lease: &mut Lease, epoch: u64) {
    lease.spec.get_or_insert_default().lease_transitions = Some(i32::try_from(epoch).unwrap_or(i32::MAX));
    if i32::try_from(epoch).is_err() {
        lease.metadata.annotations.get_or_insert_default().insert(epoch_annotation(), epoch.to_string());
    }
}

async fn call<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, LeaseError> {
    timeout(CALL_TIMEOUT, answer).await.map_err(|_| LeaseError::Timeout)?.map_err(LeaseError::Api)
}

#[cfg(test)]
mod tests;
