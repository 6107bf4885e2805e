//! The mesh without sockets, for replicas in one process: what goes over the wire is the wire's, the host carries it.
//!
//! Owns no time and no order: messages are kept in the order in which they were published, and one is applied when the
//! host says that it has arrived. There are no beacons and no repair, since nothing gets lost.

use std::sync::Arc;

use parking_lot::Mutex;

use super::wire::{SESSION_TOPIC, SLOT_TOPIC, decode_session, decode_slot, encode_session, encode_slot};
use crate::{
    events::transport::Message,
    selection::{
        SelectionCore,
        core::Mirrored,
        replication::{BookingEvent, ReplicaOutlet, Replication, RouterId, SessionEvent},
    },
};

/// Keeps what a replica publishes until its host takes it.
#[derive(Debug)]
pub struct KeptMessages {
    router_id: RouterId,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    bookings: u64,
    messages: Vec<Message>,
}

impl KeptMessages {
    /// An outlet of the replica `router_id`, which is not 0.
    pub fn new(router_id: RouterId) -> Arc<Self> {
        Arc::new(Self { router_id, kept: Mutex::default() })
    }

    /// What the core of that replica is given.
    pub fn replication(self: &Arc<Self>) -> Replication {
        Replication { router_id: self.router_id, outlet: Arc::<Self>::clone(self) }
    }

    /// Hands what was published since the last call to `carry`, in order.
    pub fn take(&self, carry: impl FnMut(Message)) {
        self.kept.lock().messages.drain(..).for_each(carry);
    }
}

impl ReplicaOutlet for KeptMessages {
    fn booking(&self, event: BookingEvent) -> u64 {
        let message = encode_slot(&event, self.router_id);
        let mut kept = self.kept.lock();
        kept.bookings += 1;
        kept.messages.push(message);
        kept.bookings
    }

    fn session(&self, event: SessionEvent) {
        self.kept.lock().messages.push(encode_session(&event));
    }
}

/// Applies a message of another replica to `core`; `None` when it cannot be read.
pub fn apply(core: &SelectionCore, message: &Message) -> Option<Mirrored> {
    match &message[..] {
        [topic, payload] if **topic == *SLOT_TOPIC => {
            let slot = decode_slot(payload).ok()?;
            Some(core.mirror_booking(slot.event, slot.router_id))
        }
        [topic, payload] if **topic == *SESSION_TOPIC => Some(core.mirror_session(&decode_session(payload).ok()?)),
        _ => None,
    }
}
