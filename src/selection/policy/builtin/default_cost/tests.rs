//! The default cost: its terms, its choice, its search.

mod choice;
mod recorded;
mod search;

use std::{collections::BTreeSet, sync::Arc};

use super::*;
use crate::selection::{
    identity::WorkerWithDpRank,
    index::{Lane, LaneSet, MatchClass, Matches, TierBlocks},
    load::{BookingId, LoadConfig, NewBooking, Slot, WorkerFacts},
    moment::Moment,
    policy::{LaneMap, context::RequestFacts},
    request::{AffinityTarget, RouterConfigOverride, RoutingConstraints},
};

/// Lane = slot plus a constant.
#[derive(Debug)]
struct Shifted(u16);

impl LaneMap for Shifted {
    fn slot_of(&self, lane: Lane) -> Option<Slot> {
        lane.0.checked_sub(self.0).map(Slot::from)
    }

    fn lane_of_slot(&self, slot: Slot) -> Option<Lane> {
        Some(Lane(u16::try_from(slot).ok()?.checked_add(self.0)?))
    }
}

pub(super) const DEFAULTS: DefaultCostParameters = DefaultCostParameters {
    overlap_score_credit: 1.0,
    overlap_score_credit_decay: 0.0,
    prefill_load_scale: 1.0,
    decode_active_request_weight: 0.0,
    host_cache_hit_weight: 0.75,
    disk_cache_hit_weight: 0.25,
    router_temperature: 0.0,
    decode_label: true,
};

/// A partition with what its ranks have cached of the one prompt it is asked about.
struct Fleet {
    policy: DefaultCost,
    load: LoadTracker,
    matches: Matches,
    rng: fastrand::Rng,
    next: u64,
}

/// What one test asks for.
#[derive(Clone, Default)]
struct Ask {
    tokens: u64,
    sequence: Vec<u64>,
    untracked: bool,
    pin: Option<WorkerWithDpRank>,
    allowed: Option<BTreeSet<u64>>,
    affinity: Option<AffinityTarget>,
    constraints: RoutingConstraints,
    overrides: Option<RouterConfigOverride>,
    explain: bool,
}

/// A prompt of `tokens` in blocks of 16, none of it active.
fn ask(tokens: u64) -> Ask {
    Ask { tokens, sequence: (0..tokens / 16).map(|block| 1_000_000 + block).collect(), ..Ask::default() }
}

impl Ask {
    fn request<'a>(&'a self, matches: &'a Matches, now: Moment) -> PickRequest<'a> {
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

impl Fleet {
    /// Workers 1, 2, ... with one rank each.
    fn new(parameters: DefaultCostParameters, block_size: u32, workers: u64) -> Self {
        let mut fleet = Self {
            policy: DefaultCost::new(parameters, CacheWeights { host: 0.75, disk: 0.25 }, block_size, true),
            load: LoadTracker::new(LoadConfig { block_size, expiry: None }),
            matches: Matches::default(),
            rng: fastrand::Rng::with_seed(7),
            next: 0,
        };
        (1..=workers).for_each(|worker| fleet.facts(worker, |_| {}));
        fleet
    }

    fn facts(&mut self, worker_id: u64, change: impl FnOnce(&mut WorkerFacts)) {
        let mut facts = WorkerFacts { worker_id, ..WorkerFacts::default() };
        change(&mut facts);
        self.load.upsert_rank(WorkerWithDpRank::new(worker_id, 0), Arc::new(facts));
    }

    fn slot(&self, worker: u64) -> Slot {
        self.load.slot(WorkerWithDpRank::new(worker, 0)).unwrap()
    }

    fn cached(&mut self, worker: u64, device: u32, host: u32, disk: u32, external: u32) {
        let lanes = LaneSet::List(vec![self.slot(worker) as u16 + 3]);
        self.matches.classes.push(MatchClass { blocks: TierBlocks { device, host, disk, external }, lanes });
    }

    fn book(&mut self, worker: u64, sequence: &[u64], prefill_tokens: u64) -> BookingId {
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

    fn pick(&mut self, ask: &Ask) -> Result<Picked, SelectionError> {
        self.policy.pick(&ask.request(&self.matches, Moment(0)), &mut self.load, &mut self.rng)
    }

    /// The pick when one worker alone is allowed.
    fn pick_of(&mut self, ask: &Ask, worker: u64) -> Result<Picked, SelectionError> {
        self.pick(&Ask { allowed: Some(BTreeSet::from([worker])), ..ask.clone() })
    }

    fn cost(&mut self, ask: &Ask, worker: u64) -> f64 {
        self.pick_of(ask, worker).unwrap().cost
    }

    fn costs(&mut self, ask: &Ask) -> Vec<f64> {
        (1..=self.load.len() as u64).map(|worker| self.cost(ask, worker)).collect()
    }

    fn winner(&mut self, ask: &Ask) -> u64 {
        let slot = self.pick(ask).unwrap().slot;
        self.load.rank(slot).unwrap().worker_id
    }
}
