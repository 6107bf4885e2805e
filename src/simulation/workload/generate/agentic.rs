//! Sessions of agents: about 15 turns, each of which adds 800 to 2,000 tokens and the answer before to the prompt, on
//! top of a system prompt of 4,096 to 9,216 tokens that all agents of one of six types share.

use std::sync::Arc;

use super::{Blocks, Session};
use crate::simulation::{
    Nanos, SECOND,
    workload::{
        Turn,
        random::{Tokens, arrival_gap, exponential, stream},
    },
};

/// Many lifetimes of a session: a policy that loses sessions to other workers falls behind slowly, and at the highest
/// level the default cost of the reference does.
pub(super) const SECONDS: f64 = 1400.0;

/// Mean of the turns of a session. The range is wide, so that most requests are of long sessions: a worker that knows
/// the session has 92 % of the blocks.
pub(super) const TURNS: f64 = 15.0;
const FEWEST_TURNS: u32 = 5;
const MOST_TURNS: u32 = 25;

const TYPES: u32 = 6;
/// Tokens of the system prompt of the first type, and what each further type has more.
const SYSTEM: u32 = 4096;
const SYSTEM_STEP: u32 = 1024;
const FEWEST_NEW: u32 = 800;
const MOST_NEW: u32 = 2000;
/// With what a turn adds, this gives idle times to the first token of 0.20, 0.29 and 0.42 s at p50, p90 and p99.
const OUTPUT: Tokens = Tokens { mean: 300.0, sigma: 1.0, least: 1, most: 4096 };
/// Mean of the time between an answer and the next turn, in seconds: that of tools, not of people.
const THINK: f64 = 5.0;

pub(super) fn sessions(seed: u64, rate: f64) -> impl Iterator<Item = Session> + Send {
    let mut rng = stream(seed, 2);
    let mut blocks = Blocks::default();
    let systems: Vec<(u32, Arc<[u64]>)> = (0..TYPES)
        .map(|kind| {
            let tokens = SYSTEM + kind * SYSTEM_STEP;
            (tokens, blocks.prompt(&[], tokens))
        })
        .collect();
    let mut start = 0;
    (0..).map(move |id| {
        start += arrival_gap(&mut rng, rate);
        let (mut prompt, mut chain) = systems[rng.usize(..systems.len())].clone();
        let turns = (0..rng.u32(FEWEST_TURNS..=MOST_TURNS))
            .map(|place| {
                let think = if place == 0 { 0 } else { (exponential(&mut rng, THINK) * SECOND as f64) as Nanos };
                prompt += rng.u32(FEWEST_NEW..=MOST_NEW);
                chain = blocks.prompt(&chain, prompt);
                let output_tokens = OUTPUT.draw(&mut rng);
                let turn = Turn { think, prompt_tokens: prompt, output_tokens, blocks: chain.clone() };
                prompt += output_tokens;
                turn
            })
            .collect();
        Session { id, start, turns }
    })
}
