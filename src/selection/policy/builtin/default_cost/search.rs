//! The cheapest rank without pricing all of them, exactly (design section 4).
//!
//! A rank that shares nothing with the prompt costs its base cost plus what the prompt costs anybody, so ranks are
//! walked in the order of their base cost. Ranks in small match classes and small sets of live prompts are priced
//! first. What any other rank can gain is bounded by the best of the wide classes and sets that are left; the walk ends
//! where no gain can beat the best cost found. Where it does not end soon, because ranks that gain much are not among the
//! cheapest, the rest is searched by cells (`cells`). Costs always come from the formula itself: order and bound only
//! decide what is *not* priced, so rounding cannot change the result.

mod cells;

use self::cells::Sets;
use super::cost::{Formula, Inputs};
use crate::selection::{
    index::{MatchClass, TierBlocks},
    load::{LoadTracker, OrderSpec, Passed, Slot},
    policy::{PickRequest, builtin::priced, eligibility::Filter, overlap},
};

/// Classes and sets of at most this many ranks are priced outright. Small in tests, so that they meet both sides.
const SMALL: usize = if cfg!(test) { 3 } else { 32 };

/// Buckets of more ranks than this are sampled instead of priced.
const LARGE: usize = if cfg!(test) { 3 } else { 8 };

/// Most samples taken of a large bucket before other means are tried.
const SAMPLES: usize = if cfg!(test) { 4 } else { 32 };

/// The same where ranks can be dealt with by cells.
const FEW_SAMPLES: usize = 2;

/// Bound on the relative rounding error of a cost: some ten operations of half a unit in the last place each.
const ROUNDING: f64 = 1e-14;

/// Memory a policy reuses from pick to pick.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Runs of live prompts that the prompt passes through.
    pub(super) path: Vec<Passed>,
    /// By slot: the pick in which it was last priced.
    priced: Vec<u64>,
    pick: u64,
    /// Slots priced in this pick.
    done: Vec<Slot>,
    sets: Sets,
    #[cfg(test)]
    pub(super) trace: Trace,
}

/// What tests see of the last pick.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Ranks looked at.
    pub(super) looked_at: usize,
    /// Ranks that could have been drawn.
    pub(super) tied: std::collections::BTreeSet<Slot>,
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) slot: Slot,
    pub(super) cost: f64,
}

/// A match class whose ranks were not priced outright.
struct Wide<'a> {
    class: &'a MatchClass,
    credit: f64,
}

/// What a walk left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// The other groups, if any.
    GroupDone,
    /// Nothing.
    AllDone,
}

/// One search.
pub(super) struct Search<'a> {
    request: &'a PickRequest<'a>,
    load: &'a LoadTracker,
    formula: Formula,
    filter: Filter<'a>,
    path: &'a [Passed],
    priced: &'a mut [u64],
    pick: u64,
    done: &'a mut Vec<Slot>,
    sets: &'a mut Sets,
    rng: &'a mut fastrand::Rng,
    /// Deepest credit last.
    wide: Vec<Wide<'a>>,
    /// `path[..wide_runs]` are the runs whose owners were not priced outright.
    wide_runs: usize,
    best: f64,
    chosen: Option<Slot>,
    /// Ranks priced at `best`.
    ties: u64,
    /// Buckets that were sampled: their members cost at least `best`, and those that cost `best` tie as well.
    pools: Vec<&'a [Slot]>,
    #[cfg(test)]
    trace: &'a mut Trace,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        request: &'a PickRequest<'a>,
        load: &'a LoadTracker,
        formula: Formula,
        scratch: &'a mut Scratch,
        rng: &'a mut fastrand::Rng,
    ) -> Self {
        scratch.pick += 1;
        if scratch.priced.len() < load.rows().len() {
            scratch.priced.resize(load.rows().len(), 0);
        }
        scratch.done.clear();
        load.walk(request.sequence, &mut scratch.path);
        Self {
            request,
            load,
            formula,
            filter: Filter::new(request, load),
            path: &scratch.path,
            priced: &mut scratch.priced,
            pick: scratch.pick,
            done: &mut scratch.done,
            sets: &mut scratch.sets,
            rng,
            wide: Vec::new(),
            wide_runs: 0,
            best: f64::INFINITY,
            chosen: None,
            ties: 0,
            pools: Vec::new(),
            #[cfg(test)]
            trace: {
                scratch.trace = Trace::default();
                &mut scratch.trace
            },
        }
    }

    /// The best of the given ranks. Those that are not eligible are skipped, for `pinned` ones the caller has checked,
    /// and their cost knows no preferred taints.
    pub(super) fn among(mut self, slots: impl Iterator<Item = Slot> + Clone, pinned: bool) -> Option<Found> {
        if self.formula.credit_decays() {
            let mut least = u64::MAX;
            for slot in slots.clone() {
                if pinned || self.admits(slot).is_some() {
                    least = least.min(self.load.load(slot, self.request.now).prefill_tokens);
                }
            }
            self.formula.least_prefill = least;
        }
        for slot in slots {
            let multiplier = if pinned { Some(1.0) } else { self.admits(slot) };
            if let (Some(multiplier), false) = (multiplier, self.mark(slot)) {
                self.price(slot, None, None, multiplier);
            }
        }
        self.finish()
    }

    /// The best of all eligible ranks. `order` is by base cost, with a group for each set of taints if `by_taints`;
    /// `prefill_order` is by prefill tokens alone, needed when the credit decays.
    pub(super) fn open(mut self, order: usize, by_taints: bool, prefill_order: Option<usize>) -> Option<Found> {
        if let Some(order) = prefill_order {
            self.formula.least_prefill = self.least_prefill(order);
        }
        for slot in self.load.decaying() {
            self.visit(slot);
        }
        self.price_small_sets();
        let mut groups = Vec::with_capacity(1);
        for group in 0..self.load.order_groups(order) {
            let multiplier = if by_taints { self.filter.multiplier(group as u32) } else { Some(1.0) };
            if let (Some(multiplier), Some((base, _))) = (multiplier, self.load.buckets(order, group).next()) {
                groups.push((self.bound(base, multiplier), group, multiplier));
            }
        }
        groups.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        for (_, group, multiplier) in groups {
            if self.walk(order, group, multiplier) == Walk::AllDone {
                break;
            }
        }
        self.finish()
    }

    fn least_prefill(&mut self, order: usize) -> u64 {
        let load = self.load;
        let mut least = u64::MAX;
        for slot in load.decaying() {
            if self.admits(slot).is_some() {
                least = least.min(load.load(slot, self.request.now).prefill_tokens);
            }
        }
        for &slot in load.buckets(order, 0).flat_map(|(_, slots)| slots) {
            if self.admits(slot).is_some() {
                return least.min(load.rows()[slot as usize].load.prefill_tokens);
            }
        }
        least
    }

    /// Prices small classes and sets, and remembers the wide ones.
    fn price_small_sets(&mut self) {
        let (load, request, path) = (self.load, self.request, self.path);
        self.wide_runs = path.partition_point(|passed| load.owners(*passed).len() > SMALL);
        // Deepest first: owners of a run are among those of the runs above it.
        for passed in path[self.wide_runs..].iter().rev() {
            load.owners(*passed).for_each(|slot| self.visit_sharing(slot, u64::from(passed.depth)));
        }
        for class in &request.matches.classes {
            if overlap::at_most(&class.lanes, SMALL) {
                self.price_class(class);
            } else {
                self.wide.push(Wide { class, credit: self.formula.most_credit(class.blocks) });
            }
        }
        self.wide.sort_by(|a, b| a.credit.total_cmp(&b.credit));
    }

    fn price_class(&mut self, class: &MatchClass) {
        overlap::for_each(&class.lanes, |lane| {
            if let Some(slot) = self.request.index.slot_of(lane)
                && let Some(multiplier) = self.admits(slot)
                && !self.mark(slot)
            {
                self.price(slot, Some(class.blocks), None, multiplier);
            }
        });
    }

    fn walk(&mut self, order: usize, group: usize, multiplier: f64) -> Walk {
        let load = self.load;
        let mut walked = 0;
        for (base, slots) in load.buckets(order, group) {
            // Not written as `<=`: a bound that is not a number ends nothing.
            if self.bound(base, multiplier) > self.best {
                return Walk::GroupDone;
            }
            if slots.len() > LARGE {
                if self.bucket(order, slots, multiplier) == Walk::AllDone {
                    return Walk::AllDone;
                }
                continue;
            }
            slots.iter().for_each(|&slot| self.visit(slot));
            walked += slots.len();
            if walked > self.patience() && self.by_cells(order) {
                return Walk::AllDone;
            }
            if walked > SMALL && self.narrow(walked) {
                walked = 0;
            }
        }
        Walk::GroupDone
    }

    /// Ranks that may be priced before a search by cells is cheaper: that looks at all ranks, some hundred at a time.
    fn patience(&self) -> usize {
        LARGE + self.load.rows().len() / 128
    }

    /// Least cost of any rank not priced yet whose base cost is at least `base`.
    fn bound(&self, base: f64, multiplier: f64) -> f64 {
        let gain = self.wide.last().map_or(0.0, |wide| wide.credit) + self.widest_shared() as f64;
        self.bound_of(base, gain, multiplier)
    }

    /// Least cost of a rank whose base cost is at least `base` and which gains at most `gain`.
    fn bound_of(&self, base: f64, gain: f64, multiplier: f64) -> f64 {
        let prompt = self.formula.prompt_cost();
        let rounding = (base + prompt + gain) * ROUNDING;
        (multiplier * ((base + prompt - gain).max(0.0) - rounding)).min(f64::MAX)
    }

    /// Most blocks of the prompt that live prompts of a rank not priced outright hold.
    fn widest_shared(&self) -> u64 {
        self.wide_runs.checked_sub(1).map_or(0, |at| u64::from(self.path[at].depth))
    }

    /// Deals with ranks of equal load without pricing each.
    fn bucket(&mut self, order: usize, slots: &'a [Slot], multiplier: f64) -> Walk {
        loop {
            let least = self.least_of(slots[0], multiplier);
            if least > self.best {
                return Walk::GroupDone;
            }
            if least == self.best {
                self.pools.push(slots);
                return Walk::GroupDone;
            }
            let cells = slots.len() > self.patience() && self.has_cells(order);
            let samples = if cells { FEW_SAMPLES } else { SAMPLES };
            for _ in 0..samples.min(slots.len() / 2) {
                let slot = slots[self.rng.usize(0..slots.len())];
                if self.cost_of_unpriced(slot) == Some(least) {
                    self.best = least;
                    (self.chosen, self.ties) = (None, 0);
                    self.pools.clear();
                    self.pools.push(slots);
                    return Walk::GroupDone;
                }
            }
            // Nobody here seems to be in the best wide class.
            if cells && self.by_cells(order) {
                return Walk::AllDone;
            }
            // Take it out of the bound if that is cheaper.
            if !self.narrow(slots.len()) {
                slots.iter().for_each(|&slot| self.visit(slot));
                return Walk::GroupDone;
            }
        }
    }

    /// The cost that the best placed member of a bucket could have.
    fn least_of(&self, member: Slot, multiplier: f64) -> f64 {
        let load = self.load.rows()[member as usize].load;
        let shared = self.widest_shared();
        let cost = |cached| self.formula.cost(&Inputs { load, cached, shared }, multiplier);
        self.wide.iter().map(|wide| cost(wide.class.blocks)).fold(cost(TierBlocks::default()), f64::min)
    }

    /// Prices outright whatever bounds the gain, if it has at most `most` ranks. `false` if it has more.
    fn narrow(&mut self, most: usize) -> bool {
        if let Some(wide) = self.wide.last()
            && overlap::at_most(&wide.class.lanes, most)
        {
            let class = wide.class;
            self.wide.pop();
            self.price_class(class);
            return true;
        }
        if let Some(at) = self.wide_runs.checked_sub(1)
            && self.load.owners(self.path[at]).len() <= most
        {
            let (load, passed) = (self.load, self.path[at]);
            self.wide_runs = at;
            load.owners(passed).for_each(|slot| self.visit_sharing(slot, u64::from(passed.depth)));
            return true;
        }
        false
    }

    fn visit(&mut self, slot: Slot) {
        self.look();
        if let Some(multiplier) = self.admits(slot)
            && !self.mark(slot)
        {
            self.price(slot, None, None, multiplier);
        }
    }

    fn visit_sharing(&mut self, slot: Slot, shared: u64) {
        if let Some(multiplier) = self.admits(slot)
            && !self.mark(slot)
        {
            self.price(slot, None, Some(shared), multiplier);
        }
    }

    #[cfg(test)]
    fn trace_pools(&mut self) {
        let looked_at = self.trace.looked_at;
        if self.ties == 0 {
            self.trace.tied.clear();
        }
        for slot in self.pools.concat() {
            if self.cost_of_unpriced(slot) == Some(self.best) {
                self.trace.tied.insert(slot);
            }
        }
        self.trace.looked_at = looked_at;
    }

    /// Counts the work, in tests.
    fn look(&mut self) {
        #[cfg(test)]
        {
            self.trace.looked_at += 1;
        }
    }

    fn admits(&mut self, slot: Slot) -> Option<f64> {
        self.filter.admits(self.load.rows().get(slot as usize)?)
    }

    /// Marks a slot as priced; whether it was.
    fn mark(&mut self, slot: Slot) -> bool {
        let marked = std::mem::replace(&mut self.priced[slot as usize], self.pick) == self.pick;
        if !marked {
            self.done.push(slot);
        }
        marked
    }

    fn inputs(&self, slot: Slot, cached: Option<TierBlocks>, shared: Option<u64>) -> Inputs {
        let row = &self.load.rows()[slot as usize];
        Inputs {
            load: if row.decays { self.load.load(slot, self.request.now) } else { row.load },
            cached: cached.unwrap_or_else(|| overlap::cached(&self.request.matches.classes, self.request.index, slot)),
            shared: shared.unwrap_or_else(|| self.load.shared_on(self.path, slot)),
        }
    }

    fn price(&mut self, slot: Slot, cached: Option<TierBlocks>, shared: Option<u64>, multiplier: f64) {
        self.look();
        let cost = self.formula.cost(&self.inputs(slot, cached, shared), multiplier);
        self.take(cost, 1, |_| Some(slot));
        #[cfg(test)]
        if cost == self.best {
            self.trace.tied.insert(slot);
        }
    }

    /// `count` ranks cost `cost` each; `draw` draws one of them.
    fn take(&mut self, cost: f64, count: u64, draw: impl FnOnce(&mut fastrand::Rng) -> Option<Slot>) {
        if cost < self.best {
            self.best = cost;
            self.ties = 0;
            self.pools.clear();
        }
        if cost == self.best {
            #[cfg(test)]
            if self.ties == 0 {
                self.trace.tied.clear();
            }
            self.ties += count;
            if self.ties == count || self.rng.u64(0..self.ties) < count {
                self.chosen = draw(self.rng);
            }
        }
    }

    /// The cost of an eligible rank that was not priced.
    fn cost_of_unpriced(&mut self, slot: Slot) -> Option<f64> {
        self.look();
        let multiplier = self.admits(slot)?;
        let open = self.priced[slot as usize] != self.pick;
        open.then(|| self.formula.cost(&self.inputs(slot, None, None), multiplier))
    }

    /// Draws uniformly among the ranks priced at the best cost and the members of pools that have it.
    fn finish(mut self) -> Option<Found> {
        #[cfg(test)]
        self.trace_pools();
        let (tied, pools) = ((self.chosen, self.ties), std::mem::take(&mut self.pools));
        // The draws and the look at a rank both need the search.
        let mut rng = self.rng.fork();
        let mut drawn = priced::draw_tied(tied, &pools, 16 * SAMPLES, &mut rng, |slot| {
            self.cost_of_unpriced(slot) == Some(self.best)
        });
        if drawn.is_none() {
            if self.ties == 0 {
                // Found by a sample; what its rank holds may have changed since.
                self.best = f64::INFINITY;
            }
            for pool in pools {
                pool.iter().for_each(|&slot| self.visit(slot));
            }
            drawn = self.chosen;
        }
        drawn.map(|slot| Found { slot, cost: self.best })
    }
}

/// The orders a search needs.
pub(super) fn order_specs(formula: &Formula, by_taints: bool) -> (OrderSpec, Option<OrderSpec>) {
    let base = formula.base_order(by_taints);
    let prefill = OrderSpec { prefill_scale: 1.0, decode: false, request_weight: 0.0, by_taints: false };
    (base, formula.credit_decays().then_some(prefill))
}
