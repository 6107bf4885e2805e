//! Engine KV events: transport, decoding, one supervised listener a rank.

pub mod counts;
pub mod decode;
pub mod listener;
mod metrics;
pub mod normalise;
mod position;
mod replay;
pub mod status;
pub mod supervisor;
pub mod takeover;
#[cfg(test)]
mod testing;
pub mod transport;
