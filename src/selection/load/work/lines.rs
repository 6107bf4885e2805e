//! Ranks ordered by what a prompt of any length would cost them.
//!
//! The cost of a rank that shares nothing with the prompt is a line in the prompt's length, so ranks are kept in bands
//! of nearly equal slope, each ordered by intercept: the first of a band bounds all of it.

use std::collections::BTreeSet;

use super::super::{Slot, groups::Groups};

/// Bits of a slope's mantissa that bands differ in: slopes of one band are within 1/64 of each other.
const BAND_BITS: u32 = 6;

/// Slopes outside `2^-16..2^16` share the outermost bands.
const LEAST_SLOPE: f64 = 1.0 / 65_536.0;
const MOST_SLOPE: f64 = 65_536.0;

/// A cost by prompt length in uncached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::selection) struct Line {
    /// Cost of no token.
    pub(in crate::selection) intercept: f64,
    /// Cost a token.
    pub(in crate::selection) slope: f64,
}

impl Line {
    /// Cost of so many uncached tokens. Grows with each of the three numbers, rounding included.
    #[inline]
    pub(in crate::selection) fn cost(self, tokens: f64) -> f64 {
        self.intercept + self.slope * tokens
    }
}

/// Not negative, so bits order as numbers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    intercept: u64,
    slope: u64,
}

impl Key {
    fn line(self) -> Line {
        Line { intercept: f64::from_bits(self.intercept), slope: f64::from_bits(self.slope) }
    }
}

/// The lines of all ranks that take bookings.
#[derive(Debug)]
pub(in crate::selection) struct Lines {
    ranks: Groups<Key>,
    /// Bands that are not empty.
    bands: BTreeSet<u32>,
}

fn band_of(slope: f64) -> u32 {
    let bits = |slope: f64| (slope.to_bits() >> (52 - BAND_BITS)) as u32;
    bits(slope.clamp(LEAST_SLOPE, MOST_SLOPE)) - bits(LEAST_SLOPE)
}

/// No slope of a band is less.
fn least_slope(band: u32) -> f64 {
    if band == 0 {
        return 0.0;
    }
    let first = LEAST_SLOPE.to_bits() >> (52 - BAND_BITS);
    f64::from_bits((first + u64::from(band)) << (52 - BAND_BITS))
}

impl Lines {
    pub(super) fn new() -> Self {
        Self { ranks: Groups::new(), bands: BTreeSet::new() }
    }

    /// Gives a rank a line, or takes it out.
    pub(super) fn set(&mut self, slot: Slot, line: Option<Line>) {
        let wanted = line.map(|line| {
            let key = Key { intercept: line.intercept.to_bits(), slope: line.slope.to_bits() };
            (key, band_of(line.slope))
        });
        let before = self.ranks.place_of(slot);
        if before == wanted {
            return;
        }
        match wanted {
            Some((key, band)) => {
                self.ranks.place(slot, band, key);
                self.bands.insert(band);
            }
            None => {
                self.ranks.take(slot);
            }
        }
        if let Some((_, band)) = before
            && self.ranks.buckets(band as usize).next().is_none()
        {
            self.bands.remove(&band);
        }
    }

    /// The line of a rank.
    pub(in crate::selection) fn line(&self, slot: Slot) -> Option<Line> {
        Some(self.ranks.place_of(slot)?.0.line())
    }

    /// Bands that are not empty, with the least slope there can be in each.
    pub(in crate::selection) fn bands(&self) -> impl Iterator<Item = (u32, f64)> {
        self.bands.iter().map(|&band| (band, least_slope(band)))
    }

    /// Ranks of a band by line, least intercept first.
    pub(in crate::selection) fn buckets(&self, band: u32) -> impl Iterator<Item = (Line, &[Slot])> {
        self.ranks.buckets(band as usize).map(|(key, slots)| (key.line(), slots))
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.ranks.check();
        for band in 0..self.ranks.len() as u32 {
            let lines: Vec<Line> = self.buckets(band).map(|(line, _)| line).collect();
            assert_eq!(self.bands.contains(&band), !lines.is_empty());
            assert!(lines.iter().all(|line| line.slope >= least_slope(band)), "{band} {lines:?}");
            assert!(lines.is_sorted_by(|a, b| a.intercept <= b.intercept));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_bounds_its_slopes() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let slope = (rng.f64() * 60.0 - 30.0).exp2();
            let band = band_of(slope);
            assert!(least_slope(band) <= slope, "{slope}");
            if (LEAST_SLOPE * 1.02..MOST_SLOPE).contains(&slope) {
                assert!(least_slope(band) * (1.0 + 1.0 / 64.0) >= slope, "{slope}");
            }
        }
    }
}
