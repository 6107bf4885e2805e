//! Fleets to try the policies on that are called under the partition's lock.

mod world;

use std::{collections::BTreeSet, sync::Arc};

pub(super) use self::world::{World, one_of, seeds};
use super::super::{LaneMap, PickRequest, Picked, SelectionPolicy, context::RequestFacts};
use crate::selection::{
    error::SelectionError,
    identity::WorkerWithDpRank,
    index::{Lane, LaneSet, MatchClass, Matches, TierBlocks},
    load::{BookingId, LoadConfig, LoadTracker, NewBooking, Slot, WorkerFacts},
    moment::Moment,
    request::{AffinityTarget, RouterConfigOverride, RoutingConstraints},
};

/// Lane = slot plus a constant.
#[derive(Debug)]
pub(in crate::selection::policy::builtin) struct Shifted(pub(in crate::selection::policy::builtin) u16);

impl LaneMap for Shifted {
    fn slot_of(&self, lane: Lane) -> Option<Slot> {
        lane.0.checked_sub(self.0).map(Slot::from)
    }

    fn lane_of_slot(&self, slot: Slot) -> Option<Lane> {
        Some(Lane(u16::try_from(slot).ok()?.checked_add(self.0)?))
    }
}

/// A partition with what its ranks have cached of the one prompt it is asked about.
pub(in crate::selection::policy::builtin) struct Fleet<P> {
    pub(in crate::selection::policy::builtin) policy: P,
    pub(in crate::selection::policy::builtin) load: LoadTracker,
    pub(in crate::selection::policy::builtin) matches: Matches,
    pub(in crate::selection::policy::builtin) rng: fastrand::Rng,
    pub(in crate::selection::policy::builtin) next: u64,
}

/// What one test asks for.
#[derive(Clone, Default)]
pub(in crate::selection::policy::builtin) struct Ask {
    pub(in crate::selection::policy::builtin) tokens: u64,
    pub(in crate::selection::policy::builtin) sequence: Vec<u64>,
    pub(in crate::selection::policy::builtin) untracked: bool,
    pub(in crate::selection::policy::builtin) pin: Option<WorkerWithDpRank>,
    pub(in crate::selection::policy::builtin) allowed: Option<BTreeSet<u64>>,
    pub(in crate::selection::policy::builtin) affinity: Option<AffinityTarget>,
    pub(in crate::selection::policy::builtin) constraints: RoutingConstraints,
    pub(in crate::selection::policy::builtin) overrides: Option<RouterConfigOverride>,
    pub(in crate::selection::policy::builtin) explain: bool,
}

/// A prompt of `tokens` in blocks of 16, none of it active.
pub(in crate::selection::policy::builtin) fn ask(tokens: u64) -> Ask {
    Ask { tokens, sequence: (0..tokens / 16).map(|block| 1_000_000 + block).collect(), ..Ask::default() }
}

impl Ask {
    pub(in crate::selection::policy::builtin) fn request<'a>(
        &'a self,
        matches: &'a Matches,
        now: Moment,
    ) -> PickRequest<'a> {
        PickRequest {
            prompt_tokens: self.tokens,
            sequence: &self.sequence,
            track_prefill_tokens: !self.untracked,
            matches,
            index: &Shifted(3),
            pinned_worker: self.pin,
            allowed_worker_ids: self.allowed.as_ref(),
            affinity_target: self.affinity,
            target_is_binding: false,
            constraints: &self.constraints,
            overrides: self.overrides.as_ref(),
            explain: self.explain,
            facts: RequestFacts::default(),
            now,
        }
    }
}

impl<P: SelectionPolicy> Fleet<P> {
    /// No worker.
    pub(in crate::selection::policy::builtin) fn with_policy(policy: P, block_size: u32) -> Self {
        Self {
            policy,
            load: LoadTracker::new(LoadConfig { block_size, expiry: None }),
            matches: Matches::default(),
            rng: fastrand::Rng::with_seed(7),
            next: 0,
        }
    }

    pub(in crate::selection::policy::builtin) fn facts(
        &mut self,
        worker_id: u64,
        change: impl FnOnce(&mut WorkerFacts),
    ) {
        let mut facts = WorkerFacts { worker_id, ..WorkerFacts::default() };
        change(&mut facts);
        self.load.upsert_rank(WorkerWithDpRank::new(worker_id, 0), Arc::new(facts));
    }

    pub(in crate::selection::policy::builtin) fn slot(&self, worker: u64) -> Slot {
        self.load.slot(WorkerWithDpRank::new(worker, 0)).unwrap()
    }

    pub(in crate::selection::policy::builtin) fn cached(
        &mut self,
        worker: u64,
        device: u32,
        host: u32,
        disk: u32,
        external: u32,
    ) {
        let lanes = LaneSet::List(vec![self.slot(worker) as u16 + 3]);
        self.matches.classes.push(MatchClass { blocks: TierBlocks { device, host, disk, external }, lanes });
    }

    pub(in crate::selection::policy::builtin) fn book(
        &mut self,
        worker: u64,
        sequence: &[u64],
        prefill_tokens: u64,
    ) -> BookingId {
        self.next += 1;
        let booking = NewBooking {
            id: BookingId(self.next),
            slot: self.slot(worker),
            sequence: sequence.into(),
            prefill_tokens,
            prefill_duration: None,
            expected_output_tokens: None,
        };
        assert!(self.load.book(booking, Moment(0)).0);
        BookingId(self.next)
    }

    pub(in crate::selection::policy::builtin) fn pick(&mut self, ask: &Ask) -> Result<Picked, SelectionError> {
        self.policy.pick(&ask.request(&self.matches, Moment(0)), &mut self.load, &mut self.rng)
    }

    /// The pick when one worker alone is allowed.
    pub(in crate::selection::policy::builtin) fn pick_of(
        &mut self,
        ask: &Ask,
        worker: u64,
    ) -> Result<Picked, SelectionError> {
        self.pick(&Ask { allowed: Some(BTreeSet::from([worker])), ..ask.clone() })
    }

    pub(in crate::selection::policy::builtin) fn cost(&mut self, ask: &Ask, worker: u64) -> f64 {
        self.pick_of(ask, worker).unwrap().cost
    }

    pub(in crate::selection::policy::builtin) fn costs(&mut self, ask: &Ask) -> Vec<f64> {
        (1..=self.load.len() as u64).map(|worker| self.cost(ask, worker)).collect()
    }

    pub(in crate::selection::policy::builtin) fn winner(&mut self, ask: &Ask) -> u64 {
        let slot = self.pick(ask).unwrap().slot;
        self.load.rank(slot).unwrap().worker_id
    }
}
