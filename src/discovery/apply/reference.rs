//! A selector that knows `/workers` but no `/catalog`: the reference.
//!
//! It does not tell who registered a worker, so this side remembers the ids it sent, in memory and in a state file. At
//! first contact only those are deleted that the state file names; with `prune`, all that the snapshot does not.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde::Deserialize;
use tokio::time::Instant;

use super::{Check, ClientError, PassError, PassReport, Preview, RemoteClient, StateFile, WorkerIds};
use crate::{
    discovery::Snapshot,
    selection::worker::{Lifecycle, WorkerRequest, WorkerState},
};

/// Calls about single workers that are under way at once.
const PARALLEL: usize = 16;
/// A pass ends after this many calls in a row found nobody: the rest would only wait for their timeouts.
const MAX_ABSENT: usize = PARALLEL;
/// A record that stays incomplete, or was refused, is sent again so often.
const INCOMPLETE_RETRY: Duration = Duration::from_secs(60);

/// The `/workers` routes of one selector.
#[derive(Debug)]
pub struct WorkersRoutes {
    client: RemoteClient,
    state: Option<StateFile<WorkerIds>>,
    prune: bool,
    /// Ids this side registered and has not removed; none before the first contact.
    tracked: Option<BTreeSet<u64>>,
    /// Records the selector called incomplete, and when they were sent.
    incomplete: HashMap<u64, Instant>,
    /// Records the selector refused, and when they were sent.
    refused: HashMap<u64, Instant>,
    /// Records the selector shows otherwise than they were sent: what was sent, and what it showed.
    reworded: HashMap<u64, (WorkerRequest, WorkerRequest)>,
}

/// A record as the selector shows it.
#[derive(Debug, Deserialize)]
struct Shown {
    #[serde(flatten)]
    request: WorkerRequest,
    lifecycle: Lifecycle,
    #[serde(default)]
    not_schedulable_reasons: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct PartitionRows {
    loads: Vec<RankRow>,
}

#[derive(Debug, Deserialize)]
struct RankRow {
    worker_id: u64,
    potential_prefill_tokens: u64,
    potential_decode_blocks: u64,
    #[serde(default)]
    active_requests: u64,
}

/// What has to be done at a selector.
#[derive(Debug, Default)]
struct Plan {
    upsert: Vec<WorkerRequest>,
    delete: Vec<u64>,
    /// Draining and still there.
    draining: HashSet<u64>,
}

/// What became of the calls of a pass.
#[derive(Debug, Default)]
struct Outcome {
    first_error: Option<ClientError>,
    absent_in_a_row: usize,
}

impl Outcome {
    fn failed(&mut self, error: ClientError) {
        self.absent_in_a_row = if matches!(error, ClientError::Transport { .. } | ClientError::Timeout { .. }) {
            self.absent_in_a_row + 1
        } else {
            0
        };
        self.first_error.get_or_insert(error);
    }

    fn into_error(self) -> PassError {
        PassError::Call(self.first_error.unwrap_or_else(|| ClientError::unavailable("/workers")))
    }

    fn is_hopeless(&self) -> bool {
        self.absent_in_a_row >= MAX_ABSENT
    }
}

impl WorkersRoutes {
    pub(super) fn new(client: RemoteClient, owner: &str, state_dir: Option<PathBuf>, prune: bool) -> Self {
        let state = state_dir.map(|directory| StateFile::new(&directory, client.address(), owner));
        let (incomplete, refused, reworded) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { client, state, prune, tracked: None, incomplete, refused, reworded }
    }

    /// One pass: what differs is sent, what left is removed, whatever else fails.
    pub(super) async fn apply(&mut self, snapshot: &Snapshot) -> Result<PassReport, PassError> {
        self.remember().await?;
        let shown = self.shown().await?;
        // A pass is a new chance for a record that was incomplete or refused.
        self.incomplete.clear();
        self.refused.clear();
        self.reworded.retain(|id, _| snapshot.get(*id).is_some());
        let plan = self.plan(snapshot, &shown);
        self.track(plan.upsert.iter().map(|r| r.worker_id), shown.keys(), snapshot).await?;

        let mut outcome = Outcome::default();
        let mut report = PassReport::default();
        self.upsert(plan.upsert, &mut outcome, &mut report).await;
        if outcome.is_hopeless() {
            return Err(outcome.into_error());
        }
        let idle = if plan.draining.is_empty() { Vec::new() } else { self.idle(&plan.draining).await? };
        self.delete(plan.delete.into_iter().chain(idle), &mut outcome, &mut report).await;
        self.store().await?;
        report.not_schedulable.sort_unstable();
        if outcome.first_error.is_some() { Err(outcome.into_error()) } else { Ok(report) }
    }

    /// Compares; retires workers that have drained.
    pub(super) async fn check(&mut self, snapshot: &Snapshot) -> Result<Check, PassError> {
        let shown = self.shown().await?;
        let plan = self.plan(snapshot, &shown);
        if !plan.upsert.is_empty() {
            return Ok(Check::Differs("workers are missing or changed"));
        }
        if !plan.delete.is_empty() {
            return Ok(Check::Differs("workers are there that left"));
        }
        if !plan.draining.is_empty() {
            let idle = self.idle(&plan.draining).await?;
            let mut outcome = Outcome::default();
            self.delete(idle, &mut outcome, &mut PassReport::default()).await;
            self.store().await?;
            if outcome.first_error.is_some() {
                return Err(outcome.into_error());
            }
        }
        Ok(Check::Same)
    }

    fn plan(&self, snapshot: &Snapshot, shown: &BTreeMap<u64, Shown>) -> Plan {
        let mut plan = Plan::default();
        for desired in snapshot.workers() {
            let id = desired.request.worker_id;
            let there = shown.get(&id);
            if desired.state == WorkerState::Draining {
                if there.is_some() {
                    plan.draining.insert(id);
                }
                continue;
            }
            // Whatever is there in its place: the same record would be refused again.
            if self.refused.get(&id).is_some_and(is_recent) {
                continue;
            }
            let request = known_to_reference(&desired.request);
            match there.filter(|there| self.is_equal(&request, &there.request)) {
                Some(there) if there.lifecycle == Lifecycle::Schedulable => {}
                Some(_) if self.incomplete.get(&id).is_some_and(is_recent) => {}
                _ => plan.upsert.push(request),
            }
        }
        let ours = |id: &u64| self.prune || self.tracked.as_ref().is_some_and(|tracked| tracked.contains(id));
        plan.delete = shown.keys().filter(|id| snapshot.get(**id).is_none() && ours(id)).copied().collect();
        plan
    }

    /// Whether `shown` is how the selector shows `desired`. Without this a record that it words differently would be
    /// sent for ever.
    fn is_equal(&self, desired: &WorkerRequest, shown: &WorkerRequest) -> bool {
        let reworded = self.reworded.get(&desired.worker_id);
        desired == shown || reworded.is_some_and(|(sent, answer)| sent == desired && answer == shown)
    }

    async fn shown(&self) -> Result<BTreeMap<u64, Shown>, ClientError> {
        let answer = self.client.call(Method::GET, &["workers"], &[], None).await?;
        let shown: Vec<Shown> = self.client.decode("GET /workers", &answer)?;
        Ok(shown.into_iter().map(|s| (s.request.worker_id, s)).collect())
    }

    /// Of `draining`, those without any booking.
    async fn idle(&self, draining: &HashSet<u64>) -> Result<Vec<u64>, ClientError> {
        let answer = self.client.call(Method::GET, &["loads"], &[], None).await?;
        let partitions: Vec<PartitionRows> = self.client.decode("GET /loads", &answer)?;
        let mut idle: BTreeSet<u64> = draining.iter().copied().collect();
        for row in partitions.iter().flat_map(|p| &p.loads) {
            if row.potential_prefill_tokens > 0 || row.potential_decode_blocks > 0 || row.active_requests > 0 {
                idle.remove(&row.worker_id);
            }
        }
        Ok(idle.into_iter().collect())
    }

    /// What a pass would do, without doing it.
    pub(super) async fn preview(&mut self, snapshot: &Snapshot) -> Result<Preview, PassError> {
        self.remember().await?;
        let shown = self.shown().await?;
        let plan = self.plan(snapshot, &shown);
        let (changed, added) = plan.upsert.iter().map(|r| r.worker_id).partition(|id| shown.contains_key(id));
        Ok(Preview { added, changed, removed: plan.delete, foreign: Vec::new() })
    }

    async fn upsert(&mut self, requests: Vec<WorkerRequest>, outcome: &mut Outcome, report: &mut PassReport) {
        let client = &self.client;
        let mut calls = stream::iter(requests)
            .map(|request| async move {
                let answer = post(client, &request).await;
                (request, answer)
            })
            .buffer_unordered(PARALLEL);
        while let Some((request, answer)) = calls.next().await {
            let id = request.worker_id;
            match answer {
                Ok(shown) => {
                    outcome.absent_in_a_row = 0;
                    report.upserted += 1;
                    self.reworded.remove(&id);
                    if shown.request != request {
                        self.reworded.insert(id, (request, shown.request));
                    }
                    if shown.lifecycle != Lifecycle::Schedulable {
                        self.incomplete.insert(id, Instant::now());
                        report.not_schedulable.push((id, shown.not_schedulable_reasons));
                    }
                }
                // Refused as a record: a result, not a failure of the pass.
                Err(ClientError::Status { status: 400 | 422, text, .. }) => {
                    self.refused.insert(id, Instant::now());
                    report.not_schedulable.push((id, vec![text]));
                }
                Err(error) => outcome.failed(error),
            }
            if outcome.is_hopeless() {
                return;
            }
        }
    }

    async fn delete(&mut self, ids: impl IntoIterator<Item = u64>, outcome: &mut Outcome, report: &mut PassReport) {
        let client = &self.client;
        let ids: Vec<u64> = ids.into_iter().collect();
        let mut calls = stream::iter(ids)
            .map(|id| async move { (id, client.call(Method::DELETE, &["workers", &id.to_string()], &[], None).await) })
            .buffer_unordered(PARALLEL);
        while let Some((id, answer)) = calls.next().await {
            match answer {
                Ok(_) => {
                    outcome.absent_in_a_row = 0;
                    report.deleted += 1;
                    self.tracked.get_or_insert_default().remove(&id);
                }
                // Gone already.
                Err(error) if error.status() == Some(404) => {
                    self.tracked.get_or_insert_default().remove(&id);
                }
                Err(error) => outcome.failed(error),
            }
            if outcome.is_hopeless() {
                return;
            }
        }
    }

    /// Reads the state file at first contact.
    async fn remember(&mut self) -> Result<(), PassError> {
        if self.tracked.is_some() {
            return Ok(());
        }
        let Some(state) = self.state.clone() else {
            self.tracked = Some(BTreeSet::new());
            return Ok(());
        };
        let loaded = state.load_apart().await?;
        // What was registered before is then not known: strangers stay, which is the safe side.
        self.tracked = Some(loaded.map(|known| known.worker_ids).unwrap_or_else(|error| {
            tracing::error!(selector = self.client.address(), %error, "state file cannot be used; workers of former runs stay");
            BTreeSet::new()
        }));
        Ok(())
    }

    /// Adds what is about to be sent, and what is there and wanted, before anything is sent.
    async fn track<'a>(
        &mut self,
        sent: impl Iterator<Item = u64>,
        shown: impl Iterator<Item = &'a u64>,
        snapshot: &Snapshot,
    ) -> Result<(), PassError> {
        let tracked = self.tracked.get_or_insert_default();
        let before = tracked.len();
        tracked.extend(sent);
        tracked.extend(shown.filter(|id| snapshot.get(**id).is_some()));
        if tracked.len() == before { Ok(()) } else { self.store().await }
    }

    async fn store(&self) -> Result<(), PassError> {
        let (Some(state), Some(worker_ids)) = (self.state.clone(), self.tracked.clone()) else { return Ok(()) };
        state.store_apart(WorkerIds { worker_ids }).await
    }
}

fn is_recent(sent: &Instant) -> bool {
    sent.elapsed() < INCOMPLETE_RETRY
}

async fn post(client: &RemoteClient, request: &WorkerRequest) -> Result<Shown, ClientError> {
    let body = serde_json::to_vec(request)
        .map_err(|e| ClientError::Answer { call: "POST /workers".to_owned(), reason: e.to_string() })?;
    let answer = client.call(Method::POST, &["workers"], &[], Some(body)).await?;
    client.decode("POST /workers", &answer)
}

/// The record without the fields the reference does not know, so that what it shows can be compared.
fn known_to_reference(request: &WorkerRequest) -> WorkerRequest {
    let mut request = request.clone();
    request.fields.replay_endpoints.clear();
    request.fields.worker_role = None;
    request
}
