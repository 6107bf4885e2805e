//! Long answers: 20 small system prompts, prompts of 2,500 tokens on average and answers of 1,800, so that the KV
//! cache fills with what is being decoded.

use super::{Blocks, Session, single};
use crate::simulation::workload::random::{Tokens, arrival_gap, stream};

/// Several times what a long answer takes, so that the memory fills to what it is at the load.
pub(super) const SECONDS: f64 = 800.0;

const SYSTEM_PROMPTS: u32 = 20;
const SYSTEM: u32 = 1024;
/// The deviation gives idle times to the first token of 0.07, 0.27 and 0.76 s at p50, p90 and p99.
const SUFFIX: Tokens = Tokens { mean: 1500.0, sigma: 1.0, least: 16, most: 32_768 };
/// Wide: memory is reserved by the length of answers, and the long ones fill it at the highest level.
const OUTPUT: Tokens = Tokens { mean: 1800.0, sigma: 0.97, least: 16, most: 16_384 };

pub(super) fn sessions(seed: u64, rate: f64) -> impl Iterator<Item = Session> + Send {
    let mut rng = stream(seed, 4);
    let mut blocks = Blocks::default();
    let prefixes = blocks.prefixes(SYSTEM_PROMPTS, SYSTEM);
    let mut now = 0;
    (0..).map(move |id| {
        now += arrival_gap(&mut rng, rate);
        let prefix = &prefixes[rng.usize(..prefixes.len())];
        let prompt = SYSTEM + SUFFIX.draw(&mut rng);
        single(id, now, prompt, OUTPUT.draw(&mut rng), blocks.prompt(prefix, prompt))
    })
}
