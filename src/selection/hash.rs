//! Block, sequence and tracking hashes (spec index 2, spec sequences 5).
//!
//! A *block hash* names the content of one block; a *sequence hash* names a block and all before it; a *tracking hash*
//! is a sequence hash under seeds that may be keyed. All are exact: engines, peers and the reference compute the same
//! 64 bits.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::request::{BlockMmInfo, PromptInput};

/// Seed of all public hashes.
pub const HASH_SEED: u64 = 1337;

/// Inner seed of the LoRA name, so that an adapter and a salt of one spelling differ.
const LORA_SEED: u64 = 0;
/// Inner seed of the cache salt.
const SALT_SEED: u64 = 1;

/// Domain of keyed tracking hashes, the terminating zero included.
const KEYED_DOMAIN: &[u8] = b"dynamo.router.tracking-hash/keyed-xxh3-v1\0";

/// Bytes of a block that fit the stack; larger blocks are assembled on the heap.
const STACK_BYTES: usize = 1024;

/// How tracking hashes are made.
#[derive(Clone, Default)]
pub enum TrackingHash {
    /// Equal to the index's hashes.
    #[default]
    PublicXxh3V1,
    /// Keyed, so that tenants cannot correlate prompts.
    KeyedXxh3V1 {
        /// 32 raw bytes, wiped on drop, never printed.
        key: zeroize::Zeroizing<[u8; 32]>,
        /// Key epoch, not empty, no surrounding white space.
        key_id: String,
    },
}

impl std::fmt::Debug for TrackingHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PublicXxh3V1 => f.write_str("public-xxh3-v1"),
            Self::KeyedXxh3V1 { key_id, .. } => write!(f, "keyed-xxh3-v1(key_id={key_id}, key=redacted)"),
        }
    }
}

/// Seed of block hashes under a LoRA adapter and a cache salt; empty equals absent.
pub fn block_seed(lora_name: Option<&str>, cache_salt: Option<&str>) -> u64 {
    let part = |text: Option<&str>, seed| match text {
        Some(text) if !text.is_empty() => xxh3_64_with_seed(text.as_bytes(), seed),
        _ => 0,
    };
    HASH_SEED.wrapping_add(part(lora_name, LORA_SEED)).wrapping_add(part(cache_salt, SALT_SEED))
}

/// The chained hash after `previous` and a block's own hash.
#[inline]
pub fn chain(previous: u64, local: u64) -> u64 {
    chain_with_seed(previous, local, HASH_SEED)
}

#[inline]
fn chain_with_seed(previous: u64, local: u64, seed: u64) -> u64 {
    let pair = u128::from(local) << 64 | u128::from(previous);
    xxh3_64_with_seed(&pair.to_le_bytes(), seed)
}

/// Complete blocks of a prompt of `tokens` tokens.
pub fn complete_blocks(tokens: usize, block_size: u32, is_eagle: bool) -> usize {
    match block_size {
        0 => 0,
        size => tokens.saturating_sub(usize::from(is_eagle)) / size as usize,
    }
}

/// Content hashes of the complete blocks of `tokens`, into `out`. `mm_infos` is by block.
pub fn block_hashes(
    tokens: &[u32],
    block_size: u32,
    is_eagle: bool,
    seed: u64,
    mm_infos: Option<&[Option<BlockMmInfo>]>,
    out: &mut Vec<u64>,
) {
    out.clear();
    let blocks = complete_blocks(tokens.len(), block_size, is_eagle);
    let stride = block_size as usize;
    let window = stride + usize::from(is_eagle);
    out.reserve(blocks);
    let mut stack = [0_u8; STACK_BYTES];
    let mut heap = Vec::new();
    for block in 0..blocks {
        let start = block * stride;
        let content = &tokens[start..start + window];
        let objects = mm_infos.and_then(|infos| infos.get(block)).and_then(Option::as_ref);
        let hash = match objects {
            None if content.len() * 4 <= STACK_BYTES => xxh3_64_with_seed(little_endian(content, &mut stack), seed),
            _ => {
                heap.clear();
                heap.extend(content.iter().flat_map(|token| token.to_le_bytes()));
                if let Some(info) = objects {
                    append_objects(info, &mut heap);
                }
                xxh3_64_with_seed(&heap, seed)
            }
        };
        out.push(hash);
    }
}

/// The tokens' bytes; on little-endian machines this is one copy of known-size pieces, which costs next to nothing.
#[inline]
fn little_endian<'a>(tokens: &[u32], buffer: &'a mut [u8; STACK_BYTES]) -> &'a [u8] {
    let bytes = &mut buffer[..tokens.len() * 4];
    for (slot, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
        *slot = token.to_le_bytes();
    }
    bytes
}

/// Multimodal objects enter a block's hash in ascending order, duplicates kept; their offsets do not.
fn append_objects(info: &BlockMmInfo, bytes: &mut Vec<u8>) {
    let mut hashes: Vec<u64> = info.mm_objects.iter().map(|object| object.mm_hash).collect();
    hashes.sort_unstable();
    bytes.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
}

/// Chained hashes of `locals`, into `out`.
pub fn sequence_hashes(locals: &[u64], out: &mut Vec<u64>) {
    chained(locals, HASH_SEED, out);
}

fn chained(locals: &[u64], seed: u64, out: &mut Vec<u64>) {
    out.clear();
    out.reserve(locals.len());
    let Some((&first, rest)) = locals.split_first() else { return };
    let mut previous = first;
    out.push(previous);
    for &local in rest {
        previous = chain_with_seed(previous, local, seed);
        out.push(previous);
    }
}

/// The token view of a prompt: what is hashed, and the multimodal data by block.
#[derive(Clone, Copy, Debug)]
pub struct TokenView<'a> {
    /// Tokens; multimodal routing tokens when there are some.
    pub tokens: &'a [u32],
    /// Multimodal data by block.
    pub mm_infos: Option<&'a [Option<BlockMmInfo>]>,
}

/// The tokens of a prompt by precedence: non-empty routing tokens, then `token_ids`. `None` = the hash form.
pub fn token_view(prompt: &PromptInput) -> Option<TokenView<'_>> {
    match (&prompt.mm_routing_info, &prompt.token_ids) {
        (Some(info), _) if !info.routing_token_ids.is_empty() => {
            Some(TokenView { tokens: &info.routing_token_ids, mm_infos: info.block_mm_infos.as_deref() })
        }
        (_, Some(tokens)) => Some(TokenView { tokens, mm_infos: prompt.block_mm_infos.as_deref() }),
        _ => None,
    }
}

/// What a partition mixes into keyed tracking hashes.
#[derive(Clone, Copy, Debug)]
pub struct TrackingScope<'a> {
    /// Model name.
    pub model_name: &'a str,
    /// Routing group.
    pub routing_group: &'a str,
    /// Tokens a block.
    pub block_size: u32,
    /// Blocks are hashed with one look-ahead token.
    pub is_eagle: bool,
    /// LoRA adapter; empty equals absent.
    pub lora_name: Option<&'a str>,
    /// Cache salt; empty equals absent.
    pub cache_salt: Option<&'a str>,
}

/// Seeds of tracking hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackingSeeds {
    /// Seed of block hashes.
    pub block: u64,
    /// Seed of the chain.
    pub chain: u64,
}

impl TrackingSeeds {
    /// The seeds of `scope` under `algorithm`.
    pub fn of(algorithm: &TrackingHash, scope: &TrackingScope<'_>) -> Self {
        match algorithm {
            TrackingHash::PublicXxh3V1 => {
                Self { block: block_seed(scope.lora_name, scope.cache_salt), chain: HASH_SEED }
            }
            TrackingHash::KeyedXxh3V1 { key, key_id } => {
                let mut hasher = blake3::Hasher::new_keyed(key);
                keyed_input(key_id, scope, &mut |bytes| {
                    hasher.update(bytes);
                });
                let digest = hasher.finalize();
                let word = |at: usize| {
                    digest.as_bytes()[at..at + 8].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
                };
                Self { block: word(0), chain: word(8) }
            }
        }
    }
}

/// The bytes a keyed digest is made of: domain, then fields framed as tag, length and bytes.
fn keyed_input(key_id: &str, scope: &TrackingScope<'_>, sink: &mut impl FnMut(&[u8])) {
    sink(KEYED_DOMAIN);
    let mut framed = |tag: u8, bytes: &[u8]| {
        sink(&[tag]);
        sink(&(bytes.len() as u64).to_le_bytes());
        sink(bytes);
    };
    framed(1, key_id.as_bytes());
    framed(2, scope.model_name.as_bytes());
    framed(3, scope.routing_group.as_bytes());
    framed(4, &scope.block_size.to_le_bytes());
    for (tag, text) in [(5, scope.cache_salt), (6, scope.lora_name)] {
        match text {
            Some(text) if !text.is_empty() => {
                sink(&[tag, 1]);
                sink(&(text.len() as u64).to_le_bytes());
                sink(text.as_bytes());
            }
            _ => sink(&[tag, 0]),
        }
    }
    sink(&[7]);
    sink(&1_u64.to_le_bytes());
    sink(&[u8::from(scope.is_eagle)]);
}

/// Tracking hashes of a token prompt under `seeds`, into `out`; `locals` is scratch and holds the block hashes after.
pub fn tracking_hashes(
    view: TokenView<'_>,
    block_size: u32,
    is_eagle: bool,
    seeds: TrackingSeeds,
    locals: &mut Vec<u64>,
    out: &mut Vec<u64>,
) {
    block_hashes(view.tokens, block_size, is_eagle, seeds.block, view.mm_infos, locals);
    chained(locals, seeds.chain, out);
}

#[cfg(test)]
mod tests;
