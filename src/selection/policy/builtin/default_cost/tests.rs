//! The default cost: its terms, its choice, its search.

mod choice;
mod recorded;
mod search;

use std::collections::BTreeSet;

use super::{
    super::testing::{self, Ask, World, ask, one_of, seeds},
    *,
};
use crate::selection::{
    identity::WorkerWithDpRank,
    index::{LaneSet, MatchClass, TierBlocks},
    load::Slot,
    moment::Moment,
    request::{AffinityTarget, RouterConfigOverride, RoutingConstraints},
};

type Fleet = testing::Fleet<DefaultCost>;

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

impl Fleet {
    /// Workers 1, 2, ... with one rank each.
    fn new(parameters: DefaultCostParameters, block_size: u32, workers: u64) -> Self {
        let accounting = CacheWeights { host: 0.75, disk: 0.25 };
        let mut fleet = Self::with_policy(DefaultCost::new(parameters, accounting, block_size, true), block_size);
        (1..=workers).for_each(|worker| fleet.facts(worker, |_| {}));
        fleet
    }
}
