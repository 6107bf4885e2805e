//! Several selector processes as one mesh, with every fault a network and a host have, against a model.
//!
//! `POINTSMAN_SEEDS=N` runs N random seeds instead of a few; `POINTSMAN_SEED=S` replays one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../program/mod.rs"]
mod program;

mod fake;
mod hostile;
mod impostors;
mod late;
mod link;
mod model;
mod names;
mod replica;
mod scenarios;
mod sessions;
mod slow;
