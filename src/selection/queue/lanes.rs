//! The lanes of one class: requests that may go to the same ranks wait behind one another, and lanes pass each other.
//!
//! A lane whose head nobody free can take is *parked* and not looked at again until something happens to a rank that
//! concerns it; so a blocked head idles nobody, and each look at a lane is paid for by an event. The number of lanes
//! for constraints is limited: requests of further constraints share one lane, in which the head holds back the rest,
//! as everywhere in the reference.
//!
//! Invariants: a lane has at least one entry; a lane that is not parked is in `ready` under its head's key.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use super::{order::OrderKey, placement::Placement};
use crate::selection::{
    load::{LoadTracker, Touched},
    slab::Slab,
};

/// Most different constraints of one class whose requests do not hold back each other.
pub const MAX_CONSTRAINT_LANES: usize = 1024;

/// Number of an entry in the queue.
pub(super) type EntryId = u32;

/// Which lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LaneKey {
    Of(Placement),
    /// Requests of constraints that got no lane of their own.
    Crowd,
}

/// A waiting request as its lane knows it.
#[derive(Clone, Debug)]
struct Place {
    entry: EntryId,
    placement: Placement,
}

#[derive(Debug)]
struct Lane {
    key: LaneKey,
    entries: BTreeMap<OrderKey, Place>,
    parked: bool,
}

impl Lane {
    fn head(&self) -> Option<(OrderKey, &Place)> {
        self.entries.first_key_value().map(|(&key, place)| (key, place))
    }
}

/// The best request that can go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// This one.
    Ready(EntryId),
    /// There is none.
    Blocked,
    /// The work of this turn is used up.
    Unknown,
}

/// All lanes of a class.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Slab<Lane>,
    by_key: HashMap<LaneKey, u32>,
    /// Lanes to look at, by their head's key.
    ready: BTreeSet<(OrderKey, u32)>,
    /// Lanes of constraints, the crowd included.
    constrained: BTreeSet<u32>,
    len: usize,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            lanes: Slab::new(),
            by_key: HashMap::new(),
            ready: BTreeSet::new(),
            constrained: BTreeSet::new(),
            len: 0,
        }
    }

    /// Requests that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lanes whose head is known to be blocked.
    pub(super) fn parked(&self) -> usize {
        self.lanes.len() - self.ready.len()
    }

    /// Adds a request; returns its lane.
    pub(super) fn insert(&mut self, order: OrderKey, entry: EntryId, placement: Placement) -> u32 {
        let mut key = LaneKey::Of(placement.clone());
        let is_constrained = matches!(placement, Placement::Within(_));
        if is_constrained && self.constrained.len() >= MAX_CONSTRAINT_LANES && !self.by_key.contains_key(&key) {
            key = LaneKey::Crowd;
        }
        let lane = match self.by_key.get(&key) {
            Some(&lane) => lane,
            None => {
                let lane = self.lanes.insert(Lane { key: key.clone(), entries: BTreeMap::new(), parked: false });
                self.by_key.insert(key, lane);
                if is_constrained {
                    self.constrained.insert(lane);
                }
                lane
            }
        };
        let before = self.lanes[lane].head().map(|(key, _)| key);
        self.lanes[lane].entries.insert(order, Place { entry, placement });
        self.len += 1;
        self.head_changed(lane, before);
        lane
    }

    /// Takes a request out. O(log n).
    pub(super) fn remove(&mut self, lane: u32, order: OrderKey) {
        let Some(found) = self.lanes.get_mut(lane) else { return };
        let before = found.head().map(|(key, _)| key);
        if found.entries.remove(&order).is_none() {
            return;
        }
        self.len -= 1;
        self.head_changed(lane, before);
        if self.lanes[lane].entries.is_empty()
            && let Some(gone) = self.lanes.remove(lane)
        {
            self.by_key.remove(&gone.key);
            self.constrained.remove(&lane);
        }
    }

    /// The best request that somebody free can take by the class's threshold. Lanes found blocked are parked; `work`
    /// counts looks down.
    pub(super) fn best(&mut self, load: &LoadTracker, board: Option<usize>, work: &mut usize) -> Head {
        while let Some(&(key, lane)) = self.ready.first() {
            let Some((_, head)) = self.lanes[lane].head() else { return Head::Blocked };
            if *work == 0 {
                return Head::Unknown;
            }
            if !head.placement.is_blocked(load, board) {
                return Head::Ready(head.entry);
            }
            *work -= 1;
            self.ready.remove(&(key, lane));
            self.lanes[lane].parked = true;
        }
        Head::Blocked
    }

    /// Something happened to ranks: lanes that it may concern are looked at again.
    pub(super) fn touch(&mut self, touched: &Touched, load: &LoadTracker) {
        if touched.all {
            self.unpark_all();
            return;
        }
        if self.ready.len() == self.lanes.len() {
            return;
        }
        for rank in &touched.ranks {
            for key in [Placement::Anywhere, Placement::Pinned(rank.rank)] {
                if let Some(&lane) = self.by_key.get(&LaneKey::Of(key)) {
                    self.unpark(lane);
                }
            }
        }
        let concerned: Vec<u32> =
            self.constrained.iter().copied().filter(|&lane| self.is_concerned(lane, touched, load)).collect();
        concerned.into_iter().for_each(|lane| self.unpark(lane));
    }

    /// Every lane is looked at again.
    pub(super) fn unpark_all(&mut self) {
        let lanes: Vec<u32> = self.by_key.values().copied().collect();
        lanes.into_iter().for_each(|lane| self.unpark(lane));
    }

    fn is_concerned(&self, lane: u32, touched: &Touched, load: &LoadTracker) -> bool {
        let lane = &self.lanes[lane];
        lane.parked
            && lane.head().is_some_and(|(_, head)| touched.ranks.iter().any(|rank| head.placement.may_want(rank, load)))
    }

    fn unpark(&mut self, lane: u32) {
        let found = &mut self.lanes[lane];
        if std::mem::take(&mut found.parked)
            && let Some((key, _)) = found.head()
        {
            self.ready.insert((key, lane));
        }
    }

    /// Brings `ready` up to date after the entries of a lane changed.
    fn head_changed(&mut self, lane: u32, before: Option<OrderKey>) {
        let found = &mut self.lanes[lane];
        let after = found.head().map(|(key, _)| key);
        if before == after {
            return;
        }
        // Every head of a lane is blocked by the same ranks, but for those of the crowd.
        if found.parked && found.key != LaneKey::Crowd {
            return;
        }
        found.parked = false;
        if let Some(key) = before {
            self.ready.remove(&(key, lane));
        }
        if let Some(key) = after {
            self.ready.insert((key, lane));
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self, load: &LoadTracker, board: Option<usize>) {
        assert_eq!(self.by_key.len(), self.lanes.len());
        let mut len = 0;
        for (number, lane) in self.lanes.iter() {
            let (key, head) = lane.head().expect("no lane is empty");
            len += lane.entries.len();
            assert_eq!(self.by_key[&lane.key], number);
            assert_eq!(self.ready.contains(&(key, number)), !lane.parked);
            if lane.parked {
                assert!(head.placement.is_blocked(load, board), "a parked lane is blocked: {:?}", lane.key);
            }
        }
        assert_eq!((self.len, self.ready.len() + self.parked()), (len, self.lanes.len()));
    }
}
