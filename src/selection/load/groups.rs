//! Ranks sorted into groups, and within a group into buckets of equal keys, lowest key first.
//!
//! A rank has one place at most; a bucket is never empty.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound::{Excluded, Unbounded},
};

use super::Slot;

/// Ranks with equal keys.
#[derive(Debug)]
enum Bucket {
    One(Slot),
    Many(Vec<Slot>),
}

/// Where a rank stands.
#[derive(Clone, Copy, Debug)]
struct Place<K> {
    key: K,
    group: u32,
    position: u32,
}

/// The groups.
#[derive(Debug)]
pub(super) struct Groups<K> {
    groups: Vec<BTreeMap<K, Bucket>>,
    places: Vec<Option<Place<K>>>,
}

impl<K: Copy + Ord> Groups<K> {
    pub(super) fn new() -> Self {
        Self { groups: Vec::new(), places: Vec::new() }
    }

    /// Number of groups; some may be empty.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Buckets of a group, lowest key first.
    pub(super) fn buckets(&self, group: usize) -> impl Iterator<Item = (K, &[Slot])> {
        self.groups.get(group).into_iter().flatten().map(|(&key, bucket)| {
            let slots = match bucket {
                Bucket::One(slot) => std::slice::from_ref(slot),
                Bucket::Many(slots) => slots.as_slice(),
            };
            (key, slots)
        })
    }

    /// Key and group of a rank.
    pub(super) fn place_of(&self, slot: Slot) -> Option<(K, u32)> {
        let place = (*self.places.get(slot as usize)?)?;
        Some((place.key, place.group))
    }

    /// The keys next to that of a rank in its group.
    pub(super) fn neighbours(&self, slot: Slot) -> impl Iterator<Item = K> {
        let place = self.places.get(slot as usize).copied().flatten();
        let around = place.into_iter().flat_map(|place| {
            let group = &self.groups[place.group as usize];
            let before = group.range(..place.key).next_back();
            before.into_iter().chain(group.range((Excluded(place.key), Unbounded)).next())
        });
        around.map(|(&key, _)| key)
    }

    /// Puts a rank where it belongs, whether or not it had a place.
    pub(super) fn place(&mut self, slot: Slot, group: u32, key: K) {
        self.take(slot);
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

    /// Takes a rank out; returns the key it had.
    pub(super) fn take(&mut self, slot: Slot) -> Option<K> {
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

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut count = 0;
        for group in 0..self.len() {
            for (_, slots) in self.buckets(group) {
                assert!(!slots.is_empty());
                for (position, &slot) in slots.iter().enumerate() {
                    let place = self.places[slot as usize].as_ref().unwrap();
                    assert_eq!((place.group as usize, place.position as usize), (group, position));
                    count += 1;
                }
            }
        }
        assert_eq!(count, self.places.iter().flatten().count());
    }
}
