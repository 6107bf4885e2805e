//! Pauses between attempts.

use std::time::Duration;

/// Doubling pauses with jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `min` to `max`.
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The next pause, between three and five quarters of the nominal one: many that failed together, such as the
    /// subscribers of one publisher that restarts, do not all come back in the same millisecond.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.max);
        pause.mul_f64(0.75 + fastrand::f64() / 2.0)
    }

    /// The connection worked: begin at the shortest pause again.
    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }

    /// The same for a connection that stood for `time`. One that ends sooner, without a message, keeps the pause
    /// growing: a peer that breaks the protocol is not asked ten times a second.
    pub(crate) fn reset_after(&mut self, time: Duration) {
        if time >= self.max {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_maximum_and_start_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        for nominal in [100u64, 200, 400, 500, 500] {
            let pause = backoff.next_pause();
            assert!(pause >= Duration::from_millis(nominal * 3 / 4) && pause <= Duration::from_millis(nominal * 5 / 4));
        }
        backoff.reset_after(Duration::from_millis(499));
        assert!(backoff.next_pause() >= Duration::from_millis(375));
        backoff.reset_after(Duration::from_millis(500));
        assert!(backoff.next_pause() <= Duration::from_millis(125));
    }
}
