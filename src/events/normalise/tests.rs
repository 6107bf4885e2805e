//! Rules of spec index 3.4 to 3.8, and the fixtures of real engines' shapes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    events::testing::{Prompt, Stream, TestTarget},
    selection::ingest::MAX_FOREIGN_RANKS,
};

const A: [u32; 4] = [100, 101, 102, 103];
const B: [u32; 4] = [200, 201, 202, 203];
const C: [u32; 4] = [300, 301, 302, 303];
const D: [u32; 4] = [400, 401, 402, 403];

fn tokens(blocks: &[[u32; 4]]) -> Vec<u32> {
    blocks.concat()
}

fn store(hashes: Value, parent: Value, tokens: &[u32], extra: Value) -> Value {
    let mut event = json!({"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
        "token_ids": tokens, "block_size": 4});
    event.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    event
}

fn salted<'a>(tokens: &'a [u32], salt: &'a str) -> Prompt<'a> {
    Prompt { tokens, salt: Some(salt), ..Prompt::default() }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The payloads of the live fixtures by id.
fn fixture(id: &str) -> Vec<u8> {
    let lines = include_str!("../../../tests/fixtures/kv-events.jsonl").lines();
    let case = lines.map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|case| case["id"] == id).unwrap();
    hex(case["frames_hex"][2].as_str().unwrap())
}

fn after(ids: &[&str]) -> Stream {
    let mut stream = Stream::new(4);
    for id in ids {
        stream.payload(&fixture(id));
    }
    stream
}

#[test]
fn every_encoding_of_two_blocks_credits_two() {
    for id in [
        "arr-min",
        "arr-lora-slot",
        "arr-medium",
        "arr-full-tail",
        "arr-extra-future",
        "map-new",
        "map-outer",
        "map-outer-norank",
    ] {
        let stream = after(&[id]);
        assert_eq!(stream.target.device(&tokens(&[A, B])), 2, "{id}");
        assert_eq!(stream.tally.count(Count::StoredBlocks), 2, "{id}");
    }
    for id in ["frame-topic-empty", "frame-topic-long", "remove-cpu-unknown"] {
        assert_eq!(after(&[id]).target.device(&A), 1, "{id}");
    }
}

#[test]
fn a_bad_event_leaves_its_neighbours() {
    for (id, reason) in [
        ("bad-then-good", DropReason::MissingField),
        ("self-parent", DropReason::RepeatedHash),
        ("dup-in-event", DropReason::RepeatedHash),
    ] {
        let stream = after(&[id]);
        assert_eq!(stream.target.device(&C), 1, "{id}");
        assert_eq!(stream.tally.dropped(reason), 1, "{id}");
        assert_eq!(stream.target.device(&A), 0, "{id}");
    }
    assert_eq!(after(&["cycle"]).target.device(&tokens(&[A, B])), 2);
    let stream = after(&["wrong-bs"]);
    assert_eq!(stream.tally.dropped(DropReason::BlockSize), 1);
    assert_eq!(stream.target.device(&[500, 501, 502, 503]), 1);
    assert_eq!(stream.target.device(&A), 0);
}

#[test]
fn tokens_that_do_not_fit_the_hashes_are_not_guessed_at() {
    let stream = after(&["tokens-too-many"]);
    assert_eq!(stream.target.device(&tokens(&[A, B, C])), 0);
    assert_eq!(stream.target.device(&D), 1);
    assert_eq!(stream.tally.dropped(DropReason::TokenCount), 1);
    let stream = after(&["tokens-too-few"]);
    assert_eq!(stream.target.device(&tokens(&[A, B])), 1, "the complete leading block");
    assert_eq!(stream.target.device(&D), 1);
    let stream = after(&["empty-hashes", "empty-batch", "tier-storage-hash-only"]);
    assert_eq!(stream.target.index.stats().names, 0);
    assert_eq!(stream.tally.count(Count::Batches), 3);

    let mut stream = Stream::new(4);
    stream.events(json!([store(json!([101]), json!(null), &[1, 2, 3, 4, 5, 6, 7], json!({}))]));
    assert_eq!(stream.target.device(&[1, 2, 3, 4]), 1, "a surplus of less than a block is the partial tail");
    stream.events(json!([store(json!([102]), json!(101), &[1, 2, 3], json!({}))]));
    assert_eq!(stream.tally.dropped(DropReason::NoBlock), 1);
}

#[test]
fn removals_skip_what_is_not_there() {
    let stream = after(&["map-new", "remove-unknown-then-known"]);
    assert_eq!(stream.target.device(&tokens(&[A, B])), 1);
    assert_eq!((stream.tally.count(Count::RemovedBlocks), stream.tally.count(Count::UnknownRemovals)), (1, 1));
    // Residency is a set: engines announce blocks again without a new copy, so copies are not counted.
    assert_eq!(after(&["dup-store-remove-once"]).target.device(&A), 0);
}

#[test]
fn a_clear_is_of_the_emitting_rank_and_of_every_tier() {
    for clear in ["cleared-arr", "cleared-map"] {
        let mut stream = after(&["map-new"]);
        stream.events(json!([store(json!([1]), json!(null), &A, json!({"medium": "CPU"}))]));
        let other = json!([store(json!([1001]), json!(null), &A, json!({}))]);
        stream.payload(&crate::events::testing::pack(&json!([1.5, other, 1])));
        let applied = stream.payload(&fixture(clear));
        assert!(applied.cleared);
        let held = |rank| stream.target.held(rank, &Prompt { tokens: &A, ..Prompt::default() });
        assert_eq!((held(0).device, held(0).host, held(1).device), (0, 0, 1), "{clear}");
    }
}

#[test]
fn unknown_media_and_foreign_blocks_are_dropped() {
    let stream = after(&["tier-unknown"]);
    assert_eq!((stream.target.device(&A), stream.tally.dropped(DropReason::Medium)), (0, 1));
    let mut stream = Stream::new(4);
    stream.events(json!([
        store(json!([1]), json!(null), &A, json!({"locality": "REMOTE"})),
        store(json!([1]), json!(null), &A, json!({"locality": "local"})),
        store(json!([1]), json!(null), &A, json!({"ownership": ""})),
        store(json!([1]), json!(null), &A, json!({"ownership": "kvcr", "locality": "REMOTE", "medium": "FS"})),
        ["Ignored"],
        store(json!([2]), json!(null), &B, json!({"locality": "LOCAL"})),
        {"type": "BlockRemoved", "block_hashes": [2], "locality": "REMOTE"},
        {"type": "BlockRemoved", "block_hashes": [2], "medium": "FS"},
        ["AllBlocksCleared", "kvcr"],
    ]));
    assert_eq!((stream.target.device(&A), stream.target.device(&B)), (0, 1));
    let dropped = |reason| stream.tally.dropped(reason);
    assert_eq!(
        [DropReason::Locality, DropReason::Ownership, DropReason::Medium, DropReason::Ignored].map(dropped),
        [3, 3, 1, 1]
    );
}

#[test]
fn batches_name_the_rank() {
    for (id, rank) in [("rank-1-on-rank-0-port", 1), ("rank-unregistered", 7), ("rank-negative", u32::MAX)] {
        let stream = after(&[id]);
        let prompt = Prompt { tokens: &A, ..Prompt::default() };
        assert_eq!((stream.target.held(rank, &prompt).device, stream.target.device(&A)), (1, 0), "{id}");
    }
    let mut stream = Stream::new(4);
    for rank in 0..MAX_FOREIGN_RANKS + 10 {
        let batch = json!([1.5, [["AllBlocksCleared"]], rank]);
        stream.payload(&crate::events::testing::pack(&batch));
    }
    // Rank 0 is registered, and counts apart.
    assert_eq!(stream.tally.dropped(DropReason::TooManyRanks), 9);
}

#[test]
fn the_registered_rank_has_its_place_whatever_others_a_batch_named_before() {
    let mut stream = Stream::new(4);
    for rank in 1..=2 * MAX_FOREIGN_RANKS {
        stream.payload(&crate::events::testing::pack(&json!([1.5, [["AllBlocksCleared"]], rank])));
    }
    assert!(stream.tally.dropped(DropReason::TooManyRanks) > 0);
    stream.events(json!([store(json!([1]), json!(null), &A, json!({}))]));
    assert_eq!(stream.target.device(&A), 1);
    let applied = stream.payload(&crate::events::testing::pack(&json!([1.5, [["AllBlocksCleared"]], 0])));
    assert_eq!((stream.target.device(&A), applied.cleared), (0, true));
}

#[test]
fn a_rank_that_nobody_registered_and_that_finds_no_room_says_nothing_of_the_registered_one() {
    for (refused, dropped, lost) in [(7, DropReason::TooManyRanks, false), (0, DropReason::IndexFull, true)] {
        let mut stream = Stream::new(4);
        stream.target = Arc::new(TestTarget { refused: Some(refused), ..TestTarget::new(4) });
        let events = [store(json!([1]), json!(null), &A, json!({}))];
        let applied = stream.payload(&crate::events::testing::pack(&json!([1.5, events, refused])));
        assert_eq!((applied.lost, stream.tally.dropped(dropped)), (lost, 1), "rank {refused}");
    }
}

#[test]
fn kinds_of_groups_are_remembered_up_to_a_limit() {
    let mut stream = Stream::new(4);
    let named = |group: u32, kind: Value| {
        store(json!([group + 1]), json!(null), &A, json!({"group_idx": group, "kv_cache_spec_kind": kind}))
    };
    for group in 0..1_100 {
        stream.events(json!([named(group, json!("full_attention"))]));
    }
    let dropped = |stream: &Stream| stream.tally.dropped(DropReason::AttentionGroup);
    assert_eq!(dropped(&stream), 0);
    stream.events(json!([named(1_023, json!(null)), named(1_024, json!(null))]));
    assert_eq!(dropped(&stream), 1, "the last of 1,024, and one too many");
    stream.events(json!([named(7, json!("sliding_window")), named(7, json!(null))]));
    assert_eq!(dropped(&stream), 3, "what is remembered may still change");
}

#[test]
fn only_the_main_attention_group_is_indexed() {
    let group = |group: Value, kind: Value| json!({"group_idx": group, "kv_cache_spec_kind": kind});
    let mut stream = Stream::new(4);
    stream.events(json!([
        store(json!([1]), json!(null), &A, group(json!(0), json!("mla_attention"))),
        store(json!([2]), json!(null), &B, group(json!(1), json!("sliding_window"))),
        store(json!([3]), json!(null), &C, group(json!(2), json!("brand_new"))),
        store(json!([4]), json!(null), &D, group(json!(3), json!(null))),
    ]));
    let held = |stream: &Stream| [A, B, C, D].map(|block| stream.target.device(&block));
    assert_eq!(held(&stream), [1, 0, 0, 0], "group 3 is unexplained");
    assert_eq!(stream.tally.dropped(DropReason::AttentionGroup), 3);
    stream.events(json!([
        {"type": "BlockRemoved", "block_hashes": [1], "group_idx": 1},
        {"type": "BlockRemoved", "block_hashes": [4], "group_idx": 3, "kv_cache_spec_kind": "full_attention"},
        store(json!([4]), json!(null), &D, group(json!(3), json!(null))),
    ]));
    assert_eq!(held(&stream), [1, 0, 0, 0], "a removal teaches nothing");
    stream.events(json!([
        store(json!([5]), json!(null), &[9, 9, 9, 9], group(json!(3), json!("full_attention"))),
        store(json!([4]), json!(null), &D, group(json!(3), json!(null))),
        store(json!([2]), json!(null), &B, {
            let mut disk = group(json!(1), json!("sliding_window"));
            disk["medium"] = json!("DISK");
            disk
        }),
        store(json!([3]), json!(null), &C, group(json!(null), json!(null))),
    ]));
    assert_eq!(held(&stream), [1, 0, 1, 1]);
    assert_eq!(stream.target.held(0, &Prompt { tokens: &B, ..Prompt::default() }).disk, 1, "disk is not filtered");
    // What was learned outlives everything but a publisher restart.
    stream.events(json!([["AllBlocksCleared"], store(json!([4]), json!(null), &D, group(json!(3), json!(null)))]));
    assert_eq!(held(&stream), [0, 0, 0, 1]);
    stream.memories.forget();
    stream.events(json!([["AllBlocksCleared"], store(json!([4]), json!(null), &D, group(json!(3), json!(null)))]));
    assert_eq!(held(&stream), [0, 0, 0, 0]);
}

#[test]
fn salts_separate_tenants_and_pass_to_children() {
    let stream = after(&["sgl-salt-map"]);
    assert_eq!(stream.target.device(&A), 0);
    assert_eq!(stream.target.held(0, &salted(&A, "tenant-a")).device, 1);

    let mut stream = Stream::new(4);
    stream.events(json!([store(json!([1]), json!(null), &A, json!({"cache_salt": "a"}))]));
    stream.events(json!([store(json!([2]), json!(1), &B, json!({}))]));
    stream.events(json!([store(json!([3]), json!(2), &C, json!({"medium": "CPU"}))]));
    stream.events(json!([store(json!([4]), json!(2), &D, json!({"medium": "DISK"}))]));
    let all = tokens(&[A, B, C]);
    let held = stream.target.held(0, &salted(&all, "a"));
    assert_eq!((held.device, held.host), (2, 1));
    assert_eq!(stream.target.held(0, &salted(&tokens(&[A, B, D]), "a")).disk, 0, "disk children lose the salt");
    assert_eq!(stream.target.device(&all), 0);
    assert_eq!(stream.target.held(0, &salted(&all, "b")).device, 0);
}

#[test]
fn blocks_of_two_salts_pass_none_on() {
    let mut stream = Stream::new(4);
    stream.events(json!([
        store(json!([1]), json!(null), &A, json!({"cache_salt": "a"})),
        store(json!([1]), json!(null), &A, json!({"cache_salt": "b"})),
        store(json!([2]), json!(1), &B, json!({})),
    ]));
    assert_eq!(stream.tally.dropped(DropReason::AmbiguousSalt), 1);
    stream.events(json!([
        store(json!([5]), json!(null), &C, json!({"cache_salt": "a"})),
        store(json!([5]), json!(null), &C, json!({})),
        store(json!([6]), json!(5), &D, json!({})),
        {"type": "BlockRemoved", "block_hashes": [5]},
        store(json!([6]), json!(5), &D, json!({})),
    ]));
    assert_eq!(stream.tally.dropped(DropReason::AmbiguousSalt), 3, "removals do not settle it");
    stream.events(json!([["AllBlocksCleared"], store(json!([6]), json!(null), &D, json!({}))]));
    assert_eq!(stream.target.device(&D), 1);
}

#[test]
fn a_removed_salted_block_is_forgotten_when_no_tier_holds_it() {
    let mut stream = Stream::new(4);
    let chain = tokens(&[A, B]);
    stream.events(json!([
        store(json!([1]), json!(null), &A, json!({"cache_salt": "a"})),
        store(json!([1]), json!(null), &A, json!({"cache_salt": "a", "medium": "CPU"})),
        {"type": "BlockRemoved", "block_hashes": [1]},
        store(json!([2]), json!(1), &B, json!({"medium": "CPU"})),
    ]));
    assert_eq!(stream.target.held(0, &salted(&chain, "a")).host, 2, "the host copy still tells the salt");
    stream.events(json!([
        {"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "CPU"},
        store(json!([1]), json!(null), &A, json!({})),
        store(json!([2]), json!(1), &B, json!({})),
    ]));
    assert_eq!(stream.target.device(&chain), 2);
    assert_eq!(stream.tally.dropped(DropReason::AmbiguousSalt), 0);
}

#[test]
fn a_removal_from_disk_does_not_forget_a_salt() {
    let mut stream = Stream::new(4);
    stream.events(json!([
        store(json!([1]), json!(null), &A, json!({"cache_salt": "a"})),
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "DISK"},
        store(json!([1]), json!(null), &A, json!({})),
        store(json!([2]), json!(1), &B, json!({})),
    ]));
    assert_eq!(stream.tally.dropped(DropReason::AmbiguousSalt), 1, "whose child it is cannot be told");
    assert_eq!(stream.target.device(&tokens(&[A, B])), 1);
}

#[test]
fn adapters_pairs_and_multimodal_blocks_hash_as_requests_do() {
    let mut stream = Stream::new(4);
    stream.events(json!([
        store(json!([1]), json!(null), &A, json!({"lora_name": "adapter-a", "lora_id": 3})),
        store(json!([2]), json!(null), &B, json!({"lora_name": ""})),
        {"type": "BlockStored", "block_hashes": [3, 4], "block_size": 4,
            "token_ids": [[1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 8], [8, 9]]},
    ]));
    let adapter = Prompt { tokens: &A, lora: Some("adapter-a"), ..Prompt::default() };
    assert_eq!((stream.target.held(0, &adapter).device, stream.target.device(&A)), (1, 0));
    assert_eq!(stream.target.device(&B), 1);
    let eagle = Prompt { tokens: &[1, 2, 3, 4, 5, 6, 7, 8, 9], eagle: true, ..Prompt::default() };
    assert_eq!(stream.target.held(0, &eagle).device, 2);

    let infos = json!([{"mm_objects": [{"mm_hash": 9, "offsets": [[0, 2]]}, {"mm_hash": 3, "offsets": []}]}, null]);
    stream.events(json!([store(json!([7]), json!(null), &[1, 2, 3, 4], json!({"block_mm_infos": infos}))]));
    let mut locals = Vec::new();
    stream.target.index.export(&mut |run| locals.extend(run.blocks.iter().filter(|b| b.name == 7).map(|b| b.local)));
    assert_eq!(locals, [8340657703143021008], "recorded from the reference");
}
