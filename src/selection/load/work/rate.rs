//! How fast prefills go, learned from first tokens. One rate for all ranks: rates of their own feed back, since a rank
//! that looks fast gets more, batches more and looks faster.

use std::time::Duration;

/// Share that is kept of what was learned, at each first token.
const KEPT: f64 = 0.998;

/// Seconds of evidence that the prior stands for.
const PRIOR_SECONDS: f64 = 4.0;

/// Bounds of what is believed, in tokens a second.
const BOUNDS: std::ops::RangeInclusive<f64> = 50.0..=5e6;

/// Tokens computed and the time that took, both fading.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillRate {
    tokens: f64,
    seconds: f64,
}

impl PrefillRate {
    /// `prior` tokens a second until there is evidence.
    pub(super) fn new(prior: f64) -> Self {
        Self { tokens: prior * PRIOR_SECONDS, seconds: PRIOR_SECONDS }
    }

    /// A prefill of so many tokens was worked on for so long.
    pub(super) fn learn(&mut self, tokens: u64, busy: Duration) {
        self.tokens = self.tokens * KEPT + tokens as f64;
        self.seconds = self.seconds * KEPT + busy.as_secs_f64();
    }

    /// Tokens a second.
    pub(super) fn per_second(&self) -> f64 {
        (self.tokens / self.seconds.max(1e-6)).clamp(*BOUNDS.start(), *BOUNDS.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_outweighs_the_prior() {
        let mut rate = PrefillRate::new(8000.0);
        assert_eq!(rate.per_second(), 8000.0);
        for _ in 0..2000 {
            rate.learn(3000, Duration::from_secs(1));
        }
        assert!((rate.per_second() - 3000.0).abs() < 30.0, "{}", rate.per_second());
        for _ in 0..10_000 {
            rate.learn(u64::MAX, Duration::ZERO);
        }
        assert_eq!(rate.per_second(), 5e6);
    }
}
