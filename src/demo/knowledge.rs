//! What a selector knows, and how far one knows what another does while traffic runs. Pure: answers in, counts out.
//!
//! Two selectors cannot be read at one moment. So the peer is read before and after: what it had both times the other
//! must have, and what it had neither time the other must not have.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Worker and rank.
pub type Rank = (u64, u32);

/// Bookings and blocks of one selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// Live bookings of each rank that has any.
    pub bookings: BTreeMap<Rank, u64>,
    /// Cached blocks: rank, and the hash of the block's tokens.
    pub blocks: BTreeSet<(Rank, u64)>,
}

impl Knowledge {
    /// All live bookings.
    pub fn live(&self) -> u64 {
        self.bookings.values().sum()
    }
}

/// One comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Bookings that the peer had before and after.
    pub bookings: u64,
    /// Those of them that are missing.
    pub bookings_missing: u64,
    /// Bookings that the peer had neither before nor after.
    pub bookings_surplus: u64,
    /// Blocks that the peer had before and after.
    pub blocks: u64,
    /// Those of them that are missing.
    pub blocks_missing: u64,
    /// Blocks that the peer had neither before nor after.
    pub blocks_surplus: u64,
}

impl Look {
    /// Compares what a selector knows with what a peer knew `before` and `after` it was asked.
    pub fn at(before: &Knowledge, subject: &Knowledge, after: &Knowledge) -> Self {
        let mut look = Self::default();
        let ranks: BTreeSet<Rank> =
            [before, subject, after].into_iter().flat_map(|one| one.bookings.keys().copied()).collect();
        for rank in ranks {
            let [before, here, after] =
                [before, subject, after].map(|one| one.bookings.get(&rank).copied().unwrap_or_default());
            look.bookings += before.min(after);
            look.bookings_missing += before.min(after).saturating_sub(here);
            look.bookings_surplus += here.saturating_sub(before.max(after));
        }
        for block in before.blocks.intersection(&after.blocks) {
            look.blocks += 1;
            look.blocks_missing += u64::from(!subject.blocks.contains(block));
        }
        let strange = |block: &&(Rank, u64)| !before.blocks.contains(*block) && !after.blocks.contains(*block);
        look.blocks_surplus = subject.blocks.iter().filter(strange).count() as u64;
        look
    }

    /// Nothing is missing, nothing too much.
    pub fn is_equal(&self) -> bool {
        self.bookings_missing + self.bookings_surplus + self.blocks_missing + self.blocks_surplus == 0
    }

    /// A selector that began with nothing, rather than one that is a moment behind: it lacks more than half of the
    /// bookings or a tenth of the blocks.
    pub fn is_cold(&self) -> bool {
        2 * self.bookings_missing > self.bookings || 10 * self.blocks_missing > self.blocks
    }
}

/// A partition in `GET /loads`.
#[derive(Debug, Deserialize)]
pub struct PartitionLoads {
    loads: Vec<RankLoad>,
}

#[derive(Debug, Deserialize)]
struct RankLoad {
    worker_id: u64,
    dp_rank: u32,
    active_requests: u64,
}

/// The bookings in an answer of `GET /loads`.
pub fn bookings(partitions: &[PartitionLoads]) -> BTreeMap<Rank, u64> {
    let ranks = partitions.iter().flat_map(|partition| &partition.loads);
    let live = ranks.filter(|rank| rank.active_requests > 0);
    live.map(|rank| ((rank.worker_id, rank.dp_rank), rank.active_requests)).collect()
}

/// A partition in `GET /dump`.
#[derive(Debug, Deserialize)]
pub struct PartitionDump {
    events: Vec<DumpedEvent>,
}

#[derive(Debug, Deserialize)]
struct DumpedEvent {
    worker_id: u64,
    event: KvEvent,
}

#[derive(Debug, Deserialize)]
struct KvEvent {
    dp_rank: u32,
    data: EventData,
}

#[derive(Debug, Deserialize)]
struct EventData {
    stored: Option<Stored>,
}

#[derive(Debug, Deserialize)]
struct Stored {
    blocks: Vec<Block>,
}

#[derive(Debug, Deserialize)]
struct Block {
    tokens_hash: u64,
}

/// The blocks in an answer of `GET /dump`.
pub fn blocks(partitions: &BTreeMap<String, PartitionDump>) -> BTreeSet<(Rank, u64)> {
    let events = partitions.values().flat_map(|partition| &partition.events);
    let stored = events.flat_map(|dumped| {
        let rank = (dumped.worker_id, dumped.event.dp_rank);
        let blocks = dumped.event.data.stored.iter().flat_map(|stored| &stored.blocks);
        blocks.map(move |block| (rank, block.tokens_hash))
    });
    stored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knows(bookings: &[(u64, u64)], blocks: &[u64]) -> Knowledge {
        Knowledge {
            bookings: bookings.iter().map(|&(worker, live)| ((worker, 0), live)).collect(),
            blocks: blocks.iter().map(|&block| ((1, 0), block)).collect(),
        }
    }

    #[test]
    fn what_a_peer_had_before_and_after_must_be_there_and_what_it_never_had_must_not() {
        let (before, after) = (knows(&[(1, 2), (2, 1)], &[1, 2, 3]), knows(&[(1, 3)], &[2, 3, 4]));
        for equal in [knows(&[(1, 2)], &[2, 3]), knows(&[(1, 3), (2, 1)], &[1, 2, 3, 4])] {
            let look = Look::at(&before, &equal, &after);
            assert!(look.is_equal() && !look.is_cold(), "{look:?}");
        }
        let cold = Look::at(&before, &knows(&[], &[]), &after);
        assert!(cold.is_cold() && !cold.is_equal(), "{cold:?}");
        assert_eq!((cold.bookings, cold.bookings_missing, cold.blocks, cold.blocks_missing), (2, 2, 2, 2));
        let more = Look::at(&before, &knows(&[(1, 4), (3, 1)], &[2, 3, 9]), &after);
        assert_eq!((more.bookings_surplus, more.blocks_surplus), (2, 1));
        assert!(!more.is_cold() && !more.is_equal());
    }

    #[test]
    fn answers_of_a_selector_are_read() {
        let loads = r#"[{"model_name":"m","loads":[{"worker_id":1,"dp_rank":0,"active_requests":2},
            {"worker_id":2,"dp_rank":1,"active_requests":0}]}]"#;
        let loads: Vec<PartitionLoads> = serde_json::from_str(loads).unwrap();
        assert_eq!(bookings(&loads), BTreeMap::from([((1, 0), 2)]));
        let dump = r#"{"m:default":{"block_size":16,"events":[{"worker_id":7,"event":{"event_id":0,"dp_rank":1,
            "data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":1,"tokens_hash":5}]}}}}]}}"#;
        let dump: BTreeMap<String, PartitionDump> = serde_json::from_str(dump).unwrap();
        assert_eq!(blocks(&dump), BTreeSet::from([((7, 1), 5)]));
    }
}
