//! The `pointsman` binary: parse, dispatch.

fn main() {}
