//! What `GET /listeners` and the metrics tell about listeners.
//!
//! Invariants: listeners write with relaxed atomics and take no lock a reader could hold for long; totals outlive the
//! listeners that added to them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Serialize;

use super::{
    counts::{Count, Tally, Totals},
    normalise::RankMemories,
    takeover::StreamCut,
};
use crate::selection::ingest::{EventSource, Trust};

/// What a listener is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ListenerState {
    /// Connected or connecting, and not reading before its start-up recovery is done.
    Waiting,
    /// Without a connection to the publisher, and trying.
    Connecting,
    /// Asking the replay socket for what is missing.
    Replaying,
    /// Following the stream.
    Live,
    /// Failed; it starts again after a pause.
    Restarting,
    /// Its endpoint cannot be used.
    Failed,
    /// Told to stand still; its position and blocks stay.
    Paused,
}

impl ListenerState {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Waiting, Self::Connecting, Self::Replaying, Self::Live, Self::Restarting, Self::Failed, Self::Paused];

    /// A stable word for metrics and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Live => "live",
            Self::Restarting => "restarting",
            Self::Failed => "failed",
            Self::Paused => "paused",
        }
    }
}

/// A listener as `GET /listeners` shows it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ListenerStatus {
    /// Worker.
    pub worker_id: u64,
    /// Rank it was registered for.
    pub dp_rank: u32,
    /// Endpoint of the publisher.
    pub endpoint: String,
    /// Endpoint of the replay socket.
    pub replay_endpoint: Option<String>,
    /// What it is doing.
    pub state: ListenerState,
    /// How far its part of the index can be believed.
    pub trust: Trust,
    /// Seconds since that became so.
    pub trust_age_seconds: f64,
    /// Number of the newest batch taken, live or replayed.
    pub position: Option<u64>,
    /// Number of the newest live batch on this connection.
    pub last_live: Option<u64>,
    /// Messages received and not applied yet.
    pub lag: u64,
    /// Connections made to the publisher.
    pub connects: u64,
    /// Batches applied.
    pub batches: u64,
    /// Of those, by replay.
    pub replayed_batches: u64,
    /// Blocks in applied stores.
    pub stored_blocks: u64,
    /// Blocks removed.
    pub removed_blocks: u64,
    /// Store events that wait for their parent, since the start.
    pub waiting_events: u64,
    /// Clears applied.
    pub clears: u64,
    /// Gaps in live numbers.
    pub gaps: u64,
    /// Gaps of which something stayed missing.
    pub unfilled_gaps: u64,
    /// Replay requests.
    pub replays: u64,
    /// Of those, failed or not answered to the end in time.
    pub failed_replays: u64,
    /// Replays that told of another stream than the publisher's.
    pub contradicted_replays: u64,
    /// Publisher restarts detected.
    pub publisher_restarts: u64,
    /// Restarts of the listener itself.
    pub listener_restarts: u64,
    /// Drops by reason, those that occurred.
    pub dropped: BTreeMap<&'static str, u64>,
    /// The newest error.
    pub last_error: Option<String>,
}

/// How far one rank's part of the index can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct RankTrust {
    /// Rank.
    pub dp_rank: u32,
    /// How far.
    pub trust: Trust,
    /// Seconds since that became so.
    pub trust_age_seconds: f64,
}

/// No number yet.
const NONE: u64 = u64::MAX;

/// Where a stream stands, for a snapshot.
#[derive(Debug)]
pub(super) struct Stream {
    /// Changes whenever the blocks of before are forgotten; no two streams ever have the same one.
    pub incarnation: u64,
    /// Number and fingerprint of the newest batch that is in the index.
    pub position: Option<(u64, u64)>,
    /// What its events have taught.
    pub memories: RankMemories,
    /// How far it can be believed, its silence apart.
    pub trust: Trust,
}

impl Stream {
    fn new() -> Self {
        let (position, memories, trust) = (None, RankMemories::default(), Trust::default());
        Self { incarnation: next_incarnation(), position, memories, trust }
    }

    /// The blocks of before are forgotten.
    pub fn begin_anew(&mut self) {
        self.incarnation = next_incarnation();
    }
}

fn next_incarnation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// What a listener shares with readers of its status.
#[derive(Debug)]
pub(super) struct Shared {
    pub source: EventSource,
    /// Where the stream stands, held while a batch is applied: who holds it sees a batch whole or not at all.
    pub stream: Mutex<Stream>,
    all: Arc<Totals>,
    own: Totals,
    state: AtomicU8,
    trust: Mutex<(Trust, Instant)>,
    connected: AtomicBool,
    position: AtomicU64,
    last_live: AtomicU64,
    lag: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Shared {
    pub fn new(source: EventSource, all: Arc<Totals>) -> Self {
        Self {
            source,
            stream: Mutex::new(Stream::new()),
            all,
            own: Totals::default(),
            state: AtomicU8::new(ListenerState::Waiting as u8),
            trust: Mutex::new((Trust::default(), Instant::now())),
            connected: AtomicBool::new(false),
            position: AtomicU64::new(NONE),
            last_live: AtomicU64::new(NONE),
            lag: AtomicU64::new(0),
            last_error: Mutex::new(None),
        }
    }

    /// Adds a tally, and logs each unusual reason for drops the first time it occurs.
    pub fn add(&self, tally: &Tally) {
        for reason in tally.reasons() {
            if self.own.dropped(reason) == 0 && !reason.is_usual() {
                let EventSource { worker_id, dp_rank, .. } = self.source;
                tracing::warn!(worker_id, dp_rank, reason = reason.as_str(), "dropped events for a new reason");
            }
        }
        self.own.add(tally);
        self.all.add(tally);
    }

    pub fn count(&self, count: Count) {
        let mut tally = Tally::default();
        tally.add(count, 1);
        self.add(&tally);
    }

    pub fn set_state(&self, state: ListenerState) {
        self.state.store(state as u8, Relaxed);
    }

    pub fn state(&self) -> ListenerState {
        ListenerState::ALL[usize::from(self.state.load(Relaxed)) % ListenerState::ALL.len()]
    }

    pub fn set_trust(&self, trust: Trust) {
        *self.trust.lock() = (trust, Instant::now());
    }

    /// How far the rank can be believed, and for how long that has been so.
    pub fn trust(&self) -> (Trust, Duration) {
        let (trust, since) = *self.trust.lock();
        (trust, since.elapsed())
    }

    /// Where the stream stands between two batches.
    pub fn cut(&self) -> StreamCut {
        let stream = self.stream.lock();
        let memory = stream.memories.write();
        StreamCut {
            endpoint: self.source.endpoint.clone(),
            incarnation: stream.incarnation,
            position: stream.position.filter(|_| memory.is_some()),
            memory,
            trust: stream.trust,
        }
    }

    pub fn set_position(&self, at: Option<u64>, last_live: Option<u64>) {
        self.position.store(at.unwrap_or(NONE), Relaxed);
        self.last_live.store(last_live.unwrap_or(NONE), Relaxed);
    }

    /// Whether the publisher is connected, told while the listener waits.
    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Relaxed);
    }

    /// Whether the listener waits, and without a connection.
    pub fn waits_unconnected(&self) -> bool {
        self.state() == ListenerState::Waiting && !self.connected.load(Relaxed)
    }

    pub fn set_lag(&self, lag: usize) {
        self.lag.store(lag as u64, Relaxed);
    }

    pub fn lag(&self) -> u64 {
        self.lag.load(Relaxed)
    }

    pub fn set_error(&self, error: String) {
        *self.last_error.lock() = Some(error);
    }

    pub fn status(&self) -> ListenerStatus {
        let number = |cell: &AtomicU64| Some(cell.load(Relaxed)).filter(|&value| value != NONE);
        let count = |count| self.own.count(count);
        let (trust, trust_age) = self.trust();
        ListenerStatus {
            worker_id: self.source.worker_id,
            dp_rank: self.source.dp_rank,
            endpoint: self.source.endpoint.clone(),
            replay_endpoint: self.source.replay_endpoint.clone(),
            state: self.state(),
            trust,
            trust_age_seconds: trust_age.as_secs_f64(),
            position: number(&self.position),
            last_live: number(&self.last_live),
            lag: self.lag(),
            connects: count(Count::Connects),
            batches: count(Count::Batches),
            replayed_batches: count(Count::ReplayedBatches),
            stored_blocks: count(Count::StoredBlocks),
            removed_blocks: count(Count::RemovedBlocks),
            waiting_events: count(Count::WaitingEvents),
            clears: count(Count::Clears),
            gaps: count(Count::Gaps),
            unfilled_gaps: count(Count::UnfilledGaps),
            replays: count(Count::Replays),
            failed_replays: count(Count::FailedReplays),
            contradicted_replays: count(Count::ContradictedReplays),
            publisher_restarts: count(Count::PublisherRestarts),
            listener_restarts: count(Count::ListenerRestarts),
            dropped: self.own.dropped_by_reason(),
            last_error: self.last_error.lock().clone(),
        }
    }
}
