//! What replicas tell each other about bookings and sessions, and what of it the core keeps.
//!
//! A replica publishes what it did itself; it never relays. A *mirrored* booking was made by another replica; its
//! *origin* is the replica that made it. Both sides keep a digest of the live bookings of each origin, so that a loss
//! shows. Output blocks, decay and expiry are local and stay out of it.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use super::{
    identity::{PartitionKey, WorkerWithDpRank},
    moment::Moment,
    request::AffinityTarget,
};

/// Prefill tokens a peer may claim for one booking; more is taken as this.
pub const MAX_PREFILL_TOKENS: u64 = 1 << 40;

/// Most that mirrored bookings may hold, in words of eight bytes: 4 GiB of prompt hashes and ids.
pub(in crate::selection) const MAX_MIRRORED_WORDS: u64 = 512 << 20;
/// What a mirrored booking costs beside its hashes and id, in words.
const BOOKING_WORDS: u64 = 32;

/// Names a replica's process; random, never 0 for one of ours.
pub type RouterId = u64;

/// Order of a session's bindings across replicas; the higher pair wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionVersion {
    /// Starts at wall-clock nanoseconds, grows with every binding.
    pub sequence: u64,
    /// Process that made the binding; 0 without replication.
    pub writer_id: u64,
}

/// What happened to a booking.
#[derive(Clone, Debug, PartialEq)]
pub struct BookingEvent {
    /// Its partition.
    pub partition: PartitionKey,
    /// Tokens a block in that partition.
    pub block_size: u32,
    /// Its id.
    pub selection_id: Arc<str>,
    /// Where it was booked.
    pub rank: WorkerWithDpRank,
    /// LoRA adapter named when it was made.
    pub lora_name: Option<Arc<str>>,
    /// What happened.
    pub change: BookingChange,
}

/// See [`BookingEvent`].
#[derive(Clone, Debug, PartialEq)]
pub enum BookingChange {
    /// It was made.
    Admitted(Admission),
    /// It ended by a call.
    Freed,
    /// Its prefill is done.
    PrefillCompleted,
}

/// What a booking counts for.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// Tracking hashes of the prompt's complete blocks.
    pub sequence: Arc<[u64]>,
    /// Whether prefill tokens count.
    pub track_prefill_tokens: bool,
    /// Expected length of the output, in tokens.
    pub expected_output_tokens: Option<u32>,
    /// The prefill, where known.
    pub prefill: Option<PrefillHint>,
}

/// Tokens to prefill, and how long that is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillHint {
    /// Tokens not covered by the cache.
    pub tokens: u64,
    /// Modelled duration.
    pub duration: Option<Duration>,
}

impl Admission {
    /// Prefill tokens that count.
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill.filter(|_| self.track_prefill_tokens).map_or(0, |hint| hint.tokens)
    }
}

/// A session was bound, used or released.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionEvent {
    /// Its partition.
    pub partition: PartitionKey,
    /// The session.
    pub session_id: Arc<str>,
    /// Where it is bound.
    pub target: AffinityTarget,
    /// Order of the binding among all of the session.
    pub version: SessionVersion,
}

/// Takes what other replicas are to be told. Called on the request's own thread after the change: must not wait.
pub trait ReplicaOutlet: Send + Sync + 'static {
    /// A booking changed here. The number of this change among all that were told.
    fn booking(&self, event: BookingEvent) -> u64;
    /// A session changed here.
    fn session(&self, event: SessionEvent);
}

/// Replication of one core.
pub struct Replication {
    /// This process.
    pub router_id: RouterId,
    /// Where its changes go.
    pub outlet: Arc<dyn ReplicaOutlet>,
}

impl std::fmt::Debug for Replication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replication").field("router_id", &self.router_id).finish_non_exhaustive()
    }
}

/// Set once, before the first request; empty = one replica alone.
pub(in crate::selection) type ReplicationCell = Arc<OnceLock<Replication>>;

/// Sum over the live bookings of one origin in one partition; equal sums mean equal bookings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadDigest {
    /// Live bookings.
    pub bookings: u64,
    /// Order does not matter.
    pub sum: u128,
}

/// What is known of a live booking besides its load.
#[derive(Debug)]
pub(in crate::selection) struct BookingFacts {
    pub(in crate::selection) id: Arc<str>,
    pub(in crate::selection) rank: WorkerWithDpRank,
    pub(in crate::selection) lora_name: Option<Arc<str>>,
    pub(in crate::selection) admission: Admission,
    /// Who made it; 0 without replication.
    pub(in crate::selection) origin: RouterId,
    /// When it was made, by this process's clock.
    pub(in crate::selection) admitted: Moment,
    /// When it became known here.
    pub(in crate::selection) known: Moment,
    prefill_done: AtomicBool,
    /// Number under which it was published; 0 when it was not, or not yet.
    published: AtomicU64,
    /// Digest of all but the prefill.
    identity: u128,
    /// What it takes of [`MAX_MIRRORED_WORDS`]; 0 when it was made here.
    words: u64,
}

impl BookingFacts {
    pub(in crate::selection) fn new(
        id: Arc<str>,
        rank: WorkerWithDpRank,
        lora_name: Option<Arc<str>>,
        admission: Admission,
        (admitted, known): (Moment, Moment),
        origin: RouterId,
    ) -> Self {
        // Only replicas compare digests.
        let identity = if origin == 0 { 0 } else { identity(&id, rank, &admission.sequence) };
        Self {
            id,
            rank,
            lora_name,
            admission,
            origin,
            admitted,
            known,
            prefill_done: AtomicBool::new(false),
            published: AtomicU64::new(0),
            identity,
            words: 0,
        }
    }

    /// The same, made by another replica.
    pub(in crate::selection) fn mirrored(mut self) -> Self {
        let names = self.id.len() + self.lora_name.as_deref().map_or(0, str::len);
        self.words = self.admission.sequence.len() as u64 + names as u64 / 8 + BOOKING_WORDS;
        self
    }

    /// Whether another replica made it.
    pub(in crate::selection) fn is_mirrored(&self) -> bool {
        self.words > 0
    }

    /// What it takes of what mirrored bookings may hold.
    pub(in crate::selection) fn words(&self) -> u64 {
        self.words
    }

    /// Whether its prefill is done.
    pub(in crate::selection) fn is_prefill_done(&self) -> bool {
        self.prefill_done.load(Ordering::Relaxed)
    }

    pub(in crate::selection) fn set_published(&self, number: u64) {
        self.published.store(number, Ordering::Relaxed);
    }

    /// Whether it was published after the change `since`, or not known when.
    pub(in crate::selection) fn is_after(&self, since: u64) -> bool {
        let number = self.published.load(Ordering::Relaxed);
        number == 0 || number > since
    }

    /// Marks the prefill done; what its digest was before, when that was news. Call it under the lock that guards the
    /// booking's row.
    pub(in crate::selection) fn complete_prefill(&self) -> Option<u128> {
        let before = self.digest();
        (!self.prefill_done.swap(true, Ordering::Relaxed)).then_some(before)
    }

    /// Its part of the digest; a prefill that is done differs from one of no tokens.
    pub(in crate::selection) fn digest(&self) -> u128 {
        let prefill = if self.is_prefill_done() { 0 } else { u128::from(self.admission.prefill_tokens()) + 1 };
        self.identity.wrapping_mul(prefill << 1 | 1)
    }
}

/// Odd, so that different prefill tokens give different products.
fn identity(id: &str, rank: WorkerWithDpRank, sequence: &[u64]) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&(id.len() as u64).to_le_bytes());
    hasher.update(id.as_bytes());
    hasher.update(&rank.worker_id.to_le_bytes());
    hasher.update(&rank.dp_rank.to_le_bytes());
    let mut bytes = [0; 512];
    for part in sequence.chunks(64) {
        for (at, hash) in part.iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&hash.to_le_bytes());
        }
        hasher.update(&bytes[..part.len() * 8]);
    }
    hasher.digest128() | 1
}

/// Digests of one partition, by origin. Origins without live bookings are not kept.
#[derive(Debug, Default)]
pub(in crate::selection) struct LoadDigests(Mutex<HashMap<RouterId, LoadDigest>>);

impl LoadDigests {
    /// A booking with this part came.
    pub(in crate::selection) fn add(&self, origin: RouterId, part: u128) {
        if origin != 0 {
            let mut digests = self.0.lock();
            let digest = digests.entry(origin).or_default();
            digest.bookings += 1;
            digest.sum = digest.sum.wrapping_add(part);
        }
    }

    /// A booking with this part ended. Changes come in any order, so the count may be off for a moment.
    pub(in crate::selection) fn remove(&self, origin: RouterId, part: u128) {
        if origin != 0 {
            let mut digests = self.0.lock();
            let digest = digests.entry(origin).or_default();
            digest.bookings = digest.bookings.wrapping_sub(1);
            digest.sum = digest.sum.wrapping_sub(part);
            if *digest == LoadDigest::default() {
                digests.remove(&origin);
            }
        }
    }

    /// A booking's part changed.
    pub(in crate::selection) fn replace(&self, origin: RouterId, before: u128, after: u128) {
        if origin != 0 {
            let mut digests = self.0.lock();
            let digest = digests.entry(origin).or_default();
            digest.sum = digest.sum.wrapping_sub(before).wrapping_add(after);
            if *digest == LoadDigest::default() {
                digests.remove(&origin);
            }
        }
    }

    /// All digests.
    pub(in crate::selection) fn all(&self) -> Vec<(RouterId, LoadDigest)> {
        self.0.lock().iter().map(|(&origin, &digest)| (origin, digest)).collect()
    }
}
