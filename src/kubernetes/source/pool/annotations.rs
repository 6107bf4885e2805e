//! Annotations by which a pod overrides its pool.

use std::{collections::BTreeSet, fmt::Display, ops::RangeInclusive, str::FromStr};

use super::{super::objects::PodView, Refusal};
use crate::{
    kubernetes::api::constants::{annotations as names, rejection},
    selection::worker::MAX_DATA_PARALLEL_SIZE,
};

/// Largest integer that every JSON client keeps exact.
const MAX_SAFE: u64 = (1 << 53) - 1;
/// Longest part of a value that a message quotes.
const QUOTED: usize = 64;

/// What a pod says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Tokens a block.
    pub block_size: Option<u32>,
    /// Port of the HTTP endpoint.
    pub endpoint_port: Option<u16>,
    /// Port of rank 0's events.
    pub events_port: Option<u16>,
    /// Port of rank 0's replay.
    pub replay_port: Option<u16>,
    /// Ranks.
    pub size: Option<u32>,
    /// First rank.
    pub start_rank: Option<u32>,
    /// Most tokens a batch.
    pub max_num_batched_tokens: Option<u64>,
    /// KV capacity in blocks.
    pub total_kv_blocks: Option<u64>,
    /// Taints instead of the pool's.
    pub taints: Option<BTreeSet<String>>,
    /// Identity that outlives restarts.
    pub stable_routing_id: Option<String>,
    /// It is no worker.
    pub exclude: bool,
}

impl Overrides {
    /// Reads the annotations of `pod`; unknown ones are told in `warnings`.
    ///
    /// # Errors
    /// The first value that cannot be used, by name of the annotation.
    pub fn read(pod: &PodView, warnings: &mut Vec<String>) -> Result<Self, Refusal> {
        let mut read = Self::default();
        for (name, value) in &pod.annotations {
            match name.as_str() {
                names::BLOCK_SIZE => read.block_size = Some(number(name, value, 1..=65_536)?),
                names::ENDPOINT_PORT => read.endpoint_port = Some(number(name, value, 1..=u16::MAX)?),
                names::KV_EVENTS_PORT => read.events_port = Some(number(name, value, 1..=u16::MAX)?),
                names::REPLAY_PORT => read.replay_port = Some(number(name, value, 1..=u16::MAX)?),
                names::DATA_PARALLEL_SIZE => read.size = Some(number(name, value, 1..=MAX_DATA_PARALLEL_SIZE)?),
                names::DATA_PARALLEL_START_RANK => read.start_rank = Some(number(name, value, 0..=1_000_000)?),
                names::MAX_NUM_BATCHED_TOKENS => {
                    read.max_num_batched_tokens = Some(number(name, value, 1..=MAX_SAFE)?);
                }
                names::TOTAL_KV_BLOCKS => read.total_kv_blocks = Some(number(name, value, 1..=MAX_SAFE)?),
                names::TAINTS => {
                    let taints = value.split(',').map(str::trim).filter(|taint| !taint.is_empty());
                    read.taints = Some(taints.map(str::to_owned).collect());
                }
                names::STABLE_ROUTING_ID if value.trim().is_empty() => return Err(bad(name, value, "an identity")),
                names::STABLE_ROUTING_ID => read.stable_routing_id = Some(value.trim().to_owned()),
                names::EXCLUDE => {
                    read.exclude = value.trim().parse().map_err(|_| bad(name, value, "true or false"))?;
                }
                // Ours on selector pods; workers may stand beside a selector in one pod.
                crate::kubernetes::api::constants::RESTART_ANNOTATION => {}
                _ => warnings.push(format!("pod {}: annotation {name} is none that is read", pod.key.name)),
            }
        }
        Ok(read)
    }
}

fn number<T>(name: &str, value: &str, range: RangeInclusive<T>) -> Result<T, Refusal>
where
    T: FromStr + PartialOrd + Display,
{
    let parsed = value.trim().parse().ok().filter(|number| range.contains(number));
    parsed.ok_or_else(|| bad(name, value, &format!("a number from {} to {}", range.start(), range.end())))
}

fn bad(name: &str, value: &str, wanted: &str) -> Refusal {
    let cut = value.char_indices().nth(QUOTED).map_or(value.len(), |(at, _)| at);
    let dots = if cut < value.len() { "..." } else { "" };
    (rejection::BAD_ANNOTATION, format!("{name} is {:?}{dots}: {wanted} is expected", &value[..cut]))
}
