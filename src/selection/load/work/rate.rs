//! How fast prefills go, learned from first tokens. One rate for all ranks: rates of their own feed back, since a rank
//! that looks fast gets more, batches more and looks faster.

use std::time::Duration;

/// Share that is kept of what was learned, at each first token.
const KEPT: f64 = 0.998;

/// Seconds of evidence that the prior stands for.
const PRIOR_SECONDS: f64 = 4.0;

/// Bounds of what is believed, in tokens a second.
const BOUNDS: std::ops::RangeInclusive<f64> = 50.0..=5e6;

/// Most that one first token says: lengths are what clients claim, and a notice may come hours late.
const MOST_TOKENS: f64 = 1e6;
const MOST_SECONDS: f64 = 60.0;

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

    /// A prefill of so many tokens was worked on for so long; counts as a shorter one where it is beyond bounds.
    pub(super) fn learn(&mut self, tokens: u64, busy: Duration) {
        let (tokens, seconds) = (tokens as f64, busy.as_secs_f64());
        let share = (MOST_SECONDS / seconds).min(MOST_TOKENS / tokens.max(1.0)).min(1.0);
        self.tokens = self.tokens * KEPT + tokens * share;
        self.seconds = self.seconds * KEPT + seconds * share;
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

    #[test]
    fn one_absurd_notice_does_not_outweigh_all_others() {
        for (tokens, busy) in [(u64::MAX, Duration::ZERO), (1 << 40, Duration::from_millis(1)), (3000, DAY), (0, DAY)] {
            let mut rate = PrefillRate::new(8000.0);
            rate.learn(tokens, busy);
            for _ in 0..1000 {
                rate.learn(9000, Duration::from_secs(1));
            }
            assert!((rate.per_second() - 9000.0).abs() < 900.0, "{tokens} in {busy:?}: {}", rate.per_second());
        }
    }

    const DAY: Duration = Duration::from_secs(86_400);
}
