//! Verbs of requests.
//!
//! | file | owns |
//! |---|---|
//! | `select` | choosing a rank, with or without a booking |
//! | `classify` | what classifiers see and set before that |
//! | `admit` | passing the queue |
//! | `reserve` | bookings of a named rank and of cached selections |
//! | `booked` | a booking until it is installed, and its undoing |
//! | `lifecycle` | what happens to a booking afterwards |
//! | `inspect` | loads and overlap |
//! | `lookup` | buffers of a request, index look-up, predicted overlay |
//! | `answer` | answers |
//!
//! A request takes its partition's lock once, for pick and booking (twice when it has waited in the queue); what it claims, holds and books before it is done
//! is undone when it fails or is dropped. Locks are never nested: partition, session table, booking index and pending
//! cache are each taken alone.

mod admit;
mod answer;
pub(super) mod booked;
mod classify;
mod fetch;
mod inspect;
mod lifecycle;
mod lookup;
mod reserve;
mod select;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{SelectionCore, bookings::Claim};
use crate::selection::{
    error::SelectionError,
    hash,
    identity::WorkerWithDpRank,
    load::LoadTracker,
    partition::{Partition, PartitionRef},
    prompt::HashingScope,
    request::{AffinityTarget, PromptInput, RouterConfigOverride},
};

impl SelectionCore {
    /// How `partition` hashes a prompt. Random tracking hashes take their seed from the partition's generator.
    fn hashing_scope<'a>(
        &'a self,
        partition: &'a Partition,
        prompt: &PromptInput,
        overrides: Option<&RouterConfigOverride>,
    ) -> Result<HashingScope<'a>, SelectionError> {
        let reuse = overrides.and_then(|o| o.assume_kv_reuse).unwrap_or(self.config.assume_kv_reuse);
        let no_reuse = if reuse || hash::token_view(prompt).is_none() {
            None
        } else {
            Some(partition.with_state(|state| state.rng.u64(..))?)
        };
        Ok(HashingScope {
            partition: &partition.key,
            block_size: partition.block_size,
            is_eagle: partition.is_eagle(),
            tracking: &self.config.tracking_hash,
            no_reuse,
        })
    }

    /// Whether a request counts as prefill load.
    fn tracks_prefill(&self, overrides: Option<&RouterConfigOverride>) -> bool {
        overrides.and_then(|o| o.track_prefill_tokens).unwrap_or(self.config.track_prefill_tokens)
    }

    /// Claims an id for a booking. An id whose booking is gone is free, whatever its row says.
    fn claim(&self, id: Arc<str>, partition: &PartitionRef) -> Result<Claim, SelectionError> {
        match self.bookings.claim(Arc::clone(&id), partition) {
            Err(SelectionError::Conflict(text)) => {
                if let Some(known) = self.bookings.find(&id)
                    && !known.partition.with_state(|state| state.load.is_live(known.attempt))?
                {
                    self.bookings.forget(known.attempt, self.clock.now());
                    return self.bookings.claim(id, partition);
                }
                Err(SelectionError::Conflict(text))
            }
            outcome => outcome,
        }
    }
}

/// Whether a session may be steered to `target`: it is registered and takes bookings.
fn takes_bookings(partition: &Partition, target: AffinityTarget) -> bool {
    partition.with_state(|state| is_schedulable(&state.load, target)).unwrap_or(false)
}

fn is_schedulable(load: &LoadTracker, target: AffinityTarget) -> bool {
    let facts = match target.dp_rank {
        Some(dp_rank) => load.slot(WorkerWithDpRank::new(target.worker_id, dp_rank)).and_then(|slot| load.facts(slot)),
        None => load.worker(target.worker_id),
    };
    facts.is_some_and(|facts| !facts.draining)
}
