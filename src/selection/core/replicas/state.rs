//! Live bookings and sessions as a whole.
//!
//! A replica that lost something compares digests with the one it follows, asks it for its live bookings, and makes its
//! own copy equal. The answer is a list that grew while it was read, so what became known here after the question is
//! left alone; what a call ended here is not booked again, and its maker is told.
//!
//! Only the maker of a booking knows its age: with the others it counts from when its message came, which may be after
//! its end. So ages decide between a booking and a later one of its id with its maker alone.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{Mirrored, NewMirror};
use crate::selection::{
    core::{PartitionFilter, SelectionCore, bookings::LiveBooking},
    identity::{PartitionKey, WorkerWithDpRank},
    moment::Moment,
    partition::PartitionRef,
    replication::{Admission, LoadDigest, RouterId},
    sessions::SessionSnapshot,
};

/// How much later than another replica this one may have heard of a booking that neither made.
const SLACK: Duration = Duration::from_secs(5);

/// What replicas made in one partition, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDigests {
    /// The partition.
    pub partition: PartitionKey,
    /// Tokens a block.
    pub block_size: u32,
    /// Grows whenever workers join or leave.
    pub membership: u64,
    /// By the replica that made it; those of which nothing lives are left out.
    pub origins: Vec<OriginDigest>,
}

/// What one replica made. Equal digests mean equal bookings and bindings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginDigest {
    /// The replica.
    pub origin: RouterId,
    /// Its live bookings.
    pub load: LoadDigest,
    /// Its session bindings.
    pub sessions: u64,
}

/// One live booking.
#[derive(Clone, Debug, PartialEq)]
pub struct BookingSnapshot {
    /// Its id.
    pub selection_id: Arc<str>,
    /// Where it is.
    pub rank: WorkerWithDpRank,
    /// LoRA adapter named when it was made.
    pub lora_name: Option<Arc<str>>,
    /// What it counts for.
    pub admission: Admission,
    /// Whether its prefill is done.
    pub prefill_completed: bool,
    /// Who made it.
    pub origin: RouterId,
    /// Time since it was made.
    pub age: Duration,
}

/// A call that reached one replica and not another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedCall {
    /// Partition of the booking.
    pub partition: PartitionKey,
    /// Its id.
    pub selection_id: Arc<str>,
    /// Where it is, or was.
    pub rank: WorkerWithDpRank,
    /// Who made it.
    pub origin: RouterId,
    /// The call ended it; otherwise its prefill is done.
    pub freed: bool,
    /// The call is not for a booking its maker made later than this long ago.
    pub age: Duration,
}

/// What taking over a replica's bookings changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Booked here too.
    pub added: u64,
    /// Prefills marked done.
    pub completed: u64,
    /// Ended here too.
    pub ended: u64,
    /// Sessions bound here too.
    pub sessions: u64,
    /// Could not be booked: their rank is not here.
    pub refused: u64,
    /// Calls that came here and that the other replica does not know of.
    pub missed: Vec<MissedCall>,
}

impl MergeReport {
    /// Whether anything was different.
    pub fn changed(&self) -> bool {
        self.added + self.completed + self.ended + self.sessions > 0 || !self.missed.is_empty()
    }
}

impl SelectionCore {
    /// Digests of all partitions, sorted by name.
    pub fn partition_digests(&self) -> Vec<PartitionDigests> {
        self.partitions(&PartitionFilter::default()).iter().map(digests).collect()
    }

    /// Digests of one partition.
    pub fn partition_digest(&self, key: &PartitionKey) -> Option<PartitionDigests> {
        self.partition(&key.model_name, &key.routing_group).as_ref().map(digests)
    }

    /// Live bookings of one partition, those of `origin` or all, those published after `since` or all, in parts counted
    /// from 0, for answers of bounded size. `None` past the last part.
    pub fn replica_bookings(
        &self,
        key: &PartitionKey,
        origin: Option<RouterId>,
        since: Option<u64>,
        part: usize,
    ) -> Option<Vec<BookingSnapshot>> {
        if part >= self.bookings.shards() {
            return None;
        }
        let now = self.clock.now();
        let found = self.bookings.live_in(part, |partition, facts| {
            partition.key == *key
                && origin.is_none_or(|origin| origin == facts.origin)
                && since.is_none_or(|since| facts.is_after(since))
        });
        Some(found.into_iter().map(|booking| snapshot(&booking, now)).collect())
    }

    /// Session bindings of one partition, those of one writer or all.
    pub fn replica_sessions(&self, key: &PartitionKey, writer: Option<RouterId>) -> Vec<SessionSnapshot> {
        match self.partition(&key.model_name, &key.routing_group) {
            Some(partition) => partition.sessions.snapshot(writer, self.clock.now()),
            None => Vec::new(),
        }
    }

    /// Takes over bookings of one partition that the replica `from` has and was asked for at `asked`. A booking that a call
    /// ended here is not booked again; one that ended otherwise (its rank left) only if its maker still has it.
    pub fn merge_bookings(
        &self,
        key: &PartitionKey,
        from: RouterId,
        asked: Moment,
        bookings: impl IntoIterator<Item = BookingSnapshot>,
        report: &mut MergeReport,
    ) {
        let Some(partition) = self.partition(&key.model_name, &key.routing_group) else { return };
        for booking in bookings {
            self.merge_booking(&partition, from, asked, booking, report);
        }
    }

    fn merge_booking(
        &self,
        partition: &PartitionRef,
        from: RouterId,
        asked: Moment,
        booking: BookingSnapshot,
        report: &mut MergeReport,
    ) {
        let now = self.clock.now();
        let (id, rank) = (booking.selection_id, booking.rank);
        if let Some(known) = self.bookings.find_in(&id, partition) {
            if known.facts.rank != rank {
                // Its maker is gone, and a client booked the id here instead.
                if from != booking.origin && known.facts.origin == partition.router_id() {
                    let (partition, age) = (partition.key.clone(), now.since(known.facts.admitted));
                    let origin = booking.origin;
                    report.missed.push(MissedCall { partition, selection_id: id, rank, origin, freed: true, age });
                }
                return;
            }
            if !booking.prefill_completed && known.facts.is_prefill_done() {
                let (partition, age) = (partition.key.clone(), now.since(known.facts.known));
                let origin = known.facts.origin;
                report.missed.push(MissedCall { partition, selection_id: id, rank, origin, freed: false, age });
            } else if booking.prefill_completed && self.complete_mirrored(&known) {
                report.completed += 1;
            }
            return;
        }
        if self.config.active_request_expiry.is_some_and(|expiry| booking.age > expiry) {
            return;
        }
        // The age was told after the question: a booking looks older than it is by the time of an answer at most, never
        // younger, so an end that followed it is always known as such.
        let admitted = asked.before(booking.age);
        if let Some((at, ended)) = self.bookings.ended_lately(&id, rank, now)
            && match ended.rank == rank && ended.origin.is_none_or(|origin| origin == booking.origin) {
                true if from == booking.origin => ended.by_call && at >= admitted,
                true => at.after(SLACK) >= admitted,
                // A client that had no answer books the id once more, elsewhere, and ends it there: it knows of one booking.
                // Its maker, if it lives, knows best.
                false => from != booking.origin && ended.by_call && at >= admitted,
            }
        {
            let (partition, origin, age) = (partition.key.clone(), booking.origin, now.since(at));
            report.missed.push(MissedCall { partition, selection_id: id, rank, origin, freed: true, age });
            return;
        }
        let new = NewMirror {
            id: Arc::clone(&id),
            rank,
            lora_name: booking.lora_name,
            admission: booking.admission,
            origin: booking.origin,
            admitted: Some(admitted),
        };
        match self.admit(partition, new) {
            Mirrored::Applied => {
                report.added += 1;
                if booking.prefill_completed
                    && let Some(added) = self.bookings.find_in(&id, partition)
                {
                    self.complete_mirrored(&added);
                }
            }
            Mirrored::Dropped(_) => report.refused += 1,
            Mirrored::Known | Mirrored::Early | Mirrored::EndedEarly => {}
        }
    }

    /// Ends bookings of `origin` in one partition that were known before `asked` and are not among `live`, the ids its
    /// maker had since.
    pub fn end_absent(
        &self,
        key: &PartitionKey,
        origin: RouterId,
        asked: Moment,
        live: &HashSet<Arc<str>>,
        report: &mut MergeReport,
    ) {
        for shard in 0..self.bookings.shards() {
            let absent = self.bookings.live_in(shard, |partition, facts| {
                facts.origin == origin && facts.known < asked && partition.key == *key && !live.contains(&facts.id)
            });
            report.ended += absent.iter().filter(|booking| self.end_mirrored(booking)).count() as u64;
        }
    }

    /// A call reached another replica and not this one; whether that changed something here. What this replica made
    /// itself after the call is another booking of the same id.
    pub fn catch_up(&self, missed: &MissedCall) -> bool {
        let Some(partition) = self.partition(&missed.partition.model_name, &missed.partition.routing_group) else {
            return false;
        };
        match self.bookings.find_in(&missed.selection_id, &partition) {
            Some(known)
                if (known.facts.rank, known.facts.origin) == (missed.rank, missed.origin)
                    && self.concerns(missed, &known) =>
            {
                if missed.freed {
                    // Remembered as of then: the id may have been booked again since.
                    self.end_mirrored_at(&known, self.clock.now().before(missed.age))
                } else {
                    self.complete_mirrored(&known)
                }
            }
            _ => false,
        }
    }

    /// Whether a call another replica tells of can have meant this booking. Only its maker knows when it was made: others
    /// heard of it later, perhaps later than of its end elsewhere.
    fn concerns(&self, missed: &MissedCall, booking: &LiveBooking) -> bool {
        let is_maker = booking.facts.origin == booking.partition.router_id();
        let slack = if is_maker { Duration::ZERO } else { SLACK };
        self.clock.now().since(booking.facts.admitted).saturating_add(slack) > missed.age
    }

    /// Ends mirrored bookings whose maker booked them longer than the expiry ago: the tracker counts from when they
    /// became known here.
    pub(in crate::selection::core) fn expire_mirrored(&self, now: Moment) {
        let Some(expiry) = self.config.active_request_expiry else { return };
        for shard in 0..self.bookings.shards() {
            let old = self
                .bookings
                .live_in(shard, |_, facts| facts.admitted < facts.known && now.since(facts.admitted) > expiry);
            for booking in old {
                let freed = booking.partition.with_state(|state| state.load.free(booking.attempt, now));
                if freed.unwrap_or(false) {
                    self.bookings.ended(&[booking.attempt], crate::selection::core::BookingEnd::Expired, now);
                }
            }
        }
    }
}

fn digests(partition: &PartitionRef) -> PartitionDigests {
    let mut origins: BTreeMap<RouterId, OriginDigest> = BTreeMap::new();
    for (origin, load) in partition.digests.all() {
        origins.entry(origin).or_default().load = load;
    }
    for (origin, sessions) in partition.sessions.digests() {
        origins.entry(origin).or_default().sessions = sessions;
    }
    let named = |(origin, digest): (RouterId, OriginDigest)| OriginDigest { origin, ..digest };
    PartitionDigests {
        partition: partition.key.clone(),
        block_size: partition.block_size,
        membership: partition.membership(),
        origins: origins.into_iter().map(named).collect(),
    }
}

fn snapshot(booking: &LiveBooking, now: Moment) -> BookingSnapshot {
    let facts = &booking.facts;
    BookingSnapshot {
        selection_id: Arc::clone(&facts.id),
        rank: facts.rank,
        lora_name: facts.lora_name.clone(),
        admission: facts.admission.clone(),
        prefill_completed: facts.is_prefill_done(),
        origin: facts.origin,
        age: now.since(facts.admitted),
    }
}
