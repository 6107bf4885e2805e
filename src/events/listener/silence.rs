//! Streams that fall silent (`stale_after`): from when on nothing proves any more that the index is up to date.
//!
//! A batch proves it; so does a replay that had nothing missing, and anything that arrives on a connection that has not
//! broken since the last proof, heartbeats included: an idle engine has nothing to say.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{normalise::EventTarget, transport::Subscriber},
    Listener,
};

/// Shortest pause between two looks at a silent stream.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long a stream has proved nothing.
#[derive(Debug)]
pub(super) struct Silence {
    limit: Option<Duration>,
    proved: Instant,
    /// The connection has not broken since.
    unbroken: bool,
    stale: bool,
    /// When it is looked at next.
    look: Option<Instant>,
}

impl Silence {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        let proved = Instant::now();
        Self { limit, proved, unbroken: false, stale: false, look: limit.map(|limit| proved + limit) }
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether the last proof is recent enough.
    fn is_fresh(&self) -> bool {
        self.limit.is_none_or(|limit| self.proved.elapsed() < limit)
    }

    /// When to look at it.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look
    }

    pub(super) fn lost_connection(&mut self) {
        self.unbroken = false;
    }

    /// A proof came; `true` when the stream was stale before it.
    pub(super) fn heard(&mut self) -> bool {
        let Some(limit) = self.limit else { return false };
        self.proved = Instant::now();
        self.unbroken = true;
        self.look = Some(self.proved + limit);
        std::mem::take(&mut self.stale)
    }

    /// Something came over the connection at `at`. `false` when the stream is due to be stale all the same.
    fn lives(&mut self, at: Instant) -> bool {
        let Some(limit) = self.limit else { return true };
        if self.unbroken {
            self.proved = self.proved.max(at);
        }
        let end = self.proved + limit;
        let lives = Instant::now() < end;
        self.look = Some(if lives { end } else { Instant::now() + limit.max(LOOK_AGAIN) });
        lives
    }
}

impl<T: EventTarget> Listener<T> {
    /// A batch or a replay has proved that the rank is up to date.
    pub(super) fn heard(&mut self) {
        if self.silence.heard() {
            self.show_trust();
        }
    }

    /// Nothing has proved that for as long as allowed.
    pub(super) async fn silent(&mut self, subscriber: &mut Subscriber) {
        if self.silence.lives(subscriber.heard()) {
            if std::mem::take(&mut self.silence.stale) {
                self.show_trust();
            }
            return;
        }
        if self.shared.source.replay_endpoint.is_some() {
            self.catch_up(subscriber, false).await;
            if self.silence.is_fresh() {
                return;
            }
        }
        if !self.silence.stale {
            self.silence.stale = true;
            let source = &self.shared.source;
            tracing::warn!(
                worker_id = source.worker_id,
                dp_rank = source.dp_rank,
                "event stream is silent: the rank's blocks earn no credit"
            );
            self.show_trust();
        }
    }
}
