//! What is counted about events, by name.
//!
//! Invariants: labels are reasons, never workers; a batch is tallied in plain numbers and added up once, so the hot path
//! touches few atomics.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// An enum whose variants have a word each, for metrics and answers.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $(#[doc = $doc:literal] $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $name {
            $(#[doc = $doc] $variant,)+
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// A stable word for metrics and answers.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// What it counts, in a sentence.
            pub fn help(self) -> &'static str {
                match self {
                    $(Self::$variant => $doc.trim_ascii(),)+
                }
            }
        }
    };
}

words! {
    /// Why an event, batch or message was not applied.
    DropReason {
        /// Message of another shape than topic, 8-byte sequence number, payload.
        Framing = "framing",
        /// Batch that cannot be decoded.
        UndecodableBatch = "undecodable_batch",
        /// Sequence number at or below the position.
        Duplicate = "duplicate",
        /// Replayed batch outside the range that was asked for.
        OutsideReplay = "outside_replay",
        /// Messages lost in the subscriber's own queue because the listener was behind.
        Overflow = "overflow",
        /// Neither a tagged array nor a tagged map.
        NotAnEvent = "not_an_event",
        /// Event of a type this version does not know.
        UnknownType = "unknown_type",
        /// Event without a required field.
        MissingField = "missing_field",
        /// Event with a field of another type than specified.
        BadField = "bad_field",
        /// Multimodal event whose tokens are texts.
        TextTokens = "text_tokens",
        /// Beyond what is taken from one batch.
        TooMany = "too_many",
        /// Blocks owned by somebody else.
        Ownership = "ownership",
        /// Event marked as one to ignore.
        Ignored = "ignored",
        /// Blocks that are not local to the engine.
        Locality = "locality",
        /// Storage medium that is not in the list.
        Medium = "medium",
        /// Cache group that is not the main attention.
        AttentionGroup = "attention_group",
        /// Child of a block that was stored under two cache salts.
        AmbiguousSalt = "ambiguous_salt",
        /// Salted event of a rank that remembers as many salted blocks as it may.
        SaltTableFull = "salt_table_full",
        /// Batch rank beyond what one listener may name.
        TooManyRanks = "too_many_ranks",
        /// Store that names a block twice, or as its own parent.
        RepeatedHash = "repeated_hash",
        /// Store with another block size than the partition's.
        BlockSize = "block_size",
        /// Store whose tokens are a block or more longer than its hashes.
        TokenCount = "token_count",
        /// Store without a complete block.
        NoBlock = "no_block",
        /// Store under a parent that the rank does not hold, with no room to wait.
        ParentUnknown = "parent_unknown",
        /// The index cannot hold more.
        IndexFull = "index_full",
    }
}

words! {
    /// What counts apart from drops.
    Count {
        /// Batches applied, live and replayed.
        Batches = "batches",
        /// Store events applied.
        StoredEvents = "stored_events",
        /// Blocks in them.
        StoredBlocks = "stored_blocks",
        /// Store events that wait for their parent.
        WaitingEvents = "waiting_events",
        /// Remove events applied.
        RemovedEvents = "removed_events",
        /// Blocks removed.
        RemovedBlocks = "removed_blocks",
        /// Names in removals that the rank did not hold.
        UnknownRemovals = "unknown_removals",
        /// Clears applied.
        Clears = "clears",
        /// Gaps in live numbers.
        Gaps = "gaps",
        /// Gaps of which something stayed missing.
        UnfilledGaps = "unfilled_gaps",
        /// Replay requests.
        Replays = "replays",
        /// Those that failed or were not answered to the end in time.
        FailedReplays = "failed_replays",
        /// Replays that told of another stream than the publisher's.
        ContradictedReplays = "contradicted_replays",
        /// Batches that came by replay.
        ReplayedBatches = "replayed_batches",
        /// Publisher restarts detected.
        PublisherRestarts = "publisher_restarts",
        /// Connections to the publisher.
        Connects = "connects",
        /// Restarts of the listener itself after a failure.
        ListenerRestarts = "listener_restarts",
    }
}

impl DropReason {
    /// Whether it belongs to healthy operation: overlap of replay and live stream, and groups that are not indexed.
    pub fn is_usual(self) -> bool {
        matches!(self, Self::Duplicate | Self::OutsideReplay | Self::Ignored | Self::AttentionGroup)
    }
}

/// Plain counts, of one batch for example.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    counts: [u64; Count::ALL.len()],
    drops: [u64; DropReason::ALL.len()],
    any_drop: bool,
}

impl Tally {
    /// Adds `n`.
    pub fn add(&mut self, count: Count, n: u64) {
        self.counts[count as usize] += n;
    }

    /// Adds `n` drops.
    pub fn drop(&mut self, reason: DropReason, n: u64) {
        self.drops[reason as usize] += n;
        self.any_drop |= n > 0;
    }

    /// What was added to `count`.
    pub fn count(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// Drops for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Reasons for which something was dropped.
    pub fn reasons(&self) -> impl Iterator<Item = DropReason> {
        let all: &[DropReason] = if self.any_drop { &DropReason::ALL } else { &[] };
        all.iter().copied().filter(|&reason| self.dropped(reason) > 0)
    }
}

/// Counts that many tasks add to.
#[derive(Debug, Default)]
pub struct Totals {
    counts: [AtomicU64; Count::ALL.len()],
    drops: [AtomicU64; DropReason::ALL.len()],
}

impl Totals {
    /// Adds a tally.
    pub fn add(&self, tally: &Tally) {
        for (total, &n) in self.counts.iter().zip(&tally.counts) {
            if n > 0 {
                total.fetch_add(n, Relaxed);
            }
        }
        for reason in tally.reasons() {
            self.drops[reason as usize].fetch_add(tally.dropped(reason), Relaxed);
        }
    }

    /// What was counted so far.
    pub fn count(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    /// Drops so far.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].load(Relaxed)
    }

    /// Drops by reason, those that occurred.
    pub fn dropped_by_reason(&self) -> BTreeMap<&'static str, u64> {
        let all = DropReason::ALL.iter().map(|&reason| (reason.as_str(), self.dropped(reason)));
        all.filter(|&(_, n)| n > 0).collect()
    }
}
