//! Passing the queue: a request decides at once, or waits for its turn and decides then (spec scheduling 3.4 to 3.9).
//!
//! Either way deciding, booking included, is one hold of the partition's lock with the judgement that let it: no two
//! requests go on one freed rank. Only a policy with a lock of its own decides after that hold, so that another request
//! may be let go before it has booked.

use std::convert::Infallible;

use super::{lookup::Scratch, select::Aim};
use crate::selection::{
    core::{SelectionCore, queueing::shut_down},
    error::SelectionError,
    load::LoadTracker,
    moment::Moment,
    partition::{Choice, Partition, PartitionRef, PartitionState},
    policy::{CacheWeights, Picked, inputs::WorkerInputs},
    queue::{Arrival, Arriving, Departure, Placement},
    request::SelectRequest,
};

impl SelectionCore {
    /// Chooses a rank when it is the request's turn, and runs `then` once, under the partition's lock; its time is handed
    /// in and returned. Some requests pass the queue by (`aim.queued`).
    ///
    /// # Errors
    /// 429 when a limit of the queue is reached or the deadline passes before, while or after it waits; what
    /// the policy and `then` say.
    pub(super) async fn admitted<R>(
        &self,
        partition: &PartitionRef,
        request: &SelectRequest,
        aim: &Aim,
        scratch: &mut Scratch,
        deadline: Option<Moment>,
        mut then: impl FnMut(&mut PartitionState, &Scratch, Moment, Picked) -> Result<R, SelectionError>,
    ) -> Result<(R, Moment), SelectionError> {
        // A classifier may have set a due time since.
        let queued = aim.queued;
        let deadline = deadline.into_iter().chain(request.steering.due).min();
        if queued && is_over(deadline, self.clock.now()) {
            return Err(SelectionError::DeadlineExceeded);
        }
        // Nobody asks for what a policy does not read.
        let reads_cache = || partition.required_inputs().contains(WorkerInputs::CACHE);
        if reads_cache() {
            scratch.look_up(partition)?;
        } else {
            scratch.matches.classes.clear();
        }
        let now = self.clock.now();
        let gate = |state: &mut PartitionState| {
            if queued
                && state.queue.is_on()
                && let Arrival::Waits(ticket) = self.arrive(partition, state, request, scratch, deadline, now)?
            {
                return Ok(Some(ticket));
            }
            Ok(None)
        };
        let ticket = {
            let wish = self.wish(partition, request, aim, scratch, now);
            match partition.choose(&wish, gate, |state, picked| then(state, scratch, now, picked))? {
                Choice::Made(decided) => return Ok((decided, now)),
                Choice::Waits(ticket) => ticket,
            }
        };
        let mut turn = partition.turn(ticket, deadline, &*self.clock).await?;
        let waited = self.clock.now().since(turn.arrived());
        // What was looked up names ranks by numbers that may mean others by now.
        let is_old =
            self.config.overlap_refresh_after.is_some_and(|age| waited >= age) || !scratch.is_current(partition);
        if is_old && reads_cache() {
            scratch.look_up(partition)?;
        }
        let now = self.clock.now();
        if is_over(deadline, now) {
            return Err(turn.expire());
        }
        // A policy with a lock of its own decides after this hold: the next one of the queue may be judged before it books.
        let gate = |state: &mut PartitionState| {
            turn.redeem(&mut state.queue, now);
            Ok(None::<Infallible>)
        };
        let wish = self.wish(partition, request, aim, scratch, now);
        match partition.choose(&wish, gate, |state, picked| then(state, scratch, now, picked))? {
            Choice::Made(decided) => Ok((decided, now)),
            Choice::Waits(never) => match never {},
        }
    }

    /// Weights of the tiers in estimates of cached tokens.
    pub(super) fn cache_weights(&self) -> CacheWeights {
        CacheWeights { host: self.config.host_cache_hit_weight, disk: self.config.disk_cache_hit_weight }
    }

    /// Judges a request that comes.
    fn arrive(
        &self,
        partition: &Partition,
        state: &mut PartitionState,
        request: &SelectRequest,
        scratch: &Scratch,
        deadline: Option<Moment>,
        now: Moment,
    ) -> Result<Arrival, SelectionError> {
        let steering = &request.steering;
        let arriving = Arriving {
            class_name: steering.policy_class.as_deref(),
            placement: Placement::of(steering),
            isl_tokens: scratch.prompt.isl_tokens(),
            scheduling_cost: steering.scheduling_cost,
            strict_priority: steering.strict_priority.unwrap_or(0),
            priority_jump: steering.priority_jump.unwrap_or(0.0),
            due: steering.due,
            came: steering.came,
            deadline,
        };
        let weights = self.cache_weights();
        let cached = |load: &LoadTracker, placement: &Placement| {
            best_cached_tokens(partition, load, scratch, placement, weights)
        };
        let arrival = state.queue.arrive(arriving, &mut state.load, partition.schedulable_workers(), now, cached)?;
        // Under the lock: whoever is added after those that wait were told would never hear of it.
        if let Arrival::Waits(ticket) = &arrival
            && self.has_closed_queues()
        {
            state.queue.cancel(ticket, Departure::Cancelled);
            return Err(shut_down());
        }
        Ok(arrival)
    }
}

/// Whether a deadline has passed.
fn is_over(deadline: Option<Moment>, now: Moment) -> bool {
    deadline.is_some_and(|deadline| now >= deadline)
}

/// The most that a rank which may take the request has cached of it, in tokens (spec scheduling 3.5).
pub(super) fn best_cached_tokens(
    partition: &Partition,
    load: &LoadTracker,
    scratch: &Scratch,
    placement: &Placement,
    weights: CacheWeights,
) -> u64 {
    let index = partition.index.primary();
    let mut best = 0;
    for class in &scratch.matches.classes {
        let tokens = weights.cached_tokens(class.blocks, partition.block_size);
        if tokens <= best {
            continue;
        }
        let is_there = |lane| index.slot_of(lane).is_some_and(|slot| placement.admits(load, slot));
        if class.lanes.any(is_there) {
            best = tokens;
        }
    }
    best
}
