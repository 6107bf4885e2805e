//! One listener: follows the event stream of one rank and keeps the index equal to the engine's cache (spec index 4,
//! design 9.5).
//!
//! Invariants: batches are applied in stream order, each at most once; every wait on a peer has a limit, so no replay
//! socket can stop the live stream for good; what was learned from a publisher is forgotten with it.

mod backlog;
mod batches;
mod recovery;
mod silence;
mod start;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    task::coop::consume_budget,
    time::{Instant, sleep_until},
};

pub use super::replay::ReplayConfig;
use super::{
    counts::{Count, DropReason, Tally},
    normalise::EventTarget,
    position::{Position, Refill, Verdict},
    replay,
    status::{ListenerState, Shared},
    takeover::Takeover,
    transport::{Message, Subscriber, SubscriberEvent, TransportConfig, TransportError},
};
use crate::{selection::ingest::Trust, telemetry::causes::chain};
use backlog::Backlog;
use silence::Silence;

/// First pause before a replay socket that did not answer is tried again, unless the stream goes on; doubles.
const FIRST_RETRY: Duration = Duration::from_secs(2);

/// Longest such pause.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Least time between two log lines of a kind about one stream.
const QUIET: Duration = Duration::from_secs(10);

/// Settings of listeners.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// The sockets.
    pub transport: TransportConfig,
    /// Replay deadlines.
    pub replay: ReplayConfig,
    /// Live messages set aside while a replay runs; beyond it the subscriber's own queue fills.
    pub backlog_messages: usize,
    /// Their bytes.
    pub backlog_bytes: usize,
    /// How long after a catch-up a stream that stays silent is asked again: a batch published just before the publisher
    /// knew of the subscription is in neither the answers nor the stream.
    pub second_look: Duration,
    /// How long batches up to a peer's position may be on their way here; a lower number after that is a restart.
    pub on_the_way: Duration,
    /// Silence after which a rank's blocks earn no credit, see [`Trust::Stale`]; `None` = never.
    pub stale_after: Option<Duration>,
    /// First pause before a failed listener starts again; doubles.
    pub restart_min: Duration,
    /// Longest such pause.
    pub restart_max: Duration,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        let transport = TransportConfig {
            // An engine that restarts binds its publisher a few seconds before it takes requests; until the listener is
            // back, blocks of the dead process would be credited.
            reconnect_max: Duration::from_secs(1),
            // Thousands of streams may be behind at once; what is dropped comes by replay.
            queue_bytes: 16 << 20,
            ..TransportConfig::default()
        };
        Self {
            transport,
            replay: ReplayConfig::default(),
            backlog_messages: 1 << 16,
            backlog_bytes: 16 << 20,
            second_look: Duration::from_secs(3),
            on_the_way: Duration::from_secs(3),
            stale_after: None,
            restart_min: Duration::from_millis(200),
            restart_max: Duration::from_secs(30),
        }
    }
}

/// Follows one stream.
#[derive(Debug)]
pub(super) struct Listener<T> {
    shared: Arc<Shared>,
    target: T,
    config: Arc<ListenerConfig>,
    takeover: Arc<Takeover>,
    /// The gate was passed, and a peer's position taken over if there was one.
    started: bool,
    /// The rank may hold blocks of a peer that told no position.
    inherited: bool,
    /// When a peer's position must have been reached by what was on its way.
    settle: Option<Instant>,
    /// When a restart, a loss, and a replay of another stream was last logged.
    logged: [Option<Instant>; 3],
    position: Position,
    /// Its silence apart.
    trust: Trust,
    silence: Silence,
    backlog: Backlog,
    /// The live number up to which a replay was already tried, and whether it was answered.
    tried: Option<(u64, bool)>,
    /// The connection ended while a gap was being filled: what is left of it comes by the next replay.
    adrift: bool,
    /// When to ask the replay socket again, unless the stream goes on.
    owed: Option<Instant>,
    retry: Duration,
}

impl<T: EventTarget> Listener<T> {
    /// A listener that has seen nothing. It reads once `takeover` lets it pass.
    pub fn new(shared: Arc<Shared>, target: T, config: Arc<ListenerConfig>, takeover: Arc<Takeover>) -> Self {
        let backlog = Backlog::new(config.backlog_messages, config.backlog_bytes);
        let silence = Silence::new(config.stale_after);
        Self {
            shared,
            target,
            config,
            takeover,
            started: false,
            inherited: false,
            settle: None,
            logged: [None; 3],
            position: Position::default(),
            trust: Trust::default(),
            silence,
            backlog,
            tried: None,
            adrift: false,
            owed: None,
            retry: FIRST_RETRY,
        }
    }

    /// Listens until dropped. Position and memory outlive it, so it can be called again after a failure.
    ///
    /// # Errors
    /// The endpoint cannot be used.
    pub async fn run(&mut self) -> Result<Infallible, TransportError> {
        self.backlog.clear();
        self.lost_connection();
        let source = &self.shared.source;
        let mut subscriber = Subscriber::connect(&source.endpoint, &[b""], self.config.transport.clone())?;
        self.start(&subscriber).await;
        self.shared.set_state(ListenerState::Connecting);
        loop {
            consume_budget().await;
            let event = match self.backlog.pop() {
                Some(event) => event,
                None => tokio::select! {
                    event = subscriber.recv() => event,
                    () = until(self.owed) => {
                        self.catch_up(&mut subscriber, false).await;
                        continue;
                    }
                    () = until(self.settle) => {
                        self.settle(&subscriber);
                        continue;
                    }
                    () = until(self.silence.due()) => {
                        self.silent(&mut subscriber).await;
                        continue;
                    }
                },
            };
            match event {
                SubscriberEvent::Connected => {
                    self.shared.count(Count::Connects);
                    self.shared.set_state(ListenerState::Live);
                    self.adrift = false;
                    if self.shared.source.replay_endpoint.is_some() {
                        self.catch_up(&mut subscriber, true).await;
                    }
                }
                SubscriberEvent::Disconnected(error) => {
                    self.shared.set_state(ListenerState::Connecting);
                    self.shared.set_error(format!("publisher: {}", chain(&error)));
                    self.lost_connection();
                }
                SubscriberEvent::Dropped(n) => {
                    let mut tally = Tally::default();
                    tally.drop(DropReason::Overflow, n);
                    self.shared.add(&tally);
                    // The next live batch would show the gap; an engine that falls idle now has none.
                    if self.shared.source.replay_endpoint.is_some() {
                        self.catch_up(&mut subscriber, true).await;
                    }
                }
                SubscriberEvent::Message(message) => self.live(&mut subscriber, message).await,
            }
            self.shared.set_lag(self.backlog.len() + subscriber.queued());
        }
    }

    /// Applying a batch panicked: it may be applied in part.
    pub fn panicked(&mut self) {
        self.set_trust(Trust::Partial);
    }

    /// What the numbers of the next connection are held against.
    fn lost_connection(&mut self) {
        self.position.disconnected();
        self.silence.lost_connection();
        self.tried = None;
        self.adrift = false;
        self.owed = None;
        self.shared.set_position(self.position.at(), None);
    }

    /// Deals with one live message.
    async fn live(&mut self, subscriber: &mut Subscriber, message: Message) {
        let Some((seq, payload)) = live_frames(&message) else {
            return self.dropped(DropReason::Framing);
        };
        if self.adrift {
            return;
        }
        self.owed = None;
        let mut tried = self.tried.take();
        let mark = replay::fingerprint(payload);
        let mut verdict = self.position.judge(seq, mark);
        if verdict == Verdict::Restart {
            self.restarted();
            // What was tried for the former publisher says nothing about this one.
            tried = None;
            verdict = self.position.judge(seq, mark);
        }
        if verdict == Verdict::Contradiction {
            let proven = self.contradicted(subscriber, seq, mark).await;
            tried = (!proven).then_some((seq, false));
            verdict = self.position.judge(seq, mark);
        }
        if matches!(verdict, Verdict::Gap { .. }) {
            self.shared.count(Count::Gaps);
            let answered = match tried {
                Some((up_to, answered)) if up_to == seq => answered,
                _ if self.shared.source.replay_endpoint.is_some() => {
                    let mut refill = Refill::missing(&self.position);
                    refill.live_at(seq);
                    let outcome = self.refill(subscriber, refill).await;
                    if outcome.disconnected {
                        // Not lost yet: the replay of the next connection brings this batch too.
                        self.adrift = true;
                        return;
                    }
                    outcome.answered
                }
                _ => false,
            };
            // Replay may have gone past it.
            verdict = self.position.judge(seq, mark);
            if let Verdict::Gap { from } = verdict {
                self.unfilled(from, seq, answered);
            }
        }
        self.position.saw_live(seq);
        self.heard();
        match verdict {
            Verdict::Duplicate => self.dropped(DropReason::Duplicate),
            _ => self.apply(seq, mark, payload),
        }
        self.shared.set_position(self.position.at(), self.position.last_live());
    }

    /// The publisher is a new process with an empty cache.
    fn restarted(&mut self) {
        let source = &self.shared.source;
        if is_due(&mut self.logged[0]) {
            tracing::info!(
                worker_id = source.worker_id,
                dp_rank = source.dp_rank,
                endpoint = %source.endpoint,
                position = self.position.at(),
                "event publisher restarted; its blocks are forgotten"
            );
        }
        self.shared.count(Count::PublisherRestarts);
        self.forget();
        self.set_trust(Trust::Complete);
    }

    /// Forgets all that was learned of the publisher.
    fn forget(&mut self) {
        {
            let mut stream = self.shared.stream.lock();
            stream.begin_anew();
            stream.memories.forget();
            stream.position = None;
            self.target.reset();
        }
        self.inherited = false;
        self.settle = None;
        self.position.restart();
    }

    /// Batches `from..upto` are lost for good. Where a replay socket answers, the blocks of before are forgotten and
    /// the rank is rebuilt from what comes now; where there is none, they stay and are believed less.
    fn unfilled(&mut self, from: u64, upto: u64, answered: bool) {
        let source = &self.shared.source;
        let held = answered && self.position.at().is_some();
        if is_due(&mut self.logged[1]) {
            tracing::warn!(
                worker_id = source.worker_id,
                dp_rank = source.dp_rank,
                from,
                upto,
                forgotten = held,
                "event batches are lost"
            );
        }
        self.shared.count(Count::UnfilledGaps);
        if held {
            let mut stream = self.shared.stream.lock();
            stream.begin_anew();
            self.target.reset();
        }
        // What is indexed from here on is right, unless blocks of before are left that nobody vouches for.
        let clean = answered && (held || !self.inherited);
        self.inherited &= !held;
        self.set_trust(if clean { Trust::Replayed } else { Trust::Partial });
    }

    fn set_trust(&mut self, trust: Trust) {
        self.trust = trust;
        self.shared.stream.lock().trust = trust;
        self.show_trust();
    }

    /// Tells what is believed, silence included, if it changed.
    fn show_trust(&mut self) {
        let trust = if self.silence.is_stale() { Trust::Stale } else { self.trust };
        if self.shared.trust().0 != trust {
            self.shared.set_trust(trust);
            self.target.set_trust(trust);
        }
    }

    fn dropped(&self, reason: DropReason) {
        let mut tally = Tally::default();
        tally.drop(reason, 1);
        self.shared.add(&tally);
    }
}

/// Topic, 8-byte number, payload; anything else is no message of a stream.
fn live_frames(message: &Message) -> Option<(u64, &[u8])> {
    match &message[..] {
        [_topic, seq, payload] => Some((replay::sequence(seq)?, payload)),
        _ => None,
    }
}

/// Whether a line may be logged: one of a kind in 10 s, whatever a publisher does. All are counted.
fn is_due(last: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.duration_since(last) >= QUIET);
    if due {
        *last = Some(now);
    }
    due
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
