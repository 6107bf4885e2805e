//! Messages of the mesh: those of the reference byte for byte (spec sequences 2.3, 3.3), and our own beside them.
//!
//! A message is two frames, topic and one MessagePack value. Invariant: what does not decode changes nothing.

pub(super) mod beacon;
pub(super) mod hashes;
mod session;
mod slot;

use bytes::Bytes;

pub(super) use self::{
    session::{decode_session, encode_session},
    slot::{decode_slot, encode_slot},
};
use crate::events::transport::Message;

/// Bookings, as the reference publishes them.
pub const SLOT_TOPIC: &[u8] = b"dynamo.slot-tracker.v1";
/// Session bindings, as the reference publishes them.
pub const SESSION_TOPIC: &[u8] = b"dynamo.session-affinity.v1";
/// What only our replicas say.
pub const MESH_TOPIC: &[u8] = b"pointsman.mesh.v1";

fn message(topic: &'static [u8], payload: &impl serde::Serialize) -> Message {
    // Writing to memory fails for nothing that is written here.
    let payload = rmp_serde::to_vec_named(payload).unwrap_or_default();
    vec![Bytes::from_static(topic), payload.into()]
}

#[cfg(test)]
mod tests;
