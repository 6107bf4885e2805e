//! Flags of the comparison and of the index: workloads, selectors, engines.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;

use crate::{
    cli::CliError,
    simulation::{
        Nanos, SECOND,
        catalogue::{self, CatalogueError},
        engine::EngineConfig,
        fleet::FleetConfig,
        grid::Cell,
        study,
        workload::{Demand, Load, Recorded, Trace, Workload},
    },
};

/// What is asked of the fleet.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workload")]
pub(super) struct WorkArgs {
    /// Workloads: tenants, agentic, hot, decode, conv, synth, or all; conv and synth are traces [default: tenants]
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "trace")]
    workload: Vec<String>,
    /// Folder with conversation_trace.jsonl and synthetic_trace.jsonl
    #[arg(long, value_name = "DIR", env = "POINTSMAN_TRACES")]
    traces: Option<PathBuf>,
    /// A trace of yours in the Mooncake format: a JSON object a line with timestamp, input_length, output_length and hash_ids
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Sessions as they are: a JSON object a line with start and turns, each with think, input_length, output_length and
    /// the ids of its complete blocks (times in seconds)
    #[arg(long, value_name = "FILE", value_delimiter = ',', requires = "block_size")]
    #[arg(conflicts_with_all = ["workload", "trace", "load", "rate", "share"])]
    sessions: Vec<PathBuf>,
    /// Tokens of a block of --sessions
    #[arg(long, value_name = "N", requires = "sessions", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    block_size: Option<u32>,
    /// Load levels, 1 (easy) to 4 (where the reference's cost has long queues) [default: 3]
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=4))]
    #[arg(conflicts_with_all = ["rate", "share", "trace_speed"])]
    load: Vec<u8>,
    /// Requests a second of the whole fleet
    #[arg(long, value_name = "PER_SECOND", value_parser = positive, conflicts_with_all = ["share", "trace_speed"])]
    rate: Option<f64>,
    /// Load as a share of what the fleet can compute (traces) or of the base rate (generated workloads)
    #[arg(long, value_name = "X", value_parser = positive, conflicts_with = "trace_speed")]
    share: Option<f64>,
    /// How much faster than recorded the trace is
    #[arg(long, value_name = "X", value_parser = positive, requires = "trace")]
    trace_speed: Option<f64>,
    /// Time by which requests of a trace are put off at random, in recorded time [default: the step of rounded timestamps]
    #[arg(long, value_name = "TIME", value_parser = time)]
    jitter: Option<Nanos>,
    /// Seeds; each is another draw of the workload and of all random choices
    #[arg(long, alias = "seed", value_name = "N", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
    /// Fleet sizes; loads are a worker's, so a larger fleet is asked more
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Vec<u32>,
}

/// The selectors.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Selectors")]
pub(super) struct RouterArgs {
    /// Selectors; each request goes to a random one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    replicas: u32,
    /// Time until the other selectors know of a booking, or never
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = time_or_never)]
    mesh_lag: Delay,
    /// Time until selectors know what a step of an engine cached, or never
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = time_or_never)]
    event_delay: Delay,
}

/// A delay; `None` = what is delayed never arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Delay(Option<Nanos>);

/// The engines.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engines")]
pub(super) struct EngineArgs {
    /// Tokens a step may compute
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    token_budget: u32,
    /// KV cache, in blocks, of 512 tokens unless --sessions have others
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    kv_blocks: u32,
    /// Sequences that may run at once
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_sequences: u32,
    /// Part of a step that depends on nothing
    #[arg(long, value_name = "TIME", default_value = "3ms", value_parser = time)]
    step_base: Nanos,
    /// Least time of the tokens of a step
    #[arg(long, value_name = "TIME", default_value = "12ms", value_parser = time)]
    step_floor: Nanos,
    /// Time of a token, in microseconds
    #[arg(long, value_name = "US", default_value_t = 75.0, value_parser = positive)]
    per_token: f64,
    /// Time of a prompt token for each token before it, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 1.5, value_parser = not_negative)]
    attention: f64,
    /// Time of a token of context of a sequence that decodes, in nanoseconds a step
    #[arg(long, value_name = "NS", default_value_t = 30.0, value_parser = not_negative)]
    decode_context: f64,
    /// Speeds of the engines, given to them in turn; 0.5 is half as fast
    #[arg(long, value_name = "X", value_delimiter = ',', default_value = "1", value_parser = positive)]
    speeds: Vec<f64>,
}

/// How it is run.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ThreadArgs {
    /// Runs at a time; results do not depend on it
    #[arg(long, value_name = "N", default_value = "2")]
    pub threads: NonZeroUsize,
}

impl RouterArgs {
    /// A fleet of these selectors and engines; its size and seed are up to cells.
    ///
    /// # Errors
    /// No engine can be like that.
    pub fn fleet(&self, engine: &EngineArgs) -> Result<FleetConfig, CliError> {
        let fleet = FleetConfig {
            workers: 1,
            engine: EngineConfig {
                token_budget: engine.token_budget,
                kv_blocks: engine.kv_blocks,
                max_sequences: engine.max_sequences,
                step_base: engine.step_base,
                step_floor: engine.step_floor,
                per_token: engine.per_token * 1e3,
                attention: engine.attention,
                decode_context: engine.decode_context,
                ..EngineConfig::default()
            },
            speeds: engine.speeds.clone(),
            event_delay: self.event_delay.0,
            replicas: self.replicas,
            mesh_lag: self.mesh_lag.0,
            seed: 0,
        };
        fleet.check().map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(fleet)
    }
}

impl WorkArgs {
    /// The workloads that are named; those whose traces are not there are named in `skipped`.
    ///
    /// # Errors
    /// One is broken, or none is there.
    pub fn workloads(&self, skipped: &mut Vec<String>) -> Result<Vec<Workload>, CliError> {
        if let Some(path) = &self.trace {
            let trace = Trace::open(stem(path, "trace"), path, Trace::CONVERSATION_LEVELS).map_err(CliError::failed)?;
            return Ok(vec![Workload::Trace(Arc::new(trace))]);
        }
        if let Some(block_size) = self.block_size {
            let open = |path: &PathBuf| {
                let name = stem(path, "sessions");
                Recorded::open(name, path, block_size).map(|recorded| Workload::Recorded(Arc::new(recorded)))
            };
            return self.sessions.iter().map(open).collect::<Result<_, _>>().map_err(CliError::failed);
        }
        let mut names: Vec<&str> = self.workload.iter().map(String::as_str).collect();
        if names.is_empty() {
            names.push("tenants");
        }
        if let Some(at) = names.iter().position(|name| *name == "all") {
            names.splice(at..=at, catalogue::NAMES);
        }
        let mut workloads = Vec::new();
        for name in distinct(&names) {
            match catalogue::workload(name, self.traces.as_deref()) {
                Ok(workload) => workloads.push(workload),
                Err(missing @ CatalogueError::Missing { .. }) => skipped.push(missing.to_string()),
                Err(unknown @ CatalogueError::Unknown { .. }) => return Err(CliError::Usage(unknown.to_string())),
                Err(error @ CatalogueError::Trace(_)) => return Err(CliError::failed(error)),
            }
        }
        if workloads.is_empty() { Err(CliError::Usage(skipped.join("; "))) } else { Ok(workloads) }
    }

    /// What is done to the workloads without being asked.
    pub fn notes(&self, workloads: &[Workload]) -> Vec<String> {
        if self.jitter.is_some() { Vec::new() } else { workloads.iter().filter_map(Workload::note).collect() }
    }

    /// Loads of a workload, and how each is called.
    fn loads(&self, workload: &Workload) -> Vec<(String, Load)> {
        if let Workload::Recorded(_) = workload {
            return vec![("recorded".to_owned(), Load::Share(1.0))];
        }
        if let Some(rate) = self.rate {
            return vec![(format!("{rate} requests/s"), Load::Rate(rate))];
        }
        if let Some(share) = self.share {
            return vec![(format!("share {share}"), Load::Share(share))];
        }
        if let (Some(speed), Workload::Trace(trace)) = (self.trace_speed, workload) {
            let summary = trace.summary();
            let rate = summary.requests as f64 * SECOND as f64 / summary.span.max(1) as f64;
            return vec![(format!("speed {speed}"), Load::Rate(rate * speed))];
        }
        let levels = if self.load.is_empty() { &[3][..] } else { &self.load };
        distinct(levels).into_iter().map(study::level).collect()
    }

    /// Every workload, load, fleet and seed.
    pub fn cells(&self, workloads: &[Workload], fleet: &FleetConfig) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workload in workloads {
            for workers in distinct(&self.workers) {
                for (label, load) in self.loads(workload) {
                    for seed in distinct(&self.seeds) {
                        let demand = Demand { workers, load, seed, jitter: self.jitter };
                        cells.push(Cell::new(workload, label.clone(), demand, fleet));
                    }
                }
            }
        }
        cells
    }
}

/// Each value once, in the order of the first: a cell that is run twice would count twice.
pub(super) fn distinct<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut once = Vec::with_capacity(values.len());
    for &value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}

/// What a workload of a file is called.
fn stem(path: &Path, otherwise: &str) -> String {
    path.file_stem().map_or_else(|| otherwise.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// A time with its unit, or in seconds.
fn time(text: &str) -> Result<Nanos, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        other => return Err(format!("unknown unit {other:?}; there are s, ms, us and ns")),
    };
    match digits.parse::<f64>() {
        // A day is more than any of these can mean, and far from overflow.
        Ok(number) if (0.0..=86_400e9).contains(&(number * unit)) => Ok((number * unit) as Nanos),
        _ => Err("must be a time from 0 to a day, such as 50ms or 1.5s".to_owned()),
    }
}

fn time_or_never(text: &str) -> Result<Delay, String> {
    if text == "never" { Ok(Delay(None)) } else { time(text).map(|time| Delay(Some(time))) }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("must be a positive number".to_owned()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("must be a number from 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let parsed = ["50ms", "1.5s", "2", "10us", "7ns", "0"].map(time);
        assert_eq!(parsed, [50_000_000, 1_500_000_000, 2_000_000_000, 10_000, 7, 0].map(Ok));
        for wrong in ["", "ms", "-1s", "5 min", "5min", "nan", "1e9s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert_eq!(time_or_never("never"), Ok(Delay(None)));
        assert_eq!(time_or_never("5ms"), Ok(Delay(Some(5_000_000))));
    }
}
