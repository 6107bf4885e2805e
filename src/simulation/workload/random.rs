//! The distributions of generated workloads.

use std::f64::consts::TAU;

use fastrand::Rng;

use crate::simulation::{Nanos, SECOND};

/// A generator for one purpose of a workload; others of the same seed are independent of it.
pub(super) fn stream(seed: u64, purpose: u64) -> Rng {
    Rng::with_seed(Rng::with_seed(seed).u64(..) ^ Rng::with_seed(!purpose).u64(..))
}

/// Exponential with the given mean.
pub(super) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

/// Nanoseconds to the next arrival of a Poisson process of `rate` a second.
pub(super) fn arrival_gap(rng: &mut Rng, rate: f64) -> Nanos {
    exponential(rng, SECOND as f64 / rate) as Nanos
}

/// A log-normal number of tokens: its mean, the deviation of its logarithm, and the range it is cut to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens {
    pub mean: f64,
    pub sigma: f64,
    pub least: u32,
    pub most: u32,
}

impl Tokens {
    pub(super) fn draw(&self, rng: &mut Rng) -> u32 {
        let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
        let normal = radius * (TAU * rng.f64()).cos();
        let median = self.mean * (-self.sigma * self.sigma / 2.0).exp();
        ((median * (self.sigma * normal).exp()) as u32).clamp(self.least, self.most)
    }
}

/// Ranks with the frequency of `1 / rank^exponent`.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    pub(super) fn new(ranks: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=ranks)
            .map(|rank| {
                sum += f64::from(rank).powf(-exponent);
                sum
            })
            .collect();
        Self { cumulative }
    }

    /// A rank, counted from 0.
    pub(super) fn draw(&self, rng: &mut Rng) -> usize {
        let last = self.cumulative.len() - 1;
        let point = rng.f64() * self.cumulative[last];
        self.cumulative.partition_point(|&sum| sum <= point).min(last)
    }
}
