//! Engine KV events: transport, decoding, one supervised listener a rank.

pub mod decode;
pub mod transport;
