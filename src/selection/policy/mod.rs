//! How a rank is chosen: the policy seam, eligibility, the plugin API and the policies that ship.
//!
//! | file | owns |
//! |---|---|
//! | `stages` | the traits of a policy's components, the policy, its errors |
//! | `context`, `inputs` | what components see |
//! | `table` | the columns behind that |
//! | `host` | one selection by a policy of components |
//! | `shadow` | where a second policy comes from, and what comparing it has shown |
//! | `document` | policy documents, and what they come to |
//! | `registry`, `instances`, `parameters`, `plugins` | types, instances, choices by role |
//! | `classifier` | plugins that see a request before it queues |
//! | `failures` | what plugins did wrong, counted |
//! | `eligibility`, `overlap` | who may be chosen, what he has |
//! | `builtin` | policies that ship |
//! | `pipeline`, `expression` | policies composed in YAML, and the CEL expressions in them |
//!
//! One policy instance a partition. The default cost is called under the partition's lock and does not look at all
//! ranks; policies of components score a table copied out of it, under a lock of their own.

pub mod builtin;
pub mod classifier;
pub mod context;
pub mod document;
pub(in crate::selection) mod eligibility;
#[cfg(feature = "expressions")]
pub mod expression;
pub mod failures;
pub(in crate::selection) mod host;
pub mod inputs;
pub mod instances;
mod overlap;
pub mod parameters;
pub mod pipeline;
pub mod plugins;
pub mod registry;
pub mod shadow;
pub mod stages;
mod table;

use self::{context::RequestFacts, inputs::WorkerInputs};

use super::{
    error::SelectionError,
    explain::Explanation,
    identity::{PartitionKey, WorkerWithDpRank},
    index::{Lane, LaneSet, Matches, PrefixIndex, TierBlocks},
    load::{LoadTracker, Slot},
    moment::Moment,
    request::{AffinityTarget, RouterConfigOverride, RoutingConstraints},
    worker::WorkerRole,
};

/// What a policy instance is made for.
#[derive(Clone, Debug)]
pub struct PolicyScope {
    /// The partition.
    pub key: PartitionKey,
    /// Tokens a block.
    pub block_size: u32,
    /// Role of its workers.
    pub role: WorkerRole,
}

/// What a pick needs to know about an index beside the matches: which lane is which slot.
pub trait LaneMap: std::fmt::Debug {
    /// The slot bound to a lane; `None` when retired or unbound.
    fn slot_of(&self, lane: Lane) -> Option<Slot>;

    /// The live lane of a bound slot.
    fn lane_of_slot(&self, slot: Slot) -> Option<Lane>;

    /// Adds the slots bound to a set of lanes to `slots`, a bit each; slots past its end are left out.
    fn add_slots(&self, lanes: &LaneSet, slots: &mut [u64]) {
        lanes.for_each(|lane| {
            if let Some(slot) = self.slot_of(lane)
                && let Some(word) = slots.get_mut(slot as usize / 64)
            {
                *word |= 1 << (slot % 64);
            }
        });
    }
}

impl LaneMap for PrefixIndex {
    fn slot_of(&self, lane: Lane) -> Option<Slot> {
        PrefixIndex::slot_of(self, lane)
    }

    fn lane_of_slot(&self, slot: Slot) -> Option<Lane> {
        PrefixIndex::lane_of_slot(self, slot)
    }

    fn add_slots(&self, lanes: &LaneSet, slots: &mut [u64]) {
        PrefixIndex::add_slots(self, lanes, slots);
    }
}

/// One selection as a policy sees it.
#[derive(Debug)]
pub struct PickRequest<'a> {
    /// Prompt length in tokens.
    pub prompt_tokens: u64,
    /// Tracking hashes of the prompt's complete blocks.
    pub sequence: &'a [u64],
    /// Whether this request counts as prefill load.
    pub track_prefill_tokens: bool,
    /// Who has what cached, by lanes of `index`.
    pub matches: &'a Matches,
    /// Maps lanes to slots.
    pub index: &'a dyn LaneMap,
    /// Exactly this rank.
    pub pinned_worker: Option<WorkerWithDpRank>,
    /// Only these workers.
    pub allowed_worker_ids: Option<&'a std::collections::BTreeSet<u64>>,
    /// Rather here; exclusive while eligible for policies that ask for it.
    pub affinity_target: Option<AffinityTarget>,
    /// The target is a session's binding and holds against every policy while it is eligible.
    pub target_is_binding: bool,
    /// Taints.
    pub constraints: &'a RoutingConstraints,
    /// Settings of this request.
    pub overrides: Option<&'a RouterConfigOverride>,
    /// Explain the choice.
    pub explain: bool,
    /// What only policies of users read.
    pub facts: RequestFacts<'a>,
    /// The time.
    pub now: Moment,
}

/// A choice.
#[derive(Clone, Debug)]
pub struct Picked {
    /// The chosen slot.
    pub slot: Slot,
    /// Its cost, in blocks.
    pub cost: f64,
    /// What the chosen rank has cached.
    pub overlap: TierBlocks,
    /// Estimated cached tokens of the chosen rank (spec scheduling 5.2), not clamped to the prompt.
    pub cached_tokens: u64,
    /// Active blocks plus those of this prompt not shared with live bookings there.
    pub decode_blocks: u64,
    /// Prefill tokens in progress there, before this request.
    pub active_prefill_tokens: u64,
    /// When asked for.
    pub explanation: Option<Explanation>,
}

/// Weights that turn cached blocks into estimated cached tokens (spec scheduling 5.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheWeights {
    /// Host-pinned tier, 0 to 1.
    pub host: f64,
    /// Disk and external tiers, 0 to 1.
    pub disk: f64,
}

impl CacheWeights {
    /// `round(block_size * (device + host * w + (disk + external) * w))`, half away from zero.
    pub fn cached_tokens(&self, blocks: TierBlocks, block_size: u32) -> u64 {
        (self.weighted_blocks(blocks) * f64::from(block_size)).round() as u64
    }

    /// `device + host * w + (disk + external) * w`.
    pub fn weighted_blocks(&self, blocks: TierBlocks) -> f64 {
        f64::from(blocks.device)
            + f64::from(blocks.host) * self.host
            + (f64::from(blocks.disk) + f64::from(blocks.external)) * self.disk
    }
}

/// A policy instance.
pub trait SelectionPolicy: Send {
    /// Name in explanations and metrics.
    fn name(&self) -> &str;

    /// What it reads; without [`WorkerInputs::CACHE`] the index is not asked.
    fn required_inputs(&self) -> WorkerInputs {
        WorkerInputs::ALL
    }

    /// Chooses a rank. Books nothing; a mutable tracker lets a policy ask for ordered views of it.
    ///
    /// # Errors
    /// Eligibility errors have the texts of spec scheduling 2.1.
    fn pick(
        &mut self,
        request: &PickRequest<'_>,
        load: &mut LoadTracker,
        rng: &mut fastrand::Rng,
    ) -> Result<Picked, SelectionError>;
}
