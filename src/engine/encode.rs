//! Event batches as each engine encodes them (spec clients 5c and 5d): a msgpack array of time, events and rank.

use rmp::encode as mp;
use xxhash_rust::xxh3::xxh3_128;

use super::event::{KvEvent, Medium, Namespace};

/// Whose encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// vLLM 0.24 and later: events are maps.
    #[default]
    VllmMap,
    /// vLLM before: events are arrays.
    VllmArray,
    /// SGLang: maps, one block an event, signed hashes.
    Sglang,
    /// TensorRT-LLM through the reference's worker: maps without a medium, signed hashes.
    Trtllm,
}

/// How batches are written.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Whose encoding.
    pub encoding: Encoding,
    /// vLLM only: hashes as 32-byte strings, as with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`.
    pub byte_hashes: bool,
    /// Tokens a block.
    pub block_size: usize,
}

impl Encoder {
    /// The payload of one batch: `time` in seconds, `rank` as the engine tells it.
    pub fn batch(&self, time: f64, events: &[KvEvent], rank: Option<u32>) -> Vec<u8> {
        let mut out = Packer(Vec::with_capacity(128 + events.len() * 256));
        out.array(3);
        out.float(time);
        out.array(events.iter().map(|event| self.events_of(event)).sum());
        for event in events {
            self.event(&mut out, event);
        }
        match rank {
            Some(rank) => out.uint(rank.into()),
            None => out.nil(),
        }
        out.0
    }

    /// Events that `event` becomes: SGLang tells each block by itself.
    fn events_of(&self, event: &KvEvent) -> usize {
        match event {
            KvEvent::Stored { hashes, .. } if self.encoding == Encoding::Sglang => hashes.len(),
            _ => 1,
        }
    }

    fn event(&self, out: &mut Packer, event: &KvEvent) {
        match event {
            KvEvent::Stored { hashes, parent, tokens, namespace, medium } => {
                if self.encoding != Encoding::Sglang {
                    return self.stored(out, hashes, *parent, tokens, namespace, *medium);
                }
                let mut before = *parent;
                for (hash, tokens) in hashes.iter().zip(tokens.chunks(self.block_size)) {
                    self.stored(out, &[*hash], before, tokens, namespace, *medium);
                    before = Some(*hash);
                }
            }
            KvEvent::Removed { hashes, medium } => self.removed(out, hashes, *medium),
            KvEvent::Cleared => match self.encoding {
                Encoding::VllmArray => {
                    out.array(1);
                    out.text("AllBlocksCleared");
                }
                _ => {
                    out.map(1);
                    out.text("type");
                    out.text("AllBlocksCleared");
                }
            },
        }
    }

    fn stored(
        &self,
        out: &mut Packer,
        hashes: &[u64],
        parent: Option<u64>,
        tokens: &[u32],
        namespace: &Namespace,
        medium: Medium,
    ) {
        // vLLM tells what it moves to host memory by hash alone.
        let by_hash = medium == Medium::Host && matches!(self.encoding, Encoding::VllmMap | Encoding::VllmArray);
        let (tokens, block_size) = if by_hash { (&[][..], 0) } else { (tokens, self.block_size as u64) };
        let lora = namespace.lora_name.as_deref();
        let salt = namespace.cache_salt.as_deref();
        let extra = self.extra_keys(namespace, parent, hashes.len());
        if self.encoding == Encoding::VllmArray {
            out.array(if extra.is_some() { 9 } else { 8 });
            out.text("BlockStored");
            self.hashes(out, hashes);
            self.hash_or_nil(out, parent);
            out.tokens(tokens);
            out.uint(block_size);
            out.nil();
            out.text(self.medium(medium));
            out.text_or_nil(lora);
            if let Some(extra) = extra {
                out.extra_keys(&extra);
            }
            return;
        }
        match self.encoding {
            // The encoder of vLLM writes the long map header: the class has more than 15 fields, absent ones included.
            Encoding::VllmMap => out.long_map(10 + u16::from(extra.is_some())),
            Encoding::Sglang => out.map(if salt.is_some() { 8 } else { 7 }),
            _ => out.map(6 + u32::from(lora.is_some()) + u32::from(salt.is_some())),
        }
        out.text("type");
        out.text("BlockStored");
        out.text("block_hashes");
        self.hashes(out, hashes);
        out.text("parent_block_hash");
        self.hash_or_nil(out, parent);
        out.text("token_ids");
        out.tokens(tokens);
        out.text("block_size");
        out.uint(block_size);
        out.text("lora_id");
        out.nil();
        if self.encoding != Encoding::Trtllm {
            out.text("medium");
            out.text(self.medium(medium));
        }
        if self.encoding == Encoding::VllmMap || (self.encoding == Encoding::Trtllm && lora.is_some()) {
            out.text("lora_name");
            out.text_or_nil(lora);
        }
        if self.encoding == Encoding::VllmMap {
            if let Some(extra) = extra {
                out.text("extra_keys");
                out.extra_keys(&extra);
            }
            out.text("group_idx");
            out.uint(0);
            out.text("kv_cache_spec_kind");
            out.text("full_attention");
        } else if let Some(salt) = salt {
            out.text("cache_salt");
            out.text(salt);
        }
    }

    fn removed(&self, out: &mut Packer, hashes: &[u64], medium: Medium) {
        match self.encoding {
            Encoding::VllmArray => {
                out.array(3);
                out.text("BlockRemoved");
                self.hashes(out, hashes);
                out.text(self.medium(medium));
            }
            encoding => {
                out.map(if encoding == Encoding::Trtllm { 2 } else { 3 });
                out.text("type");
                out.text("BlockRemoved");
                out.text("block_hashes");
                self.hashes(out, hashes);
                if encoding != Encoding::Trtllm {
                    out.text("medium");
                    out.text(self.medium(medium));
                }
            }
        }
    }

    /// vLLM's extra keys of each block: the adapter in all of them, the salt in the first of a chain.
    fn extra_keys<'a>(
        &self,
        namespace: &'a Namespace,
        parent: Option<u64>,
        blocks: usize,
    ) -> Option<Vec<Vec<&'a str>>> {
        if *namespace == Namespace::default() {
            return None;
        }
        let keys = (0..blocks).map(|index| {
            let salt = namespace.cache_salt.as_deref().filter(|_| index == 0 && parent.is_none());
            namespace.lora_name.as_deref().into_iter().chain(salt).collect()
        });
        Some(keys.collect())
    }

    fn medium(&self, medium: Medium) -> &'static str {
        match (medium, self.encoding) {
            (Medium::Gpu, _) => "GPU",
            (Medium::Host, Encoding::Sglang) => "CPU_PINNED",
            (Medium::Host, _) => "CPU",
        }
    }

    fn hashes(&self, out: &mut Packer, hashes: &[u64]) {
        out.array(hashes.len());
        for hash in hashes {
            self.hash(out, *hash);
        }
    }

    fn hash_or_nil(&self, out: &mut Packer, hash: Option<u64>) {
        match hash {
            Some(hash) => self.hash(out, hash),
            None => out.nil(),
        }
    }

    fn hash(&self, out: &mut Packer, hash: u64) {
        match self.encoding {
            Encoding::Sglang | Encoding::Trtllm => out.int(hash.cast_signed()),
            _ if self.byte_hashes => out.bytes(&digest(hash)),
            _ => out.uint(hash),
        }
    }
}

/// A 32-byte digest whose last eight bytes are `hash`, big endian: the part that vLLM's integer form keeps.
fn digest(hash: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&xxh3_128(&hash.to_be_bytes()).to_be_bytes());
    bytes[16..24].copy_from_slice(&hash.rotate_left(32).to_be_bytes());
    bytes[24..].copy_from_slice(&hash.to_be_bytes());
    bytes
}

/// Msgpack into memory, in the shortest form unless said otherwise.
struct Packer(Vec<u8>);

impl Packer {
    fn array(&mut self, len: usize) {
        mp::write_array_len(&mut self.0, size(len)).expect(IN_MEMORY);
    }

    fn map(&mut self, len: u32) {
        mp::write_map_len(&mut self.0, len).expect(IN_MEMORY);
    }

    fn long_map(&mut self, len: u16) {
        self.0.push(0xde);
        self.0.extend_from_slice(&len.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        mp::write_str(&mut self.0, text).expect(IN_MEMORY);
    }

    fn text_or_nil(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        mp::write_bin(&mut self.0, bytes).expect(IN_MEMORY);
    }

    fn nil(&mut self) {
        mp::write_nil(&mut self.0).expect(IN_MEMORY);
    }

    fn float(&mut self, number: f64) {
        mp::write_f64(&mut self.0, number).expect(IN_MEMORY);
    }

    fn uint(&mut self, number: u64) {
        mp::write_uint(&mut self.0, number).expect(IN_MEMORY);
    }

    fn int(&mut self, number: i64) {
        mp::write_sint(&mut self.0, number).expect(IN_MEMORY);
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for token in tokens {
            self.uint((*token).into());
        }
    }

    fn extra_keys(&mut self, blocks: &[Vec<&str>]) {
        self.array(blocks.len());
        for keys in blocks {
            if keys.is_empty() {
                self.nil();
                continue;
            }
            self.array(keys.len());
            for key in keys {
                self.text(key);
            }
        }
    }
}

const IN_MEMORY: &str = "writing to memory cannot fail";

/// Lengths in msgpack are 32 bits wide; an engine step is far below that.
fn size(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
