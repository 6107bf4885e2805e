//! A selector that starts beside running traffic: real processes, real engines' sockets, and peers that are good, slow,
//! dying or hostile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod catalog;
mod hostile;
mod joiner;
mod peer;
#[path = "../program/mod.rs"]
mod program;
mod rig;
mod trust;
