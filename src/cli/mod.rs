//! The command line: one file a subcommand.
//!
//! Owns flags, environment names and exit codes, and nothing else: a subcommand turns its flags into the typed
//! configuration of the module that does the work. Exit codes: 0 done, 1 a configuration or run that failed, 2 a flag
//! that is unknown or cannot be parsed.

pub mod bench;
#[cfg(feature = "controller")]
pub mod controller;
#[cfg(feature = "controller")]
mod crds;
pub mod demo;
pub mod discover;
mod environment;
pub mod mock_engine;
mod openapi;
pub mod policy;
#[cfg(test)]
mod reference;
pub mod selector;
pub mod simulate;

use std::{path::Path, process::ExitCode};

use clap::{
    Args, CommandFactory, Parser, Subcommand, ValueEnum,
    builder::{Styles, styling::AnsiColor},
};
use zeroize::Zeroizing;

use crate::{
    plugins::{RouterPluginRegistry, router_plugin_registry},
    telemetry::logs::{self, LogFormat},
};
use environment::Environment;

/// What is logged unless somebody says otherwise. Failures of the Kubernetes client are told by who called it.
const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const AFTER_HELP: &str = "\
Examples:
  pointsman selector --workers-file workers.yaml    one selector that follows a file of workers
  pointsman mock-engine                             an engine to try it with
  pointsman bench                                   load on a selector that runs
  pointsman policy check policy.yaml                what a policy document comes to
  pointsman simulate                                policies compared on simulated engines
  pointsman selector --help                         every flag, with its environment name";

/// Choose the LLM inference worker for every request, from what is in every worker's KV cache and what every worker is
/// doing
#[derive(Debug, Parser)]
#[command(name = "pointsman", version, styles = STYLES, arg_required_else_help = true, subcommand_required = true)]
#[command(disable_help_subcommand = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Selector(Box<selector::SelectorArgs>),
    Discover(discover::DiscoverArgs),
    #[cfg(feature = "controller")]
    Controller(controller::ControllerArgs),
    Bench(Box<bench::BenchArgs>),
    /// Print the OpenAPI document of the HTTP API
    Openapi,
    /// Print the CustomResourceDefinitions of Kubernetes, for kubectl apply
    #[cfg(feature = "controller")]
    Crds,
    Policy(policy::PolicyArgs),
    Simulate(Box<simulate::SimulateArgs>),
    MockEngine(Box<mock_engine::MockEngineArgs>),
    Demo(demo::DemoArgs),
}

/// Flags of every subcommand.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging")]
struct LogArgs {
    /// Which events are logged: `level` or `target=level,...` [default: DYN_LOG, else info]
    #[arg(long, env = "POINTSMAN_LOG", value_name = "FILTER", global = true)]
    log: Option<String>,
    /// How log lines look [default: json when DYN_LOGGING_JSONL is true, else text]
    #[arg(long, env = "POINTSMAN_LOG_FORMAT", value_name = "FORMAT", global = true)]
    log_format: Option<LogFormatWord>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormatWord {
    /// One readable line an event
    Text,
    /// One JSON object a line
    Json,
}

/// Why a subcommand ended without having done its work.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A combination of flags that makes no sense: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A setting, a file or the run itself failed: exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// A failure whose text is `error` and its causes.
    pub fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(format!("{:#}", error.into()))
    }
}

/// Parses the process's arguments, runs the subcommand with the policy types that ship, and says how to exit.
pub fn run() -> ExitCode {
    run_with(&router_plugin_registry())
}

/// [`run`] with the policy types of `registry`, for programs that link types of their own.
pub fn run_with(registry: &RouterPluginRegistry) -> ExitCode {
    // A failed parse prints its message, or the help, and exits here: 2, or 0 for --help and --version.
    let cli = Cli::parse();
    // Log lines would tear pictures and bars apart.
    let draws = matches!(cli.command, Command::Demo(_) | Command::Simulate(_));
    let default_filter = if draws { "warn" } else { DEFAULT_FILTER };
    let outcome = start_logging(&cli.log, default_filter).and_then(|()| match cli.command {
        Command::Selector(args) => selector::run(*args, registry),
        Command::Discover(args) => discover::run(args),
        #[cfg(feature = "controller")]
        Command::Controller(args) => controller::run(args, registry),
        Command::Bench(args) => bench::run(*args),
        Command::Openapi => openapi::run(),
        #[cfg(feature = "controller")]
        Command::Crds => crds::run(),
        Command::Policy(args) => policy::run(args, registry),
        Command::Simulate(args) => simulate::run(*args, registry),
        Command::MockEngine(args) => mock_engine::run(*args),
        Command::Demo(args) => demo::run(&args),
    });
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // One plain line whatever the log format: a script or a person reads it.
    eprintln!("error: {error}");
    match error {
        CliError::Usage(_) => ExitCode::from(2),
        CliError::Failed(_) => ExitCode::FAILURE,
    }
}

/// The whole command tree, for generated documentation.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The runtime of a subcommand, with `threads` workers or one a processor.
fn runtime(threads: Option<u16>) -> Result<tokio::runtime::Runtime, CliError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("pointsman");
    if let Some(threads) = threads {
        builder.worker_threads(threads.into());
    }
    builder.build().map_err(CliError::failed)
}

/// The first line of a token file.
fn read_token(path: &Path) -> Result<Zeroizing<String>, CliError> {
    let failed = |reason: &str| CliError::Failed(format!("admin token file {}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map(Zeroizing::new).map_err(|e| failed(&e.to_string()))?;
    let token = text.lines().next().unwrap_or_default().trim();
    // What a header can carry, so that a token that could never match is told at once.
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(failed("its first line must be a token of printable ASCII without blanks"));
    }
    Ok(Zeroizing::new(token.to_owned()))
}

fn start_logging(args: &LogArgs, default_filter: &str) -> Result<(), CliError> {
    let env = Environment::new(&environment::process);
    // A filter of ours must be right; an inherited DYN_LOG in a syntax that is not ours falls back to the default.
    let inherited = || env.trimmed("DYN_LOG").filter(|f| logs::is_valid_filter(f));
    let filter = args.log.clone().or_else(inherited).unwrap_or_else(|| default_filter.to_owned());
    let format = match args.log_format {
        Some(LogFormatWord::Text) => LogFormat::Text,
        Some(LogFormatWord::Json) => LogFormat::Json,
        None if env.boolean("DYN_LOGGING_JSONL") == Some(true) => LogFormat::Json,
        None => LogFormat::Text,
    };
    logs::init(&filter, format).map_err(CliError::failed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_tree_is_consistent() {
        super::command().debug_assert();
    }
}
