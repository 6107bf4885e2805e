//! One followed publisher: its messages are applied as they come, its beacons tell what was lost.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    compare::Comparison,
    outlet::unix_nanos,
    peers::Peers,
    repair::Wanted,
    wire::{
        MESH_TOPIC, SESSION_TOPIC, SLOT_TOPIC,
        beacon::{Beacon, Envelope, MeshDecodeError, Missed},
        decode_session, decode_slot,
    },
};
use crate::{
    events::transport::{Message, Subscriber, SubscriberEvent},
    selection::{
        PartitionKey, WorkerWithDpRank,
        core::{Mirrored, MissedCall},
        replication::{BookingChange, RouterId},
    },
};

/// Messages applied before other tasks of the thread get a turn, and what larger ones count as.
const TURN: usize = 128;
const TURN_BYTES: usize = 16 << 10;
/// A replica of ours that says nothing over a connection for this many beacons gets a new connection: what broke may
/// not show for as long as nothing is sent.
const SILENT_BEACONS: u32 = 6;
/// Shortest time between two such connections.
const RECONNECT_PAUSE: Duration = Duration::from_secs(5);
/// Lag that is worth a warning.
const ALARM: Duration = Duration::from_millis(100);
/// One warning of a kind and peer in this time.
const QUIET: Duration = Duration::from_secs(30);
/// A connected peer without a beacon after this time is the reference's, and has said what it has to say.
const SPEAKS_WITHIN: Duration = Duration::from_millis(600);
/// How long the smallest clock offset counts: clocks drift.
const OFFSET_WINDOW: Duration = Duration::from_secs(300);

/// What a subscriber asks for.
pub(super) fn topics(sessions: bool) -> &'static [&'static [u8]] {
    if sessions { &[SLOT_TOPIC, SESSION_TOPIC, MESH_TOPIC] } else { &[SLOT_TOPIC, MESH_TOPIC] }
}

/// Why a message was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Drop {
    Frames,
    Topic,
    Decode,
    Version,
    Own,
    SecondEndpoint,
    Stale,
    ReceiverBehind,
    Panicked,
    Mirror(&'static str),
}

impl Drop {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Topic => "topic",
            Self::Decode => "decode",
            Self::Version => "wire_version",
            Self::Own => "own",
            Self::SecondEndpoint => "second_endpoint",
            Self::Stale => "stale",
            Self::ReceiverBehind => "receiver_behind",
            Self::Panicked => "panicked",
            Self::Mirror(reason) => reason,
        }
    }
}

/// Whether the first word of a peer is still awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    Waiting,
    Connected(Instant),
    Done,
}

/// A followed endpoint.
pub(super) struct Followed {
    pub(super) endpoint: Arc<str>,
    pub(super) state: Mutex<State>,
    contact: watch::Sender<Contact>,
    /// What its repair task is to ask for.
    pub(super) wanted: Mutex<Wanted>,
    pub(super) wake: Notify,
    pub(super) applied: AtomicU64,
    pub(super) repairs: AtomicU64,
    pub(super) failed_repairs: AtomicU64,
}

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) connected: bool,
    pub(super) last_error: Option<String>,
    pub(super) router_id: Option<RouterId>,
    pub(super) instance_id: Option<String>,
    pub(super) url: Option<String>,
    pub(super) wire_version: Option<u32>,
    pub(super) is_self: bool,
    pub(super) leaving: bool,
    pub(super) last_sequence: u64,
    pub(super) heard: Option<Instant>,
    /// A beacon came over the connection that is up.
    speaks: bool,
    reconnected: Option<Instant>,
    pub(super) lag: Option<Duration>,
    pub(super) late: u64,
    pub(super) disconnects: u64,
    pub(super) gaps: u64,
    pub(super) dropped: BTreeMap<Drop, u64>,
    pub(super) comparison: Comparison,
    /// Booking and session messages since `counted_from`.
    received: [u64; 2],
    counted_from: Option<[u64; 2]>,
    offsets: Offsets,
    warned: BTreeMap<&'static str, Instant>,
}

/// Smallest difference of two clocks seen lately: the fastest message.
#[derive(Debug, Default)]
struct Offsets {
    current: Option<(Instant, i128)>,
    previous: Option<i128>,
}

impl Offsets {
    /// How much later than the fastest a message came.
    fn lag(&mut self, sent: u64, received: u64, now: Instant) -> Duration {
        let offset = i128::from(received) - i128::from(sent);
        match &mut self.current {
            Some((since, smallest)) if now.duration_since(*since) < OFFSET_WINDOW => *smallest = offset.min(*smallest),
            current => {
                self.previous = current.map(|(_, smallest)| smallest);
                *current = Some((now, offset));
            }
        }
        let smallest = self.current.map_or(offset, |(_, smallest)| smallest);
        let smallest = self.previous.map_or(smallest, |previous| previous.min(smallest));
        Duration::from_nanos(u64::try_from(offset - smallest).unwrap_or(0))
    }
}

impl State {
    pub(super) fn drop_message(&mut self, drop: Drop) {
        *self.dropped.entry(drop).or_default() += 1;
    }

    /// Whether a replica that spoke over this connection has stopped to, and the connection is to be made anew.
    fn is_dead(&mut self, beacon_interval: Duration) -> bool {
        let now = Instant::now();
        let over = |since: Option<Instant>, limit| since.is_none_or(|since| now.duration_since(since) >= limit);
        let dead = self.connected
            && self.speaks
            && over(self.heard, beacon_interval * SILENT_BEACONS)
            && over(self.reconnected, RECONNECT_PAUSE);
        if dead {
            self.reconnected = Some(now);
        }
        dead
    }

    /// Whether a warning of this kind is due.
    fn warns(&mut self, kind: &'static str) -> bool {
        let now = Instant::now();
        let due = self.warned.get(kind).is_none_or(|last| now.duration_since(*last) >= QUIET);
        if due {
            self.warned.insert(kind, now);
        }
        due
    }
}

impl Followed {
    pub(super) fn new(endpoint: Arc<str>) -> Self {
        Self {
            endpoint,
            state: Mutex::default(),
            contact: watch::Sender::new(Contact::Waiting),
            wanted: Mutex::default(),
            wake: Notify::new(),
            applied: AtomicU64::new(0),
            repairs: AtomicU64::new(0),
            failed_repairs: AtomicU64::new(0),
        }
    }

    /// Where its HTTP API is, as far as it said so.
    pub(super) fn url(&self) -> Option<String> {
        let state = self.state.lock();
        state.url.clone().filter(|_| !state.is_self)
    }

    /// Waits until it has spoken, cannot be reached, or turns out to be the reference's.
    pub(super) async fn contacted(&self) {
        let mut contact = self.contact.subscribe();
        loop {
            let until = match *contact.borrow_and_update() {
                Contact::Done => return,
                Contact::Connected(since) => Some(since + SPEAKS_WITHIN),
                Contact::Waiting => None,
            };
            let news = contact.changed();
            let came = match until {
                Some(until) => matches!(tokio::time::timeout_at(until, news).await, Ok(Ok(()))),
                None => news.await.is_ok(),
            };
            if !came {
                return;
            }
        }
    }
}

/// Follows one publisher until its task is ended.
pub(super) async fn follow(peers: Weak<Peers>, followed: Arc<Followed>, mut subscriber: Subscriber) {
    let mut turn = 0;
    loop {
        let pause = peers.upgrade().map_or(RECONNECT_PAUSE, |peers| peers.config.beacon_interval);
        let event = match tokio::time::timeout(pause, subscriber.recv()).await {
            Ok(event) => event,
            Err(_) => {
                if followed.state.lock().is_dead(pause) {
                    tracing::info!(peer = %followed.endpoint, "a peer is silent: connecting anew");
                    subscriber.reconnect();
                }
                continue;
            }
        };
        let Some(peers) = peers.upgrade() else { return };
        match event {
            SubscriberEvent::Connected => {
                let mut state = followed.state.lock();
                state.connected = true;
                state.speaks = false;
                state.last_error = None;
                drop(state);
                followed.contact.send_if_modified(|contact| {
                    let waits = *contact == Contact::Waiting;
                    if waits {
                        *contact = Contact::Connected(Instant::now());
                    }
                    waits
                });
            }
            SubscriberEvent::Disconnected(error) => {
                let mut state = followed.state.lock();
                state.disconnects += u64::from(state.connected);
                state.connected = false;
                state.lag = None;
                state.last_error = Some(error.to_string());
                drop(state);
                followed.contact.send_replace(Contact::Done);
            }
            SubscriberEvent::Dropped(count) => {
                let mut state = followed.state.lock();
                *state.dropped.entry(Drop::ReceiverBehind).or_default() += count;
                if state.warns("behind") {
                    tracing::warn!(peer = %followed.endpoint, count, "this replica is behind a peer and dropped messages");
                }
            }
            SubscriberEvent::Message(message) => {
                let bytes: usize = message.iter().map(|frame| frame.len()).sum();
                let taken = catch_unwind(AssertUnwindSafe(|| take(&peers, &followed, &message)));
                if taken.is_err() {
                    followed.state.lock().drop_message(Drop::Panicked);
                }
                turn += 1 + bytes / TURN_BYTES;
                if turn >= TURN {
                    turn = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

fn take(peers: &Peers, followed: &Arc<Followed>, message: &Message) {
    let outcome = match &message[..] {
        [topic, payload] if **topic == *SLOT_TOPIC => {
            followed.state.lock().received[0] += 1;
            slot(peers, followed, payload)
        }
        [topic, payload] if **topic == *SESSION_TOPIC => {
            followed.state.lock().received[1] += 1;
            session(peers, payload)
        }
        [topic, payload] if **topic == *MESH_TOPIC => mesh(peers, followed, payload),
        [_, _] => Err(Drop::Topic),
        _ => Err(Drop::Frames),
    };
    match outcome {
        Ok(true) => drop(followed.applied.fetch_add(1, Ordering::Relaxed)),
        Ok(false) => {}
        Err(reason) => followed.state.lock().drop_message(reason),
    }
}

fn mirrored(outcome: Mirrored) -> Result<bool, Drop> {
    match outcome {
        Mirrored::Applied | Mirrored::EndedEarly => Ok(true),
        Mirrored::Known | Mirrored::Early => Ok(false),
        Mirrored::Dropped(drop) => Err(Drop::Mirror(drop.reason())),
    }
}

fn slot(peers: &Peers, followed: &Followed, payload: &[u8]) -> Result<bool, Drop> {
    let message = decode_slot(payload).map_err(|_| Drop::Decode)?;
    if message.router_id == peers.outlet.router_id() {
        return Err(Drop::Own);
    }
    if !peers.counts(message.router_id, &followed.endpoint) {
        return Err(Drop::SecondEndpoint);
    }
    if let Some(limit) = peers.config.peer_stale_after
        && matches!(message.event.change, BookingChange::Admitted(_))
        && lateness(&followed.state.lock(), peers.config.beacon_interval).is_some_and(|late| late > limit)
    {
        return Err(Drop::Stale);
    }
    mirrored(peers.core.mirror_booking(message.event, message.router_id))
}

/// How late a message that comes now is: what the last beacon showed, or how long none came.
fn lateness(state: &State, interval: Duration) -> Option<Duration> {
    let missing = state.heard?.elapsed().saturating_sub(interval * 2);
    Some(state.lag.unwrap_or_default().max(missing))
}

fn session(peers: &Peers, payload: &[u8]) -> Result<bool, Drop> {
    let event = decode_session(payload).map_err(|_| Drop::Decode)?;
    if event.version.writer_id == peers.outlet.router_id() {
        return Err(Drop::Own);
    }
    mirrored(peers.core.mirror_session(&event))
}

fn mesh(peers: &Peers, followed: &Arc<Followed>, payload: &[u8]) -> Result<bool, Drop> {
    let envelope = match Envelope::decode(payload) {
        Ok(envelope) => envelope,
        Err(error @ MeshDecodeError::Version(_)) => {
            let mut state = followed.state.lock();
            if let MeshDecodeError::Version(version) = error {
                state.wire_version = Some(version);
            }
            if state.warns("version") {
                tracing::warn!(peer = %followed.endpoint, %error, "a peer's messages are refused");
            }
            return Err(Drop::Version);
        }
        Err(_) => return Err(Drop::Decode),
    };
    if let Some(beacon) = envelope.beacon {
        hear(peers, followed, envelope.router_id, envelope.version, beacon);
    }
    match envelope.missed {
        Some(_) if envelope.router_id == peers.outlet.router_id() => Err(Drop::Own),
        Some(missed) => Ok(peers.core.catch_up(&call(missed))),
        None => Ok(false),
    }
}

fn call(missed: Missed) -> MissedCall {
    MissedCall {
        partition: PartitionKey::new(missed.model_name, missed.routing_group),
        selection_id: Arc::from(missed.selection_id),
        rank: WorkerWithDpRank::new(missed.worker_id, missed.dp_rank),
        origin: missed.origin,
        freed: missed.freed,
        age: Duration::from_nanos(missed.age),
    }
}

/// A beacon: the peer lives, and this is where it stands.
fn hear(peers: &Peers, followed: &Arc<Followed>, router_id: RouterId, version: u32, beacon: Beacon) {
    let (now, received) = (Instant::now(), unix_nanos());
    let is_self = router_id == peers.outlet.router_id();
    let counts = !is_self && peers.hear(router_id, &followed.endpoint);
    let mut state = followed.state.lock();
    if state.instance_id.as_deref() != Some(&*beacon.instance_id) {
        let restarted = state.instance_id.is_some();
        state.counted_from = None;
        state.offsets = Offsets::default();
        state.comparison = Comparison::default();
        if restarted && state.warns("restarted") {
            tracing::info!(peer = %followed.endpoint, "a peer restarted");
        }
    }
    state.router_id = Some(router_id);
    state.wire_version = Some(version);
    state.is_self = is_self;
    state.leaving = beacon.leaving;
    state.heard = Some(now);
    state.speaks = true;
    state.last_sequence = beacon.sequence;
    let host = || host_of(&followed.endpoint).zip(beacon.http_port);
    state.url = beacon.url.clone().or_else(|| host().map(|(host, port)| format!("http://{host}:{port}")));
    state.instance_id = Some(beacon.instance_id);
    let lag = state.offsets.lag(beacon.sent, received, now);
    state.lag = Some(lag);
    if lag > ALARM {
        state.late += 1;
        if state.warns("late") {
            tracing::warn!(peer = %followed.endpoint, lag_ms = lag.as_millis(), "a peer's messages arrive late");
        }
    }
    let published = [beacon.sequence, beacon.session_sequence];
    let lost = match state.counted_from {
        // One that counts backwards is beyond comparison.
        Some(from) => {
            std::array::from_fn(|of| published[of].saturating_sub(from[of]).saturating_sub(state.received[of]))
        }
        None => [0, 0],
    };
    let since = state.counted_from.map(|from| from[0]);
    state.counted_from = Some(published);
    state.received = [0, 0];
    let lost = lost[0].saturating_add(lost[1]);
    state.gaps = state.gaps.saturating_add(lost);
    drop(state);
    followed.contact.send_replace(Contact::Done);
    if !counts {
        return;
    }
    if lost > 0 {
        tracing::debug!(peer = %followed.endpoint, lost, "messages of a peer were lost");
    }
    super::compare::compare(peers, followed, router_id, &beacon.partitions, since.filter(|_| lost > 0));
}

/// The host of a TCP endpoint.
fn host_of(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix("tcp://")?.rsplit_once(':').map(|(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_measured_against_the_fastest_message() {
        let (mut offsets, now) = (Offsets::default(), Instant::now());
        let ms = 1_000_000;
        // The sender's clock is an hour ahead.
        let hour = 3_600_000 * ms;
        assert_eq!(offsets.lag(hour + 10 * ms, 12 * ms, now), Duration::ZERO);
        assert_eq!(offsets.lag(hour + 20 * ms, 25 * ms, now), Duration::from_millis(3));
        assert_eq!(offsets.lag(hour + 30 * ms, 31 * ms, now), Duration::ZERO);
        assert_eq!(offsets.lag(hour + 40 * ms, 141 * ms, now), Duration::from_millis(100));
        // The window moves on, and still knows the one before it.
        let later = now + OFFSET_WINDOW;
        assert_eq!(offsets.lag(hour + 50 * ms, 56 * ms, later), Duration::from_millis(5));
        assert_eq!(offsets.lag(hour + 60 * ms, 66 * ms, later + OFFSET_WINDOW), Duration::ZERO);
    }

    #[test]
    fn the_host_of_an_endpoint() {
        assert_eq!(host_of("tcp://10.0.0.1:9092"), Some("10.0.0.1"));
        assert_eq!(host_of("tcp://[::1]:9092"), Some("[::1]"));
        assert_eq!(host_of("ipc:///tmp/x"), None);
    }
}
