//! A hot prefix: 15,360 tokens that 35 % of the requests start with, and 65 % in bursts, in which the rate is 1.6 times
//! as high; 40 prefixes of 4,096 tokens; and requests that share nothing, of 5,000 tokens on
//! average.

use fastrand::Rng;

use super::{Blocks, Session, single};
use crate::simulation::{
    Nanos, SECOND,
    workload::random::{Tokens, arrival_gap, stream},
};

/// Three or four bursts.
pub(super) const SECONDS: f64 = 300.0;

const HOT: u32 = 15_360;
const WARM_PREFIXES: u32 = 40;
const WARM: u32 = 4096;

/// Shares of the hot prefix outside and inside bursts, and how many of the rest have a warm one.
const HOT_SHARE: f64 = 0.35;
const HOT_SHARE_IN_BURST: f64 = 0.65;
const WARM_SHARE: f64 = 0.75;

/// How long bursts and the time between them last. Of fixed length, so that seeds do not differ in load.
const BURST: Nanos = 20 * SECOND;
const CALM: Nanos = 60 * SECOND;
const BURST_RATE: f64 = 1.6;

/// With the shares above, these give idle times to the first token of 0.08, 0.36 and 1.18 s at p50, p90 and p99.
const SUFFIX: Tokens = Tokens { mean: 1200.0, sigma: 1.0, least: 16, most: 16_384 };
const UNIQUE: Tokens = Tokens { mean: 5000.0, sigma: 0.8, least: 64, most: 32_768 };
/// Long enough for queues in bursts at the two higher levels.
const OUTPUT: Tokens = Tokens { mean: 300.0, sigma: 0.6, least: 1, most: 2048 };

/// Bursts and the calm between them.
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
            self.until += if self.burst { BURST } else { CALM };
        }
    }
}

pub(super) fn sessions(seed: u64, rate: f64) -> impl Iterator<Item = Session> + Send {
    let mut rng = stream(seed, 3);
    let mut blocks = Blocks::default();
    let hot = blocks.prompt(&[], HOT);
    let warm = blocks.prefixes(WARM_PREFIXES, WARM);
    // Where in the calm the first arrival falls is of the seed.
    let mut bursts = Bursts { burst: false, until: rng.u64(..CALM) };
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
