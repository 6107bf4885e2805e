//! What every rank shares with the prompt at hand: cached blocks by the index, active blocks by live prompts.

use super::LaneMap;
use crate::selection::{
    index::{Lane, LaneSet, MatchClass, TierBlocks},
    load::Slot,
};

/// Whether a lane is in a set.
pub(super) fn has(set: &LaneSet, lane: Lane) -> bool {
    match set {
        LaneSet::List(list) => list.binary_search(&lane.0).is_ok(),
        LaneSet::Bits(words) => words.get(usize::from(lane.0) / 64).is_some_and(|word| word >> (lane.0 % 64) & 1 == 1),
    }
}

/// What the slot has cached, by membership in the match classes, which are disjoint.
pub(super) fn cached<'a>(
    classes: impl IntoIterator<Item = &'a MatchClass, IntoIter: ExactSizeIterator>,
    lanes: &dyn LaneMap,
    slot: Slot,
) -> TierBlocks {
    let mut classes = classes.into_iter();
    if classes.len() == 0 {
        return TierBlocks::default();
    }
    let Some(lane) = lanes.lane_of_slot(slot) else { return TierBlocks::default() };
    classes.find(|class| has(&class.lanes, lane)).map_or_else(TierBlocks::default, |class| class.blocks)
}

/// Whether a set has at most `most` lanes. Looks no further than needed.
pub(super) fn at_most(set: &LaneSet, most: usize) -> bool {
    match set {
        LaneSet::List(list) => list.len() <= most,
        LaneSet::Bits(words) => {
            let mut count = 0;
            words.iter().all(|word| {
                count += word.count_ones() as usize;
                count <= most
            })
        }
    }
}

/// Visits the lanes of a set in ascending order.
pub(super) fn for_each(set: &LaneSet, mut visit: impl FnMut(Lane)) {
    match set {
        LaneSet::List(list) => list.iter().for_each(|&lane| visit(Lane(lane))),
        LaneSet::Bits(words) => {
            for (at, &word) in words.iter().enumerate() {
                let mut left = word;
                while left != 0 {
                    // A lane is a u16, so a set has at most 1,024 words.
                    visit(Lane((at * 64) as u16 + left.trailing_zeros() as u16));
                    left &= left - 1;
                }
            }
        }
    }
}
