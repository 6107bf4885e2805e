//! Registered ranks: their facts, what their bookings add up to, and a compact row of each for picks.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    RankLoad, WorkerFacts,
    bookings::{Admitted, Booking},
    forest::Change,
    prefill::Prefills,
    weight,
};
use crate::selection::{identity::WorkerWithDpRank, moment::Moment, slab::Slab};

/// One registered rank.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) id: WorkerWithDpRank,
    pub(super) facts: Arc<WorkerFacts>,
    pub(super) requests: u64,
    /// Distinct prompt blocks held by its bookings, each counted fully.
    prompt_blocks: u64,
    /// What weights take off those.
    missing: u128,
    /// Weight of all output blocks.
    pub(super) outputs: u128,
    pub(super) prefills: Prefills,
    pub(super) admitted: Admitted,
    pub(super) expiry_checked: Option<Moment>,
    /// Its engine tells of its blocks.
    pub(super) hears_events: bool,
}

impl Rank {
    pub(super) fn new(id: WorkerWithDpRank, facts: Arc<WorkerFacts>) -> Self {
        Self {
            id,
            facts,
            requests: 0,
            prompt_blocks: 0,
            missing: 0,
            outputs: 0,
            prefills: Prefills::new(),
            admitted: Admitted::new(),
            expiry_checked: None,
            hears_events: false,
        }
    }

    pub(super) fn apply(&mut self, bookings: &Slab<Booking>, change: Change) {
        match change {
            Change::Held(blocks) => self.prompt_blocks += u64::from(blocks),
            Change::Left(blocks) => self.prompt_blocks -= u64::from(blocks),
            Change::Applies { booking, start, end } => self.missing += bookings[booking].missing(start, end),
            Change::Ceases { booking, start, end } => self.missing -= bookings[booking].missing(start, end),
        }
    }

    pub(super) fn load(&self, bookings: &Slab<Booking>, now: Moment) -> RankLoad {
        let blocks = if self.missing == 0 && self.outputs == 0 {
            self.prompt_blocks
        } else {
            weight::to_blocks(u128::from(self.prompt_blocks) * weight::ONE - self.missing + self.outputs)
        };
        RankLoad { prefill_tokens: self.prefills.tokens(bookings, now), blocks, requests: self.requests }
    }
}

/// What a pick reads of a slot, close together in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::selection) struct Row {
    /// Load as of the last change; prefill tokens are current unless they decay.
    pub(in crate::selection) load: RankLoad,
    /// Worker.
    pub(in crate::selection) worker_id: u64,
    /// Which set of taints the worker has.
    pub(in crate::selection) taints: u32,
    /// The slot is in use and its worker is not draining.
    pub(in crate::selection) takes_bookings: bool,
    /// Prefill tokens change by themselves, so the rank is in no order.
    pub(in crate::selection) decays: bool,
}

/// The distinct sets of taints among the ranks, numbered.
#[derive(Debug, Default)]
pub(super) struct TaintSets {
    numbers: HashMap<Arc<BTreeSet<String>>, u32>,
    sets: Vec<Option<(Arc<BTreeSet<String>>, u32)>>,
}

impl TaintSets {
    /// Counts a rank in; returns the number of its set.
    pub(super) fn enter(&mut self, taints: &BTreeSet<String>) -> u32 {
        if let Some(&number) = self.numbers.get(taints) {
            if let Some(Some((_, ranks))) = self.sets.get_mut(number as usize) {
                *ranks += 1;
            }
            return number;
        }
        let number = self.sets.iter().position(Option::is_none).unwrap_or(self.sets.len());
        let set = Arc::new(taints.clone());
        self.numbers.insert(set.clone(), number as u32);
        if number == self.sets.len() {
            self.sets.push(None);
        }
        self.sets[number] = Some((set, 1));
        number as u32
    }

    /// Counts a rank out.
    pub(super) fn leave(&mut self, number: u32) {
        let Some(place) = self.sets.get_mut(number as usize) else { return };
        if let Some((set, ranks)) = place {
            *ranks -= 1;
            if *ranks == 0 {
                self.numbers.remove(&*set);
                *place = None;
            }
        }
        while matches!(self.sets.last(), Some(None)) {
            self.sets.pop();
        }
    }

    /// One past the highest number in use.
    pub(super) fn bound(&self) -> usize {
        self.sets.len()
    }

    pub(super) fn get(&self, number: u32) -> Option<&BTreeSet<String>> {
        Some(&self.sets.get(number as usize)?.as_ref()?.0)
    }
}
