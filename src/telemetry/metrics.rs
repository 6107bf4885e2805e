//! The registry of metrics, in Prometheus text.
//!
//! Invariant: every label takes its values from a fixed list or from a list with a limit.

use std::fmt;

use parking_lot::Mutex;
use prometheus_client::{encoding::text, registry::Registry};

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Prefix of every name.
const PREFIX: &str = "pointsman";

/// Metrics of one process or one embedded service.
#[derive(Default)]
pub struct Metrics {
    registry: Mutex<Registry>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Adds metrics whose names are prefixed `pointsman_`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(self.registry.lock().sub_registry_with_prefix(PREFIX));
    }

    /// Adds metrics that have the prefix in their names already.
    pub fn register_named(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// A collector failed.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::with_capacity(16 << 10);
        text::encode(&mut out, &self.registry.lock())?;
        Ok(out)
    }
}
