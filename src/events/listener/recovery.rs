//! Filling what the live stream does not bring: at the first connect, after a reconnect, in a gap.
//!
//! Live messages are read meanwhile, into a bounded backlog; as soon as the replay has caught up with the first of them
//! it ends. At most one request is made for a gap.

use std::pin::pin;

use futures_util::StreamExt;
use tokio::time::Instant;

use super::{
    super::{
        counts::{Count, DropReason},
        normalise::EventTarget,
        position::{Refill, Step, Verdict},
        replay::{self, Answer, Found},
        status::ListenerState,
        transport::{Subscriber, SubscriberEvent},
    },
    FIRST_RETRY, LAST_RETRY, Listener, is_due, live_frames,
};
use crate::{selection::ingest::Trust, telemetry::causes::chain};

/// What became of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The live stream has all that was missing.
    needless: bool,
    /// The replay socket answered.
    pub answered: bool,
    /// The answers prove that the publisher is another process than before.
    restarted: bool,
    /// The connection of the live stream ended meanwhile.
    pub disconnected: bool,
}

impl<T: EventTarget> Listener<T> {
    /// After a connect: everything from 0 the first time, else everything since the newest known batch, which also
    /// tells a publisher that restarted while it was idle.
    pub(super) async fn catch_up(&mut self, subscriber: &mut Subscriber, look_again: bool) {
        self.owed = None;
        let mut outcome = self.refill(subscriber, Refill::verify(&self.position)).await;
        if outcome.restarted {
            self.restarted();
            outcome = self.refill(subscriber, Refill::missing(&self.position)).await;
        }
        if outcome.disconnected {
            self.adrift = true;
        } else if outcome.answered || outcome.needless {
            if self.trust == Trust::Unknown && self.position.at().is_none() && !self.inherited && !outcome.needless {
                // The publisher has published nothing.
                self.set_trust(Trust::Complete);
            }
            self.heard();
            self.retry = FIRST_RETRY;
            self.owed = look_again.then(|| Instant::now() + self.config.second_look);
        } else {
            // An idle engine would stay unknown, or a restarted one unnoticed, until it publishes.
            self.owed = Some(Instant::now() + self.retry);
            self.retry = (self.retry * 2).min(LAST_RETRY);
        }
        self.shared.set_position(self.position.at(), self.position.last_live());
    }

    /// The live batch `seq` is not what the replay socket told, so what it told is of another stream or of none, and
    /// went into the index beside what came live. All of it is forgotten, and asked for again only where the socket
    /// can now show this very batch; `true` then.
    pub(super) async fn contradicted(&mut self, subscriber: &mut Subscriber, seq: u64, mark: u64) -> bool {
        let source = &self.shared.source;
        if is_due(&mut self.logged[2]) {
            tracing::warn!(
                worker_id = source.worker_id,
                dp_rank = source.dp_rank,
                replay_endpoint = source.replay_endpoint,
                seq,
                position = self.position.at(),
                "the replay socket tells of another stream than the publisher; what it told is forgotten"
            );
        }
        self.shared.count(Count::ContradictedReplays);
        self.forget();
        self.set_trust(Trust::Partial);
        let outcome = self.refill(subscriber, Refill::proof(seq, mark)).await;
        self.tried = None;
        outcome.needless
    }

    /// Makes one request and applies the answers to it that are missing.
    pub(super) async fn refill(&mut self, subscriber: &mut Subscriber, mut refill: Refill) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(endpoint) = self.shared.source.replay_endpoint.clone() else {
            return outcome;
        };
        if let Some((seq, _)) = self.backlog.messages().find_map(live_frames) {
            refill.live_at(seq);
        }
        if refill.done(&self.position) {
            outcome.needless = true;
            return outcome;
        }
        self.shared.set_state(ListenerState::Replaying);
        self.shared.count(Count::Replays);
        let config = self.config.clone();
        let mut answers = pin!(replay::request(&endpoint, refill.from(), &config.replay, &config.transport));
        let mut failed = true;
        while !refill.done(&self.position) {
            tokio::select! {
                answer = answers.next() => match answer {
                    Some(Answer::Sent) => {}
                    Some(Answer::Batch(found)) => {
                        outcome.answered = true;
                        outcome.restarted = self.replayed(&found, &mut refill);
                    }
                    Some(Answer::Broken) => self.dropped(DropReason::Framing),
                    Some(Answer::End) => {
                        outcome.answered = true;
                        // The ring is shorter than what was seen of this publisher.
                        outcome.restarted = refill.unproven();
                        failed = false;
                        break;
                    }
                    Some(Answer::Failed(error)) => {
                        self.shared.set_error(format!("replay: {}", chain(&error)));
                        break;
                    }
                    None => break,
                },
                event = subscriber.recv(), if self.backlog.has_room() => {
                    outcome.disconnected = matches!(event, SubscriberEvent::Disconnected(_));
                    let goes_on = self.set_aside(event, &mut refill);
                    self.shared.set_lag(self.backlog.len() + subscriber.queued());
                    if !goes_on {
                        failed = false;
                        break;
                    }
                }
            }
            if outcome.restarted {
                failed = false;
                break;
            }
        }
        outcome.needless = !outcome.restarted && refill.done(&self.position);
        if failed && !outcome.needless {
            self.shared.count(Count::FailedReplays);
        }
        if !outcome.disconnected {
            self.shared.set_state(ListenerState::Live);
        }
        // The first live batch must not lead to a second request for the same gap.
        self.tried = refill.until().map(|up_to| (up_to, outcome.answered && !outcome.restarted));
        outcome
    }

    /// Deals with one replayed batch; `true` when it proves a restart.
    fn replayed(&mut self, found: &Found, refill: &mut Refill) -> bool {
        let from = self.position.next();
        match refill.judge(found, &self.position) {
            Step::Restarted => return true,
            Step::Verified => return false,
            Step::Skip => {
                self.dropped(DropReason::OutsideReplay);
                return false;
            }
            Step::Hole => self.unfilled(from, found.seq, true),
            Step::Apply => {}
        }
        self.shared.count(Count::ReplayedBatches);
        self.apply(found.seq, found.mark, &found.payload);
        self.shared.set_position(self.position.at(), self.position.last_live());
        false
    }

    /// Keeps a live event for later. `false` when it makes the replay pointless: the connection ended, or the publisher
    /// is another one.
    fn set_aside(&mut self, event: SubscriberEvent, refill: &mut Refill) -> bool {
        let goes_on = match &event {
            SubscriberEvent::Disconnected(_) => false,
            SubscriberEvent::Message(message) => match live_frames(message) {
                Some((seq, payload)) => {
                    let newest = self.backlog.messages().rev().find_map(live_frames);
                    refill.live_at(seq);
                    match newest {
                        Some((newest, _)) => seq >= newest,
                        None => !matches!(
                            self.position.judge(seq, replay::fingerprint(payload)),
                            Verdict::Restart | Verdict::Contradiction
                        ),
                    }
                }
                None => true,
            },
            _ => true,
        };
        self.backlog.push(event);
        goes_on
    }
}
