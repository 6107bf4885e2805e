//! What several policies do with rows: least of a measure, ties, a generator of their own.

use xxhash_rust::xxh3::xxh3_64;

use crate::selection::{
    config::SelectionConfig,
    policy::{
        inputs::{WorkerInputView, WorkerLoadInput},
        stages::{RoutingPartitionRef, WorkerSelectionPolicyError},
    },
};

/// A generator for one partition: the same one each time when the core has a seed.
pub(super) fn generator(config: &SelectionConfig, partition: RoutingPartitionRef<'_>) -> fastrand::Rng {
    let place = || xxh3_64(format!("{}\0{}", partition.model_name, partition.routing_group).as_bytes());
    config.seed.map_or_else(fastrand::Rng::new, |seed| fastrand::Rng::with_seed(seed ^ place()))
}

/// The row with the least key, the first of equal ones.
pub(super) fn first_least<K: PartialOrd>(keys: impl Iterator<Item = (usize, K)>) -> Option<usize> {
    let mut best: Option<(usize, K)> = None;
    for (row, key) in keys {
        if best.as_ref().is_none_or(|(_, least)| key < *least) {
            best = Some((row, key));
        }
    }
    best.map(|(row, _)| row)
}

/// The row with the least key; equal ones are chosen from uniformly.
pub(super) fn any_least<K: PartialOrd>(
    keys: impl Iterator<Item = (usize, K)>,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    let mut best: Option<(usize, K)> = None;
    let mut ties = 0_u64;
    for (row, key) in keys {
        match &best {
            Some((_, least)) if key == *least => {
                ties += 1;
                if rng.u64(0..ties) == 0 {
                    best = Some((row, key));
                }
            }
            Some((_, least)) if key > *least => {}
            _ => {
                ties = 1;
                best = Some((row, key));
            }
        }
    }
    best.map(|(row, _)| row)
}

/// The loads of a picker that declared them.
pub(super) fn loads<'a>(input: WorkerInputView<'a>) -> Result<&'a [WorkerLoadInput], WorkerSelectionPolicyError> {
    input.load().ok_or_else(|| WorkerSelectionPolicyError::failed("loads are not among its inputs"))
}

/// The error of a picker without rows; hosts call none.
pub(super) fn no_rows() -> WorkerSelectionPolicyError {
    WorkerSelectionPolicyError::failed("there are no candidates")
}

/// Requests, then prefill tokens: what least-loaded orders by.
pub(super) fn busyness(load: &WorkerLoadInput) -> (usize, usize) {
    (load.active_requests(), load.active_prefill_tokens())
}

/// SplitMix64's finaliser.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
