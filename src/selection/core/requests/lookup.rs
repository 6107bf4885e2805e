//! Buffers of a request, the index look-up, and the merge of the predicted overlay.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

use crate::selection::{
    error::SelectionError,
    index::{LaneSet, MatchClass, Matches, PrefixIndex, TierBlocks},
    partition::{Partition, PartitionIndex},
    prompt::PreparedPrompt,
};

/// Lanes up to which a class is kept as a list; policies look at each of a list's lanes.
const LIST_LANES: usize = 32;
/// Buffers beyond this size are given back instead of kept.
const KEPT_BYTES: usize = 1 << 20;
/// Buffers one thread keeps.
const KEPT_BUFFERS: usize = 8;

thread_local! {
    #[allow(clippy::vec_box, reason = "they move into requests and back by pointer")]
    static KEPT: RefCell<Vec<Box<Buffers>>> = const { RefCell::new(Vec::new()) };
}

/// What a request computes in.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) prompt: PreparedPrompt,
    pub(super) matches: Matches,
    predicted: Matches,
}

/// Buffers on loan from this thread's stock; they go to the stock of the thread that drops them.
#[derive(Debug)]
pub(super) struct Scratch(Option<Box<Buffers>>);

impl Scratch {
    pub(super) fn take() -> Self {
        Self(Some(KEPT.with_borrow_mut(Vec::pop).unwrap_or_default()))
    }

    /// Looks the prepared prompt up.
    ///
    /// # Errors
    /// 500 when the index panics; nothing is locked then.
    pub(super) fn look_up(&mut self, partition: &Partition) -> Result<(), SelectionError> {
        let Buffers { prompt, matches, predicted } = &mut **self;
        let found = partition.health().contain(|| {
            partition.index.primary().lookup(prompt.locals(), prompt.seqs(), matches);
            if let PartitionIndex::Events { confirmed, predicted: Some(overlay) } = &partition.index {
                overlay.index().lookup(prompt.locals(), prompt.seqs(), predicted);
                merge(confirmed, matches, overlay.index(), predicted);
            }
        });
        found.ok_or_else(|| SelectionError::Internal(format!("index of {} failed", partition.key)))
    }

    /// Whether what was looked up still means the ranks it meant.
    pub(super) fn is_current(&self, partition: &Partition) -> bool {
        partition.index.primary().is_current(&self.matches)
    }
}

impl Deref for Scratch {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        self.0.as_ref().expect("taken on drop only")
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut Buffers {
        self.0.as_mut().expect("taken on drop only")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(buffers) = self.0.take() else { return };
        if buffers.prompt.capacity_bytes() > KEPT_BYTES {
            return;
        }
        // A thread that is going away has no stock any more.
        let _ended = KEPT.try_with(|kept| {
            if let Ok(mut kept) = kept.try_borrow_mut()
                && kept.len() < KEPT_BUFFERS
            {
                kept.push(buffers);
            }
        });
    }
}

/// What a rank with this lane matches.
pub(super) fn blocks_of(matches: &Matches, lane: u16) -> TierBlocks {
    matches
        .classes
        .iter()
        .find(|class| contains(&class.lanes, lane))
        .map_or_else(TierBlocks::default, |class| class.blocks)
}

fn contains(lanes: &LaneSet, lane: u16) -> bool {
    match lanes {
        LaneSet::List(list) => list.binary_search(&lane).is_ok(),
        LaneSet::Bits(words) => words.get(usize::from(lane) / 64).is_some_and(|word| word >> (lane % 64) & 1 == 1),
    }
}

fn remove(lanes: &mut LaneSet, lane: u16) {
    match lanes {
        LaneSet::List(list) => {
            if let Ok(at) = list.binary_search(&lane) {
                list.remove(at);
            }
        }
        LaneSet::Bits(words) => {
            if let Some(word) = words.get_mut(usize::from(lane) / 64) {
                *word &= !(1 << (lane % 64));
            }
        }
    }
}

fn lane_set(lanes: Vec<u16>) -> LaneSet {
    if lanes.len() <= LIST_LANES {
        return LaneSet::List(lanes);
    }
    let mut words = vec![0_u64; usize::from(lanes.last().copied().unwrap_or(0)) / 64 + 1];
    for lane in lanes {
        words[usize::from(lane) / 64] |= 1 << (lane % 64);
    }
    LaneSet::Bits(words)
}

/// Raises each rank's device match in `matches` to the predicted one. Lower tiers keep what they add to the confirmed
/// match, as in the reference.
fn merge(confirmed: &PrefixIndex, matches: &mut Matches, overlay: &PrefixIndex, predicted: &Matches) {
    let mut raised: Vec<(TierBlocks, u16)> = Vec::new();
    for class in &predicted.classes {
        class.lanes.for_each(|lane| {
            let lane = overlay.slot_of(lane).and_then(|slot| confirmed.lane_of_slot(slot));
            let Some(lane) = lane.map(|lane| lane.0) else { return };
            let known = blocks_of(matches, lane);
            if class.blocks.device > known.device {
                raised.push((TierBlocks { device: class.blocks.device, ..known }, lane));
            }
        });
    }
    if raised.is_empty() {
        return;
    }
    for &(_, lane) in &raised {
        matches.classes.iter_mut().for_each(|class| remove(&mut class.lanes, lane));
    }
    raised.sort_unstable_by_key(|&(blocks, lane)| (depths(blocks), lane));
    for group in raised.chunk_by(|a, b| a.0 == b.0) {
        let lanes = lane_set(group.iter().map(|&(_, lane)| lane).collect());
        matches.classes.push(MatchClass { blocks: group[0].0, lanes });
    }
    matches.classes.retain(|class| !class.lanes.is_empty());
    matches.classes.sort_by_key(|class| std::cmp::Reverse(depths(class.blocks)));
}

fn depths(blocks: TierBlocks) -> [u32; 4] {
    [blocks.device, blocks.host, blocks.disk, blocks.external]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::selection::{
        hash,
        identity::{Tier, WorkerWithDpRank},
        index::{StoredBlock, approximate::ApproximateIndex},
        moment::Moment,
    };

    fn prompt(blocks: u64) -> (Vec<u64>, Vec<u64>) {
        let locals: Vec<u64> = (100..100 + blocks).collect();
        let mut seqs = Vec::new();
        hash::sequence_hashes(&locals, &mut seqs);
        (locals, seqs)
    }

    fn store(index: &PrefixIndex, worker: u64, tier: Tier, from: usize, to: usize) {
        let (locals, seqs) = prompt(8);
        let blocks: Vec<StoredBlock> = (from..to).map(|at| StoredBlock { name: seqs[at], local: locals[at] }).collect();
        let parent = from.checked_sub(1).map(|at| seqs[at]);
        index.store(WorkerWithDpRank::new(worker, 0), tier, parent, &blocks);
    }

    #[test]
    fn predictions_raise_the_device_match_and_leave_the_lower_tiers() {
        let confirmed = PrefixIndex::new();
        let overlay = ApproximateIndex::new(Duration::from_secs(10), Moment::default());
        // Bound in another order, so that lanes differ between the indexes.
        for worker in 0..50 {
            confirmed.bind_slot(WorkerWithDpRank::new(worker, 0), worker as u32);
        }
        for worker in (0..50).rev() {
            overlay.index().bind_slot(WorkerWithDpRank::new(worker, 0), worker as u32);
        }
        store(&confirmed, 1, Tier::Device, 0, 1);
        store(&confirmed, 1, Tier::HostPinned, 1, 2);
        store(&confirmed, 2, Tier::Device, 0, 5);
        let (locals, seqs) = prompt(8);
        for worker in [1, 2, 3].into_iter().chain(10..50) {
            let depth = if worker < 10 { 3 } else { 4 };
            overlay.record(WorkerWithDpRank::new(worker, 0), &locals[..depth], &seqs[..depth], Moment::default());
        }
        let (mut matches, mut predicted) = (Matches::default(), Matches::default());
        confirmed.lookup(&locals, &seqs, &mut matches);
        overlay.index().lookup(&locals, &seqs, &mut predicted);
        merge(&confirmed, &mut matches, overlay.index(), &predicted);
        let of = |worker: u32| {
            let lane = confirmed.lane_of_slot(worker).expect("bound");
            let classes: Vec<_> = matches.classes.iter().filter(|class| contains(&class.lanes, lane.0)).collect();
            assert!(classes.len() <= 1, "classes are disjoint");
            depths(blocks_of(&matches, lane.0))
        };
        assert_eq!(of(1), [3, 1, 0, 0]);
        assert_eq!(of(2), [5, 0, 0, 0]);
        assert_eq!(of(3), [3, 0, 0, 0]);
        assert_eq!(of(4), [0, 0, 0, 0]);
        assert!((10..50).all(|worker| of(worker) == [4, 0, 0, 0]));
        assert!(matches.classes.is_sorted_by_key(|class| std::cmp::Reverse(class.blocks.device)));
        assert!(matches.classes.iter().any(|class| matches!(class.lanes, LaneSet::Bits(_))));
    }

    #[test]
    fn a_raised_rank_leaves_the_class_of_many_and_takes_nobody_along() {
        const RAISED: [u64; 4] = [3, 70, 130, 199];
        let confirmed = PrefixIndex::new();
        let overlay = ApproximateIndex::new(Duration::from_secs(10), Moment::default());
        for worker in 0..200 {
            let rank = WorkerWithDpRank::new(worker, 0);
            assert!(confirmed.bind_slot(rank, worker as u32) && overlay.index().bind_slot(rank, worker as u32));
            store(&confirmed, worker, Tier::Device, 0, 2);
        }
        let (locals, seqs) = prompt(8);
        for worker in RAISED {
            overlay.record(WorkerWithDpRank::new(worker, 0), &locals[..4], &seqs[..4], Moment::default());
        }
        let (mut matches, mut predicted) = (Matches::default(), Matches::default());
        confirmed.lookup(&locals, &seqs, &mut matches);
        overlay.index().lookup(&locals, &seqs, &mut predicted);
        assert!(matches!(&matches.classes[..], [MatchClass { lanes: LaneSet::Bits(_), .. }]));
        merge(&confirmed, &mut matches, overlay.index(), &predicted);
        for worker in 0..200 {
            let lane = confirmed.lane_of_slot(worker as u32).expect("bound").0;
            let classes = matches.classes.iter().filter(|class| contains(&class.lanes, lane));
            let found: Vec<u32> = classes.map(|class| class.blocks.device).collect();
            assert_eq!(found, [if RAISED.contains(&worker) { 4 } else { 2 }], "worker {worker}");
        }
    }

    #[test]
    fn buffers_come_back_to_the_stock() {
        let mut first = Scratch::take();
        first.matches.classes.reserve(1234);
        let capacity = first.matches.classes.capacity();
        drop(first);
        assert_eq!(Scratch::take().matches.classes.capacity(), capacity);
    }
}
