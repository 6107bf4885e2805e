//! Pending selections: what a query decided, kept for a later booking.

use super::config::SelectionConfig;

/// The cache of pending selections, one for all partitions.
#[derive(Debug)]
pub struct PendingSelections {}

impl PendingSelections {
    /// An empty cache with the limits of `config`.
    pub fn new(config: &SelectionConfig) -> Self {
        let _ = config;
        Self {}
    }
}
