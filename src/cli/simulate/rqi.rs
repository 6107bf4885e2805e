//! `pointsman simulate rqi`: the routing quality index of a policy.

use std::{fmt::Write, path::PathBuf};

use clap::Args;

use super::{
    candidate,
    flags::{EngineArgs, RouterArgs, ThreadArgs, distinct},
    progress, write,
};
use crate::{
    cli::CliError,
    selection::policy::registry::RouterPluginRegistry,
    simulation::{
        quality::Quality,
        study::{Scope, Study},
    },
};

/// Print the routing quality index of a policy: one number, lower is better, 1 is the baseline
///
/// The geometric mean, over 144 cells, of the 90 % quantile of the time to first token as a multiple of the baseline's: six
/// workloads, four loads, 8 and 32 workers, three seeds. Two of the workloads are traces; without them 96 cells are left.
/// Beside it stand the same without `agentic`, for other figures, by workload and fleet, the worst cell, and the spread over
/// seeds. With --replicas the policy is run again with as many selectors, and compared with itself.
#[derive(Clone, Debug, Args)]
pub(super) struct RqiArgs {
    /// The policy: a name, or the path of a document (YAML)
    #[arg(long, value_name = "POLICY", default_value = "work-ahead")]
    policy: String,
    /// Policy that ratios are to
    #[arg(long, value_name = "POLICY", default_value = "default")]
    baseline: String,
    /// 8 cells that need no trace and a few seconds: tenants and hot on 8 workers with one seed
    #[arg(long)]
    small: bool,
    /// Folder with conversation_trace.jsonl and synthetic_trace.jsonl
    #[arg(long, value_name = "DIR", env = "POINTSMAN_TRACES")]
    traces: Option<PathBuf>,
    /// Fleet sizes [default: 8 and 32]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Vec<u32>,
    /// Seeds [default: 1, 2 and 3]
    #[arg(long, alias = "seed", value_name = "N", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Look for the highest load that both sustain, too: with 8 workers and the first seed
    #[arg(long)]
    sustainable: bool,
    /// Print JSON, with every cell
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    routers: RouterArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs all cells and prints.
///
/// # Errors
/// A policy that cannot be made; a trace that cannot be read.
pub(super) fn run(args: &RqiArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    let candidates = [candidate(&args.baseline, registry)?, candidate(&args.policy, registry)?];
    let mut scope = if args.small { Scope::small() } else { Scope::full() };
    if !args.workers.is_empty() {
        scope.workers = distinct(&args.workers);
    }
    if !args.seeds.is_empty() {
        scope.seeds = distinct(&args.seeds);
    }
    let study = Study {
        baseline: &candidates[0],
        policy: &candidates[1],
        scope,
        traces: args.traces.as_deref(),
        fleet: args.routers.fleet(&args.engine)?,
        threads: args.threads.threads,
    };
    let bar = progress(study.runs());
    let quality = study.quality(&|| bar.inc(1));
    bar.finish_and_clear();
    let mut quality = quality.map_err(CliError::failed)?;
    if args.sustainable {
        quality.sustainable = study.sustainable().map_err(CliError::failed)?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&quality).map_err(CliError::failed)? + "\n"
    } else {
        text(&quality)
    };
    write("-".as_ref(), &text).map(drop)
}

fn text(quality: &Quality) -> String {
    let mut out = String::new();
    let Quality { policy, baseline, cells_present, cells_defined, worst, seeds, .. } = quality;
    // Writing to a string cannot fail, here and below.
    writeln!(out, "{policy} against {baseline}, {cells_present} of {cells_defined} cells\n").ok();
    writeln!(out, "  RQI              {:.3}    TTFT p90; by seed {:.3} to {:.3}", quality.rqi, seeds.min, seeds.max)
        .ok();
    if let Some(without) = quality.rqi_without_agentic {
        writeln!(out, "  without agentic  {without:.3}").ok();
    }
    for (name, value) in [("p50", quality.rqi_p50), ("p99", quality.rqi_p99), ("end to end", quality.rqi_e2e)] {
        writeln!(out, "  {name:<16} {value:.3}").ok();
    }
    let unfinished: u64 = quality.cells.iter().map(|cell| cell.unfinished[0]).sum();
    if unfinished > 0 {
        writeln!(
            out,
            "  not finished     {unfinished}    requests, which count as waiting to the end, ten minutes at least"
        )
        .ok();
    }
    let place = format!("{}, {}, {} workers", worst.workload, worst.load, worst.workers);
    writeln!(out, "  worst cell       {:.3}    {place}", worst.p90).ok();
    if let Some(penalty) = quality.replica_penalty {
        let name = format!("{} selectors", penalty.replicas);
        writeln!(out, "  {name:<16} {:.3}    p90 as a multiple of that with one", penalty.p90).ok();
    }
    if let Some(sustainable) = &quality.sustainable {
        writeln!(out, "  sustained load   {:.3}    as a multiple of the baseline's", sustainable.ratio).ok();
        for (name, [policy, baseline]) in &sustainable.by_workload {
            writeln!(out, "    {name:<14} {policy:.2}     against {baseline:.2} times load 4").ok();
        }
    }
    writeln!(out, "\n  {:<16} {:>6} {:>6} {:>6} {:>6}", "", "p50", "p90", "p99", "e2e").ok();
    let workers = quality.by_workers.iter().map(|(workers, ratios)| (format!("{workers} workers"), ratios));
    let workloads = quality.by_workload.iter().map(|(name, ratios)| (name.clone(), ratios));
    for (name, r) in workers.chain(workloads) {
        writeln!(out, "  {name:<16} {:>6.3} {:>6.3} {:>6.3} {:>6.3}", r.p50, r.p90, r.p99, r.e2e).ok();
    }
    for skipped in &quality.skipped {
        writeln!(out, "\n  left out: {skipped}").ok();
    }
    for note in &quality.notes {
        writeln!(out, "\n  note: {note}").ok();
    }
    out
}
