//! Prompts: validation, and from tokens or hashes to what the index and the load tracker take (spec http 3.1).
//!
//! A prompt comes as multimodal routing tokens, as tokens, or as hashes with a length, in that order of precedence.
//! The index always sees public hashes folded from block hashes; the `sequence_hashes` of a request are tracking
//! hashes and nothing else.

use super::{
    config::TrackingHash,
    error::SelectionError,
    hash::{self, TokenView, TrackingScope, TrackingSeeds},
    identity::PartitionKey,
    request::PromptInput,
};

/// Longest prompt, in tokens. Above any model's context, and low enough that sums of it never come near 2^64.
pub const MAX_ISL_TOKENS: u64 = 1 << 40;

/// How a partition hashes prompts.
#[derive(Clone, Copy, Debug)]
pub struct HashingScope<'a> {
    /// The partition.
    pub partition: &'a PartitionKey,
    /// Tokens a block.
    pub block_size: u32,
    /// The partition's setting; a prompt may overrule it.
    pub is_eagle: bool,
    /// Algorithm of tracking hashes.
    pub tracking: &'a TrackingHash,
    /// A seed when token prompts get random tracking hashes, so that equal prompts share nothing.
    pub no_reuse: Option<u64>,
}

/// Which hash lists a verb needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Index and load: selections and load queries.
    Select,
    /// Load only: explicit bookings that are not recorded.
    Track,
}

/// A prompt ready for look-up and booking; its buffers are reused from prompt to prompt.
#[derive(Debug, Default)]
pub struct PreparedPrompt {
    isl_tokens: u64,
    locals: Vec<u64>,
    seqs: Vec<u64>,
    tracking: Vec<u64>,
    /// The tracking hashes equal `seqs` and are not stored twice.
    tracks_seqs: bool,
}

impl PreparedPrompt {
    /// Prompt length in tokens.
    pub fn isl_tokens(&self) -> u64 {
        self.isl_tokens
    }

    /// Content hashes of the complete blocks; empty for [`Purpose::Track`].
    pub fn locals(&self) -> &[u64] {
        &self.locals
    }

    /// Chained hashes of [`Self::locals`].
    pub fn seqs(&self) -> &[u64] {
        &self.seqs
    }

    /// Tracking hashes.
    pub fn sequence(&self) -> &[u64] {
        if self.tracks_seqs { &self.seqs } else { &self.tracking }
    }

    /// Blocks the prompt occupies, a partial last one included.
    pub fn request_blocks(&self, block_size: u32) -> u64 {
        self.isl_tokens.div_ceil(u64::from(block_size.max(1)))
    }

    /// Heap bytes of the buffers.
    pub fn capacity_bytes(&self) -> usize {
        (self.locals.capacity() + self.seqs.capacity() + self.tracking.capacity()) * size_of::<u64>()
    }

    /// Fills the buffers from `prompt`, which is checked first.
    ///
    /// # Errors
    /// 400, first violation in the order of spec http 3.1.
    pub fn prepare(
        &mut self,
        prompt: &PromptInput,
        scope: &HashingScope<'_>,
        purpose: Purpose,
    ) -> Result<(), SelectionError> {
        self.tracks_seqs = false;
        match hash::token_view(prompt) {
            Some(view) => self.hash_tokens(view, prompt, scope, purpose),
            None => self.take_hashes(prompt, purpose)?,
        }
        Ok(())
    }

    fn hash_tokens(&mut self, view: TokenView<'_>, prompt: &PromptInput, scope: &HashingScope<'_>, purpose: Purpose) {
        self.isl_tokens = view.tokens.len() as u64;
        let is_eagle = prompt.is_eagle.unwrap_or(scope.is_eagle);
        let (lora_name, cache_salt) = (prompt.lora_name.as_deref(), prompt.cache_salt.as_deref());
        if let Some(seed) = scope.no_reuse {
            let mut rng = fastrand::Rng::with_seed(seed);
            let blocks = hash::complete_blocks(view.tokens.len(), scope.block_size, is_eagle);
            self.tracking.clear();
            self.tracking.extend((0..blocks).map(|_| rng.u64(..)));
        } else if let TrackingHash::KeyedXxh3V1 { .. } = scope.tracking {
            let tracking_scope = TrackingScope {
                model_name: &scope.partition.model_name,
                routing_group: &scope.partition.routing_group,
                block_size: scope.block_size,
                is_eagle,
                lora_name,
                cache_salt,
            };
            let seeds = TrackingSeeds::of(scope.tracking, &tracking_scope);
            hash::tracking_hashes(view, scope.block_size, is_eagle, seeds, &mut self.locals, &mut self.tracking);
        } else {
            self.tracks_seqs = true;
        }
        if purpose == Purpose::Select || self.tracks_seqs {
            let seed = hash::block_seed(lora_name, cache_salt);
            hash::block_hashes(view.tokens, scope.block_size, is_eagle, seed, view.mm_infos, &mut self.locals);
            hash::sequence_hashes(&self.locals, &mut self.seqs);
        }
        if purpose == Purpose::Track {
            self.locals.clear();
            if !self.tracks_seqs {
                self.seqs.clear();
            }
        }
    }

    fn take_hashes(&mut self, prompt: &PromptInput, purpose: Purpose) -> Result<(), SelectionError> {
        let sequence = match purpose {
            Purpose::Select => {
                let hashes = check_hashes(prompt)?;
                self.isl_tokens = hashes.isl_tokens;
                copy_bits(hashes.block_hashes, &mut self.locals);
                hash::sequence_hashes(&self.locals, &mut self.seqs);
                hashes.sequence_hashes
            }
            Purpose::Track => {
                let (sequence, isl_tokens) = check_sequence(prompt)?;
                self.isl_tokens = isl_tokens;
                self.locals.clear();
                self.seqs.clear();
                sequence
            }
        };
        copy_bits(sequence, &mut self.tracking);
        Ok(())
    }
}

fn copy_bits(hashes: &[i64], out: &mut Vec<u64>) {
    out.clear();
    out.extend(hashes.iter().map(|hash| hash.cast_unsigned()));
}

/// The hash form of a prompt, checked.
struct HashForm<'a> {
    block_hashes: &'a [i64],
    sequence_hashes: &'a [i64],
    isl_tokens: u64,
}

fn bad(text: impl Into<String>) -> SelectionError {
    SelectionError::BadRequest(text.into())
}

fn check_hashes(prompt: &PromptInput) -> Result<HashForm<'_>, SelectionError> {
    let block_hashes = prompt.block_hashes.as_deref();
    let block_hashes = block_hashes.ok_or_else(|| bad("block_hashes is required without token_ids"))?;
    let (sequence_hashes, isl_tokens) = check_sequence(prompt)?;
    if isl_tokens == 0 {
        return Err(bad("isl_tokens must be greater than 0"));
    }
    if block_hashes.len() != sequence_hashes.len() {
        return Err(bad(format!(
            "block_hashes length {} must match sequence_hashes length {}",
            block_hashes.len(),
            sequence_hashes.len()
        )));
    }
    Ok(HashForm { block_hashes, sequence_hashes, isl_tokens })
}

fn check_sequence(prompt: &PromptInput) -> Result<(&[i64], u64), SelectionError> {
    let sequence = prompt.sequence_hashes.as_deref();
    let sequence = sequence.ok_or_else(|| bad("sequence_hashes is required without token_ids"))?;
    let isl_tokens = prompt.isl_tokens.ok_or_else(|| bad("isl_tokens is required without token_ids"))?;
    if isl_tokens > MAX_ISL_TOKENS {
        return Err(bad(format!("isl_tokens must not exceed {MAX_ISL_TOKENS}")));
    }
    Ok((sequence, isl_tokens))
}

/// The length of an explicit booking's prompt, which needs no block hashes and may be 0.
///
/// # Errors
/// 400, in the order of spec http 6.1.
pub fn explicit_length(prompt: &PromptInput) -> Result<u64, SelectionError> {
    match hash::token_view(prompt) {
        Some(view) => Ok(view.tokens.len() as u64),
        None => check_sequence(prompt).map(|(_, isl_tokens)| isl_tokens),
    }
}

/// Whether a prompt says what its blocks contain: tokens, or block hashes.
pub fn has_content(prompt: &PromptInput) -> bool {
    prompt.block_hashes.is_some() || hash::token_view(prompt).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope<'a>(partition: &'a PartitionKey, tracking: &'a TrackingHash) -> HashingScope<'a> {
        HashingScope { partition, block_size: 4, is_eagle: false, tracking, no_reuse: None }
    }

    fn prepare(prompt: &PromptInput, change: impl FnOnce(&mut HashingScope<'_>)) -> PreparedPrompt {
        let (key, tracking) = (PartitionKey::new("m", "default"), TrackingHash::PublicXxh3V1);
        let mut scope = scope(&key, &tracking);
        change(&mut scope);
        let mut prepared = PreparedPrompt::default();
        prepared.prepare(prompt, &scope, Purpose::Select).expect("valid prompt");
        prepared
    }

    fn error(prompt: &PromptInput, purpose: Purpose) -> String {
        let (key, tracking) = (PartitionKey::new("m", "default"), TrackingHash::PublicXxh3V1);
        let outcome = PreparedPrompt::default().prepare(prompt, &scope(&key, &tracking), purpose);
        outcome.map_or_else(|error| error.to_string(), |()| "valid".to_owned())
    }

    fn tokens(count: u32) -> PromptInput {
        PromptInput { token_ids: Some((1..=count).collect()), ..PromptInput::default() }
    }

    fn hashes(blocks: &[i64], sequence: &[i64], isl_tokens: u64) -> PromptInput {
        PromptInput {
            block_hashes: Some(blocks.to_vec()),
            sequence_hashes: Some(sequence.to_vec()),
            isl_tokens: Some(isl_tokens),
            ..PromptInput::default()
        }
    }

    #[test]
    fn violations_come_in_order() {
        let mut prompt = PromptInput::default();
        assert_eq!(error(&prompt, Purpose::Select), "block_hashes is required without token_ids");
        assert_eq!(error(&prompt, Purpose::Track), "sequence_hashes is required without token_ids");
        prompt.block_hashes = Some(vec![1]);
        assert_eq!(error(&prompt, Purpose::Select), "sequence_hashes is required without token_ids");
        prompt.sequence_hashes = Some(vec![1, 2]);
        assert_eq!(error(&prompt, Purpose::Select), "isl_tokens is required without token_ids");
        prompt.isl_tokens = Some(0);
        assert_eq!(error(&prompt, Purpose::Select), "isl_tokens must be greater than 0");
        assert_eq!(error(&prompt, Purpose::Track), "valid");
        prompt.isl_tokens = Some(4);
        assert_eq!(error(&prompt, Purpose::Select), "block_hashes length 1 must match sequence_hashes length 2");
        prompt.isl_tokens = Some(MAX_ISL_TOKENS + 1);
        for purpose in [Purpose::Select, Purpose::Track] {
            assert_eq!(error(&prompt, purpose), "isl_tokens must not exceed 1099511627776");
        }
        prompt.sequence_hashes = Some(vec![1]);
        prompt.isl_tokens = Some(MAX_ISL_TOKENS);
        assert_eq!(error(&prompt, Purpose::Select), "valid");
    }

    #[test]
    fn tokens_win_over_hashes_and_routing_tokens_over_both() {
        let mut prompt = hashes(&[7], &[8], 99);
        prompt.token_ids = Some(vec![]);
        let prepared = prepare(&prompt, |_| {});
        assert_eq!((prepared.isl_tokens(), prepared.sequence().len()), (0, 0));
        prompt.mm_routing_info =
            Some(super::super::request::MmRoutingInfo { routing_token_ids: (1..=9).collect(), block_mm_infos: None });
        let prepared = prepare(&prompt, |_| {});
        assert_eq!((prepared.isl_tokens(), prepared.sequence().len()), (9, 2));
        assert_eq!(prepared.request_blocks(4), 3);
        prompt.mm_routing_info = Some(super::super::request::MmRoutingInfo::default());
        prompt.token_ids = None;
        assert_eq!(prepare(&prompt, |_| {}).sequence(), [8]);
    }

    #[test]
    fn the_index_never_sees_the_sequence_hashes_of_a_request() {
        let prepared = prepare(&hashes(&[-1, 5], &[-3, 9], 8), |_| {});
        assert_eq!(prepared.locals(), [u64::MAX, 5]);
        assert_eq!(prepared.seqs(), [u64::MAX, hash::chain(u64::MAX, 5)]);
        assert_eq!(prepared.sequence(), [u64::MAX - 2, 9]);
    }

    #[test]
    fn public_tracking_equals_the_index_and_keyed_does_not() {
        let public = prepare(&tokens(9), |_| {});
        assert_eq!(public.sequence(), public.seqs());
        assert_eq!(public.sequence(), [14643705804678351452, 4945711292740353085]);
        let keyed = TrackingHash::KeyedXxh3V1 { key: zeroize::Zeroizing::new([7; 32]), key_id: "k".to_owned() };
        let key = PartitionKey::new("m", "default");
        let mut prepared = PreparedPrompt::default();
        prepared.prepare(&tokens(9), &scope(&key, &keyed), Purpose::Select).expect("valid");
        assert_eq!(prepared.seqs(), public.seqs());
        assert_eq!(prepared.sequence().len(), 2);
        assert_ne!(prepared.sequence(), public.sequence());
        let selected = prepared.sequence().to_vec();
        prepared.prepare(&tokens(9), &scope(&key, &keyed), Purpose::Track).expect("valid");
        assert_eq!(prepared.sequence(), selected);
        assert!(prepared.locals().is_empty());
    }

    #[test]
    fn without_reuse_equal_prompts_share_no_tracking_hash() {
        let (a, b) = (prepare(&tokens(8), |s| s.no_reuse = Some(1)), prepare(&tokens(8), |s| s.no_reuse = Some(2)));
        assert_eq!((a.sequence().len(), a.seqs()), (2, b.seqs()));
        assert!(a.sequence().iter().all(|hash| !b.sequence().contains(hash)));
        let given = prepare(&hashes(&[1], &[2], 4), |s| s.no_reuse = Some(1));
        assert_eq!(given.sequence(), [2], "given hashes are taken as they are");
    }

    #[test]
    fn buffers_do_not_leak_from_prompt_to_prompt() {
        let (key, tracking) = (PartitionKey::new("m", "default"), TrackingHash::PublicXxh3V1);
        let mut prepared = PreparedPrompt::default();
        prepared.prepare(&hashes(&[1, 2, 3], &[4, 5, 6], 12), &scope(&key, &tracking), Purpose::Select).expect("valid");
        prepared.prepare(&tokens(4), &scope(&key, &tracking), Purpose::Select).expect("valid");
        assert_eq!((prepared.locals().len(), prepared.seqs().len(), prepared.sequence().len()), (1, 1, 1));
        prepared.prepare(&hashes(&[], &[], 3), &scope(&key, &tracking), Purpose::Select).expect("valid");
        assert_eq!((prepared.locals().len(), prepared.seqs().len(), prepared.sequence().len()), (0, 0, 0));
        let unrecorded = PromptInput { block_hashes: None, ..hashes(&[], &[9], 0) };
        prepared.prepare(&unrecorded, &scope(&key, &tracking), Purpose::Track).expect("valid");
        assert_eq!((prepared.isl_tokens(), prepared.sequence()), (0, &[9][..]));
    }

    #[test]
    fn a_prompt_overrules_the_eagle_setting() {
        let mut prompt = tokens(4);
        assert_eq!(prepare(&prompt, |s| s.is_eagle = true).sequence().len(), 0);
        prompt.is_eagle = Some(false);
        assert_eq!(prepare(&prompt, |s| s.is_eagle = true).sequence().len(), 1);
    }
}
