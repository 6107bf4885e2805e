//! Cost of KV events a block: decoding, normalising (which hashes the tokens), and the whole way into the index.
//!
//! `cargo bench --bench events`. Times are CPU time of the thread, so a busy machine blurs them less; throughput is in
//! blocks. Batches are vLLM's: tagged maps, and the older tagged arrays.

#![allow(missing_docs, reason = "criterion's macro makes a public function")]
#![allow(clippy::unwrap_used, reason = "writing to a buffer cannot fail")]

use std::{cell::Cell, hint::black_box, time::Duration};

use criterion::{
    Criterion, Throughput, criterion_group, criterion_main,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use nix::time::{ClockId, clock_gettime};
use pointsman::{
    events::{
        counts::Tally,
        decode::Batch,
        normalise::{Buffers, EventTarget, RankMemories, apply},
    },
    selection::{
        Tier, WorkerWithDpRank,
        index::{PrefixIndex, RemoveOutcome, StoreOutcome, StoredBlock},
        ingest::Trust,
    },
};

const BLOCK_SIZE: u32 = 16;

/// Blocks stored before the index is emptied, so that it has a steady size.
const HELD: u64 = 1 << 16;

#[derive(Clone, Copy)]
enum Encoding {
    Map,
    Array,
}

/// One batch with one store of `blocks` blocks; names and tokens follow from `first`, the number of its first block.
fn batch(encoding: Encoding, first: u64, blocks: u64, parent: Option<u64>) -> Vec<u8> {
    use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_str};
    let mut out = Vec::new();
    let o = &mut out;
    let name = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hashes = |o: &mut Vec<u8>| {
        write_array_len(o, blocks as u32).unwrap();
        (first..first + blocks).for_each(|number| uint(o, name(number)));
    };
    let parent = |o: &mut Vec<u8>| match parent {
        Some(number) => uint(o, name(number)),
        None => write_nil(o).unwrap(),
    };
    let tokens = |o: &mut Vec<u8>| {
        write_array_len(o, blocks as u32 * BLOCK_SIZE).unwrap();
        for number in first..first + blocks {
            for i in 0..u64::from(BLOCK_SIZE) {
                uint(o, (name(number) >> 20).wrapping_add(i * 7919) % 128_000);
            }
        }
    };
    let size = u64::from(BLOCK_SIZE);
    write_array_len(o, 3).unwrap();
    write_f64(o, 1.5).unwrap();
    write_array_len(o, 1).unwrap();
    match encoding {
        Encoding::Map => {
            write_map_len(o, 10).unwrap();
            write_str(o, "type").unwrap();
            write_str(o, "BlockStored").unwrap();
            write_str(o, "block_hashes").unwrap();
            hashes(o);
            write_str(o, "parent_block_hash").unwrap();
            parent(o);
            write_str(o, "token_ids").unwrap();
            tokens(o);
            write_str(o, "block_size").unwrap();
            uint(o, size);
            write_str(o, "lora_id").unwrap();
            write_nil(o).unwrap();
            write_str(o, "medium").unwrap();
            write_str(o, "GPU").unwrap();
            write_str(o, "lora_name").unwrap();
            write_nil(o).unwrap();
            write_str(o, "group_idx").unwrap();
            uint(o, 0);
            write_str(o, "kv_cache_spec_kind").unwrap();
            write_str(o, "full_attention").unwrap();
        }
        Encoding::Array => {
            write_array_len(o, 7).unwrap();
            write_str(o, "BlockStored").unwrap();
            hashes(o);
            parent(o);
            tokens(o);
            uint(o, size);
            write_nil(o).unwrap();
            write_str(o, "GPU").unwrap();
        }
    }
    uint(o, 0);
    out
}

fn uint(out: &mut Vec<u8>, value: u64) {
    rmp::encode::write_uint(out, value).unwrap();
}

/// Takes everything and keeps nothing.
struct Nothing;

impl EventTarget for Nothing {
    fn block_size(&self) -> u32 {
        BLOCK_SIZE
    }
    fn registered_rank(&self) -> u32 {
        0
    }
    fn store(&self, _: u32, _: Tier, _: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        black_box(blocks);
        StoreOutcome::Applied
    }
    fn remove(&self, _: u32, _: Tier, _: &[u64]) -> RemoveOutcome {
        RemoveOutcome::default()
    }
    fn clear(&self, _: u32) {}
    fn reset(&self) {}
    fn set_trust(&self, _: Trust) {}
}

/// An index that is emptied when it is full.
struct Full<'a> {
    index: &'a PrefixIndex,
    stored: Cell<u64>,
}

impl EventTarget for Full<'_> {
    fn block_size(&self) -> u32 {
        BLOCK_SIZE
    }
    fn registered_rank(&self) -> u32 {
        0
    }
    fn store(&self, dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        self.stored.set(self.stored.get() + blocks.len() as u64);
        self.index.store(WorkerWithDpRank::new(1, dp_rank), tier, parent, blocks)
    }
    fn remove(&self, dp_rank: u32, tier: Tier, names: &[u64]) -> RemoveOutcome {
        self.index.remove(WorkerWithDpRank::new(1, dp_rank), tier, names)
    }
    fn clear(&self, dp_rank: u32) {
        self.index.clear(WorkerWithDpRank::new(1, dp_rank));
        while self.index.sweep(usize::MAX) {}
    }
    fn reset(&self) {}
    fn set_trust(&self, _: Trust) {}
}

/// Chains of 256 blocks, in batches of `blocks`.
fn stream(encoding: Encoding, blocks: u64) -> Vec<Vec<u8>> {
    let firsts = (0..HELD).step_by(blocks as usize);
    firsts.map(|first| batch(encoding, first, blocks, (first % 256 != 0).then(|| first - 1))).collect()
}

/// CPU time of the thread.
struct ThreadTime;

fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        thread_time()
    }

    fn end(&self, start: Duration) -> Duration {
        thread_time() - start
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn ingest(c: &mut Criterion<ThreadTime>) {
    for (encoding, word) in [(Encoding::Map, "map"), (Encoding::Array, "array")] {
        for blocks in [1, 64] {
            let mut group = c.benchmark_group(format!("events/{word}/{blocks}"));
            group.throughput(Throughput::Elements(blocks));
            let stream = stream(encoding, blocks);
            let mut next = {
                let mut at = 0;
                move |stream: &[Vec<u8>]| {
                    at = (at + 1) % stream.len();
                    at
                }
            };
            let mut decoded = Batch::default();
            group.bench_function("decode", |b| {
                b.iter(|| decoded.decode(black_box(&stream[next(&stream)])));
            });
            let (mut memories, mut buffers, mut tally) =
                (RankMemories::default(), Buffers::default(), Tally::default());
            group.bench_function("decode+normalise", |b| {
                b.iter(|| {
                    let payload = &stream[next(&stream)];
                    decoded.decode(payload).unwrap();
                    apply(&decoded, payload, &mut memories, &mut buffers, &Nothing, &mut tally)
                });
            });
            let index = PrefixIndex::new();
            let full = Full { index: &index, stored: Cell::new(0) };
            let mut at = 0;
            group.bench_function("decode+normalise+store", |b| {
                b.iter(|| {
                    if at == stream.len() {
                        full.clear(0);
                        at = 0;
                    }
                    let payload = &stream[at];
                    at += 1;
                    decoded.decode(payload).unwrap();
                    apply(&decoded, payload, &mut memories, &mut buffers, &full, &mut tally)
                });
            });
            assert!(full.stored.get() > 0);
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = ingest
}
criterion_main!(benches);
