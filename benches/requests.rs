//! Decoding of prompts: the way requests take beside `serde_json` alone.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pointsman::http::decode::{decode, decode_prompted, wire::ReserveRequest};

fn body(separator: &str, tokens: usize, hashes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut join = |count: usize, hash: bool| {
        let text: Vec<_> =
            (0..count).map(|_| if hash { rng.i64(..).to_string() } else { rng.u32(..150_000).to_string() }).collect();
        text.join(separator)
    };
    let prompt = if tokens > 0 {
        format!("\"token_ids\":[{}]", join(tokens, false))
    } else {
        let (blocks, sequence) = (join(hashes, true), join(hashes, true));
        format!("\"block_hashes\":[{blocks}],\"sequence_hashes\":[{sequence}],\"isl_tokens\":{}", hashes * 16)
    };
    format!("{{\"model_name\":\"llama\",\"selection_id\":\"request-1\",{prompt},\"expected_output_tokens\":128}}")
        .into()
}

fn decoding(criterion: &mut Criterion) {
    for (name, separator, tokens, hashes) in
        [("tokens", ",", 8_000, 0), ("tokens_spaced", ", ", 8_000, 0), ("hashes", ",", 0, 128), ("short", ",", 16, 0)]
    {
        let body = body(separator, tokens, hashes);
        let integers = tokens + 2 * hashes;
        let mut group = criterion.benchmark_group("decode");
        group.throughput(Throughput::Elements(integers as u64));
        group.bench_function(BenchmarkId::new(name, "ours"), |bencher| {
            bencher.iter(|| decode_prompted::<ReserveRequest>(black_box(&body)).expect("valid"));
        });
        group.bench_function(BenchmarkId::new(name, "serde_json"), |bencher| {
            bencher.iter(|| decode::<ReserveRequest>(black_box(&body)).expect("valid"));
        });
        group.finish();
    }
}

criterion_group!(benches, decoding);
criterion_main!(benches);
