//! The embeddable service: core, listeners, recovery and shutdown behind typed verbs.

pub mod config;

pub use config::{RecoveryConfig, ServiceConfig};
