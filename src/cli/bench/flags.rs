//! Flags of `pointsman bench`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::cli::selector::seconds;

/// Offer load to a selector and measure it: this program's, the reference's, or anything with the same HTTP API
///
/// Workers are registered in a partition of their own and removed afterwards. Without --rate each connection sends its
/// next request when the last one is answered (closed loop); with --rate requests have their times, and one that is sent
/// late because the server was busy counts from when it was due (open loop).
#[derive(Clone, Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct BenchArgs {
    /// Base URL of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8092")]
    pub(super) url: String,
    /// Process id of the server on this machine, for its CPU time and memory
    #[arg(long, value_name = "PID")]
    pub(super) server_pid: Option<u32>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// Fail when any request failed, not only when all did
    #[arg(long)]
    pub(super) strict: bool,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) prompts: PromptArgs,
    #[command(flatten)]
    pub(super) fleet: FleetArgs,
    #[command(flatten)]
    pub(super) trace: TraceArgs,
}

/// What is offered.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub(super) struct LoadArgs {
    /// What one unit of load is
    #[arg(long, value_enum, default_value = "reserve")]
    pub cycle: Cycle,
    /// Units a second, spread over all connections [default: as fast as answers come]
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    pub rate: Option<f64>,
    /// Connections, each with one request under way
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// Bookings that each connection keeps open before it ends its oldest
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub hold: u32,
    /// Measured time
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub duration: Duration,
    /// Time before that which is not measured
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub warmup: Duration,
    /// Threads of this program
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub client_threads: u16,
    /// Seed of prompts and arrival times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// A unit of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Cycle {
    /// select_and_reserve, prefill_complete, delete
    Reserve,
    /// select
    Select,
}

/// What prompts look like.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Prompts")]
pub(super) struct PromptArgs {
    /// How prompts are sent
    #[arg(long, value_enum, default_value = "hashes")]
    pub prompt: PromptForm,
    /// Length of a prompt, in blocks
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub blocks: u32,
    /// Tokens a block
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub block_size: u32,
    /// Share of a prompt that it has in common with others, from its start
    #[arg(long, value_name = "0..1", default_value_t = 0.5, value_parser = share)]
    pub shared: f64,
    /// Number of such common beginnings
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prefixes: u32,
}

/// How a prompt is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PromptForm {
    /// Block and sequence hashes
    Hashes,
    /// Token ids
    Tokens,
}

/// Which workers are registered.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workers")]
pub(super) struct FleetArgs {
    /// Workers to register; 0 registers none and uses those that --model has
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub workers: u32,
    /// Ranks of each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub data_parallel_size: u32,
    /// Model name of the partition that is used
    #[arg(long, value_name = "NAME", default_value = "pointsman-bench")]
    pub model: String,
    /// First worker id
    #[arg(long, value_name = "ID", default_value_t = 1_000_001)]
    pub first_worker_id: u64,
    /// Register event endpoints from this port of 127.0.0.1 on, for a server that insists on them
    #[arg(long, value_name = "PORT")]
    pub kv_events_base_port: Option<u16>,
    /// Leave the workers registered
    #[arg(long)]
    pub keep_workers: bool,
}

/// Replay of recorded requests.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Trace replay")]
pub(super) struct TraceArgs {
    /// File in the Mooncake format: a JSON object a line with timestamp, input_length, output_length and hash_ids
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "hold", "warmup", "duration", "shared", "prefixes", "blocks"])]
    pub trace: Option<PathBuf>,
    /// How much faster than recorded
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive, requires = "trace")]
    pub speed: f64,
    /// Requests to replay [default: all]
    #[arg(long, value_name = "N", requires = "trace")]
    pub limit: Option<usize>,
    /// Tokens that one id of the trace stands for
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536), requires = "trace")]
    pub trace_block_size: u32,
    /// Tokens of uncached prompt that a worker computes in a second
    #[arg(long, value_name = "N", default_value_t = 20_000.0, value_parser = positive, requires = "trace")]
    pub prefill_rate: f64,
    /// Tokens that a request generates in a second
    #[arg(long, value_name = "N", default_value_t = 50.0, value_parser = positive, requires = "trace")]
    pub decode_rate: f64,
}

const AFTER_HELP: &str = "\
Examples:
  Whole cycles as fast as eight connections go, with the server's CPU time:
    pointsman bench --server-pid $(pgrep -f 'pointsman selector')

  Latency at 2,000 selections a second with prompts of 8,000 tokens:
    pointsman bench --cycle select --rate 2000 --prompt tokens --blocks 500

  Replay an hour of a recorded service in three minutes:
    pointsman bench --trace conversation_trace.jsonl --speed 20 --workers 16

A server that follows KV events wants event endpoints: start it with DYN_ROUTER_USE_KV_EVENTS=false, or pass
--kv-events-base-port.";

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("must be a positive number".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err("must be from 0 to 1".to_owned()),
    }
}
