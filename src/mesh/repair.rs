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
    followed::Followed,
    peers::Peers,
    state::{Frame, MAX_FRAME_BYTES},
    wire::beacon::WIRE_VERSION,
};
use crate::selection::{
    Moment, PartitionKey,
    core::{BookingSnapshot, MergeReport, PartitionDigests},
    replication::{RouterId, SessionEvent},
    sessions::SessionSnapshot,
};

/// Most questions that wait for one peer.
const MAX_WANTED: usize = 1024;
/// Time to connect to a peer, and between two pieces of its answer.
const STALL: Duration = Duration::from_secs(5);
/// Most bytes read of one answer, unpacked.
const MAX_ANSWER_BYTES: u64 = 8 << 30;
/// Most bytes of ids remembered of one answer.
const MAX_NAMED_BYTES: usize = 1 << 30;
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
    #[error("the peer's blocks have {theirs} tokens, those here {ours}")]
    BlockSize { theirs: u32, ours: u32 },
    #[error("no answer in time")]
    Timeout,
    #[error("taking the answer over panicked")]
    Panicked,
}

/// Asks peers.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    token: Option<Arc<str>>,
    limit: Duration,
}

/// A question to a peer.
struct Question<'a> {
    url: &'a str,
    /// The process that is to answer.
    instance_id: Option<String>,
    key: &'a PartitionKey,
    /// Of the partition here.
    block_size: u32,
    origin: Option<RouterId>,
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

    async fn ask(&self, question: Question<'_>) -> Result<Answer, RepairError> {
        let Question { url, instance_id, key, block_size, origin, since } = question;
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
        let body: Pin<Box<dyn AsyncRead + Send>> =
            if compressed { Box::pin(ZstdDecoder::new(body)) } else { Box::pin(body) };
        Ok(Answer { body, instance_id, block_size, bytes: Vec::new(), has_head: false, total: 0 })
    }
}

/// What a peer has, read frame by frame.
struct Answer {
    body: Pin<Box<dyn AsyncRead + Send>>,
    instance_id: Option<String>,
    block_size: u32,
    bytes: Vec<u8>,
    has_head: bool,
    /// Bytes read so far, unpacked.
    total: u64,
}

impl Answer {
    /// The next frame and whether it is the last.
    async fn next(&mut self) -> Result<(Part, bool), RepairError> {
        let length = self.body.read_u32_le().await? as usize;
        self.total += length as u64;
        if length > MAX_FRAME_BYTES || self.total > MAX_ANSWER_BYTES {
            return Err(RepairError::TooLarge(if length > MAX_FRAME_BYTES { "a frame" } else { "all of it" }));
        }
        // Grows with what arrives, not with what is announced.
        self.bytes.clear();
        let got = self.body.as_mut().take(length as u64).read_to_end(&mut self.bytes).await?;
        if got < length {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let frame = Frame::decode(&self.bytes)?;
        match &frame.head {
            Some(head) if head.version != WIRE_VERSION => return Err(RepairError::Version(head.version)),
            Some(head) if self.instance_id.as_ref().is_some_and(|expected| *expected != head.instance_id) => {
                return Err(RepairError::OtherInstance);
            }
            // A peer without the partition tells 0, and nothing more.
            Some(head) if ![0, self.block_size].contains(&head.block_size) => {
                return Err(RepairError::BlockSize { theirs: head.block_size, ours: self.block_size });
            }
            None if !self.has_head => return Err(RepairError::Version(0)),
            _ => self.has_head = true,
        }
        let part = Part {
            bookings: frame.bookings.into_iter().map(BookingSnapshot::from).collect(),
            sessions: frame.sessions.into_iter().map(SessionSnapshot::from).collect(),
        };
        // What is packed tightly unpacks without a pause otherwise.
        tokio::task::yield_now().await;
        Ok((part, frame.end))
    }
}

/// Reads a whole answer; how many bookings and sessions it has, if nothing is missing.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_answer(bytes: &[u8]) -> Option<(usize, usize)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().ok()?;
    let body = Box::pin(std::io::Cursor::new(bytes.to_vec()));
    let mut answer = Answer { body, instance_id: None, block_size: 16, bytes: Vec::new(), has_head: false, total: 0 };
    let (mut bookings, mut sessions) = (0, 0);
    loop {
        let outcome = runtime.block_on(answer.next());
        assert!(answer.bytes.capacity() <= 2 * bytes.len() + 64, "memory follows what arrived");
        match outcome {
            Ok((part, is_last)) => {
                bookings += part.bookings.len();
                sessions += part.sessions.len();
                if is_last {
                    return Some((bookings, sessions));
                }
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return None;
            }
        }
    }
}

/// A part of what a peer has.
#[derive(Debug, Default)]
struct Part {
    bookings: Vec<BookingSnapshot>,
    sessions: Vec<SessionSnapshot>,
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
    let mending = async {
        let (instance_id, speaker) = {
            let state = followed.state.lock();
            (state.instance_id.clone(), state.router_id)
        };
        // Only its maker knows that a booking is over.
        let authority = origin.filter(|_| origin == speaker && since.is_none());
        let asked = peers.core.now();
        let Some(PartitionDigests { block_size, .. }) = peers.core.partition_digest(key) else {
            return Ok(MergeReport::default());
        };
        let question = Question { url, instance_id, key, block_size, origin, since };
        let mut answer = peers.client.ask(question).await?;
        let mut merger = Merger {
            core: Arc::clone(&peers.core),
            key: key.clone(),
            asked,
            from: speaker.unwrap_or_default(),
            own: peers.outlet.router_id(),
            report: MergeReport::default(),
        };
        let (mut live, mut named) = (HashSet::new(), 0);
        loop {
            let (part, is_last) = answer.next().await?;
            if authority.is_some() {
                let ids = part.bookings.iter().map(|booking| Arc::clone(&booking.selection_id));
                live.extend(ids.inspect(|id| named += id.len() + size_of::<Arc<str>>()));
                if named > MAX_NAMED_BYTES {
                    return Err(RepairError::TooLarge("ids"));
                }
            }
            if !part.bookings.is_empty() || !part.sessions.is_empty() {
                merger = merger.off_thread(move |merger| merger.merge(part)).await?;
            }
            if is_last {
                break;
            }
        }
        if let Some(origin) = authority {
            merger = merger.off_thread(move |merger| merger.end_absent(origin, &live)).await?;
        }
        Ok(merger.report)
    };
    let report = tokio::time::timeout(peers.client.limit, mending).await.map_err(|_| RepairError::Timeout)??;
    for call in report.missed.iter().take(MAX_TOLD) {
        peers.outlet.tell_missed(call);
    }
    Ok(report)
}

/// Takes over what a peer answers.
struct Merger {
    core: Arc<crate::selection::SelectionCore>,
    key: PartitionKey,
    asked: Moment,
    from: RouterId,
    own: RouterId,
    report: MergeReport,
}

impl Merger {
    async fn off_thread(mut self, work: impl FnOnce(&mut Self) + Send + 'static) -> Result<Self, RepairError> {
        let done = tokio::task::spawn_blocking(move || {
            work(&mut self);
            self
        });
        done.await.map_err(|_| RepairError::Panicked)
    }

    fn merge(&mut self, part: Part) {
        let own = self.own;
        // What this process made it knows best.
        let bookings = part.bookings.into_iter().filter(|booking| booking.origin != own);
        self.core.merge_bookings(&self.key, self.from, self.asked, bookings, &mut self.report);
        self.report.missed.truncate(MAX_TOLD);
        for session in part.sessions {
            let SessionSnapshot { session_id, target, version } = session;
            if version.writer_id == own {
                continue;
            }
            let event = SessionEvent { partition: self.key.clone(), session_id, target, version };
            if self.core.mirror_session(&event) == crate::selection::core::Mirrored::Applied {
                self.report.sessions += 1;
            }
        }
    }

    fn end_absent(&mut self, origin: RouterId, live: &HashSet<Arc<str>>) {
        self.core.end_absent(&self.key, origin, self.asked, live, &mut self.report);
    }
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
    use crate::{
        mesh::state::{StateQuery, state_frames},
        selection::{
            SelectionConfig, SelectionCore,
            worker::{WorkerFields, WorkerRequest},
        },
    };

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

    #[tokio::test]
    async fn an_answer_about_blocks_of_another_size_is_refused() {
        let config = SelectionConfig { use_kv_events: false, ..SelectionConfig::default() };
        let core = SelectionCore::try_new_local(config).expect("valid");
        let fields =
            WorkerFields { endpoint: Some("http://w".to_owned()), block_size: Some(16), ..WorkerFields::default() };
        let (model_name, routing_group) = ("m".to_owned(), "g".to_owned());
        core.upsert_worker(WorkerRequest { worker_id: 1, model_name, routing_group, fields }).expect("valid");
        let query = StateQuery { partition: PartitionKey::new("m", "g"), origin: None, since: None };
        let bytes: Vec<u8> = state_frames(core, query).flatten().collect();
        for (block_size, refused) in [(16, false), (32, true)] {
            let body = Box::pin(std::io::Cursor::new(bytes.clone()));
            let mut answer =
                Answer { body, instance_id: None, block_size, bytes: Vec::new(), has_head: false, total: 0 };
            let outcome = answer.next().await;
            assert_eq!(matches!(outcome, Err(RepairError::BlockSize { theirs: 16, ours: 32 })), refused);
            assert_eq!(outcome.is_ok(), !refused);
        }
    }
}
