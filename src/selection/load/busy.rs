//! Which ranks are busy by the thresholds of policy classes, kept at every change of load (spec scheduling 3.4).
//!
//! A board a threshold: its limit for each slot, and the slots that are free by it. What became free, and what came,
//! left or changed, is remembered until somebody asks, so that nobody has to look at all ranks. Without a threshold
//! there is nothing to keep.

use super::Slot;
use crate::selection::identity::WorkerWithDpRank;

/// Capacity of a worker that does not say its own, as in the reference.
pub(in crate::selection) const DEFAULT_MAX_BATCHED_TOKENS: u64 = 10_000_000;
/// Ranks remembered; when there are more, all of them are to be looked at.
const MAX_TOUCHED: usize = 32;

/// When a rank is busy: with more prefill tokens in progress than either says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyThreshold {
    /// Tokens.
    pub tokens: Option<u64>,
    /// Fraction of the worker's `max_num_batched_tokens`; not negative.
    pub fraction: Option<f64>,
}

impl BusyThreshold {
    /// Most prefill tokens of a rank that is not busy.
    pub fn limit(&self, max_num_batched_tokens: Option<u64>) -> u64 {
        let capacity = max_num_batched_tokens.unwrap_or(DEFAULT_MAX_BATCHED_TOKENS);
        // Tokens are whole, so what lies between two of them does not matter; the cast saturates. Infinite times zero
        // is a threshold nothing exceeds.
        let fraction = self.fraction.map(|fraction| match fraction * capacity as f64 {
            product if product.is_nan() => u64::MAX,
            product => product as u64,
        });
        self.tokens.unwrap_or(u64::MAX).min(fraction.unwrap_or(u64::MAX))
    }
}

/// A rank that a waiting request may want to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::selection) struct TouchedRank {
    pub(in crate::selection) rank: WorkerWithDpRank,
    /// It left, stopped taking bookings, or has other facts: requests that nobody can take any more are among those
    /// it concerns.
    pub(in crate::selection) changed: bool,
}

/// What happened since it was last asked.
#[derive(Debug, Default)]
pub(in crate::selection) struct Touched {
    pub(in crate::selection) ranks: Vec<TouchedRank>,
    /// Too much to list.
    pub(in crate::selection) all: bool,
}

impl Touched {
    fn push(&mut self, touched: TouchedRank) {
        if self.ranks.len() == MAX_TOUCHED {
            self.all = true;
            self.ranks.clear();
        }
        if !self.all && self.ranks.last() != Some(&touched) {
            self.ranks.push(touched);
        }
    }
}

#[derive(Debug)]
struct Board {
    threshold: BusyThreshold,
    /// By slot.
    limits: Vec<u64>,
    /// A bit a slot.
    free: Vec<u64>,
    free_ranks: usize,
}

impl Board {
    fn is_free(&self, slot: Slot) -> bool {
        self.free.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Whether the rank became free.
    fn set_free(&mut self, slot: Slot, free: bool) -> bool {
        if self.is_free(slot) == free {
            return false;
        }
        let word = slot as usize / 64;
        if word >= self.free.len() {
            self.free.resize(word + 1, 0);
        }
        self.free[word] ^= 1 << (slot % 64);
        if free {
            self.free_ranks += 1;
        } else {
            self.free_ranks -= 1;
        }
        free
    }
}

/// The boards of a load tracker.
#[derive(Debug, Default)]
pub(in crate::selection) struct BusyBoards {
    boards: Vec<Board>,
    /// A bit a slot: ranks that take bookings.
    takers: Vec<u64>,
    takers_count: usize,
    touched: Touched,
}

impl BusyBoards {
    /// Keeps these boards, all ranks unknown.
    pub(super) fn reset(&mut self, thresholds: &[BusyThreshold]) {
        let board =
            |&threshold: &BusyThreshold| Board { threshold, limits: Vec::new(), free: Vec::new(), free_ranks: 0 };
        let touched = Touched { ranks: Vec::new(), all: !thresholds.is_empty() };
        *self = Self { boards: thresholds.iter().map(board).collect(), touched, ..Self::default() };
    }

    /// Whether nothing is kept.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.boards.is_empty()
    }

    /// The facts of a rank are new.
    pub(super) fn set_capacity(&mut self, slot: Slot, rank: WorkerWithDpRank, max_num_batched_tokens: Option<u64>) {
        for board in &mut self.boards {
            if slot as usize >= board.limits.len() {
                board.limits.resize(slot as usize + 1, u64::MAX);
            }
            board.limits[slot as usize] = board.threshold.limit(max_num_batched_tokens);
        }
        self.touched.push(TouchedRank { rank, changed: true });
    }

    /// A rank's load is new.
    pub(super) fn update(&mut self, slot: Slot, rank: WorkerWithDpRank, takes_bookings: bool, prefill_tokens: u64) {
        self.set_taker(slot, takes_bookings);
        let mut freed = false;
        for board in &mut self.boards {
            let limit = board.limits.get(slot as usize).copied().unwrap_or(u64::MAX);
            freed |= board.set_free(slot, takes_bookings && prefill_tokens <= limit);
        }
        if freed {
            self.touched.push(TouchedRank { rank, changed: false });
        }
    }

    /// A rank left.
    pub(super) fn remove(&mut self, slot: Slot, rank: WorkerWithDpRank) {
        self.set_taker(slot, false);
        for board in &mut self.boards {
            board.set_free(slot, false);
        }
        self.touched.push(TouchedRank { rank, changed: true });
    }

    fn set_taker(&mut self, slot: Slot, takes: bool) {
        let word = slot as usize / 64;
        if word >= self.takers.len() {
            self.takers.resize(word + 1, 0);
        }
        if (self.takers[word] >> (slot % 64) & 1 == 1) != takes {
            self.takers[word] ^= 1 << (slot % 64);
            self.takers_count = if takes { self.takers_count + 1 } else { self.takers_count - 1 };
        }
    }

    /// Ranks that take bookings.
    pub(in crate::selection) fn takers(&self) -> usize {
        self.takers_count
    }

    /// Ranks that take bookings and are not busy by the numbered threshold.
    pub(in crate::selection) fn free_ranks(&self, board: usize) -> usize {
        self.boards.get(board).map_or(0, |board| board.free_ranks)
    }

    /// Whether a rank takes bookings and is not busy by the numbered threshold.
    pub(in crate::selection) fn is_free(&self, board: usize, slot: Slot) -> bool {
        self.boards.get(board).is_some_and(|board| board.is_free(slot))
    }

    /// The free ranks by the numbered threshold, in order.
    pub(in crate::selection) fn free_slots(&self, board: usize) -> impl Iterator<Item = Slot> + '_ {
        let words = self.boards.get(board).map_or(&[][..], |board| &board.free);
        words.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at as Slot * 64 + bit)
            })
        })
    }

    /// What happened since the last call.
    pub(in crate::selection) fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_busy_above_its_limit_and_free_at_it() {
        let limit = |tokens, fraction, capacity| BusyThreshold { tokens, fraction }.limit(capacity);
        assert_eq!(limit(None, Some(0.5), Some(100)), 50);
        assert_eq!(limit(None, Some(0.5), Some(101)), 50);
        assert_eq!(limit(None, Some(0.0), Some(100)), 0);
        assert_eq!(limit(Some(30), Some(0.5), Some(100)), 30, "either suffices");
        assert_eq!(limit(Some(70), Some(0.5), Some(100)), 50);
        assert_eq!(limit(Some(0), None, None), 0);
        assert_eq!(limit(None, Some(1.0), None), DEFAULT_MAX_BATCHED_TOKENS);
        assert_eq!(limit(None, Some(f64::INFINITY), Some(100)), u64::MAX);
        assert_eq!(limit(None, Some(f64::INFINITY), Some(0)), u64::MAX);
        assert_eq!(limit(None, None, Some(1)), u64::MAX);
    }

    #[test]
    fn boards_count_and_remember_what_became_free() {
        let mut boards = BusyBoards::default();
        let rank = |id| WorkerWithDpRank::new(id, 0);
        boards.reset(&[BusyThreshold { tokens: Some(10), fraction: None }, BusyThreshold::default()]);
        assert!(boards.take_touched().all);
        for (slot, id) in [(0, 1), (70, 2)] {
            boards.set_capacity(slot, rank(id), None);
            boards.update(slot, rank(id), true, 0);
        }
        boards.take_touched();
        assert_eq!((boards.takers(), boards.free_ranks(0), boards.free_ranks(1)), (2, 2, 2));
        boards.update(70, rank(2), true, 11);
        assert_eq!(boards.free_slots(0).collect::<Vec<_>>(), [0]);
        assert!(boards.take_touched().ranks.is_empty(), "nothing became free");
        boards.update(70, rank(2), true, 10);
        assert_eq!(boards.take_touched().ranks, [TouchedRank { rank: rank(2), changed: false }]);
        boards.update(0, rank(1), false, 0);
        boards.remove(70, rank(2));
        assert_eq!((boards.takers(), boards.free_ranks(0), boards.free_ranks(1)), (0, 0, 0));
        for round in 0..300 {
            boards.update(0, rank(1), true, round % 2 * 20);
            boards.update(70, rank(2), true, (round + 1) % 2 * 20);
        }
        let touched = boards.take_touched();
        assert!(touched.all && touched.ranks.is_empty(), "too many to list");
    }
}
