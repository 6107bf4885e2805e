//! Block, sequence and tracking hashes (spec index 2, spec sequences 5).

/// Seed of all public hashes.
pub const HASH_SEED: u64 = 1337;

/// Seed of block hashes under a LoRA adapter and a cache salt; empty equals absent.
pub fn block_seed(lora_name: Option<&str>, cache_salt: Option<&str>) -> u64 {
    let _ = (lora_name, cache_salt);
    todo!()
}

/// The chained hash after `previous` and a block's own hash.
pub fn chain(previous: u64, local: u64) -> u64 {
    let _ = (previous, local);
    todo!()
}

/// Content hashes of the complete blocks of `tokens`, into `out`. `mm_infos` is by block.
pub fn block_hashes(
    tokens: &[u32],
    block_size: u32,
    is_eagle: bool,
    seed: u64,
    mm_infos: Option<&[Option<super::request::BlockMmInfo>]>,
    out: &mut Vec<u64>,
) {
    let _ = (tokens, block_size, is_eagle, seed, mm_infos, out);
    todo!()
}

/// Chained hashes of `locals`, into `out`.
pub fn sequence_hashes(locals: &[u64], out: &mut Vec<u64>) {
    let _ = (locals, out);
    todo!()
}
