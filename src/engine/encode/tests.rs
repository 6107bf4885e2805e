//! Every encoding, read back by the decoder of events.

use super::*;
use crate::events::decode::{Batch, Event, Medium as Where};
use crate::selection::identity::Tier;

fn encoder(encoding: Encoding) -> Encoder {
    Encoder { encoding, byte_hashes: false, block_size: 2 }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn stored(hashes: &[u64], tokens: &[u32], namespace: Namespace) -> KvEvent {
    KvEvent::Stored { hashes: hashes.to_vec(), parent: None, tokens: tokens.to_vec(), namespace, medium: Medium::Gpu }
}

/// The payload that vLLM 0.33's own encoder makes of the same events.
#[test]
fn vllm_maps_are_byte_for_byte_those_of_vllm() {
    let events = [
        stored(&[u64::MAX], &[1, 2], Namespace::default()),
        KvEvent::Removed { hashes: vec![7], medium: Medium::Gpu },
        KvEvent::Cleared,
    ];
    let expected = "93cb3ff800000000000093de000aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfffffff\
                    ffffffffffb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502\
                    a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f636163\
                    68655f737065635f6b696e64ae66756c6c5f617474656e74696f6e83a474797065ac426c6f636b52656d6f766564ac626c\
                    6f636b5f6861736865739107a66d656469756da347505581a474797065b0416c6c426c6f636b73436c656172656400";
    assert_eq!(hex(&encoder(Encoding::VllmMap).batch(1.5, &events, Some(0))), expected);
}

/// The payload that SGLang 0.5.23's own encoder makes of the same events.
#[test]
fn sglang_maps_are_byte_for_byte_those_of_sglang() {
    let salted = Namespace { cache_salt: Some("t1".into()), ..Namespace::default() };
    let minus_three = (-3i64).cast_unsigned();
    let events =
        [stored(&[minus_three], &[1, 2], salted), KvEvent::Removed { hashes: vec![minus_three], medium: Medium::Host }];
    let expected = "93cb3ff80000000000009288a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391fdb170617265\
                    6e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a6\
                    6d656469756da3475055aa63616368655f73616c74a2743183a474797065ac426c6f636b52656d6f766564ac626c6f636b\
                    5f68617368657391fda66d656469756daa4350555f50494e4e454400";
    assert_eq!(hex(&encoder(Encoding::Sglang).batch(1.5, &events, Some(0))), expected);
}

/// The recorded payload of TensorRT-LLM's publisher (golden case w11).
#[test]
fn trtllm_maps_are_byte_for_byte_those_recorded() {
    let encoder = Encoder { block_size: 4, ..encoder(Encoding::Trtllm) };
    let event = stored(&[u64::MAX, 1 << 63], &[1, 2, 3, 4, 5, 6, 7, 8], Namespace::default());
    let expected = "93cb3ff80000000000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392ffd380000000\
                    00000000b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f\
                    73697a6504a76c6f72615f6964c000";
    assert_eq!(hex(&encoder.batch(1.5, &[event], Some(0))), expected);
}

/// The array form of vLLM up to 0.23, all fields of its class.
#[test]
fn vllm_arrays_have_their_fields_in_order() {
    let events = [
        stored(&[1001, 1002], &[100, 101, 200, 201], Namespace::default()),
        KvEvent::Removed { hashes: vec![1001], medium: Medium::Gpu },
        KvEvent::Cleared,
    ];
    let expected = "93cb3ff80000000000009398ab426c6f636b53746f72656492cd03e9cd03eac0946465ccc8ccc902c0a3475055c093ac42\
                    6c6f636b52656d6f76656491cd03e9a347505591b0416c6c426c6f636b73436c6561726564c0";
    assert_eq!(hex(&encoder(Encoding::VllmArray).batch(1.5, &events, None)), expected);
}

/// Whatever the encoding, our own decoder finds the same blocks, names and namespaces in it.
#[test]
fn every_encoding_is_decoded_to_the_same_events() {
    let tenant = Namespace { lora_name: Some("adapter".into()), cache_salt: Some("dynamo-cache-salt:t".into()) };
    let hashes = [u64::MAX - 4, 17, 1 << 40];
    let events = [
        stored(&hashes, &[1, 2, 3, 4, 5, 6], tenant),
        KvEvent::Removed { hashes: hashes[1..].to_vec(), medium: Medium::Gpu },
        KvEvent::Cleared,
    ];
    for encoding in [Encoding::VllmMap, Encoding::VllmArray, Encoding::Sglang, Encoding::Trtllm] {
        for byte_hashes in [false, true] {
            let payload = Encoder { byte_hashes, ..encoder(encoding) }.batch(2.0, &events, Some(3));
            let mut batch = Batch::default();
            batch.decode(&payload).unwrap();
            let (mut names, mut tokens, mut gone, mut cleared) = (vec![], vec![], vec![], false);
            let mut before = None;
            for event in batch.events() {
                match event {
                    Event::Stored(event) => {
                        assert_eq!(event.parent, before, "{encoding:?}");
                        names.extend_from_slice(batch.hashes(event.hashes));
                        before = names.last().copied();
                        tokens.extend_from_slice(batch.tokens(event.tokens));
                        assert_eq!(event.block_size, 2);
                        assert_eq!(event.lora(&payload), (encoding != Encoding::Sglang).then_some("adapter"));
                        let salt = if matches!(encoding, Encoding::Sglang | Encoding::Trtllm) {
                            "dynamo-cache-salt:t"
                        } else {
                            "t"
                        };
                        assert_eq!(event.salt(&payload), Some(salt), "{encoding:?}");
                    }
                    Event::Removed(event) => gone.extend_from_slice(batch.hashes(event.hashes)),
                    Event::Cleared(_) => cleared = true,
                    Event::Ignored => panic!("nothing is ignored"),
                }
            }
            assert_eq!(batch.rank(), Some(3), "{encoding:?}");
            assert_eq!((names, tokens), (hashes.to_vec(), (1..=6).collect()), "{encoding:?}");
            assert_eq!((gone, cleared), (hashes[1..].to_vec(), true), "{encoding:?}");
        }
    }
}

/// vLLM tells a move to host memory without tokens; SGLang tells the whole block.
#[test]
fn host_copies_look_like_each_engines() {
    let event = KvEvent::Stored {
        hashes: vec![9],
        parent: Some(8),
        tokens: vec![1, 2],
        namespace: Namespace::default(),
        medium: Medium::Host,
    };
    for (encoding, tokens, block_size) in [(Encoding::VllmMap, 0, 0), (Encoding::Sglang, 2, 2)] {
        let payload = encoder(encoding).batch(2.0, std::slice::from_ref(&event), None);
        let mut batch = Batch::default();
        batch.decode(&payload).unwrap();
        let [Event::Stored(event)] = batch.events() else { panic!("{encoding:?}: {:?}", batch.events()) };
        assert_eq!((batch.tokens(event.tokens).len(), event.block_size), (tokens, block_size), "{encoding:?}");
        assert_eq!(event.origin.medium, Where::Tier(Tier::HostPinned));
    }
}
