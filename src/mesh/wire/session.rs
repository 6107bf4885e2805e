//! Session bindings on the wire (spec sequences 3.3).

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Message, SESSION_TOPIC, message};
use crate::selection::{PartitionKey, replication::SessionEvent, request::AffinityTarget, sessions::SessionVersion};

#[derive(Serialize)]
struct Binding<'a> {
    model_name: Cow<'a, str>,
    routing_group: Cow<'a, str>,
    session_id: Cow<'a, str>,
    worker_id: u64,
    dp_rank: Option<u32>,
    sequence: u64,
    writer_id: u64,
}

/// Largest message read: names and an id of 256 bytes. A flattened map is kept whole before it is read.
const MAX_BYTES: usize = 1 << 20;

/// The reference reads a map alone, never an array: its partition is flattened into it.
#[derive(Deserialize)]
struct Received {
    #[serde(flatten)]
    partition: Partition,
    session_id: String,
    worker_id: u64,
    #[serde(default)]
    dp_rank: Option<u32>,
    sequence: u64,
    writer_id: u64,
}

#[derive(Deserialize)]
struct Partition {
    model_name: String,
    routing_group: String,
}

/// The message for a binding.
pub(in crate::mesh) fn encode_session(event: &SessionEvent) -> Message {
    message(
        SESSION_TOPIC,
        &Binding {
            model_name: Cow::Borrowed(&*event.partition.model_name),
            routing_group: Cow::Borrowed(&*event.partition.routing_group),
            session_id: Cow::Borrowed(&*event.session_id),
            worker_id: event.target.worker_id,
            dp_rank: event.target.dp_rank,
            sequence: event.version.sequence,
            writer_id: event.version.writer_id,
        },
    )
}

/// Reads a session message's payload.
///
/// # Errors
/// It is larger than it may be, no map, or a mandatory field is missing or of another type.
pub(in crate::mesh) fn decode_session(payload: &[u8]) -> Result<SessionEvent, rmp_serde::decode::Error> {
    if payload.len() > MAX_BYTES {
        return Err(rmp_serde::decode::Error::LengthMismatch(MAX_BYTES as u32));
    }
    let received: Received = rmp_serde::from_slice(payload)?;
    Ok(SessionEvent {
        partition: PartitionKey::new(received.partition.model_name, received.partition.routing_group),
        session_id: Arc::from(received.session_id),
        target: AffinityTarget { worker_id: received.worker_id, dp_rank: received.dp_rank },
        version: SessionVersion { sequence: received.sequence, writer_id: received.writer_id },
    })
}
