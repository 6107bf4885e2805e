//! Ranks ordered by a base cost that no prompt changes, so that a pick looks at the cheapest first and stops early
//! (design section 4).
//!
//! Ranks of one bucket have the same base cost *and* the same inputs of it, so whatever the formula, they cost the same
//! for prompts they share equally. Draining ranks and ranks whose prefill tokens decay by themselves are in no order.
//! An order of one group by base cost has them as [`Slices`] too.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound::{Excluded, Unbounded},
};

use super::{
    RankLoad, Slot,
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

/// Ranks with equal inputs.
#[derive(Debug)]
enum Bucket {
    One(Slot),
    Many(Vec<Slot>),
}

/// Where a rank stands in an order.
#[derive(Clone, Copy, Debug)]
struct Place {
    key: Key,
    group: u32,
    position: u32,
}

/// One order.
#[derive(Debug)]
pub(super) struct Order {
    spec: OrderSpec,
    block_size: f64,
    groups: Vec<BTreeMap<Key, Bucket>>,
    places: Vec<Option<Place>>,
    /// The same base costs, where there is one group.
    slices: Option<Slices>,
}

impl Order {
    pub(super) fn new(spec: OrderSpec, block_size: u32) -> Self {
        let slices = (spec.decode && !spec.by_taints).then(Slices::new);
        Self { spec, block_size: f64::from(block_size), groups: Vec::new(), places: Vec::new(), slices }
    }

    pub(super) fn spec(&self) -> OrderSpec {
        self.spec
    }

    /// Number of groups; some may be empty.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Buckets of a group, cheapest first: base cost and slots.
    pub(super) fn buckets(&self, group: usize) -> impl Iterator<Item = (f64, &[Slot])> {
        self.groups.get(group).into_iter().flatten().map(|(key, bucket)| {
            let slots = match bucket {
                Bucket::One(slot) => std::slice::from_ref(slot),
                Bucket::Many(slots) => slots.as_slice(),
            };
            (f64::from_bits(key.cost), slots)
        })
    }

    pub(super) fn slices(&self) -> Option<&Slices> {
        self.slices.as_ref()
    }

    /// Whether all ranks with the slot's key in the slices are of the slot's bucket.
    pub(super) fn is_alone(&self, slot: Slot) -> bool {
        let Some(Some(place)) = self.places.get(slot as usize) else { return false };
        let group = &self.groups[place.group as usize];
        let before = group.range(..place.key).next_back();
        let after = group.range((Excluded(place.key), Unbounded)).next();
        before.into_iter().chain(after).all(|(key, _)| key.sliced() != place.key.sliced())
    }

    /// Puts a rank where its load belongs.
    pub(super) fn place(&mut self, slot: Slot, load: &RankLoad, taints: u32) {
        let group = if self.spec.by_taints { taints } else { 0 };
        let key = self.key(load);
        if let Some(Some(place)) = self.places.get(slot as usize)
            && place.key == key
            && place.group == group
        {
            return;
        }
        let before = self.unlink(slot);
        if let Some(slices) = &mut self.slices {
            slices.change(slot, before.map(|key| key.sliced()), Some(key.sliced()));
        }
        if group as usize >= self.groups.len() {
            self.groups.resize_with(group as usize + 1, BTreeMap::new);
        }
        let position = match self.groups[group as usize].entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Bucket::One(slot));
                0
            }
            Entry::Occupied(mut bucket) => match bucket.get_mut() {
                Bucket::One(first) => {
                    let first = *first;
                    *bucket.get_mut() = Bucket::Many(vec![first, slot]);
                    1
                }
                Bucket::Many(slots) => {
                    slots.push(slot);
                    slots.len() - 1
                }
            },
        };
        if slot as usize >= self.places.len() {
            self.places.resize(slot as usize + 1, None);
        }
        self.places[slot as usize] = Some(Place { key, group, position: position as u32 });
    }

    /// Takes a rank out.
    pub(super) fn take(&mut self, slot: Slot) {
        if let Some(key) = self.unlink(slot)
            && let Some(slices) = &mut self.slices
        {
            slices.change(slot, Some(key.sliced()), None);
        }
    }

    /// Takes a rank out of its bucket; returns its key.
    fn unlink(&mut self, slot: Slot) -> Option<Key> {
        let place = self.places.get_mut(slot as usize).and_then(Option::take)?;
        let group = &mut self.groups[place.group as usize];
        let Entry::Occupied(mut entry) = group.entry(place.key) else { return Some(place.key) };
        if let Bucket::Many(slots) = entry.get_mut()
            && slots.len() > 1
        {
            slots.swap_remove(place.position as usize);
            if let Some(&moved) = slots.get(place.position as usize)
                && let Some(Some(place_of_moved)) = self.places.get_mut(moved as usize)
            {
                place_of_moved.position = place.position;
            }
            return Some(place.key);
        }
        entry.remove();
        Some(place.key)
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
        let mut count = 0;
        for group in 0..self.groups.len() {
            for (_, slots) in self.buckets(group) {
                assert!(!slots.is_empty());
                for (position, &slot) in slots.iter().enumerate() {
                    let place = self.places[slot as usize].unwrap();
                    assert_eq!((place.group as usize, place.position as usize), (group, position));
                    count += 1;
                }
            }
        }
        assert_eq!(count, self.places.iter().flatten().count());
        if let Some(slices) = &self.slices {
            slices.check(|slot| Some((*self.places.get(slot as usize)?)?.key.sliced()));
        }
    }
}
