//! What other replicas tell this one, and what they are shown of it.
//!
//! | file | owns |
//! |---|---|
//! | this one | events as they come |
//! | `state` | live bookings and sessions as a whole: shown, and taken over where they differ |
//!
//! Invariants: an event of an unknown partition, of another block size or for a rank that is not registered changes
//! nothing; a booking that is known is never booked twice, whoever tells of it.

mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use self::state::{BookingSnapshot, MergeReport, MissedCall, OriginDigest, PartitionDigests};
use super::{
    BookingEnd, SelectionCore,
    bookings::{Early, Held, LiveBooking},
    requests::booked::book,
};
use crate::selection::{
    identity::WorkerWithDpRank,
    moment::Moment,
    partition::PartitionRef,
    replication::{
        Admission, BookingChange, BookingEvent, BookingFacts, MAX_PREFILL_TOKENS, PrefillHint, RouterId, SessionEvent,
    },
    sessions::SessionOutcome,
};

/// What became of a replica's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirrored {
    /// It changed something here.
    Applied,
    /// Nothing was left to change.
    Known,
    /// The booking it concerns is not live here; the call waits for it.
    Early,
    /// A call that came before ended the booking at once.
    EndedEarly,
    /// Dropped.
    Dropped(MirrorDrop),
}

/// Why a replica's event was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MirrorDrop {
    /// No such partition here.
    UnknownPartition,
    /// The partition has another block size.
    BlockSize,
    /// The rank is not registered here.
    UnknownRank,
    /// The booking is on another rank here.
    OtherRank,
    /// Bookings of other replicas hold as much as they may.
    Full,
    /// Sessions are off here, the id is too long, the table is full, or the partition panicked.
    Refused,
}

impl MirrorDrop {
    /// A stable word for metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnknownPartition => "unknown_partition",
            Self::BlockSize => "block_size",
            Self::UnknownRank => "unknown_rank",
            Self::OtherRank => "other_rank",
            Self::Full => "full",
            Self::Refused => "refused",
        }
    }
}

impl SelectionCore {
    /// A booking changed on the replica `sender`.
    pub fn mirror_booking(&self, event: BookingEvent, sender: RouterId) -> Mirrored {
        let Some(partition) = self.partition(&event.partition.model_name, &event.partition.routing_group) else {
            return Mirrored::Dropped(MirrorDrop::UnknownPartition);
        };
        if partition.block_size != event.block_size {
            return Mirrored::Dropped(MirrorDrop::BlockSize);
        }
        match event.change {
            BookingChange::Admitted(admission) => {
                let new = NewMirror {
                    id: event.selection_id,
                    rank: event.rank,
                    lora_name: event.lora_name,
                    admission,
                    origin: sender,
                    admitted: None,
                };
                self.admit(&partition, new)
            }
            BookingChange::PrefillCompleted => {
                let early = Early { prefill_completed: true, rank: Some(event.rank), ..Early::default() };
                self.on_mirrored(&partition, &event.selection_id, event.rank, early, |booking| {
                    self.complete_mirrored(booking)
                })
            }
            BookingChange::Freed => {
                let early = Early { freed: true, rank: Some(event.rank), ..Early::default() };
                self.on_mirrored(&partition, &event.selection_id, event.rank, early, |booking| {
                    self.end_mirrored(booking)
                })
            }
        }
    }

    /// A session was bound or used on another replica.
    pub fn mirror_session(&self, event: &SessionEvent) -> Mirrored {
        let Some(partition) = self.partition(&event.partition.model_name, &event.partition.routing_group) else {
            return Mirrored::Dropped(MirrorDrop::UnknownPartition);
        };
        partition.sessions.observe(event.version.sequence, &*self.clock);
        let worker_id = event.target.worker_id;
        if !partition.with_state(|state| state.load.worker(worker_id).is_some()).unwrap_or(false) {
            return Mirrored::Dropped(MirrorDrop::UnknownRank);
        }
        match partition.sessions.apply(&event.session_id, event.target, event.version, &*self.clock) {
            SessionOutcome::Applied => Mirrored::Applied,
            SessionOutcome::Older => Mirrored::Known,
            SessionOutcome::TooLong | SessionOutcome::Full | SessionOutcome::Disabled => {
                Mirrored::Dropped(MirrorDrop::Refused)
            }
        }
    }

    /// Books what another replica booked.
    fn admit(&self, partition: &PartitionRef, new: NewMirror) -> Mirrored {
        let NewMirror { id, rank, lora_name, admission, origin, admitted } = new;
        let admission = bounded(admission);
        let now = self.clock.now();
        let Some(claim) = self.bookings.mirror(Arc::clone(&id), partition) else { return Mirrored::Known };
        let mut early = self.bookings.take_early(&id, rank, now).unwrap_or_default();
        let times = (admitted.unwrap_or(now), now);
        let facts = Arc::new(BookingFacts::new(id, rank, lora_name, admission, times, origin).mirrored());
        if early.freed {
            drop(claim);
            self.bookings.ended_at_once(&facts, now);
            if early.is_local {
                partition.publish_booking(&facts, || BookingChange::Freed);
            }
            return Mirrored::EndedEarly;
        }
        if !self.bookings.has_room_for(&facts) {
            return Mirrored::Dropped(MirrorDrop::Full);
        }
        let attempt = claim.attempt();
        let booked = partition.with_state(|state| {
            let slot = state.load.slot(rank)?;
            Some(book(&facts.admission, &mut state.load, attempt, slot, now))
        });
        let expired = match booked {
            Ok(Some(Ok(expired))) => expired,
            Ok(None) => return Mirrored::Dropped(MirrorDrop::UnknownRank),
            Ok(Some(Err(_))) | Err(_) => return Mirrored::Dropped(MirrorDrop::Refused),
        };
        self.bookings.ended(&expired, BookingEnd::Expired, now);
        if claim.install(Held { facts: Arc::clone(&facts), lease: None, lifecycle: None }).is_err() {
            // Its rank left at this very moment.
            let _freed = partition.with_state(|state| state.load.free(attempt, now));
            return Mirrored::Dropped(MirrorDrop::UnknownRank);
        }
        let booking =
            LiveBooking { attempt, partition: Arc::clone(partition), facts: Arc::clone(&facts), lifecycle: None };
        // Calls that came between the first look and now found no booking either.
        early.add(self.bookings.take_early(&facts.id, rank, now).unwrap_or_default());
        if early.freed {
            self.end_mirrored(&booking);
            if early.is_local {
                partition.publish_booking(&facts, || BookingChange::Freed);
            }
            return Mirrored::EndedEarly;
        }
        if early.prefill_completed {
            self.complete_mirrored(&booking);
            if early.is_local {
                partition.publish_booking(&facts, || BookingChange::PrefillCompleted);
            }
        }
        Mirrored::Applied
    }

    fn on_mirrored(
        &self,
        partition: &PartitionRef,
        id: &str,
        rank: WorkerWithDpRank,
        early: Early,
        apply: impl FnOnce(&LiveBooking) -> bool,
    ) -> Mirrored {
        match self.bookings.find_in(id, partition) {
            Some(booking) if booking.facts.rank != rank => Mirrored::Dropped(MirrorDrop::OtherRank),
            Some(booking) if apply(&booking) => Mirrored::Applied,
            Some(_) => Mirrored::Known,
            None => {
                self.bookings.call_came_early(id, early, self.clock.now());
                Mirrored::Early
            }
        }
    }

    /// Marks the prefill of a booking done without telling others; whether that was news.
    fn complete_mirrored(&self, booking: &LiveBooking) -> bool {
        let news = !booking.facts.is_prefill_done();
        self.bookings.complete_prefill(booking);
        booking.lifecycle.as_ref().into_iter().for_each(|lifecycle| lifecycle.lock().responding());
        let now = self.clock.now();
        let _live = booking.partition.with_state(|state| state.load.prefill_complete(booking.attempt, now));
        news
    }

    /// Ends a booking without telling others; whether it was live.
    fn end_mirrored(&self, booking: &LiveBooking) -> bool {
        self.end_mirrored_at(booking, self.clock.now())
    }

    /// The same for an end that was at `ended`.
    fn end_mirrored_at(&self, booking: &LiveBooking, ended: Moment) -> bool {
        let now = self.clock.now();
        let Some(taken) = self.bookings.take_attempt(&booking.facts.id, booking.attempt, ended) else { return false };
        let _freed = taken.partition.with_state(|state| state.load.free(taken.attempt, now));
        if let Some(lease) = taken.held.lease {
            lease.release(now);
        }
        taken.held.lifecycle.into_iter().for_each(|lifecycle| lifecycle.lock().complete());
        true
    }
}

/// A booking to mirror.
struct NewMirror {
    id: Arc<str>,
    rank: WorkerWithDpRank,
    lora_name: Option<Arc<str>>,
    admission: Admission,
    origin: RouterId,
    /// When it was made; `None` = now.
    admitted: Option<Moment>,
}

fn bounded(admission: Admission) -> Admission {
    let prefill = admission.prefill.map(|hint| PrefillHint { tokens: hint.tokens.min(MAX_PREFILL_TOKENS), ..hint });
    Admission { prefill, ..admission }
}
