//! The tracker's side of work ahead: what is told to [`Work`], and what policies ask of it.

use std::sync::Arc;

use super::LoadTracker;
use crate::selection::{
    identity::WorkerWithDpRank,
    load::{
        Slot,
        work::{NewPrefill, PrefillEnd, RankView, Work, WorkSpec},
    },
    moment::Moment,
};

/// Most kept: the policy in force and one beside it need two.
const MOST_WORKS: usize = 4;

impl LoadTracker {
    /// Makes sure that work ahead is kept as `spec` says, and that it is up to date; returns its place, valid until the
    /// next call.
    pub(in crate::selection) fn keep_work(&mut self, spec: &Arc<WorkSpec>, now: Moment) -> usize {
        let same = |work: &Work| Arc::ptr_eq(work.spec(), spec) || work.spec() == spec;
        let known = self.works.iter().position(same);
        if let Some(at) = known
            && at < self.claimed
            && self.claimed < self.works.len()
        {
            // Asked for a second time: whoever else asks has done so by now.
            self.works.truncate(self.claimed);
        }
        let at = match known {
            Some(at) => {
                self.refresh_due(at, now);
                at
            }
            None => {
                if self.works.len() == MOST_WORKS {
                    self.works.pop();
                    self.claimed = self.claimed.min(self.works.len());
                }
                self.add_work(spec, now);
                self.works.len() - 1
            }
        };
        if at < self.claimed {
            return at;
        }
        self.works.swap(at, self.claimed);
        self.claimed += 1;
        self.claimed - 1
    }

    /// There is another policy: what is kept stays only if that asks for it.
    pub(in crate::selection) fn retire_work(&mut self) {
        self.claimed = 0;
    }

    /// The work that is kept for the policy in force, which asks before one beside it, every rank of it as of now.
    pub(in crate::selection) fn reported_work(&mut self, now: Moment) -> Option<&Work> {
        if self.works.is_empty() {
            return None;
        }
        self.refresh_due(0, now);
        for slot in self.slots() {
            let view = self.view(slot);
            self.works[0].refresh(slot, &view, now);
        }
        self.works.first()
    }

    /// Work ahead at a place.
    pub(in crate::selection) fn work(&self, at: usize) -> &Work {
        &self.works[at]
    }

    /// Everything kept.
    #[cfg(test)]
    pub(in crate::selection) fn works(&self) -> &[Work] {
        &self.works
    }

    /// Nobody asks for work ahead any more.
    pub(in crate::selection) fn forget_work(&mut self) {
        self.works = Vec::new();
        self.claimed = 0;
    }

    /// The engine of a rank told of blocks on its device, `sequence` their chained hashes.
    pub(in crate::selection) fn stored(&mut self, rank: WorkerWithDpRank, sequence: &[u64]) {
        let Some(&slot) = self.slots.get(&rank) else { return };
        self.ranks[slot].hears_events = true;
        let now = self.latest;
        self.works.iter_mut().for_each(|work| work.stored(slot, sequence, now));
        self.refresh_work(slot, now);
    }

    /// Whether the engine of a rank tells of its blocks.
    pub(in crate::selection) fn set_event_flow(&mut self, rank: WorkerWithDpRank, flows: bool) {
        let Some(&slot) = self.slots.get(&rank) else { return };
        self.ranks[slot].hears_events = flows;
        let now = self.latest;
        self.works.iter_mut().for_each(|work| work.set_events(slot, flows));
        self.refresh_work(slot, now);
    }

    /// Whether the engine of a rank tells of its blocks, as far as was told.
    pub(in crate::selection) fn hears_events(&self, rank: WorkerWithDpRank) -> bool {
        self.slot(rank).is_some_and(|slot| self.ranks[slot].hears_events)
    }

    fn add_work(&mut self, spec: &Arc<WorkSpec>, now: Moment) {
        let mut work = Work::new(Arc::clone(spec), self.config.block_size);
        for &slot in self.slots.values() {
            work.upsert(slot, &self.ranks[slot].facts, self.ranks[slot].hears_events);
        }
        for (booking, entry) in self.bookings.iter().filter(|(_, entry)| entry.prefill_tokens > 0) {
            let sequence = entry.last_run.map(|last| self.forest.prompt(last)).unwrap_or_default();
            let prefill = NewPrefill { booking, sequence: &sequence.into(), tokens: entry.prefill_tokens };
            work.booked(entry.slot, prefill, entry.admitted);
        }
        self.works.push(work);
        for slot in self.slots() {
            self.refresh_work(slot, now);
        }
    }

    fn refresh_due(&mut self, at: usize, now: Moment) {
        self.latest = self.latest.max(now);
        let mut due = std::mem::take(&mut self.due);
        self.works[at].due(now, &mut due);
        for slot in due.drain(..) {
            let view = self.view(slot);
            self.works[at].refresh(slot, &view, now);
        }
        self.due = due;
    }

    pub(super) fn upsert_work(&mut self, slot: Slot) {
        let rank = &self.ranks[slot];
        self.works.iter_mut().for_each(|work| work.upsert(slot, &rank.facts, rank.hears_events));
        self.refresh_work(slot, self.latest);
    }

    pub(super) fn booked_work(&mut self, slot: Slot, booking: u32, sequence: &Arc<[u64]>, tokens: u64, now: Moment) {
        for work in &mut self.works {
            work.booked(slot, NewPrefill { booking, sequence, tokens }, now);
        }
    }

    /// The prefill of a booking, of so many tokens, is over.
    pub(super) fn ended_work(&mut self, slot: Slot, booking: u32, tokens: u64, end: PrefillEnd, now: Moment) {
        if tokens > 0 {
            self.works.iter_mut().for_each(|work| work.ended(slot, booking, tokens, end, now));
        }
    }

    pub(super) fn refresh_work(&mut self, slot: Slot, now: Moment) {
        if !self.works.is_empty() {
            let view = self.view(slot);
            self.works.iter_mut().for_each(|work| work.refresh(slot, &view, now));
        }
    }

    fn view(&self, slot: Slot) -> RankView {
        let (Some(rank), Some(row)) = (self.ranks.get(slot), self.rows.get(slot as usize)) else {
            return RankView::default();
        };
        RankView {
            load: row.load,
            takes_bookings: row.takes_bookings,
            booked: rank.prefills.booked(),
            head: rank.prefills.head(&self.bookings),
            total_kv_blocks: rank.facts.total_kv_blocks,
        }
    }

    #[cfg(test)]
    pub(super) fn check_work(&self) {
        for work in &self.works {
            work.check(|slot| self.view(slot));
            if self.bookings.len() == 0 {
                assert!(work.has_no_prefill());
            }
        }
    }
}
