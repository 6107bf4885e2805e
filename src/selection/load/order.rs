//! Ranks ordered by a base cost that no prompt changes, so that a pick looks at the cheapest first and stops early
//! (design section 4).
//!
//! Ranks of one bucket have the same base cost *and* the same inputs of it, so whatever the formula, they cost the same
//! for prompts they share equally. Draining ranks and ranks whose prefill tokens decay by themselves are in no order.
//! An order of one group by base cost has them as [`Slices`] too.

use super::{
    RankLoad, Slot,
    groups::Groups,
    slices::{Slices, key_of},
};

/// What an order sorts by: `prefill_scale * prefill tokens / block size + blocks + request_weight * requests`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::selection) struct OrderSpec {
    /// Factor of the prefill term; 0 leaves prefill tokens out altogether.
    pub(in crate::selection) prefill_scale: f64,
    /// Whether active blocks and requests count; without them the order is by prefill tokens alone.
    pub(in crate::selection) decode: bool,
    /// Blocks a live booking.
    pub(in crate::selection) request_weight: f64,
    /// One group for each set of taints, instead of one for all ranks.
    pub(in crate::selection) by_taints: bool,
}

/// Base cost and its inputs. Costs are not negative, so their bits order as they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    cost: u64,
    prefill_tokens: u64,
    blocks: u64,
    requests: u64,
}

impl Key {
    /// Its key among [`Slices`].
    fn sliced(&self) -> u32 {
        key_of(f64::from_bits(self.cost))
    }
}

/// One order.
#[derive(Debug)]
pub(super) struct Order {
    spec: OrderSpec,
    block_size: f64,
    ranks: Groups<Key>,
    /// The same base costs, where there is one group.
    slices: Option<Slices>,
}

impl Order {
    pub(super) fn new(spec: OrderSpec, block_size: u32) -> Self {
        let slices = (spec.decode && !spec.by_taints).then(Slices::new);
        Self { spec, block_size: f64::from(block_size), ranks: Groups::new(), slices }
    }

    pub(super) fn spec(&self) -> OrderSpec {
        self.spec
    }

    /// Number of groups; some may be empty.
    pub(super) fn groups(&self) -> usize {
        self.ranks.len()
    }

    /// Buckets of a group, cheapest first: base cost and slots.
    pub(super) fn buckets(&self, group: usize) -> impl Iterator<Item = (f64, &[Slot])> {
        self.ranks.buckets(group).map(|(key, slots)| (f64::from_bits(key.cost), slots))
    }

    pub(super) fn slices(&self) -> Option<&Slices> {
        self.slices.as_ref()
    }

    /// Whether all ranks with the slot's key in the slices are of the slot's bucket.
    pub(super) fn is_alone(&self, slot: Slot) -> bool {
        let Some((key, _)) = self.ranks.place_of(slot) else { return false };
        self.ranks.neighbours(slot).all(|other| other.sliced() != key.sliced())
    }

    /// Puts a rank where its load belongs.
    pub(super) fn place(&mut self, slot: Slot, load: &RankLoad, taints: u32) {
        let group = if self.spec.by_taints { taints } else { 0 };
        let key = self.key(load);
        let before = self.ranks.place_of(slot);
        if before == Some((key, group)) {
            return;
        }
        if let Some(slices) = &mut self.slices {
            slices.change(slot, before.map(|(key, _)| key.sliced()), Some(key.sliced()));
        }
        self.ranks.place(slot, group, key);
    }

    /// Takes a rank out.
    pub(super) fn take(&mut self, slot: Slot) {
        if let Some(key) = self.ranks.take(slot)
            && let Some(slices) = &mut self.slices
        {
            slices.change(slot, Some(key.sliced()), None);
        }
    }

    fn key(&self, load: &RankLoad) -> Key {
        let RankLoad { prefill_tokens, blocks, requests } = *load;
        if !self.spec.decode {
            return Key { cost: (prefill_tokens as f64).to_bits(), prefill_tokens, blocks: 0, requests: 0 };
        }
        let prefill_tokens = if self.spec.prefill_scale > 0.0 { prefill_tokens } else { 0 };
        let cost = self.spec.prefill_scale * (prefill_tokens as f64 / self.block_size)
            + blocks as f64
            + self.spec.request_weight * requests as f64;
        Key { cost: cost.to_bits(), prefill_tokens, blocks, requests }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.ranks.check();
        if let Some(slices) = &self.slices {
            slices.check(|slot| Some(self.ranks.place_of(slot)?.0.sliced()));
        }
    }
}
