//! What is known of a followed publisher: its connection, what its beacons said, what was lost and dropped.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{compare::Comparison, repair::Wanted};
use crate::selection::replication::RouterId;

/// A replica of ours that says nothing over a connection for this many beacons gets a new connection: what broke may
/// not show for as long as nothing is sent.
const SILENT_BEACONS: u32 = 6;
/// Shortest time between two such connections.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_secs(5);
/// One warning of a kind and peer in this time.
const QUIET: Duration = Duration::from_secs(30);
/// A connected peer without a beacon after this time is the reference's, and has said what it has to say.
const SPEAKS_WITHIN: Duration = Duration::from_millis(600);
/// How long the smallest clock offset counts: clocks drift.
const OFFSET_WINDOW: Duration = Duration::from_secs(300);

/// Why a message was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Drop {
    Frames,
    Topic,
    Decode,
    Version,
    Own,
    SecondEndpoint,
    Contested,
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
            Self::Contested => "contested",
            Self::Stale => "stale",
            Self::ReceiverBehind => "receiver_behind",
            Self::Panicked => "panicked",
            Self::Mirror(reason) => reason,
        }
    }
}

/// Whether the first word of a peer is still awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    Waiting,
    Connected(Instant),
    Done,
}

/// A followed endpoint.
pub(super) struct Followed {
    pub(super) endpoint: Arc<str>,
    pub(super) state: Mutex<State>,
    pub(super) contact: watch::Sender<Contact>,
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
    pub(super) speaks: bool,
    reconnected: Option<Instant>,
    pub(super) lag: Option<Duration>,
    pub(super) late: u64,
    pub(super) disconnects: u64,
    pub(super) gaps: u64,
    pub(super) dropped: BTreeMap<Drop, u64>,
    pub(super) comparison: Comparison,
    /// Booking and session messages since `counted_from`.
    pub(super) received: [u64; 2],
    pub(super) counted_from: Option<[u64; 2]>,
    pub(super) offsets: Offsets,
    warned: BTreeMap<&'static str, Instant>,
}

/// Smallest difference of two clocks seen lately: the fastest message.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    current: Option<(Instant, i128)>,
    previous: Option<i128>,
}

impl Offsets {
    /// How much later than the fastest a message came.
    pub(super) fn lag(&mut self, sent: u64, received: u64, now: Instant) -> Duration {
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
    /// Who speaks over the connection that is up, once that is told.
    pub(super) fn speaker(&self) -> Option<RouterId> {
        self.router_id.filter(|_| self.speaks)
    }

    pub(super) fn drop_message(&mut self, drop: Drop) {
        *self.dropped.entry(drop).or_default() += 1;
    }

    /// Whether a replica that spoke over this connection has stopped to, and the connection is to be made anew.
    pub(super) fn is_dead(&mut self, beacon_interval: Duration) -> bool {
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
    pub(super) fn warns(&mut self, kind: &'static str) -> bool {
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
}
