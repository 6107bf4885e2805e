//! The HTTP API over real sockets: what clients send, what connections do, and what the service answers meanwhile.

#![allow(clippy::unwrap_used)]

mod catalog;
mod classifier;
mod connections;
mod engine;
mod envelope;
mod events;
mod indexer;
mod probes;
mod queueing;
mod recovery;
mod reservations;
mod server;
mod sessions;
mod shutdown;
mod slow_readers;
mod streams;
mod workers;
