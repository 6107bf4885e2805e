//! One request to an engine's replay socket: a DEALER of its own, answers in both framings, deadlines (spec index 4.3,
//! clients 5b).
//!
//! Invariants: every wait has a limit; nothing of one exchange can be read as an answer to another.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::time::{Instant, sleep, timeout_at};
use xxhash_rust::xxh3::xxh3_64;

use super::transport::{Dealer, Message, TransportConfig, TransportError};

/// Limits of a replay.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// Longest wait for a connection, and for each answer. vLLM looks for requests every 0.1 s at worst.
    pub answer_timeout: Duration,
    /// Longest time for all answers; a ring of 10,000 large batches takes a few seconds.
    pub total_timeout: Duration,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self { answer_timeout: Duration::from_secs(2), total_timeout: Duration::from_secs(60) }
    }
}

/// A batch in an answer.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its number.
    pub seq: u64,
    /// Fingerprint of the payload.
    pub mark: u64,
    /// The payload.
    pub payload: Bytes,
}

/// What comes of a request, in order.
#[derive(Debug)]
pub enum Answer {
    /// The request is out.
    Sent,
    /// A batch.
    Batch(Found),
    /// Something that is no answer; it is skipped.
    Broken,
    /// The publisher has no more.
    End,
    /// Nothing more will come.
    Failed(TransportError),
}

/// Fingerprint of a payload.
pub fn fingerprint(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// A sequence number frame; the end marker's number is none.
pub fn sequence(frame: &[u8]) -> Option<u64> {
    frame.try_into().ok().map(u64::from_be_bytes).filter(|&seq| seq != u64::MAX)
}

enum State {
    Connect,
    Receive(Box<Dealer>),
    Ended,
}

/// Asks `endpoint` for everything from `from` on. The stream ends after [`Answer::End`] or [`Answer::Failed`]; dropping
/// it ends the exchange.
pub fn request(
    endpoint: &str,
    from: u64,
    config: &ReplayConfig,
    transport: &TransportConfig,
) -> impl Stream<Item = Answer> {
    let limit = Instant::now() + config.total_timeout;
    let pause = transport.reconnect_min;
    let answer_timeout = config.answer_timeout;
    stream::unfold(State::Connect, move |state| async move {
        let wait = limit.min(Instant::now() + answer_timeout);
        match state {
            State::Connect => match timeout_at(wait, open(endpoint, from, transport, pause, wait)).await {
                Ok(Ok(dealer)) => Some((Answer::Sent, State::Receive(Box::new(dealer)))),
                Ok(Err(error)) => Some((Answer::Failed(error), State::Ended)),
                Err(_) => Some((Answer::Failed(TransportError::Timeout("replay connection")), State::Ended)),
            },
            State::Receive(mut dealer) => match timeout_at(wait, dealer.recv()).await {
                Ok(Ok(message)) => match answer(message) {
                    Answer::End => Some((Answer::End, State::Ended)),
                    other => Some((other, State::Receive(dealer))),
                },
                Ok(Err(error)) => Some((Answer::Failed(error), State::Ended)),
                Err(_) => Some((Answer::Failed(TransportError::Timeout("replay answer")), State::Ended)),
            },
            State::Ended => None,
        }
    })
}

/// Connects and sends the request. A refused connection is tried again until the deadline: engines bind the replay
/// socket a moment after the publisher.
async fn open(
    endpoint: &str,
    from: u64,
    transport: &TransportConfig,
    pause: Duration,
    deadline: Instant,
) -> Result<Dealer, TransportError> {
    loop {
        match Dealer::connect(endpoint, transport.clone()).await {
            Ok(mut dealer) => {
                dealer.send(vec![Bytes::new(), Bytes::copy_from_slice(&from.to_be_bytes())]).await?;
                return Ok(dealer);
            }
            Err(error @ TransportError::Io { .. }) if Instant::now() + pause >= deadline => return Err(error),
            Err(TransportError::Io { .. }) => sleep(pause).await,
            Err(error) => return Err(error),
        }
    }
}

/// `["", seq, payload]` or `["", topic, seq, payload]`; an empty payload is the end.
fn answer(message: Message) -> Answer {
    let (seq, payload) = match &message[..] {
        [empty, seq, payload] | [empty, _, seq, payload] if empty.is_empty() => (seq, payload),
        _ => return Answer::Broken,
    };
    if payload.is_empty() {
        return Answer::End;
    }
    match sequence(seq) {
        Some(seq) => Answer::Batch(Found { seq, mark: fingerprint(payload), payload: payload.clone() }),
        None => Answer::Broken,
    }
}
