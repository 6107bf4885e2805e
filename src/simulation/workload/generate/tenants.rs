//! Tenants with system prompts: 150 tenants of Zipf frequency 0.9 share 6,144 tokens each, and every request adds a
//! question of 1,500 tokens on average and gets an answer of 250.

use super::{Blocks, Session, single};
use crate::simulation::workload::random::{Tokens, Zipf, arrival_gap, stream};

/// Long enough for the rarest tenants, and for queues to grow to what they are at the highest level.
pub(super) const SECONDS: f64 = 400.0;

const TENANTS: u32 = 150;
const EXPONENT: f64 = 0.9;
const PREFIX: u32 = 6144;
/// The deviation and the longest give idle times to the first token of 0.08, 0.30 and 0.84 s at p50, p90 and p99.
const SUFFIX: Tokens = Tokens { mean: 1500.0, sigma: 1.0, least: 16, most: 10_240 };
/// Around the mean as answers of a chat are.
const OUTPUT: Tokens = Tokens { mean: 250.0, sigma: 0.6, least: 1, most: 2048 };

pub(super) fn sessions(seed: u64, rate: f64) -> impl Iterator<Item = Session> + Send {
    let mut rng = stream(seed, 1);
    let mut blocks = Blocks::default();
    let prefixes = blocks.prefixes(TENANTS, PREFIX);
    let tenants = Zipf::new(TENANTS, EXPONENT);
    let mut now = 0;
    (0..).map(move |id| {
        now += arrival_gap(&mut rng, rate);
        let prefix = &prefixes[tenants.draw(&mut rng)];
        let prompt = PREFIX + SUFFIX.draw(&mut rng);
        single(id, now, prompt, OUTPUT.draw(&mut rng), blocks.prompt(prefix, prompt))
    })
}
