//! Policies that ship with the crate, one file each.

pub mod default_cost;
