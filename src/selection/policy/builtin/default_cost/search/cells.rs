//! The rest of a search by cells: ranks of one match class that hold equally many of the prompt's active blocks.
//!
//! When most ranks share something with the prompt, those that gain most may come late in the order of base cost (they
//! gain, so they were given work), and a walk would pass all others first. But within a cell every rank gains the same,
//! so there the order by base cost is the order by cost, up to rounding and terms cut off at 0. Cells are sets of slots,
//! disjoint and together all that was not priced; the cheapest of a cell are found in the bit slices of the order, 64
//! ranks a step, and priced by the formula; a cell is done where the bound of its next key is above the best cost.
//! Ranks of a cell whose loads are equal cost the same and are priced once.

use std::borrow::Cow;

use super::{SMALL, Search};
use crate::selection::{
    index::TierBlocks,
    load::{Slices, Slot, key_of, least_cost},
    policy::builtin::default_cost::cost::Inputs,
};

/// More cells than this are not searched one after the other.
const MOST_CELLS: usize = if cfg!(test) { 12 } else { 24 };

/// Keys of one cell that are priced before all that is left of it is.
const MOST_KEYS: usize = if cfg!(test) { 3 } else { 8 };

/// Sets of slots, kept from pick to pick.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// Not dealt with.
    open: Vec<u64>,
    class: Vec<u64>,
    cell: Vec<u64>,
    cheapest: Vec<u64>,
}

fn ones(set: &[u64]) -> u64 {
    set.iter().map(|word| u64::from(word.count_ones())).sum()
}

fn slots(set: &[u64]) -> impl Iterator<Item = Slot> + '_ {
    set.iter().enumerate().flat_map(|(at, &word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(at as Slot * 64 + bit)
        })
    })
}

/// The slot that `skipped` others of the set come before.
fn nth(set: &[u64], mut skipped: u64) -> Option<Slot> {
    for (at, &word) in set.iter().enumerate() {
        let here = u64::from(word.count_ones());
        if skipped < here {
            return slots(&[word]).nth(skipped as usize).map(|slot| at as Slot * 64 + slot);
        }
        skipped -= here;
    }
    None
}

/// Takes `others` out of `set`.
fn subtract(set: &mut [u64], others: &[u64]) {
    set.iter_mut().zip(others).for_each(|(word, other)| *word &= !other);
}

/// Moves what is in `others` too out of `set` to `common`; whether that is anything.
fn part(set: &mut [u64], others: &[u64], common: &mut Vec<u64>) -> bool {
    let mut any = 0;
    common.clear();
    common.extend(set.iter_mut().zip(others).map(|(word, other)| {
        let both = *word & other;
        *word ^= both;
        any |= both;
        both
    }));
    common.resize(set.len(), 0);
    any != 0
}

fn is_empty(set: &[u64]) -> bool {
    set.iter().fold(0, |any, word| any | word) == 0
}

/// Ranks that have the same cached.
struct Class<'a> {
    cached: TierBlocks,
    /// Most that takes off their cost.
    credit: f64,
    /// Owners of the wide runs, from the root down.
    owners: &'a [Cow<'a, [u64]>],
}

impl Search<'_> {
    /// Whether [`Self::by_cells`] can do it.
    pub(super) fn has_cells(&self, order: usize) -> bool {
        (self.wide.len() + 1) * (self.wide_runs + 1) <= MOST_CELLS
            && self.filter.admits_all()
            && self.load.slices(order).is_some()
    }

    /// Deals with all ranks that were not priced; `false` when it cannot. Every slot in the order must be eligible.
    pub(super) fn by_cells(&mut self, order: usize) -> bool {
        let load = self.load;
        let Some(slices) = load.slices(order).filter(|_| self.has_cells(order)) else { return false };
        // Ranks of pools were not priced; they are met again.
        self.pools.clear();
        if self.ties == 0 {
            self.best = f64::INFINITY;
        }
        let mut sets = std::mem::take(self.sets);
        slices.listed(&mut sets.open);
        for &slot in &*self.done {
            if let Some(word) = sets.open.get_mut(slot as usize / 64) {
                *word &= !(1 << (slot % 64));
            }
        }
        let owners: Vec<Cow<'_, [u64]>> =
            self.path[..self.wide_runs].iter().map(|&passed| load.owners(passed).bits()).collect();
        while let Some(wide) = self.wide.pop() {
            sets.cell.clear();
            sets.cell.resize(sets.open.len(), 0);
            self.request.index.add_slots(&wide.class.lanes, &mut sets.cell);
            if part(&mut sets.open, &sets.cell, &mut sets.class) {
                let class = Class { cached: wide.class.blocks, credit: wide.credit, owners: &owners };
                self.class(order, slices, &class, &mut sets);
            }
        }
        std::mem::swap(&mut sets.open, &mut sets.class);
        self.class(order, slices, &Class { cached: TierBlocks::default(), credit: 0.0, owners: &owners }, &mut sets);
        self.wide_runs = 0;
        *self.sets = sets;
        true
    }

    /// The cells of the class in `sets.class`, those that gain most first.
    fn class(&mut self, order: usize, slices: &Slices, class: &Class<'_>, sets: &mut Sets) {
        // Owners of a run are among those of the runs above it.
        for (owners, passed) in class.owners.iter().zip(self.path).rev() {
            let shared = u64::from(passed.depth);
            if part(&mut sets.class, owners, &mut sets.cell) {
                self.cell(order, slices, (class.cached, shared), class.credit + shared as f64, sets);
            }
        }
        if !is_empty(&sets.class) {
            std::mem::swap(&mut sets.class, &mut sets.cell);
            self.cell(order, slices, (class.cached, 0), class.credit, sets);
        }
    }

    /// Prices what can win among the ranks in `sets.cell`.
    fn cell(&mut self, order: usize, slices: &Slices, gains: (TierBlocks, u64), gain: f64, sets: &mut Sets) {
        for _ in 0..MOST_KEYS {
            let Some(key) = slices.least(&sets.cell, self.most_key(gain), &mut sets.cheapest) else { return };
            self.price_cheapest(order, &sets.cheapest, gains);
            // A bound that is not a number ends nothing.
            if self.bound_of(least_cost(key + 1), gain, 1.0) > self.best {
                return;
            }
            subtract(&mut sets.cell, &sets.cheapest);
        }
        slots(&sets.cell).for_each(|slot| self.price(slot, Some(gains.0), Some(gains.1), 1.0));
    }

    /// Ranks of one cell that have the same key.
    fn price_cheapest(&mut self, order: usize, cheapest: &[u64], (cached, shared): (TierBlocks, u64)) {
        let few = slots(cheapest).nth(SMALL).is_none();
        let Some(slot) = slots(cheapest).next().filter(|&slot| !few && self.load.is_alone(order, slot)) else {
            return slots(cheapest).for_each(|slot| self.price(slot, Some(cached), Some(shared), 1.0));
        };
        self.look();
        let inputs = Inputs { load: self.load.rows()[slot as usize].load, cached, shared };
        let cost = self.formula.cost(&inputs, 1.0);
        if cost <= self.best {
            let count = ones(cheapest);
            self.take(cost, count, |rng| nth(cheapest, rng.u64(0..count)));
            #[cfg(test)]
            self.trace.tied.extend(slots(cheapest));
        }
    }

    /// Ranks that gain at most `gain` and whose key is greater cost more than the best.
    fn most_key(&self, gain: f64) -> u32 {
        let prompt = self.formula.prompt_cost();
        let base = self.best - prompt + gain + (self.best + prompt + gain) * 8.0 * super::ROUNDING;
        if base.is_finite() { key_of(base.max(0.0)) } else { u32::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_words() {
        let mut set = vec![0b1011, 0, 1 << 63];
        assert_eq!((ones(&set), slots(&set).collect::<Vec<_>>()), (4, vec![0, 1, 3, 191]));
        assert_eq!(
            (0..5).map(|skipped| nth(&set, skipped)).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(3), Some(191), None]
        );
        subtract(&mut set, &[0b10]);
        assert_eq!(set, [0b1001, 0, 1 << 63]);
        let mut common = vec![7; 9];
        assert!(part(&mut set, &[0b11, u64::MAX], &mut common));
        assert!(!is_empty(&set) && is_empty(&[0, 0]) && !part(&mut set, &[0, 7], &mut vec![]));
        assert_eq!((set, common), (vec![0b1000, 0, 1 << 63], vec![1, 0, 0]));
    }
}
