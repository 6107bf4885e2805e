//! `pointsman policy`: policy documents, looked at without a selector.

mod check;
mod offline;
mod state;
mod trial;

use clap::{Args, Subcommand};

use super::CliError;
use crate::selection::policy::registry::RouterPluginRegistry;

/// Check a policy document, or try it on one request, offline.
#[derive(Clone, Debug, Args)]
#[command(arg_required_else_help = true, subcommand_required = true, disable_help_subcommand = true)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum PolicyCommand {
    Check(check::CheckArgs),
    Try(trial::TryArgs),
}

/// Runs a subcommand with the linked policy types.
///
/// # Errors
/// The document is refused, an input cannot be read, or no worker can be chosen.
pub fn run(args: PolicyArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    match args.command {
        PolicyCommand::Check(args) => check::run(&args, registry),
        PolicyCommand::Try(args) => trial::run(args, registry),
    }
}
