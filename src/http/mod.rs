//! The HTTP API over the service.

pub mod config;
pub mod decode;

pub use config::{AdminToken, HttpConfig};
