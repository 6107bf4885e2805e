//! Engine KV events: transport, decoding, one supervised listener a rank.

pub mod counts;
pub mod decode;
pub mod normalise;
#[cfg(test)]
mod testing;
pub mod transport;
