//! The encodings of engines, and what must not be accepted.

use serde_json::{Value, json};

use super::*;
use crate::{events::testing::pack, selection::Tier};

fn decode(value: &Value) -> (Batch, Vec<u8>) {
    let payload = pack(value);
    let mut batch = Batch::default();
    batch.decode(&payload).unwrap_or_else(|error| panic!("{value}: {error}"));
    (batch, payload)
}

/// The only event of a batch that holds it alone.
fn one(event: Value) -> (Batch, Vec<u8>, Event) {
    let (batch, payload) = decode(&json!([1.5, [event], 0]));
    let [event] = batch.events() else { panic!("{batch:?}") };
    let event = *event;
    (batch, payload, event)
}

fn one_stored(event: Value) -> (Batch, Vec<u8>, Stored) {
    match one(event) {
        (batch, payload, Event::Stored(stored)) => (batch, payload, stored),
        (_, _, other) => panic!("{other:?}"),
    }
}

fn rejection(event: Value) -> Reject {
    let (batch, _) = decode(&json!([1.5, [event.clone(), ["AllBlocksCleared"]], 0]));
    assert_eq!(batch.events(), [Event::Cleared(Cleared { owned: false })], "the neighbour of {event}");
    let reasons: Vec<_> = Reject::ALL.into_iter().filter(|&reject| batch.rejected(reject) > 0).collect();
    assert_eq!(reasons.len(), 1, "{event}: {reasons:?}");
    reasons[0]
}

fn map_store(extra: Value) -> Value {
    let mut event = json!({"type": "BlockStored", "block_hashes": [101, 102], "parent_block_hash": null,
        "token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "block_size": 4, "lora_id": null, "medium": "GPU", "lora_name": null});
    event.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    event
}

#[test]
fn batches_of_every_shape_decode() {
    let event = json!(["BlockRemoved", [7]]);
    for (batch, rank) in [
        (json!([1.5, [event]]), None),
        (json!([1, [event], null]), None),
        (json!([1.5, [event], 3]), Some(3)),
        (json!([1.5, [event], -1]), Some(u32::MAX)),
        (json!([null, [event], 2, {"extra": 1}, "more"]), Some(2)),
        (json!({"ts": 1.5, "events": [event]}), None),
        (json!({"data_parallel_rank": 4, "events": [event], "ts": 1.5, "new": {}}), Some(4)),
        (json!({"events": [event], "attn_dp_rank": 5, "data_parallel_rank": null}), Some(5)),
    ] {
        let (decoded, _) = decode(&batch);
        assert_eq!(decoded.rank(), rank, "{batch}");
        let [Event::Removed(removed)] = decoded.events() else { panic!("{batch}") };
        assert_eq!(decoded.hashes(removed.hashes), [7]);
    }
}

#[test]
fn batches_that_are_none_are_refused_whole() {
    let event = json!(["BlockRemoved", [7]]);
    for (batch, error) in [
        (json!([1.5]), DecodeError::NotABatch),
        (json!("x"), DecodeError::NotABatch),
        (json!({"ts": 1.5}), DecodeError::NotABatch),
        (json!([1.5, 7, 0]), DecodeError::NoEvents),
        (json!({"events": null}), DecodeError::NoEvents),
        (json!([1.5, [event], "0"]), DecodeError::BadRank),
        (json!([1.5, [event], 0.5]), DecodeError::BadRank),
        (json!([1.5, [event], 4294967295u64]), DecodeError::BadRank),
    ] {
        let mut decoded = Batch::default();
        assert_eq!(decoded.decode(&pack(&batch)), Err(error), "{batch}");
        assert!(decoded.events().is_empty(), "{batch}");
    }
    let whole = pack(&json!([1.5, [map_store(json!({}))], 0]));
    for cut in 0..whole.len() {
        assert!(Batch::default().decode(&whole[..cut]).is_err(), "cut at {cut}");
    }
    assert_eq!(Batch::default().decode(&[0xc1]), Err(DecodeError::NotMsgpack));
    let mut trailing = whole;
    trailing.extend([0xc1, 0xff]);
    assert_eq!(Batch::default().decode(&trailing), Ok(()));
}

#[test]
fn array_events_of_every_length_decode() {
    let whole = json!(["BlockStored", [101, 102], 100, [1, 2, 3, 4, 5, 6, 7, 8], 4, 7, "CPU", "adapter", [null, null],
        3, "mla_attention", 128, "REMOTE", "kvcr", "later", {"more": 1}]);
    for len in 5..=whole.as_array().unwrap().len() {
        let (batch, payload, stored) = one_stored(json!(whole.as_array().unwrap()[..len]));
        assert_eq!(batch.hashes(stored.hashes), [101, 102]);
        assert_eq!(stored.parent, Some(100));
        assert_eq!(batch.tokens(stored.tokens), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((stored.block_size, stored.eagle), (4, false));
        let origin = stored.origin;
        let tier = if len > 6 { Tier::HostPinned } else { Tier::Device };
        assert_eq!(origin.medium, Medium::Tier(tier), "{len}");
        assert_eq!(stored.lora(&payload), (len > 7).then_some("adapter"), "{len}");
        assert_eq!(origin.group, (len > 9).then_some(3), "{len}");
        assert_eq!(origin.attention, (len > 10).then_some(Attention::Main), "{len}");
        assert_eq!((origin.local, origin.owned), (len <= 12, len > 13), "{len}");
    }
}

#[test]
fn old_trailing_positions_are_told_by_type() {
    let store = |tail: Value| {
        let mut event = json!(["BlockStored", [101], null, [1, 2, 3, 4], 4, null, "GPU", null, null]);
        event.as_array_mut().unwrap().extend(tail.as_array().unwrap().clone());
        let (batch, _, stored) = one_stored(event);
        (stored.origin.group, stored.origin.attention, stored.origin.local, batch.mm(stored.mm).to_vec())
    };
    assert_eq!(store(json!([1])), (Some(1), None, true, vec![]));
    assert_eq!(store(json!(["mamba"])), (None, Some(Attention::Other), true, vec![]));
    assert_eq!(store(json!(["full_attention", 2])), (Some(2), Some(Attention::Main), true, vec![]));
    let infos = json!([{"mm_objects": [{"mm_hash": 9, "offsets": []}]}]);
    assert_eq!(store(json!([infos])), (None, None, true, vec![MmHash { block: 0, hash: 9 }]));
    // A value of another type among four or more: none of them is locality or ownership.
    let (group, attention, local, _) = store(json!([0, "full_attention", null, {"future": 1}, "x", 9]));
    assert_eq!((group, attention, local), (Some(0), Some(Attention::Main), true));
    assert!(!store(json!([0, "full_attention", null, "REMOTE"])).2);

    let (_, _, event) = one(json!(["BlockRemoved", [7], "DISK", 2, "sliding_window", null, "LOCAL", null]));
    let Event::Removed(removed) = event else { panic!() };
    let Origin { medium, group, attention, local, owned } = removed.origin;
    assert_eq!((medium, group), (Medium::Tier(Tier::Disk), Some(2)));
    assert_eq!((attention, local, owned), (Some(Attention::Other), true, false));
}

#[test]
fn maps_decode_in_any_order_and_ignore_what_is_new() {
    let event = json!({"zzz": {"deep": [[[1]]]}, "token_ids": [1, 2, 3, 4], "lora_id": -5, "block_hashes": [-1],
        "a_first_key": [], "block_size": 4, "type": "BlockStored", "session_id": "s", "lookahead_token_ids": [9],
        "group_idx": 1, "kv_cache_spec_kind": "cross_attention", "locality": "LOCAL", "ownership": null});
    let (batch, _, stored) = one_stored(event);
    assert_eq!(batch.hashes(stored.hashes), [u64::MAX]);
    assert_eq!(stored.origin.attention, Some(Attention::Other));
    assert_eq!((stored.origin.local, stored.origin.owned), (true, false));
    let (_, _, event) = one(json!({"block_hashes": [7], "type": "BlockRemoved", "token_ids": "unused here"}));
    assert!(matches!(event, Event::Removed(_)));
    assert_eq!(one(json!({"type": "AllBlocksCleared"})).2, Event::Cleared(Cleared { owned: false }));
    assert_eq!(one(json!(["AllBlocksCleared", "kvcr"])).2, Event::Cleared(Cleared { owned: true }));
    assert_eq!(one(json!({"type": "Ignored", "block_hashes": 3})).2, Event::Ignored);
}

#[test]
fn one_bad_event_costs_itself_only() {
    for (event, reject) in [
        (json!(null), Reject::NotAnEvent),
        (json!([]), Reject::NotAnEvent),
        (json!({}), Reject::NotAnEvent),
        (json!([7, [1]]), Reject::NotAnEvent),
        (json!({"type": 3}), Reject::NotAnEvent),
        (json!(["BlockPinned", [1], {"a": [1, 2]}]), Reject::UnknownType),
        (json!(["blockstored", [101], null, [1, 2, 3, 4], 4]), Reject::UnknownType),
        (json!(["BlockStored", [101]]), Reject::MissingField),
        (json!(["BlockStored", [101], null, [1, 2, 3, 4]]), Reject::MissingField),
        (json!({"type": "BlockStored", "block_hashes": [1]}), Reject::MissingField),
        (json!(["BlockRemoved"]), Reject::MissingField),
        (json!(["BlockStored", [101], null, [1, 2, 3, 4], 4, -1]), Reject::BadField),
        (json!(["BlockStored", [101], null, [1, 2, 3, 4], 4, "x"]), Reject::BadField),
        (json!(["BlockStored", [101], null, [-1, 2, 3, 4], 4]), Reject::BadField),
        (json!(["BlockStored", [101], null, [4294967296u64, 2, 3, 4], 4]), Reject::BadField),
        (json!(["BlockStored", [101], null, [1, [2, 3]], 4]), Reject::BadField),
        (json!(["BlockStored", [101], null, [[1, 2], 3], 4]), Reject::BadField),
        (json!(["BlockStored", [101], null, [[1, 2, 3]], 4]), Reject::BadField),
        (json!(["BlockStored", ["a"], null, [1, 2, 3, 4], 4]), Reject::BadField),
        (json!(["BlockStored", [1.5], null, [1, 2, 3, 4], 4]), Reject::BadField),
        (json!(["BlockStored", [101], "x", [1, 2, 3, 4], 4]), Reject::BadField),
        (json!(["BlockStored", [101], null, [1, 2, 3, 4], -4]), Reject::BadField),
        (json!(["BlockStored", [101], null, [1, 2, 3, 4], 4, null, 6]), Reject::BadField),
        (json!(["BlockStored", [101], null, ["a", 2, 3, 4], 4]), Reject::TextTokens),
        (json!(["BlockStored", [101], null, [1, 2, "<image>", 4], 4]), Reject::TextTokens),
        (map_store(json!({"group_idx": -1})), Reject::BadField),
        (map_store(json!({"cache_salt": 5})), Reject::BadField),
        (map_store(json!({"extra_keys": "salt"})), Reject::BadField),
        (map_store(json!({"extra_keys": [7]})), Reject::BadField),
        (map_store(json!({"block_mm_infos": [{"mm_objects": [{"mm_hash": 3}]}]})), Reject::BadField),
        (json!({"type": "BlockRemoved", "block_hashes": [7], "medium": 3}), Reject::BadField),
    ] {
        assert_eq!(rejection(event.clone()), reject, "{event}");
    }
    // An empty array takes nothing from what follows it.
    let (batch, _) = decode(&json!([1.5, [[], "BlockRemoved", ["BlockRemoved", [7]]]]));
    assert_eq!((batch.events().len(), batch.rejected(Reject::NotAnEvent)), (1, 2));
}

#[test]
fn salts_are_found_wherever_engines_put_them() {
    let salt = |event: Value| {
        let (_, payload, stored) = one_stored(event);
        stored.salt(&payload).map(str::to_owned)
    };
    let array = |slot: Value| json!(["BlockStored", [101], null, [1, 2, 3, 4], 4, null, "GPU", slot]);
    let t = Some("t".to_owned());
    assert_eq!(salt(map_store(json!({"cache_salt": "t"}))), t);
    assert_eq!(salt(map_store(json!({"cache_salt": ""}))), None);
    assert_eq!(salt(map_store(json!({"metadata": {"session_id": "s", "cache_salt": "t"}}))), t);
    assert_eq!(salt(array(json!({"cache_salt": "t", "session_id": "s1"}))), t);
    assert_eq!(salt(array(json!({"session_id": "s1"}))), None);
    assert_eq!(salt(array(json!("adapter"))), None);
    assert_eq!(salt(map_store(json!({"extra_keys": [["x", "dynamo-cache-salt:t"], null]}))), t);
    assert_eq!(salt(map_store(json!({"extra_keys": [["dynamo-cache-salt:"], null]}))), None);
    assert_eq!(salt(map_store(json!({"extra_keys": [null, ["dynamo-cache-salt:t"]]}))), None);
    // The adapter's own name among the keys is not taken for a salt, once.
    let odd = json!({"lora_name": "dynamo-cache-salt:a",
        "extra_keys": [["dynamo-cache-salt:a", "dynamo-cache-salt:t"], null]});
    assert_eq!(salt(map_store(odd)), t);
    let first_wins =
        json!({"cache_salt": "t", "metadata": {"cache_salt": "u"}, "extra_keys": [["dynamo-cache-salt:v"]]});
    assert_eq!(salt(map_store(first_wins)), t);
}

#[test]
fn multimodal_hashes_come_from_infos_or_marked_keys() {
    let mm = |extra: Value| {
        let (batch, _, stored) = one_stored(map_store(extra));
        batch.mm(stored.mm).iter().map(|object| (object.block, object.hash)).collect::<Vec<_>>()
    };
    let marker = format!("{:016X}{}", 0xabcdu64, "0".repeat(48));
    let native = "ab".repeat(32);
    assert_eq!(
        mm(json!({"extra_keys": [[marker, native, 5, true], [[marker, 3], [native, 1], [marker]]]})),
        [(0, 0xabcd), (1, 0xabcd)]
    );
    let infos = json!([null, {"mm_objects": [{"mm_hash": 9, "offsets": [[0, 2]]}, {"offsets": [], "mm_hash": 3}]}]);
    assert_eq!(mm(json!({"block_mm_infos": infos, "extra_keys": [[marker], null]})), [(1, 9), (1, 3)]);
    assert_eq!(mm(json!({"block_mm_infos": null, "extra_keys": [[marker], null]})), [(0, 0xabcd)]);
}

#[test]
fn pairs_unfold_to_tokens_and_one_look_ahead() {
    let pairs = json!(["BlockStored", [101, 102], null, [[1, 2], [2, 3], [3, 4], [4, 9]], 2]);
    let (batch, _, stored) = one_stored(pairs);
    assert!(stored.eagle);
    assert_eq!(batch.tokens(stored.tokens), [1, 2, 3, 4, 9]);
}

#[test]
fn hostile_sizes_neither_allocate_nor_recurse() {
    // [1, [[ "BlockStored", <array of 2^32-1> ...
    let mut lie = vec![0x92, 0x01, 0x91, 0x95, 0xab];
    lie.extend(b"BlockStored");
    lie.extend([0xdd, 0xff, 0xff, 0xff, 0xff, 0x01]);
    let mut batch = Batch::default();
    assert_eq!(batch.decode(&lie), Err(DecodeError::Truncated));
    assert!(batch.hashes.capacity() < 1024);

    let mut deep = vec![0x92, 0x01, 0x92];
    deep.extend(std::iter::repeat_n(0x91, 1 << 20));
    deep.push(0xc0);
    deep.extend(pack(&json!(["BlockRemoved", [7]])));
    batch.decode(&deep).unwrap();
    assert_eq!((batch.events().len(), batch.rejected(Reject::NotAnEvent)), (1, 1));

    let many = pack(&json!([1.5, vec![json!(["Ignored"]); MAX_EVENTS + 3], 0]));
    batch.decode(&many).unwrap();
    assert_eq!((batch.events().len(), batch.rejected(Reject::TooMany)), (MAX_EVENTS, 3));

    let mut hashes = vec![0x92, 0x01, 0x91, 0x92, 0xac];
    hashes.extend(b"BlockRemoved");
    hashes.push(0xdd);
    hashes.extend((MAX_HASHES as u32 + 1).to_be_bytes());
    hashes.extend(std::iter::repeat_n(0x01, MAX_HASHES + 1));
    batch.decode(&hashes).unwrap();
    assert_eq!((batch.events().len(), batch.rejected(Reject::TooMany)), (0, 1));
}

#[test]
fn batches_encoded_by_the_engines_own_structs_decode() {
    let vllm = "93cb3ff800000000000093de000aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfffffffffffffffff\
        b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d6564\
        69756da3475055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474\
        656e74696f6e83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d656469756da347505581a474797065\
        b0416c6c426c6f636b73436c656172656400";
    let sglang = "93cb3ff80000000000009288a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391fdb1706172656e745f626c\
        6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055aa6361\
        6368655f73616c74a2743183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391fda66d656469756daa4350555f\
        50494e4e454400";
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let mut batch = Batch::default();
    batch.decode(&bytes(vllm)).unwrap();
    assert_eq!(batch.rank(), Some(0));
    let [Event::Stored(stored), Event::Removed(removed), Event::Cleared(_)] = batch.events() else {
        panic!("{batch:?}")
    };
    assert_eq!((batch.hashes(stored.hashes), batch.hashes(removed.hashes)), (&[u64::MAX][..], &[7][..]));
    assert_eq!((stored.origin.group, stored.origin.attention), (Some(0), Some(Attention::Main)));

    let payload = bytes(sglang);
    batch.decode(&payload).unwrap();
    let [Event::Stored(stored), Event::Removed(removed)] = batch.events() else { panic!("{batch:?}") };
    assert_eq!(stored.salt(&payload), Some("t1"));
    assert_eq!(batch.hashes(stored.hashes), [-3i64 as u64]);
    assert_eq!(removed.origin.medium, Medium::Tier(Tier::HostPinned));
}
