//! `pointsman selector`: flags and environment into a running service.

mod flags;
mod serve;
mod settings;
mod tracking;

pub use flags::SelectorArgs;

use super::{
    CliError,
    environment::{self, Environment},
};

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
    tracing::info!(config = ?settings.selection, "effective configuration");
    serve::run(&args, settings.selection)
}
