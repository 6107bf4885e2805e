//! Telemetry: logs, metrics, readiness, and the word to stop.

#[cfg(feature = "server")]
pub mod logs;
pub mod metrics;
pub mod readiness;
pub mod shutdown;
