//! Asking a peer for what is missing, over its HTTP API.
//!
//! One task a peer, one question at a time. Invariants: an answer is read in bounded pieces and within a time limit; a
//! truncated one ends nothing; at most [`MAX_WANTED`] questions wait.

use std::{
    collections::{BTreeMap, HashSet},
    pin::Pin,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use async_compression::tokio::bufread::ZstdDecoder;
use futures_util::TryStreamExt;
use reqwest::header;
use tokio::{
    io::{AsyncRead, AsyncReadExt, BufReader},
    time::Instant,
};
use tokio_util::io::StreamReader;

use super::{
    compare::Subject,
    follow::Followed,
    peers::Peers,
    state::{Frame, MAX_FRAME_BYTES},
    wire::beacon::WIRE_VERSION,
};
use crate::selection::{
    Moment, PartitionKey,
    core::{BookingSnapshot, MergeReport},
    replication::{RouterId, SessionEvent},
    sessions::SessionSnapshot,
};

/// Most questions that wait for one peer.
const MAX_WANTED: usize = 1024;
/// Time to connect to a peer, and between two pieces of its answer.
const STALL: Duration = Duration::from_secs(5);
/// Most bookings taken from one answer.
const MAX_BOOKINGS: usize = 10_000_000;
/// Most calls a peer is told of after one answer; the next answer brings the rest.
const MAX_TOLD: usize = 10_000;

/// Questions that wait.
#[derive(Debug, Default)]
pub(super) struct Wanted(BTreeMap<Subject, Option<u64>>);

impl Wanted {
    /// Asks for a subject: for bookings after a sequence number, or for all.
    pub(super) fn want(&mut self, subject: Subject, since: Option<u64>) {
        if let Some(known) = self.0.get_mut(&subject) {
            *known = known.zip(since).map(|(known, since)| known.min(since));
        } else if self.0.len() < MAX_WANTED {
            self.0.insert(subject, since);
        }
    }

    fn next(&mut self) -> Option<(Subject, Option<u64>)> {
        self.0.pop_first()
    }
}

/// Why an answer could not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RepairError {
    #[error("the peer has not said where its HTTP API is")]
    NoUrl,
    #[error("the peer cannot be asked")]
    Request(#[from] reqwest::Error),
    #[error("the peer answered {0}")]
    Status(reqwest::StatusCode),
    #[error("the answer broke off")]
    Read(#[from] std::io::Error),
    #[error("the answer is not readable")]
    Shape(#[from] rmp_serde::decode::Error),
    #[error("the answer speaks version {0}, this replica {WIRE_VERSION}")]
    Version(u32),
    #[error("the answer is larger than may be: {0}")]
    TooLarge(&'static str),
    #[error("another process answered")]
    OtherInstance,
    #[error("no answer in time")]
    Timeout,
}

/// Asks peers.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    token: Option<Arc<str>>,
    limit: Duration,
}

/// What a peer has.
#[derive(Debug, Default)]
struct State {
    bookings: Vec<BookingSnapshot>,
    sessions: Vec<SessionSnapshot>,
}

/// What a peer is asked for.
struct Question<'a> {
    url: &'a str,
    /// Only this process may answer.
    instance_id: Option<&'a str>,
    key: &'a PartitionKey,
    /// What this replica made; `None` = all.
    origin: Option<RouterId>,
    /// What its maker published after this sequence number.
    since: Option<u64>,
}

impl Client {
    pub(super) fn new(limit: Duration, token: Option<Arc<str>>) -> Result<Self, reqwest::Error> {
        // A peer is asked directly, wherever the environment sends other requests.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(STALL)
            .read_timeout(STALL)
            .build()?;
        Ok(Self { http, token, limit })
    }

    async fn ask(&self, question: &Question<'_>) -> Result<State, RepairError> {
        tokio::time::timeout(self.limit, self.state(question)).await.map_err(|_| RepairError::Timeout)?
    }

    async fn state(&self, question: &Question<'_>) -> Result<State, RepairError> {
        let Question { url, instance_id, key, origin, since } = *question;
        let mut request = self
            .http
            .get(format!("{}/replica_sync/state", url.trim_end_matches('/')))
            .query(&[("model_name", &*key.model_name), ("routing_group", &*key.routing_group)]);
        if let Some(origin) = origin {
            request = request.query(&[("origin", origin)]);
        }
        if let Some(since) = since {
            request = request.query(&[("since", since)]);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.header(header::ACCEPT_ENCODING, "zstd").send().await?;
        if !response.status().is_success() {
            return Err(RepairError::Status(response.status()));
        }
        let compressed = response.headers().get(header::CONTENT_ENCODING).is_some_and(|name| name == "zstd");
        let body = BufReader::new(StreamReader::new(response.bytes_stream().map_err(std::io::Error::other)));
        let mut body: Pin<Box<dyn AsyncRead + Send>> =
            if compressed { Box::pin(ZstdDecoder::new(body)) } else { Box::pin(body) };
        read(&mut body, instance_id).await
    }
}

async fn read(body: &mut Pin<Box<dyn AsyncRead + Send>>, instance_id: Option<&str>) -> Result<State, RepairError> {
    let mut state = State::default();
    let mut bytes = Vec::new();
    let mut is_first = true;
    loop {
        let length = body.read_u32_le().await? as usize;
        if length > MAX_FRAME_BYTES {
            return Err(RepairError::TooLarge("a frame"));
        }
        // Grows with what arrives, not with what is announced.
        bytes.clear();
        let got = body.as_mut().take(length as u64).read_to_end(&mut bytes).await?;
        if got < length {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let frame: Frame<'_> = rmp_serde::from_slice(&bytes)?;
        match &frame.head {
            Some(head) if head.version != WIRE_VERSION => return Err(RepairError::Version(head.version)),
            Some(head) if instance_id.is_some_and(|expected| expected != head.instance_id) => {
                return Err(RepairError::OtherInstance);
            }
            None if is_first => return Err(RepairError::Version(0)),
            _ => is_first = false,
        }
        state.bookings.extend(frame.bookings.into_iter().map(BookingSnapshot::from));
        state.sessions.extend(frame.sessions.into_iter().map(SessionSnapshot::from));
        if state.bookings.len() > MAX_BOOKINGS {
            return Err(RepairError::TooLarge("bookings"));
        }
        if frame.end {
            return Ok(state);
        }
    }
}

/// Mends what one peer's beacons show, until its task is ended.
pub(super) async fn repair(peers: Weak<Peers>, followed: Arc<Followed>) {
    loop {
        let next = followed.wanted.lock().next();
        let Some((subject, since)) = next else {
            followed.wake.notified().await;
            continue;
        };
        let Some(peers) = peers.upgrade() else { return };
        let (key, origin) = &subject;
        let outcome = match followed.url() {
            Some(url) => mend(&peers, &followed, &url, key, Some(*origin), since).await,
            None => Err(RepairError::NoUrl),
        };
        match outcome {
            Ok(report) if report.changed() => {
                followed.repairs.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    peer = %followed.endpoint, partition = %key, added = report.added, ended = report.ended,
                    completed = report.completed, "repaired what was missed of a peer"
                );
            }
            Ok(_) if since.is_some() => {}
            Ok(_) => followed.state.lock().comparison.asked_in_vain(&subject, Instant::now()),
            Err(error) => {
                followed.failed_repairs.fetch_add(1, Ordering::Relaxed);
                let mut state = followed.state.lock();
                state.comparison.asked_in_vain(&subject, Instant::now());
                state.last_error = Some(format!("repair: {error}"));
                drop(state);
                tracing::debug!(peer = %followed.endpoint, %error, "a peer could not be asked for its state");
            }
        }
    }
}

/// Asks for one partition and takes over what differs. Without an origin, everything the peer has is added and nothing
/// ends.
async fn mend(
    peers: &Peers,
    followed: &Followed,
    url: &str,
    key: &PartitionKey,
    origin: Option<RouterId>,
    since: Option<u64>,
) -> Result<MergeReport, RepairError> {
    let (instance_id, speaker) = {
        let state = followed.state.lock();
        (state.instance_id.clone(), state.router_id)
    };
    let asked = peers.core.now();
    let question = Question { url, instance_id: instance_id.as_deref(), key, origin, since };
    let state = peers.client.ask(&question).await?;
    let core = Arc::clone(&peers.core);
    // Only its maker knows that a booking is over.
    let authority = origin.filter(|_| origin == speaker && since.is_none());
    let (key, from, own) = (key.clone(), speaker.unwrap_or_default(), peers.outlet.router_id());
    let merged = tokio::task::spawn_blocking(move || merge(&core, &key, state, asked, authority, from, own)).await;
    let report = merged.unwrap_or_default();
    for call in report.missed.iter().take(MAX_TOLD) {
        peers.outlet.tell_missed(call);
    }
    Ok(report)
}

fn merge(
    core: &crate::selection::SelectionCore,
    key: &PartitionKey,
    state: State,
    asked: Moment,
    authority: Option<RouterId>,
    from: RouterId,
    own: RouterId,
) -> MergeReport {
    let mut report = MergeReport::default();
    let live: HashSet<Arc<str>> = state.bookings.iter().map(|booking| Arc::clone(&booking.selection_id)).collect();
    // What this process made it knows best.
    let bookings = state.bookings.into_iter().filter(|booking| booking.origin != own).collect();
    core.merge_bookings(key, from, asked, bookings, &mut report);
    if let Some(origin) = authority {
        core.end_absent(key, origin, asked, &live, &mut report);
    }
    for session in state.sessions {
        let SessionSnapshot { session_id, target, version } = session;
        if version.writer_id == own {
            continue;
        }
        let event = SessionEvent { partition: key.clone(), session_id, target, version };
        if core.mirror_session(&event) == crate::selection::core::Mirrored::Applied {
            report.sessions += 1;
        }
    }
    report
}

/// Takes over everything a peer has.
pub(super) async fn take_over(peers: &Peers, followed: &Followed, url: &str) {
    for digests in peers.core.partition_digests() {
        if let Err(error) = mend(peers, followed, url, &digests.partition, None, None).await {
            tracing::warn!(peer = %followed.endpoint, %error, "a peer's load could not be taken over at start");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(model: &str) -> Subject {
        (PartitionKey::new(model, "g"), 1)
    }

    #[test]
    fn questions_about_one_subject_become_one() {
        let mut wanted = Wanted::default();
        wanted.want(subject("a"), Some(9));
        wanted.want(subject("a"), Some(4));
        wanted.want(subject("b"), Some(3));
        wanted.want(subject("b"), None);
        assert_eq!(wanted.next(), Some((subject("a"), Some(4))));
        assert_eq!(wanted.next(), Some((subject("b"), None)));
        assert_eq!(wanted.next(), None);
    }

    #[test]
    fn questions_are_bounded() {
        let mut wanted = Wanted::default();
        (0..2 * MAX_WANTED).for_each(|at| wanted.want(subject(&at.to_string()), None));
        assert_eq!(wanted.0.len(), MAX_WANTED);
    }
}
