//! What components ask for, and how they see it: rows over columns.
//!
//! A component sees only what it declared itself, whatever others declared (spec plugins 2.2). Rows are sorted by
//! (worker, rank), so that no policy depends on an accident of order. Views live as long as one call.

use std::ops::{BitOr, BitOrAssign, Range};

use super::table::{CacheRow, Columns};
use crate::selection::{identity::WorkerWithDpRank, trust::Trust};

/// Groups of inputs that a component declares. They are computed only when a component of the policy asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerInputs(u8);

impl WorkerInputs {
    /// Identity and context only.
    pub const NONE: Self = Self(0);
    /// What each rank has cached of the prompt.
    pub const CACHE: Self = Self(1 << 0);
    /// What each rank is doing.
    pub const LOAD: Self = Self(1 << 1);
    /// Multiplier of the request's preferred taints.
    pub const PREFERRED_TAINT: Self = Self(1 << 2);
    /// Prefill work still ahead of each rank, for which the host follows what engines tell of. No view shows it.
    pub(in crate::selection) const PROGRESS: Self = Self(1 << 4);
    /// Active requests of ranks as the host counts them. No view has an accessor for it; loads carry the same number.
    pub const OCCUPANCY: Self = Self(1 << 5);
    /// Everything a view can show.
    pub const ALL: Self = Self(Self::CACHE.0 | Self::LOAD.0 | Self::PREFERRED_TAINT.0);

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Its bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    pub(in crate::selection) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Names of the groups, for people.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (Self::CACHE, "cache"),
            (Self::LOAD, "load"),
            (Self::PREFERRED_TAINT, "preferred_taint"),
            (Self::PROGRESS, "progress"),
            (Self::OCCUPANCY, "occupancy"),
        ]
        .into_iter()
        .filter_map(move |(group, name)| self.contains(group).then_some(name))
    }
}

impl BitOr for WorkerInputs {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for WorkerInputs {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Positions of the prompt's blocks that lie in a cache all workers share, `[start, end)` in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedCacheHits {
    /// Sorted, disjoint.
    pub ranges: Vec<Range<u32>>,
    /// Blocks in all ranges.
    pub total_hits: u32,
}

impl SharedCacheHits {
    /// Hits at these positions; ranges are sorted and disjoint.
    pub fn from_ranges(ranges: Vec<Range<u32>>) -> Self {
        let total_hits = ranges.iter().map(|range| range.end.saturating_sub(range.start)).fold(0, u32::saturating_add);
        Self { ranges, total_hits }
    }

    /// Hits at position `from` and after it.
    pub fn hits_beyond(&self, from: u32) -> u32 {
        let beyond = |range: &Range<u32>| range.end.saturating_sub(range.start.max(from));
        self.ranges.iter().map(beyond).fold(0, u32::saturating_add)
    }
}

/// One candidate row.
#[derive(Clone, Copy, Debug)]
pub struct WorkerCandidate<'a> {
    columns: &'a Columns,
    row: usize,
    inputs: WorkerInputs,
}

impl<'a> WorkerCandidate<'a> {
    pub(super) fn new(columns: &'a Columns, row: usize, inputs: WorkerInputs) -> Self {
        Self { columns, row, inputs }
    }

    /// The rank.
    #[inline]
    pub fn worker(self) -> WorkerWithDpRank {
        self.columns.workers[self.row]
    }

    /// What it has cached; `None` unless the component declared [`WorkerInputs::CACHE`].
    #[inline]
    pub fn cache(self) -> Option<WorkerCacheInput<'a>> {
        self.inputs.contains(WorkerInputs::CACHE).then(|| WorkerCacheInput::new(self.columns, self.row))
    }

    /// What it is doing; `None` unless the component declared [`WorkerInputs::LOAD`].
    #[inline]
    pub fn load(self) -> Option<&'a WorkerLoadInput> {
        self.inputs.contains(WorkerInputs::LOAD).then(|| &self.columns.loads[self.row])
    }

    /// Factor of costs by preferred taints, in `[1/e, e]`, 1 when the worker has none of them. `None` unless the
    /// component declared [`WorkerInputs::PREFERRED_TAINT`], and for requests without preferences or with a pin.
    #[inline]
    pub fn preferred_taint_multiplier(self) -> Option<f64> {
        if self.inputs.contains(WorkerInputs::PREFERRED_TAINT) {
            self.columns.multipliers.get(self.row).copied()
        } else {
            None
        }
    }
}

/// All candidate rows, in the order of the costs.
#[derive(Clone, Copy, Debug)]
pub struct WorkerCandidates<'a> {
    columns: &'a Columns,
    inputs: WorkerInputs,
}

impl<'a> WorkerCandidates<'a> {
    pub(super) fn new(columns: &'a Columns, inputs: WorkerInputs) -> Self {
        Self { columns, inputs }
    }

    /// Number of rows.
    pub fn len(self) -> usize {
        self.columns.len()
    }

    /// Whether there is no row.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One row.
    pub fn get(self, row: usize) -> Option<WorkerCandidate<'a>> {
        (row < self.len()).then(|| WorkerCandidate::new(self.columns, row, self.inputs))
    }

    /// The rows in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = WorkerCandidate<'a>> + DoubleEndedIterator + Clone {
        (0..self.len()).map(move |row| WorkerCandidate::new(self.columns, row, self.inputs))
    }
}

/// What a rank has cached of the prompt.
#[derive(Clone, Copy, Debug)]
pub struct WorkerCacheInput<'a> {
    columns: &'a Columns,
    row: &'a CacheRow,
    trust: Trust,
}

impl<'a> WorkerCacheInput<'a> {
    #[inline]
    fn new(columns: &'a Columns, row: usize) -> Self {
        Self { columns, row: &columns.caches[row], trust: columns.trust(row) }
    }

    /// Leading blocks on the device.
    #[inline]
    pub fn device_overlap_blocks(&self) -> f64 {
        f64::from(self.row.blocks.device)
    }

    /// Blocks in host memory that continue those.
    #[inline]
    pub fn host_overlap_blocks(&self) -> f64 {
        f64::from(self.row.blocks.host)
    }

    /// Blocks on disk and in external storage that continue those.
    #[inline]
    pub fn disk_overlap_blocks(&self) -> f64 {
        f64::from(self.row.blocks.disk) + f64::from(self.row.blocks.external)
    }

    /// What the host books with: blocks with lower tiers weighted, and tokens. Not clamped to the prompt.
    pub fn accounting_cache_estimate(&self) -> (f64, usize) {
        (self.row.weighted_blocks, self.row.tokens)
    }

    /// Whether anybody holds a block of the prompt in any tier, candidate or not; `false` = only estimates exist.
    pub fn has_tier_matches(self) -> bool {
        self.columns.has_tier_matches
    }

    /// Hits in a cache that all workers share; `None` without one.
    pub fn shared_hits(self) -> Option<&'a SharedCacheHits> {
        self.columns.shared_hits.as_ref()
    }

    /// How far the index can be believed about the rank (docs/events.md). Ours.
    pub fn trust(&self) -> Trust {
        self.trust
    }
}

/// Cache inputs of all rows.
#[derive(Clone, Copy, Debug)]
pub struct WorkerCacheInputs<'a> {
    columns: &'a Columns,
}

impl<'a> WorkerCacheInputs<'a> {
    /// Number of rows.
    pub fn len(self) -> usize {
        self.columns.len()
    }

    /// Whether there is no row.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One row.
    pub fn get(self, row: usize) -> Option<WorkerCacheInput<'a>> {
        (row < self.len()).then(|| WorkerCacheInput::new(self.columns, row))
    }

    /// The rows in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = WorkerCacheInput<'a>> + DoubleEndedIterator + Clone {
        (0..self.len()).map(move |row| WorkerCacheInput::new(self.columns, row))
    }
}

/// What a rank is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerLoadInput {
    pub(super) is_available: bool,
    pub(super) active_prefill_tokens: u64,
    pub(super) decode_cost_blocks: f64,
    pub(super) active_requests: u64,
}

impl WorkerLoadInput {
    /// Whether the load is known; zeros of an unknown one do not mean idle.
    #[inline]
    pub fn is_available(&self) -> bool {
        self.is_available
    }

    /// Prefill tokens in progress, decayed to now, before this request.
    #[inline]
    pub fn active_prefill_tokens(&self) -> usize {
        usize::try_from(self.active_prefill_tokens).unwrap_or(usize::MAX)
    }

    /// Active blocks plus those of this request that live requests there do not share.
    #[inline]
    pub fn decode_cost_blocks(&self) -> f64 {
        self.decode_cost_blocks
    }

    /// Live bookings.
    #[inline]
    pub fn active_requests(&self) -> usize {
        usize::try_from(self.active_requests).unwrap_or(usize::MAX)
    }
}

/// A candidate with the sum of its scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredWorkerCandidate {
    pub(super) worker: WorkerWithDpRank,
    pub(super) cost: f64,
    pub(super) multiplier: Option<f64>,
}

impl ScoredWorkerCandidate {
    /// The rank.
    #[inline]
    pub fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    /// Sum of all scorers; lower is better; 0 without scorers.
    #[inline]
    pub fn cost(&self) -> f64 {
        self.cost
    }

    /// As [`WorkerCandidate::preferred_taint_multiplier`].
    pub fn preferred_taint_multiplier(&self) -> Option<f64> {
        self.multiplier
    }
}

/// What a picker sees: slices aligned by row.
#[derive(Clone, Copy, Debug)]
pub struct WorkerInputView<'a> {
    candidates: &'a [ScoredWorkerCandidate],
    columns: &'a Columns,
    inputs: WorkerInputs,
}

impl<'a> WorkerInputView<'a> {
    pub(super) fn new(candidates: &'a [ScoredWorkerCandidate], columns: &'a Columns, inputs: WorkerInputs) -> Self {
        Self { candidates, columns, inputs }
    }

    /// The candidates with their costs.
    #[inline]
    pub fn candidates(self) -> &'a [ScoredWorkerCandidate] {
        self.candidates
    }

    /// `None` unless the picker declared [`WorkerInputs::CACHE`].
    pub fn cache(self) -> Option<WorkerCacheInputs<'a>> {
        self.inputs.contains(WorkerInputs::CACHE).then_some(WorkerCacheInputs { columns: self.columns })
    }

    /// `None` unless the picker declared [`WorkerInputs::LOAD`].
    pub fn load(self) -> Option<&'a [WorkerLoadInput]> {
        self.inputs.contains(WorkerInputs::LOAD).then_some(&self.columns.loads)
    }
}
