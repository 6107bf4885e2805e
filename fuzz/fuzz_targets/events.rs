//! Event batches: decoding, and applying to a target that checks what it is given. The input is a stream of batches,
//! each after its length (16 bits, big endian), so that what one batch teaches meets the next.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use pointsman::{
    events::{
        counts::Tally,
        decode::{Batch, Event},
        normalise::{Buffers, EventTarget, RankMemories, apply},
    },
    selection::{
        Tier,
        index::{RemoveOutcome, StoreOutcome, StoredBlock},
        ingest::Trust,
    },
};

struct Checked;

impl EventTarget for Checked {
    fn block_size(&self) -> u32 {
        4
    }

    fn registered_rank(&self) -> u32 {
        0
    }

    fn store(&self, _: u32, _: Tier, parent: Option<u64>, blocks: &[StoredBlock]) -> StoreOutcome {
        assert!(!blocks.is_empty());
        let names: HashSet<u64> = blocks.iter().map(|block| block.name).chain(parent).collect();
        assert_eq!(names.len(), blocks.len() + usize::from(parent.is_some()), "a name twice");
        StoreOutcome::Applied
    }

    fn remove(&self, _: u32, _: Tier, names: &[u64]) -> RemoveOutcome {
        RemoveOutcome { removed: 0, unknown: names.len() }
    }

    fn clear(&self, _: u32) {}

    fn reset(&self) {}

    fn set_trust(&self, _: Trust) {}
}

fuzz_target!(|data: &[u8]| {
    let (mut batch, mut again) = (Batch::default(), Batch::default());
    let (mut memories, mut buffers, mut tally) = (RankMemories::default(), Buffers::default(), Tally::default());
    let mut rest = data;
    while let Some((head, tail)) = rest.split_at_checked(2) {
        let len = usize::from(u16::from_be_bytes([head[0], head[1]])).min(tail.len());
        let (payload, left) = tail.split_at(len);
        rest = left;
        let outcome = batch.decode(payload);
        assert_eq!(outcome, again.decode(payload), "reused buffers change nothing");
        assert_eq!(batch.events(), again.events());
        if outcome.is_err() {
            assert!(batch.events().is_empty());
            continue;
        }
        for event in batch.events() {
            if let Event::Stored(stored) = event {
                assert!(batch.hashes(stored.hashes).len() + batch.tokens(stored.tokens).len() <= payload.len() + 1);
                assert!(batch.mm(stored.mm).len() * 16 <= payload.len());
                assert!(stored.salt(payload).is_none_or(|salt| !salt.is_empty()));
                assert!(stored.lora(payload).is_none_or(|lora| !lora.is_empty()));
            }
        }
        apply(&batch, payload, &mut memories, &mut buffers, &Checked, &mut tally);
    }
});
