//! Start-up recovery: index and catalog from peers, before the first selection (spec index 7; design sections 6 and 9.6).
//!
//! | file | owns |
//! |---|---|
//! | `report` | how it ended, for each peer |
//! | `addresses` | names that stand for several peers |
//! | `client` | one request to a peer, limited |
//! | `plan` | which peer brings which rank |
//! | `snapshot` | a partition from a selector of ours, chunk by chunk |
//! | `dump` | everything from a selector without snapshots |
//! | `catalog` | the workers, while nobody else applies any |
//!
//! All peers are asked at once what they have; the best by coverage brings what it has, the others the ranks that they
//! know better. Where no snapshot comes, the dumps of the rest are taken, rank by rank from the first that has it.
//! Invariants: every wait has a limit, and when no peer helps the service starts empty: selectors that start together
//! never wait for each other. Blocks whose snapshot was not completed are forgotten.

mod addresses;
mod catalog;
mod client;
mod dump;
mod plan;
mod report;
mod snapshot;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub use self::report::{PeerAttempt, RecoveryError, RecoveryReport};
use self::{client::Client, plan::Job, snapshot::Taken};
use super::{Shared, config::RecoveryConfig, exports::IndexSummary};
use crate::{
    events::takeover::{Seed, StreamKey},
    selection::{
        core::HeldRanks,
        dump::ImportReport,
        ingest::Trust,
        snapshot::{SnapshotError, VERSION},
    },
};

/// How long the other peers may take once a selector of ours has answered.
const OTHERS: Duration = Duration::from_secs(2);
/// How long streams may take to connect before positions are read.
const CONNECT: Duration = Duration::from_secs(2);
const CONNECT_LOOK: Duration = Duration::from_millis(5);
/// How long a publisher may take to read a subscription.
const SUBSCRIBED: Duration = Duration::from_millis(100);
/// Longest summary read: 200,000 ranks and more.
const MAX_SUMMARY_BYTES: u64 = 64 << 20;
/// Most peers that are asked.
const MAX_PEERS: usize = 256;

/// Peers that hosts name at run time, until recovery asks.
#[derive(Debug)]
pub(super) struct LatePeers(Mutex<Option<Vec<String>>>);

impl Default for LatePeers {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl LatePeers {
    /// `false` when recovery has asked already.
    pub(super) fn add(&self, urls: impl IntoIterator<Item = String>) -> bool {
        self.0.lock().as_mut().map(|peers| peers.extend(urls)).is_some()
    }

    fn close(&self) -> Vec<String> {
        self.0.lock().take().unwrap_or_default()
    }

    fn any(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|peers| !peers.is_empty())
    }
}

/// What a peer said when asked what it has.
enum Asked {
    Snapshot(IndexSummary),
    Dump,
    Failed(RecoveryError),
}

/// What is filled, and how its streams go on.
#[derive(Default)]
pub(super) struct Filled {
    pub(super) report: RecoveryReport,
    pub(super) held: HeldRanks,
    pub(super) seeds: BTreeMap<StreamKey, Seed>,
}

/// Asks the peers, and `heard`, peers that have spoken already; fills the core, and lets listeners read.
pub(super) async fn run(shared: &Arc<Shared>, heard: Vec<String>) -> Filled {
    let config = &shared.config.recovery;
    let mut filled = Filled::default();
    if !config.peers.is_empty() || shared.late_peers.any() {
        sleep(config.wait).await;
    }
    let mut peers = config.peers.clone();
    peers.extend(shared.late_peers.close());
    let mut peers = addresses::expand(peers, config.timeout).await;
    peers.extend(heard);
    let mut seen = BTreeSet::new();
    peers.retain(|peer| seen.insert(peer.trim_end_matches('/').to_owned()));
    peers.truncate(MAX_PEERS);
    if peers.is_empty() {
        return filled;
    }
    let begun = Instant::now();
    let asked = ask_all(shared, &peers, config).await;
    filled.report.attempts = peers.iter().map(|peer| PeerAttempt::of(peer)).collect();
    let mut summaries = BTreeMap::new();
    let mut dumps = Vec::new();
    for (at, outcome) in asked.into_iter().enumerate() {
        let attempt = &mut filled.report.attempts[at];
        match outcome {
            Asked::Snapshot(summary) => {
                attempt.kind = Some("snapshot");
                summaries.insert(at, summary);
            }
            Asked::Dump => {
                attempt.kind = Some("dump");
                dumps.push(at);
            }
            Asked::Failed(error) => attempt.failed(&error),
        }
    }
    if config.take_catalog {
        let ready: Vec<_> = summaries.keys().map(|&at| peers[at].clone()).collect();
        filled.report.workers = catalog::take(shared, &ready, config).await;
    }
    take_snapshots(shared, &peers, summaries, dumps.is_empty(), config, &mut filled).await;
    if filled.held.is_empty() {
        take_dumps(shared, &peers, &dumps, config, &mut filled).await;
    }
    filled.report.resumed_ranks = filled.seeds.values().filter(|seed| seed.position.is_some()).count() as u64;
    filled.report.partitions = filled.held.iter().map(|(key, _)| key).collect::<BTreeSet<_>>().len() as u64;
    filled.report.seconds = begun.elapsed().as_secs_f64();
    let report = &filled.report;
    if report.partitions == 0 {
        tracing::warn!("no peer had anything to recover from, starting empty");
    } else {
        let RecoveryReport { partitions, blocks, resumed_ranks, seconds, .. } = *report;
        tracing::info!(partitions, blocks, resumed_ranks, seconds, "recovered from peers");
    }
    filled
}

/// Asks all peers at once what they have. The answers are in the order of the peers.
async fn ask_all(shared: &Arc<Shared>, peers: &[String], config: &RecoveryConfig) -> Vec<Asked> {
    let mut asked: Vec<Option<Asked>> = peers.iter().map(|_| None).collect();
    let question = |(at, peer): (usize, &String)| {
        let peer = peer.clone();
        async move { (at, ask(shared, &peer, config).await) }
    };
    let mut answers: FuturesUnordered<_> = peers.iter().enumerate().map(question).collect();
    let mut end = Instant::now() + config.timeout.saturating_mul(2);
    while let Ok(Some((at, answer))) = timeout_at(end, answers.next()).await {
        if matches!(answer, Asked::Snapshot(_)) {
            end = end.min(Instant::now() + OTHERS);
        }
        asked[at] = Some(answer);
    }
    let late = || Asked::Failed(RecoveryError::Timeout("waiting for an answer"));
    asked.into_iter().map(|answer| answer.unwrap_or_else(late)).collect()
}

async fn ask(shared: &Arc<Shared>, peer: &str, config: &RecoveryConfig) -> Asked {
    let client = match Client::new(peer, config) {
        Ok(client) => client,
        Err(error) => return Asked::Failed(error),
    };
    let answer = match client.get_whole("/replica_sync/index", &[], MAX_SUMMARY_BYTES).await {
        Ok(answer) => answer,
        // No such route; or no token of ours, which a dump does not ask for.
        Err(RecoveryError::Status(401 | 403 | 404 | 405)) => return Asked::Dump,
        Err(error) => return Asked::Failed(error),
    };
    /// What tells a selector of ours; other versions may have another shape.
    #[derive(serde::Deserialize)]
    struct Kind {
        version: u32,
        instance_id: String,
    }
    match serde_json::from_slice::<Kind>(&answer) {
        // Something that answers anything to any path.
        Err(_) => Asked::Dump,
        Ok(kind) if kind.instance_id == shared.core.instance_id() => Asked::Failed(RecoveryError::Itself),
        Ok(Kind { version, .. }) if version != VERSION => {
            let error = SnapshotError::Version(version);
            tracing::error!(peer, %error, "falling back to the peer's dump");
            Asked::Dump
        }
        Ok(_) => match serde_json::from_slice::<IndexSummary>(&answer) {
            Ok(summary) if summary.ready => Asked::Snapshot(summary),
            Ok(_) => Asked::Failed(RecoveryError::NotReady),
            Err(_) => Asked::Failed(SnapshotError::Malformed("its summary cannot be read").into()),
        },
    }
}

/// Waits until the streams that wait are connected, so that what is published after a peer's position comes here: an
/// engine without a replay socket cannot tell it again.
async fn connected(shared: &Shared) {
    let end = Instant::now() + CONNECT;
    while shared.sources.any_waits_unconnected() && Instant::now() < end {
        sleep(CONNECT_LOOK).await;
    }
    // A publisher takes a moment to read a subscription.
    sleep(SUBSCRIBED).await;
}

/// Takes what selectors of ours offer, from the next best one where the best fails.
async fn take_snapshots(
    shared: &Arc<Shared>,
    peers: &[String],
    mut summaries: BTreeMap<usize, IndexSummary>,
    only_source: bool,
    config: &RecoveryConfig,
    filled: &mut Filled,
) {
    loop {
        let jobs = plan::jobs(&summaries, &filled.held);
        if only_source {
            // The streams of all other ranks start now.
            let offered = jobs.iter().flat_map(|job| job.ranks.keys().copied());
            shared.sources.offer(offered.chain(filled.seeds.keys().copied()).collect());
        }
        if jobs.is_empty() {
            return;
        }
        connected(shared).await;
        let deadlines: BTreeMap<usize, Instant> =
            jobs.iter().map(|job| (job.peer, Instant::now() + config.peer_deadline)).collect();
        for job in jobs {
            if summaries.contains_key(&job.peer)
                && let Err(error) = take_job(shared, peers, &job, deadlines[&job.peer], config, filled).await
            {
                filled.report.attempts[job.peer].failed(&error);
                summaries.remove(&job.peer);
            }
        }
        // What failed is tried elsewhere; what a peer offered and did not bring is not asked for again.
        for summary in summaries.values_mut() {
            for partition in &mut summary.partitions {
                let key = &partition.partition.key;
                partition.ranks.retain(|rank| !filled.held.contains(&(key.clone(), plan::rank_of(rank))));
            }
        }
    }
}

async fn take_job(
    shared: &Arc<Shared>,
    peers: &[String],
    job: &Job,
    deadline: Instant,
    config: &RecoveryConfig,
    filled: &mut Filled,
) -> Result<(), RecoveryError> {
    let attempt = &mut filled.report.attempts[job.peer];
    let client = Client::new(&peers[job.peer], config)?;
    let place = match shared.core.recovering_partition(&job.key, job.block_size) {
        Ok(place) => place,
        Err(reason) => {
            tracing::warn!(peer = attempt.peer, partition = %job.key, reason, "skipped a partition of the peer's");
            attempt.error = Some(format!("{}: {reason}", job.key));
            attempt.reason = Some("partition");
            // These ranks have no place here, whoever offers them.
            filled.held.extend(job.ranks.values().map(|rank| (job.key.clone(), *rank)));
            return Ok(());
        }
    };
    let taking = snapshot::take(&client, job, &place);
    let outcome = match timeout_at(deadline, taking).await {
        Ok(outcome) => outcome,
        Err(_) => Err(RecoveryError::Timeout("before the whole answer was read")),
    };
    match outcome {
        Ok(Taken { blocks, resumed, void, seeds }) => {
            attempt.blocks += blocks;
            attempt.resumed += resumed;
            filled.report.blocks += blocks;
            filled.report.void_ranks += void.len() as u64;
            filled.held.extend(job.ranks.values().map(|rank| (job.key.clone(), *rank)));
            filled.seeds.extend(seeds);
            void.into_iter().for_each(|rank| place.clear(rank));
            Ok(())
        }
        Err(error) => {
            let ranks: Vec<_> = job.ranks.values().copied().collect();
            snapshot::forget(place, ranks).await;
            Err(error)
        }
    }
}

/// Takes the dumps of selectors without snapshots.
async fn take_dumps(
    shared: &Arc<Shared>,
    peers: &[String],
    dumps: &[usize],
    config: &RecoveryConfig,
    filled: &mut Filled,
) {
    for &at in dumps {
        let mut held = filled.held.clone();
        let attempt = &mut filled.report.attempts[at];
        let outcome = match Client::new(&peers[at], config) {
            Ok(client) => timeout(config.peer_deadline, dump::fetch(&shared.core, &client, &mut held)).await,
            Err(error) => Ok(Err(error)),
        };
        match outcome.unwrap_or(Err(RecoveryError::Timeout("before the whole answer was read"))) {
            Ok(ImportReport { partitions, blocks, skipped_events, skipped_partitions, .. }) => {
                let peer = &attempt.peer;
                tracing::info!(peer, partitions, blocks, "took a peer's dump");
                for (partition, reason) in &skipped_partitions {
                    tracing::warn!(peer, partition, reason, "skipped a partition of the peer's dump");
                }
                attempt.blocks = blocks;
                filled.report.blocks += blocks;
                filled.report.skipped_events += skipped_events;
                for (_, rank) in held.difference(&filled.held) {
                    let (endpoint, position, memory) = (None, None, Vec::new());
                    let seed = Seed { endpoint, position, memory, trust: Trust::Unknown };
                    filled.seeds.insert((rank.worker_id, rank.dp_rank), seed);
                }
                filled.held = held;
            }
            Err(error) => attempt.failed(&error),
        }
    }
}
