//! Waiting for conditions. The last state seen is part of the failure.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

/// Longest wait for what takes seconds; generous, because machines are slow and busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `probe` succeeds, for [`PATIENCE`]; its error tells the state that is not good yet.
#[track_caller]
pub fn wait_until<R, E: Display>(what: &str, probe: impl FnMut() -> Result<R, E>) -> R {
    within(PATIENCE, what, probe)
}

/// Waits until `probe` succeeds, for `limit`.
#[track_caller]
pub fn within<R, E: Display>(limit: Duration, what: &str, mut probe: impl FnMut() -> Result<R, E>) -> R {
    let started = Instant::now();
    loop {
        let state = match probe() {
            Ok(result) => return result,
            Err(state) => state,
        };
        assert!(started.elapsed() < limit, "waited {} s in vain for {what}; last: {state}", limit.as_secs());
        std::thread::park_timeout(Duration::from_millis(100));
    }
}
