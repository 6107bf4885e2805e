//! Live bookings and sessions as a stream of frames: a length of four bytes, little endian, and a MessagePack map.
//!
//! The first frame is the head, the last says that nothing is missing. Unknown fields are ignored; another version is
//! refused.

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::wire::{beacon::WIRE_VERSION, hashes};
use crate::selection::{
    PartitionKey, SelectionCore, WorkerWithDpRank,
    core::BookingSnapshot,
    replication::{Admission, PrefillHint, RouterId},
    request::AffinityTarget,
    sessions::{SessionSnapshot, SessionVersion},
};

/// Bookings a frame.
const BOOKINGS: usize = 256;
/// Sessions a frame.
const SESSIONS: usize = 1024;
/// Largest frame read.
pub(super) const MAX_FRAME_BYTES: usize = 64 << 20;
/// Hashes a frame, about.
const HASHES: usize = 1 << 20;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct StateQuery {
    /// The partition.
    pub partition: PartitionKey,
    /// Bookings and bindings this replica made; `None` = all.
    pub origin: Option<RouterId>,
    /// Only bookings that were published after this sequence number of their maker.
    pub since: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Frame<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) head: Option<Head>,
    #[serde(default, borrow, skip_serializing_if = "Vec::is_empty")]
    pub(super) bookings: Vec<Booking<'a>>,
    #[serde(default, borrow, skip_serializing_if = "Vec::is_empty")]
    pub(super) sessions: Vec<Session<'a>>,
    /// Everything was sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) end: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) version: u32,
    pub(super) instance_id: String,
    /// 0 when the partition is not here.
    pub(super) block_size: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Booking<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    worker_id: u64,
    dp_rank: u32,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    lora_name: Option<Cow<'a, str>>,
    #[serde(deserialize_with = "hashes::read")]
    sequence: Cow<'a, [u64]>,
    track_prefill_tokens: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expected_output_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefill_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefill_nanos: Option<u64>,
    #[serde(default)]
    prefill_completed: bool,
    origin: u64,
    /// Nanoseconds since it was made.
    age: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Session<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    worker_id: u64,
    #[serde(default)]
    dp_rank: Option<u32>,
    sequence: u64,
    writer_id: u64,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a> From<&'a BookingSnapshot> for Booking<'a> {
    fn from(booking: &'a BookingSnapshot) -> Self {
        let prefill = booking.admission.prefill;
        Self {
            id: Cow::Borrowed(&booking.selection_id),
            worker_id: booking.rank.worker_id,
            dp_rank: booking.rank.dp_rank,
            lora_name: booking.lora_name.as_deref().map(Cow::Borrowed),
            sequence: Cow::Borrowed(&booking.admission.sequence),
            track_prefill_tokens: booking.admission.track_prefill_tokens,
            expected_output_tokens: booking.admission.expected_output_tokens,
            prefill_tokens: prefill.map(|hint| hint.tokens),
            prefill_nanos: prefill.and_then(|hint| hint.duration).map(nanos),
            prefill_completed: booking.prefill_completed,
            origin: booking.origin,
            age: nanos(booking.age),
        }
    }
}

impl From<Booking<'_>> for BookingSnapshot {
    fn from(booking: Booking<'_>) -> Self {
        let duration = booking.prefill_nanos.map(Duration::from_nanos);
        Self {
            selection_id: Arc::from(&*booking.id),
            rank: WorkerWithDpRank::new(booking.worker_id, booking.dp_rank),
            lora_name: booking.lora_name.as_deref().map(Arc::from),
            admission: Admission {
                sequence: Arc::from(booking.sequence.into_owned()),
                track_prefill_tokens: booking.track_prefill_tokens,
                expected_output_tokens: booking.expected_output_tokens,
                prefill: booking.prefill_tokens.map(|tokens| PrefillHint { tokens, duration }),
            },
            prefill_completed: booking.prefill_completed,
            origin: booking.origin,
            age: Duration::from_nanos(booking.age),
        }
    }
}

impl<'a> From<&'a SessionSnapshot> for Session<'a> {
    fn from(session: &'a SessionSnapshot) -> Self {
        Self {
            id: Cow::Borrowed(&session.session_id),
            worker_id: session.target.worker_id,
            dp_rank: session.target.dp_rank,
            sequence: session.version.sequence,
            writer_id: session.version.writer_id,
        }
    }
}

impl From<Session<'_>> for SessionSnapshot {
    fn from(session: Session<'_>) -> Self {
        Self {
            session_id: Arc::from(&*session.id),
            target: AffinityTarget { worker_id: session.worker_id, dp_rank: session.dp_rank },
            version: SessionVersion { sequence: session.sequence, writer_id: session.writer_id },
        }
    }
}

impl<'a> Frame<'a> {
    /// Reads a frame without its length.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, rmp_serde::decode::Error> {
        rmp_serde::from_slice(bytes)
    }
}

impl Frame<'_> {
    /// The frame with its length before it.
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        // Writing to memory fails for nothing that is written here.
        let _written = rmp_serde::encode::write_named(&mut out, self);
        let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
        out[..4].copy_from_slice(&length.to_le_bytes());
        out
    }
}

/// How many of the bookings go into one frame: one at least.
fn fits(bookings: &[BookingSnapshot]) -> usize {
    let mut hashes = 0;
    let fitting = bookings.iter().take(BOOKINGS).take_while(|booking| {
        hashes += booking.admission.sequence.len();
        hashes <= HASHES
    });
    fitting.count().max(1)
}

/// The answer to a query, made frame by frame as it is read. Unknown partitions have an empty one.
pub fn state_frames(core: Arc<SelectionCore>, query: StateQuery) -> impl Iterator<Item = Vec<u8>> + Send {
    let StateQuery { partition, origin, since } = query;
    let block_size = core.partition_digest(&partition).map_or(0, |digests| digests.block_size);
    let head = Head { version: WIRE_VERSION, instance_id: core.instance_id().to_owned(), block_size };
    let head = Frame { head: Some(head), ..Frame::default() }.encode();
    let sessions: Vec<_> = core
        .replica_sessions(&partition, origin)
        .chunks(SESSIONS)
        .map(|part| Frame { sessions: part.iter().map(Session::from).collect(), ..Frame::default() }.encode())
        .collect();
    let parts = (0..).map_while(move |part| core.replica_bookings(&partition, origin, since, part));
    let bookings = parts.flat_map(|part| {
        let mut rest = &part[..];
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fits(rest));
            frames.push(Frame { bookings: now.iter().map(Booking::from).collect(), ..Frame::default() }.encode());
            rest = later;
        }
        frames
    });
    let end = Frame { end: true, ..Frame::default() }.encode();
    std::iter::once(head).chain(sessions).chain(bookings).chain(std::iter::once(end))
}
