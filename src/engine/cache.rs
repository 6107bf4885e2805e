//! The KV block pool: a budget of blocks, reference counts of running requests, least recently used eviction, and a
//! prefix cache by chained hashes. Pure: no clock, no sockets; what changes is collected as [`KvEvent`]s.
//!
//! Invariants: a block is in the free list exactly while nobody references it; a free block keeps its content, and so
//! its place in the prefix cache, until it is taken for something else; one hash may lie in several blocks, as it does
//! in vLLM when a prompt's last block is computed again.

mod host;

use std::collections::{HashMap, VecDeque};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::host::HostTier;
use super::event::{KvEvent, Medium, Namespace};

/// Index of a block in the pool.
pub type BlockId = u32;

/// Chained hashes of the full blocks of `tokens`, as an engine started with `seed` names them.
pub fn block_hashes(seed: u64, block_size: usize, namespace: &Namespace, tokens: &[u32]) -> Vec<u64> {
    let mut hashes = Vec::new();
    extend_block_hashes(&mut hashes, seed, block_size, namespace, tokens);
    hashes
}

/// Adds to `hashes` those of the full blocks of `tokens` that are not in it yet.
pub(super) fn extend_block_hashes(
    hashes: &mut Vec<u64>,
    seed: u64,
    block_size: usize,
    namespace: &Namespace,
    tokens: &[u32],
) {
    let mut bytes = Vec::with_capacity(8 + block_size * 4);
    for block in tokens.chunks_exact(block_size).skip(hashes.len()) {
        bytes.clear();
        bytes.extend_from_slice(&hashes.last().unwrap_or(&seed).to_le_bytes());
        bytes.extend(block.iter().flat_map(|token| token.to_le_bytes()));
        // vLLM mixes the adapter into every block and the salt into the first.
        if let Some(lora) = &namespace.lora_name {
            bytes.extend_from_slice(lora.as_bytes());
        }
        if hashes.is_empty()
            && let Some(salt) = &namespace.cache_salt
        {
            bytes.push(0);
            bytes.extend_from_slice(salt.as_bytes());
        }
        hashes.push(xxh3_64_with_seed(&bytes, seed));
    }
}

#[derive(Debug, Default)]
struct Block {
    references: u32,
    /// What it holds, when that is a full block of the prefix cache.
    content: Option<Content>,
    /// Its entry in the free list: lists are short-lived queues with stale entries passed over by number.
    free_ticket: Option<u64>,
}

/// What a cached block holds; enough to tell it again when it moves.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub hash: u64,
    pub parent: Option<u64>,
    pub tokens: Box<[u32]>,
    pub namespace: Namespace,
}

/// The pool.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Vec<Block>,
    by_hash: HashMap<u64, Vec<BlockId>>,
    /// Free blocks, the least recently used first, each with the number of its entry.
    free: VecDeque<(u64, BlockId)>,
    free_count: usize,
    next_ticket: u64,
    host: HostTier,
    events: Vec<KvEvent>,
    evicted: u64,
}

impl BlockCache {
    /// A pool of `blocks` empty device blocks and room for `host_blocks` evicted ones.
    pub fn new(blocks: u32, host_blocks: u32) -> Self {
        let mut cache = Self {
            blocks: Vec::new(),
            by_hash: HashMap::new(),
            free: VecDeque::new(),
            free_count: 0,
            next_ticket: 0,
            host: HostTier::new(host_blocks as usize),
            events: Vec::new(),
            evicted: 0,
        };
        cache.blocks.resize_with(blocks as usize, Block::default);
        for id in 0..blocks {
            cache.put_free(id);
        }
        cache
    }

    /// Blocks in all.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the pool has no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks nobody references, with or without content.
    pub fn free(&self) -> usize {
        self.free_count
    }

    /// Distinct hashes held on the device.
    pub fn cached(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether `hash` is held on the device.
    pub fn holds(&self, hash: u64) -> bool {
        self.by_hash.contains_key(&hash)
    }

    /// Cached blocks given up for others since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }

    /// How many of `hashes`, from the first on, are held on the device.
    pub fn prefix(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.holds(**hash)).count()
    }

    /// How many of `hashes`, from the first on, are held in host memory.
    pub fn host_prefix(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.host.holds(**hash)).count()
    }

    /// References the device blocks of `hashes`, all of which must be held.
    pub fn reference(&mut self, hashes: &[u64]) -> Vec<BlockId> {
        hashes
            .iter()
            .filter_map(|hash| self.by_hash.get(hash).and_then(|ids| ids.first().copied()))
            .inspect(|&id| {
                let block = &mut self.blocks[id as usize];
                if block.references == 0 {
                    block.free_ticket = None;
                    self.free_count -= 1;
                }
                block.references += 1;
            })
            .collect()
    }

    /// Takes `count` blocks, the least recently used first, evicting what they hold; `None`, and nothing changed, when
    /// there are not so many.
    pub fn allocate(&mut self, count: usize) -> Option<Vec<BlockId>> {
        if count > self.free_count {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let (ticket, id) = self.free.pop_front()?;
            if self.blocks[id as usize].free_ticket != Some(ticket) {
                continue;
            }
            let block = &mut self.blocks[id as usize];
            block.free_ticket = None;
            block.references = 1;
            self.free_count -= 1;
            if let Some(content) = block.content.take() {
                self.evict(id, content);
            }
            taken.push(id);
        }
        Some(taken)
    }

    /// Puts full blocks into the prefix cache: `blocks` hold `tokens` and are called `hashes`.
    pub fn store(
        &mut self,
        blocks: &[BlockId],
        hashes: &[u64],
        parent: Option<u64>,
        tokens: &[u32],
        namespace: &Namespace,
    ) {
        if blocks.is_empty() {
            return;
        }
        let block_size = tokens.len() / blocks.len();
        let mut before = parent;
        for ((&id, &hash), tokens) in blocks.iter().zip(hashes).zip(tokens.chunks_exact(block_size)) {
            let content = Content { hash, parent: before, tokens: tokens.into(), namespace: namespace.clone() };
            self.blocks[id as usize].content = Some(content);
            self.by_hash.entry(hash).or_default().push(id);
            before = Some(hash);
        }
        self.events.push(KvEvent::Stored {
            hashes: hashes.to_vec(),
            parent,
            tokens: tokens.to_vec(),
            namespace: namespace.clone(),
            medium: Medium::Gpu,
        });
    }

    /// Marks host blocks as used: they are being copied to the device.
    pub fn load_from_host(&mut self, hashes: &[u64]) {
        for hash in hashes {
            self.host.touch(*hash);
        }
    }

    /// Gives references back. The end of a chain becomes free first: it goes first when room is needed, since a chain
    /// is useful from its start only.
    pub fn release(&mut self, blocks: &[BlockId]) {
        for &id in blocks.iter().rev() {
            let block = &mut self.blocks[id as usize];
            block.references = block.references.saturating_sub(1);
            if block.references == 0 {
                self.put_free(id);
            }
        }
    }

    /// Forgets all content. Running requests keep their blocks, which nobody finds any more.
    pub fn clear(&mut self) {
        for block in &mut self.blocks {
            block.content = None;
        }
        self.by_hash.clear();
        self.host.clear();
        self.events.push(KvEvent::Cleared);
    }

    fn put_free(&mut self, id: BlockId) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.blocks[id as usize].free_ticket = Some(ticket);
        self.free.push_back((ticket, id));
        self.free_count += 1;
        // Stale entries never outnumber the blocks by much.
        if self.free.len() > 2 * self.blocks.len() + 16 {
            let blocks = &self.blocks;
            self.free.retain(|&(ticket, id)| blocks[id as usize].free_ticket == Some(ticket));
        }
    }

    fn evict(&mut self, id: BlockId, content: Content) {
        if let Some(ids) = self.by_hash.get_mut(&content.hash) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_hash.remove(&content.hash);
            }
        }
        self.evicted += 1;
        self.events.push(KvEvent::Removed { hashes: vec![content.hash], medium: Medium::Gpu });
        self.host.insert(content, &mut self.events);
    }
}

#[cfg(test)]
mod tests;
