//! `pointsman simulate`: flags into cells and policies, and what came out to wherever it is wanted.
//!
//! | file | owns |
//! |---|---|
//! | this one | the comparison |
//! | `flags` | flags that both share |
//! | `rqi` | the routing quality index |

mod flags;
mod rqi;

use std::{
    fs::OpenOptions,
    io::{ErrorKind, IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use self::flags::{EngineArgs, RouterArgs, ThreadArgs, WorkArgs};
use super::{CliError, selector};
use crate::{
    selection::policy::registry::RouterPluginRegistry,
    simulation::{
        candidate::{Candidate, CandidateError},
        comparison::Comparison,
        grid, report,
    },
};

/// What is compared when nothing is named, where it is linked.
const POLICIES: [&str; 2] = ["work-ahead", "round-robin"];

/// Compare policies on simulated engines, in seconds and without any
///
/// The policies are the real ones, and so is everything around them: each selector is the core that the service runs, with
/// its index, its bookings and its queue, in virtual time. Engines are simulated step by step: batching, chunked prefill, a
/// prefix cache with eviction. Compare policies by the numbers; they say little about the speed of your hardware.
///
/// A policy is a document by its path, or a name: `default` (the reference's cost), `sticky` (the same, with sessions bound
/// to their worker), or any linked policy type. `NAME:KEY=VALUE,KEY=VALUE` sets parameters.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true, after_long_help = AFTER_HELP)]
pub struct SimulateArgs {
    #[command(subcommand)]
    command: Option<SimulateCommand>,
    #[command(flatten)]
    compare: CompareArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum SimulateCommand {
    Rqi(Box<rqi::RqiArgs>),
}

/// The comparison.
#[derive(Clone, Debug, Args)]
struct CompareArgs {
    /// Policy to compare: a name, or the path of a document (YAML); may be given many times [default: work-ahead and round-robin]
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Policy that ratios are to
    #[arg(long, value_name = "POLICY", default_value = "default")]
    baseline: String,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    routers: RouterArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Where results go.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Write everything as JSON; - writes it to standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a line a policy and cell as CSV; - writes to standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write one page with charts, which loads nothing from anywhere
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Leave out the time of a decision, the one figure that is the machine's: equal runs then write equal files
    #[arg(long)]
    reproducible: bool,
    #[command(flatten)]
    threads: ThreadArgs,
}

const AFTER_HELP: &str = "\
Examples:
  The policy for new installations against the reference's cost and plain rotation:
    pointsman simulate

  A document of yours on every generated workload, from easy to overload, as a page:
    pointsman simulate --policy mine.yaml --workload tenants,agentic,hot,decode --load 1,2,3,4 --html mine.html

  Knobs of the default cost side by side, on a recorded service at twice its speed:
    pointsman simulate --policy default:scale=4 --policy default:scale=16 --trace conversation_trace.jsonl --trace-speed 2

  Nine selectors whose bookings reach each other after 5 ms, then never:
    pointsman simulate --policy work-ahead --replicas 9 --mesh-lag 5ms
    pointsman simulate --policy work-ahead --replicas 9 --mesh-lag never

  The routing quality index, one number for a policy:
    pointsman simulate rqi --policy work-ahead --small";

/// Runs the comparison or the index.
///
/// # Errors
/// Flags that contradict each other; a policy or workload that cannot be made; a file that cannot be written.
pub fn run(args: SimulateArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    match args.command {
        Some(SimulateCommand::Rqi(args)) => rqi::run(&args, registry),
        None => compare(&args.compare, registry),
    }
}

fn compare(args: &CompareArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    args.output.check()?;
    let mut policies: Vec<&str> = args.policies.iter().map(String::as_str).collect();
    if policies.is_empty() {
        policies.extend(POLICIES.iter().filter(|name| registry.policy_types().any(|linked| linked == **name)));
    }
    let mut candidates = vec![candidate(&args.baseline, registry)?];
    for policy in policies {
        if candidates.iter().all(|known| known.label() != policy) {
            candidates.push(candidate(policy, registry)?);
        }
    }
    let mut skipped = Vec::new();
    let workloads = args.work.workloads(&mut skipped)?;
    let cells = args.work.cells(&workloads, &args.routers.fleet(&args.engine)?);
    let bar = progress(cells.len() * candidates.len());
    let runs = grid::run(&cells, &candidates, args.output.threads.threads, &|| bar.inc(1));
    bar.finish_and_clear();
    let mut runs = runs.map_err(CliError::failed)?;
    if args.output.reproducible {
        let figures = runs.iter_mut().flat_map(|(_, figures)| figures);
        figures.for_each(|figures| *figures = figures.repeatable());
    }
    let labels: Vec<String> = candidates.iter().map(|candidate| candidate.label().to_owned()).collect();
    let mut comparison = Comparison::new(&labels, runs, skipped);
    comparison.notes = args.work.notes(&workloads);
    args.output.write(&comparison)
}

/// A bar that shows how many of `runs` are done.
fn progress(runs: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {pos}/{len} runs, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━━─");
    let bar = ProgressBar::new(runs as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// The policy a flag names: a document if it looks like one, else a name, else a document if there is such a file.
fn candidate(policy: &str, registry: &RouterPluginRegistry) -> Result<Candidate, CliError> {
    let path = Path::new(policy);
    let looks_like_one = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    if !looks_like_one {
        match Candidate::named(policy, registry) {
            Err(CandidateError::Unknown { .. }) if path.is_file() => {}
            named => return named.map_err(|error| CliError::Usage(error.to_string())),
        }
    }
    let settings = selector::settings_of_document(path, registry).map_err(CliError::Failed)?;
    let (selection, document) = (settings.selection, settings.policies.document);
    Candidate::of_document(policy.to_owned(), selection, document, registry).map_err(CliError::failed)
}

impl OutputArgs {
    fn check(&self) -> Result<(), CliError> {
        let is_stdout = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
        let to_stdout = [&self.json, &self.csv, &self.html].into_iter().filter(|path| is_stdout(path)).count();
        if to_stdout > 1 {
            return Err(CliError::Usage("only one of --json, --csv and --html can go to standard output".to_owned()));
        }
        let files: Vec<&PathBuf> =
            [&self.json, &self.csv, &self.html].into_iter().flatten().filter(|path| path.as_os_str() != "-").collect();
        if let Some((_, path)) = files.iter().enumerate().find(|(at, path)| files[..*at].contains(path)) {
            return Err(CliError::Usage(format!("{} is named for two outputs", path.display())));
        }
        files.into_iter().try_for_each(|path| check_writable(path).map_err(|error| cannot_write(path, &error)))
    }

    fn write(&self, comparison: &Comparison) -> Result<(), CliError> {
        let mut is_shown = false;
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(comparison).map_err(CliError::failed)? + "\n";
            is_shown |= write(path, &text)?;
        }
        if let Some(path) = &self.csv {
            is_shown |= write(path, &report::csv(comparison))?;
        }
        if let Some(path) = &self.html {
            is_shown |= write(path, &report::html(comparison))?;
        }
        if !is_shown {
            write(Path::new("-"), &report::text(comparison))?;
        }
        Ok(())
    }
}

/// Writes a file, or to standard output for `-`; whether it was the latter.
fn write(path: &Path, text: &str) -> Result<bool, CliError> {
    let is_stdout = path == Path::new("-");
    let written = if is_stdout {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
    } else {
        std::fs::write(path, text)
    };
    match written {
        Ok(()) => Ok(is_stdout),
        // Whoever read it has seen enough.
        Err(error) if is_stdout && error.kind() == ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(cannot_write(path, &error)),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CliError {
    CliError::Failed(format!("cannot write {}: {error}", path.display()))
}

/// Whether a file can be written, before minutes are spent on what would go there. Pipes and devices are left alone.
fn check_writable(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => options.append(true).open(path).map(drop),
        Err(_) => {
            options.write(true).create_new(true).open(path)?;
            std::fs::remove_file(path)
        }
    }
}
