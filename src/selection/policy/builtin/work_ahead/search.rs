//! The cheapest rank without pricing all of them, exactly.
//!
//! Ranks in small match classes and small sets of live prompts are priced first. Then each wide set is searched, those
//! that leave least of the prompt first, and at last the ranks that share nothing with it. A rank of a set computes at
//! least what the set leaves, which bounds its cost by its line: bands of lines are walked from the least bound on, and a
//! band is left where its bound is above the best cost found. Where a walk does not end soon, all of its set is priced.
//! Costs always come from the formula itself, and bounds are computed by the same operations on smaller numbers, so
//! rounding cannot change the result.

use super::cost::Pricing;
use crate::selection::{
    index::{MatchClass, TierBlocks},
    load::{Line, Passed, Slot},
    policy::{builtin::priced, eligibility::Filter, overlap},
};

/// Classes and sets of at most this many ranks are priced outright. Small in tests, so that they meet both sides.
const SMALL: usize = if cfg!(test) { 3 } else { 32 };

/// Buckets of more ranks than this are drawn from instead of priced.
const LARGE: usize = if cfg!(test) { 3 } else { 8 };

/// Draws from a large bucket before it is priced.
const SAMPLES: usize = if cfg!(test) { 4 } else { 32 };

/// Memory a policy reuses from pick to pick.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Runs of live prompts that the prompt passes through.
    pub(super) path: Vec<Passed>,
    /// By slot: the pick in which it was last priced.
    priced: Vec<u64>,
    pick: u64,
    #[cfg(test)]
    pub(super) trace: Trace,
}

/// What tests see of the last pick.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Ranks looked at.
    pub(super) looked_at: usize,
}

/// Ranks that share something with the prompt and were not priced outright.
#[derive(Clone, Copy)]
enum Wide<'a> {
    /// They hold it by the index.
    Class(&'a MatchClass),
    /// Live prompts of theirs hold it.
    Run(Passed),
}

/// One search.
pub(super) struct Search<'a> {
    pricing: &'a Pricing<'a>,
    filter: Filter<'a>,
    priced: &'a mut [u64],
    pick: u64,
    rng: &'a mut fastrand::Rng,
    /// With the least that any of their ranks has to compute.
    wide: Vec<(f64, Wide<'a>)>,
    /// No eligible rank has a lower factor by preferred taints.
    least_multiplier: f64,
    best: f64,
    chosen: Option<Slot>,
    /// Ranks priced at `best`.
    ties: u64,
    /// Buckets drawn from: their members cost at least `best`, and those that cost `best` tie as well.
    pools: Vec<&'a [Slot]>,
    #[cfg(test)]
    trace: &'a mut Trace,
}

impl<'a> Search<'a> {
    pub(super) fn new(pricing: &'a Pricing<'a>, scratch: &'a mut Scratch, rng: &'a mut fastrand::Rng) -> Self {
        scratch.pick += 1;
        let ranks = pricing.load.rows().len();
        if scratch.priced.len() < ranks {
            scratch.priced.resize(ranks, 0);
        }
        Self {
            pricing,
            filter: Filter::new(pricing.request, pricing.load),
            priced: &mut scratch.priced,
            pick: scratch.pick,
            rng,
            wide: Vec::new(),
            least_multiplier: 1.0,
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

    /// The best of the given ranks. Those that are not eligible are skipped; a `pinned` one was checked, and its cost
    /// knows no preferred taints.
    pub(super) fn among(mut self, slots: impl Iterator<Item = Slot>, pinned: bool) -> Option<(Slot, f64)> {
        for slot in slots {
            if pinned {
                self.price(slot, None, 1.0);
            } else {
                self.visit(slot, None);
            }
        }
        self.finish()
    }

    /// The best of all eligible ranks.
    pub(super) fn open(mut self) -> Option<(Slot, f64)> {
        self.least_multiplier = self.find_least_multiplier();
        self.price_small_sets();
        for (own, wide) in std::mem::take(&mut self.wide) {
            if !self.walk(own, Some(wide)) {
                self.price_all_of(wide);
            }
        }
        let own = self.pricing.own_tokens(TierBlocks::default());
        if !self.walk(own, None) {
            self.price_rest();
        }
        self.finish()
    }

    /// Finds the best rank of a set, or of all, none of which has to compute less than `own` tokens; `false` when that
    /// takes too long.
    fn walk(&mut self, own: f64, set: Option<Wide<'a>>) -> bool {
        let lines = self.pricing.work.lines();
        let mut bands: Vec<(f64, u32, f64)> = Vec::with_capacity(16);
        for (band, slope) in lines.bands() {
            if let Some((first, _)) = lines.buckets(band).next() {
                bands.push((self.bound(Line { slope, ..first }, own), band, slope));
            }
        }
        bands.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut walked = 0;
        for (_, band, slope) in bands {
            for (line, slots) in lines.buckets(band) {
                if self.bound(Line { slope, ..line }, own) > self.best {
                    break;
                }
                // A bucket has one line, so the bound of its members is their own.
                if self.bound(line, own) > self.best {
                    continue;
                }
                if slots.len() > LARGE && self.filter.admits_all() && self.draw(slots, line.cost(own)) {
                    continue;
                }
                walked += slots.len();
                if walked > self.patience() {
                    return false;
                }
                for &slot in slots {
                    if set.is_none_or(|set| self.is_in(set, slot)) {
                        self.visit(slot, None);
                    }
                }
            }
        }
        true
    }

    fn bound(&self, line: Line, own: f64) -> f64 {
        line.cost(own) * self.least_multiplier
    }

    fn is_in(&mut self, set: Wide<'a>, slot: Slot) -> bool {
        self.look();
        match set {
            Wide::Class(class) => {
                let lane = self.pricing.request.index.lane_of_slot(slot);
                lane.is_some_and(|lane| overlap::has(&class.lanes, lane))
            }
            Wide::Run(passed) => self.pricing.load.owners(passed).contains(slot),
        }
    }

    /// Ranks that are walked one by one, across bands, before pricing all of a set is cheaper.
    fn patience(&self) -> usize {
        SMALL + self.pricing.load.rows().len() / 32
    }

    fn find_least_multiplier(&mut self) -> f64 {
        if self.pricing.request.constraints.preferred_taints.is_empty() {
            return 1.0;
        }
        let sets = 0..self.pricing.load.taint_sets() as u32;
        sets.filter_map(|set| self.filter.multiplier(set)).fold(f64::INFINITY, f64::min)
    }

    /// Prices small classes and sets, and remembers the wide ones.
    fn price_small_sets(&mut self) {
        let pricing = self.pricing;
        let nothing = pricing.own_tokens(TierBlocks::default());
        let mut shared = 0;
        if pricing.overlays_any() {
            // Deepest first: owners of a run are among those of the runs above it.
            for &passed in pricing.path.iter().rev() {
                if pricing.load.owners(passed).len() <= SMALL {
                    self.price_all_of(Wide::Run(passed));
                    continue;
                }
                shared = shared.max(passed.depth);
                let blocks = TierBlocks { device: passed.depth, ..TierBlocks::default() };
                self.wide.push((pricing.own_tokens(blocks), Wide::Run(passed)));
            }
        }
        for class in &pricing.request.matches.classes {
            if overlap::at_most(&class.lanes, SMALL) {
                self.price_all_of(Wide::Class(class));
                continue;
            }
            // Live prompts may reach further than what the index has, and lower tiers beyond both.
            let most = TierBlocks { device: class.blocks.device.max(shared), ..class.blocks };
            self.wide.push((pricing.own_tokens(most), Wide::Class(class)));
        }
        self.wide.retain(|&(own, _)| own < nothing);
        self.wide.sort_by(|a, b| a.0.total_cmp(&b.0));
    }

    fn price_all_of(&mut self, set: Wide<'a>) {
        match set {
            Wide::Class(class) => self.price_class(class),
            Wide::Run(passed) => self.pricing.load.owners(passed).for_each(|slot| self.visit(slot, None)),
        }
    }

    fn price_class(&mut self, class: &MatchClass) {
        overlap::for_each(&class.lanes, |lane| {
            if let Some(slot) = self.pricing.request.index.slot_of(lane) {
                self.visit(slot, Some(class.blocks));
            }
        });
    }

    /// Prices whatever was not priced.
    fn price_rest(&mut self) {
        self.pools.clear();
        if self.ties == 0 {
            self.best = f64::INFINITY;
        }
        (0..self.pricing.load.rows().len() as Slot).for_each(|slot| self.visit(slot, None));
    }

    /// Deals with ranks of one line by drawing from them: `false` when none of those drawn costs `least`, the least any
    /// of them can.
    fn draw(&mut self, slots: &'a [Slot], least: f64) -> bool {
        if least < self.best {
            let mut draws = 0..SAMPLES.min(slots.len() / 2);
            let found = draws.any(|_| {
                let slot = slots[self.rng.usize(0..slots.len())];
                self.cost_of_unpriced(slot) == Some(least)
            });
            if !found {
                return false;
            }
            self.best = least;
            (self.chosen, self.ties) = (None, 0);
            self.pools.clear();
        }
        // Two sets may leave equally much of the prompt.
        if !self.pools.iter().any(|pool| std::ptr::eq(*pool, slots)) {
            self.pools.push(slots);
        }
        true
    }

    /// Prices a rank if it is eligible and was not priced. `cached`: what the index has, where that is known.
    fn visit(&mut self, slot: Slot, cached: Option<TierBlocks>) {
        self.look();
        let row = self.pricing.load.rows().get(slot as usize);
        if let Some(multiplier) = row.and_then(|row| self.filter.admits(row))
            && std::mem::replace(&mut self.priced[slot as usize], self.pick) != self.pick
        {
            self.price(slot, cached, multiplier);
        }
    }

    fn cost(&self, slot: Slot, cached: Option<TierBlocks>, multiplier: f64) -> Option<f64> {
        let cached = cached.map_or_else(|| self.pricing.cached(slot), |cached| self.pricing.with_overlay(slot, cached));
        Some(self.pricing.line(slot)?.cost(self.pricing.own_tokens(cached)) * multiplier)
    }

    fn price(&mut self, slot: Slot, cached: Option<TierBlocks>, multiplier: f64) {
        let Some(cost) = self.cost(slot, cached, multiplier) else { return };
        if cost < self.best {
            self.best = cost;
            self.ties = 0;
            self.pools.clear();
        }
        if cost == self.best {
            self.ties += 1;
            if self.ties == 1 || self.rng.u64(0..self.ties) == 0 {
                self.chosen = Some(slot);
            }
        }
    }

    /// The cost of an eligible rank that was not priced.
    fn cost_of_unpriced(&mut self, slot: Slot) -> Option<f64> {
        self.look();
        let multiplier = self.filter.admits(self.pricing.load.rows().get(slot as usize)?)?;
        let open = self.priced[slot as usize] != self.pick;
        open.then(|| self.cost(slot, None, multiplier)).flatten()
    }

    /// Draws uniformly among the ranks priced at the best cost and the members of pools that have it.
    fn finish(mut self) -> Option<(Slot, f64)> {
        let (tied, pools) = ((self.chosen, self.ties), std::mem::take(&mut self.pools));
        // The draws and the look at a rank both need the search.
        let mut rng = self.rng.fork();
        let mut drawn = priced::draw_tied(tied, &pools, 16 * SAMPLES, &mut rng, |slot| {
            self.cost_of_unpriced(slot) == Some(self.best)
        });
        if drawn.is_none() {
            if self.ties == 0 {
                // Found by a draw; what its rank holds may have changed since.
                self.best = f64::INFINITY;
            }
            for pool in pools {
                pool.iter().for_each(|&slot| self.visit(slot, None));
            }
            drawn = self.chosen;
        }
        drawn.map(|slot| (slot, self.best))
    }

    /// Counts the work, in tests.
    fn look(&mut self) {
        #[cfg(test)]
        {
            self.trace.looked_at += 1;
        }
    }
}
