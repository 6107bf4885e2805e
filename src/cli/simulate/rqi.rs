//! `pointsman simulate rqi`: the routing quality index of a policy.

use std::{fmt::Write, path::PathBuf};

use clap::Args;

use super::{
    candidate,
    flags::{EngineArgs, RouterArgs, ThreadArgs, level_of},
    run_cells, write,
};
use crate::{
    cli::CliError,
    selection::policy::registry::RouterPluginRegistry,
    simulation::{
        catalogue::{self, CatalogueError},
        comparison::Comparison,
        grid::Cell,
        quality::{Quality, ReplicaPenalty, Scope},
        workload::{Demand, LEVELS},
    },
};

/// Print the routing quality index of a policy: one number, lower is better, 1 is the baseline
///
/// The geometric mean, over 144 cells, of the 90 % quantile of the time to first token as a multiple of the baseline's: six
/// workloads, four loads, 8 and 32 workers, three seeds. Two of the workloads are traces; without them 96 cells are left.
/// Beside it stand the same without `agentic`, for other figures, by workload and fleet, the worst cell, and the spread over
/// seeds.
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
        scope.workers.clone_from(&args.workers);
    }
    if !args.seeds.is_empty() {
        scope.seeds.clone_from(&args.seeds);
    }
    let mut skipped = Vec::new();
    let single = RouterArgs { replicas: 1, ..args.routers.clone() };
    let runs = run_cells(&cells(args, &scope, &single, &mut skipped)?, &candidates, args.threads)?;
    let alone: Vec<_> = runs.iter().filter_map(|(_, figures)| figures.get(1).cloned()).collect();
    let labels = [args.baseline.clone(), args.policy.clone()];
    let comparison = Comparison::new(&labels, runs, skipped);
    let quality = Quality::of(&comparison, scope.cells());
    let mut quality = quality.ok_or_else(|| CliError::Failed("no workload of the index is there".to_owned()))?;
    if args.routers.replicas > 1 {
        let cells = cells(args, &scope, &args.routers, &mut Vec::new())?;
        let many = run_cells(&cells, &candidates[1..], args.threads)?;
        let many: Vec<_> = many.into_iter().filter_map(|(_, figures)| figures.into_iter().next()).collect();
        quality.replica_penalty = ReplicaPenalty::of(args.routers.replicas, &alone, &many);
    }
    let text = if args.json {
        serde_json::to_string_pretty(&quality).map_err(CliError::failed)? + "\n"
    } else {
        text(&quality)
    };
    write("-".as_ref(), &text).map(drop)
}

/// Cells of the workloads that are there.
fn cells(
    args: &RqiArgs,
    scope: &Scope,
    routers: &RouterArgs,
    skipped: &mut Vec<String>,
) -> Result<Vec<Cell>, CliError> {
    let mut cells = Vec::new();
    for name in &scope.workloads {
        let workload = match catalogue::workload(name, args.traces.as_deref()) {
            Ok(workload) => workload,
            Err(missing @ CatalogueError::Missing { .. }) => {
                skipped.push(missing.to_string());
                continue;
            }
            Err(error) => return Err(CliError::failed(error)),
        };
        for &workers in &scope.workers {
            for (label, load) in (1..=LEVELS).map(level_of) {
                for &seed in &scope.seeds {
                    let demand = Demand { workers, load, seed, jitter: None };
                    cells.push(routers.cell(&args.engine, &workload, label.clone(), demand));
                }
            }
        }
    }
    Ok(cells)
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
    let place = format!("{}, {}, {} workers", worst.workload, worst.load, worst.workers);
    writeln!(out, "  worst cell       {:.3}    {place}", worst.p90).ok();
    if let Some(penalty) = quality.replica_penalty {
        let name = format!("{} selectors", penalty.replicas);
        writeln!(out, "  {name:<16} {:.3}    p90 as a multiple of that with one", penalty.p90).ok();
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
    out
}
