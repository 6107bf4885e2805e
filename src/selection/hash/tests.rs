//! Hashes of blocks, chains and tracking keys.

use serde_json::Value;

use super::*;

fn golden(path: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path);
    serde_json::from_slice(&std::fs::read(path).expect("recorded vectors")).expect("JSON")
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("array").iter().map(|v| v.as_u64().expect("u64")).collect()
}

/// Recorded prompts write long token lists as `{"$range": [from, to]}`.
fn expand(value: &mut Value) {
    if let Some(range) = value.get("$range") {
        let (from, to) = (range[0].as_u64().expect("from"), range[1].as_u64().expect("to"));
        *value = (from..to).collect();
    } else if let Value::Object(map) = value {
        map.values_mut().for_each(expand);
    }
}

#[test]
fn recorded_block_and_sequence_hashes() {
    let vectors = golden("index/hashing.json");
    let vectors = vectors["vectors"].as_array().expect("vectors");
    assert_eq!(vectors.len(), 49);
    for vector in vectors {
        let id = &vector["id"];
        let tokens: Vec<u32> = serde_json::from_value(vector["tokens"].clone()).expect("tokens");
        let infos: Option<Vec<Option<BlockMmInfo>>> =
            serde_json::from_value(vector["block_mm_infos"].clone()).expect("multimodal infos");
        let block_size = u32::try_from(vector["block_size"].as_u64().expect("block size")).expect("u32");
        let seed = block_seed(vector["lora_name"].as_str(), vector["cache_salt"].as_str());
        let (mut locals, mut seqs) = (vec![9], vec![9]);
        let is_eagle = vector["is_eagle"].as_bool().unwrap_or(false);
        block_hashes(&tokens, block_size, is_eagle, seed, infos.as_deref(), &mut locals);
        sequence_hashes(&locals, &mut seqs);
        let expect = &vector["expect"];
        if let Some(recorded) = expect["seed"].as_u64() {
            assert_eq!(seed, recorded, "{id}");
        }
        assert_eq!(locals, numbers(&expect["block_hashes"]), "{id}");
        if expect.get("sequence_hashes").is_some() {
            assert_eq!(seqs, numbers(&expect["sequence_hashes"]), "{id}");
        }
    }
}

#[test]
fn recorded_tracking_hashes() {
    let vectors = golden("replica/tracking-hash.json");
    let vectors = vectors["vectors"].as_array().expect("vectors");
    assert_eq!(vectors.len(), 43);
    for vector in vectors {
        let name = &vector["name"];
        let mut prompt = vector["prompt"].clone();
        expand(&mut prompt);
        let prompt: PromptInput = serde_json::from_value(prompt).expect("prompt");
        let algorithm = match vector["key_hex"].as_str() {
            None => TrackingHash::PublicXxh3V1,
            Some(hex) => {
                let mut key = zeroize::Zeroizing::new([0; 32]);
                for (at, byte) in key.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).expect("hex");
                }
                let key_id = vector["key_id"].as_str().expect("key id").to_owned();
                TrackingHash::KeyedXxh3V1 { key, key_id }
            }
        };
        let block_size = u32::try_from(vector["block_size"].as_u64().expect("block size")).expect("u32");
        let scope = TrackingScope {
            model_name: vector["model_name"].as_str().expect("model"),
            routing_group: vector["routing_group"].as_str().expect("group"),
            block_size,
            is_eagle: prompt.is_eagle.unwrap_or(vector["worker_is_eagle"].as_bool().unwrap_or(false)),
            lora_name: prompt.lora_name.as_deref(),
            cache_salt: prompt.cache_salt.as_deref(),
        };
        if let (TrackingHash::KeyedXxh3V1 { key_id, .. }, Some(hex)) = (&algorithm, vector["blake3_input_hex"].as_str())
        {
            let mut bytes = String::new();
            keyed_input(key_id, &scope, &mut |part| part.iter().for_each(|b| bytes.push_str(&format!("{b:02x}"))));
            assert_eq!(bytes, hex, "{name}");
        }
        let seeds = TrackingSeeds::of(&algorithm, &scope);
        assert_eq!(Some(seeds.block), vector["block_seed"].as_u64(), "{name}");
        assert_eq!(Some(seeds.chain), vector["chain_seed"].as_u64(), "{name}");
        let view = token_view(&prompt).expect("tokens");
        let (mut locals, mut out) = (Vec::new(), Vec::new());
        tracking_hashes(view, block_size, scope.is_eagle, seeds, &mut locals, &mut out);
        assert_eq!(locals, numbers(&vector["block_hashes"]), "{name}");
        assert_eq!(out, numbers(&vector["sequence_hashes"]), "{name}");
    }
}

#[test]
fn incomplete_prompts_have_no_blocks() {
    let mut out = vec![1];
    block_hashes(&[1, 2, 3], 4, false, HASH_SEED, None, &mut out);
    assert!(out.is_empty());
    block_hashes(&[1, 2, 3], 0, false, HASH_SEED, None, &mut out);
    assert!(out.is_empty());
    block_hashes(&[], 4, true, HASH_SEED, None, &mut out);
    assert!(out.is_empty());
}

#[test]
fn stack_and_heap_assembly_agree() {
    let tokens: Vec<u32> = (0..2000).map(|t: u32| t.wrapping_mul(2_654_435_761)).collect();
    for block_size in [1, 7, 255, 256, 257, 1000] {
        let mut out = Vec::new();
        block_hashes(&tokens, block_size, false, HASH_SEED, None, &mut out);
        let expected: Vec<u64> = tokens
            .chunks_exact(block_size as usize)
            .map(|chunk| {
                let bytes: Vec<u8> = chunk.iter().flat_map(|t| t.to_le_bytes()).collect();
                xxh3_64_with_seed(&bytes, HASH_SEED)
            })
            .collect();
        assert_eq!(out, expected, "block size {block_size}");
    }
}
