//! The ZMTP sockets against libzmq in every role, and against peers that break the protocol.

#![allow(clippy::unwrap_used)]

#[path = "transport/hostile.rs"]
mod hostile;
#[path = "transport/libzmq.rs"]
mod libzmq;
#[path = "transport/support.rs"]
mod support;
