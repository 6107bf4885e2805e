//! `pointsman selector`: flags and environment into a running service.

mod discovery;
mod flags;
mod policy;
mod serve;
mod settings;
mod tracking;

pub use flags::SelectorArgs;
pub(in crate::cli) use flags::seconds;

use std::path::Path;

use clap::Parser;

use super::{
    CliError,
    environment::{self, Environment},
};
use crate::selection::{endpoint::check_zmq_endpoint, policy::registry::RouterPluginRegistry};

/// Runs a selector until a signal ends it, with the policy types of `registry`.
///
/// # Errors
/// A setting that is refused; a socket that cannot be bound.
pub fn run(args: SelectorArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    environment::check_unicode(&policy::NAMES).map_err(CliError::Failed)?;
    let environment = Environment::new(&environment::process);
    let settings = settings::resolve(&args, &environment, registry).map_err(CliError::Failed)?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    settings.selection.validate().map_err(CliError::failed)?;
    for peer in &args.peers.replica_sync_peers {
        check_zmq_endpoint(peer)
            .map_err(|reason| CliError::Failed(format!("invalid replica peer endpoint `{peer}`: {reason}")))?;
    }
    let source = settings.policies.source(registry, args.policy.policy_watch);
    serve::run(args, settings.selection, source)
}

/// The settings of a selector that is started with a policy document and nothing else.
///
/// # Errors
/// A setting that is refused.
pub(in crate::cli) fn settings_of_document(
    path: &Path,
    registry: &RouterPluginRegistry,
) -> Result<settings::Settings, String> {
    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: SelectorArgs,
    }
    let words = ["selector".as_ref(), "--router-policy-config".as_ref(), path.as_os_str()];
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    settings::resolve(&line.args, &Environment::new(&|_| None), registry)
}
