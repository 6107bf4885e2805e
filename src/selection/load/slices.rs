//! Base costs bit by bit, so that the cheapest ranks of *any* set of slots are found by logic on whole words instead of
//! a look at each rank (a bit-sliced index).
//!
//! A key is a base cost's sign-less top 32 bits: costs are not negative, so keys order as costs do, and costs of equal
//! key differ by less than a millionth. Slice `b` has a bit for each slot: bit `b` of the slot's key. Invariants: a slot
//! that is not listed has no bit in any slice; `ones` counts the bits of each slice.

/// Words of a row; a block has 64 times as many slots. Tests meet several blocks with few ranks.
const WORDS: usize = if cfg!(test) { 1 } else { 8 };

/// Slots of a block.
const SLOTS: usize = 64 * WORDS;

/// Bits of a key.
const KEY: usize = 32;

/// A bit for each slot of a block.
type Row = [u64; WORDS];

/// Neighbouring slots.
#[derive(Clone, Debug)]
struct Block {
    listed: Row,
    slices: [Row; KEY],
}

/// The keys of one order.
#[derive(Clone, Debug)]
pub(in crate::selection) struct Slices {
    blocks: Vec<Block>,
    listed: u32,
    ones: [u32; KEY],
}

/// The key of a base cost.
pub(in crate::selection) fn key_of(cost: f64) -> u32 {
    (cost.to_bits() >> 31) as u32
}

/// The least cost that has a key.
pub(in crate::selection) fn least_cost(key: u32) -> f64 {
    f64::from_bits(u64::from(key) << 31)
}

impl Slices {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new(), listed: 0, ones: [0; KEY] }
    }

    /// Gives a slot the key `to` instead of `from`; `None` = it is not listed.
    pub(super) fn change(&mut self, slot: u32, from: Option<u32>, to: Option<u32>) {
        let at = slot as usize / SLOTS;
        if at >= self.blocks.len() {
            self.blocks.resize(at + 1, Block { listed: [0; WORDS], slices: [[0; WORDS]; KEY] });
        }
        let block = &mut self.blocks[at];
        let (word, bit) = (slot as usize % SLOTS / 64, 1 << (slot % 64));
        let before = from.unwrap_or(0);
        let mut flips = before ^ to.unwrap_or(0);
        while flips != 0 {
            let slice = flips.trailing_zeros() as usize;
            block.slices[slice][word] ^= bit;
            if before >> slice & 1 == 0 {
                self.ones[slice] += 1
            } else {
                self.ones[slice] -= 1
            }
            flips &= flips - 1;
        }
        if from.is_some() != to.is_some() {
            block.listed[word] ^= bit;
            if to.is_some() { self.listed += 1 } else { self.listed -= 1 }
        }
    }

    /// The listed slots, a bit each.
    pub(in crate::selection) fn listed(&self, out: &mut Vec<u64>) {
        out.clear();
        out.extend(self.blocks.iter().flat_map(|block| block.listed));
    }

    /// The least key among the slots of `set`, which are listed, if it is at most `most`; those that have it go to
    /// `out`.
    pub(in crate::selection) fn least(&self, set: &[u64], most: u32, out: &mut Vec<u64>) -> Option<u32> {
        // Bits that all keys share decide nothing.
        let (mut shared, mut differing) = (0, 0);
        for (slice, &ones) in self.ones.iter().enumerate() {
            if ones == self.listed {
                shared |= 1 << slice;
            } else if ones != 0 {
                differing |= 1 << slice;
            }
        }
        let (mut most, mut found) = (most, None);
        out.clear();
        for (block, words) in self.blocks.iter().zip(set.chunks(WORDS)) {
            let mut left: Row = std::array::from_fn(|at| words.get(at).copied().unwrap_or(0));
            let key = if any(&left) { block.least(&mut left, shared, differing, most) } else { None };
            match key {
                None => out.extend([0; WORDS]),
                Some(key) => {
                    if found != Some(key) {
                        out.fill(0);
                        (most, found) = (key, Some(key));
                    }
                    out.extend(left);
                }
            }
        }
        found
    }

    #[cfg(test)]
    pub(super) fn check(&self, key_of_slot: impl Fn(u32) -> Option<u32>) {
        let (mut listed, mut ones) = (0, [0; KEY]);
        for slot in 0..(self.blocks.len() * SLOTS) as u32 {
            let block = &self.blocks[slot as usize / SLOTS];
            let (word, bit) = (slot as usize % SLOTS / 64, 1 << (slot % 64));
            let key =
                (0..KEY).filter(|&slice| block.slices[slice][word] & bit != 0).fold(0, |key, slice| key | 1 << slice);
            let is_listed = block.listed[word] & bit != 0;
            assert_eq!(is_listed.then_some(key), key_of_slot(slot), "{slot}");
            assert!(is_listed || key == 0);
            listed += u32::from(is_listed);
            (0..KEY).for_each(|slice| ones[slice] += key >> slice & 1);
        }
        assert_eq!((listed, ones), (self.listed, self.ones));
    }
}

fn any(row: &Row) -> bool {
    row.iter().fold(0, |all, word| all | word) != 0
}

impl Block {
    /// The least key in `left`, of which those that have it are left; `None` when it is above `most`.
    fn least(&self, left: &mut Row, shared: u32, differing: u32, most: u32) -> Option<u32> {
        let mut key = shared;
        let mut open = differing;
        while open != 0 {
            if key > most {
                return None;
            }
            let slice = open.ilog2();
            let row = &self.slices[slice as usize];
            let without: Row = std::array::from_fn(|at| left[at] & !row[at]);
            if any(&without) {
                *left = without;
            } else {
                key |= 1 << slice;
            }
            open ^= 1 << slice;
        }
        (key <= most).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_costs_do() {
        let costs = [0.0, 1e-300, 0.5, 1.0, 1.000_001, 63.0, 64.0, 1e300, f64::MAX, f64::INFINITY];
        assert!(costs.is_sorted_by(|a, b| key_of(*a) < key_of(*b)));
        for cost in costs {
            assert!(least_cost(key_of(cost)) <= cost && cost < least_cost(key_of(cost) + 1) || cost.is_infinite());
        }
    }

    #[test]
    fn least_of_any_set_agrees_with_a_scan() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut slices = Slices::new();
            let mut keys: Vec<Option<u32>> = vec![None; rng.usize(1..400)];
            let spread = [1, 3, 1000, u32::MAX][rng.usize(0..4)];
            for _ in 0..rng.usize(0..1000) {
                let slot = rng.usize(0..keys.len());
                let to = (rng.u32(0..5) > 0).then(|| rng.u32(0..spread));
                slices.change(slot as u32, keys[slot], to);
                keys[slot] = to;
            }
            slices.check(|slot| keys.get(slot as usize).copied().flatten());
            let (mut set, mut out) = (Vec::new(), Vec::new());
            slices.listed(&mut set);
            set.iter_mut().for_each(|word| *word &= rng.u64(..) & rng.u64(..));
            let has = |set: &[u64], slot: usize| set.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1);
            let most = if rng.bool() { u32::MAX } else { rng.u32(0..spread) };
            let in_set = keys.iter().enumerate().filter(|&(slot, _)| has(&set, slot));
            let least = in_set.filter_map(|(_, key)| *key).min().filter(|least| *least <= most);
            assert_eq!(slices.least(&set, most, &mut out), least, "seed {seed}");
            for (slot, key) in keys.iter().enumerate() {
                assert_eq!(has(&out, slot), has(&set, slot) && least.is_some() && *key == least, "seed {seed} {slot}");
            }
        }
    }
}
