//! A set of block ids that costs a few bits an id where ids are dense, as those of published traces are, and two numbers
//! where they are hashes.

use hashbrown::HashMap;

/// Block ids seen so far.
#[derive(Debug, Default)]
pub(super) struct BlockSet {
    /// 64 ids each.
    words: HashMap<u64, u64>,
}

impl BlockSet {
    /// Adds a prompt; blocks of its beginning that were there.
    pub(super) fn extend(&mut self, chain: &[u64]) -> u32 {
        let mut hits = 0;
        let mut known = true;
        for &id in chain {
            let word = self.words.entry(id / 64).or_default();
            let bit = 1 << (id % 64);
            known &= *word & bit != 0;
            hits += u32::from(known);
            *word |= bit;
        }
        hits
    }
}
