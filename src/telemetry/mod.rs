//! Telemetry: logs, metrics, readiness, and the word to stop.

pub mod readiness;
