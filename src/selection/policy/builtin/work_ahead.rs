//! `work-ahead`: the rank that would give the first token soonest, by the prefill work still ahead of it.
//!
//! Costs are tokens of prefill: `(ahead + own * (1 + gamma * requests)) * (1 + kappa * blocks / capacity) / speed`, where
//! `ahead` are tokens booked on the rank and not computed yet, and `own` those of the prompt that it has not cached. What
//! is ahead comes from the load tracker (`load::work`), ranks without overlap are ordered by it there.

mod cost;
mod scan;
mod search;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use self::{
    cost::{Overlay, Pricing},
    search::{Scratch, Search},
};
use super::{check, provider as provider_of};
use crate::selection::{
    error::SelectionError,
    load::{LoadTracker, Slot, WorkForm, WorkSpec},
    policy::{
        CacheWeights, PickRequest, Picked, SelectionPolicy,
        eligibility::{self, Candidates},
        inputs::WorkerInputs,
        overlap,
        parameters::WorkerSelectionPolicyProviderError,
        stages::{WorkerSelectionPolicy, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
    },
};

/// Fleets of at most this many ranks are priced whole.
const FEW_RANKS: usize = if cfg!(test) { 2 } else { 16 };

/// Lists of allowed workers up to this length are priced outright.
const FEW_WORKERS: usize = if cfg!(test) { 2 } else { 64 };

/// How work ahead is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Progress {
    /// Each rank by the best means there is.
    #[default]
    Auto,
    Events,
    Rate,
    Clock,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    /// Price of delaying one active request, as a share of the prompt's uncached tokens, 0 or more.
    gamma: f64,
    /// Price of memory in use: the cost of a full rank is this many times more, 0 or more. Without effect on ranks of
    /// unknown capacity.
    kappa: f64,
    /// Prefill tokens a second of one rank until first tokens tell, more than 0.
    prefill_rate: f64,
    progress: Progress,
    /// Whether prompts in progress count as cached where they are.
    overlay: Overlay,
    /// Factors of prefill speed by taint, more than 0; those of all a worker's taints multiply.
    speeds: BTreeMap<String, f64>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            gamma: 0.02,
            kappa: 1.0,
            prefill_rate: 8000.0,
            progress: Progress::default(),
            overlay: Overlay::default(),
            speeds: BTreeMap::new(),
        }
    }
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    for (name, value) in [("gamma", own.gamma), ("kappa", own.kappa)] {
        check(value.is_finite() && (0.0..=1e6).contains(&value), || format!("{name} must be from 0 to 1000000"))?;
    }
    check((1.0..=1e9).contains(&own.prefill_rate), || "prefill_rate must be from 1 to 1000000000".to_owned())?;
    for (taint, speed) in &own.speeds {
        check((1e-3..=1e3).contains(speed), || format!("speeds: the factor of {taint:?} must be from 0.001 to 1000"))?;
    }
    let form = match own.progress {
        Progress::Auto => None,
        Progress::Events => Some(WorkForm::Events),
        Progress::Rate => Some(WorkForm::Rate),
        Progress::Clock => Some(WorkForm::Clock),
    };
    let Parameters { gamma, kappa, prefill_rate, overlay, speeds, .. } = own;
    let settings = WorkAheadSettings { work: Arc::new(WorkSpec { gamma, kappa, prefill_rate, form, speeds }), overlay };
    Ok(Arc::new(move |_, role, _| WorkerSelectionPolicy::work_ahead(settings.clone(), role.as_str())))
}

/// What an instance was configured with.
#[derive(Clone, Debug)]
pub(in crate::selection) struct WorkAheadSettings {
    work: Arc<WorkSpec>,
    overlay: Overlay,
}

/// The policy of one partition.
#[derive(Debug)]
pub(in crate::selection) struct WorkAhead {
    settings: WorkAheadSettings,
    accounting: CacheWeights,
    block_size: u32,
    exclusive_affinity: bool,
    name: Arc<str>,
    scratch: Scratch,
}

impl WorkAhead {
    /// For blocks of `block_size` tokens; `accounting`: weights of the estimate that is booked, and of what is cached in
    /// lower tiers.
    pub(in crate::selection) fn new(
        settings: WorkAheadSettings,
        accounting: CacheWeights,
        block_size: u32,
        exclusive_affinity: bool,
        name: Option<Arc<str>>,
    ) -> Self {
        let name = name.unwrap_or_else(|| Arc::from("work-ahead"));
        Self { settings, accounting, block_size, exclusive_affinity, name, scratch: Scratch::default() }
    }

    /// The cheapest candidate and its cost.
    fn cheapest(
        &mut self,
        pricing: &Pricing<'_>,
        candidates: &Candidates,
        rng: &mut fastrand::Rng,
    ) -> Option<(Slot, f64)> {
        let (request, load) = (pricing.request, pricing.load);
        let search = Search::new(pricing, &mut self.scratch, rng);
        match candidates {
            Candidates::Pinned(slot) => search.among(std::iter::once(*slot), true),
            Candidates::Affinity(slots) => search.among(slots.iter().copied(), false),
            Candidates::Open => match request.allowed_worker_ids {
                Some(allowed) if allowed.len() <= FEW_WORKERS || allowed.len() < load.len() / FEW_WORKERS => {
                    search.among(allowed.iter().flat_map(|&worker| load.slots_of(worker)), false)
                }
                _ if load.len() <= FEW_RANKS => search.among(0..load.rows().len() as Slot, false),
                _ => search.open(),
            },
        }
    }
}

impl SelectionPolicy for WorkAhead {
    fn name(&self) -> &str {
        &self.name
    }

    fn required_inputs(&self) -> WorkerInputs {
        WorkerInputs::ALL | WorkerInputs::PROGRESS
    }

    fn pick(
        &mut self,
        request: &PickRequest<'_>,
        load: &mut LoadTracker,
        rng: &mut fastrand::Rng,
    ) -> Result<Picked, SelectionError> {
        let candidates = eligibility::candidates(request, load, self.exclusive_affinity)?;
        let at = load.keep_work(&self.settings.work, request.now);
        let load = &*load;
        let mut path = std::mem::take(&mut self.scratch.path);
        load.walk(request.sequence, &mut path);
        let pricing = Pricing {
            request,
            load,
            work: load.work(at),
            path: &path,
            accounting: self.accounting,
            block_size: self.block_size,
            overlay: self.settings.overlay,
        };
        let picked = if request.explain {
            scan::explained(&pricing, &candidates, &self.name, rng)
        } else {
            self.cheapest(&pricing, &candidates, rng).map(|(slot, cost)| (slot, cost, None))
        };
        let picked = picked.map(|(slot, cost, explanation)| {
            let overlap = overlap::cached(&request.matches.classes, request.index, slot);
            let now = load.load(slot, request.now);
            let new_blocks = request.sequence.len() as u64 - load.shared_on(&path, slot);
            Picked {
                slot,
                cost,
                overlap,
                cached_tokens: self.accounting.cached_tokens(overlap, self.block_size),
                decode_blocks: now.blocks.saturating_add(new_blocks),
                active_prefill_tokens: now.prefill_tokens,
                explanation,
            }
        });
        self.scratch.path = path;
        picked.ok_or_else(eligibility::nobody)
    }
}
