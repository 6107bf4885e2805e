//! What every rank shares with the prompt at hand: cached blocks by the index, active blocks by live prompts.

use super::{LaneMap, PickRequest};
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

/// What the slot has cached, by membership in the match classes.
pub(super) fn cached(classes: &[MatchClass], lanes: &dyn LaneMap, slot: Slot) -> TierBlocks {
    if classes.is_empty() {
        return TierBlocks::default();
    }
    let Some(lane) = lanes.lane_of_slot(slot) else { return TierBlocks::default() };
    classes.iter().find(|class| has(&class.lanes, lane)).map_or_else(TierBlocks::default, |class| class.blocks)
}

/// What the slot has cached of the request's prompt.
pub(super) fn cached_of(request: &PickRequest<'_>, slot: Slot) -> TierBlocks {
    cached(&request.matches.classes, request.index, slot)
}
