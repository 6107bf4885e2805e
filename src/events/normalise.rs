//! From decoded events to index operations: who owns the blocks, where they lie, which cache group, whose salt, and
//! what their content hashes are (spec index 3.4 to 3.8, whose order of checks is kept).
//!
//! Invariants: an event that does not fit is dropped alone and counted; nothing is filed under a tier, tenant or block
//! that the event does not clearly name; applying needs no allocation once the buffers have grown, save for multimodal
//! blocks.

mod convert;
mod memory;
#[cfg(test)]
mod tests;

pub use convert::Buffers;
pub use memory::RankMemories;

use super::{
    counts::{Count, DropReason, Tally},
    decode::{Attention, Batch, Event, Medium, Origin, Reject, Removed, Stored},
};
use crate::selection::{
    Tier, hash,
    index::{RemoveOutcome, StoreOutcome, StoredBlock},
    ingest::{EventSink, Trust},
};
use memory::RankMemory;

/// What events are applied to; [`EventSink`] in production.
pub trait EventTarget {
    /// Tokens a block.
    fn block_size(&self) -> u32;
    /// The rank of batches that name none.
    fn registered_rank(&self) -> u32;
    /// The registered rank that a batch means by `dp_rank`; `None` for one that nobody registered.
    fn registered(&self, dp_rank: u32) -> Option<u32> {
        (dp_rank == self.registered_rank()).then_some(dp_rank)
    }
    /// [`EventSink::store`].
    fn store(&self, dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome;
    /// [`EventSink::remove`].
    fn remove(&self, dp_rank: u32, tier: Tier, names: &[u64]) -> RemoveOutcome;
    /// [`EventSink::clear`].
    fn clear(&self, dp_rank: u32);
    /// [`EventSink::reset`].
    fn reset(&self);
    /// [`EventSink::set_trust`].
    fn set_trust(&self, trust: Trust);
}

impl EventTarget for EventSink {
    fn block_size(&self) -> u32 {
        self.block_size()
    }

    fn registered_rank(&self) -> u32 {
        self.registered_rank()
    }

    fn registered(&self, dp_rank: u32) -> Option<u32> {
        self.registered(dp_rank)
    }

    fn store(&self, dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        self.store(dp_rank, tier, parent, blocks)
    }

    fn remove(&self, dp_rank: u32, tier: Tier, names: &[u64]) -> RemoveOutcome {
        self.remove(dp_rank, tier, names)
    }

    fn clear(&self, dp_rank: u32) {
        self.clear(dp_rank);
    }

    fn reset(&self) {
        self.reset();
    }

    fn set_trust(&self, trust: Trust) {
        self.set_trust(trust);
    }
}

/// What applying a batch says about the stream as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The index could not take an event of a registered rank, so it no longer mirrors the engine.
    pub lost: bool,
    /// The registered rank was cleared: whatever was missed before no longer matters.
    pub cleared: bool,
}

/// Applies the events of `batch`, decoded from `payload`, to `target` in order.
pub fn apply(
    batch: &Batch,
    payload: &[u8],
    memories: &mut RankMemories,
    buffers: &mut Buffers,
    target: &impl EventTarget,
    tally: &mut Tally,
) -> Applied {
    for reject in Reject::ALL {
        tally.drop(DropReason::from(reject), u64::from(batch.rejected(reject)));
    }
    tally.add(Count::Batches, 1);
    let named = batch.rank().unwrap_or_else(|| target.registered_rank());
    let registered = target.registered(named);
    let rank = registered.unwrap_or(named);
    if batch.events().is_empty() {
        return Applied::default();
    }
    let Some(memory) = memories.of(rank, registered.is_some()) else {
        tally.drop(DropReason::TooManyRanks, batch.events().len() as u64);
        return Applied::default();
    };
    let is_registered = registered.is_some();
    let applied = Applied::default();
    let mut applier = Applier { batch, payload, rank, is_registered, memory, buffers, target, tally, applied };
    for event in batch.events() {
        if let Err(reason) = applier.event(event) {
            applier.tally.drop(reason, 1);
        }
    }
    applier.applied
}

/// One batch on its way into the index.
struct Applier<'a, T> {
    batch: &'a Batch,
    payload: &'a [u8],
    rank: u32,
    is_registered: bool,
    memory: &'a mut RankMemory,
    buffers: &'a mut Buffers,
    target: &'a T,
    tally: &'a mut Tally,
    applied: Applied,
}

impl<T: EventTarget> Applier<'_, T> {
    fn event(&mut self, event: &Event) -> Result<(), DropReason> {
        match event {
            Event::Stored(stored) => self.stored(stored),
            Event::Removed(removed) => self.removed(removed),
            Event::Cleared(cleared) if cleared.owned => Err(DropReason::Ownership),
            Event::Cleared(_) => {
                self.memory.salts.clear();
                self.target.clear(self.rank);
                self.applied.cleared |= self.rank == self.target.registered_rank();
                self.tally.add(Count::Clears, 1);
                Ok(())
            }
            Event::Ignored => Err(DropReason::Ignored),
        }
    }

    fn stored(&mut self, stored: &Stored) -> Result<(), DropReason> {
        let tier = self.place(&stored.origin, true)?;
        let hashes = self.batch.hashes(stored.hashes);
        let own = stored.salt(self.payload).map(|salt| {
            // The seed is a sum, so a salt can be remembered as its share of it.
            hash::block_seed(None, Some(salt)).wrapping_sub(hash::HASH_SEED)
        });
        let salt = match tier {
            Tier::Device | Tier::HostPinned => self.memory.salts.store(tier, stored.parent, hashes, own)?,
            Tier::Disk | Tier::External => own.unwrap_or(0),
        };
        let seed = hash::block_seed(stored.lora(self.payload), None).wrapping_add(salt);
        let blocks = self.buffers.convert(self.batch, stored, self.target.block_size(), seed)?;
        if blocks.is_empty() {
            return Ok(());
        }
        match self.target.store(self.rank, tier, stored.parent, blocks) {
            StoreOutcome::Applied => {
                self.tally.add(Count::StoredEvents, 1);
                self.tally.add(Count::StoredBlocks, blocks.len() as u64);
                Ok(())
            }
            StoreOutcome::WaitsForParent => {
                self.tally.add(Count::WaitingEvents, 1);
                Ok(())
            }
            StoreOutcome::ParentUnknown => Err(DropReason::ParentUnknown),
            // Nobody asks for it, and the registered ranks are what they were.
            StoreOutcome::Full if !self.is_registered => Err(DropReason::TooManyRanks),
            StoreOutcome::Full => {
                self.applied.lost = true;
                Err(DropReason::IndexFull)
            }
        }
    }

    fn removed(&mut self, removed: &Removed) -> Result<(), DropReason> {
        let tier = self.place(&removed.origin, false)?;
        let names = self.batch.hashes(removed.hashes);
        self.memory.salts.remove(tier, names);
        let outcome = self.target.remove(self.rank, tier, names);
        self.tally.add(Count::RemovedEvents, 1);
        self.tally.add(Count::RemovedBlocks, outcome.removed as u64);
        self.tally.add(Count::UnknownRemovals, outcome.unknown as u64);
        Ok(())
    }

    /// The checks that stores and removals share, in their fixed order; only stores teach.
    fn place(&mut self, origin: &Origin, teaches: bool) -> Result<Tier, DropReason> {
        if origin.owned {
            return Err(DropReason::Ownership);
        }
        if !origin.local {
            return Err(DropReason::Locality);
        }
        let tier = match origin.medium {
            Medium::Tier(tier @ (Tier::Disk | Tier::External)) => return Ok(tier),
            Medium::Tier(tier) => tier,
            Medium::Unknown => return Err(DropReason::Medium),
        };
        if teaches && let (Some(group), Some(attention)) = (origin.group, origin.attention) {
            self.memory.groups.learn(group, attention);
        }
        let main = match (origin.attention, origin.group) {
            (Some(attention), _) => attention == Attention::Main,
            (None, None) => true,
            (None, Some(group)) => self.memory.groups.is_main(group),
        };
        if main { Ok(tier) } else { Err(DropReason::AttentionGroup) }
    }
}

impl From<Reject> for DropReason {
    fn from(reject: Reject) -> Self {
        match reject {
            Reject::NotAnEvent => Self::NotAnEvent,
            Reject::UnknownType => Self::UnknownType,
            Reject::MissingField => Self::MissingField,
            Reject::BadField => Self::BadField,
            Reject::TextTokens => Self::TextTokens,
            Reject::TooMany => Self::TooMany,
        }
    }
}
