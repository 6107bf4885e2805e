//! Telemetry: logs, metrics, readiness, and the word to stop.

pub(crate) mod causes;
#[cfg(feature = "server")]
pub mod logs;
pub mod metrics;
pub mod readiness;
pub mod shutdown;
