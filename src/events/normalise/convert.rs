//! From a store event to the blocks the index takes: which of them are complete, and the hash of their content.

use super::super::{
    counts::DropReason,
    decode::{Batch, MmHash, Stored},
};
use crate::selection::{
    hash,
    index::StoredBlock,
    request::{BlockMmInfo, MmObject},
};

/// Up to here comparing all pairs is quicker than sorting.
const FEW: usize = 64;

/// Elements kept between events.
const KEEP: usize = 1 << 16;

/// Buffers that conversions reuse.
#[derive(Debug, Default)]
pub struct Buffers {
    locals: Vec<u64>,
    blocks: Vec<StoredBlock>,
    sorted: Vec<u64>,
}

impl Buffers {
    /// The complete leading blocks of a store; none for an event without hashes.
    pub(super) fn convert(
        &mut self,
        batch: &Batch,
        stored: &Stored,
        block_size: u32,
        seed: u64,
    ) -> Result<&[StoredBlock], DropReason> {
        self.blocks.clear();
        let names = batch.hashes(stored.hashes);
        if names.is_empty() {
            return Ok(&[]);
        }
        if self.repeats(names, stored.parent) {
            return Err(DropReason::RepeatedHash);
        }
        if stored.block_size != u64::from(block_size) {
            return Err(DropReason::BlockSize);
        }
        let size = block_size as usize;
        let tokens = batch.tokens(stored.tokens);
        let look_ahead = usize::from(stored.eagle);
        let complete = tokens.len().saturating_sub(look_ahead) / size.max(1);
        if complete > names.len() {
            // Hashes were left out somewhere (vLLM with aligned Mamba state does so), and nobody can say where.
            return Err(DropReason::TokenCount);
        }
        let count = complete.min(names.len());
        if count == 0 {
            return Err(DropReason::NoBlock);
        }
        let mm = by_block(batch.mm(stored.mm), count);
        self.locals.clear();
        let used = &tokens[..count * size + look_ahead];
        hash::block_hashes(used, block_size, stored.eagle, seed, mm.as_deref(), &mut self.locals);
        let pairs = names.iter().zip(&self.locals);
        self.blocks.extend(pairs.map(|(&name, &local)| StoredBlock { name, local }));
        self.locals.shrink_to(KEEP);
        Ok(&self.blocks)
    }

    /// Whether a name occurs twice, the parent's included.
    fn repeats(&mut self, names: &[u64], parent: Option<u64>) -> bool {
        if parent.is_some_and(|parent| names.contains(&parent)) {
            return true;
        }
        if names.len() <= FEW {
            return (1..names.len()).any(|i| names[..i].contains(&names[i]));
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(names);
        self.sorted.sort_unstable();
        let repeats = self.sorted.windows(2).any(|pair| pair[0] == pair[1]);
        self.sorted.shrink_to(KEEP);
        repeats
    }

    /// Gives back what a large event made the buffers grow to.
    pub fn shrink(&mut self) {
        self.blocks.shrink_to(KEEP);
    }
}

/// Multimodal objects by block, of the first `count` blocks.
fn by_block(objects: &[MmHash], count: usize) -> Option<Vec<Option<BlockMmInfo>>> {
    if objects.is_empty() {
        return None;
    }
    let mut infos: Vec<Option<BlockMmInfo>> = vec![None; count];
    for object in objects {
        if let Some(info) = infos.get_mut(object.block as usize) {
            let info = info.get_or_insert_with(|| BlockMmInfo { mm_objects: Vec::new() });
            info.mm_objects.push(MmObject { mm_hash: object.hash, offsets: Vec::new() });
        }
    }
    Some(infos)
}
