//! The state file of `pointsman policy try`: what workers have cached and what they are doing.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use crate::selection::catalog::DesiredWorker;

/// Bookings described for one rank, so that a typing error does not fill the memory.
const MAX_REQUESTS: u32 = 100_000;
/// Active blocks described for one rank, likewise.
const MAX_BLOCKS: u64 = 4_000_000;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    #[serde(default)]
    pub workers: Vec<RankState>,
}

/// One rank. Everything but the worker may be left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankState {
    /// Name in the workers file, or the id.
    pub worker: WorkerName,
    #[serde(default)]
    pub rank: u32,
    #[serde(default)]
    pub cached: Cached,
    #[serde(default)]
    pub load: Load,
}

/// A worker, by name or id.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum WorkerName {
    Id(u64),
    Name(String),
}

impl std::fmt::Display for WorkerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => write!(f, "worker {id}"),
            Self::Name(name) => write!(f, "worker {name:?}"),
        }
    }
}

/// Leading blocks of the request's prompt that the rank has cached, by tier; each tier goes on where the one before it
/// ends.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cached {
    pub device: usize,
    pub host: usize,
    pub disk: usize,
}

/// What the rank is doing, spread evenly over its requests.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Load {
    /// Live bookings; 1 when only tokens or blocks are given.
    pub requests: u32,
    /// Prefill tokens in progress.
    pub prefill_tokens: u64,
    /// Active blocks, none of them the request's.
    pub decode_blocks: u64,
}

impl Load {
    /// Tokens and blocks of each booking.
    pub fn bookings(self) -> Vec<(u64, u64)> {
        let some = self.requests == 0 && (self.prefill_tokens > 0 || self.decode_blocks > 0);
        let requests = u64::from(self.requests.max(u32::from(some)));
        let share = |whole: u64, at: u64| whole / requests + u64::from(at < whole % requests);
        (0..requests).map(|at| (share(self.prefill_tokens, at), share(self.decode_blocks, at))).collect()
    }
}

/// Reads the file.
///
/// # Errors
/// It cannot be read or meant.
pub fn load(path: &Path) -> Result<State, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let state: State = parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    for RankState { worker, load, .. } in &state.workers {
        let refuse = |limit: u64, what: &str| Err(format!("{}: {worker} has more than {limit} {what}", path.display()));
        if load.requests > MAX_REQUESTS {
            return refuse(MAX_REQUESTS.into(), "requests");
        }
        if load.decode_blocks > MAX_BLOCKS {
            return refuse(MAX_BLOCKS, "decode_blocks");
        }
    }
    Ok(state)
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// Ids by name. The workers of a file are in the order of its list.
///
/// # Errors
/// The file cannot be read.
pub fn names(path: &Path, workers: &[DesiredWorker]) -> Result<BTreeMap<String, u64>, String> {
    #[derive(Deserialize)]
    struct Names {
        workers: Vec<Name>,
    }
    #[derive(Deserialize)]
    struct Name {
        name: Option<String>,
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let names: Names = parse(&text)?;
    let named = names.workers.into_iter().zip(workers);
    Ok(named.filter_map(|(entry, worker)| Some((entry.name?, worker.request.worker_id))).collect())
}
