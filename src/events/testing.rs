//! Shared by the tests of this module: a msgpack writer, and a target that keeps what was applied.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use super::{
    counts::Tally,
    decode::Batch,
    normalise::{Applied, Buffers, EventTarget, RankMemories, apply},
};
use crate::selection::{
    Tier, WorkerWithDpRank, hash,
    index::{Matches, PrefixIndex, RemoveOutcome, StoreOutcome, StoredBlock, TierBlocks},
    ingest::Trust,
};

/// `value` as msgpack. `{"$bytes": [..]}` stands for a byte string.
pub(crate) fn pack(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, value);
    out
}

fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => rmp::encode::write_nil(out).unwrap(),
        Value::Bool(bool) => rmp::encode::write_bool(out, *bool).unwrap(),
        Value::Number(number) => {
            if let Some(unsigned) = number.as_u64() {
                rmp::encode::write_uint(out, unsigned).unwrap();
            } else if let Some(signed) = number.as_i64() {
                rmp::encode::write_sint(out, signed).unwrap();
            } else {
                rmp::encode::write_f64(out, number.as_f64().unwrap()).unwrap();
            }
        }
        Value::String(text) => rmp::encode::write_str(out, text).unwrap(),
        Value::Array(values) => {
            rmp::encode::write_array_len(out, values.len() as u32).unwrap();
            values.iter().for_each(|value| write(out, value));
        }
        Value::Object(map) => {
            if let Some(Value::Array(bytes)) = map.get("$bytes") {
                let bytes: Vec<u8> = bytes.iter().map(|byte| byte.as_u64().unwrap() as u8).collect();
                rmp::encode::write_bin(out, &bytes).unwrap();
                return;
            }
            rmp::encode::write_map_len(out, map.len() as u32).unwrap();
            for (key, value) in map {
                rmp::encode::write_str(out, key).unwrap();
                write(out, value);
            }
        }
    }
}

/// An index for one worker, with what was said about it.
#[derive(Debug)]
pub(crate) struct TestTarget {
    pub index: PrefixIndex,
    pub block_size: u32,
    pub rank: u32,
    /// A rank for which there is no room.
    pub refused: Option<u32>,
    pub said: Mutex<Said>,
}

/// What a target was told beside blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub resets: u32,
    pub trust: Trust,
    pub ranks: Vec<u32>,
}

impl TestTarget {
    pub fn new(block_size: u32) -> Self {
        Self { index: PrefixIndex::new(), block_size, rank: 0, refused: None, said: Mutex::default() }
    }

    /// Blocks that `rank` holds of a prompt.
    pub fn held(&self, rank: u32, prompt: &Prompt<'_>) -> TierBlocks {
        let (mut locals, mut seqs) = (Vec::new(), Vec::new());
        let seed = hash::block_seed(prompt.lora, prompt.salt);
        hash::block_hashes(prompt.tokens, self.block_size, prompt.eagle, seed, None, &mut locals);
        hash::sequence_hashes(&locals, &mut seqs);
        let mut matches = Matches::default();
        self.index.lookup(&locals, &seqs, &mut matches);
        let mut found = TierBlocks::default();
        for class in &matches.classes {
            class.lanes.for_each(|lane| {
                if self.index.rank_of(lane) == Some(WorkerWithDpRank::new(1, rank)) {
                    found = class.blocks;
                }
            });
        }
        found
    }

    /// Device blocks that rank 0 holds of plain tokens.
    pub fn device(&self, tokens: &[u32]) -> u32 {
        self.held(0, &Prompt { tokens, ..Prompt::default() }).device
    }
}

/// A prompt to look up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prompt<'a> {
    pub tokens: &'a [u32],
    pub lora: Option<&'a str>,
    pub salt: Option<&'a str>,
    pub eagle: bool,
}

impl EventTarget for Arc<TestTarget> {
    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn registered_rank(&self) -> u32 {
        self.rank
    }

    fn store(&self, dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        if self.refused == Some(dp_rank) {
            return StoreOutcome::Full;
        }
        let mut said = self.said.lock();
        if !said.ranks.contains(&dp_rank) {
            said.ranks.push(dp_rank);
        }
        self.index.store(WorkerWithDpRank::new(1, dp_rank), tier, parent, blocks)
    }

    fn remove(&self, dp_rank: u32, tier: Tier, names: &[u64]) -> RemoveOutcome {
        self.index.remove(WorkerWithDpRank::new(1, dp_rank), tier, names)
    }

    fn clear(&self, dp_rank: u32) {
        self.index.clear(WorkerWithDpRank::new(1, dp_rank));
    }

    fn reset(&self) {
        let mut said = self.said.lock();
        said.resets += 1;
        for &rank in &said.ranks {
            self.index.clear(WorkerWithDpRank::new(1, rank));
        }
    }

    fn set_trust(&self, trust: Trust) {
        self.said.lock().trust = trust;
    }
}

/// A stream without a transport: decode and apply.
#[derive(Debug)]
pub(crate) struct Stream {
    pub target: Arc<TestTarget>,
    pub memories: RankMemories,
    pub tally: Tally,
    buffers: Buffers,
    batch: Batch,
}

impl Stream {
    pub fn new(block_size: u32) -> Self {
        Self {
            target: Arc::new(TestTarget::new(block_size)),
            memories: RankMemories::default(),
            tally: Tally::default(),
            buffers: Buffers::default(),
            batch: Batch::default(),
        }
    }

    /// Applies one payload; it must decode as a batch.
    pub fn payload(&mut self, payload: &[u8]) -> Applied {
        self.batch.decode(payload).unwrap();
        let Self { target, memories, tally, buffers, batch } = self;
        apply(batch, payload, memories, buffers, &*target, tally)
    }

    /// Applies one batch of rank nil.
    pub fn events(&mut self, events: Value) -> Applied {
        self.payload(&pack(&serde_json::json!([1.5, events, null])))
    }
}
