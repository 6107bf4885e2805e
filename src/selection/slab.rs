//! Dense storage with stable u32 keys that gives memory back.
//!
//! The lowest vacant key is used first, so that the top empties and is cut off. Keys of removed values are reused.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Least capacity that is kept, in values.
const KEPT: usize = 64;

/// Values under stable keys.
#[derive(Debug)]
pub(in crate::selection) struct Slab<T> {
    values: Vec<Option<T>>,
    /// Vacant keys below `values.len()`; entries at or above it are stale and never used.
    vacant: BinaryHeap<Reverse<u32>>,
    live: usize,
}

impl<T> Slab<T> {
    pub(in crate::selection) fn new() -> Self {
        Self { values: Vec::new(), vacant: BinaryHeap::new(), live: 0 }
    }

    pub(in crate::selection) fn len(&self) -> usize {
        self.live
    }

    /// One past the highest key in use.
    pub(in crate::selection) fn bound(&self) -> usize {
        self.values.len()
    }

    pub(in crate::selection) fn insert(&mut self, value: T) -> u32 {
        self.live += 1;
        if let Some(Reverse(key)) = self.vacant.pop() {
            if let Some(place) = self.values.get_mut(key as usize) {
                *place = Some(value);
                return key;
            }
            // The lowest entry is stale, so all are.
            self.vacant.clear();
        }
        let key = u32::try_from(self.values.len()).expect("four billion live values do not fit in memory");
        self.values.push(Some(value));
        key
    }

    pub(in crate::selection) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.values.get_mut(key as usize)?.take()?;
        self.live -= 1;
        if key as usize + 1 == self.values.len() {
            while matches!(self.values.last(), Some(None)) {
                self.values.pop();
            }
            if self.values.capacity() > KEPT && self.values.capacity() / 4 > self.values.len() {
                self.values.shrink_to((self.values.len() * 2).max(KEPT));
                let bound = self.values.len() as u32;
                self.vacant.retain(|Reverse(key)| *key < bound);
                self.vacant.shrink_to(KEPT);
            }
        } else {
            self.vacant.push(Reverse(key));
        }
        Some(value)
    }

    /// Keys in use, in order.
    pub(in crate::selection) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.values.iter().enumerate().filter_map(|(key, value)| value.as_ref().map(|_| key as u32))
    }

    pub(in crate::selection) fn values(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }

    pub(in crate::selection) fn get(&self, key: u32) -> Option<&T> {
        self.values.get(key as usize)?.as_ref()
    }

    pub(in crate::selection) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.values.get_mut(key as usize)?.as_mut()
    }

    pub(in crate::selection) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values.iter().enumerate().filter_map(|(key, value)| Some((key as u32, value.as_ref()?)))
    }

    #[cfg(test)]
    pub(in crate::selection) fn capacity(&self) -> usize {
        self.values.capacity() + self.vacant.capacity()
    }
}

/// For keys that the caller's own structure proves to be live.
impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, key: u32) -> &T {
        self.get(key).expect("links between live values never dangle")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, key: u32) -> &mut T {
        self.get_mut(key).expect("links between live values never dangle")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_vacant_key_is_reused_and_the_top_is_cut() {
        let mut slab = Slab::new();
        let keys: Vec<u32> = (0..1000).map(|value| slab.insert(value)).collect();
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
        for key in [10, 5, 999, 998] {
            assert_eq!(slab.remove(key), Some(key));
            assert_eq!(slab.remove(key), None);
        }
        assert_eq!((slab.insert(1), slab.insert(2), slab.insert(3)), (5, 10, 998));
        for key in 20..999 {
            slab.remove(key);
        }
        assert_eq!((slab.bound(), slab.len()), (20, 20));
        assert!(slab.capacity() < 300, "{}", slab.capacity());
        // The stale vacant keys above the bound are not handed out.
        assert_eq!((slab.insert(7), slab.insert(8)), (20, 21));
        assert_eq!(slab.iter().count(), 22);
    }
}
