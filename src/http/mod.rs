//! The HTTP API over the service (spec http; design section 5).
//!
//! | file | owns |
//! |---|---|
//! | `decode` | bodies into the core's types, long integer arrays by a parser of its own |
//! | `routes` | a handler an operation |
//! | `operations` | the list of operations |
//! | `error`, `reply`, `body` | errors, answers, reading of bodies |
//! | `server` | connections and their limits, drain |
//! | `openapi` with `schemas`, `metrics` | the document, the numbers |

mod body;
pub mod config;
pub mod decode;
mod error;
mod metrics;
pub mod openapi;
mod operations;
mod reply;
mod routes;
mod schemas;
mod server;

pub use config::{AdminToken, Face, HttpConfig};
pub use server::{Drained, Server, serve, serve_routes};
