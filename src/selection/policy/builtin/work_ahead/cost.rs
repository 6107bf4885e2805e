//! What one rank would cost.

use serde::{Deserialize, Serialize};

use crate::selection::{
    index::TierBlocks,
    load::{Line, LoadTracker, Passed, Slot, Work},
    policy::{CacheWeights, PickRequest, overlap},
};

/// Whether prompts in progress on a rank count as cached there, though no event has told of their blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Overlay {
    /// On ranks whose events are late, broken or absent.
    #[default]
    Auto,
    Always,
    Never,
}

/// One selection, and what ranks are priced with.
#[derive(Clone, Copy)]
pub(super) struct Pricing<'a> {
    pub(super) request: &'a PickRequest<'a>,
    pub(super) load: &'a LoadTracker,
    pub(super) work: &'a Work,
    /// Runs of live prompts that the prompt passes through.
    pub(super) path: &'a [Passed],
    pub(super) accounting: CacheWeights,
    pub(super) block_size: u32,
    pub(super) overlay: Overlay,
}

impl Pricing<'_> {
    /// Tokens that a rank has to compute, given what it has cached; 1 at least.
    pub(super) fn own_tokens(&self, cached: TierBlocks) -> f64 {
        let cached = self.accounting.cached_tokens(cached, self.block_size);
        self.request.prompt_tokens.saturating_sub(cached).max(1) as f64
    }

    /// Whether prompts in progress count as cached on the rank.
    pub(super) fn overlays(&self, slot: Slot) -> bool {
        match self.overlay {
            Overlay::Auto => self.work.is_unheard(slot),
            Overlay::Always => true,
            Overlay::Never => false,
        }
    }

    /// Whether they do on any rank.
    pub(super) fn overlays_any(&self) -> bool {
        !self.path.is_empty()
            && match self.overlay {
                Overlay::Auto => self.work.unheard() > 0,
                Overlay::Always => true,
                Overlay::Never => false,
            }
    }

    /// What counts as cached on a rank that holds so much by the index.
    pub(super) fn with_overlay(&self, slot: Slot, cached: TierBlocks) -> TierBlocks {
        if !self.overlays_any() || !self.overlays(slot) {
            return cached;
        }
        let shared = u32::try_from(self.load.shared_on(self.path, slot)).unwrap_or(u32::MAX);
        raised(cached, shared)
    }

    /// What counts as cached on a rank.
    pub(super) fn cached(&self, slot: Slot) -> TierBlocks {
        self.with_overlay(slot, overlap::cached(&self.request.matches.classes, self.request.index, slot))
    }

    /// The line of a rank that takes bookings.
    pub(super) fn line(&self, slot: Slot) -> Option<Line> {
        self.work.lines().line(slot)
    }
}

/// `cached`, with at least so many leading blocks on the device. Lower tiers continue what the index has, not the
/// prompts in progress, so they count only as far as they reach beyond.
pub(super) fn raised(cached: TierBlocks, device: u32) -> TierBlocks {
    if device <= cached.device {
        return cached;
    }
    let mut covered = device - cached.device;
    let mut beyond = |blocks: u32| {
        let left = blocks.saturating_sub(covered);
        covered = covered.saturating_sub(blocks);
        left
    };
    let (host, disk, external) = (beyond(cached.host), beyond(cached.disk), beyond(cached.external));
    TierBlocks { device, host, disk, external }
}
