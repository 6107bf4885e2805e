//! A second policy beside the one in force: where it comes from, and what comparing the two has shown.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{document::Share, stages::WorkerSelectionPolicyFactory};

/// What comparing the two has shown, of one core and instance.
#[derive(Debug, Default)]
pub struct ShadowCounts {
    pub(in crate::selection) same: AtomicU64,
    pub(in crate::selection) different: AtomicU64,
    pub(in crate::selection) failed: AtomicU64,
    pub(in crate::selection) acted: AtomicU64,
    pub(in crate::selection) in_force_regret: AtomicU64,
    pub(in crate::selection) shadow_regret: AtomicU64,
}

/// [`ShadowCounts`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowReport {
    /// Requests for which both chose one rank.
    pub same: u64,
    /// Requests for which they chose different ones.
    pub different: u64,
    /// Requests that the one which does not act could not decide, or the shadow failed to decide when it was its turn.
    pub failed: u64,
    /// Requests that the shadow decided.
    pub acted: u64,
    /// Sum of the prefill tokens by which the choice of the policy in force had more to compute before the first token
    /// than the shadow's.
    pub in_force_regret_tokens: u64,
    /// The same the other way round.
    pub shadow_regret_tokens: u64,
}

impl ShadowCounts {
    /// What they are now.
    pub fn report(&self) -> ShadowReport {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ShadowReport {
            same: read(&self.same),
            different: read(&self.different),
            failed: read(&self.failed),
            acted: read(&self.acted),
            in_force_regret_tokens: read(&self.in_force_regret),
            shadow_regret_tokens: read(&self.shadow_regret),
        }
    }
}

/// Where shadows of one role come from.
#[derive(Clone)]
pub struct ShadowSource {
    /// Name of the configured instance.
    pub instance: Arc<str>,
    /// Part of the requests that it decides.
    pub share: Share,
    /// Makes it.
    pub factory: WorkerSelectionPolicyFactory,
}

impl std::fmt::Debug for ShadowSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ShadowSource").field(&self.instance).field(&self.share).finish()
    }
}
