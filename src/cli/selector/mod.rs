//! `pointsman selector`: flags and environment into a running service.

mod discovery;
mod flags;
mod serve;
mod settings;
mod tracking;

pub use flags::SelectorArgs;
pub(in crate::cli) use flags::seconds;

use super::{
    CliError,
    environment::{self, Environment},
};
use crate::selection::endpoint::check_zmq_endpoint;

/// Runs a selector until a signal ends it.
///
/// # Errors
/// A setting that is refused; a socket that cannot be bound.
pub fn run(args: SelectorArgs) -> Result<(), CliError> {
    let settings = settings::resolve(&args, &Environment::new(&environment::process)).map_err(CliError::Failed)?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    settings.selection.validate().map_err(CliError::failed)?;
    for peer in &args.peers.replica_sync_peers {
        check_zmq_endpoint(peer)
            .map_err(|reason| CliError::Failed(format!("invalid replica peer endpoint `{peer}`: {reason}")))?;
    }
    serve::run(args, settings.selection)
}
