//! A set of block ids that costs little more than a bit an id where ids are dense, as those of traces are.

use hashbrown::HashMap;

/// Words of a page.
const WORDS: usize = 8;
/// Ids of a page.
const PAGE: u64 = WORDS as u64 * 64;

/// Block ids seen so far.
#[derive(Debug, Default)]
pub(super) struct BlockSet {
    pages: HashMap<u64, [u64; WORDS]>,
}

impl BlockSet {
    /// Adds a prompt; blocks of its beginning that were there.
    pub(super) fn extend(&mut self, chain: &[u64]) -> u32 {
        let mut hits = 0;
        let mut known = true;
        for &id in chain {
            let word = &mut self.pages.entry(id / PAGE).or_default()[(id % PAGE / 64) as usize];
            let bit = 1 << (id % 64);
            known &= *word & bit != 0;
            hits += u32::from(known);
            *word |= bit;
        }
        hits
    }
}
