//! Engine KV events: transport, decoding, one supervised listener a rank.

pub mod transport;
