//! Block weights in fixed point, so that sums return exactly to zero, and the weights one booking gave its own blocks.

/// Weight of one whole block. A power of ten times a power of two: decimal fractions of up to 12 digits are exact, and
/// halves round as people expect.
pub(super) const ONE: u128 = 1_000_000_000_000;

/// The weight of one block at `fraction`, which is clamped to `[0, 1]`; not a number counts as 1.
pub(super) fn of_fraction(fraction: f64) -> u128 {
    if fraction.is_nan() { ONE } else { (fraction.clamp(0.0, 1.0) * ONE as f64).round() as u128 }
}

/// Whole blocks of a weight, halves away from zero, saturating.
pub(super) fn to_blocks(weight: u128) -> u64 {
    u64::try_from(weight.saturating_add(ONE / 2) / ONE).unwrap_or(u64::MAX)
}

/// What is missing to [`ONE`] at each block of a booking's prompt: a step function of the block's position. Steps are
/// ascending; before the first nothing is missing.
#[derive(Debug, Default)]
pub(super) struct Missing {
    steps: Vec<(u32, u128)>,
}

impl Missing {
    /// From block `start` on, `missing` is missing.
    pub(super) fn set_from(&mut self, start: u32, missing: u128) {
        while self.steps.last().is_some_and(|step| step.0 >= start) {
            self.steps.pop();
        }
        if self.steps.last().map_or(0, |step| step.1) != missing {
            self.steps.push((start, missing));
        }
    }

    /// Sum over the blocks `start..end`.
    pub(super) fn sum(&self, start: u32, end: u32) -> u128 {
        let mut sum = 0u128;
        let mut until = end;
        for &(from, missing) in self.steps.iter().rev() {
            let from = from.max(start);
            if from < until {
                sum += missing * u128::from(until - from);
                until = from;
            }
            if until <= start {
                break;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact_decimals_and_halves_round_up() {
        for (fraction, blocks, expected) in [(0.7, 5, 4), (0.3, 5, 2), (0.1, 5, 1), (0.25, 5, 1), (0.125, 4, 1)] {
            assert_eq!(to_blocks(of_fraction(fraction) * blocks), expected, "{fraction} of {blocks}");
        }
        assert_eq!((of_fraction(f64::NAN), of_fraction(7.0), of_fraction(-1.0)), (ONE, ONE, 0));
        assert_eq!(to_blocks(u128::MAX), u64::MAX);
    }

    #[test]
    fn steps_cover_the_tail() {
        let mut missing = Missing::default();
        assert_eq!(missing.sum(0, 10), 0);
        missing.set_from(4, 5);
        assert_eq!((missing.sum(0, 4), missing.sum(0, 6), missing.sum(5, 6)), (0, 10, 5));
        missing.set_from(6, 1);
        assert_eq!((missing.sum(0, 8), missing.sum(4, 7), missing.sum(7, 9)), (12, 11, 2));
        missing.set_from(2, 3);
        assert_eq!(missing.sum(0, 8), 18);
        missing.set_from(2, 0);
        assert_eq!((missing.sum(0, 8), missing.steps.len()), (0, 0));
    }
}
