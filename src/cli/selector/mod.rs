//! `pointsman selector`: flags and environment into a running service.

mod discovery;
mod flags;
mod serve;
mod settings;
mod tracking;

pub use flags::SelectorArgs;
pub(in crate::cli) use flags::seconds;

use self::flags::PeerArgs;
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
    refuse_replica_sync(&args.peers)?;
    serve::run(args, settings.selection)
}

/// Replica sync is of a later version: refused rather than ignored, after what the reference checks.
fn refuse_replica_sync(peers: &PeerArgs) -> Result<(), CliError> {
    for peer in &peers.replica_sync_peers {
        check_zmq_endpoint(peer)
            .map_err(|reason| CliError::Failed(format!("invalid replica peer endpoint `{peer}`: {reason}")))?;
    }
    match peers.replica_sync_port {
        Some(_) => Err(CliError::Failed("this version has no replica sync: leave out --replica-sync-port".to_owned())),
        None => Ok(()),
    }
}
