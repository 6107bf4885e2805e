//! A hot prefix: 15,360 tokens that 35 % of the requests start with, and 65 % in bursts, in which the rate is 1.6 times
//! as high; 40 prefixes of 4,096 tokens; and requests that share nothing, of 5,000 tokens on average.

use fastrand::Rng;

use super::{Blocks, Session, single};
use crate::simulation::{
    Nanos, SECOND,
    workload::random::{Tokens, arrival_gap, exponential, stream},
};

/// A few bursts.
pub(super) const SECONDS: f64 = 300.0;

const HOT: u32 = 15_360;
const WARM_PREFIXES: u32 = 40;
const WARM: u32 = 4096;

/// Shares of the hot prefix outside and inside bursts, and how many of the rest have a warm one.
const HOT_SHARE: f64 = 0.35;
const HOT_SHARE_IN_BURST: f64 = 0.65;
const WARM_SHARE: f64 = 0.7;

/// Means of how long bursts and the time between them last, in seconds.
const BURST: f64 = 15.0;
const CALM: f64 = 60.0;
const BURST_RATE: f64 = 1.6;

const SUFFIX: Tokens = Tokens { mean: 1000.0, sigma: 0.8, least: 16, most: 16_384 };
const UNIQUE: Tokens = Tokens { mean: 5000.0, sigma: 0.7, least: 64, most: 32_768 };
const OUTPUT: Tokens = Tokens { mean: 250.0, sigma: 0.6, least: 1, most: 2048 };

/// Bursts and the calm between them, of exponential length.
struct Bursts {
    burst: bool,
    until: Nanos,
}

impl Bursts {
    /// The next arrival after `now`. What is drawn beyond the end of a period is drawn anew from there, which a Poisson
    /// process allows.
    fn next(&mut self, mut now: Nanos, rate: f64, rng: &mut Rng) -> Nanos {
        loop {
            let arrival = now + arrival_gap(rng, if self.burst { rate * BURST_RATE } else { rate });
            if arrival < self.until {
                return arrival;
            }
            now = self.until;
            self.burst = !self.burst;
            let mean = if self.burst { BURST } else { CALM };
            self.until += (exponential(rng, mean) * SECOND as f64) as Nanos;
        }
    }
}

pub(super) fn sessions(seed: u64, rate: f64) -> impl Iterator<Item = Session> + Send {
    let mut rng = stream(seed, 3);
    let mut blocks = Blocks::default();
    let hot = blocks.prompt(&[], HOT);
    let warm = blocks.prefixes(WARM_PREFIXES, WARM);
    // The first turn of this makes it a calm period.
    let mut bursts = Bursts { burst: true, until: 0 };
    let mut now = 0;
    (0..).map(move |id| {
        now = bursts.next(now, rate, &mut rng);
        let hot_share = if bursts.burst { HOT_SHARE_IN_BURST } else { HOT_SHARE };
        let (prefix, prompt): (&[u64], u32) = if rng.f64() < hot_share {
            (&hot, HOT + SUFFIX.draw(&mut rng))
        } else if rng.f64() < WARM_SHARE {
            (&warm[rng.usize(..warm.len())], WARM + SUFFIX.draw(&mut rng))
        } else {
            (&[], UNIQUE.draw(&mut rng))
        };
        single(id, now, prompt, OUTPUT.draw(&mut rng), blocks.prompt(prefix, prompt))
    })
}
