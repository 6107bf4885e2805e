//! What our replicas say on a topic of their own, which the reference never sees.
//!
//! The envelope is a map with a version. Unknown fields and unknown kinds of message are ignored; another version is
//! refused, and said so.

use serde::{Deserialize, Serialize};

use super::{MESH_TOPIC, Message, message};

/// Version of the envelope.
pub const WIRE_VERSION: u32 = 1;
/// Most partitions one beacon tells of; the next goes on where it stopped.
pub(in crate::mesh) const MAX_PARTITIONS: usize = 256;
/// Most origins of one partition it tells of.
pub(in crate::mesh) const MAX_ORIGINS: usize = 64;
/// Largest message read.
const MAX_BYTES: usize = 4 << 20;
/// Longest instance id or URL a beacon may tell, in bytes.
const MAX_NAME: usize = 2048;

/// Envelope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::mesh) struct Envelope {
    pub(in crate::mesh) version: u32,
    pub(in crate::mesh) router_id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::mesh) beacon: Option<Beacon>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::mesh) missed: Option<Missed>,
}

/// A replica lives, and this is where it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::mesh) struct Beacon {
    /// Differs after a restart.
    pub(in crate::mesh) instance_id: String,
    /// Where its HTTP API is reached; absent = the host of its publisher and `http_port`.
    #[serde(default)]
    pub(in crate::mesh) url: Option<String>,
    #[serde(default)]
    pub(in crate::mesh) http_port: Option<u16>,
    /// Its clock when this was sent, in nanoseconds since the Unix epoch. Compared with itself alone.
    pub(in crate::mesh) sent: u64,
    /// Booking messages published before this one.
    pub(in crate::mesh) sequence: u64,
    /// Session messages published before this one.
    #[serde(default)]
    pub(in crate::mesh) session_sequence: u64,
    /// It is going down.
    #[serde(default)]
    pub(in crate::mesh) leaving: bool,
    #[serde(default)]
    pub(in crate::mesh) partitions: Vec<PartitionState>,
}

/// Digests of one partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::mesh) struct PartitionState {
    pub(in crate::mesh) model_name: String,
    pub(in crate::mesh) routing_group: String,
    pub(in crate::mesh) block_size: u32,
    /// Its own, and those whose maker is not heard any more or never says anything.
    pub(in crate::mesh) origins: Vec<OriginState>,
}

/// What one replica made in a partition, as the sender knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mesh) struct OriginState {
    pub(in crate::mesh) router_id: u64,
    /// Live bookings.
    pub(in crate::mesh) bookings: u64,
    /// Digest of them, high half and low half.
    pub(in crate::mesh) high: u64,
    pub(in crate::mesh) low: u64,
    /// Digest of its session bindings.
    #[serde(default)]
    pub(in crate::mesh) sessions: u64,
}

impl OriginState {
    pub(in crate::mesh) fn sum(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

/// A call that the receiver may have missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mesh) struct Missed {
    pub(in crate::mesh) model_name: String,
    pub(in crate::mesh) routing_group: String,
    pub(in crate::mesh) selection_id: String,
    pub(in crate::mesh) worker_id: u64,
    pub(in crate::mesh) dp_rank: u32,
    /// Who made the booking.
    pub(in crate::mesh) origin: u64,
    /// The call ended the booking; otherwise its prefill is done.
    pub(in crate::mesh) freed: bool,
    /// The call is not for a booking its maker made later than this many nanoseconds ago.
    pub(in crate::mesh) age: u64,
}

/// Why a message on our own topic is not read.
#[derive(Debug, thiserror::Error)]
pub(in crate::mesh) enum MeshDecodeError {
    #[error("{0} bytes, more than a message of the mesh may have")]
    TooLarge(usize),
    #[error("version {0}, this replica speaks {WIRE_VERSION}")]
    Version(u32),
    #[error("a name of {0} bytes, more than {MAX_NAME}")]
    Name(usize),
    #[error(transparent)]
    Shape(#[from] rmp_serde::decode::Error),
}

/// The version alone: other versions may have other fields.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

impl Envelope {
    pub(in crate::mesh) fn beacon(router_id: u64, beacon: Beacon) -> Self {
        Self { version: WIRE_VERSION, router_id, beacon: Some(beacon), missed: None }
    }

    pub(in crate::mesh) fn missed(router_id: u64, missed: Missed) -> Self {
        Self { version: WIRE_VERSION, router_id, beacon: None, missed: Some(missed) }
    }

    pub(in crate::mesh) fn encode(&self) -> Message {
        message(MESH_TOPIC, self)
    }

    pub(in crate::mesh) fn decode(payload: &[u8]) -> Result<Self, MeshDecodeError> {
        if payload.len() > MAX_BYTES {
            return Err(MeshDecodeError::TooLarge(payload.len()));
        }
        let VersionOnly { version } = rmp_serde::from_slice(payload)?;
        if version != WIRE_VERSION {
            return Err(MeshDecodeError::Version(version));
        }
        let mut envelope: Self = rmp_serde::from_slice(payload)?;
        if let Some(beacon) = &mut envelope.beacon {
            let names = [Some(&beacon.instance_id), beacon.url.as_ref()];
            if let Some(name) = names.into_iter().flatten().find(|name| name.len() > MAX_NAME) {
                return Err(MeshDecodeError::Name(name.len()));
            }
            // What ours never send.
            beacon.partitions.truncate(MAX_PARTITIONS);
            beacon.partitions.iter_mut().for_each(|partition| partition.origins.truncate(MAX_ORIGINS));
        }
        Ok(envelope)
    }
}
