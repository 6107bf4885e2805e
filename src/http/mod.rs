//! The HTTP API over the service.

pub mod config;

pub use config::{AdminToken, HttpConfig};
