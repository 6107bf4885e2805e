//! Passing the gate of start-up recovery, and going on from a peer's position.
//!
//! What was published meanwhile waits in the subscriber's queue: batches up to the position are passed over, those
//! above it are applied, and a hole between is asked from the replay socket from the position on. If the queue
//! overflowed, that is counted there, and looks like any other gap.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    super::{
        normalise::{EventTarget, RankMemories},
        takeover::Seed,
        transport::Subscriber,
    },
    Listener,
};
use crate::selection::ingest::Trust;

/// How often a listener that must not read yet tells its lag.
const LAG_PERIOD: Duration = Duration::from_millis(250);

impl<T: EventTarget> Listener<T> {
    /// Waits until this rank's recovery is over; the subscriber's queue fills meanwhile.
    pub(super) async fn start(&mut self, subscriber: &Subscriber) {
        if self.started {
            return;
        }
        let source = &self.shared.source;
        let key = (source.worker_id, source.dp_rank);
        let mut gate = self.takeover.watch();
        let mut connected = subscriber.connected();
        loop {
            self.shared.set_connected(*connected.borrow_and_update());
            tokio::select! {
                passed = async { gate.wait_for(|gate| gate.lets_pass(key)).await.is_ok() } => match passed {
                    true => break,
                    // Nobody is left who could open it.
                    false => std::future::pending().await,
                },
                // The subscriber lives, and with it the other end.
                _ = connected.changed() => {}
                () = sleep(LAG_PERIOD) => self.shared.set_lag(subscriber.queued()),
            }
        }
        self.started = true;
        self.silence.heard();
        if let Some(seed) = self.takeover.take(key) {
            self.resume(seed);
        }
    }

    /// Goes on where a peer stood.
    fn resume(&mut self, seed: Seed) {
        let Seed { endpoint, position, memory, trust } = seed;
        let same = endpoint.as_deref().is_none_or(|endpoint| endpoint == self.shared.source.endpoint);
        let memories = RankMemories::read(&memory);
        let (true, Some(memories)) = (same, memories) else {
            // Blocks of another stream.
            self.target.reset();
            return;
        };
        match position {
            Some((at, mark)) => {
                self.position.resume(at, mark);
                self.settle = Some(Instant::now() + self.config.on_the_way);
                let mut stream = self.shared.stream.lock();
                (stream.position, stream.memories) = (Some((at, mark)), memories);
            }
            None => self.inherited = true,
        }
        self.shared.set_position(self.position.at(), None);
        self.set_trust(match trust {
            Trust::Complete | Trust::Replayed if position.is_some() => Trust::Replayed,
            Trust::Partial => Trust::Partial,
            _ => Trust::Unknown,
        });
    }

    /// What was on its way when the position was taken over is dealt with, or will be first.
    pub(super) fn settle(&mut self, subscriber: &Subscriber) {
        if subscriber.queued() > 0 {
            self.settle = Some(Instant::now() + LAG_PERIOD);
            return;
        }
        self.settle = None;
        self.position.settle();
    }
}
