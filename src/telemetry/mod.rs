//! Telemetry: logs, metrics, readiness.
